"""Configuration files that name registered environments, agents, networks and trackers."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import jaxagents as ja
from jaxagents.errors import ExperimentError
from jaxagents.experiments.config_files.file import load_config, locating_errors
from jaxagents.experiments.experiment import Experiment
from tests.experiments.test_experiment import tiny_config
from tests.ippo.test_registry import Own
from tests.networks.test_registry import Gated
from tests.plugins import forget_registrations, install, write_package
from tests.probes import Walk

FILE = """\
name: walk
env: probe/walk
env_kwargs: {limit: 3}
agent_class: own
agent:
  n_steps: 2
  batch_size: 2
  minibatch_size: 2
  rollout_length: 4
  actor_epochs: 1
  critic_epochs: 1
  eval_frequency: 1
  n_evals: 2
  progress_bar: false
  actor_network: {name: gated, sizes: [5]}
  critic_network: gated
evaluation: {n_evals: 2}
tracking:
  tensorboard: false
  others:
    table: {file: returns.txt}
"""


class Table(ja.Tracker):
    """A tracker as a user may write it."""

    def __init__(self, directory, config, file):
        self._path = directory / file
        self._name = config["name"]

    def log(self, evaluation):
        with self._path.open("a") as file:
            print(self._name, evaluation.n_updates_done, file=file)


def register_all(patch: pytest.MonkeyPatch) -> None:
    forget_registrations(patch)
    ja.register_environment("probe/walk", Walk)
    ja.register_agent("own", Own)
    ja.register_network("gated", Gated)
    ja.register_tracker("table", Table)


@pytest.fixture(autouse=True)
def _registrations(monkeypatch):
    register_all(monkeypatch)


def load(folder: Path, *changes: tuple[str, str]):
    text = f"{FILE}runs_dir: {folder / 'runs'}\n"
    for old, new in changes:
        assert text.count(old) == 1
        text = text.replace(old, new)
    (folder / "walk.yaml").write_text(text)
    return load_config(folder / "walk.yaml")


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("registered")
    with pytest.MonkeyPatch.context() as patch:
        register_all(patch)
        experiment = Experiment(load(folder))
        experiment.train()
    return experiment.directory


@pytest.mark.slow
def test_a_file_trains_what_it_names(run):
    experiment = Experiment.of_run(run)
    assert type(experiment.agent) is Own
    assert type(experiment.agent.env) is Walk
    networks = experiment.agent.networks
    assert (networks.actor.module, networks.critic.module) == (Gated(3, (5,)), Gated(None))
    assert json.loads((run / "summary.json").read_text())["training"]["n_updates_done"] == 2
    rows = (run / "returns.txt").read_text().splitlines()
    assert rows[:3] == ["walk 0", "walk 1", "walk 2"]


@pytest.mark.slow
def test_the_record_of_a_run_repeats_it(run, tmp_path):
    recorded = load_config(run / "config.yaml")
    assert recorded == dataclasses.replace(load(tmp_path), runs_dir=str(run.parent))


@pytest.mark.slow
def test_a_run_is_evaluated_replayed_and_resumed_by_its_record(run, tmp_path):
    run = shutil.copytree(run, tmp_path / "run")
    experiment = Experiment.of_run(run, ["--agent.n_steps", "3"])
    before = experiment.evaluate()
    assert np.shape(before["returns"]["mean"]) == (2,)
    assert experiment.replay(tmp_path / "replay")[0].stat().st_size > 0
    assert experiment.resume()["training"]["n_updates_done"] == 3
    assert (run / "returns.txt").read_text().splitlines()[-1] == "walk 3"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("override", "difference"),
    [
        ("--agent_class=null", "its agent is Own, and this agent's is DiscreteIPPO."),
        (
            "--agent.actor_network.sizes=[6]",
            "its actor_network is {'name': 'gated', 'sizes': [5]}, and this agent's is "
            "{'name': 'gated', 'sizes': [6]}.",
        ),
        (
            "--agent.critic_network=null",
            "its critic_network is 'gated', and this agent's is None.",
        ),
    ],
)
def test_a_run_is_resumed_by_no_other_agent_or_network(override, difference, run):
    experiment = Experiment.of_run(run, [override])
    with pytest.raises(ExperimentError, match="belongs to another agent: ") as refusal:
        experiment.resume()
    assert str(refusal.value).endswith(f"{difference} Leave it unchanged, or train a new run.")


WRONG = [  # text of the file, its replacement, the line and the error
    (
        "env: probe/walk",
        "env: probe/wolk",
        "2: env: unknown environment id 'probe/wolk'. Did you mean probe/walk? The command "
        "`jaxagents envs` lists all. Commands know ids registered in Python by --import MODULE, "
        "or by an entry point of an installed package (docs/plugins.md).",
    ),
    (
        "agent_class: own",
        "agent_class: owl",
        "4: agent_class: unknown agent 'owl'. Did you mean own? Known: own.",
    ),
    (
        "critic_network: gated",
        "critic_network: gate",
        "16: critic_network: unknown network 'gate'. Did you mean gated? Known: attention, "
        "deep_sets, gated.",
    ),
    (
        "sizes: [5]",
        "size: 5",
        "15: actor_network: gated cannot be constructed with n_outputs 3 and size=5: "
        "Gated.__init__() got an unexpected keyword argument 'size'",
    ),
    (
        "    table: ",
        "    tabel: ",
        "21: tracking.others.tabel: unknown tracker 'tabel'. Did you mean table? Known: table.",
    ),
    (
        "{file: returns.txt}",
        "returns.txt",
        "21: others.table='returns.txt' should be the tracker's arguments by name, or {} for none.",
    ),
]


@pytest.mark.parametrize(("old", "new", "message"), WRONG)
def test_a_wrong_name_is_refused_with_its_line(old, new, message, tmp_path):
    def build() -> Experiment:
        config = load(tmp_path, (old, new))
        with locating_errors(tmp_path / "walk.yaml"):
            return Experiment(config)

    with pytest.raises(ExperimentError) as refusal:
        build()
    assert str(refusal.value) == f"{tmp_path / 'walk.yaml'}:{message}"


def test_an_unknown_tracker_is_refused_before_an_environment_is_made(tmp_path, monkeypatch):
    def fail(**_):
        raise AssertionError("made")

    monkeypatch.setattr("jaxagents.experiments.experiment.make_environment", fail)
    with pytest.raises(ExperimentError, match=r"^tracking\.others\.tabel: unknown tracker"):
        Experiment(load(tmp_path, ("    table: ", "    tabel: ")))


@pytest.mark.slow
def test_a_run_is_evaluated_without_its_tracker_but_not_resumed(run, monkeypatch):
    monkeypatch.setattr("jaxagents.training.trackers.TRACKERS._registered", {})
    experiment = Experiment.of_run(run, ["--agent.n_steps", "4"])
    assert experiment.evaluate()["name"] == "walk"
    with pytest.raises(ExperimentError, match=r"^tracking\.others\.table: unknown tracker 'table'"):
        experiment.resume()


def test_a_module_in_an_experiment_is_refused_with_the_remedy(tmp_path):
    with pytest.raises(ValueError, match="cannot be saved") as refusal:
        tiny_config(tmp_path, agent={"critic_network": Gated(None)})
    assert str(refusal.value) == (
        "agent.critic_network is a Gated, which cannot be saved to a file; add it by "
        "jaxagents.register_network and give its name."
    )


PACKAGE = """
from tests.experiments.test_registered import Table
from tests.ippo.test_registry import Own
from tests.networks.test_registry import Gated
from tests.probes import Walk
"""
ENTRIES = {
    "environments": "probe/walk = walk_pack:Walk",
    "agents": "own = walk_pack:Own",
    "networks": "gated = walk_pack:Gated",
    "trackers": "table = walk_pack:Table",
}


@pytest.mark.slow
def test_a_command_trains_what_an_installed_package_brings(tmp_path):
    write_package(tmp_path, "walk-pack", PACKAGE, **ENTRIES)
    load(tmp_path)
    paths = [str(tmp_path), str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}

    def command(*arguments: str) -> str:
        words = [sys.executable, "-m", "jaxagents", *arguments]
        finished = subprocess.run(words, env=environment, capture_output=True, text=True)
        assert finished.returncode == 0, finished.stderr
        return finished.stdout

    command("train", str(tmp_path / "walk.yaml"), "--quiet")
    (run,) = (tmp_path / "runs").iterdir()
    assert (run / "returns.txt").read_text().splitlines() == ["walk 0", "walk 1", "walk 2"]
    assert "walk" in command("eval", str(run))


def test_a_broken_package_of_a_tracker_ends_the_command_before_training(tmp_path, monkeypatch):
    forget_registrations(monkeypatch)
    install(monkeypatch, tmp_path, "walk-pack", "import missing\n", **ENTRIES)
    with pytest.raises(ExperimentError) as refusal:
        Experiment(load(tmp_path))
    assert str(refusal.value) == (
        "tracking.others.table: the tracker 'table' of the package walk-pack cannot be loaded by "
        "its entry point 'walk_pack:Table' in jaxagents.trackers: ModuleNotFoundError: No module "
        "named 'missing'"
    )
