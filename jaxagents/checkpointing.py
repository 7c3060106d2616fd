"""Checkpoints on disk: orbax on the host, behind one small class.

A checkpoint is a folder named by the number of updates done, with three items:

* ``runner``: the leaves of the `Runner` by dotted name, such as
  "actor.params.params.torso.Dense_0.kernel"; random keys as their uint32 data.
* ``history``: the metrics of every evaluation so far, ``[evaluations, ...]``.
* ``metadata``: JSON; the format's version, the agent, and each item's digest.
"""

import hashlib
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jaxtyping import PyTree
from orbax.checkpoint import checkpoint_managers

FORMAT_VERSION = 1
Leaves = dict[str, np.ndarray]


def strip_keys(tree: PyTree) -> PyTree:
    """Replace typed random keys by their data; traceable."""
    return jax.tree.map(lambda leaf: jax.random.key_data(leaf) if _is_key(leaf) else leaf, tree)


def to_leaves(tree: PyTree) -> Leaves:
    """Copy a tree without typed keys to named numpy arrays; empty arrays are left out."""
    return {name: np.array(leaf) for name, leaf in _named_leaves(tree).items() if np.size(leaf) > 0}


def from_leaves(leaves: Leaves, template: PyTree) -> PyTree:
    """Build a tree like ``template`` (arrays or their shapes) from named arrays.

    Raises:
        ValueError: a leaf is missing, left over, or of another shape or dtype.
    """
    expected = {name: leaf for name, leaf in _named_leaves(template).items() if np.size(leaf) > 0}
    difference = sorted(expected.keys() ^ leaves.keys())
    if difference:
        holder, lacker = (
            ("this agent", "the checkpoint")
            if difference[0] in expected
            else ("the checkpoint", "this agent")
        )
        raise ValueError(f"{holder} has {difference[0]}, which {lacker} lacks")

    def restore(path: Any, leaf: Any) -> jax.Array:
        if np.size(leaf) == 0:
            return jnp.zeros(leaf.shape, leaf.dtype)
        name, is_key = _name(path), _is_key(leaf)
        wanted = jax.eval_shape(jax.random.key_data, leaf) if is_key else leaf
        saved = leaves[name]
        if (saved.shape, saved.dtype) != (wanted.shape, wanted.dtype):
            raise ValueError(
                f"{name} is {saved.dtype}{list(saved.shape)} in the checkpoint, "
                f"{wanted.dtype}{list(wanted.shape)} in this agent"
            )
        array = jnp.asarray(saved)
        return jax.random.wrap_key_data(array, impl=_key_impl(leaf)) if is_key else array

    return jax.tree_util.tree_map_with_path(restore, template)


