"""The norm of gradients, and its bound."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxagents.compiler.gradient_norm import clip_by_global_norm, global_norm


def clip(gradients, max_norm):
    transformation = clip_by_global_norm(max_norm)
    clipped, state = transformation.update(gradients, transformation.init(gradients))
    assert state == optax.EmptyState()
    return clipped


def test_the_norm_by_hand():
    gradients = {"kernel": jnp.array([[1.0, -2.0], [2.0, 0.0]]), "bias": jnp.array(-4.0)}
    assert global_norm(gradients) == 5.0  # the root of 1 + 4 + 4 + 16
    np.testing.assert_array_equal(clip(gradients, 2.5)["kernel"], [[0.5, -1.0], [1.0, 0.0]])
    assert clip(gradients, 2.5)["bias"] == -2.0


@pytest.mark.parametrize("max_norm", [5.0, 6.0, np.inf])
def test_gradients_within_the_bound_stay_as_they_are(max_norm):
    np.testing.assert_array_equal(clip(jnp.array([3.0, 4.0]), max_norm), [3.0, 4.0])


def test_gradients_of_zero_stay_zero():
    assert global_norm(jnp.zeros(3)) == 0.0
    np.testing.assert_array_equal(clip(jnp.zeros(3), 0.5), np.zeros(3))


def test_a_network_without_parameters_has_gradients_of_norm_0():
    assert global_norm({}) == 0.0
    assert clip({}, 0.5) == {}


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_not_hidden(bad):
    assert not np.isfinite(global_norm(jnp.array([1.0, bad])))
    assert np.isnan(clip(jnp.array([1.0, bad]), 0.5)).any()


@pytest.mark.parametrize("max_norm", [0.1, 1.0, 30.0, 100.0])
def test_it_is_optaxs_up_to_rounding(max_norm):
    rngs = jax.random.split(jax.random.key(0), 3)
    shapes = [(), (7,), (30, 50)]
    gradients = [jax.random.normal(*each) for each in zip(rngs, shapes, strict=True)]
    optaxs = optax.clip_by_global_norm(max_norm)
    expected, _ = optaxs.update(gradients, optaxs.init(gradients))
    np.testing.assert_allclose(global_norm(gradients), optax.tree.norm(gradients), rtol=1e-6)
    jax.tree.map(
        lambda ours, theirs: np.testing.assert_allclose(ours, theirs, rtol=1e-6),
        clip(gradients, max_norm),
        expected,
    )


def test_gradients_keep_their_types():
    clipped = clip([jnp.ones(2, jnp.bfloat16), jnp.ones(2)], 1.0)  # of norm 2
    assert [leaf.dtype for leaf in clipped] == [jnp.bfloat16, jnp.float32]
    np.testing.assert_array_equal(jnp.concatenate(clipped), np.full(4, 0.5))
