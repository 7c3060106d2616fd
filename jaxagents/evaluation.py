"""Whole episodes under a given policy."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxagents.environments.batch import BatchState, EnvironmentBatch
from jaxagents.types import Observation

Act = Callable[[PRNGKeyArray, Observation], Array]
"""From a key and observations ``[envs, actors, ...]`` to the actions the environments get."""


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


class _Play(NamedTuple):
    """Carry of the loop over steps."""

    rng: PRNGKeyArray
    observation: Observation
    state: BatchState
    running: Bool[Array, "episodes"]
    episodes: Episodes


def play_episodes(
    environments: EnvironmentBatch, act: Act, rng: PRNGKeyArray, n_episodes: int
) -> Episodes:
    """Play ``n_episodes`` in as many environments, from the reset to the end, and no further.

    Episodes that the environment never ends run for ever: bound them by ``max_episode_steps``.
    """
    rng, rng_reset = jax.random.split(rng)
    observation, state = environments.reset(rng_reset, n_episodes)

    def advance(play: _Play) -> _Play:
        rng, rng_act, rng_step = jax.random.split(play.rng, 3)
        action = act(rng_act, play.observation)
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
            info=jax.tree.map(
                lambda new, old: jnp.where(running, new, old), step.info, episodes.info
            ),
        )
        return _Play(rng, step.observation, state, running & ~step.episode_over, episodes)

    start = _Play(
        rng=rng,
        observation=observation,
        state=state,
        running=jnp.ones(n_episodes, bool),
        episodes=_no_episodes(environments, act, rng, observation, state),
    )
    return jax.lax.while_loop(lambda play: jnp.any(play.running), advance, start).episodes


def _no_episodes(
    environments: EnvironmentBatch,
    act: Act,
    rng: PRNGKeyArray,
    observation: Observation,
    state: BatchState,
) -> Episodes:
    n_episodes, n_actors = state.active.shape
    zeros, no = jnp.zeros((n_episodes, n_actors)), jnp.zeros((n_episodes, n_actors), bool)

    def first_info() -> dict[str, Array]:
        return environments.step(rng, state, act(rng, observation))[0].info

    return Episodes(
        returns=zeros,
        final_rewards=zeros,
        terminated=no,
        truncated=no,
        episode_lengths=jnp.zeros(n_episodes, jnp.int32),
        info=jax.tree.map(
            lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(first_info)
        ),
    )
