"""Environments of Gymnasium and PettingZoo, each as arrays with an axis of actors. Numpy only."""

import abc
import math
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, NamedTuple, cast, final

import numpy as np

from jaxagents.environments.host import VectorRewardError, WrongValueError
from jaxagents.environments.host.actor_arrays import ActorArrays, HostObservation
from jaxagents.environments.host.encodings import (
    AS_THEY_ARE,
    ImageEncoding,
    ImageSettings,
    as_picture,
    check_dtype,
    is_of_images,
)
from jaxagents.environments.host.limits import StepCounts, layers_of, name_and_limit
from jaxagents.environments.host.tuples import TupleAgents, is_of_agents
from jaxagents.environments.spaces import teams_by_name

_FRAMES_PER_SECOND = 10.0  # of environments that do not say
_OF_RESET = ("observation", "info")
_OF_STEP = ("observation", "reward", "terminated", "truncated", "info")
_REWARD = np.dtype(np.float32)
_ONE = (np.zeros(1, bool), np.ones(1, bool))  # False and True of a single actor


class Outcome(NamedTuple):
    """What a step of one environment returned, without any reset.

    Rewards and ends belong to the lives that acted. A position that has an end and is alive begins
    another life: it is True in ``alive``, and its ``observation`` is the new life's.
    """

    observation: HostObservation  # of who acts next
    reward: np.ndarray  # float32 [actors]
    terminated: np.ndarray  # bool [actors], True until another life begins
    truncated: np.ndarray  # bool [actors], as terminated; never both
    alive: np.ndarray  # bool [actors]: acts next
    infos: Mapping[int, Any] = {}  # by actor, as the environment returned them
    final: HostObservation | None = None  # of the lives that acted; None: as ``observation``


class Adapter(abc.ABC):
    """One environment with an axis of actors; it is never reset inside `step`.

    Attributes:
        name: Name of the environment.
        arrays: Spaces and layouts.
        teams: Each actor's team, or None.
        max_episode_steps: The time limit, or None if it is unknown.
        revives: True if the episode continues even if all listed agents have ended; otherwise such
            a list counts as one that the environment has not cleared.
        n_steps_without_end: Steps that `explore` has played, if none of them ended an episode.
        draws: True if `render` returns pictures.
        frames_per_second: Speed at which pictures are shown.
    """

    name: str
    arrays: ActorArrays
    teams: Sequence[int] | None = None
    max_episode_steps: int | None = None
    revives: bool = False
    n_steps_without_end: int = 0

    def __init__(self, env: Any):
        self._env = env
        self.actor_names: list[str] | None = None  # None: the library names none
        self._has_mask = self._has_state = False
        self._encode_state: Callable[[Any], np.ndarray] = np.asarray
        metadata = getattr(env, "metadata", None) or {}
        self.draws: bool = getattr(env, "render_mode", None) == "rgb_array"
        self.frames_per_second: float = float(metadata.get("render_fps") or _FRAMES_PER_SECOND)

    def observe(self, has_mask: bool, has_state: bool) -> None:
        """Choose the fields that observations have besides features."""
        self._has_mask, self._has_state = has_mask, has_state

    def explore(self, n_steps: int) -> HostObservation:
        """Play some steps to find which fields observations can have, and observe them all.

        They also show how many steps the environment's TimeLimit counts for each.
        Faults of the first observation and rewards that are not numbers are raised; other faults of
        steps are left for training to raise.
        """
        self._has_mask, self._has_state = True, _has_state(self._env)
        observation, _ = self.reset(seed=0)
        try:
            self._play_first_actions(observation, n_steps)
        except Exception as error:
            if isinstance(error, VectorRewardError):
                raise
        self._has_mask = self.arrays.needs_mask
        return observation if self._has_mask else observation._replace(action_mask=None)

    def _play_first_actions(self, observation: HostObservation, n_steps: int) -> None:
        has_ended, n_of_episode, counts = False, 0, StepCounts(self._env)
        for step in range(n_steps):
            mask = cast(np.ndarray, observation.action_mask)  # there is one: `explore` calls this
            outcome = self.step(self.arrays.first_available(mask))
            goes_on = outcome.alive.any() or self._lists_agents()
            has_ended |= not goes_on
            self.n_steps_without_end = 0 if has_ended else step + 1
            n_of_episode = n_of_episode + 1 if goes_on else 0
            if goes_on:
                counts.note(n_of_episode)
            observation = outcome.observation if goes_on else self.reset(seed=step)[0]
        self.max_episode_steps = counts.limit(self.max_episode_steps)

    @abc.abstractmethod
    def reset(self, seed: int | None) -> tuple[HostObservation, np.ndarray]:
        """Start an episode; also return which actors are alive."""

    @abc.abstractmethod
    def step(self, action: np.ndarray) -> Outcome:
        """Step with the actions ``[actors, ...]``."""

    def _lists_agents(self) -> bool:
        """Return True if the environment itself says that some agents act next."""
        return False

    def render(self) -> Any:
        """Draw the environment by its library's `render`."""
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
        """Close the environment."""
        self._env.close()

    def _observation(
        self, observations: Mapping[int, Any], infos: Mapping[int, Any], acts: np.ndarray
    ) -> HostObservation:
        if not self._has_mask:
            self.arrays.refuse_masks(infos)
        return HostObservation(
            self.arrays.features(observations),
            self.arrays.masks(observations, infos, acts) if self._has_mask else None,
            self._encode_state(self._env.state()) if self._has_state else None,
        )


