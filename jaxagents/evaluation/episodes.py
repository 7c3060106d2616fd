"""Whole episodes under a given policy."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from jaxagents.environments.batch import BatchState, EnvironmentBatch
from jaxagents.types import Observation, TimeStep

Act = Callable[[PRNGKeyArray, Observation, PyTree], tuple[Array, PyTree]]
"""From a key, observations and memory ``[envs, actors, ...]`` to the actions that the environments
get and the memory after them."""


class Episodes(NamedTuple):
    """How each of a batch of episodes went, up to its end."""

    returns: Float[Array, "episodes actors"]  # undiscounted sums of the environment's rewards
    final_rewards: Float[Array, "episodes actors"]  # of the episode's last step
    terminated: Bool[Array, "episodes actors"]  # how the actor's own episode ended
    truncated: Bool[Array, "episodes actors"]
    episode_lengths: Int[Array, "episodes"]
    info: dict[str, Array]  # the last step's scalar infos, [episodes]

    def as_metrics(self) -> dict[str, Array]:
        """List the fields by name, the infos as ``info_<name>``."""
        metrics = self._asdict()
        info = metrics.pop("info")
        return metrics | {f"info_{name}": value for name, value in info.items()}


class Play(NamedTuple):
    """Carry of the loop over steps."""

    rng: PRNGKeyArray
    observation: Observation
    memory: PyTree
    state: BatchState
    running: Bool[Array, "episodes"]
    episodes: Episodes


def play_episodes(
    environments: EnvironmentBatch, act: Act, memory: PyTree, rng: PRNGKeyArray, n_episodes: int
) -> Episodes:
    """Play ``n_episodes`` in as many environments, from the reset to the end, and no further.

    Episodes that the environment never ends run for ever: bound them by ``max_episode_steps``.

    Args:
        environments: The environments.
        act: How to act in them.
        memory: The empty one with which every episode begins.
        rng: Random key.
        n_episodes: Number of episodes.
    """
    start = begin_play(environments, act, memory, rng, n_episodes)
    return jax.lax.while_loop(
        lambda play: jnp.any(play.running),
        lambda play: advance_play(environments, act, play)[0],
        start,
    ).episodes


def begin_play(
    environments: EnvironmentBatch, act: Act, memory: PyTree, rng: PRNGKeyArray, n_episodes: int
) -> Play:
    """Reset the environments; see `play_episodes`."""
    rng, rng_reset = jax.random.split(rng)
    observation, state = environments.reset(rng_reset, n_episodes)

    def first_step() -> TimeStep:
        action, _ = act(rng, observation, memory)
        return environments.step(rng, state, action)[0]

    return Play(
        rng=rng,
        observation=observation,
        memory=memory,
        state=state,
        running=jnp.ones(n_episodes, bool),
        episodes=_no_episodes(state, first_step),
    )


def advance_play(
    environments: EnvironmentBatch, act: Act, play: Play
) -> tuple[Play, Array, TimeStep]:
    """Play one step.

    Returns:
        The play after it, the actions and what the environments answered.
    """
    rng, rng_act, rng_step = jax.random.split(play.rng, 3)
    action, memory = act(rng_act, play.observation, play.memory)
    step, state = environments.step(rng_step, play.state, action)
    running, episodes = play.running, play.episodes
    # Where the dead earn on, what ends the episode ends theirs too.
    ends = running[:, None] & (step.active | environments.rewards_after_death)
    episodes = Episodes(
        returns=episodes.returns + jnp.where(running[:, None], step.reward, 0.0),
        final_rewards=jnp.where(running[:, None], step.reward, episodes.final_rewards),
        terminated=episodes.terminated | (ends & step.terminated),
        truncated=episodes.truncated | (ends & step.truncated),
        episode_lengths=episodes.episode_lengths + running,
        info=jax.tree.map(lambda new, old: jnp.where(running, new, old), step.info, episodes.info),
    )
    play = Play(
        rng=rng,
        observation=step.observation,
        memory=memory,
        state=state,
        running=running & ~step.episode_over,
        episodes=episodes,
    )
    return play, action, step


def _no_episodes(state: BatchState, step: Callable[[], TimeStep]) -> Episodes:
    n_episodes, n_actors = state.active.shape
    zeros, no = jnp.zeros((n_episodes, n_actors)), jnp.zeros((n_episodes, n_actors), bool)
    return Episodes(
        returns=zeros,
        final_rewards=zeros,
        terminated=no,
        truncated=no,
        episode_lengths=jnp.zeros(n_episodes, jnp.int32),
        info=jax.tree.map(
            lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(step).info
        ),
    )
