"""Jumanji's environments, and Matrax's, which have the same interface."""

import importlib
import inspect
import re
from functools import partial
from typing import Any, final

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, PRNGKeyArray

from jaxagents.entities import EntityKind
from jaxagents.environments.protocol import Environment, StepResult, without_weak_types
from jaxagents.environments.quiet_import import SILENCE
from jaxagents.environments.spaces import ActionSpace, Box, Discrete, MultiDiscrete
from jaxagents.environments.suites.jumanji_features import features_of, observed_fields
from jaxagents.environments.suites.jumanji_success import SUCCESSES, infos_of_step
from jaxagents.types import Observation, PyTree

jumanji: Any = importlib.import_module("jumanji")  # an extra

# The others' episodes terminate at the time limit.
_TRUNCATED = ("Connector", "LevelBasedForaging")
_VIEWERS = ("_viewer", "_env_viewer", "viewer")  # attributes of the library's environments
_SIZES = {"tiny": (1, 3), "small": (2, 3), "medium": (2, 5), "large": (3, 5)}  # rows, columns
_SCENARIOS = {
    "RobotWarehouse": "tiny-2ag, small-4ag-hard",
    "LevelBasedForaging": "15x15-4p-3f, 2s-8x8-2p-2f-coop",
    "Connector": "con-10x10x10a",
}
_REQUESTS = {"-easy": 2.0, "": 1.0, "-hard": 0.5}  # per robot


