"""JaxMARL environments, with actors stacked in the library's order."""

import difflib
import functools
import inspect
from collections.abc import Mapping, Sequence
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Int, PRNGKeyArray

from jaxagents.entities import EntityKind
from jaxagents.environments.jaxmarl.families import (
    FAMILIES,
    Family,
    family_of,
    supported_family,
)
from jaxagents.environments.jaxmarl.outcomes import Step
from jaxagents.environments.protocol import (
    Environment,
    StepResult,
    numbers_in,
    without_weak_types,
)
from jaxagents.environments.quiet_import import SILENCE, load
from jaxagents.environments.spaces import (
    ActionSpace,
    Discrete,
    as_space,
    common_shape,
    common_space,
    mask_size,
    teams_by_name,
)
from jaxagents.types import Observation, PyTree


@final
class JaxMARLEnvironment(Environment):
    """A JaxMARL environment.

    Actors are in the order of the library's ``env.agents``. Shorter observation vectors are padded
    with zeros at the end. `Observation.action_mask` marks the actions, or the dimensions of a Box,
    that an actor has and that the library says are available. In turn-based games, actors whose
    turn it is not have a single action.

    Rewards are those of the library's ``step_env``. (JaxMARL's baselines multiply the rewards of
    MPE by the number of agents; this class does not.) JaxMARL reports only ``done``: the rules of
    the family distinguish truncation from termination.

    Args:
        env: A JaxMARL environment, for example from ``jaxmarl.make``.

    Attributes:
        teams: Each actor's team; actors whose names differ only in a number are in the same team.
        rewards_after_death: True if actors that are done earn rewards until the episode is over.
        time_limits: "terminal" if the time limit is a part of the task, "bootstrap" if not.
        success: The info by which the family is judged; None: the return alone.

    Raises:
        ValueError: the environment belongs to no supported family, or its actors differ in ways
            that padding and masks cannot express.
    """

    def __init__(self, env: Any):
        family = family_of(env)
        self.env = env
        self.name = env.name
        self.n_actors = len(env.agents)
        self.teams = teams_by_name(env.agents)
        self.rewards_after_death = family.rewards_after_death
        self.time_limits = family.time_limits
        self.success = family.success
        self._spaces = [as_space(env.action_space(name)) for name in env.agents]
        self._space = common_space(f"JaxMARL's {env.name}", self._spaces)
        # Some of the library's declared observation spaces are wrong.
        with SILENCE:
            observation, _ = jax.eval_shape(env.reset, jax.eval_shape(jax.random.key, 0))
        features = jax.eval_shape(functools.partial(family.features, env), observation)
        self._observation_shape = common_shape(
            f"JaxMARL's {env.name}", [each.shape for each in features]
        )

    @property
    def _family(self) -> Family:
        return family_of(self.env)  # not stored, as its lambdas cannot be pickled

    @property
    def truncation_rule(self) -> str:
        """Description of when episodes are truncated."""
        return self._family.truncation_rule.format(env=self.env)

    def max_episode_steps(self, params: PyTree = None) -> int | None:
        """Return the time limit; see `Environment.max_episode_steps`."""
        del params
        return self._family.max_episode_steps(self.env)

    def entities(self, params: PyTree = None) -> Mapping[str, EntityKind] | None:
        """Return the kinds of entities in observations; see `Environment.entities`."""
        del params
        return self._family.entities(self.env)

    def action_space(self, params: PyTree = None) -> ActionSpace:
        """Return a space that contains every actor's own space."""
        del params
        return self._space

    def reset_env(self, rng: PRNGKeyArray, params: PyTree) -> tuple[Observation, PyTree]:
        """Start an episode; see `Environment.reset_env`."""
        del params
        with SILENCE:
            observation, state = self.env.reset(rng)
        return self._observe(observation, state), without_weak_types(state)

    def step_env(
        self, rng: PRNGKeyArray, state: PyTree, action: Array, params: PyTree
    ) -> StepResult:
        """Step without a reset; see `Environment.step_env`."""
        del params
        actions = self._split(action)
        with SILENCE:
            observation, next_state, reward, done, info = self.env.step_env(
                rng, state, self._family.pack(actions)
            )
        step = Step(previous_state=state, actions=actions, state=next_state, reward=reward)
        truncated = jnp.broadcast_to(self._family.truncated(self.env, step), self.n_actors)
        over = jnp.stack([done.get(name, False) | done["__all__"] for name in self.env.agents])
        infos = numbers_in(info, self.n_actors)
        if "shaped_reward" in info:
            infos["shaped_reward"] = self._stack(info["shaped_reward"]).astype(jnp.float32)
        return (
            self._observe(observation, next_state),
            without_weak_types(next_state),
            self._stack(reward).astype(jnp.float32),
            over & ~truncated,
            truncated,
            infos | self._family.infos(self.env, step),
        )

    def _split(self, action: Array) -> dict[Any, Array]:
        """Convert actions of the common space to each actor's own space."""
        if isinstance(self._space, Discrete):
            return dict(zip(self.env.agents, action, strict=True))
        return {
            name: action[i, : mask_size(space)]
            for i, (name, space) in enumerate(zip(self.env.agents, self._spaces, strict=True))
        }

    def _stack(self, values: Mapping[Any, ArrayLike] | Sequence[ArrayLike] | Array) -> Array:
        if isinstance(values, Mapping):
            values = [values[name] for name in self.env.agents]
        return jnp.asarray(values)

    def _observe(self, observation: Any, state: PyTree) -> Observation:
        features = self._family.features(self.env, observation)
        return Observation(
            features=jnp.stack([_padded(each, self._observation_shape) for each in features]),
            action_mask=self._action_mask(state),
            global_state=self._global_state(state),
            elapsed=self._elapsed(state),
        )

    def _elapsed(self, state: PyTree) -> Int[Array, ""] | None:
        read = self._family.elapsed
        return None if read is None else jnp.asarray(read(self.env, state), jnp.int32)

    def _global_state(self, state: PyTree) -> Array | None:
        read = self._family.global_state
        return None if read is None else read(self.env, state)

    def _action_mask(self, state: PyTree) -> Bool[Array, "actors n_actions"] | None:
        size = mask_size(self._space)
        available = self._family.available
        if available is not None and isinstance(self._space, Discrete):
            masks = available(self.env, state)
            return jnp.stack([_padded(each.astype(bool), (size,)) for each in masks])
        sizes = np.array([mask_size(space) for space in self._spaces])
        return None if np.all(sizes == size) else jnp.asarray(np.arange(size) < sizes[:, None])