@final
class GymnasiumAdapter(Adapter):
    """A Gymnasium environment: one actor."""

    def __init__(self, env: Any, images: ImageSettings):
        super().__init__(env)
        self.name, self.max_episode_steps = name_and_limit(env)
        self.arrays = ActorArrays(self.name, [env.observation_space], [env.action_space], images)

    def reset(self, seed: int | None) -> tuple[HostObservation, np.ndarray]:
        """Start an episode; see `Adapter.reset`."""
        observation, info = _expect(_OF_RESET, self._env.reset(seed=seed))
        return self._observation({0: observation}, {0: info}, _ONE[True]), np.ones(1, bool)

    def step(self, action: np.ndarray) -> Outcome:
        """Step; see `Adapter.step`."""
        observation, reward, terminated, truncated, info = _expect(
            _OF_STEP, self._env.step(self.arrays.action(0, action[0]))
        )
        is_over = _as_flag("terminated", terminated)
        is_cut = _as_flag("truncated", truncated) and not is_over
        alive = _ONE[not (is_over or is_cut)]
        return Outcome(
            self._observation({0: observation}, {0: info}, alive),
            np.array([_as_reward(reward)], np.float32),
            _ONE[is_over],
            _ONE[is_cut],
            alive,
            {0: info},
        )


