"""Parts of a batch: only those needed, or those that fit in caches."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.compiler.batch_parts import apply_where

on_cpu = pytest.mark.skipif(
    jax.default_backend() != "cpu", reason="other devices compute the whole batch"
)


def apply(needed, samples, others, part_size=32):
    """Double the samples that need it; also return how many were doubled at each call."""
    calls = []

    def double(samples):
        jax.debug.callback(lambda n: calls.append(int(n)), len(samples), ordered=True)
        return 2.0 * samples

    results = jax.jit(
        lambda needed, *values: apply_where(needed, double, *values, part_size=part_size)
    )(needed, samples, others)
    jax.effects_barrier()
    return results, calls


@on_cpu
@pytest.mark.parametrize(
    ("numbers", "n_calls"),
    [([], 0), ([0], 1), ([319], 1), ([1, 2, 16, 318], 1), (range(40), 1), (range(41), 2)],
)
def test_parts_are_computed_until_no_sample_needs_one(numbers, n_calls):
    needed = np.isin(np.arange(320), list(numbers)).reshape(10, 32)
    samples, others = np.arange(960.0).reshape(10, 32, 3), np.full((10, 32, 3), -1.0)
    results, calls = apply(needed, samples, others, part_size=40)
    np.testing.assert_array_equal(results, np.where(needed[..., None], 2 * samples, -1))
    assert calls == [40] * n_calls


@pytest.mark.parametrize("n_samples", [1, 32])
@pytest.mark.parametrize("number", [None, 0, -1])
def test_a_small_batch_is_a_single_part(n_samples, number):
    needed = np.zeros(n_samples, bool)
    if number is not None:
        needed[number] = True
    samples = np.arange(1.0, n_samples + 1)
    results, calls = apply(needed, samples, -samples)
    np.testing.assert_array_equal(results, np.where(needed, 2 * samples, -samples))
    assert calls == ([] if number is None else [n_samples])


@pytest.mark.parametrize("n_samples", [1, 31, 33, 63, 257, 300])
def test_parts_need_not_divide_the_batch(n_samples):
    samples = np.arange(1.0, n_samples + 1)
    results, _ = apply(np.ones(n_samples, bool), samples, np.zeros(n_samples))
    np.testing.assert_array_equal(results, 2 * samples)


@pytest.mark.parametrize("n_samples", [8, 80])
def test_samples_that_do_not_need_it_may_hold_nan(n_samples):
    needed = np.arange(n_samples) % 2 == 1
    samples = np.where(needed, 3.0, np.nan)
    results, _ = apply(needed, samples, np.zeros(n_samples))
    np.testing.assert_array_equal(results, np.where(needed, 6.0, 0.0))


@pytest.mark.parametrize("n_samples", [8, 80])
def test_results_have_the_types_of_the_other_samples_results(n_samples):
    needed, samples = jnp.arange(n_samples) < 3, jnp.arange(n_samples)
    others = {
        "wide": jnp.zeros(n_samples),
        "keys": jax.random.split(jax.random.key(0), n_samples),
    }

    def function(samples):
        return {"wide": samples, "keys": jax.vmap(jax.random.key)(samples)}

    results = jax.jit(lambda: apply_where(needed, function, samples, others, 32))()
    assert results["wide"].dtype == np.float32
    np.testing.assert_array_equal(results["wide"], np.where(needed, samples, 0))
    expected = jnp.concatenate([jax.vmap(jax.random.key)(jnp.arange(3)), others["keys"][3:]])
    assert jnp.all(results["keys"] == expected)


@pytest.mark.parametrize("n_samples", [8, 80])
def test_each_member_of_a_vmap_has_its_own_needs(n_samples):
    needed = np.arange(2 * n_samples).reshape(2, n_samples) % 3 == 0
    samples = np.arange(2.0 * n_samples).reshape(2, n_samples)
    results = jax.vmap(lambda *each: apply_where(each[0], jnp.negative, *each[1:], 32))(
        needed, samples, samples
    )
    np.testing.assert_array_equal(results, np.where(needed, -samples, samples))


@pytest.mark.parametrize("part_size", [1, 2])
def test_random_keys_are_results_too_outside_of_jit(part_size):
    samples, others = jax.random.split(jax.random.key(0), (2, 2))
    needed = jnp.array([False, True])
    with jax.disable_jit():
        results = apply_where(needed, lambda keys: keys, samples, others, part_size)
    assert jnp.array_equal(results, jnp.stack([others[0], samples[1]]))
