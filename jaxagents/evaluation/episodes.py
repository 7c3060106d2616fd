"""Complete episodes under a given policy: their outcomes, and recordings step by step."""

import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, Shaped

from jaxagents.environments.batch import BatchState, EnvironmentBatch
from jaxagents.environments.sides.games import results_of_games
from jaxagents.environments.success import Success, with_success
from jaxagents.evaluation.infos import Infos, after_step, no_infos, of_episodes
from jaxagents.training.named_arrays import strip_keys
from jaxagents.types import Observation, PyTree, TimeStep

_logger = logging.getLogger(__name__)
Act = Callable[[PRNGKeyArray, Observation, PyTree], tuple[Array, PyTree]]
"""Maps a random key, observations and recurrent state, ``[envs, actors, ...]``, to the actions for
the environments and the next recurrent state."""


InitialMemory = Callable[[int], PyTree]
"""Returns the recurrent state with which episodes begin, given the number of environments."""
ResetMemory = Callable[[PyTree, Bool[Array, "envs actors"]], PyTree]
"""Resets the recurrent state of the actors whose life begins."""


class Episodes(NamedTuple):
    """Outcomes of a batch of episodes, each up to its own end."""

    returns: Float[Array, "episodes actors"]  # undiscounted
    final_rewards: Float[Array, "episodes actors"]  # rewards of the last step
    terminated: Bool[Array, "episodes actors"]  # how the actor's own episode, or last life, ended
    truncated: Bool[Array, "episodes actors"]
    episode_lengths: Int[Array, "episodes"]
    infos: Infos  # scalars, of the last step or of all steps, as the environments' success says

    @property
    def info(self) -> dict[str, Array]:
        """Return the infos by name, ``[episodes]`` or ``[episodes, actors]``."""
        return self.infos.value

    def as_metrics(self, success: Success | None = None) -> dict[str, Array]:
        """Return the fields by name, and each info as ``info_<name>``, ``[episodes]``.

        Infos of actors are averaged over the actors that have them.

        Args:
            success: The environments' success; its info is also the metric ``success``.
        """
        metrics = self._asdict()
        infos = of_episodes(metrics.pop("infos"), success)
        named = {f"info_{name}": value for name, value in infos.items()}
        return with_success(metrics | named, success)

    def of_side(self, actors: Sequence[int], others: Sequence[int]) -> "Episodes":
        """Return the outcomes of some of the actors, and who has won."""
        own, theirs = np.asarray(actors), np.asarray(others)
        margin = self.returns[:, own].mean(axis=1) - self.returns[:, theirs].mean(axis=1)
        episodes = jax.tree.map(lambda leaf: leaf[:, own] if leaf.ndim == 2 else leaf, self)
        value = results_of_games(margin) | episodes.infos.value
        return episodes._replace(infos=episodes.infos._replace(value=value))


class Play(NamedTuple):
    """Carry of the loop over environment steps."""

    rng: PRNGKeyArray
    observation: Observation
    memory: PyTree
    state: BatchState
    running: Bool[Array, "envs"]
    episodes: Episodes  # of all environments


def play_episodes(
    environments: EnvironmentBatch,
    act: Act,
    initial_memory: InitialMemory,
    rng: PRNGKeyArray,
    n_episodes: int,
    max_steps: int | None = None,
    reset_memory: ResetMemory | None = None,
) -> Episodes:
    """Play one episode in each of ``n_episodes`` environments, until all have ended.

    An episode that never ends runs forever; ``max_episode_steps`` bounds it.

    Args:
        environments: The environments.
        act: Chooses the actions.
        initial_memory: Makes the recurrent state.
        rng: Random key.
        n_episodes: Number of episodes.
        max_steps: Abandon episodes that take longer; None: never.
        reset_memory: Resets the recurrent state of actors that come back; None: they keep it.
    """
    start = begin_play(environments, act, initial_memory, rng, n_episodes)

    def goes_on(play: Play) -> Bool[Array, ""]:
        is_running = jnp.any(play.running)
        if max_steps is None:
            return is_running
        return is_running & jnp.all(play.episodes.episode_lengths < max_steps)

    end = jax.lax.while_loop(
        goes_on,
        lambda play: advance_play(environments, act, play, reset_memory)[0],
        start,
    )
    return jax.tree.map(lambda leaf: leaf[:n_episodes], end.episodes)


