"""Shared by all tests."""

import os
from collections.abc import Iterator
from itertools import count

import jax
import pytest

# Tests compile much and run little.
jax.config.update("jax_disable_most_optimizations", True)
if jax.__version_info__ < (0, 11):  # later versions refuse the flag
    flags = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = f"{flags} --xla_cpu_use_fusion_emitters=false"

_tests = count(1)


@pytest.fixture(autouse=True)
def _release_compiled_programs() -> Iterator[None]:
    """Let compiled programs go now and then: a process may hold only so many pieces of code."""
    yield
    if next(_tests) % 20 == 0:
        jax.clear_caches()
