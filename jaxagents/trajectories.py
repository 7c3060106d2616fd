"""Episodes kept step by step, to look at."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree, Shaped

from jaxagents.environments.batch import EnvironmentBatch
from jaxagents.evaluation import Act, Play, advance_play
from jaxagents.types import Observation


class Trajectory(NamedTuple):
    """One episode, as numpy arrays."""

    states: PyTree  # of the environment, [1 + time, ...]; None where it resets by itself
    observation: Observation  # on which the actions were chosen, [time, actors, ...]
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
    observation: Observation  # before the step
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
    before = play
    play, action, step = advance_play(environments, act, before)
    # Where the dead earn on, what ends the episode ends theirs too.
    alive = step.active | environments.rewards_after_death
    recorded = RecordedStep(
        state=step.final_state,
        observation=before.observation,
        action=action,
        reward=step.reward,
        active=step.active,
        terminated=step.terminated & alive,
        truncated=step.truncated & alive,
        running=before.running,
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
    first_states = _on_host(jax.tree.map(lambda leaf: leaf[:n_episodes], play.state.env_state))
    steps: list[RecordedStep] = []
    while not steps or np.any(np.asarray(play.running[:n_episodes])):
        play, step = advance(play)
        steps.append(_on_host(step))
    return [_trajectory(first_states, steps, episode) for episode in range(n_episodes)]


def _trajectory(first_states: PyTree, steps: list[RecordedStep], episode: int) -> Trajectory:
    own = [jax.tree.map(lambda leaf: leaf[episode], step) for step in steps]
    own = [step for step in own if step.running]
    states = None
    if own[0].state is not None:
        first = jax.tree.map(lambda leaf: leaf[episode], first_states)
        states = _stacked([first, *(step.state for step in own)])
    fields = {name: [getattr(step, name) for step in own] for name in Trajectory._fields[1:]}
    return Trajectory(states, **{name: _stacked(values) for name, values in fields.items()})


def _stacked(trees: list[Any]) -> Any:
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


def _on_host(tree: PyTree) -> PyTree:
    return jax.tree.map(np.asarray, jax.device_get(jax.tree.map(_without_keys, tree)))


def _without_keys(leaf: Array) -> Array:
    is_key = jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(leaf) if is_key else leaf