class JumanjiEnvironment(Environment):
    """An environment of Jumanji, or of a package with its interface.

    Environments with ``num_agents`` have that many actors, all others have one. A single reward of
    the library counts for every actor. Numbers that the library masks together become one
    `Discrete` choice among all combinations.

    The library says how an episode ends: with a discount of 0 it is terminated, otherwise
    truncated. Most terminate at their time limit, which is then part of the task.

    Args:
        env: The library's environment.
    """

    def __init__(self, env: Any):
        self.env = env
        self.name = type(env).__name__
        spec = env.action_spec
        n_agents = getattr(env, "num_agents", getattr(env, "_num_vehicles", None))
        self.n_actors = 1 if n_agents is None else int(n_agents)
        if self.max_episode_steps() is not None and self.name not in _TRUNCATED:
            self.time_limits = "terminal"
        # A blocked actor has ended, and pays for every step until all actors have.
        self.rewards_after_death = self.name == "Connector"
        self.success = SUCCESSES.get(self.name)
        self._has_actors = n_agents is not None
        self._counts = _counts(spec)
        mask_spec = env.observation_spec._specs.get("action_mask")
        self._fields = tuple(
            observed_fields(env.observation_spec, self.n_actors if self._has_actors else None)
        )
        self._mask_shape = None if mask_spec is None else mask_spec.shape
        self._is_joint = not self._has_actors and self._mask_shape == self._counts != ()
        self._space = self._make_space(spec)

    @property
    def truncation_rule(self) -> str:
        """Description of when episodes are truncated."""
        limit = self.max_episode_steps()
        if limit is None:
            return "none: episodes terminate"
        return f"time limit: time_limit = {limit} steps"

    @property
    def arguments(self) -> dict[str, Any]:
        """What the environment and its generator were made with; `make_jumanji` takes both."""
        generator = _generator_of(self.env)
        of_generator = {} if generator is None else _arguments_of(generator)
        return {**of_generator, **_arguments_of(self.env)}

    def entities(self, params: PyTree = None) -> dict[str, EntityKind] | None:
        """Return the kinds of entities in observations; see `Environment.entities`."""
        del params
        if self.name != "LevelBasedForaging":
            return None
        n_food, unseen = self.env.num_food, (-1.0, -1.0, 0.0)
        # The food, the forager itself and the others: row, column and level of each.
        return {
            "food": EntityKind(n_food, ((0, 3),), unseen),
            "others": EntityKind(self.n_actors - 1, ((3 * n_food + 3, 3),), unseen),
        }

    def max_episode_steps(self, params: PyTree = None) -> int | None:
        """Return the time limit; see `Environment.max_episode_steps`."""
        del params
        return getattr(self.env, "time_limit", None)

    def action_space(self, params: PyTree = None) -> ActionSpace:
        """Return one actor's action space."""
        del params
        return self._space

    def reset_env(self, rng: PRNGKeyArray, params: PyTree) -> tuple[Observation, PyTree]:
        """Start an episode; see `Environment.reset_env`."""
        del params
        with SILENCE:
            state, timestep = self.env.reset(rng)
        return self._observe(state, timestep.observation), without_weak_types(state)

    def step_env(
        self, rng: PRNGKeyArray, state: PyTree, action: Array, params: PyTree
    ) -> StepResult:
        """Step without a reset; see `Environment.step_env`."""
        del rng, params
        with SILENCE:
            state, timestep = self.env.step(state, self._library_action(action))
        terminated, reward = (
            jnp.broadcast_to(jnp.asarray(each), self.n_actors)
            for each in (timestep.discount == 0, timestep.reward)
        )
        infos = {name: value for name, value in timestep.extras.items() if jnp.ndim(value) == 0}
        infos |= infos_of_step(self.name, state, timestep)
        return (
            self._observe(state, timestep.observation),
            without_weak_types(state),
            reward.astype(jnp.float32),
            terminated,
            timestep.last() & ~terminated,
            infos,
        )

    def _make_space(self, spec: Any) -> ActionSpace:
        if not np.issubdtype(spec.dtype, np.integer):
            shape = spec.shape[1:] if self._has_actors else spec.shape
            low, high = (
                np.broadcast_to(np.asarray(bound, np.float32), spec.shape)
                for bound in (spec.minimum, spec.maximum)
            )
            return Box(low[0], high[0], shape) if self._has_actors else Box(low, high, shape)
        if self._has_actors:
            # One environment's description of its actions names one more than there are.
            return Discrete(self._mask_shape[-1] if self._mask_shape else max(self._counts))
        if len(self._counts) == 1 or self._is_joint:
            return Discrete(int(np.prod(self._counts)))
        return MultiDiscrete(self._counts)

    def _library_action(self, action: Array) -> Array:
        spec = self.env.action_spec
        if not self._has_actors:
            action = action[0]
        if self._is_joint and len(self._counts) > 1:
            action = jnp.stack(jnp.unravel_index(action, self._counts))
        return action.reshape(spec.shape).astype(spec.dtype)

    def _observe(self, state: PyTree, observation: Any) -> Observation:
        features = features_of(self.name, self._fields, observation, self.n_actors)
        # Some observations hold no count of steps, or always 0.
        steps = getattr(state, "step_count", getattr(state, "step", None))
        start = self.name == "MultiCVRP"  # which counts the start at the depot as a step
        return Observation(
            features=features,
            action_mask=self._mask(getattr(observation, "action_mask", None)),
            elapsed=None if steps is None else jnp.asarray(steps, jnp.int32) - start,
        )

    def _mask(self, mask: Array | None) -> Bool[Array, "actors n_actions"] | None:
        if mask is None:
            return None
        if self._is_joint:
            mask = mask.reshape(1, -1)
        # Where the library allows nothing, as in a state that ends the episode, allow everything.
        mask = mask | ~jnp.any(mask, axis=-1, keepdims=True)
        return mask.reshape(self.n_actors, -1)


@final
class DrawnJumanjiEnvironment(JumanjiEnvironment):
    """An environment of Jumanji itself, which also draws its states."""

    def draw(self, state: PyTree, params: PyTree) -> np.ndarray:
        """Let the library draw a state, ``[height, width, 3]``."""
        del params
        attributes = vars(self.env)
        viewer = next(attributes[each] for each in _VIEWERS if each in attributes)
        pictures = []

        def keep(figure: Any) -> None:
            if self.name == "MMST":  # whose limits miss what it draws
                figure.axes[0].set(xlim=(0, 1), ylim=(0, 1))
            pictures.append(viewer._display_rgb_array(figure)[..., :3].copy())

        viewer._display = keep  # rather than on the screen
        viewer._get_fig_ax = partial(type(viewer)._get_fig_ax, viewer, show=False)
        self.env.render(state)  # not all return the picture
        viewer.close()
        return pictures[0]


