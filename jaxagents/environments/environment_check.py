"""Checks of an environment with random actions: what breaks the protocol, and what it is like."""

import functools
import re
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from jaxagents.compiler.random_keys import is_key
from jaxagents.config import check_seed
from jaxagents.environments.batch import EnvironmentBatch
from jaxagents.environments.factory import batch_of
from jaxagents.environments.random_play import RandomPlay, first_difference, play_randomly
from jaxagents.environments.sides.opponents import random_actions
from jaxagents.environments.spaces import ActionSpace, Box
from jaxagents.environments.time_limits import time_limit_of
from jaxagents.types import IMAGE_NDIM, PyTree

_LARGE = 1e3  # magnitude of observations that need normalisation
_STEPS_OUTSIDE_OF_JIT = 5
_N_ENVS, _TIMED_STEPS = 64, 100
_LEVELS = ("error", "hint", "ok")


class EnvironmentFinding(NamedTuple):
    """A result of `check_environment`."""

    level: Literal["error", "hint", "ok"]  # an error breaks the protocol
    text: str


_error = functools.partial(EnvironmentFinding, "error")
_hint = functools.partial(EnvironmentFinding, "hint")


def check_environment(
    env: Any, env_params: PyTree = None, n_steps: int = 1000, seed: int = 0
) -> list[EnvironmentFinding]:
    """Play random actions, and find what breaks the environment protocol.

    It plays the same steps twice, then steps with other keys and at the bounds of a `Box`. An
    environment of JAX is also traced twice. If the traces differ, the first steps are played
    outside of ``jax.jit``.

    Args:
        env: An `Environment`, a `HostEnvironment`, or a class with the same methods; or a `Side`
            of one.
        env_params: Its parameters.
        n_steps: Number of random steps, resets not counted.
        seed: Seed of the random keys.

    Returns:
        Errors first, then hints, then what the environment is like.

    Raises:
        ValueError: ``n_steps`` is not at least 1, or the seed is out of range.
    """
    if n_steps < 1:
        raise ValueError(f"n_steps={n_steps}; play at least 1 step.")
    check_seed("seed", seed)
    found = []
    try:
        limit = time_limit_of(env, env_params, None, time_limits=None, observe_time=False)
        batch = batch_of(env, env_params, max_episode_steps=None, time_limit=limit)
        pays_the_dead = batch.rewards_after_death
        batch.keep_own_ends()
        try:
            with batch.raising_faults():
                found.extend(_findings(batch, n_steps, jax.random.key(seed), pays_the_dead))
        finally:
            batch.close()
    except Exception as error:  # an environment may raise anything
        found.append(_error(_one_line(error)))
    return sorted(dict.fromkeys(found), key=lambda finding: _LEVELS.index(finding.level))


def _findings(
    batch: EnvironmentBatch, n_steps: int, rng: PRNGKeyArray, pays_the_dead: bool
) -> Iterator[EnvironmentFinding]:
    rng_env, rng_other, rng_action = jax.random.split(rng, 3)
    compiled = jax.jit(play_randomly, static_argnums=(0, 1))

    def played(rng_env: PRNGKeyArray, at_bounds: bool = False) -> RandomPlay:
        return jax.device_get(compiled(batch, n_steps, rng_env, rng_action, at_bounds))

    play = played(rng_env)
    if not play.step.active.any():
        yield _error(f"no actor is alive in any of {n_steps:,} steps; begin episodes with some.")
        return
    start = time.perf_counter()
    again = played(rng_env)
    seconds = (time.perf_counter() - start) / n_steps
    yield EnvironmentFinding("ok", _summary(batch, play))
    yield from _masks(play, batch.space)
    yield from (wrong_numbers := list(_numbers(play)))
    if isinstance(batch.space, Box) and not wrong_numbers:
        yield from _numbers(played(rng_env, at_bounds=True), f"at the bounds of {batch.space}, ")
    yield from _constants(play)
    yield from _magnitudes(play)
    yield from _rewards(play)
    if not pays_the_dead:
        yield from _rewards_of_dead(play)
    yield from _limits(play, batch.time_limit.n_steps)
    yield from _ends(play, batch.time_limit.n_steps)
    yield from _seeds(play, again, played(rng_other))
    if not batch.can_be_vmapped:  # outside of jax
        yield EnvironmentFinding("ok", _time(seconds))
        return
    yield from _flags(play)
    if not first_difference(play, again):
        yield from _purity(batch, play, rng_env, rng_action)
    yield EnvironmentFinding("ok", _times(batch))


