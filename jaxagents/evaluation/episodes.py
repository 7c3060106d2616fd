"""Complete episodes under a given policy."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxagents.environments.batch import BatchState, EnvironmentBatch
from jaxagents.types import Observation, PyTree, TimeStep

Act = Callable[[PRNGKeyArray, Observation, PyTree], tuple[Array, PyTree]]
"""Maps a random key, observations and recurrent state, ``[envs, actors, ...]``, to the actions for
the environments and the next recurrent state."""


class Episodes(NamedTuple):
    """Outcomes of a batch of episodes, each up to its own end."""

    returns: Float[Array, "episodes actors"]  # undiscounted
    final_rewards: Float[Array, "episodes actors"]  # rewards of the last step
    terminated: Bool[Array, "episodes actors"]  # how the actor's own episode ended
    truncated: Bool[Array, "episodes actors"]
    episode_lengths: Int[Array, "episodes"]
    info: dict[str, Array]  # scalar infos of the last step, [episodes]

    def as_metrics(self) -> dict[str, Array]:
        """Return the fields by name, and each info as ``info_<name>``."""
        metrics = self._asdict()
        info = metrics.pop("info")
        return metrics | {f"info_{name}": value for name, value in info.items()}


class Play(NamedTuple):
    """Carry of the loop over environment steps."""

    rng: PRNGKeyArray
    observation: Observation
    memory: PyTree
    state: BatchState
    running: Bool[Array, "episodes"]
    episodes: Episodes


def play_episodes(
    environments: EnvironmentBatch, act: Act, memory: PyTree, rng: PRNGKeyArray, n_episodes: int
) -> Episodes:
    """Play one episode in each of ``n_episodes`` environments, until all have ended.

    An episode that never ends runs forever; ``max_episode_steps`` bounds it.

    Args:
        environments: The environments.
        act: Chooses the actions.
        memory: Recurrent state at the start of every episode.
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

    def first_step() -> TimeStep:  # for its shapes
        action, _ = act(rng, observation, memory)
        return environments.step(rng, state, action)[0]

    return Play(
        rng=rng,
        observation=observation,
        memory=memory,
        state=state,
        running=jnp.ones(n_episodes, bool),
        episodes=_empty_episodes(state, first_step),
    )


def advance_play(
    environments: EnvironmentBatch, act: Act, play: Play
) -> tuple[Play, Array, TimeStep]:
    """Play one step.

    Returns:
        The next carry, the actions, and the environments' results.
    """
    rng, rng_act, rng_step = jax.random.split(play.rng, 3)
    action, memory = act(rng_act, play.observation, play.memory)
    step, state = environments.step(rng_step, play.state, action)
    running, episodes = play.running, play.episodes
    # If dead actors still earn rewards, their own episodes end with the environment's.
    ends = running[:, None] & (step.active | environments.rewards_after_death)
    goes_on = running & step.active.any(axis=1) if environments.has_idle_steps else running
    episodes = Episodes(
        returns=episodes.returns + jnp.where(goes_on[:, None], step.reward, 0.0),
        final_rewards=jnp.where(goes_on[:, None], step.reward, episodes.final_rewards),
        terminated=episodes.terminated | (ends & step.terminated),
        truncated=episodes.truncated | (ends & step.truncated),
        episode_lengths=episodes.episode_lengths + goes_on,
        info=jax.tree.map(lambda new, old: jnp.where(goes_on, new, old), step.info, episodes.info),
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


def _empty_episodes(state: BatchState, step: Callable[[], TimeStep]) -> Episodes:
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
