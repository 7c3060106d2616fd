"""Sums, norms and finiteness, tuned and in plain jax."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxagents.compiler import tuned_forms
from jaxagents.compiler.tuned_forms import (
    global_norm,
    nan_unless_finite,
    sum_last_axis,
)


@pytest.fixture(autouse=True, params=[False, True], ids=["tuned", "plain"])
def _is_plain(request, monkeypatch):
    monkeypatch.setattr(tuned_forms, "_is_plain", request.param)


def test_the_sum_over_the_last_axis_by_hand():
    np.testing.assert_array_equal(
        sum_last_axis(jnp.array([[1.0, 2.0, 4.0], [0.0, -1.0, 0.5]])), [7.0, -0.5]
    )
    assert sum_last_axis(jnp.array([3.0, 4.0])) == 7.0


def test_sums_over_the_last_axis_are_exact_to_float32():
    values = jax.random.normal(jax.random.key(0), (100, 5))
    np.testing.assert_allclose(sum_last_axis(values), np.sum(values, axis=-1), rtol=1e-5, atol=1e-6)


def test_the_norm_by_hand():
    gradients = {"kernel": jnp.array([[1.0, -2.0], [2.0, 0.0]]), "bias": jnp.array(-4.0)}
    assert global_norm(gradients) == 5.0  # the root of 1 + 4 + 4 + 16


def test_gradients_of_zero_have_norm_zero():
    assert global_norm(jnp.zeros(3)) == 0.0


def test_a_network_without_parameters_has_gradients_of_norm_zero():
    assert global_norm({}) == 0.0


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_the_norm_does_not_hide_nan_and_infinity(bad):
    assert not np.isfinite(global_norm(jnp.array([1.0, bad])))


def test_the_norm_is_that_of_optax_up_to_rounding():
    rngs = jax.random.split(jax.random.key(0), 3)
    shapes = [(), (7,), (30, 50)]
    gradients = [jax.random.normal(*each) for each in zip(rngs, shapes, strict=True)]
    np.testing.assert_allclose(global_norm(gradients), optax.tree.norm(gradients), rtol=1e-6)


FLOATS = {"kernel": jnp.array([[1.0, -3e38], [0.0, 2.0]]), "bias": jnp.zeros(())}


@pytest.mark.parametrize("tree", [FLOATS, {}, {"count": jnp.array([7])}], ids=str)
def test_a_tree_of_finite_floats_gives_zero(tree):
    assert nan_unless_finite(tree) == 0.0


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_tree_with_one_nan_or_infinity_gives_nan(bad):
    assert np.isnan(nan_unless_finite(FLOATS | {"bias": jnp.float32(bad), "count": jnp.array(7)}))
