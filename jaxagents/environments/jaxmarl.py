"""JaxMARL environments, their actors stacked in the library's order."""

import contextlib
import fnmatch
import inspect
import io
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PRNGKeyArray, PyTree

from jaxagents.environments.protocol import Environment, StepResult
from jaxagents.environments.spaces import Discrete, as_space


@contextlib.contextmanager
def _silenced() -> Iterator[None]:
    """Hide what JaxMARL prints at import: which optional parts it lacks.

    While it is imported it also points the standard streams at the process's own, past a
    redirection: they are replaced as well meanwhile, and all are put back.
    """
    streams = {name: getattr(sys, name) for name in ("stdout", "stderr", "__stdout__")}
    sys.stdout = sys.__stdout__ = io.StringIO()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for name, stream in streams.items():
            setattr(sys, name, stream)


with _silenced():
    import jaxmarl
    from jaxmarl.environments.mpe import SimpleMPE


class Family(NamedTuple):
    """What JaxMARL's interface does not say about a group of its environments."""

    ids: str  # a pattern in the manner of a shell's
    base: type  # of all its environments
    truncated: Callable[[Any, PyTree, PyTree], Bool[Array, ""]]  # env, previous state, state
    truncation_rule: str  # the same in words, to be formatted with env
    silent_keywords: frozenset[str]  # accepted at construction, but in no signature


def _mpe_truncated(env: Any, previous_state: PyTree, state: PyTree) -> Bool[Array, ""]:
    del state
    # The library compares the step count before it counts the step.
    return previous_state.step >= env.max_steps


FAMILIES = (
    Family(
        ids="MPE_*",
        base=SimpleMPE,
        truncated=_mpe_truncated,
        truncation_rule="time limit: the step after max_steps = {env.max_steps} steps is the last",
        silent_keywords=frozenset(
            {"accel", "c_noise", "collide", "contact_force", "contact_margin", "damping"}
            | {"mass", "max_speed", "moveable", "rad", "silent", "u_noise"}
        ),
    ),
)


@final
class JaxMARLEnvironment(Environment):
    """A JaxMARL environment whose actors observe alike and act alike.

    Actors are in the order of the library's ``env.agents``. Rewards are those of the library's
    ``step_env``: its baselines multiply the rewards of MPE by the number of agents, this class
    does not. JaxMARL's only sign of an episode's end is ``done``: what of it is truncation is
    known per `Family`, the rest is termination. All that MPE ends by is its time limit, so that
    it never terminates.

    Args:
        env: an environment of JaxMARL, such as ``jaxmarl.make`` returns.

    Raises:
        ValueError: the environment is of no supported family, or its actors differ in the
            shapes of their observations or in their action spaces.
    """

    def __init__(self, env: Any):
        family = next((each for each in FAMILIES if isinstance(env, each.base)), None)
        if family is None:
            raise ValueError(_unsupported(f"JaxMARL's {type(env).__name__}"))
        _refuse_unequal_actors(env)
        self.env = env
        self.name = env.name
        self.n_actors = len(env.agents)
        self._family = family

    @property
    def truncation_rule(self) -> str:
        """When an episode is truncated, in words."""
        return self._family.truncation_rule.format(env=self.env)

    def action_space(self, params: PyTree = None) -> Any:
        """Return the library's own action space of one actor."""
        del params
        return self.env.action_space(self.env.agents[0])

    def reset_env(self, rng: PRNGKeyArray, params: PyTree) -> tuple[Array, PyTree]:
        """Begin an episode; see `Environment.reset_env`."""
        del params
        observation, state = self.env.reset(rng)
        return self._stack(observation), _without_weak_types(state)

    def step_env(
        self, rng: PRNGKeyArray, state: PyTree, action: Array, params: PyTree
    ) -> StepResult:
        """Step without resetting; see `Environment.step_env`."""
        del params
        shape = self.action_space().shape
        actions = {name: action[i].reshape(shape) for i, name in enumerate(self.env.agents)}
        observation, next_state, reward, done, info = self.env.step_env(rng, state, actions)
        truncated = jnp.broadcast_to(
            self._family.truncated(self.env, state, next_state), self.n_actors
        )
        return (
            self._stack(observation),
            _without_weak_types(next_state),
            self._stack(reward).astype(jnp.float32),
            self._stack(done) & ~truncated,
            truncated,
            {name: value for name, value in info.items() if getattr(value, "shape", None) == ()},
        )

    def _stack(self, values: Mapping[str, Array]) -> Array:
        """Stack the actors' values; other entries, such as "world_state", are not theirs."""
        return jnp.stack([values[name] for name in self.env.agents])


def construct(env_id: str, **env_kwargs: Any) -> Any:
    """Construct the library's environment.

    Raises:
        TypeError: a keyword is one that the library would silently ignore.
    """
    env = jaxmarl.make(env_id, **env_kwargs)
    known = set().union(*(each.silent_keywords for each in FAMILIES if isinstance(env, each.base)))
    for cls in type(env).__mro__[:-1]:
        known.update(inspect.signature(cls.__init__).parameters)
    unknown = sorted(env_kwargs.keys() - known)
    if unknown:
        accepted = sorted(known - {"self", "kwargs"})
        raise TypeError(
            f"unexpected keyword argument {', '.join(map(repr, unknown))}; "
            f"there are {', '.join(accepted)}"
        )
    return env


def is_registered(env_id: str) -> bool:
    """Whether the library knows the id, supported here or not."""
    return env_id in jaxmarl.registered_envs


def refuse_unsupported(env_id: str) -> None:
    """Raise ValueError if the id is of no supported family."""
    if not any(fnmatch.fnmatchcase(env_id, family.ids) for family in FAMILIES):
        raise ValueError(_unsupported(f"jaxmarl/{env_id}"))


def _unsupported(subject: str) -> str:
    supported = ", ".join(f"jaxmarl/{family.ids}" for family in FAMILIES)
    return f"{subject} is not supported yet: of JaxMARL, only {supported} is."


def _refuse_unequal_actors(env: Any) -> None:
    # The library's declared observation spaces are wrong in places.
    observation, _ = jax.eval_shape(env.reset, jax.eval_shape(jax.random.key, 0))
    shapes = {name: observation[name].shape for name in env.agents}
    spaces = {name: as_space(env.action_space(name)) for name in env.agents}
    if len(set(shapes.values())) == 1 and len({repr(space) for space in spaces.values()}) == 1:
        return
    actors = "; ".join(
        f"{name} observes {shapes[name]} and acts in {_space_text(spaces[name])}"
        for name in env.agents
    )
    raise ValueError(
        f"The actors of JaxMARL's {env.name} differ: {actors}. Only environments whose actors "
        "have equal observation shapes and equal action spaces are supported."
    )


def _space_text(space: Any) -> str:
    return f"Discrete({space.n})" if isinstance(space, Discrete) else f"Box{space.shape}"


def _without_weak_types(tree: PyTree) -> PyTree:
    """Make the states of resets and of steps equal in type, for loops to carry."""
    return jax.tree.map(
        lambda leaf: jax.lax.convert_element_type(leaf, jax.typeof(leaf).dtype), tree
    )
