"""Episodes kept step by step, to look at."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree, Shaped

from jaxagents.environments.batch import EnvironmentBatch
from jaxagents.evaluation.episodes import Act, Play, advance_play
from jaxagents.types import Observation


class Trajectory(NamedTuple):
    """One episode, as numpy arrays."""

    states: PyTree  # of the environment, [1 + time, ...]; None where it resets by itself
    observation: Observation  # [1 + time, actors, ...], the last before any reset
    action: Shaped[np.ndarray, "time actors ..."]  # as the environment got them
    reward: Float[np.ndarray, "time actors"]
    active: Bool[np.ndarray, "time actors"]  # alive when the step began
    terminated: Bool[np.ndarray, "time actors"]  # the actor's own episode ended here
    truncated: Bool[np.ndarray, "time actors"]

    @property
    def n_steps(self) -> int:
        """How long the episode was."""
        return len(self.reward)

    @property
    def n_actors(self) -> int:
        """How many there were, dead ones included."""
        return self.reward.shape[1]


class RecordedStep(NamedTuple):
    """What is kept of one step, ``[episodes, ...]``."""

    state: PyTree  # after the step, before any reset
    observation: Observation  # likewise
    action: Array
    reward: Array
    active: Array
    terminated: Array
    truncated: Array
    running: Array  # the episode was not over before the step


def record_step(
    environments: EnvironmentBatch, act: Act, play: Play, n_episodes: int
) -> tuple[Play, RecordedStep]:
    """Play one step of all episodes, and keep it of the first ``n_episodes``."""
    running = play.running
    play, action, step = advance_play(environments, act, play)
    # Where the dead earn on, what ends the episode ends theirs too.
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
    play: Play, advance: Callable[[Play], tuple[Play, RecordedStep]], n_episodes: int
) -> list[Trajectory]:
    """Play on until the first ``n_episodes`` are over.

    Args:
        play: Episodes that have just begun, see `evaluation.begin_play`.
        advance: `record_step` with everything but the play given, compiled.
        n_episodes: How many to keep.
    """
    start = jax.tree.map(lambda leaf: leaf[:n_episodes], (play.state.env_state, play.observation))
    first = _First(*_on_host(start))
    steps: list[RecordedStep] = []
    while not steps or np.any(np.asarray(play.running[:n_episodes])):
        play, step = advance(play)
        steps.append(_on_host(step))
    return [
        _trajectory(*jax.tree.map(lambda leaf, i=i: leaf[i], (first, steps)))
        for i in range(n_episodes)
    ]


class _First(NamedTuple):
    state: PyTree
    observation: Observation


def _trajectory(first: _First, steps: list[RecordedStep]) -> Trajectory:
    own = [step for step in steps if step.running]
    hidden = own[0].state is None
    each_step = ("action", "reward", "active", "terminated", "truncated")
    return Trajectory(
        states=None if hidden else _stacked([first.state, *(step.state for step in own)]),
        observation=_stacked([first.observation, *(step.observation for step in own)]),
        **{name: _stacked([getattr(step, name) for step in own]) for name in each_step},
    )


def _stacked(trees: list[Any]) -> Any:
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


def _on_host(tree: PyTree) -> PyTree:
    return jax.tree.map(np.asarray, jax.device_get(jax.tree.map(_without_keys, tree)))


def _without_keys(leaf: Array) -> Array:
    is_key = jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(leaf) if is_key else leaf