def subtree(leaves: Leaves, prefix: str, like: PyTree) -> PyTree:
    """Take the leaves below a name out as a tree of the structure of ``like``, whatever shapes."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: leaves.get(f"{prefix}.{_name(path)}", leaf), like
    )


@final
class Checkpointer:
    """The checkpoints of one run, in a directory of their own.

    Nothing is created or changed on disk before the first `save`. Saving happens in the
    background; it removes steps that are neither among the latest nor among the best.

    Args:
        directory: Where the run's checkpoints are or will be.
        keep_latest: Number of latest steps kept.
        keep_best: Number of steps kept for their score.
    """

    def __init__(self, directory: str | PathLike[str], keep_latest: int = 2, keep_best: int = 1):
        self.directory = Path(directory).resolve()
        self._keep_latest = keep_latest
        self._keep_best = keep_best
        self._manager: ocp.CheckpointManager | None = None

    def steps(self) -> list[int]:
        """List the completed steps, the earliest first."""
        if not self.directory.is_dir():
            return []
        return sorted(
            int(entry.name)
            for entry in self.directory.iterdir()
            if entry.is_dir() and entry.name.isdigit()
        )

    def last_step(self) -> int:
        """Name the latest completed step.

        Raises:
            ValueError: there is none.
        """
        steps = self.steps()
        if not steps:
            raise ValueError(f"{self.directory} holds no checkpoint; train into it first.")
        return steps[-1]

    def save(
        self, step: int, runner: Leaves, history: Leaves, metadata: Mapping[str, Any], score: float
    ) -> None:
        """Save a step; the arrays must not change afterwards.

        Args:
            step: Updates done, larger than that of every earlier step.
            runner: The runner's leaves.
            history: The metrics of the evaluations so far.
            metadata: Anything JSON that describes the run.
            score: What "best" compares; not finite counts as worst.

        Raises:
            RuntimeError: orbax refused the step.
        """
        if self._manager is None:
            self._manager = self._open()
        items = {"runner": runner, "history": history}
        description = {
            **metadata,
            "format_version": FORMAT_VERSION,
            "digests": {name: digest(leaves) for name, leaves in items.items()},
            "leaves": {name: _describe(leaves) for name, leaves in items.items()},
        }
        saved = self._manager.save(
            step,
            args=ocp.args.Composite(
                metadata=ocp.args.JsonSave(description),
                # orbax cannot save an empty tree, which a history without evaluations is.
                **{name: ocp.args.PyTreeSave(leaves) for name, leaves in items.items() if leaves},
            ),
            metrics={"score": float(score) if np.isfinite(score) else float("-inf")},
        )
        if not saved:
            raise RuntimeError(
                f"the checkpoint of update {step} was not saved: {self.directory} already holds "
                f"updates {self.steps()}."
            )

    def read_metadata(self, step: int) -> dict[str, Any]:
        """Read the JSON description of a step.

        Raises:
            ValueError: a newer version of this package wrote it.
        """
        metadata = ocp.Checkpointer(ocp.JsonCheckpointHandler()).restore(
            self.directory / str(step) / "metadata"
        )
        if metadata["format_version"] > FORMAT_VERSION:
            raise ValueError(
                f"{self.directory / str(step)} has checkpoint format "
                f"{metadata['format_version']}; this version of jaxagents reads up to "
                f"{FORMAT_VERSION}. Install a newer one."
            )
        return metadata

    def read(self, step: int, item: str) -> Leaves:
        """Read the ``runner`` or the ``history`` of a step, and nothing else of it.

        Raises:
            ValueError: the contents are not what was saved.
        """
        metadata = self.read_metadata(step)
        if not metadata["leaves"][item]:
            return {}
        as_numpy = {
            name: ocp.RestoreArgs(restore_type=np.ndarray) for name in metadata["leaves"][item]
        }
        leaves = ocp.Checkpointer(ocp.PyTreeCheckpointHandler()).restore(
            self.directory / str(step) / item, args=ocp.args.PyTreeRestore(restore_args=as_numpy)
        )
        if digest(leaves) != metadata["digests"][item]:
            raise ValueError(
                f"the {item} in {self.directory / str(step)} is damaged: its contents do not "
                "match the digest saved with them. Restore another step."
            )
        return leaves

    def close(self) -> None:
        """Wait until everything is on disk, and let go of the directory."""
        if self._manager is not None:
            self._manager.wait_until_finished()
            self._manager.close()
            self._manager = None

    def _open(self) -> ocp.CheckpointManager:
        preserve = checkpoint_managers.AnyPreservationPolicy(
            [
                checkpoint_managers.LatestN(n=self._keep_latest),
                checkpoint_managers.BestN(get_metric_fn=_score, n=self._keep_best),
            ]
        )
        options = ocp.CheckpointManagerOptions(create=True, preservation_policy=preserve)
        return ocp.CheckpointManager(self.directory, options=options)


def digest(leaves: Leaves) -> str:
    """Hash names, types, shapes and contents, by SHA-256."""
    total = hashlib.sha256()
    for name in sorted(leaves):
        leaf = np.ascontiguousarray(leaves[name])
        total.update(f"{name} {leaf.dtype} {leaf.shape}\n".encode())
        total.update(leaf.view(np.uint8).data if leaf.ndim else leaf.tobytes())
    return total.hexdigest()


def _score(metrics: Mapping[str, float]) -> float:
    return metrics["score"]


def _describe(leaves: Leaves) -> dict[str, str]:
    return {name: f"{leaf.dtype}{list(leaf.shape)}" for name, leaf in leaves.items()}


def _named_leaves(tree: PyTree) -> dict[str, Any]:
    return {_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _key_impl(shape: jax.ShapeDtypeStruct) -> Any:
    """Read the random number generator of keys that are known by their shape only."""
    impls = []
    jax.eval_shape(lambda key: impls.append(jax.random.key_impl(key)), shape)
    return impls[0]
