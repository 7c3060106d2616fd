"""Environments of Gymnasium and PettingZoo, each as arrays with an axis of actors. Numpy only."""

import abc
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, final

import numpy as np

from jaxagents.environments.heterogeneity import teams_by_name
from jaxagents.environments.host.actor_arrays import ActorArrays, Sight
from jaxagents.environments.host.errors import WrongValueError
from jaxagents.environments.host.images import (
    AS_THEY_ARE,
    ImageEncoding,
    ImageSettings,
    as_picture,
    is_of_images,
)
from jaxagents.environments.spaces import Box

_FRAMES_PER_SECOND = 10.0  # of environments that do not say
_ONE = (np.zeros(1, bool), np.ones(1, bool))  # False and True of a single actor
os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")  # which would be printed by every worker


class Outcome(NamedTuple):
    """What a step of one environment returned, without any reset."""

    sight: Sight
    reward: np.ndarray  # float32 [actors]
    terminated: np.ndarray  # bool [actors], True until the reset
    truncated: np.ndarray  # bool [actors], True until the reset; never with terminated
    alive: np.ndarray  # bool [actors]: acts next
    infos: Mapping[int, Any] = {}  # by actor, as they came


class Adapter(abc.ABC):
    """One environment with an axis of actors; it is never reset inside `step`.

    Attributes:
        name: Of the environment.
        arrays: Spaces and layouts.
        teams: Each actor's team, or None.
        max_episode_steps: The time limit, or None if it is unknown.
        draws: True if `render` returns pictures.
        frames_per_second: At which pictures are to be shown.
    """

    name: str
    arrays: ActorArrays
    teams: Sequence[int] | None = None
    max_episode_steps: int | None = None

    def __init__(self, env: Any):
        self._env = env
        self._has_mask = self._has_state = False
        self._encode_state: Callable[[Any], np.ndarray] = np.asarray
        metadata = getattr(env, "metadata", None) or {}
        self.draws: bool = getattr(env, "render_mode", None) == "rgb_array"
        self.frames_per_second: float = float(metadata.get("render_fps") or _FRAMES_PER_SECOND)

    def observe(self, has_mask: bool, has_state: bool) -> None:
        """Choose what observations hold beside features."""
        self._has_mask, self._has_state = has_mask, has_state

    def explore(self) -> Sight:
        """Start an episode to see what observations can hold, and observe all of it."""
        self._has_mask, self._has_state = True, _has_state(self._env)
        sight, _ = self.reset(seed=0)
        self._has_mask = self.arrays.needs_mask
        return sight if self._has_mask else sight._replace(action_mask=None)

    @abc.abstractmethod
    def reset(self, seed: int | None) -> tuple[Sight, np.ndarray]:
        """Start an episode; also return which actors are alive."""

    @abc.abstractmethod
    def step(self, action: np.ndarray) -> Outcome:
        """Step by the actions ``[actors, ...]``."""

    def render(self) -> Any:
        """Draw the environment, as its library does."""
        return self._env.render()

    @property
    def env(self) -> Any:
        """The library's environment."""
        return self._env

    @property
    def has_images(self) -> bool:
        """True if an actor's observation or the global state is an image."""
        return self.arrays.observes_images or isinstance(self._encode_state, ImageEncoding)

    def picture(self) -> np.ndarray:
        """Draw the environment as bytes ``[height, width, 3]``."""
        return as_picture(self.render())

    def close(self) -> None:
        """Release what the environment holds."""
        self._env.close()

    def _sight(self, observations: Mapping[int, Any], infos: Mapping[int, Any]) -> Sight:
        return Sight(
            self.arrays.features(observations),
            self.arrays.masks(observations, infos) if self._has_mask else None,
            self._encode_state(self._env.state()) if self._has_state else None,
        )


