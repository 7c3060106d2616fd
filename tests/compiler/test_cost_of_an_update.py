"""What an update costs, counted in its compiled program: no quiet machine is needed.

A change that adds work fails here. If the work is worth it, write down the new figures; if they
fall, too.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import pytest

import jaxagents as ja
from jaxagents.experiments.config_files.file import load_config
from jaxagents.experiments.make_agent import make_environment

ROOT = Path(__file__).parents[2]
# As for users; conftest turns some of it off.
AS_FOR_USERS = {
    "xla_cpu_use_fusion_emitters": True,
    "xla_disable_hlo_passes": "while-loop-invariant-code-motion,reshape-mover",
}
NO_KERNELS = {
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast"),
    *("while", "call", "conditional", "after-all", "iota", "partition-id"),
}
INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?\S+ = (?:\(.*?\)|\S+) ([a-z][a-z\-]*)\(")
TRIPS = re.compile(r'known_trip_count":\{"n":"(\d+)"')
CALLED = re.compile(
    r"(?:body|condition|to_apply|calls|branch_computations)=\{?([^,}]+(?:, %[^,}]+)*)"
)


class Costs(NamedTuple):
    """What a program has and does."""

    written: int  # kernels that are compiled
    run: int  # kernels that run, in loops as often as they do
    megaflops: float  # XLA's count, of each loop's body once
    megabytes: float  # read and written, likewise


def computations(text: str) -> Iterator[tuple[str, list[str]]]:
    """List a program's computations by name, and their instructions; the entry is named ""."""
    for block in text.split("\n\n"):
        head, *lines = block.strip("\n").split("\n")
        found = re.match(r"(ENTRY )?%?([\w.\-]+) .*\{$", head)
        if found:
            yield "" if found[1] else found[2], lines


def kernels(name: str, bodies: dict[str, list[str]], n_epochs: int) -> tuple[int, int]:
    """Count the kernels of a computation: those that are compiled, and those that run.

    An early stop, as of a loop of epochs, is not foreseen.
    """
    written = run = 0
    for line in bodies[name]:
        found = INSTRUCTION.match(line)
        if not found:
            continue
        opcode = found[1]
        if opcode in ("while", "call", "conditional"):
            n = int(TRIPS.search(line)[1]) if TRIPS.search(line) else n_epochs
            inner = [
                kernels(each.strip().lstrip("%"), bodies, n_epochs)
                for called in CALLED.findall(line)
                for each in called.split(",")
            ]
            times = n if opcode == "while" else 1
            written += sum(each[0] for each in inner)
            run += times * sum(each[1] for each in inner)
        elif opcode not in NO_KERNELS:
            written, run = written + 1, run + 1
    return written, run


def costs_of_update(path: str) -> Costs:
    config = load_config(ROOT / path)
    agent = ja.IPPO(*make_environment(config), config.agent)
    lowered = jax.jit(agent.collect_and_learn).lower(agent.runners.shapes())
    compiled = lowered.compile(AS_FOR_USERS)
    bodies = dict(computations(compiled.as_text()))
    found = compiled.cost_analysis()
    return Costs(
        *kernels("", bodies, config.agent.actor_epochs),
        megaflops=found["flops"] / 1e6,
        megabytes=found["bytes accessed"] / 1e6,
    )


def test_kernels_are_counted_as_often_as_they_run():
    def function(x):
        x = jax.lax.fori_loop(0, 5, lambda _, x: x @ x, x)
        return jax.lax.while_loop(lambda x: x[0, 0] < 9, lambda x: jnp.sin(x @ x).T, x)

    compiled = jax.jit(function).lower(jax.ShapeDtypeStruct((64, 64), "float32")).compile()
    bodies = dict(computations(compiled.as_text()))
    counted = {n: kernels("", bodies, n_epochs=n) for n in (0, 1, 3)}
    assert len({written for written, _ in counted.values()}) == 1
    of_epoch = counted[1][1] - counted[0][1]
    assert of_epoch >= 3  # the product, the sine and the condition
    assert counted[3][1] == counted[0][1] + 3 * of_epoch
    assert counted[0][1] >= 5 * 2  # the product and the counter


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="other devices have other kernels")
@pytest.mark.skipif(jax.__version__ != "0.10.2", reason="other versions have other kernels")
@pytest.mark.parametrize(
    ("path", "expected"),
    [
        pytest.param(
            "benchmarks/peers/cartpole.yaml",
            Costs(540, 10_947, 17.66, 6.335),
            marks=pytest.mark.slow,
        ),
        ("benchmarks/peers/jaxmarl_spread.yaml", Costs(530, 13_872, 171.2, 46.57)),
    ],
)
def test_an_update_costs_what_it_did(path, expected):
    for name, found, before in zip(Costs._fields, costs_of_update(path), expected, strict=True):
        assert found == pytest.approx(before, rel=0.03), name