def construct(env_id: str, **env_kwargs: Any) -> Any:
    """Construct the library's environment; scenarios and layouts may be given by name.

    Raises:
        TypeError: the library would silently ignore a keyword.
        ValueError: the id is not supported, or the scenario or layout is unknown.
    """
    family = supported_family(env_id)
    named = {
        name: _look_up(name, env_kwargs[name], values)
        for name, values in family.load_values().items()
        if name in env_kwargs
    }
    with SILENCE:
        env = family.load_constructor(env_id)(**{**env_kwargs, **named, **family.fixed_keywords})
    known = set(family.load_silent_keywords())
    for cls in type(env).__mro__[:-1]:
        known.update(inspect.signature(cls.__init__).parameters)
    known -= {"self", "kwargs", "env_kwargs", *family.fixed_keywords}
    unknown = sorted(env_kwargs.keys() - known)
    if unknown:
        raise TypeError(
            f"unexpected keyword argument {', '.join(map(repr, unknown))}; "
            f"there are {', '.join(sorted(known))}"
        )
    return env


def is_registered(env_id: str) -> bool:
    """True if the library knows the id, even if it is not supported here."""
    known = any(env_id in family.constructors for family in FAMILIES)
    return known or env_id in load("jaxmarl.registered_envs")


def _look_up(keyword: str, value: Any, values: Mapping[str, Any]) -> Any:
    """Look up a named value; anything but a string is returned as it is."""
    if not isinstance(value, str):
        return value
    if value not in values:
        close = difflib.get_close_matches(value, values, n=3, cutoff=0.5)
        suggestion = f" Did you mean {' or '.join(close)}?" if close else ""
        raise ValueError(
            f"unknown {keyword} {value!r}.{suggestion} There are {', '.join(sorted(values))}"
        )
    return values[value]


def _padded(array: Array, shape: tuple[int, ...]) -> Array:
    return jnp.pad(array, [(0, size - own) for size, own in zip(shape, array.shape, strict=True)])
