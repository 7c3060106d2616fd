"""Costs of a function, counted in its trace: work, and exchanges between devices."""

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, cast

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn
from jaxtyping import PyTree

_COLLECTIVES = ("psum", "pmax", "all_gather")


class Costs(NamedTuple):
    """The costs of one run of a function."""

    flops: int = 0  # of its matrix products; products of two vectors do not count
    n_calls: int = 0  # collective operations; XLA combines those of one tree
    n_bytes: int = 0  # that a device contributes to them
    n_numbers: int = 0  # elements of the arrays that all operations write

    def __add__(self, other: "Costs") -> "Costs":  # type: ignore[override]
        return Costs(*map(sum, zip(self, other, strict=True)))

    def times(self, n: int) -> "Costs":
        """Return the costs of ``n`` runs."""
        return Costs(*(n * each for each in self))


def count_costs(
    function: Callable[..., PyTree],
    *arguments: PyTree,
    n_iterations: int,
    axis: tuple[str, int] | None = None,
) -> Costs:
    """Count a function's costs by tracing it, without running it.

    A condition costs as much as its most expensive branch. An addition and a multiplication count
    as two operations.

    Args:
        function: The function.
        arguments: Arrays, or their shapes and dtypes; with an axis, those of one device.
        n_iterations: Iterations of each ``while_loop``, which its trace does not show.
        axis: Name and size of the axis of devices over which the function communicates.
    """
    trace = jax.make_jaxpr(function, axis_env=[] if axis is None else [axis])
    return _costs(trace(*arguments).jaxpr, n_iterations)


def _costs(jaxpr: Jaxpr, n_iterations: int) -> Costs:
    total = Costs()
    for is_collective, equations in itertools.groupby(jaxpr.eqns, _is_collective):
        if is_collective:
            total += Costs(n_calls=1, n_bytes=sum(map(_bytes_read, equations)))
        else:
            total = sum((_of_equation(each, n_iterations) for each in equations), total)
    return total


def _is_collective(equation: JaxprEqn) -> bool:
    return equation.primitive.name in _COLLECTIVES


def _bytes_read(equation: JaxprEqn) -> int:
    arrays = [cast(Any, variable.aval) for variable in equation.invars]
    return sum(each.size * each.dtype.itemsize for each in arrays)


def _of_equation(equation: JaxprEqn, n_iterations: int) -> Costs:
    name = equation.primitive.name
    if name == "dot_general":
        return Costs(flops=_flops_of_product(equation), n_numbers=_numbers_written(equation))
    inner = [_costs(each, n_iterations) for each in _inner_programs(equation)]
    if not inner:
        return Costs(n_numbers=_numbers_written(equation))
    if name == "cond":
        return max(inner)
    n_times = {"scan": equation.params.get("length"), "while": n_iterations}.get(name, 1)
    return sum(inner, Costs()).times(n_times)


def _numbers_written(equation: JaxprEqn) -> int:
    return sum(getattr(variable.aval, "size", 0) for variable in equation.outvars)


def _flops_of_product(equation: JaxprEqn) -> int:
    (contracted, _), (batch, _) = equation.params["dimension_numbers"]
    left, product = cast(Any, equation.invars[0].aval), cast(Any, equation.outvars[0].aval)
    if product.ndim == len(batch):
        return 0
    return 2 * math.prod(product.shape) * math.prod(left.shape[axis] for axis in contracted)


def _inner_programs(equation: JaxprEqn) -> Iterator[Jaxpr]:
    for value in equation.params.values():
        for each in value if isinstance(value, tuple | list) else [value]:
            if isinstance(each, ClosedJaxpr):
                yield each.jaxpr
            elif isinstance(each, Jaxpr):
                yield each
