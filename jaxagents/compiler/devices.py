"""Several devices, of one process or of several, that share the samples of an update.

Inside `Devices.split` the same program runs on each device, for its own environments; what is
written for the samples of one device becomes a statement about all by the functions here. Outside
they do nothing, so that a single device runs the program that it always did.
"""

import functools
from collections.abc import Callable
from typing import final

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Key, PRNGKeyArray, PyTree

from jaxagents.compiler.processes import as_global

AXIS = "jaxagents.devices"  # not a name that others' transformations have
"""The mesh's axis, over which environments are divided."""
WHOLE = P()
"""The spec of arrays that every device has."""
DIVIDED = P(AXIS)
"""The spec of arrays whose first axis, of environments, is divided."""
DIVIDED_AFTER_FIRST = P(None, AXIS)
"""The spec of arrays whose second axis is divided."""


@final
class Devices:
    """The devices that an agent trains on; its policies may be applied where there are fewer.

    Args:
        n_devices: Number of devices, of all processes together.
    """

    def __init__(self, n_devices: int):
        self.n: int = n_devices

    def check(self) -> None:
        """Raise ValueError if there are not as many, or they do not divide among the processes."""
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

    @functools.cached_property
    def _mesh(self) -> Mesh:
        self.check()
        of_process = self.n // jax.process_count()
        by_process = [
            [each for each in jax.devices() if each.process_index == process]
            for process in range(jax.process_count())
        ]
        chosen = [device for devices in by_process for device in devices[:of_process]]
        return Mesh(np.array(chosen), (AXIS,))

    def split(
        self, function: Callable[..., PyTree], in_specs: PyTree, out_specs: PyTree
    ) -> Callable[..., PyTree]:
        """Run a function on each device, for its part of the arguments.

        Args:
            function: From parts of the arguments to parts of the results.
            in_specs: How each argument is divided: `PartitionSpec`, in a prefix of its tree.
            out_specs: Likewise for the results. Those that are not divided must be equal on all
                devices.
        """
        if self.n == 1:
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


def n_devices() -> int:
    """Return the number of devices that share the samples of the program being traced."""
    try:
        return jax.lax.axis_size(AXIS)
    except NameError:  # outside of `Devices.split`
        return 1


def sum_over_devices(tree: PyTree) -> PyTree:
    """Sum over the devices."""
    return tree if n_devices() == 1 else jax.lax.psum(tree, AXIS)


def max_over_devices(tree: PyTree) -> PyTree:
    """Take the maximum over the devices."""
    return tree if n_devices() == 1 else jax.lax.pmax(tree, AXIS)


def mean_over_devices(means: PyTree, weight: Float[Array, ""]) -> tuple[PyTree, Float[Array, ""]]:
    """Average weighted means over the devices.

    Args:
        means: Of each device's own samples.
        weight: Their total weight.

    Returns:
        The means over all samples, and the weight of all.
    """
    if n_devices() == 1:
        return means, weight
    sums, total = jax.lax.psum((jax.tree.map(lambda mean: weight * mean, means), weight), AXIS)
    divisor = jnp.where(total > 0, total, 1)
    return jax.tree.map(lambda sum_, mean: (sum_ / divisor).astype(mean.dtype), sums, means), total


def keys_of_environments(rng: PRNGKeyArray, n_envs: int) -> Key[Array, " envs"]:
    """Split a key for this device's environments: an environment's does not depend on devices."""
    n = n_devices()
    keys = jax.random.split(rng, n * n_envs)
    return keys if n == 1 else keys[jax.lax.axis_index(AXIS) * n_envs + jnp.arange(n_envs)]


def key_of_device(rng: PRNGKeyArray) -> PRNGKeyArray:
    """Return a key of this device's own."""
    return rng if n_devices() == 1 else jax.random.fold_in(rng, jax.lax.axis_index(AXIS))