def _masks(play: RandomPlay, space: ActionSpace) -> Iterator[EnvironmentFinding]:
    mask = play.observation.action_mask
    if mask is None or isinstance(space, Box):
        return
    of_choices = np.split(mask, np.cumsum(space.n_choices)[:-1], axis=-1)
    is_empty = ~np.all([each.any(axis=-1) for each in of_choices], axis=0) & play.step.active
    if is_empty.any():
        yield _first(
            is_empty,
            "the action_mask of living actor {actor} allows no action; leave it at least one.",
        )


def _numbers(play: RandomPlay, where: str = "") -> Iterator[EnvironmentFinding]:
    sees = "actor {actor} sees {value} as feature {of}"
    values: dict[str, Array | None] = {
        sees: play.observation.features,
        f"{sees} after its action": play.step.final_observation.features,
        "the global_state holds {value} at {actor}": play.observation.global_state,
        "actor {actor} earns a reward of {value}": play.step.reward,
        "actor {actor} earns a shaped_reward of {value}": play.step.shaped_reward,
    }
    for text, value in values.items():
        if value is not None and not np.all(np.isfinite(value)):
            yield _first(~np.isfinite(value), f"{where}{text}; return finite numbers.", value)
            return


def _constants(play: RandomPlay) -> Iterator[EnvironmentFinding]:
    features = play.observation.features
    if features.ndim - 2 == IMAGE_NDIM:  # most images have a constant margin
        return
    living = np.asarray(features)[np.asarray(play.step.active)]
    never = np.argwhere((living == living[0]).all(axis=0))
    if len(never):
        yield _hint(
            f"{len(never)} of {living[0].size} observed features never change, such as feature "
            f"{_index_text(never[0])}; leave them out, or look whether the environment sets them."
        )


def _magnitudes(play: RandomPlay) -> Iterator[EnvironmentFinding]:
    features = np.asarray(play.observation.features, np.float64)
    magnitude = np.where(np.isfinite(features), np.abs(features), 0.0)
    if magnitude.max() > _LARGE:
        _, _, *of = np.unravel_index(magnitude.argmax(), magnitude.shape)
        yield _hint(
            f"feature {_index_text(of)} reaches a magnitude of {magnitude.max():,.0f}; scale it, "
            "or train with normalize_observations=True."
        )


def _rewards(play: RandomPlay) -> Iterator[EnvironmentFinding]:
    shaped = play.step.shaped_reward
    if not np.any(play.step.reward) and (shaped is None or not np.any(shaped)):
        yield _hint(
            f"no actor earned a reward other than 0 in {len(play.elapsed):,} random steps; look "
            "whether the reward is set, or add a shaped_reward."
        )


def _rewards_of_dead(play: RandomPlay) -> Iterator[EnvironmentFinding]:
    reward = play.step.reward
    if (is_fault := ~play.step.active & (reward != 0)).any():
        yield _first(
            is_fault,
            "actor {actor} earns a reward of {value} after its end; return 0 there, "
            "or set rewards_after_death = True.",
            reward,
        )


def _flags(play: RandomPlay) -> Iterator[EnvironmentFinding]:
    step = play.step
    ended, over = step.terminated | step.truncated, step.episode_over[:, np.newaxis]
    comes_back = ~over & np.roll(step.active, -1, axis=0)
    comes_back[-1] = True  # unknown
    if (is_fault := ~step.active & ~ended & ~comes_back).any():
        yield _first(
            is_fault,
            "actor {actor} has ended, but its terminated and truncated are False again; keep one "
            "True until the reset, or return the info acts_next if the actor comes back.",
        )


def _limits(play: RandomPlay, limit: int | None) -> Iterator[EnvironmentFinding]:
    if limit is None:
        return
    if (is_late := play.elapsed > limit).any():
        yield _first(
            is_late,
            f"the episode goes on beyond max_episode_steps, {limit}; truncate it there, or return "
            "the true limit.",
        )
    is_early = (play.elapsed < limit)[:, np.newaxis] & play.step.truncated & play.step.active
    if is_early.any():
        yield _first(
            is_early,
            "actor {actor} is truncated after {value} steps, before max_episode_steps, "
            f"{limit}; return the true limit, or terminated if the task has ended.",
            np.broadcast_to(play.elapsed[:, np.newaxis], is_early.shape),
        )


def _ends(play: RandomPlay, limit: int | None) -> Iterator[EnvironmentFinding]:
    n_steps, lengths = len(play.elapsed), play.elapsed[play.step.episode_over]
    if len(lengths) and lengths.max() == 1:
        yield _hint(
            f"each of {len(lengths):,} episodes ended in its first step; unless the task has one "
            "step, look at terminated and truncated."
        )
    elif not len(lengths) and limit is None:
        yield _hint(
            f"no episode ended in {n_steps:,} steps, and evaluations wait for the end; truncate "
            "episodes, or train with max_episode_steps."
        )
    elif not len(lengths) and limit is not None and limit >= n_steps:
        yield _hint(f"no episode ended in {n_steps:,} steps, the limit is {limit:,}; play more.")


