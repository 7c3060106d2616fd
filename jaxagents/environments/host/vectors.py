"""Vectors of environments that Gymnasium or other packages step themselves. Numpy only."""

import copy
import pickle
from collections.abc import Mapping
from typing import Any, final

import numpy as np

from jaxagents.environments.host import WrongValueError
from jaxagents.environments.host.actor_arrays import ActorArrays, HostObservation
from jaxagents.environments.host.encodings import check_dtype, not_finite
from jaxagents.environments.host.sharing import Failure
from jaxagents.environments.host.stepper import (
    EnvironmentSettings,
    EpisodeInfos,
    FirstEpisodes,
    failure_of,
)

_MASK, _FINAL, _FINAL_INFO = "action_mask", "final_obs", "final_info"  # in a vector's infos


@final
class SingleOfVector:
    """A vector of one environment, as an environment of Gymnasium."""

    def __init__(self, vector: Any):
        self._vector = vector
        self.spec = copy.copy(vector.spec)
        limit = getattr(self.spec, "kwargs", {}).get("max_episode_steps")
        if limit is not None:  # given to `gymnasium.make_vec`, which leaves the spec's own
            self.spec.max_episode_steps = limit
        self.metadata = vector.metadata
        self.observation_space = vector.single_observation_space
        self.action_space = vector.single_action_space

    def reset(self, *, seed: int | None = None) -> tuple[Any, dict]:
        """Start an episode."""
        observations, infos = self._vector.reset(seed=seed)
        return self._first(observations), {_MASK: _info(infos, _MASK, 0)}

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict]:
        """Step; after the end of an episode, `reset` comes next."""
        actions = np.asarray(action, self.action_space.dtype)[np.newaxis]
        observations, rewards, terminated, truncated, infos = self._vector.step(actions)
        final = _info(infos, _FINAL, 0)
        observation = self._first(observations) if final is None else final
        info = {_MASK: _info(infos, _MASK, 0)}
        return observation, rewards[0], terminated[0], truncated[0], info

    def close(self) -> None:
        """Close the vector."""
        self._vector.close()

    def _first(self, observations: Any) -> Any:
        return next(iter(_rows(self._vector, observations)))


@final
class VectorStepper:
    """Environments that a `gymnasium.vector.VectorEnv` steps and resets.

    The vector is seeded once, by the seed of the first environment, and draws the seeds of later
    episodes itself. A vector that resets at the next step (``AutoresetMode.NEXT_STEP``) ignores the
    action of that step: the actor is inactive in it, and the episode is over after it.

    Args:
        settings: How to make the vector.
        envs: All environments of a pool.
        arrays: The pool's arrays, as for `Stepper`.

    Attributes:
        vector: The vector.
    """

    def __init__(self, settings: EnvironmentSettings, envs: range, arrays: dict[str, np.ndarray]):
        self.vector: Any = None
        self._settings = settings
        self._envs = envs
        self._arrays = arrays
        self._observed = [name for name in HostObservation._fields if name in arrays]
        self._resets_next = np.zeros(len(envs), bool)
        self._episodes: FirstEpisodes | None = None
        self._current: int | None = None  # the environment that the latest error belongs to

    def make(self) -> None:
        """Construct the vector."""
        self.vector = pickle.loads(self._settings.make_env)(len(self._envs))
        self._mode: str = autoreset_mode(self.vector)
        self._encode = ActorArrays(
            type(self.vector).__name__,
            [self.vector.single_observation_space],
            [self.vector.single_action_space],
            self._settings.images,
        )
        self._observes_arrays = self._encode.observes_arrays and _MASK not in self._arrays
        if self._settings.infos is not None:
            self._episodes = FirstEpisodes(self._envs, pickle.loads(self._settings.infos))

    def infos(self) -> list[EpisodeInfos]:
        """Return the infos of each environment's first episode since the reset."""
        return self._episodes.infos() if self._episodes is not None else []

    def close(self) -> None:
        """Close the vector."""
        if self.vector is not None:
            self.vector.close()

    def failure(self, error: BaseException) -> Failure:
        """Describe an error that the vector raised, or one in the values that it returned."""
        return failure_of(error, self._current)

    def reset(self) -> None:
        """Start an episode in each environment."""
        self._resets_next[:] = False
        if self._episodes is not None:
            self._episodes.begin()
        observations, infos = self.vector.reset(seed=int(self._arrays["seed"][0]))
        self._observe(observations, infos)
        self._check("features")
        self._arrays["alive"][:] = True

    def step(self) -> None:
        """Step each environment, and reset where the episode is over."""
        arrays, is_reset = self._arrays, self._resets_next
        own = self._encode.action_batch(arrays["action"])
        observations, *numbers, infos = self.vector.step(own)
        acted = ~is_reset if is_reset.any() else True
        for name, values in zip(("reward", "terminated", "truncated"), numbers, strict=True):
            np.copyto(arrays[name][:, 0], self._checked(name, values), "unsafe", where=acted)
        if acted is not True:  # this step was the reset of some
            arrays["reward"][is_reset] = 0.0
            for name in self._observed:
                arrays[f"final_{name}"][is_reset] = arrays[name][is_reset]
        arrays["truncated"] &= ~arrays["terminated"]
        ended = (arrays["terminated"] | arrays["truncated"])[:, 0] & acted
        if self._episodes is not None:
            for env in np.flatnonzero(ended).tolist():
                self._episodes.note(env, {0: _info_of(infos, env)}, is_over=True)
        if self._mode == "NEXT_STEP":
            self._resets_next, over = ended, is_reset
        else:
            over = ended
        is_any_over = over.any()
        if self._mode == "SAME_STEP" and is_any_over:
            for env in np.flatnonzero(over).tolist():
                self._observe_row("final_", env, _info(infos, _FINAL, env), None, acts=False)
        elif self._mode == "DISABLED" and is_any_over:
            self._observe(observations, infos, "final_")
            others = infos
            observations, infos = self.vector.reset(options={"reset_mask": over.copy()})
            infos = _merged_masks(infos, others, over)
        self._observe(observations, infos)
        arrays["over"][:] = over
        arrays["alive"][:, 0] = ~self._resets_next
        self._check("reward", "features")
        if is_any_over:
            self._check("final_features", where=over)

    def _observe(self, observations: Any, infos: Mapping[str, Any], prefix: str = "") -> None:
        if self._observes_arrays and _MASK not in infos:
            features = self._arrays[f"{prefix}features"]
            if np.shape(observations) != (len(self._envs), *features.shape[2:]):
                raise WrongValueError(f"returned observations of shape {np.shape(observations)}")
            check_dtype(
                np.asarray(observations), features.dtype, "observations", ", whose space has"
            )
            features[:, 0] = observations
            return
        acts = ~self._resets_next if not prefix else np.zeros(len(self._envs), bool)
        for env, observation in enumerate(_rows(self.vector, observations)):
            self._current = env
            self._observe_row(prefix, env, observation, _info(infos, _MASK, env), acts[env])
        self._current = None

    def _observe_row(self, prefix: str, env: int, observation: Any, mask: Any, acts: bool) -> None:
        self._arrays[f"{prefix}features"][env] = self._encode.features({0: observation})
        infos = {0: {_MASK: mask}}
        if _MASK in self._arrays:
            masks = self._encode.masks({0: observation}, infos, np.array([acts]))
            self._arrays[f"{prefix}{_MASK}"][env] = masks
        else:
            self._encode.refuse_masks(infos)

    def _checked(self, name: str, values: Any) -> np.ndarray:
        """Return a step's rewards or flags, one per environment."""
        values = np.asarray(values)
        if values.shape != (len(self._envs),):
            raise WrongValueError(
                f"returned {name} of shape {values.shape}, not one value for each of "
                f"{len(self._envs)} environments"
            )
        if name == "reward":
            wanted = self._arrays[name].dtype
            check_dtype(values, wanted, "a reward", ", which does not convert to")
        elif values.dtype != bool and not (is_flag := (values == 0) | (values == 1)).all():
            raise WrongValueError(
                f"returned {name} that holds {values[~is_flag][0]}, neither True nor False"
            )
        return values

    def _check(self, *names: str, where: np.ndarray | None = None) -> None:
        found = not_finite(self._arrays, slice(0, len(self._envs)), *names, where=where)
        if found is not None:
            self._current, text = found
            raise WrongValueError(text)