def report_waiting(n_episodes: int, n_updates_done: Any = None) -> None:
    """Log that an evaluation has already taken a minute."""
    when = "" if n_updates_done is None else f" after {int(n_updates_done):,} updates"
    _logger.warning(
        "The evaluation%s has waited a minute for the last of its %d episodes to end. If episodes "
        "may never end, bound them by AgentConfig(max_episode_steps=...), or "
        "--agent.max_episode_steps.",
        when,
        n_episodes,
    )


def begin_play(
    environments: EnvironmentBatch,
    act: Act,
    initial_memory: InitialMemory,
    rng: PRNGKeyArray,
    n_episodes: int,
) -> Play:
    """Reset the environments; see `play_episodes`. The first ``n_episodes`` are played."""
    rng, rng_reset = jax.random.split(rng)
    n_envs = environments.n_copies(n_episodes)
    observation, state = environments.reset(rng_reset, n_envs)
    memory = initial_memory(n_envs)

    def first_step() -> TimeStep:  # for its shapes
        action, _ = act(rng, observation, memory)
        return environments.step(rng, state, action)[0]

    return Play(
        rng=rng,
        observation=observation,
        memory=memory,
        state=state,
        running=jnp.arange(n_envs) < n_episodes,
        episodes=_empty_episodes(state, jax.eval_shape(first_step).info, environments.success),
    )


