"""Shared by all tests."""

import gc
import math
import os
import signal
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import jax
import pytest

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # so shells start what runs behind them
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests compile much and run little. What tracing allocates is rarely garbage.
gc.set_threshold(100_000, 20, 100)
jax.config.update("jax_disable_most_optimizations", True)
# LLVM compiles a program faster, and into fewer mappings, as one module than as up to 32.
_flags = [os.environ.get("XLA_FLAGS", ""), "--xla_cpu_parallel_codegen_split_count=1"]
if jax.__version_info__ < (0, 11):  # later versions refuse the flag
    _flags.append("--xla_cpu_use_fusion_emitters=false")
os.environ["XLA_FLAGS"] = " ".join(_flags)

# Equal programs are compiled once, by whichever worker or command needs them first. A file that
# another process is still writing is damaged for its reader, who then compiles.
if "PYTEST_XDIST_WORKER" not in os.environ:
    _compiled = tempfile.TemporaryDirectory(prefix="jaxagents-compiled-")
    os.environ["JAX_COMPILATION_CACHE_DIR"] = _compiled.name
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
jax.config.update("jax_compilation_cache_dir", os.environ["JAX_COMPILATION_CACHE_DIR"])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)

_tests = count(1)
_MAPPINGS = Path("/proc/self/maps")  # one line each; Linux permits a process 65,530
_MOST_MAPPINGS = 50_000


# Started first, so that no worker is left alone with them at the end.
_LONGEST = ("tests/test_annotations.py", "tests/test_readme.py", "tests/ippo/test_devices.py")


def pytest_xdist_auto_num_workers() -> int:
    """Start a worker more than there are cores: some tests wait for processes, or for the clock."""
    has_affinity = hasattr(os, "sched_getaffinity")
    return 1 + (len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the tests."""
    items.sort(key=lambda item: not item.nodeid.startswith(_LONGEST))


@pytest.fixture(autouse=True)
def _release_compiled_programs() -> Iterator[None]:
    """Drop compiled programs when there are many: each takes some of a process's mappings."""
    yield
    if next(_tests) % 20 == 0 and _n_mappings() > _MOST_MAPPINGS:
        jax.clear_caches()


def _n_mappings() -> float:
    return _MAPPINGS.read_bytes().count(b"\n") if _MAPPINGS.exists() else math.inf


@pytest.fixture(autouse=True)
def _own_programs(request: pytest.FixtureRequest) -> Iterator[None]:
    """Keep a test that replaces functions from running programs of equal agents, or giving any."""
    from jaxagents.ippo import frozen

    if "monkeypatch" not in request.fixturenames:
        yield
        return
    frozen._shared.clear()
    yield
    frozen._shared.clear()