def autoreset_mode(vector: Any) -> str:
    """Return the name of a vector's `gymnasium.vector.AutoresetMode`.

    Raises:
        ValueError: it does not say when it resets, or calls jax.
    """
    if any("functional_jax_env" in each.__module__ for each in type(vector).__mro__):
        raise ValueError(
            f"{type(vector).__name__} calls jax, which a callback of jax may not do; leave out "
            "vectorized."
        )
    mode = getattr((vector.metadata or {}).get("autoreset_mode"), "name", "")
    if mode not in ("NEXT_STEP", "SAME_STEP", "DISABLED"):
        raise ValueError(
            f"{type(vector).__name__} does not say when it resets environments; set its "
            "metadata['autoreset_mode'] to one of gymnasium.vector.AutoresetMode."
        )
    return mode


def _merged_masks(
    infos: Mapping[str, Any], others: Mapping[str, Any], is_reset: np.ndarray
) -> dict[str, Any]:
    """Take the masks of environments that are not reset from the infos of the step."""
    masks = [_info(infos if is_reset[env] else others, _MASK, env) for env in range(len(is_reset))]
    has_mask = np.array([mask is not None for mask in masks])
    if not has_mask.any():
        return dict(infos)
    return {**infos, _MASK: masks, f"_{_MASK}": has_mask}


def _rows(vector: Any, observations: Any) -> Any:
    """Return each environment's observation."""
    from gymnasium.vector.utils import iterate

    return iterate(vector.observation_space, observations)


def _info_of(infos: Mapping[str, Any], env: int) -> dict[str, Any]:
    """Return one environment's info of the step that ended its episode."""
    final = infos.get(_FINAL_INFO, infos)  # where it is reset in the same step
    if not isinstance(final, Mapping):  # one per environment
        return final[env] or {}
    return {
        name: _info(final, name, env)
        for name, values in final.items()
        if not name.startswith("_") and isinstance(values, np.ndarray | list | tuple)
    }


def _info(infos: Mapping[str, Any], name: str, env: int) -> Any:
    """Return one environment's infos from a vector's; ``_name`` marks where there are any."""
    if name not in infos or not infos.get(f"_{name}", np.ones(env + 1, bool))[env]:
        return None
    return infos[name][env]
