"""Checks of the environment protocol, by tracing a reset and a step without running them."""

import operator
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxagents.compiler.random_keys import is_key
from jaxagents.environments.protocol import (
    ACTS_NEXT,
    FINAL_OBSERVATION,
    NO_INFOS,
    as_flat_observation,
    numbers_in,
)
from jaxagents.environments.spaces import (
    ActionSpace,
    Box,
    action_dtype,
    action_shape,
    as_space,
    mask_size,
    whole_numbers,
)
from jaxagents.environments.success import check_has_infos, check_success
from jaxagents.types import Observation, PyTree, leaf_name, shapes_by_name


class Interface(NamedTuple):
    """Shapes and properties of an environment."""

    n_actors: int
    space: ActionSpace  # one actor's
    whole_numbers: np.dtype | None  # of actions, in a Box of integers
    observation: Observation  # shapes and dtypes, [actors, *obs]
    returns_tuples: bool  # observations are tuples of arrays before they are flattened
    has_shaped_reward: bool
    keeps_keys: bool  # True if the state contains random keys


def examine(env: Any, env_params: PyTree, resets_as_batch: bool) -> Interface:
    """Check an environment against the protocol, and return its shapes.

    Args:
        env: The environment.
        env_params: Its parameters.
        resets_as_batch: True if the agent will call ``reset_env`` and ``step_env``, False if it
            will call ``reset`` and ``step``.

    Raises:
        TypeError: the environment lacks an attribute, or returns wrong values.
        ValueError: its ``success`` names an info that it does not return, or is wrong itself.
    """
    name = type(env).__name__
    success = getattr(env, "success", None)
    check_success(name, success)
    for attribute in ("n_actors", "action_space", "reset", "step"):
        if not hasattr(env, attribute):
            raise TypeError(
                f"{name} has no {attribute}; an environment has n_actors, action_space(params), "
                "reset and step (see jaxagents.Environment), and jaxagents.make builds those of "
                "gymnax and JaxMARL. Give one of Gymnasium or PettingZoo as "
                "jaxagents.HostEnvironment(make_env)."
            )
    own_space = env.action_space(env_params)
    n_actors, space, whole = _n_actors(env), as_space(own_space), whole_numbers(own_space)
    reset_name, step_name = ("reset_env", "step_env") if resets_as_batch else ("reset", "step")
    rng = jax.random.key(0)
    source, names = f"{name}.{reset_name}", ("observation", "state")
    returned = _traced(source, names, getattr(env, reset_name), rng, env_params)
    observation, state = _expect(source, returned, ", ".join(names))
    features = observation.features if isinstance(observation, Observation) else observation
    returns_tuples = isinstance(features, tuple | list)
    observation = _as_observation(observation)
    _check_observation(source, observation, n_actors, space)
    shape = (n_actors, *action_shape(space))
    action = jax.ShapeDtypeStruct(shape, action_dtype(space) if whole is None else whole)
    source = f"{name}.{step_name}"
    names = ("observation", "state", "reward", "terminated", "truncated", "info")
    returned = _traced(source, names, getattr(env, step_name), rng, state, action, env_params)
    step: dict[str, Any] = dict(
        zip(names, _expect(source, returned, ", ".join(names)), strict=True)
    )
    step["observation"] = _as_observation(step["observation"])
    _check_observation(source, step["observation"], n_actors, space)
    _check_alike(source, "an observation", step["observation"], observation)
    _check_alike(source, "a state", step["state"], state)
    check_flags(source, step, n_actors)
    if not resets_as_batch or FINAL_OBSERVATION in step["info"]:
        _check_final_observation(source, step["info"], observation)
    reported = numbers_in(step["info"], n_actors)
    check_has_infos(name, success, {each: reported[each] for each in reported.keys() - NO_INFOS})
    return Interface(
        n_actors=n_actors,
        space=space,
        whole_numbers=whole,
        observation=observation,
        returns_tuples=returns_tuples,
        has_shaped_reward="shaped_reward" in step["info"],
        keeps_keys=any(map(is_key, jax.tree.leaves(state))),
    )


def _n_actors(env: Any) -> int:
    try:
        n_actors = operator.index(env.n_actors)
    except TypeError:
        n_actors = 0
    if n_actors < 1:
        raise TypeError(
            f"{type(env).__name__}.n_actors is {env.n_actors!r}; it must be a whole number of at "
            "least 1."
        )
    return n_actors


