"""A trained policy in a file: networks and normalizers, without what only training needs.

``policy.safetensors`` takes the place of checkpoints in their directory. Its arrays have their
names in checkpoints. Its metadata hold those of a checkpoint and the number of updates done. There
is no optimizer, environment or random key, so that a policy plays but is not resumed.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxagents.errors import CheckpointError
from jaxagents.training.atomic_write import replacing
from jaxagents.training.named_arrays import from_leaves, to_leaves
from jaxagents.types import Memory, NetworkState, PyTree, Runner

POLICY = "policy.safetensors"
"""The file's name."""
FORMAT_VERSION = 1
_METADATA, _VERSION, _N_UPDATES_DONE = "jaxagents", "policy_format", "n_updates_done"


PARTS = ("actor", "critic")
"""The parts of a policy that a training may start from."""


class Trained(NamedTuple):
    """The parts of a `Runner` that were learnt, ``[policies, ...]``."""

    actor: NetworkState | None  # without the optimizer's state; None: left out
    critic: NetworkState | None  # likewise
    normalizers: Any  # Normalizers; without the environments' discounted returns


def check_parts(name: str, parts: Sequence[str]) -> None:
    """Raise ValueError if the value of an argument or key is not one of `PARTS`."""
    if isinstance(parts, str) or not parts or not set(parts) <= set(PARTS):
        raise ValueError(f"{name}={parts!r} is unknown; choose one or both of {list(PARTS)}.")


def trained_part(runner: Runner) -> Trained:
    """Return what a runner has learnt; traceable."""
    normalizers = runner.normalizers
    if normalizers.reward is not None:
        reward = normalizers.reward._replace(discounted_return=None)
        normalizers = normalizers._replace(reward=reward)
    return Trained(
        actor=runner.actor._replace(opt_state=None),
        critic=runner.critic._replace(opt_state=None),
        normalizers=normalizers,
    )


def limited_to(trained: Trained, parts: Sequence[str], is_centralized: bool) -> Trained:
    """Leave out the other parts, and the normalizers that belong to them alone.

    Args:
        trained: The trained part.
        parts: Some of `PARTS`.
        is_centralized: Critics observe the global state.
    """
    if "actor" not in parts:
        trained = trained._replace(actor=None)
        if is_centralized:
            trained = trained._replace(normalizers=trained.normalizers._replace(observation=None))
    if "critic" not in parts:
        of_critic = dict.fromkeys(("critic_features", "value", "reward"))
        normalizers = trained.normalizers._replace(**of_critic)
        trained = trained._replace(critic=None, normalizers=normalizers)
    return trained


def begun_from(trained: Trained, normalizers: Any) -> Any:
    """Return a trained part's normalizers; those that it lacks come from the new runner."""
    taken = {name: each for name, each in trained.normalizers._asdict().items() if each is not None}
    if "reward" in taken:
        discounted_return = normalizers.reward.discounted_return
        taken["reward"] = taken["reward"]._replace(discounted_return=discounted_return)
    return normalizers._replace(**taken)


def write_policy(path: Path, runner: Runner, structure: Mapping[str, Any]) -> None:
    """Write a runner's policies atomically; an earlier file is replaced.

    Args:
        path: The file.
        runner: Runner of a single run.
        structure: The agent's structure, as checkpoints hold it.

    Raises:
        OSError: the file cannot be written.
    """
    from safetensors.numpy import save

    about = {
        **structure,
        _VERSION: FORMAT_VERSION,
        _N_UPDATES_DONE: int(runner.n_updates_done),
    }
    leaves = to_leaves(jax.device_get(trained_part(runner)))
    tensors = {name: np.ascontiguousarray(leaf) for name, leaf in leaves.items()}
    with replacing(path) as new:
        new.write_bytes(save(tensors, {_METADATA: json.dumps(about)}))


def read_structure(path: Path) -> dict[str, Any]:
    """Read the structure of the agent that trained a policy, and ``n_updates_done``.

    Raises:
        CheckpointError: the file is damaged, another program's, or a newer version's.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            about = json.loads((file.metadata() or {})[_METADATA])
    except KeyError:
        raise CheckpointError(
            f"{path} is no policy that plays here, but perhaps an export for other programs."
        ) from None
    except (SafetensorError, OSError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(f"{path} cannot be read: {reason}.") from error
    if not isinstance(about, dict) or type(about.get(_N_UPDATES_DONE)) is not int:
        raise CheckpointError(f"{path} cannot be read: its metadata are damaged.")
    if about.get(_VERSION) != FORMAT_VERSION:
        raise CheckpointError(
            f"{path} has format {about.get(_VERSION)}, and this version reads {FORMAT_VERSION}; "
            "install the version that wrote it."
        )
    return about


def read_policy(path: Path, template: Runner) -> Runner:
    """Read a policy as a runner that plays, but has no state of a training.

    Args:
        path: The file.
        template: Shapes and dtypes of the agent's runner.

    Returns:
        A runner whose optimizers, environments, random key and hyperparameters are None.

    Raises:
        CheckpointError: the file is damaged, or an array does not fit the agent.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    n_updates_done = read_structure(path)[_N_UPDATES_DONE]
    try:
        leaves = load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(f"{path} cannot be read: {reason}.") from error
    try:
        trained = from_leaves(leaves, trained_part(template))
    except ValueError as error:
        raise CheckpointError(f"{path} belongs to another agent: {error}.") from None
    missing: Any = None
    return Runner(
        actor=trained.actor,
        critic=trained.critic,
        env_state=missing,
        observation=missing,
        memory=Memory(),
        normalizers=begun_from(trained, _zeros(template.normalizers)),
        learning_rate=missing,
        rng=missing,
        hyperparams=missing,
        n_updates_done=jnp.asarray(n_updates_done, jnp.int32),
        n_updates_skipped=_zeros(template.n_updates_skipped),
    )


def is_resumable(runner: Runner) -> bool:
    """Return False for a runner of `read_policy`, which lacks the state of a training."""
    return runner.rng is not None


def _zeros(tree: PyTree) -> Any:
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), tree)