@final
class GymnasiumAdapter(Adapter):
    """A Gymnasium environment: one actor."""

    def __init__(self, env: Any, images: ImageSettings):
        super().__init__(env)
        spec = getattr(env, "spec", None)
        self.name = spec.id if spec is not None else type(env).__name__
        self.max_episode_steps = spec.max_episode_steps if spec is not None else None
        self.arrays = ActorArrays(self.name, [env.observation_space], [env.action_space], images)

    def reset(self, seed: int | None) -> tuple[Sight, np.ndarray]:
        """Start an episode; see `Adapter.reset`."""
        observation, info = self._env.reset(seed=seed)
        return self._sight({0: observation}, {0: info}), np.ones(1, bool)

    def step(self, action: np.ndarray) -> Outcome:
        """Step; see `Adapter.step`."""
        observation, reward, terminated, truncated, info = self._env.step(
            self.arrays.action(0, action[0])
        )
        is_over, is_cut = bool(terminated), bool(truncated) and not terminated
        return Outcome(
            self._sight({0: observation}, {0: info}),
            np.array([_as_reward(reward)], np.float32),
            _ONE[is_over],
            _ONE[is_cut],
            _ONE[not (is_over or is_cut)],
            {0: info},
        )


@final
class PettingZooAdapter(Adapter):
    """An environment of PettingZoo's parallel API.

    Actors are in the order of ``possible_agents``. An agent of another name takes the first free
    position, at a reset and during an episode. An actor whose agent is gone observes zeros, earns
    nothing, and its end stays True until an agent takes its position.
    """

    def __init__(self, env: Any, images: ImageSettings):
        super().__init__(env)
        metadata = getattr(env, "metadata", None) or {}
        unwrapped = getattr(env, "unwrapped", env)
        self.name = str(metadata.get("name", type(unwrapped).__name__))
        limit = metadata.get("max_cycles", getattr(unwrapped, "max_cycles", None))
        self.max_episode_steps = None if limit is None else int(limit)
        names = getattr(env, "possible_agents", None)
        if not names:
            env.reset(seed=0)
            names = env.agents
        self._names = list(names)
        self.teams = teams_by_name(self._names)
        self.arrays = ActorArrays(
            self.name,
            [env.observation_space(name) for name in self._names],
            [env.action_space(name) for name in self._names],
            images,
        )
        if _has_state(env) and is_of_images(env.state_space):
            self._encode_state = _encoding_of_state(self.name, env.state_space, images)
        self._position: dict[Any, int] = {}
        n_actors = len(self._names)
        self._terminated, self._truncated = np.zeros(n_actors, bool), np.zeros(n_actors, bool)
        turns = getattr(env, "aec_env", None)
        self._turns = turns if _takes_turns(env) else None
        if self._turns is not None and not isinstance(self.arrays.space, Box):
            self.arrays.needs_mask = True

    def reset(self, seed: int | None) -> tuple[Sight, np.ndarray]:
        """Start an episode; see `Adapter.reset`."""
        observations, infos = self._env.reset(seed=seed)
        self._position.clear()
        self._seat(self._env.agents)
        alive = self._alive()
        self._terminated, self._truncated = ~alive, np.zeros_like(alive)
        return self._look(observations, infos), alive

    def step(self, action: np.ndarray) -> Outcome:
        """Step; see `Adapter.step`."""
        own = self.arrays.actions(action)
        was_alive = self._alive() & ~self._terminated & ~self._truncated
        observations, rewards, terminations, truncations, infos = self._env.step(
            {name: own[self._position[name]] for name in self._env.agents}
        )
        self._seat(self._env.agents)
        is_here = self._alive()
        # Agents that were removed without a flag have terminated; those that are back have not.
        self._terminated = np.where(is_here, False, self._terminated | was_alive)
        self._truncated = np.where(is_here, False, self._truncated)
        for name, position in self._position.items():
            is_over, is_cut = terminations.get(name), truncations.get(name)
            if is_over is not None or is_cut is not None:
                self._terminated[position] = bool(is_over)
                self._truncated[position] = bool(is_cut) and not is_over
        reward = np.zeros(len(self._names), np.float32)
        for name, value in rewards.items():
            if name in self._position:
                reward[self._position[name]] = _as_reward(value)
        return Outcome(
            sight=self._look(observations, infos),
            reward=reward,
            terminated=self._terminated.copy(),
            truncated=self._truncated.copy(),
            alive=is_here & ~self._terminated & ~self._truncated,
            infos=self._by_position(infos),
        )

    def _look(self, observations: Mapping[Any, Any], infos: Mapping[Any, Any]) -> Sight:
        sight = self._sight(self._by_position(observations), self._by_position(infos))
        if self._turns is not None and sight.action_mask is not None:
            waiting = np.ones(len(self._names), bool)
            if self._turns.agents:
                waiting[self._position[self._turns.agent_selection]] = False
            sight.action_mask[waiting] = self.arrays.only_first_actions()
        return sight

    def _by_position(self, values: Mapping[Any, Any]) -> dict[int, Any]:
        return {self._position[name]: v for name, v in values.items() if name in self._position}

    def _alive(self) -> np.ndarray:
        """Return which positions have an agent."""
        alive = np.zeros(len(self._names), bool)
        alive[[self._position[name] for name in self._env.agents]] = True
        return alive

    def _seat(self, agents: Sequence[Any]) -> None:
        """Give every agent a position: its name's, or the first that is free."""
        unknown = [name for name in agents if name not in self._position]
        if not unknown:
            return
        taken = {self._position[name] for name in agents if name in self._position}
        for name in unknown:
            if name in self._names and self._names.index(name) not in taken:
                self._position[name] = self._names.index(name)
                taken.add(self._position[name])
        free = [i for i in range(len(self._names)) if i not in taken]
        unknown = [name for name in unknown if name not in self._position]
        if len(unknown) > len(free):
            raise ValueError(
                f"{self.name} has {len(agents)} agents at once, and {len(self._names)} "
                "possible_agents; list as many as there can be."
            )
        former = {self._position[name]: name for name in self._position}
        for name, position in zip(unknown, free, strict=False):
            if position in former:
                del self._position[former[position]]
            self._position[name] = position


