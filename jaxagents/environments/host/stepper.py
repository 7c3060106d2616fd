"""Steps environments one after the other, resets them, and keeps their infos. Numpy only."""

import contextlib
import math
import pickle
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, final

import numpy as np

from jaxagents.environments.host import WrongValueError
from jaxagents.environments.host.actor_arrays import HostObservation
from jaxagents.environments.host.adapters import Adapter, adapt
from jaxagents.environments.host.encodings import ImageSettings, check_dtype, not_finite
from jaxagents.environments.host.sharing import Failure, import_modules

_REGISTRATION_REMEDY = (
    " It is registered by a module that this process has not imported: let make_env import that "
    'module, or name it in the id, gymnasium.make("module:id")'
)
InfoFunctions = Mapping[str, Callable[[Mapping[str, Any]], float | None]]
"""Functions of an actor's info, by metric; they return None if the actor has none."""
EpisodeInfos = dict[int, dict[str, float]]
"""One episode's infos: each actor's numbers by name, at the actor's own last step."""


class EnvironmentSettings(NamedTuple):
    """How environments are made, and how they are stepped."""

    make_env: bytes  # pickled by cloudpickle
    images: ImageSettings
    max_episode_steps: int | None
    n_drawn: int  # the first environments, of which every step is drawn
    infos: bytes | None = None  # pickled `InfoFunctions`; None: infos are not kept
    revives: bool = False  # see `Adapter`
    is_vector: bool = False  # ``make_env`` makes a vector of any number of environments
    imports: tuple[str, ...] = ()  # modules to import first, for what they register


def has_final(arrays: Mapping[str, np.ndarray], rows: slice = slice(None)) -> np.ndarray:
    """Return where final observations differ from those that are acted on next.

    There the episode is over, or a life has ended where another begins.
    """
    ended = arrays["terminated"][rows] | arrays["truncated"][rows]
    return arrays["over"][rows] | (ended & arrays["alive"][rows]).any(axis=1)


@final
class Stepper:
    """Steps some of the environments of a pool.

    It reads ``seed`` and ``action`` from the pool's arrays, ``[envs, ...]``, and writes all others.

    Args:
        settings: How the environments are made.
        envs: Indices of the environments that this stepper steps.
        arrays: The pool's arrays, of all environments.
    """

    def __init__(self, settings: EnvironmentSettings, envs: range, arrays: dict[str, np.ndarray]):
        self._settings = settings
        self._envs = envs
        self._arrays = arrays
        self._rows = slice(envs.start, envs.stop)
        self._observed = [name for name in HostObservation._fields if name in arrays]
        self._views = {  # views of each environment's part, which are slow to make
            env: {name: array[env, ...] for name, array in arrays.items() if env < len(array)}
            for env in envs
        }
        self._adapters: dict[int, Adapter] = {}
        self._elapsed = dict.fromkeys(envs, 0)  # steps since the reset
        self._episodes: FirstEpisodes | None = None
        self._current: int | None = None  # the environment that the latest error belongs to

    def make(self) -> None:
        """Construct the environments."""
        import_modules(self._settings.imports)
        make_env = pickle.loads(self._settings.make_env)
        if self._settings.infos is not None:
            self._episodes = FirstEpisodes(self._envs, pickle.loads(self._settings.infos))
        for env, _ in self._each():
            adapter = self._adapters[env] = adapt(make_env(), self._settings.images)
            adapter.revives = self._settings.revives
            adapter.observe("action_mask" in self._observed, "global_state" in self._observed)

    def reset(self) -> None:
        """Start an episode in each environment."""
        if self._episodes is not None:
            self._episodes.begin()
        for env, _ in self._each():
            self._begin_episode(env)
            if env < self._settings.n_drawn:
                self._draw(env)
        self._check("features", "global_state")

    def step(self) -> None:
        """Step each environment, and reset where no actor is left."""
        limit = self._settings.max_episode_steps
        for env, view in self._each():
            outcome = self._adapters[env].step(view["action"])
            truncated, alive = outcome.truncated, outcome.alive
            self._elapsed[env] += 1
            if limit is not None and self._elapsed[env] >= limit:
                cut = alive & ~outcome.terminated  # no step is left of a life that begins here
                truncated, alive = truncated | cut, np.zeros_like(alive)
            view["reward"][...] = outcome.reward
            view["terminated"][...] = outcome.terminated
            view["truncated"][...] = truncated
            is_over = view["over"][...] = True not in alive.tolist()  # faster than `any`
            if self._episodes is not None:
                self._episodes.note(env, outcome.infos, is_over)
            if env < self._settings.n_drawn:
                self._draw(env)
            if is_over or outcome.final is not None:
                self._write("final_", env, outcome.final or outcome.observation)
            if is_over:
                self._begin_episode(env)
            else:
                self._write("", env, outcome.observation)
                view["alive"][...] = alive
        self._check("reward", "features", "global_state")
        ends = has_final(self._arrays, self._rows)
        if ends.any():
            self._check("final_features", "final_global_state", where=ends)

    def infos(self) -> list[EpisodeInfos]:
        """Return the infos of each environment's first episode since the reset of all."""
        return self._episodes.infos() if self._episodes is not None else []

    def close(self) -> None:
        """Close each environment, even if another raises an error."""
        with contextlib.ExitStack() as closing:
            for adapter in self._adapters.values():
                closing.callback(adapter.close)

    def failure(self, error: BaseException) -> Failure:
        """Describe an error that an environment raised, or one in the values that it returned."""
        return failure_of(error, self._current)

    def _each(self) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
        """Iterate over the environments, and note which one is being stepped."""
        for env, view in self._views.items():
            self._current, at_work = env, view["at_work"]
            at_work[...] = True
            yield env, view
            at_work[...] = False

    def _begin_episode(self, env: int) -> None:
        view = self._views[env]
        observation, alive = self._adapters[env].reset(seed=int(view["seed"]))
        self._write("", env, observation)
        view["alive"][...] = alive
        self._elapsed[env] = 0

    def _draw(self, env: int) -> None:
        self._put(env, "picture", self._adapters[env].picture())

    def _write(self, prefix: str, env: int, observation: HostObservation) -> None:
        for name in self._observed:
            self._put(env, prefix + name, getattr(observation, name))

    def _put(self, env: int, name: str, value: np.ndarray) -> None:
        view = self._views[env][name]
        if value.shape != view.shape:
            what = name.removeprefix("final_").replace("_", " ")
            raise WrongValueError(
                f"returned a {what} of shape {value.shape}, which was {view.shape} before"
            )
        if value.dtype is not view.dtype:
            what = name.removeprefix("final_").replace("_", " ")
            check_dtype(value, view.dtype, f"a {what}", ", which was")
        view[...] = value

    def _check(self, *names: str, where: np.ndarray | None = None) -> None:
        """Raise `WrongValueError` for NaN or infinity, in all rows or those of ``where``."""
        found = not_finite(self._arrays, self._rows, *names, where=where)
        if found is not None:
            self._current, text = found
            raise WrongValueError(text)


