"""Whose a runner is, by the shapes that observations and actions decide."""

from collections.abc import Mapping

import jax

from jaxagents.types import PyTree, Runner


def parts_of(runner: Runner) -> dict[str, PyTree]:
    """Return a runner's parameters and statistics by name."""
    return {
        "actor": runner.actor.params,
        "critic": runner.critic.params,
        "normalizers": runner.normalizers,
    }


def foreign_part(own: Mapping[str, PyTree], given: Mapping[str, PyTree]) -> str | None:
    """Name the first array whose shape is another than the agent's, with both; None: all fit.

    Args:
        own: The agent's arrays, or their shapes, by name.
        given: Those of a runner.
    """
    own_shapes, given_shapes = _shapes_of(own), _shapes_of(given)
    for name in sorted(own_shapes.keys() | given_shapes.keys()):
        here, there = own_shapes.get(name, "missing"), given_shapes.get(name, "missing")
        if here != there:
            return (
                f"the runner is of another agent: {name} is {there} there and {here} in this "
                "agent; build the agent of the environment and configuration that the runner was "
                "trained with."
            )
    return None


def _shapes_of(parts: Mapping[str, PyTree]) -> dict[str, str]:
    return {
        f"{part}.{jax.tree_util.keystr(path, simple=True, separator='.')}": str(list(leaf.shape))
        for part, tree in parts.items()
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }
