"""Shared by all tests."""

from collections.abc import Iterator

import jax
import pytest

# Tests compile much and run little; the programs that users get run in subprocesses here.
jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture(autouse=True, scope="module")
def _release_compiled_programs() -> Iterator[None]:
    """Compiled methods keep their agents alive; let a module's agents go at its end."""
    yield
    jax.clear_caches()
