"""Calls of numpy code from compiled programs."""

from collections.abc import Callable, Mapping

import jax
import numpy as np
from jax.experimental import io_callback
from jax.experimental.buffer_callback import buffer_callback
from jaxtyping import Array

from jaxagents.compiler.devices import n_devices
from jaxagents.compiler.tuned_forms import tunes_for_cpu

Shapes = Mapping[str, jax.ShapeDtypeStruct]
HostArrays = dict[str, np.ndarray]


def call_host(
    function: Callable[[np.ndarray, HostArrays], None], shapes: Shapes, argument: Array
) -> dict[str, Array]:
    """Call a function with side effects each time the program runs.

    On a CPU it reads and writes the program's own buffers, in 3 µs a call. `io_callback` takes 50
    to 60: it copies, puts its argument on the device first, and orders calls. Two calls are in
    order only if the second needs a result of the first. Inside `Devices.split`, each process calls
    its own function, for its own device.

    Args:
        function: Fills the arrays of ``shapes``; it may use numpy only, and must not keep any of
            its arrays.
        shapes: The results by name.
        argument: Passed to the function as a numpy array.
    """
    if not tunes_for_cpu():

        def fill(argument: np.ndarray) -> HostArrays:
            results = {name: np.empty(each.shape, each.dtype) for name, each in shapes.items()}
            function(np.asarray(argument), results)
            return results

        # jax orders the calls of a single device only.
        return io_callback(fill, dict(shapes), argument, ordered=n_devices() == 1)

    def fill_in_place(context: object, results: dict, argument: object) -> None:
        del context
        function(np.asarray(argument), {name: np.asarray(each) for name, each in results.items()})

    return buffer_callback(fill_in_place, dict(shapes), has_side_effect=True)(argument)
