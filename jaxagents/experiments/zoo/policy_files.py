"""A policy in one file of tensors, and the runner that plays it.

The file has the networks' parameters and the normalizers under their names in checkpoints, in
float32. It has no optimizer state, environments or random keys.
"""

from pathlib import Path

import jax
import numpy as np

from jaxagents.errors import CheckpointError
from jaxagents.training.named_arrays import Leaves, from_leaves, to_leaves, zeros_like_shapes
from jaxagents.types import Runner

_FORMAT = "jaxagents policy 1"


def policy_as_bytes(runner: Runner) -> bytes:
    """Return the content of the file of a runner's policies, in safetensors' format."""
    from safetensors.numpy import save

    leaves = to_leaves(jax.device_get(_parts(runner)))
    tensors = {name: np.ascontiguousarray(leaf, np.float32) for name, leaf in leaves.items()}
    updates = str(int(runner.n_updates_done))
    return save(tensors, {"format": _FORMAT, "n_updates_done": updates})


def read_policy(path: Path, template: Runner) -> Runner:
    """Read a runner from the file of its policies.

    Args:
        path: The file.
        template: Shapes and dtypes of the agent's runner.

    Returns:
        The runner. It can play but not be trained: all that the file lacks is zero.

    Raises:
        CheckpointError: the file cannot be read, or belongs to an agent of another structure.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "np") as file:
            about = file.metadata() or {}
            if about.get("format") != _FORMAT:
                raise CheckpointError(f"{path} is no policy of the zoo; jaxagents zoo add RUN.")
            n_updates_done = np.int32(about["n_updates_done"])
            leaves: Leaves = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    runner = zeros_like_shapes(template)
    shapes = _parts(template)
    dtypes = {name: leaf.dtype for name, leaf in to_leaves(_parts(runner)).items()}
    cast = {name: leaf.astype(dtypes.get(name, leaf.dtype)) for name, leaf in leaves.items()}
    try:
        parts = from_leaves(cast, shapes)
    except ValueError as error:
        raise CheckpointError(f"{path} belongs to another agent: {error}.") from None
    return runner.replace(
        actor=runner.actor._replace(params=parts["actor"]["params"]),
        critic=runner.critic._replace(params=parts["critic"]["params"]),
        normalizers=parts["normalizers"],
        n_updates_done=jax.device_put(n_updates_done),
    )


def _parts(runner: Runner) -> dict:
    """Return the parts of a runner that the file has, named as in checkpoints."""
    return {
        "actor": {"params": runner.actor.params},
        "critic": {"params": runner.critic.params},
        "normalizers": runner.normalizers,
    }