def failure_of(error: BaseException, env: int | None) -> Failure:
    """Describe an error, and the environment that it belongs to, if that is known."""
    if isinstance(error, WrongValueError):
        return Failure(env, str(error), error=error)
    text = f"raised {type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")
    if _is_unregistered(error):
        text += _REGISTRATION_REMEDY
    return Failure(env, text, traceback.format_exc(), error)


def _is_unregistered(error: BaseException) -> bool:
    """True if Gymnasium's registry lacks the id that a constructor asked for."""
    gymnasium = sys.modules.get("gymnasium")
    return gymnasium is not None and isinstance(error, gymnasium.error.UnregisteredEnv)


@final
class FirstEpisodes:
    """Keeps the infos of the first episode that each environment plays after `begin`.

    An actor's info is kept until a later one replaces it, so an actor whose episode ends early
    keeps the info of its own last step.

    Args:
        envs: The environments.
        functions: Metrics that are computed from infos.
    """

    def __init__(self, envs: Iterable[int], functions: InfoFunctions):
        self._functions = functions
        self._latest: dict[int, dict[int, Any]] = {env: {} for env in envs}
        self._ended: dict[int, EpisodeInfos] = {}

    def begin(self) -> None:
        """Forget all episodes."""
        self._ended.clear()
        for latest in self._latest.values():
            latest.clear()

    def note(self, env: int, infos: Mapping[int, Any], is_over: bool) -> None:
        """Note a step's infos, by actor."""
        if env in self._ended:
            return
        latest = self._latest[env]
        latest.update(infos)
        if is_over:
            self._ended[env] = {
                actor: numbers_of(info, self._functions)
                for actor, info in latest.items()
                if isinstance(info, Mapping)
            }

    def infos(self) -> list[EpisodeInfos]:
        """Return each environment's infos; empty before the end of its first episode."""
        return [self._ended.get(env, {}) for env in self._latest]


def numbers_of(info: Mapping[str, Any], functions: InfoFunctions) -> dict[str, float]:
    """Return an info's scalars, and the functions' results; drop everything else."""
    numbers = {
        name: float(value)
        for name, value in info.items()
        if isinstance(name, str) and not name.startswith("_") and _is_number(value)
    }
    for name, function in functions.items():
        value = function(info)
        if value is not None:
            numbers[name] = float(value)
    return numbers


def mean_over_actors(
    episodes: Iterable[EpisodeInfos], names: Iterable[str], actors: Iterable[int]
) -> dict[str, np.ndarray]:
    """Return each info's mean over the actors that have it, ``[episodes]``; NaN without any."""
    episodes, actors = list(episodes), list(actors)

    def mean(episode: EpisodeInfos, name: str) -> float:
        values = [episode[i][name] for i in actors if name in episode.get(i, {})]
        return sum(values) / len(values) if values else math.nan

    return {
        name: np.array([mean(episode, name) for episode in episodes], np.float32) for name in names
    }


def _is_number(value: Any) -> bool:
    if isinstance(value, bool | int | float):
        return True
    is_scalar = isinstance(value, np.generic | np.ndarray) and value.ndim == 0
    return is_scalar and value.dtype.kind in "biuf"