def advance_play(
    environments: EnvironmentBatch, act: Act, play: Play, reset_memory: ResetMemory | None = None
) -> tuple[Play, Array, TimeStep]:
    """Play one step; see `play_episodes`.

    Returns:
        The next carry, the actions, and the environments' results.
    """
    rng, rng_act, rng_step = jax.random.split(play.rng, 3)
    action, memory = act(rng_act, play.observation, play.memory)
    step, state = environments.step(rng_step, play.state, action)
    if reset_memory is not None:
        memory = reset_memory(memory, step.begins)
    running, episodes = play.running, play.episodes
    # If dead actors still earn rewards, their own episodes end with the environment's.
    ends = running[:, None] & (step.active | environments.rewards_after_death)
    ends_now = ends & (step.terminated | step.truncated)
    goes_on = running & step.active.any(axis=1) if environments.has_idle_steps else running
    episodes = Episodes(
        returns=episodes.returns + jnp.where(goes_on[:, None], step.reward, 0.0),
        final_rewards=jnp.where(goes_on[:, None], step.reward, episodes.final_rewards),
        terminated=jnp.where(ends_now, step.terminated, episodes.terminated),
        truncated=jnp.where(ends_now, step.truncated, episodes.truncated),
        episode_lengths=episodes.episode_lengths + goes_on,
        infos=after_step(episodes.infos, step.info, goes_on, ends),
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


def _empty_episodes(
    state: BatchState, info_shapes: dict[str, jax.ShapeDtypeStruct], success: Success | None
) -> Episodes:
    n_episodes, n_actors = state.active.shape
    zeros, no = jnp.zeros((n_episodes, n_actors)), jnp.zeros((n_episodes, n_actors), bool)
    return Episodes(
        returns=zeros,
        final_rewards=zeros,
        terminated=no,
        truncated=no,
        episode_lengths=jnp.zeros(n_episodes, jnp.int32),
        infos=no_infos(info_shapes, success),
    )


class Episode(NamedTuple):
    """One episode, as numpy arrays; an agent's `record` returns it and `jaxagents.film` draws it.

    Attributes:
        states: Environment states, ``[1 + time, ...]``; pictures ``[1 + time, height, width, 3]``
            if the environment is outside of JAX and draws itself; None if it resets itself.
        observation: As the policy observes it, ``[1 + time, actors, ...]``; the last one precedes
            any reset.
        action: As given to the environment, ``[time, actors, ...]``.
        reward: In the environment's units, undiscounted, ``[time, actors]``.
        active: True where the actor was alive when it acted, ``[time, actors]``.
        terminated: True in the step in which the actor's own episode ended, ``[time, actors]``.
        truncated: As ``terminated``, for ends that cut the episode short.
    """

    states: PyTree
    observation: Observation
    action: Shaped[np.ndarray, "time actors ..."]
    reward: Float[np.ndarray, "time actors"]
    active: Bool[np.ndarray, "time actors"]
    terminated: Bool[np.ndarray, "time actors"]
    truncated: Bool[np.ndarray, "time actors"]

    @property
    def n_steps(self) -> int:
        """Number of steps in the episode."""
        return len(self.reward)

    @property
    def n_actors(self) -> int:
        """Number of actors, including dead ones."""
        return self.reward.shape[1]

    @property
    def begins(self) -> Bool[np.ndarray, "time actors"]:
        """True where a life of the actor begins within the episode."""
        ended = (self.terminated | self.truncated)[:-1]
        later = (~self.active[:-1] | ended) & self.active[1:]
        return np.concatenate([np.zeros((1, self.n_actors), bool), later])


class EpisodeView(NamedTuple):
    """What an agent made of an episode, as numpy arrays; the agent's `view` returns it.

    Attributes:
        value: What the critic expected: the discounted return, of scaled rewards with
            ``scale_rewards``, ``[time, actors]``.
        probabilities: Probability of each action, of the choices of a MultiDiscrete space one after
            the other, ``[time, actors, actions]``; None if actions are real vectors.
        quantiles: Actions one standard deviation below the most probable one, that one, and one
            above, which are 16, 50 and 84 % of the distribution, ``[time, actors, dimensions, 3]``;
            NaN in dimensions that an actor lacks. None if actions are discrete.
    """

    value: Float[np.ndarray, "time actors"]
    probabilities: Float[np.ndarray, "time actors actions"] | None = None
    quantiles: Float[np.ndarray, "time actors dimensions 3"] | None = None


def record_step(
    environments: EnvironmentBatch,
    act: Act,
    play: Play,
    n_episodes: int,
    reset_memory: ResetMemory | None = None,
) -> tuple[Play, Episode]:
    """Play one step of all episodes, and record the first ``n_episodes`` of them.

    Returns:
        The play, and the step as an episode without its axis of time, ``[episodes, ...]``, whose
        states and observations precede any reset. After an episode's end it is meaningless.
    """
    play, action, step = advance_play(environments, act, play, reset_memory)
    # If dead actors still earn rewards, their own episodes end with the environment's.
    alive = step.active | environments.rewards_after_death

    def before_reset(final: Array, following: Array) -> Array:
        over = step.episode_over.reshape(-1, *[1] * (final.ndim - 1))
        return jnp.where(over, final, following)

    fields: dict[str, Any] = {
        "states": step.final_state,
        "observation": jax.tree.map(before_reset, step.final_observation, step.observation),
        "action": action,
        "reward": step.reward,
        "active": step.active,
        "terminated": step.terminated & alive,
        "truncated": step.truncated & alive,
    }
    return play, jax.tree.map(lambda leaf: leaf[:n_episodes], Episode(**fields))


def record_episodes(
    environments: EnvironmentBatch,
    play: Play,
    advance: Callable[[Play], tuple[Play, Episode]],
    n_episodes: int,
) -> list[Episode]:
    """Play until the first ``n_episodes`` have ended, and return these.

    Args:
        environments: The environments.
        play: Episodes that have just begun, from `begin_play`.
        advance: A compiled `record_step` with all arguments but the play bound.
        n_episodes: Number of episodes to record.
    """
    first = (environments.environment_states(play.state), play.observation)
    state, observation = _to_host(jax.tree.map(lambda leaf: leaf[:n_episodes], first))
    running: list[Any] = []  # which episodes are running, by step
    steps: list[Episode] = []
    while np.any(now := np.asarray(play.running[:n_episodes])):
        play, step = advance(play)
        running.append(now)
        steps.append(_to_host(step))

    def of_episode(i: int, tree: PyTree) -> Any:
        return jax.tree.map(lambda leaf: leaf[i], tree)

    return [
        _as_episode(
            of_episode(i, state),
            of_episode(i, observation),
            [of_episode(i, step) for step, now in zip(steps, running, strict=True) if now[i]],
        )
        for i in range(n_episodes)
    ]


def _as_episode(state: PyTree, observation: Observation, steps: list[Episode]) -> Episode:
    """Join an episode's first state and observation, and its steps."""
    stacked: Episode = jax.tree.map(lambda *leaves: np.stack(leaves), *steps)

    def after(first: PyTree, others: PyTree) -> PyTree:
        return jax.tree.map(lambda leaf, later: np.concatenate([leaf[None], later]), first, others)

    return stacked._replace(
        states=None if stacked.states is None else after(state, stacked.states),
        observation=after(observation, stacked.observation),
    )


def _to_host(tree: PyTree) -> PyTree:
    return jax.tree.map(np.asarray, jax.device_get(strip_keys(tree)))
