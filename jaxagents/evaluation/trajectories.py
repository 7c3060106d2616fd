"""Recordings of episodes, step by step."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Float, Shaped

from jaxagents.environments.batch import EnvironmentBatch
from jaxagents.evaluation.episodes import Act, Play, ResetMemory, advance_play
from jaxagents.training.named_arrays import strip_keys
from jaxagents.types import Observation, PyTree


class Trajectory(NamedTuple):
    """One episode, as numpy arrays."""

    states: PyTree  # environment states, [1 + time, ...]; None if the environment resets itself
    observation: Observation  # [1 + time, actors, ...]; the last one precedes any reset
    action: Shaped[np.ndarray, "time actors ..."]  # as given to the environment
    reward: Float[np.ndarray, "time actors"]
    active: Bool[np.ndarray, "time actors"]  # the actor was alive when it acted
    terminated: Bool[np.ndarray, "time actors"]  # of the actor's own episode
    truncated: Bool[np.ndarray, "time actors"]

    @property
    def n_steps(self) -> int:
        """Number of steps in the episode."""
        return len(self.reward)

    @property
    def n_actors(self) -> int:
        """Number of actors, including dead ones."""
        return self.reward.shape[1]


def record_step(
    environments: EnvironmentBatch,
    act: Act,
    play: Play,
    n_episodes: int,
    reset_memory: ResetMemory | None = None,
) -> tuple[Play, Trajectory]:
    """Play one step of all episodes, and record the first ``n_episodes`` of them.

    Returns:
        The play, and the step as a trajectory without its axis of time, ``[episodes, ...]``, whose
        states and observations precede any reset. After an episode's end it is meaningless.
    """
    play, action, step = advance_play(environments, act, play, reset_memory)
    # If dead actors still earn rewards, their own episodes end with the environment's.
    alive = step.active | environments.rewards_after_death
    fields: dict[str, Any] = {
        "states": step.final_state,
        "observation": step.final_observation,
        "action": action,
        "reward": step.reward,
        "active": step.active,
        "terminated": step.terminated & alive,
        "truncated": step.truncated & alive,
    }
    return play, jax.tree.map(lambda leaf: leaf[:n_episodes], Trajectory(**fields))


def record_episodes(
    environments: EnvironmentBatch,
    play: Play,
    advance: Callable[[Play], tuple[Play, Trajectory]],
    n_episodes: int,
) -> list[Trajectory]:
    """Play until the first ``n_episodes`` have ended, and return these.

    Args:
        environments: The environments.
        play: Episodes that have just begun, from `begin_play`.
        advance: A compiled `record_step` with all arguments but the play bound.
        n_episodes: Number of episodes to record.
    """
    first = (environments.environment_states(play.state), play.observation)
    state, observation = _to_host(jax.tree.map(lambda leaf: leaf[:n_episodes], first))
    running: list[Any] = []  # of each step: which episodes play it
    steps: list[Trajectory] = []
    while np.any(now := np.asarray(play.running[:n_episodes])):
        play, step = advance(play)
        running.append(now)
        steps.append(_to_host(step))

    def of_episode(i: int, tree: PyTree) -> Any:
        return jax.tree.map(lambda leaf: leaf[i], tree)

    return [
        _trajectory(
            of_episode(i, state),
            of_episode(i, observation),
            [of_episode(i, step) for step, now in zip(steps, running, strict=True) if now[i]],
        )
        for i in range(n_episodes)
    ]


def _trajectory(state: PyTree, observation: Observation, steps: list[Trajectory]) -> Trajectory:
    """Join an episode's first state and observation, and its steps."""
    stacked: Trajectory = jax.tree.map(lambda *leaves: np.stack(leaves), *steps)

    def after(first: PyTree, others: PyTree) -> PyTree:
        return jax.tree.map(lambda leaf, later: np.concatenate([leaf[None], later]), first, others)

    return stacked._replace(
        states=None if stacked.states is None else after(state, stacked.states),
        observation=after(observation, stacked.observation),
    )


def _to_host(tree: PyTree) -> PyTree:
    return jax.tree.map(np.asarray, jax.device_get(strip_keys(tree)))
