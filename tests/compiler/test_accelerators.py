"""What only suits CPUs stays off accelerators: read in programs lowered for them, without one."""

import functools
import re
from types import SimpleNamespace
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxagents as ja
from jaxagents.compiler import jit as compilation
from jaxagents.compiler import threads, tuned_forms
from jaxagents.compiler.host_calls import call_host
from jaxagents.compiler.jit import Workload, compiled_for_speed, compiled_quickly
from jaxagents.compiler.tuned_forms import scan_over_time
from tests.agents import tiny
from tests.probes import Walk

BACKENDS = {"cpu": "cpu", "cuda": "gpu", "rocm": "gpu", "tpu": "tpu"}  # jax's names, by platform
ACCELERATORS = [platform for platform in BACKENDS if platform != "cpu"]
# Square and narrow layers, minibatches of many samples, resets and truncations of many
# environments: every form that a CPU's program may have.
LAYERS = ja.Layers(hidden_sizes=(8, 8), memory_size=8)
LARGE = {"batch_size": 1024, "minibatch_size": 512, "actor_layers": LAYERS, "critic_layers": LAYERS}


def on_backend(name):
    """Let the package see another default backend."""
    return mock.patch.object(jax, "default_backend", return_value=name)


def never_unrolled(scan):
    return lambda *arguments, unroll=1, **keywords: scan(*arguments, **keywords)


@functools.cache
def traced_update(backend, plain, unrolls, **changes):
    agent = ja.DiscreteIPPO(Walk((2, 100), limit=5), None, tiny(**LARGE, **changes))
    scan = jax.lax.scan if unrolls else never_unrolled(jax.lax.scan)
    with (
        on_backend(backend),
        mock.patch.object(tuned_forms, "_is_plain", plain),
        mock.patch.object(jax.lax, "scan", scan),
    ):
        return jax.jit(agent.collect_and_learn).trace(agent.runners.shapes())


def lowered_update(platform, plain=False, unrolls=True, **changes):
    """Return the text of an update as lowered for a platform."""
    traced = traced_update(BACKENDS[platform], plain, unrolls, **changes)
    return traced.lower(lowering_platforms=(platform,)).as_text()


# Barriers of all policies' matrices; those of their samples' weights have an axis less.
TRANSPOSED = re.compile(r"optimization_barrier.*tensor<\d+x\d+x\d+xf32>")
# What each of a CPU's forms leaves in the text.
FORMS = {
    "gradients in parts": lambda text: "@differentiate" in text,
    "transposed products": lambda text: len(TRANSPOSED.findall(text)) > 0,
    "unrolled Threefry": lambda text: "shift_right" in text and "@threefry2x32" not in text,
    "resets and values in parts": lambda text: len(re.findall(r"stablehlo\.while", text)) > 6,
}


@pytest.mark.parametrize(
    "platform",
    [
        each if each == "cuda" else pytest.param(each, marks=pytest.mark.slow)
        for each in ACCELERATORS
    ],
)
def test_an_update_on_an_accelerator_is_plain_jax_to_the_letter_but_for_unrolled_loops(platform):
    update = lowered_update(platform, unrolls=False)
    assert update == lowered_update(platform, plain=True)
    assert [name for name, is_in in FORMS.items() if is_in(update)] == []
    # A condition and a call of the host both let the device wait.
    assert not re.findall(r"stablehlo\.(?:case|if|custom_call)|callback", update)


def test_the_same_update_on_a_cpu_has_every_form():
    update = lowered_update("cpu")
    assert [name for name, is_in in FORMS.items() if not is_in(update)] == []


