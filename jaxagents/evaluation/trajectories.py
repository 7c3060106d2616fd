"""Recordings of episodes, step by step."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Shaped

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


class RecordedStep(NamedTuple):
    """One step of several episodes, ``[episodes, ...]``."""

    state: PyTree  # after the step, before any reset
    observation: Observation  # after the step, before any reset
    action: Array
    reward: Array
    active: Array
    terminated: Array
    truncated: Array
    running: Array  # False for steps after the episode's end


def record_step(
    environments: EnvironmentBatch,
    act: Act,
    play: Play,
    n_episodes: int,
    reset_memory: ResetMemory | None = None,
) -> tuple[Play, RecordedStep]:
    """Play one step of all episodes, and record the first ``n_episodes`` of them."""
    running = play.running
    play, action, step = advance_play(environments, act, play, reset_memory)
    # If dead actors still earn rewards, their own episodes end with the environment's.
    alive = step.active | environments.rewards_after_death
    recorded = RecordedStep(
        state=step.final_state,
        observation=step.final_observation,
        action=action,
        reward=step.reward,
        active=step.active,
        terminated=step.terminated & alive,
        truncated=step.truncated & alive,
        running=running,
    )
    return play, jax.tree.map(lambda leaf: leaf[:n_episodes], recorded)


def record_episodes(
    environments: EnvironmentBatch,
    play: Play,
    advance: Callable[[Play], tuple[Play, RecordedStep]],
    n_episodes: int,
) -> list[Trajectory]:
    """Play until the first ``n_episodes`` have ended, and return these.

    Args:
        environments: Those that are played.
        play: Episodes that have just begun, from `begin_play`.
        advance: A compiled `record_step` with all arguments but the play bound.
        n_episodes: Number of episodes to record.
    """
    start = _Start(environments.environment_states(play.state), play.observation)
    start = _to_host(jax.tree.map(lambda leaf: leaf[:n_episodes], start))
    steps: list[RecordedStep] = []
    while not steps or np.any(np.asarray(play.running[:n_episodes])):
        play, step = advance(play)
        steps.append(_to_host(step))
    return [
        _trajectory(*jax.tree.map(lambda leaf, i=i: leaf[i], (start, steps)))
        for i in range(n_episodes)
    ]


class _Start(NamedTuple):
    state: PyTree
    observation: Observation


def _trajectory(start: _Start, steps: list[RecordedStep]) -> Trajectory:
    steps = [step for step in steps if step.running]
    is_hidden = steps[0].state is None
    each_step = ("action", "reward", "active", "terminated", "truncated")
    return Trajectory(
        states=None if is_hidden else _stack([start.state, *(step.state for step in steps)]),
        observation=_stack([start.observation, *(step.observation for step in steps)]),
        **{name: _stack([getattr(step, name) for step in steps]) for name in each_step},
    )


def _stack(trees: list[Any]) -> Any:
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


def _to_host(tree: PyTree) -> PyTree:
    return jax.tree.map(np.asarray, jax.device_get(strip_keys(tree)))
