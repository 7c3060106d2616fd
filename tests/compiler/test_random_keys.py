"""Random keys: typed or raw, and of one generator or another."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.compiler.random_keys import (
    as_key,
    is_key,
    key_of,
    to_draw,
    to_store,
)


def test_typed_keys_are_accepted_as_they_are_and_raw_ones_wrapped():
    key = jax.random.key(3)
    assert as_key(key) is key
    for raw in (jax.random.PRNGKey(3), np.asarray(jax.random.PRNGKey(3))):
        assert as_key(raw) == key
    batch = as_key(jnp.stack([jax.random.PRNGKey(3), jax.random.PRNGKey(4)]))
    assert batch.shape == (2,)


@pytest.mark.parametrize("value", [0, None, np.zeros(2, np.int32), 1.5])
def test_anything_but_a_key_is_an_error_with_the_remedy(value):
    with pytest.raises(TypeError, match=r"is not a random key; pass jax.random.key") as error:
        as_key(value)
    assert "\n" not in str(error.value)


def test_a_key_seeds_another_generator_and_is_kept_for_its_own():
    key = jax.random.key(3)
    assert key_of(key, "threefry2x32") is key
    assert key_of(key, None) is key
    seeded = [key_of(jax.random.key(seed), "rbg") for seed in (3, 3, 4)]
    assert [str(jax.random.key_impl(each)) for each in seeded] == ["rbg"] * 3
    first, same, other = (np.asarray(jax.random.key_data(each)) for each in seeded)
    np.testing.assert_array_equal(first, same)
    assert (first != other).all()


def test_keys_to_draw_from_draw_the_same_numbers_and_convert_back():
    key = jax.random.key(3)
    fast = to_draw(key)
    assert is_key(fast)
    assert fast.dtype != key.dtype
    np.testing.assert_array_equal(jax.random.normal(fast, (5,)), jax.random.normal(key, (5,)))
    assert to_store(fast) == key
    assert to_store(key) is key
    rbg = jax.random.key(3, impl="rbg")
    assert to_draw(rbg) is rbg


def test_only_typed_keys_are_keys():
    assert is_key(jax.random.key(0))
    assert is_key(jax.eval_shape(lambda: jax.random.key(0)))
    assert not any(map(is_key, (jax.random.PRNGKey(0), 0, None)))
