"""Checks of this machine: each tries one thing for real.

A check imports what it tries, so that a broken library fails only the checks that need it.
"""

import contextlib
import functools
import importlib.metadata
import logging
import os
import platform
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jaxagents
from jaxagents.environments.suites.catalogue import SUITES
from jaxagents.errors import pip_install

Status = Literal["ok", "missing", "fails"]

_OF_DEVELOPERS = ("test", "lint", "docs")  # extras that no command needs
_SHARED_BYTES = 32 * 2**20  # enough for 256 environments of 84 x 84 bytes, twice over
_WORKER_TIMEOUT = 30.0  # seconds


class Finding(NamedTuple):
    """The result of a check."""

    what: str
    status: Status
    text: str  # what was found
    remedy: str  # what to do about it; empty if nothing
    is_necessary: bool  # training needs it


class Check(NamedTuple):
    """One thing to try."""

    what: str
    try_it: Callable[[], str]  # returns its finding; may raise anything
    remedy: str
    is_necessary: bool = True


class MissingError(Exception):
    """A package is not installed."""


def examine_installation(runs_dir: Path) -> Iterator[Finding]:
    """Check everything that training may need.

    Args:
        runs_dir: Folder of runs. It is left unchanged, and so is the folder of compiled programs.

    Returns:
        Each finding, as soon as it is known.
    """
    yield from map(attempt, checks(runs_dir))


def checks(runs_dir: Path) -> list[Check]:
    """List the checks, without running them."""
    return [*_packages(), *_machine(runs_dir), *_extras()]


def attempt(check: Check) -> Finding:
    """Run a check; any exception is its finding."""
    what, try_it, remedy, is_necessary = check
    status: Status = "ok"
    try:
        with _silent():
            text = try_it()
    except MissingError as error:
        status, text = "missing", str(error)
    except Exception as error:  # a broken library may raise anything
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        status, text = "fails", f"{kind}{' '.join(str(error).split())[:300]}"
    return Finding(what, status, text, "" if status == "ok" else remedy, is_necessary)


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Hide the warnings of libraries: findings say what is wrong."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _packages() -> Iterator[Check]:
    """List Python, this package, and the packages that it requires."""
    yield Check("Python", platform.python_version, "")
    try:
        required = _required("jaxagents")
    except importlib.metadata.PackageNotFoundError:
        yield Check("jaxagents", _not_installed, pip_install())
        return
    yield Check("jaxagents", lambda: f"{jaxagents.__version__} in {Path(__file__).parents[1]}", "")
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        required += [each for each in _required("jax") if each.name == "jaxlib"]
    for each in required:
        yield Check(each.name, lambda each=each: _version(each), pip_install())


def _extras() -> Iterator[Check]:
    """List the packages that single features need."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        names = importlib.metadata.metadata("jaxagents").get_all("Provides-Extra") or []
        for name in [each for each in names if each not in _OF_DEVELOPERS]:
            yield Check(
                f"extra {name}",
                functools.partial(_extra, name),
                pip_install(name),
                is_necessary=False,
            )


def _extra(name: str) -> str:
    """Return the versions of an extra's packages; trace an environment of a suite."""
    versions = [f"{each.name} {_version(each)}" for each in _required("jaxagents", name)]
    if name in SUITES:
        from jaxagents.environments.registry import describe

        describe(f"{name}/{SUITES[name].names[0]}")
    return ", ".join(versions)


def _not_installed() -> str:
    raise MissingError("not installed: only its folder was found")


def _required(package: str, extra: str = "") -> list[Any]:
    """List a package's requirements, or those of an extra, as `packaging` has them."""
    from packaging.requirements import Requirement

    every = [Requirement(each) for each in importlib.metadata.requires(package) or []]
    if not extra:
        return [each for each in every if each.marker is None or each.marker.evaluate()]
    return [each for each in every if each.marker and each.marker.evaluate({"extra": extra})]


def _version(requirement: Any) -> str:
    """Return the installed version, if it meets the requirement."""
    try:
        version = importlib.metadata.version(requirement.name)
    except importlib.metadata.PackageNotFoundError:
        raise MissingError(f"{requirement.name} is not installed") from None
    if not requirement.specifier.contains(version, prereleases=True):
        raise ValueError(f"{requirement.name} {version} is installed, {requirement} is required")
    return version


def _machine(runs_dir: Path) -> Iterator[Check]:
    platforms = os.environ.get("JAX_PLATFORMS")
    yield Check(
        "devices",
        _devices,
        f"JAX_PLATFORMS={platforms}: unset it, or install jax for that platform"
        if platforms
        else "install jax again, for this platform; JAX_PLATFORMS=cpu uses the processor alone",
    )
    yield Check("compiler", _compile, "install jax and jaxlib again, of the same version")
    yield Check(
        "calls of the host",
        _call_host,
        "calls need the processor as a device: JAX_PLATFORMS=cuda,cpu, or unset it",
    )
    cache = os.environ.get("JAX_COMPILATION_CACHE_DIR", "")
    yield Check(
        "compiled programs",
        lambda: _keep_program(cache),
        f"each command compiles again; free or replace {cache}, or name another folder in "
        "JAX_COMPILATION_CACHE_DIR",
        is_necessary=False,
    )
    folder = f"make {runs_dir} writable, or set runs_dir to another folder"
    yield Check("checkpoints", lambda: _write_checkpoint(runs_dir), folder)
    yield Check(
        "locks",
        lambda: _lock(runs_dir),
        "make sure that no two trainings write to one run, or use a file system with locks",
        is_necessary=False,
    )
    without = "set n_workers=0; only environments of Gymnasium and PettingZoo need it"
    yield Check(
        "shared memory",
        _share_memory,
        f"enlarge /dev/shm (docker run --shm-size=1g), or {without}",
        is_necessary=False,
    )
    yield Check("worker processes", _step_in_a_worker, without, is_necessary=False)