def _seeds(play: RandomPlay, again: RandomPlay, other: RandomPlay) -> Iterator[EnvironmentFinding]:
    if difference := first_difference(play, again):
        yield _error(
            f"{difference} differs when the same keys are played again; draw all random numbers "
            "from the key or seed, and reset all state."
        )
    elif not first_difference(play, other):
        yield _hint(
            f"other keys lead to the same {len(play.elapsed):,} steps: the environment is "
            "deterministic; if it should not be, draw from the key or seed."
        )


def _purity(
    batch: EnvironmentBatch, play: RandomPlay, rng_env: PRNGKeyArray, rng_action: PRNGKeyArray
) -> Iterator[EnvironmentFinding]:
    few = min(len(play.elapsed), _STEPS_OUTSIDE_OF_JIT)
    try:
        with jax.disable_jit():  # which would not trace twice
            if _step_program(batch) == _step_program(batch):
                return
            outside = jax.device_get(play_randomly(batch, few, rng_env, rng_action, False))
    except Exception as error:  # some functions of jax work in compiled code only
        yield _hint(f"no step could be played outside of jax.jit, to compare: {_one_line(error)}")
        return
    if difference := first_difference(outside, play, tolerance=1e-5):
        yield _error(
            f"{difference} differs outside of jax.jit; keep all that changes in the state that "
            "step returns, and draw random numbers from the key."
        )


def _step_program(batch: EnvironmentBatch) -> tuple[str, list[bytes]]:
    """Trace a reset and a step; return their operations, and the constants among the operands."""
    rng = jax.random.key(0)
    traced = jax.make_jaxpr(lambda rng: play_randomly(batch, 1, rng, rng, False))(rng)
    operations = re.sub("0x[0-9a-f]+", "", str(traced))  # addresses of Python functions
    constants = [jax.random.key_data(each) if is_key(each) else each for each in traced.consts]
    return operations, [np.asarray(each).tobytes() for each in constants]


def _summary(batch: EnvironmentBatch, play: RandomPlay) -> str:
    features, n_episodes = batch.observation.features, int(play.step.episode_over.sum())
    actors = "1 actor" if batch.n_actors == 1 else f"{batch.n_actors} actors"
    episodes = "1 episode" if n_episodes == 1 else f"{n_episodes:,} episodes"
    acted = play.step.active.any(axis=1)  # in other steps a vector resets
    return (
        f"{actors}, each observing {features.dtype}{list(features.shape[1:])} and acting in "
        f"{batch.space}; {episodes} ended in {len(play.elapsed):,} random steps, "
        f"with a mean reward of {np.mean(play.step.reward[acted]):.3g} a step"
    )


def _times(batch: EnvironmentBatch) -> str:
    rng = jax.random.key(0)
    reset, reset_seconds = _compiled(lambda rng: batch.reset(rng, _N_ENVS), rng)
    observation, state = reset(rng)
    action = random_actions(rng, batch.space, observation)
    step, step_seconds = _compiled(batch.step, rng, state, action)
    start = time.perf_counter()
    for _ in range(_TIMED_STEPS):
        _, state = step(rng, state, action)
    jax.block_until_ready(state)
    seconds = (time.perf_counter() - start) / (_TIMED_STEPS * _N_ENVS)
    return (
        f"reset compiles in {reset_seconds:.1f} s and step in {step_seconds:.1f} s; "
        f"{_time(seconds)} in a batch of {_N_ENVS}"
    )


def _compiled(function: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
    """Compile a function; return it and the seconds that this took."""
    start = time.perf_counter()
    compiled = jax.jit(function).lower(*arguments).compile()
    return compiled, time.perf_counter() - start


def _time(seconds: float) -> str:
    return f"a step takes {1e6 * seconds:,.1f} µs per environment"


def _first(is_fault: Array | np.ndarray, text: str, value: Any = None) -> EnvironmentFinding:
    """Describe the first fault of ``[time, actors, ...]``."""
    step, *of_actor = first = tuple(int(i) for i in np.argwhere(is_fault)[0])
    text = text.format(
        actor=of_actor[0] if of_actor else 0,
        of=_index_text(of_actor[1:]),
        value=None if value is None else value[first],
    )
    return _error(f"step {step + 1}: {text}")


def _index_text(index: Iterable[Any]) -> str:
    return ", ".join(str(int(i)) for i in index) or "0"


def _one_line(error: Exception) -> str:
    """Return the first line of an error, with its type unless this package's checks raised it."""
    line = next(iter(str(error).splitlines()), "")
    is_own = type(error) in (TypeError, ValueError) or type(error).__module__.startswith(
        "jaxagents"
    )
    return line if is_own else f"{type(error).__name__}: {line}"
