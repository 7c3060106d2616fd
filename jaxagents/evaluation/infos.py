"""The infos of an episode, computed from those of its steps."""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxagents.environments.success import Success


class Infos(NamedTuple):
    """Infos of episodes so far, ``[episodes]`` or ``[episodes, actors]`` by name."""

    value: dict[str, Array]  # of the last step, or the sum over the steps
    n_steps: dict[str, Int[Array, "..."]]  # that had one, for infos that are summed or averaged


def no_infos(shapes: Mapping[str, jax.ShapeDtypeStruct], success: Success | None) -> Infos:
    """Return the infos before the first step; NaN until an actor has one.

    Args:
        shapes: Shapes and dtypes of a step's infos.
        success: Which infos are summed or averaged.
    """
    accumulated = [name for name in shapes if success is not None and success.accumulates(name)]
    empty = {
        name: (
            jnp.zeros(leaf.shape, leaf.dtype)
            if leaf.ndim == 1
            else jnp.full(leaf.shape, jnp.nan)  # until the actor has one
        )
        for name, leaf in shapes.items()
    }
    return Infos(
        value=empty | {name: jnp.zeros(shapes[name].shape) for name in accumulated},
        n_steps={name: jnp.zeros(shapes[name].shape, jnp.int32) for name in accumulated},
    )


def after_step(
    infos: Infos,
    info: Mapping[str, Array],
    goes_on: Bool[Array, " episodes"],
    acts: Bool[Array, "episodes actors"],
) -> Infos:
    """Add a step.

    Args:
        infos: Infos of the steps before.
        info: Infos of this step.
        goes_on: Which episodes this step is a part of.
        acts: Which actors' episodes it is a part of.
    """
    value, n_steps = {}, {}
    for name, old in infos.value.items():
        counts = acts if old.ndim == 2 else goes_on
        if name not in infos.n_steps:
            value[name] = jnp.where(counts, info[name], old)
            continue
        now = info[name].astype(jnp.float32)
        counts = counts & ~jnp.isnan(now)
        value[name] = old + jnp.where(counts, now, 0.0)
        n_steps[name] = infos.n_steps[name] + counts
    return Infos(value, n_steps)


def of_episodes(infos: Infos, success: Success | None) -> dict[str, Float[Array, " episodes"]]:
    """Return each episode's infos by name, averaged over the actors that have one."""
    found = dict(infos.value)
    for name, n_steps in infos.n_steps.items():
        averages = success is not None and success.of_episode == "mean"
        total = found[name] / n_steps if averages else found[name]
        found[name] = jnp.where(n_steps > 0, total, jnp.nan)
    return {
        name: jnp.nanmean(value, axis=1) if value.ndim == 2 else value
        for name, value in found.items()
    }