@final
class PettingZooAdapter(Adapter):
    """An environment of PettingZoo's parallel API.

    Positions are in the order of ``possible_agents``. At a reset and after every step, agents that
    have left lose their positions, and new agents get one: that of their own name if it is free,
    otherwise the first free one. A step's rewards and ends are recorded before that. An agent that
    has ended, but is listed with others that continue, begins another life at its position. Where
    all listed agents have ended, the episode is over unless it `revives`. A position without an
    agent observes zeros, earns 0, and keeps its end.
    """

    def __init__(self, env: Any, images: ImageSettings):
        super().__init__(env)
        metadata = getattr(env, "metadata", None) or {}
        unwrapped = getattr(env, "unwrapped", env)
        self.name = str(metadata.get("name", type(unwrapped).__name__))
        limit = metadata.get("max_cycles", getattr(unwrapped, "max_cycles", None))
        self.max_episode_steps = None if limit in (None, math.inf) else int(limit)
        names = getattr(env, "possible_agents", None)
        if not names:
            env.reset(seed=0)
            names = env.agents
        self._names = list(names)
        self.actor_names = [str(name) for name in names]
        self.teams = teams_by_name(self._names)
        self.arrays = ActorArrays(
            self.name,
            [env.observation_space(name) for name in self._names],
            [env.action_space(name) for name in self._names],
            images,
        )
        if _has_state(env) and is_of_images(env.state_space):
            self._encode_state = _encoding_of_state(self.name, env.state_space, images)
        self._own_position = {name: i for i, name in enumerate(self._names)}
        self._position: dict[Any, int] = {}  # of the agents that are listed
        n_actors = len(self._names)
        self._terminated, self._truncated, self._alive = np.zeros((3, n_actors), bool)
        self._is_new = np.zeros(n_actors, bool)  # another agent has taken the position
        self._all_ended = self._went_on = False  # at the latest step; at any step of the episode
        wrapper = _aec_wrapper_of(env)
        # An AEC environment lists an agent that has ended until its own next turn.
        self._lists_ended = wrapper is not None
        is_by_turns = type(wrapper).__name__ == "turn_based_aec_to_parallel_wrapper"
        self._turns = wrapper.aec_env if is_by_turns else None
        self.arrays.needs_mask |= self._turns is not None

    def reset(self, seed: int | None) -> tuple[HostObservation, np.ndarray]:
        """Start an episode; see `Adapter.reset`."""
        observations, infos = _by_agent(_OF_RESET, self._env.reset(seed=seed))
        self._position, self._all_ended, self._went_on = {}, False, False
        self._is_new[:] = False
        self._seat(list(self._env.agents))
        alive = np.zeros(len(self._names), bool)
        alive[list(self._position.values())] = True
        self._terminated, self._truncated, self._alive = ~alive, np.zeros_like(alive), alive
        return self._look(self._position, alive, observations, infos), alive.copy()

    def step(self, action: np.ndarray) -> Outcome:
        """Step; see `Adapter.step`."""
        own, acted = self.arrays.actions(action), self._position
        ended = self._ended()
        had_ended = {name for name, at in acted.items() if ended[at] and not self._is_new[at]}
        observations, rewards, terminations, truncations, infos = _by_agent(
            _OF_STEP, self._env.step({name: own[position] for name, position in acted.items()})
        )
        agents = list(self._env.agents)
        reward = np.zeros(len(self._names), np.float32)
        for name, value in rewards.items():
            if name in acted and self._alive[acted[name]]:
                reward[acted[name]] = _as_reward(value)
        self._book_ends(acted, set(agents), terminations, truncations)
        self._seat(agents)
        alive = self._alive = self._acting_next(acted, had_ended)
        final = None
        if (alive & self._ended()).any():
            final = self._look(acted, np.zeros_like(alive), observations, infos)
        taken = set(self._position.values())
        shown = {name: position for name, position in acted.items() if position not in taken}
        return Outcome(
            observation=self._look({**shown, **self._position}, alive, observations, infos),
            reward=reward,
            terminated=self._terminated.copy(),
            truncated=self._truncated.copy(),
            alive=alive.copy(),
            infos=_by_position(infos, acted),
            final=final,
        )

    def _book_ends(
        self,
        acted: Mapping[Any, int],
        listed: Set[Any],
        terminations: Mapping[Any, Any],
        truncations: Mapping[Any, Any],
    ) -> None:
        """Record the ends of agents that acted; one that left without an end has terminated."""
        for name, position in acted.items():
            is_over = _as_flag("terminated", terminations.get(name, False))
            is_cut = _as_flag("truncated", truncations.get(name, False))
            if name in listed or is_over or is_cut:
                self._terminated[position] = is_over
                self._truncated[position] = is_cut and not is_over
            elif self._alive[position]:
                self._terminated[position], self._truncated[position] = True, False

    def _acting_next(self, acted: Mapping[Any, int], had_ended: Set[Any]) -> np.ndarray:
        """Return which positions act next, and clear the ends of those that were free before."""
        ended, alive = self._ended(), np.zeros(len(self._names), bool)
        goes_on = any(name not in acted or not ended[at] for name, at in self._position.items())
        # If an environment clears its list at the end of an episode, listed agents continue.
        self._went_on |= self._all_ended and goes_on
        self.revives |= self._went_on and not self._position
        self._all_ended = bool(self._position) and not goes_on
        goes_on |= self.revives
        self._is_new[:] = False
        for name, position in self._position.items():
            if name in acted:
                # Some environments keep listing ended agents, with their end at every step.
                begins_anew = goes_on and not self._lists_ended and name not in had_ended
                alive[position] = begins_anew or not ended[position]
            else:
                alive[position] = self._is_new[position] = True
                if position not in acted.values():
                    self._terminated[position] = self._truncated[position] = False
        return alive

    def _look(
        self,
        position: Mapping[Any, int],
        acts: np.ndarray,
        observations: Mapping[Any, Any],
        infos: Mapping[Any, Any],
    ) -> HostObservation:
        for name, at in position.items():
            if name not in observations and acts[at]:
                raise WrongValueError(f"returned no observation for agent {name!r}, which is alive")
        seen, told = _by_position(observations, position), _by_position(infos, position)
        if self._turns is None:
            return self._observation(seen, told, acts)
        waiting = np.ones(len(self._names), bool)
        if self._turns.agents and self._turns.agent_selection in position:
            waiting[position[self._turns.agent_selection]] = False
        observation = self._observation(seen, told, acts & ~waiting)
        if observation.action_mask is not None:
            observation.action_mask[waiting] = self.arrays.only_first_actions()
        return observation._replace(has_turn=~waiting)

    def _lists_agents(self) -> bool:
        return bool(self._position)

    def _ended(self) -> np.ndarray:
        return self._terminated | self._truncated

    def _seat(self, agents: Sequence[Any]) -> None:
        """Give every agent a position: the one it has, its name's, or the first free one."""
        if len(agents) > len(self._names):
            raise ValueError(
                f"{self.name} has {len(agents)} agents at once, and {len(self._names)} "
                "possible_agents; list as many as there can be."
            )
        if agents == list(self._position):
            return
        position = {name: self._position[name] for name in agents if name in self._position}
        taken = set(position.values())
        free = [i for i in range(len(self._names)) if i not in taken]
        come = [name for name in agents if name not in position]
        for name in come:
            own = self._own_position.get(name)
            if own in free:
                position[name] = own
                free.remove(own)
        strangers = [name for name in come if name not in position]
        self._position = {**position, **dict(zip(strangers, free, strict=False))}