def _devices() -> str:
    import jax

    devices = jax.devices()
    text = f"{len(devices)} x {devices[0].platform} ({devices[0].device_kind})"
    if devices[0].platform == "cpu" and Path("/proc/driver/nvidia/version").exists():
        text += "; there is an NVIDIA driver, too, which jax does not use"
    return text


def _compile() -> str:
    import jax
    import jax.numpy as jnp

    total = float(jax.jit(lambda x: (x @ x).sum())(jnp.ones((8, 8))))
    if total != 8.0**3:
        raise ValueError(f"a sum of {8**3} ones is computed as {total}")
    return "a program is compiled, and its result is right"


def _call_host() -> str:
    import jax
    import jax.numpy as jnp
    import numpy as np

    from jaxagents.compiler.host_calls import call_host

    def double(number: np.ndarray, results: dict[str, np.ndarray]) -> None:
        results["double"][...] = 2 * number

    shapes = {"double": jax.ShapeDtypeStruct((), jnp.float32)}
    program = jax.jit(lambda number: call_host(double, shapes, number)["double"])
    if (result := float(program(jnp.float32(21.0)))) != 42.0:
        raise ValueError(f"the host doubles 21 to {result}")
    return "a compiled program calls Python"


def _keep_program(cache: str) -> str:
    """Compile into a folder next to the compiled programs, and find the program there."""
    import jax
    import jax.numpy as jnp
    from jax.experimental.compilation_cache import compilation_cache

    from jaxagents.compiler.jit import keeps_compiled_programs

    not_kept = "not kept, by JAX_ENABLE_COMPILATION_CACHE or JAX_COMPILATION_CACHE_DIR"
    if not cache:
        return not_kept
    with _temporary_folder(Path(cache)) as folder:
        if not keeps_compiled_programs():
            return not_kept
        settings = {
            "jax_compilation_cache_dir": str(folder),
            "jax_persistent_cache_min_compile_time_secs": 0.0,
            "jax_persistent_cache_min_entry_size_bytes": -1,
            "jax_raise_persistent_cache_errors": True,
        }
        before = {name: getattr(jax.config, name) for name in settings}
        try:
            _configure(settings)
            compilation_cache.reset_cache()
            jax.jit(lambda x: jnp.cos(x) + 41)(jnp.ones(3)).block_until_ready()
            if not any(folder.iterdir()):
                raise ValueError(f"jax keeps no program of {jax.default_backend()}")
        finally:
            _configure(before)
            compilation_cache.reset_cache()
    return f"kept in {cache}"


def _configure(settings: dict[str, Any]) -> None:
    import jax

    for name, value in settings.items():
        jax.config.update(name, value)


def _write_checkpoint(runs_dir: Path) -> str:
    import numpy as np

    from jaxagents.training.checkpoints import Checkpoints

    leaf = np.arange(3, dtype=np.float32)
    leaves = {"actor.params.probe": leaf}
    with _temporary_folder(runs_dir) as folder:
        checkpoints = Checkpoints(folder)
        checkpoints.write(1, leaves, leaves, {}, score=0.0)
        if not np.array_equal(checkpoints.read_runner(1)["actor.params.probe"], leaf):
            raise ValueError("an array that is written and read is another")
        free = shutil.disk_usage(folder).free / 2**30
    return f"can be written and read in {runs_dir}; {free:,.1f} GiB are free"


def _lock(runs_dir: Path) -> str:
    from jaxagents.errors import CheckpointError
    from jaxagents.training.checkpoint_writer import CheckpointWriter
    from jaxagents.training.checkpoints import Checkpoints

    with _temporary_folder(runs_dir) as folder:
        checkpoints = Checkpoints(folder)
        writer = CheckpointWriter(checkpoints, 1, 0, {})
        try:
            CheckpointWriter(checkpoints, 1, 0, {}).close()
        except CheckpointError:
            return "a second training is kept out of a run"
        finally:
            writer.close()
    raise ValueError(f"a second training is not kept out of a run in {runs_dir}")


def _share_memory() -> str:
    from jaxagents.environments.host.sharing import ArraySpec, map_arrays, new_memory

    layout = {"probe": ArraySpec((_SHARED_BYTES,), "uint8")}
    with new_memory(layout, n_envs=1) as file:
        first, second = (map_arrays(file.fileno(), layout, 1)["probe"] for _ in range(2))
        first[:] = 1
        if not second.all():
            raise ValueError("what one process writes, another does not read")
    return f"{_SHARED_BYTES // 2**20} MiB are shared"


def _step_in_a_worker() -> str:
    import gymnasium
    import numpy as np

    from jaxagents.environments.host.environment import HostEnvironment

    env = HostEnvironment(
        lambda: gymnasium.make("CartPole-v1"), n_workers=1, timeout=_WORKER_TIMEOUT
    )
    try:
        pool = env.make_pool(1, None, has_state=False)
        pool.reset(np.zeros(1, np.uint32))
        frame = pool.step(np.zeros((1, 1), np.int32), np.zeros(1, np.uint32))
    finally:
        env.close()
    if not np.isfinite(frame["features"]).all():
        raise ValueError(f"a worker steps CartPole to {frame['features']}")
    return f"a process of {sys.executable} steps an environment"


@contextlib.contextmanager
def _temporary_folder(place: Path) -> Iterator[Path]:
    """Create a folder in another, or where that would be created; remove it afterwards."""
    place = place.expanduser().absolute()
    existing = next(each for each in (place, *place.parents) if each.exists())
    with tempfile.TemporaryDirectory(prefix=".jaxagents-doctor-", dir=existing) as folder:
        yield Path(folder)