@pytest.mark.slow
def test_a_recurrent_update_on_an_accelerator_has_none_of_the_forms_but_its_own_gradient():
    update = lowered_update("cuda", unrolls=False, recurrent="gru")
    plain = lowered_update("cuda", plain=True, recurrent="gru")
    assert update != plain  # one product for the weights of all steps: fewer kernels everywhere
    counts = [len(re.findall(r"stablehlo\.while", each)) for each in (update, plain)]
    assert counts[0] == counts[1]
    assert not re.findall(r"stablehlo\.(?:case|if|custom_call)", update)
    assert not TRANSPOSED.findall(update)
    assert "@differentiate" not in update
    assert "@threefry2x32" in update


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [1, 5, 32, 100])
def test_an_accelerator_scans_several_steps_at_once_with_the_same_results(length, reverse):
    def step(total, number):
        total = 0.9 * total + number
        return total, jnp.sin(total)

    def scan(numbers):
        return scan_over_time(step, jnp.float32(1), numbers, reverse)

    numbers = jax.random.normal(jax.random.key(0), (length,))
    with on_backend("gpu"):
        program = jax.make_jaxpr(scan)(numbers)
        found = jax.jit(scan)(numbers)
    (loop,) = [each for each in program.eqns if each.primitive.name == "scan"]
    assert loop.params["unroll"] == 16
    with on_backend("cpu"):
        expected = jax.jit(lambda numbers: scan(numbers))(numbers)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


def test_only_a_cpu_hands_its_own_buffers_to_the_host():
    def calls(backend):
        shapes = {"total": jax.ShapeDtypeStruct((), jnp.int32)}
        with on_backend(backend):  # jax lowers calls of the host for its own backend only
            program = jax.make_jaxpr(lambda x: call_host(lambda *_: None, shapes, x))(1.0)
        return set(re.findall(r"\w+_callback\b", str(program)))

    assert calls("cpu") == {"buffer_callback"}
    assert calls("gpu") == calls("tpu") == {"io_callback"}


@pytest.fixture
def options_used(monkeypatch):
    """Record the compile options of the programs that are called."""
    used, jit = [], jax.jit

    def spy(function, compiler_options=None, **keywords):
        @functools.wraps(function)
        def call(*arguments):
            used.append(compiler_options)
            return program(*arguments)

        program = jit(function, compiler_options=compiler_options, **keywords)
        return call

    monkeypatch.setattr(jax, "jit", spy)
    return used


def overlapping():
    return lambda function: compilation.with_overlapping_loops(jax.jit(function))


@pytest.mark.parametrize("decorator", [compiled_for_speed, compiled_quickly, overlapping])
def test_only_a_cpu_compiles_with_options(decorator, options_used):
    program = decorator()(lambda x: x + 1)
    for platform, backend in BACKENDS.items():
        with on_backend(backend):
            np.testing.assert_array_equal(program(jnp.ones(2)), [2, 2])
        assert (options_used[-1] is None) == (platform != "cpu")


@pytest.mark.parametrize("backend", ["gpu", "tpu"])
def test_loops_overlap_on_a_cpu_only(backend):
    large = Workload(n_samples=10**9, n_samples_at_once=1, has_independent_loops=True)
    assert compilation.overlapping_pays(large, jnp.zeros(()))
    with on_backend(backend):
        assert not compilation.overlapping_pays(large, jnp.zeros(()))


def test_arrays_on_an_accelerator_are_not_mapped_in_threads(monkeypatch):
    def in_threads(members):
        counts.append(len(members))
        return [jnp.sin(x) for (x,) in members]

    counts, numbers = [], jnp.arange(3.0)
    mapped = threads.vmap_by_members(jnp.sin, in_threads)
    np.testing.assert_allclose(jax.vmap(mapped)(numbers), jnp.sin(numbers), rtol=1e-6)
    assert counts == [3]
    somewhere = SimpleNamespace(devices=lambda: [SimpleNamespace(platform="gpu")])
    monkeypatch.setattr(threads.jnp, "asarray", lambda _: somewhere)
    np.testing.assert_allclose(jax.vmap(mapped)(numbers), jnp.sin(numbers), rtol=1e-6)
    assert counts == [3]