def _traced(
    source: str, names: tuple[str, ...], function: Callable[..., Any], *arguments: Any
) -> Any:
    """Return the shapes of a function's results, or name those that jax cannot trace."""
    returned: list[Any] = []

    def kept(*arguments: Any) -> Any:
        returned.append(function(*arguments))
        return returned[-1]

    try:
        return jax.eval_shape(kept, *arguments)
    except TypeError as error:
        for path, leaf in jax.tree_util.tree_leaves_with_path(returned[-1:]):
            if not hasattr(leaf, "dtype") and not isinstance(leaf, bool | int | float | complex):
                of, *keys = leaf_name(path[1:]).split(".")
                name = names[int(of)] if of.isdecimal() and int(of) < len(names) else of
                raise TypeError(
                    f"{source} returns {leaf!r} as {'.'.join([name, *keys])}; jax traces numbers "
                    "and arrays only, so leave it out."
                ) from error
        raise


def check_flags(source: str, step: Mapping[str, Any], n_actors: int) -> None:
    """Check a step's rewards and ends, and that it has infos.

    Args:
        source: The function that returned them, for errors.
        step: They are ``reward``, ``terminated``, ``truncated`` and ``info``.
        n_actors: The number of actors.

    Raises:
        TypeError: one is of another shape or type.
    """
    if not isinstance(step["info"], dict):
        kind = type(step["info"]).__name__
        raise TypeError(f"{source} returns {kind} as info; it must be a dict.")
    values = {name: step[name] for name in ("reward", "terminated", "truncated")}
    if "shaped_reward" in step["info"]:
        values["shaped_reward"] = step["info"]["shaped_reward"]
    for name, value in values.items():
        shape = getattr(value, "shape", type(value).__name__)
        if shape != (n_actors,):
            raise TypeError(
                f"{source} returns {name} of shape {shape}; it must be ({n_actors},), one value "
                "per actor."
            )
        if jnp.iscomplexobj(value):
            raise TypeError(f"{source} returns {name} of dtype {value.dtype}; it must be real.")
    acts_next = step["info"].get(ACTS_NEXT)
    if acts_next is None:
        return
    kind = (getattr(acts_next, "shape", None), getattr(acts_next, "dtype", None))
    if kind != ((n_actors,), bool):
        raise TypeError(
            f"{source} returns {ACTS_NEXT} of shape {kind[0]} and dtype {kind[1]}; it must be "
            f"({n_actors},) and bool, one value per actor."
        )


def _check_final_observation(source: str, info: dict[str, Any], observation: Observation) -> None:
    if FINAL_OBSERVATION not in info:
        raise TypeError(
            f'{source} returns an info without "{FINAL_OBSERVATION}"; put the observation before '
            "any reset there."
        )
    final_observation = _as_observation(info[FINAL_OBSERVATION])
    _check_alike(source, "a final_observation", final_observation, observation)


def _expect(source: str, returned: Any, names: str) -> tuple:
    n_values = len(names.split(","))
    count = len(returned) if isinstance(returned, tuple) else 1
    if count != n_values:
        noun = "value" if count == 1 else "values"
        raise TypeError(f"{source} returns {count} {noun}; the protocol has {n_values}: {names}.")
    return returned


def _check_alike(source: str, what: str, stepped: PyTree, reset: PyTree) -> None:
    """Check that a step returns the types of the reset, as a `jax.lax.scan` over steps needs."""
    stepped_text, reset_text = shapes_by_name(stepped), shapes_by_name(reset)
    for name in sorted(stepped_text.keys() | reset_text.keys()):
        here, there = stepped_text.get(name, "nothing"), reset_text.get(name, "nothing")
        if here != there:
            raise TypeError(
                f"{source} returns {what} whose {name or 'value'} is {here}, but {there} at the "
                "reset; return the same shapes and types."
            )


def _as_observation(observation: Any) -> Observation:
    return jax.eval_shape(lambda each: as_flat_observation(each, n_batch_axes=1), observation)


def _check_observation(
    source: str, observation: Observation, n_actors: int, space: ActionSpace
) -> None:
    shape = getattr(observation.features, "shape", None)
    if not shape or shape[0] != n_actors:
        raise TypeError(
            f"{source} returns observations of shape {shape}; the first axis must be the "
            f"{n_actors} actors."
        )
    turn, mask = observation.has_turn, observation.action_mask
    if turn is not None and (turn.shape, turn.dtype) != ((n_actors,), bool):
        raise TypeError(
            f"{source} returns has_turn of shape {turn.shape} and dtype {turn.dtype}; it must be "
            f"({n_actors},) and bool, one value per actor."
        )
    if mask is None:
        return
    size, of = mask_size(space), "dimensions" if isinstance(space, Box) else "actions"
    if mask.shape != (n_actors, size):
        raise TypeError(
            f"{source} returns an action_mask of shape {mask.shape}; it must be "
            f"({n_actors}, {size}), actors by {of}."
        )
    if mask.dtype != bool:
        raise TypeError(f"{source} returns an action_mask of {mask.dtype}; it must be bool.")
