import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.hyperparameters import HyperParameters, as_arrays
from jaxagents.compiler.random_keys import as_key, key_of
from jaxagents.compiler.jit import is_traced


def test_a_tree_is_traced_as_soon_as_one_leaf_is():
    seen = []
    jax.vmap(lambda gamma: seen.append(is_traced(HyperParameters(gamma=gamma))))(jnp.ones(2))
    assert seen == [True]
    assert not is_traced(as_arrays(HyperParameters()))
    assert not is_traced(None)


def test_typed_keys_are_taken_as_they_are_and_raw_ones_wrapped():
    key = jax.random.key(3)
    assert as_key(key) is key
    for raw in (jax.random.PRNGKey(3), np.asarray(jax.random.PRNGKey(3))):
        assert as_key(raw) == key
    batch = as_key(jnp.stack([jax.random.PRNGKey(3), jax.random.PRNGKey(4)]))
    assert batch.shape == (2,)


@pytest.mark.parametrize("value", [0, None, np.zeros(2, np.int32), 1.5])
def test_what_is_no_key_is_an_error_with_the_remedy(value):
    with pytest.raises(TypeError, match=r"is not a random key; pass jax.random.key") as error:
        as_key(value)
    assert "\n" not in str(error.value)


def test_a_key_seeds_another_generator_and_stays_itself_for_its_own():
    key = jax.random.key(3)
    assert key_of(key, "threefry2x32") is key
    assert key_of(key, None) is key
    seeded = [key_of(jax.random.key(seed), "rbg") for seed in (3, 3, 4)]
    assert [str(jax.random.key_impl(each)) for each in seeded] == ["rbg"] * 3
    first, same, other = (np.asarray(jax.random.key_data(each)) for each in seeded)
    np.testing.assert_array_equal(first, same)
    assert (first != other).all()