def _by_position(values: Mapping[Any, Any], position: Mapping[Any, int]) -> dict[int, Any]:
    return {position[name]: value for name, value in values.items() if name in position}


def adapt(env: Any, images: ImageSettings = AS_THEY_ARE) -> Adapter:
    """Choose the adapter for an environment of Gymnasium, or of either API of PettingZoo.

    Entries of Gymnasium's Tuple spaces are agents, as in PettingZoo's parallel API.

    Args:
        env: The environment.
        images: How its images are observed.

    Raises:
        TypeError: it is none of these; or as `ActorArrays`.
        ValueError: as `ActorArrays`.
    """
    if is_of_agents(env):
        env = TupleAgents(env, *name_and_limit(env))
    spaces = (getattr(env, name, None) for name in ("observation_space", "action_space"))
    is_by_agent = all(map(callable, spaces))  # as PettingZoo's, and no attribute of Gymnasium's
    if is_by_agent and (hasattr(env, "agent_selection") or hasattr(env, "agent_iter")):
        from pettingzoo.utils.conversions import (  # pyright: ignore[reportMissingImports] -- an extra
            aec_to_parallel,
            turn_based_aec_to_parallel,
        )

        is_parallel = (getattr(env, "metadata", None) or {}).get("is_parallelizable", False)
        env = aec_to_parallel(env) if is_parallel else turn_based_aec_to_parallel(env)
    if is_by_agent and (hasattr(env, "possible_agents") or hasattr(env, "agents")):
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
    """Return the adapter if it has images to which the settings apply."""
    if images != AS_THEY_ARE and not adapter.has_images:
        raise ValueError(
            f"{adapter.name} is observed as {adapter.arrays.dtype} of shape {adapter.arrays.shape} "
            "in a space that is not of images (bytes from 0 to 255); leave out image_size, "
            "grayscale and scale_images."
        )
    return adapter


def _encoding_of_state(name: str, space: Any, images: ImageSettings) -> ImageEncoding:
    """Encode a global state as images are, but without grayscale where it has no colours."""
    try:
        return ImageEncoding(name, space, images)
    except ValueError:
        return ImageEncoding(name, space, images._replace(is_gray=False))


def _has_state(env: Any) -> bool:
    """Return True if an environment has a global state; many only inherit the method."""
    if not hasattr(env, "state") or not callable(env.state):
        return False
    return getattr(env, "state_space", None) is not None


def _aec_wrapper_of(env: Any) -> Any:
    """Return PettingZoo's wrapper of an AEC environment, or None; other wrappers have an ``env``.

    Agents take turns in `turn_based_aec_to_parallel_wrapper`, and act together in the other one.
    """
    wrappers = (each for each in layers_of(env) if "aec_env" in getattr(each, "__dict__", {}))
    return next(wrappers, None)


def _expect(names: Sequence[str], returned: Any) -> Sequence[Any]:
    """Return the values of a reset or a step, if there are as many as the library has names."""
    if type(returned) is tuple and len(returned) == len(names):
        return returned
    n_values = len(returned) if isinstance(returned, tuple | list) else 1
    if n_values != len(names):
        raise WrongValueError(
            f"returned {n_values} value{'s' * (n_values != 1)}; the library's interface has "
            f"{len(names)}: {', '.join(names)}"
        )
    return returned


def _by_agent(names: Sequence[str], returned: Any) -> Sequence[Mapping[Any, Any]]:
    """Return the values of a reset or a step of PettingZoo, which are dictionaries."""
    values = _expect(names, returned)
    for name, value in zip(names, values, strict=True):
        if not isinstance(value, Mapping):
            raise WrongValueError(
                f"returned {type(value).__name__} as {name}, not a dictionary by agent"
            )
    return values


def _as_reward(reward: Any) -> float:
    if type(reward) is float:
        return reward
    value = np.asarray(reward)
    if value.size != 1:
        raise VectorRewardError(
            f"returned a reward of shape {value.shape}, not one number; let it return a weighted "
            "sum, as reward_weights of jaxagents.make does"
        )
    check_dtype(value, _REWARD, "a reward", ", which does not convert to")
    return float(value.item())


def _as_flag(name: str, flag: Any) -> bool:
    """Return an end, which may be a number."""
    if type(flag) is bool:
        return flag
    value = np.asarray(flag)
    if value.size != 1 or value.item() not in (0, 1):
        raise WrongValueError(f"returned {name} that is {flag!r}, neither True nor False")
    return bool(value.item())
