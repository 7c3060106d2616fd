"""Checks of an environment by playing random actions: what breaks the protocol, and what it is."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, PRNGKeyArray

from jaxagents.environments.batch import BatchState, EnvironmentBatch
from jaxagents.environments.factory import batch_of
from jaxagents.environments.sides.opponents import random_actions
from jaxagents.environments.spaces import ActionSpace, Box
from jaxagents.environments.time_limits import time_limit_of
from jaxagents.types import IMAGE_NDIM, Observation, PyTree, TimeStep

_LARGE = 1e3  # magnitude of observations that need normalisation
_STEPS_OUTSIDE_OF_JIT = 5
_N_ENVS, _TIMED_STEPS = 64, 100
_LEVELS = ("error", "hint", "ok")


class EnvironmentFinding(NamedTuple):
    """A result of `check_environment`."""

    level: Literal["error", "hint", "ok"]  # an error breaks the protocol
    text: str


class _Play(NamedTuple):
    """Steps of one environment, ``[time, ...]``."""

    observation: Observation  # before the action
    step: TimeStep
    elapsed: Int[Array, " time"]  # steps since the reset, this one included


def check_environment(
    env: Any, env_params: PyTree = None, n_steps: int = 1000, seed: int = 0
) -> list[EnvironmentFinding]:
    """Play random actions, and find what breaks the environment protocol.

    Plays the same steps twice, then with other keys, and at the bounds of a `Box`. The first steps
    of an environment of JAX are also played outside of ``jax.jit``.

    Args:
        env: An `Environment`, a `HostEnvironment`, or a class with the same methods.
        env_params: Its parameters.
        n_steps: Number of random steps, resets not counted.
        seed: Of the random keys.

    Returns:
        Errors first, then hints, then what the environment is.

    Raises:
        ValueError: ``n_steps`` is not at least 1.
    """
    if n_steps < 1:
        raise ValueError(f"n_steps={n_steps}; play at least 1 step.")
    found = []
    try:
        limit = time_limit_of(env, env_params, None, time_limits=None, observe_time=False)
        batch = batch_of(env, env_params, max_episode_steps=None, time_limit=limit)
        batch.rewards_after_death = False  # which would replace the environment's own flags
        try:
            with batch.raising_faults():
                found.extend(_findings(batch, n_steps, jax.random.key(seed)))
        finally:
            batch.close()
    except Exception as error:  # an environment may raise anything
        found.append(EnvironmentFinding("error", _one_line(error)))
    return sorted(dict.fromkeys(found), key=lambda finding: _LEVELS.index(finding.level))


def _findings(
    batch: EnvironmentBatch, n_steps: int, rng: PRNGKeyArray
) -> Iterator[EnvironmentFinding]:
    rng_env, rng_other, rng_action = jax.random.split(rng, 3)
    compiled = jax.jit(_play, static_argnums=(0, 1))

    def played(rng_env: PRNGKeyArray, at_bounds: bool = False) -> _Play:
        return jax.device_get(compiled(batch, n_steps, rng_env, rng_action, at_bounds))

    play = played(rng_env)
    start = time.perf_counter()
    again = played(rng_env)
    seconds = (time.perf_counter() - start) / n_steps
    yield EnvironmentFinding("ok", _summary(batch, play))
    checks = [
        _masks(play, batch.space),
        _numbers(play),
        _constants(play),
        _magnitudes(play),
        _rewards(play),
        _lengths(play, batch.time_limit.n_steps),
        _seeds(play, again, played(rng_other)),
    ]
    if isinstance(batch.space, Box):
        checks.append(
            _numbers(played(rng_env, at_bounds=True), f"at the bounds of {batch.space}, ")
        )
    if batch.can_be_vmapped:
        with jax.disable_jit():
            outside = _play(batch, min(n_steps, _STEPS_OUTSIDE_OF_JIT), rng_env, rng_action, False)
        checks += [_flags(play), _purity(play, jax.device_get(outside))]
    for check in checks:
        yield from check
    yield EnvironmentFinding("ok", _times(batch) if batch.can_be_vmapped else _time(seconds))


def _play(
    batch: EnvironmentBatch,
    n_steps: int,
    rng_env: PRNGKeyArray,
    rng_action: PRNGKeyArray,
    at_bounds: bool | Bool[Array, ""],
) -> _Play:
    """Play one environment; fewer steps are the first ones of more."""
    rng_reset, rng_step = jax.random.split(rng_env)

    def advance(
        carry: tuple[Observation, BatchState], i: Int[Array, ""]
    ) -> tuple[tuple[Observation, BatchState], _Play]:
        observation, state = carry
        action = random_actions(jax.random.fold_in(rng_action, i), batch.space, observation)
        if isinstance(batch.space, Box):
            action = jnp.where(at_bounds, _nearest_bound(action, batch.space), action)
        step, following = batch.step(jax.random.fold_in(rng_step, i), state, action)
        kept = step._replace(info={}, final_state=None)
        return (step.observation, following), _Play(observation, kept, state.episode_steps + 1)

    _, play = jax.lax.scan(advance, batch.reset(rng_reset, 1), jnp.arange(n_steps))
    return jax.tree.map(lambda leaf: leaf[:, 0], play)


def _nearest_bound(action: Array, space: Box) -> Array:
    """Move each dimension to its nearer bound; unbounded ones stay."""
    low, high = (jnp.broadcast_to(jnp.asarray(x), space.shape) for x in (space.low, space.high))
    bound = jnp.where(action - low < high - action, low, high)
    return jnp.where(jnp.isfinite(bound), bound, action)


def _masks(play: _Play, space: ActionSpace) -> Iterator[EnvironmentFinding]:
    mask = play.observation.action_mask
    if mask is None or isinstance(space, Box):
        return
    of_choices = np.split(mask, np.cumsum(space.n_choices)[:-1], axis=-1)
    is_empty = ~np.all([each.any(axis=-1) for each in of_choices], axis=0)
    yield from _at_first(
        is_empty & play.step.active,
        "the action_mask of living actor {actor} allows no action; leave it at least one.",
    )


def _numbers(play: _Play, where: str = "") -> Iterator[EnvironmentFinding]:
    sees = "actor {actor} sees {value} as feature {of}"
    values: dict[str, Array | None] = {
        sees: play.observation.features,
        f"{sees} after its action": play.step.final_observation.features,
        "the global_state holds {value} at {actor}": play.observation.global_state,
        "actor {actor} earns a reward of {value}": play.step.reward,
        "actor {actor} earns a shaped_reward of {value}": play.step.shaped_reward,
    }
    for text, value in values.items():
        if value is not None:
            sentence = f"{where}{text}; return finite numbers."
            found = list(_at_first(~np.isfinite(value), sentence, value))
            yield from found
            if found:
                return


def _constants(play: _Play) -> Iterator[EnvironmentFinding]:
    features = play.observation.features
    if features.ndim - 2 == IMAGE_NDIM:  # most images have a constant margin
        return
    living = np.asarray(features)[np.asarray(play.step.active)]
    never = np.argwhere((living == living[0]).all(axis=0))
    if len(never):
        yield EnvironmentFinding(
            "hint",
            f"{len(never)} of {living[0].size} observed features never change, such as feature "
            f"{_index_text(never[0])}; leave them out, or look whether the environment sets them.",
        )


def _magnitudes(play: _Play) -> Iterator[EnvironmentFinding]:
    features = np.asarray(play.observation.features, np.float64)
    magnitude = np.where(np.isfinite(features), np.abs(features), 0.0)
    if magnitude.max() > _LARGE:
        _, _, *of = np.unravel_index(magnitude.argmax(), magnitude.shape)
        yield EnvironmentFinding(
            "hint",
            f"feature {_index_text(of)} reaches a magnitude of {magnitude.max():,.0f}; scale it, "
            "or train with normalize_observations=True.",
        )


def _rewards(play: _Play) -> Iterator[EnvironmentFinding]:
    shaped = play.step.shaped_reward
    if not np.any(play.step.reward) and (shaped is None or not np.any(shaped)):
        yield EnvironmentFinding(
            "hint",
            f"no actor earned a reward other than 0 in {len(play.elapsed):,} random steps; look "
            "whether the reward is set, or add a shaped_reward.",
        )


def _flags(play: _Play) -> Iterator[EnvironmentFinding]:
    step = play.step
    ended, over = step.terminated | step.truncated, step.episode_over[:, np.newaxis]
    comes_back = ~over & np.roll(step.active, -1, axis=0)
    comes_back[-1] = True  # unknown
    yield from _at_first(
        ~step.active & ~ended & ~comes_back,
        "actor {actor} has ended, but its terminated and truncated are False again; keep one True "
        "until the reset, or return the info acts_next if the actor comes back.",
    )


def _lengths(play: _Play, limit: int | None) -> Iterator[EnvironmentFinding]:
    n_steps, lengths = len(play.elapsed), play.elapsed[play.step.episode_over]
    if limit is not None:
        yield from _at_first(
            play.elapsed > limit,
            f"the episode goes on beyond max_episode_steps, {limit}; truncate it there, or return "
            "the true limit.",
        )
        yield from _at_first(
            play.step.truncated & play.step.active & (play.elapsed < limit)[:, np.newaxis],
            f"actor {{actor}} is truncated after {{elapsed}} steps, before max_episode_steps, "
            f"{limit}; return the true limit, or terminated if the task has ended.",
            elapsed=play.elapsed,
        )
    if len(lengths) and lengths.max() == 1:
        yield EnvironmentFinding(
            "hint",
            f"each of {len(lengths):,} episodes ended in its first step; unless the task has one "
            "step, look at terminated and truncated.",
        )
    if not len(lengths) and (limit is None or limit >= n_steps):
        remedy = (
            "and evaluations wait for the end; truncate episodes, or train with max_episode_steps."
            if limit is None
            else f"the limit is {limit:,}; play more."
        )
        yield EnvironmentFinding("hint", f"no episode ended in {n_steps:,} steps, {remedy}")


def _seeds(play: _Play, again: _Play, other: _Play) -> Iterator[EnvironmentFinding]:
    if difference := _difference(play, again, np.array_equal):
        yield EnvironmentFinding(
            "error",
            f"{difference} differs when the same keys are played again; draw all random numbers "
            "from the key or seed, and reset all state.",
        )
    elif not _difference(play, other, np.array_equal):
        yield EnvironmentFinding(
            "hint",
            f"other keys lead to the same {len(play.elapsed):,} steps: the environment is "
            "deterministic; if it should not be, draw from the key of reset and step.",
        )


def _purity(play: _Play, outside: _Play) -> Iterator[EnvironmentFinding]:
    def is_close(one: np.ndarray, other: np.ndarray) -> bool:
        wide = (np.asarray(each, np.float64) for each in (one, other))
        return np.allclose(*wide, rtol=1e-4, atol=1e-5, equal_nan=True)

    if difference := _difference(outside, play, is_close):
        yield EnvironmentFinding(
            "error",
            f"{difference} differs outside of jax.jit; keep all that changes in the state that "
            "step returns, and draw random numbers from the key.",
        )


def _difference(
    one: _Play, other: _Play, is_equal: Callable[[np.ndarray, np.ndarray], bool]
) -> str | None:
    """Name the first step, and what differs in it, over the steps of the first play."""
    names = {
        "the observation": lambda play: play.observation.features,
        "the reward": lambda play: play.step.reward,
        "terminated": lambda play: play.step.terminated,
        "truncated": lambda play: play.step.truncated,
    }
    for i in range(len(one.elapsed)):
        for name, of in names.items():
            if not is_equal(np.asarray(of(one)[i]), np.asarray(of(other)[i])):
                return f"step {i + 1}: {name}"
    return None


def _summary(batch: EnvironmentBatch, play: _Play) -> str:
    features, n_episodes = batch.observation.features, int(play.step.episode_over.sum())
    actors = "1 actor" if batch.n_actors == 1 else f"{batch.n_actors} actors"
    return (
        f"{actors}, each observing {features.dtype}{list(features.shape[1:])} and acting in "
        f"{batch.space}; {n_episodes:,} episodes ended in {len(play.elapsed):,} random steps, "
        f"with a mean reward of {np.mean(play.step.reward):.3g} a step"
    )


def _times(batch: EnvironmentBatch) -> str:
    rng = jax.random.key(0)
    start = time.perf_counter()
    reset = jax.jit(batch.reset, static_argnums=1).lower(rng, _N_ENVS).compile()
    reset_at = time.perf_counter()
    observation, state = reset(rng)
    action = random_actions(rng, batch.space, observation)
    step_from = time.perf_counter()
    step = jax.jit(batch.step).lower(rng, state, action).compile()
    step_at = time.perf_counter()
    for _ in range(_TIMED_STEPS):
        _, state = step(rng, state, action)
    jax.block_until_ready(state)
    seconds = (time.perf_counter() - step_at) / (_TIMED_STEPS * _N_ENVS)
    return (
        f"compiling takes {reset_at - start:.1f} s for reset and {step_at - step_from:.1f} s for "
        f"step; {_time(seconds)} in a batch of {_N_ENVS}"
    )


def _time(seconds: float) -> str:
    return f"a step takes {1e6 * seconds:,.1f} µs per environment"


def _at_first(
    is_fault: Array | np.ndarray,
    text: str,
    value: Any = None,
    elapsed: Any = None,
) -> Iterator[EnvironmentFinding]:
    """Describe the first fault, ``[time, actors, ...]``, if there is one."""
    places = np.argwhere(is_fault)
    if not len(places):
        return
    step, *of_actor = first = tuple(int(i) for i in places[0])
    text = text.format(
        actor=of_actor[0] if of_actor else None,
        of=_index_text(of_actor[1:]),
        value=None if value is None else value[first],
        elapsed=None if elapsed is None else elapsed[step],
    )
    yield EnvironmentFinding("error", f"step {step + 1}: {text}")


def _index_text(index: Sequence[Any]) -> str:
    return ", ".join(str(int(i)) for i in index) or "0"


def _one_line(error: Exception) -> str:
    """Return the first line of an error, with its kind unless it is of this package's checks."""
    line = next(iter(str(error).splitlines()), "")
    is_own = type(error) in (TypeError, ValueError) or type(error).__module__.startswith(
        "jaxagents"
    )
    return line if is_own else f"{type(error).__name__}: {line}"
