"""What is raised where the device's memory is exhausted."""

import jax
import jax.numpy as jnp
import pytest

from jaxagents.compiler.platform import explaining_exhausted_memory


def test_exhausted_memory_is_one_line_that_names_what_to_lower():
    with (
        pytest.raises(MemoryError, match=r"is exhausted: .*; lower batch_size") as raised,
        explaining_exhausted_memory(),
    ):
        jnp.zeros(2**50, jnp.int8).block_until_ready()  # a petabyte
    assert "\n" not in str(raised.value)


def test_other_errors_of_jax_stay_as_they_are():
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"), explaining_exhausted_memory():
        raise jax.errors.JaxRuntimeError("INTERNAL: something else")
