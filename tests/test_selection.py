"""What few samples need is computed for few."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.selection import apply_where


def counted(calls):
    """Double samples, and count the calls."""

    def double(samples):
        jax.debug.callback(lambda n: calls.append(int(n)), len(samples["of"]), ordered=True)
        return 2.0 * samples["of"]

    return double


def apply(needed, samples, calls):
    results = jax.jit(lambda *args: apply_where(args[0], counted(calls), {"of": args[1]}))(
        needed, samples
    )
    jax.effects_barrier()
    return results


@pytest.mark.parametrize(
    ("numbers", "n_calls"), [([], 0), ([0], 1), ([31], 1), ([1, 2, 16, 31], 1), (range(5), 2)]
)
def test_a_part_is_computed_until_all_that_need_it_have_theirs(numbers, n_calls):
    # Of 4 x 8 samples a part is 4.
    needed = np.isin(np.arange(32), list(numbers)).reshape(4, 8)
    samples, calls = np.arange(96.0).reshape(4, 8, 3), []
    results = apply(needed, samples, calls)
    np.testing.assert_array_equal(results, np.where(needed[..., None], 2 * samples, 0))
    assert calls == [4] * n_calls


@pytest.mark.parametrize("n_samples", [1, 7, 13, 17])
def test_parts_need_not_divide_the_samples(n_samples):
    samples = np.arange(1.0, n_samples + 1)
    np.testing.assert_array_equal(apply(np.ones(n_samples, bool), samples, []), 2 * samples)


def test_samples_that_do_not_need_it_may_hold_anything():
    needed = np.array([False, True] * 4)
    results = apply(needed, np.where(needed, 3.0, np.nan), [])
    np.testing.assert_array_equal(results, np.where(needed, 6.0, 0.0))


def test_several_functions_share_what_is_needed():
    needed, samples = np.array([True, False, True, True]), np.arange(8.0).reshape(2, 4)
    results = jax.vmap(lambda factor, of: apply_where(needed, lambda each: factor * each, of))(
        jnp.array([10.0, 100.0]), samples
    )
    np.testing.assert_array_equal(results, [[0, 0, 20, 30], [400, 0, 600, 700]])
