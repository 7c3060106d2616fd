"""Compiled functions with their arguments, and the costs of a function from its trace."""

import itertools
import math
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, cast

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal
from jaxtyping import PyTree

_COLLECTIVES = ("psum", "pmax", "all_gather")


class Program(NamedTuple):
    """A compiled function and its arguments."""

    function: Callable[..., PyTree]
    arguments: tuple[PyTree, ...]
    compile_seconds: float  # tracing included
    flops: int | None = None  # of its matrix products, if these are most of its work

    def __call__(self) -> PyTree:
        """Run it and wait for its results."""
        return jax.block_until_ready(self.function(*self.arguments))


def compiled(function: Callable[..., PyTree], *arguments: PyTree) -> Program:
    """Compile a function for some arguments."""
    started = time.perf_counter()
    executable = jax.jit(function).lower(*arguments).compile()
    return Program(executable, arguments, time.perf_counter() - started)


def count_flops(function: Callable[..., PyTree], *arguments: PyTree) -> int:
    """Count the floating-point operations of a function's matrix products.

    An addition and a multiplication count as two; products of two vectors do not count. Of the
    branches of a condition the most expensive counts. The body of a ``while_loop`` counts once,
    because its number of iterations is unknown.

    Args:
        function: The function.
        arguments: Arrays, or their shapes and dtypes.
    """
    return _flops(jax.make_jaxpr(function)(*arguments).jaxpr)


class Communication(NamedTuple):
    """What a device exchanges with the others while it runs a function."""

    n_calls: int  # collective operations
    n_bytes: int  # that it contributes to them

    def __add__(self, other: "Communication") -> "Communication":  # type: ignore[override]
        return Communication(self.n_calls + other.n_calls, self.n_bytes + other.n_bytes)

    def times(self, n: int) -> "Communication":
        """Return that of ``n`` runs."""
        return Communication(n * self.n_calls, n * self.n_bytes)


def count_communication(
    function: Callable[..., PyTree],
    *arguments: PyTree,
    axis: str,
    n_devices: int,
    n_iterations: int,
) -> Communication:
    """Count the collective operations of a function that runs on each of several devices.

    Args:
        function: The function.
        arguments: A device's arrays, or their shapes and dtypes.
        axis: Name of the axis over which it communicates.
        n_devices: Size of that axis.
        n_iterations: Of each ``while_loop`` that communicates.
    """
    trace = jax.make_jaxpr(function, axis_env=[(axis, n_devices)])
    return _communication(trace(*arguments).jaxpr, n_iterations)


def inputs_read(function: Callable[..., PyTree], *arguments: PyTree) -> PyTree:
    """Find the arrays that a function's results depend on: its arguments' tree, of booleans."""
    jaxpr = jax.make_jaxpr(function)(*arguments).jaxpr
    needed = {variable for variable in jaxpr.outvars if not isinstance(variable, Literal)}
    for equation in reversed(jaxpr.eqns):
        if needed.intersection(equation.outvars):
            needed.update(each for each in equation.invars if not isinstance(each, Literal))
    read = [variable in needed for variable in jaxpr.invars]
    return jax.tree.unflatten(jax.tree.structure(arguments), read)


def _flops(jaxpr: Jaxpr) -> int:
    return sum(map(_flops_of_equation, jaxpr.eqns))


def _flops_of_equation(equation: JaxprEqn) -> int:
    if equation.primitive.name == "dot_general":
        (contracted, _), (batch, _) = equation.params["dimension_numbers"]
        left, product = cast(Any, equation.invars[0].aval), cast(Any, equation.outvars[0].aval)
        if product.ndim == len(batch):
            return 0
        return 2 * math.prod(product.shape) * math.prod(left.shape[axis] for axis in contracted)
    inner = [_flops(each) for each in _inner_programs(equation)]
    if equation.primitive.name == "cond":
        return max(inner)
    n_iterations = equation.params["length"] if equation.primitive.name == "scan" else 1
    return sum(inner) * n_iterations


def _communication(jaxpr: Jaxpr, n_iterations: int) -> Communication:
    total = Communication(0, 0)
    for is_collective, equations in itertools.groupby(jaxpr.eqns, _is_collective):
        if is_collective:  # XLA combines those of one tree
            total += Communication(1, sum(map(_bytes_read, equations)))
        else:
            for equation in equations:
                total += _communication_within(equation, n_iterations)
    return total


def _is_collective(equation: JaxprEqn) -> bool:
    return equation.primitive.name in _COLLECTIVES


def _bytes_read(equation: JaxprEqn) -> int:
    arrays = [cast(Any, variable.aval) for variable in equation.invars]
    return sum(each.size * each.dtype.itemsize for each in arrays)


def _communication_within(equation: JaxprEqn, n_iterations: int) -> Communication:
    name = equation.primitive.name
    inner = [_communication(each, n_iterations) for each in _inner_programs(equation)]
    if name == "cond":
        return max(inner)
    n_times = {"scan": equation.params.get("length"), "while": n_iterations}.get(name, 1)
    return sum(inner, Communication(0, 0)).times(n_times)


def _inner_programs(equation: JaxprEqn) -> Iterator[Jaxpr]:
    for value in equation.params.values():
        for each in value if isinstance(value, tuple | list) else [value]:
            if isinstance(each, ClosedJaxpr):
                yield each.jaxpr
            elif isinstance(each, Jaxpr):
                yield each
