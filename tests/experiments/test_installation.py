"""What `jaxagents doctor` finds on a machine, and on broken ones."""

import errno
import fcntl
import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from jaxagents.cli import main as cli
from jaxagents.environments.suites.catalogue import SUITES
from jaxagents.experiments.installation import Finding, attempt, checks, examine_installation

REQUIRED = importlib.metadata.requires


@pytest.fixture(scope="module")
def healthy(tmp_path_factory) -> list[Finding]:
    runs = tmp_path_factory.mktemp("healthy") / "runs"
    findings = list(examine_installation(runs))
    assert not list(runs.parent.iterdir())
    return findings


def found(findings: list[Finding], what: str) -> Finding:
    (finding,) = [each for each in findings if each.what == what]
    return finding


def broken(what: str, runs: Path) -> Finding:
    """Attempt a check that fails."""
    (check,) = [each for each in checks(runs) if each.what == what]
    finding = attempt(check)
    assert finding.status == "fails"
    assert finding.remedy
    return finding


def refuse(number: int):
    def fail(*_, **__):
        raise OSError(number, os.strerror(number))

    return fail


def test_everything_that_is_installed_works_here(healthy):
    for each in healthy:
        assert each.status == "ok" or each.what.startswith("extra "), each
    assert jax.__version__ in found(healthy, "jax").text
    assert found(healthy, "devices").text.startswith(f"{len(jax.devices())} x cpu")


def test_every_extra_for_users_is_listed_with_its_remedy(healthy):
    extras = {each.what.removeprefix("extra ") for each in healthy if "extra " in each.what}
    others = {
        "envpool",
        "pettingzoo",
        "replay",
        "minari",
        "onnx",
        "sweep",
        "mp4",
        "wandb",
        "mlflow",
    }
    assert extras == others | SUITES.keys()
    for each in healthy:
        if each.status == "missing":
            assert not each.is_necessary
            extra = each.what.removeprefix("extra ")
            assert each.remedy.startswith(f'pip install -c constraints.txt -e ".[{extra}]" in ')


def test_a_suite_that_is_installed_and_broken_fails_with_the_reason(tmp_path, monkeypatch):
    pytest.importorskip("matrax")

    def describe(env_id):
        raise TypeError(f"{env_id}: clip() got an unexpected keyword argument")

    monkeypatch.setattr("jaxagents.environments.registry.describe", describe)
    (check,) = [each for each in checks(tmp_path) if each.what == "extra matrax"]
    finding = attempt(check)
    assert (finding.status, finding.is_necessary) == ("fails", False)
    assert "matrax/Penalty-0-stateless-v0: clip() got an unexpected" in finding.text


def test_a_package_that_is_missing_or_too_old_is_named_with_its_remedy(tmp_path, monkeypatch):
    wanted = {"jaxagents": ["not-to-be-found>=2", "numpy>=999", 'tqdm>=999; extra == "more"']}
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: wanted.get(name, []))
    findings = [
        attempt(each) for each in checks(tmp_path) if each.what in ("not-to-be-found", "numpy")
    ]
    missing, old = found(findings, "not-to-be-found"), found(findings, "numpy")
    assert (missing.status, missing.is_necessary) == ("missing", True)
    remedy = "pip install -c constraints.txt -e . in the repository of jaxagents"
    assert missing.remedy == old.remedy == remedy
    assert (old.status, old.is_necessary) == ("fails", True)
    assert "numpy>=999 is required" in old.text


def test_a_folder_that_is_not_installed_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(
        importlib.metadata,
        "requires",
        lambda name: (_ for _ in ()).throw(importlib.metadata.PackageNotFoundError(name)),
    )
    (check,) = [each for each in checks(tmp_path) if each.what == "jaxagents"]
    finding = attempt(check)
    assert (finding.status, finding.is_necessary) == ("missing", True)


@pytest.mark.slow
def test_a_library_that_cannot_be_imported_fails_only_the_checks_that_need_it(
    tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    findings = list(examine_installation(tmp_path))
    assert [each.what for each in findings if each.status == "fails"] == ["worker processes"]
    finding = found(findings, "worker processes")
    assert "gymnasium" in finding.text
    assert not finding.is_necessary


@pytest.mark.parametrize("runs", ["file", "file/runs", "/proc/runs"])
def test_runs_that_cannot_be_written_are_necessary(runs, tmp_path):
    (tmp_path / "file").write_text("mine")
    finding = broken("checkpoints", tmp_path / runs)
    assert finding.is_necessary
    assert str(tmp_path / runs) in finding.remedy
    assert (tmp_path / "file").read_text() == "mine"


def test_a_folder_of_compiled_programs_that_is_a_file_is_not_necessary(tmp_path, monkeypatch):
    (tmp_path / "cache").write_text("mine")
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "cache"))
    before = jax.config.jax_compilation_cache_dir
    finding = broken("compiled programs", tmp_path)
    assert str(tmp_path / "cache") in finding.remedy
    assert not finding.is_necessary
    assert jax.config.jax_compilation_cache_dir == before


def test_a_cache_that_keeps_nothing_is_found(tmp_path, monkeypatch):
    from jax._src import compiler

    monkeypatch.setattr(compiler, "_cache_write", lambda *_, **__: None)
    assert "keeps no program" in broken("compiled programs", tmp_path).text


def test_files_that_cannot_be_locked_are_found(tmp_path, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", refuse(errno.ENOLCK))
    finding = broken("locks", tmp_path)
    assert "not kept out" in finding.text
    assert not finding.is_necessary


def test_too_little_shared_memory_is_found_before_a_write_ends_the_process(tmp_path, monkeypatch):
    reserve = os.posix_fallocate

    def reserve_little(file, offset, n_bytes):
        return refuse(errno.ENOSPC)() if n_bytes > 2**20 else reserve(file, offset, n_bytes)

    monkeypatch.setattr(os, "posix_fallocate", reserve_little)
    finding = broken("shared memory", tmp_path)
    assert "33,554,432 bytes" in finding.text
    assert "n_workers=0" in finding.remedy


def test_workers_that_cannot_be_started_are_found(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    assert "no-python" in broken("worker processes", tmp_path).text


def test_a_compiler_that_computes_wrongly_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr("jax.numpy.ones", lambda shape: jax.numpy.zeros(shape))
    finding = broken("compiler", tmp_path)
    assert "computed as 0.0" in finding.text


def test_the_command_prints_a_line_for_each_and_its_exit_status_says_if_training_works(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").write_text("mine")
    assert cli.main(["doctor"]) == 1
    output = capsys.readouterr().out
    assert "\nfails    checkpoints" in output
    assert "Training needs what fails: checkpoints." in output
    assert cli.main(["doctor", "--runs-dir", "elsewhere", "--json"]) == 0
    assert {each["status"] for each in json.loads(capsys.readouterr().out)} <= {"ok", "missing"}
    assert [each.name for each in tmp_path.iterdir()] == ["runs"]


@pytest.mark.slow  # starts a command; tests below break each check by itself
def test_a_platform_that_is_not_there_is_named_and_the_other_checks_go_on(tmp_path):
    finished = subprocess.run(
        [sys.executable, "-m", "jaxagents", "doctor"],
        cwd=tmp_path,
        env=os.environ | {"JAX_PLATFORMS": "cuda"},
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 1
    assert finished.stderr == ""
    assert "\nfails    devices" in finished.stdout
    assert "-> JAX_PLATFORMS=cuda: unset it" in finished.stdout
    assert "\nok       worker processes" in finished.stdout
