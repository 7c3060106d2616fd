"""Several devices, of one process or of several, that share a population and its environments.

They are a mesh of two axes, members x environments. Inside `Devices.split` the same program runs
on each device, for its own members and its own environments. Members do not communicate. The
functions here extend sums and means from the samples of one device to all samples of a member.
Outside of `split` they do nothing, so that a single device runs an unchanged program.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Key, PRNGKeyArray, PyTree

from jaxagents.compiler.processes import as_global

# Names that no other transformation uses.
MEMBERS, ENVIRONMENTS = "jaxagents.members", "jaxagents.environments"
"""The mesh's axes."""
WHOLE = P()
"""The spec of arrays that every device has."""
DIVIDED = P(ENVIRONMENTS)
"""The spec of arrays whose first axis, of environments, is divided."""
DIVIDED_AFTER_FIRST = P(None, ENVIRONMENTS)
"""The spec of arrays whose second axis is divided."""


@final
@dataclass(frozen=True)
class Devices:
    """The devices that an agent trains on; its policies may also be applied on fewer.

    Each group of devices trains its share of the members, and divides the environments of each:
    there are as many groups as divide both members and devices.

    Args:
        n: Number of devices, of all processes together.
        n_members: Number of members that train on them; 1 for a single run.
        one_per_process: Use at most one device of each process.
    """

    n: int
    n_members: int = 1
    one_per_process: bool = False

    @property
    def n_groups(self) -> int:
        """The length of the mesh's axis of members."""
        return math.gcd(self.n, self.n_members)

    @property
    def n_per_member(self) -> int:
        """The length of the mesh's axis of environments."""
        return self.n // self.n_groups

    def check(self) -> None:
        """Raise ValueError if there are fewer, or they do not divide evenly among the processes."""
        n_processes, every = jax.process_count(), jax.devices()
        if self.n > len(every):
            raise ValueError(
                f"devices={self.n}, but jax sees {len(every)} {every[0].platform} device(s); "
                f"choose at most {len(every)}. On a CPU, XLA_FLAGS="
                f"--xla_force_host_platform_device_count={self.n} simulates more."
            )
        if self.n % n_processes:
            raise ValueError(
                f"devices={self.n} do not divide among {n_processes} processes; choose a "
                f"multiple of {n_processes}."
            )
        if self.one_per_process and self.n > n_processes:
            raise ValueError(
                f"devices={self.n}, but environments outside of JAX are divided among processes, "
                f"with a device each: choose devices={n_processes}, or start {self.n} processes."
            )

    @functools.cached_property
    def _mesh(self) -> Mesh:
        self.check()
        of_process = self.n // jax.process_count()
        by_process = [
            [each for each in jax.devices() if each.process_index == process]
            for process in range(jax.process_count())
        ]
        chosen = [device for devices in by_process for device in devices[:of_process]]
        shape = (self.n_groups, self.n_per_member)
        return Mesh(np.array(chosen).reshape(shape), (MEMBERS, ENVIRONMENTS))

    def split(
        self, function: Callable[..., PyTree], in_specs: PyTree, out_specs: PyTree
    ) -> Callable[..., PyTree]:
        """Run a function on each device, for its part of the arguments; splits cannot be nested.

        Args:
            function: Maps parts of the arguments to parts of the results.
            in_specs: How each argument is divided: `PartitionSpec`, in a prefix of its tree.
            out_specs: How each result is divided. Undivided ones must be equal on all devices.
        """
        if self.n == 1 or _is_split():
            return function
        return jax.shard_map(
            function, mesh=self._mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
        )

    def put(self, tree: PyTree, specs: PyTree) -> PyTree:
        """Move arrays to the devices, divided as the specs say: a prefix of the tree."""
        if self.n == 1:
            return tree
        shardings = jax.tree.map(
            lambda spec: NamedSharding(self._mesh, spec),
            specs,
            is_leaf=lambda node: isinstance(node, P),
        )
        if jax.process_count() == 1:
            return jax.device_put(tree, shardings)
        return jax.tree.map(
            lambda sharding, part: jax.tree.map(lambda leaf: as_global(leaf, sharding), part),
            shardings,
            tree,
        )


def of_members(specs: PyTree) -> PyTree:
    """Return the specs of stacked members, ``[members, ...]``, from those of one."""
    return jax.tree.map(
        lambda spec: P(MEMBERS, *spec), specs, is_leaf=lambda node: isinstance(node, P)
    )


def n_devices() -> int:
    """Return the number of devices that share a member's samples in the program being traced."""
    return jax.lax.axis_size(ENVIRONMENTS) if _is_split() else 1


def _is_split() -> bool:
    """True while the function of a `Devices.split` is traced."""
    try:
        jax.lax.axis_size(ENVIRONMENTS)
    except NameError:
        return False
    return True


def sum_over_devices(tree: PyTree) -> PyTree:
    """Sum over the devices."""
    return tree if n_devices() == 1 else jax.lax.psum(tree, ENVIRONMENTS)


def max_over_devices(tree: PyTree) -> PyTree:
    """Take the maximum over the devices."""
    return tree if n_devices() == 1 else jax.lax.pmax(tree, ENVIRONMENTS)


def mean_over_devices(means: PyTree, weight: Float[Array, ""]) -> tuple[PyTree, Float[Array, ""]]:
    """Average weighted means over the devices.

    Args:
        means: Means over each device's own samples.
        weight: Total weight of a device's samples.

    Returns:
        The means over all samples, and the weight of all.
    """
    if n_devices() == 1:
        return means, weight
    own = jax.tree.map(lambda mean: weight * mean, means)
    sums, total = sum_over_devices((own, weight))
    divisor = jnp.where(total > 0, total, 1)
    return jax.tree.map(lambda sum_, mean: (sum_ / divisor).astype(mean.dtype), sums, means), total


def concatenated_over_devices(tree: PyTree) -> PyTree:
    """Concatenate the devices' arrays along their first axis."""
    if n_devices() == 1:
        return tree
    return jax.lax.all_gather(tree, ENVIRONMENTS, tiled=True)


def keys_of_environments(rng: PRNGKeyArray, n_envs: int) -> Key[Array, " envs"]:
    """Split a key for this device's environments; the number of devices does not change them."""
    return part_of_device(jax.random.split(rng, n_devices() * n_envs), axis=0)


def part_of_device(array: Array, axis: int) -> Array:
    """Return this device's part of an array, along its axis of all environments."""
    n = n_devices()
    if n == 1:
        return array
    n_envs = array.shape[axis] // n
    start = jax.lax.axis_index(ENVIRONMENTS) * n_envs
    return jax.lax.dynamic_slice_in_dim(array, start, n_envs, axis)


def key_of_device(rng: PRNGKeyArray) -> PRNGKeyArray:
    """Return a key that differs between devices."""
    return rng if n_devices() == 1 else jax.random.fold_in(rng, jax.lax.axis_index(ENVIRONMENTS))