def make_jumanji(
    name: str, scenario: str | None = None, **env_kwargs: Any
) -> DrawnJumanjiEnvironment:
    """Construct an environment of the library's registry.

    Args:
        name: The library's id.
        scenario: Sizes, by the names that papers use: "tiny-2ag" or "small-4ag-hard" of
            RobotWarehouse, "2s-8x8-2p-2f-coop" or "15x15-4p-3f" of LevelBasedForaging,
            "con-10x10x10a" of Connector.
        env_kwargs: Arguments of the environment's constructor, or of its generator's.

    Raises:
        ValueError: there is no such scenario.
    """
    if scenario is not None:
        env_kwargs = {**arguments_of_scenario(name, scenario), **env_kwargs}
    if env_kwargs:
        default = jumanji.make(name)
        constructor = inspect.signature(type(default).__init__).parameters
        others = {each: env_kwargs.pop(each) for each in env_kwargs.keys() - constructor.keys()}
        if others:
            env_kwargs["generator"] = _generator(default, others)
    return DrawnJumanjiEnvironment(jumanji.make(name, **env_kwargs))


def arguments_of_scenario(name: str, scenario: str) -> dict[str, Any]:
    """Return the generator's arguments of a scenario by the name that papers use.

    Raises:
        ValueError: there is no such scenario.
    """
    if name.startswith("RobotWarehouse"):
        if found := re.fullmatch(r"(tiny|small|medium|large)-(\d+)ag(-easy|-hard|)", scenario):
            rows, columns = _SIZES[found[1]]
            n_agents = int(found[2])
            return {
                "shelf_rows": rows,
                "shelf_columns": columns,
                "column_height": 8,
                "num_agents": n_agents,
                "sensor_range": 1,
                "request_queue_size": max(1, int(n_agents * _REQUESTS[found[3]])),
            }
    elif name.startswith("LevelBasedForaging"):
        if found := re.fullmatch(r"(?:(\d+)s-)?(\d+)x\2-(\d+)p-(\d+)f(-coop|)", scenario):
            sight, size, n_agents, n_food = found[1] or found[2], *found.group(2, 3, 4)
            return {
                "grid_size": int(size),
                "fov": int(sight),
                "num_agents": int(n_agents),
                "num_food": int(n_food),
                "max_agent_level": 2,
                "force_coop": bool(found[5]),
            }
    elif name.startswith("Connector") and (found := re.fullmatch(r"con-(\d+)x\1x(\d+)a", scenario)):
        return {"grid_size": int(found[1]), "num_agents": int(found[2])}
    examples = _SCENARIOS.get(name.partition("-")[0])
    remedy = f"write one such as {examples}" if examples else "leave it out"
    raise ValueError(f"jumanji/{name} has no scenario {scenario!r}; {remedy}")


def _counts(spec: Any) -> tuple[int, ...]:
    """Return how many values each of the action's numbers has; empty for continuous actions."""
    if not np.issubdtype(spec.dtype, np.integer):
        return ()
    highest = np.broadcast_to(np.asarray(spec.maximum), spec.shape)
    return tuple(int(each) + 1 for each in np.ravel(highest))


def _generator_of(env: Any) -> Any:
    return getattr(env, "generator", getattr(env, "_generator", None))


def _arguments_of(made: Any) -> dict[str, Any]:
    """Return what an environment or generator was made with, None where it does not keep one."""
    parameters = [*inspect.signature(type(made).__init__).parameters.values()][1:]
    names = [each.name for each in parameters if each.kind is not each.VAR_KEYWORD]
    return {each: getattr(made, each, getattr(made, f"_{each}", None)) for each in names}


def _generator(env: Any, changes: dict[str, Any]) -> Any:
    """Make the environment's generator with other arguments.

    Raises:
        TypeError: neither the environment nor its generator has one.
    """
    generator = _generator_of(env)
    own = {} if generator is None else _arguments_of(generator)
    if unknown := sorted(changes.keys() - own.keys()):
        arguments = [*inspect.signature(type(env).__init__).parameters][1:]
        raise TypeError(
            f"unexpected keyword argument {', '.join(map(repr, unknown))}; "
            f"there are {', '.join([*arguments, *own])}"
        )
    return type(generator)(**{**own, **changes})