def adapt(env: Any, images: ImageSettings = AS_THEY_ARE) -> Adapter:
    """Choose the adapter of an environment of Gymnasium, or of either API of PettingZoo.

    Args:
        env: The environment.
        images: How its images are observed.

    Raises:
        TypeError: it is none of these; or as `ActorArrays`.
        ValueError: as `ActorArrays`.
    """
    if hasattr(env, "agent_selection") or hasattr(env, "agent_iter"):
        from pettingzoo.utils.conversions import (  # pyright: ignore[reportMissingImports] -- an extra
            aec_to_parallel,
            turn_based_aec_to_parallel,
        )

        is_parallel = (getattr(env, "metadata", None) or {}).get("is_parallelizable", False)
        env = aec_to_parallel(env) if is_parallel else turn_based_aec_to_parallel(env)
    if hasattr(env, "possible_agents") or hasattr(env, "agents"):
        return _checked(PettingZooAdapter(env, images), images)
    if hasattr(env, "single_action_space"):
        raise TypeError(
            f"{type(env).__name__} is a vector of environments; make_env must return a single one, "
            "and HostEnvironment steps many in its workers."
        )
    if all(hasattr(env, name) for name in ("observation_space", "action_space", "reset", "step")):
        return _checked(GymnasiumAdapter(env, images), images)
    raise TypeError(
        f"make_env returns {type(env).__name__}, which is neither a Gymnasium environment nor "
        "one of PettingZoo."
    )


def _checked(adapter: Adapter, images: ImageSettings) -> Adapter:
    """Return the adapter if there are images that the settings can be for."""
    if images != AS_THEY_ARE and not adapter.has_images:
        raise ValueError(
            f"{adapter.name} is observed as {adapter.arrays.dtype} of shape {adapter.arrays.shape} "
            "in a space that is not of images (bytes from 0 to 255); leave out image_size, "
            "grayscale and scale_images."
        )
    return adapter


def _encoding_of_state(name: str, space: Any, images: ImageSettings) -> ImageEncoding:
    """Encode a global state as images are, but for colours that it does not have."""
    try:
        return ImageEncoding(name, space, images)
    except ValueError:
        return ImageEncoding(name, space, images._replace(is_gray=False))


def _has_state(env: Any) -> bool:
    """Return True if an environment has a global state; many only inherit the method."""
    if not hasattr(env, "state") or not callable(env.state):
        return False
    return getattr(env, "state_space", None) is not None


def _takes_turns(env: Any) -> bool:
    return type(env).__name__ == "turn_based_aec_to_parallel_wrapper"


def _as_reward(reward: Any) -> float:
    if type(reward) is float:
        return reward
    if np.size(reward) != 1:
        raise WrongValueError(f"returned a reward of shape {np.shape(reward)}, not one number")
    return float(np.asarray(reward).reshape(()))
