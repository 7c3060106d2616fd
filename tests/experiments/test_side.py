"""Runs of a side of an environment, from configuration files."""

import pytest

import jaxagents as ja
from jaxagents.errors import ExperimentError
from jaxagents.experiments.config_files.file import load_config

LINES = """
name: hunter
env: hunting/discrete
{side}
agent:
  n_steps: 2
  n_evals: 2
  batch_size: 4
  minibatch_size: 2
  rollout_length: 8
  actor_layers: {{hidden_sizes: [4]}}
  critic_layers: {{hidden_sizes: [4]}}
evaluation:
  n_evals: 3
tracking:
  tensorboard: false
"""


def experiment(folder, name, side=""):
    path = folder / f"{name}.yaml"
    path.write_text(LINES.format(side=side))
    return ja.Experiment(load_config(path), folder / name, progress_bar=False)


@pytest.fixture(scope="module")
def prey(tmp_path_factory):
    """A run of both actors."""
    folder = tmp_path_factory.mktemp("runs")
    experiment(folder, "prey").train()
    return folder / "prey"


@pytest.mark.slow
def test_a_run_plays_against_another_runs_policies(prey, tmp_path):
    side = f"side: {{actors: [0], opponents: [random, {prey}], past_selves_every: 1}}"
    run = experiment(tmp_path, "hunter", side)
    summary = run.train()
    assert len(summary["returns"]["mean"]) == 1
    runner, _ = run.agent.restore(mode="last")
    assert list(run.agent.environments.standings(runner.env_state))[:2] == ["random", "prey"]
    again = ja.Experiment.of_run(tmp_path / "hunter", progress_bar=False)
    assert again.evaluate()["returns"] == summary["returns"]
    assert again.replay(tmp_path / "replay")[0].stat().st_size > 1_000


@pytest.mark.parametrize(
    ("side", "message"),
    [
        ("side: {actors: [5]}", r"side: actors=\[5\] is no side of an environment with 2 actors"),
        (
            "side: {actors: [0], opponents: [random, runs/nowhere]}",
            r"there is no opponent runs/nowhere in /.*; relative paths begin in the folder "
            r"where a run was trained: .* or train or resume with --side\.opponents '\[PATH",
        ),
        ("side: {actors: [0], opponents: []}", "side: opponents is empty"),
        (
            "side: {actors: [0], past_selves_every: 0}",
            "side: past_selves.every=0 is too small; it must be at least 1",
        ),
    ],
)
def test_wrong_sides_are_one_error(side, message, tmp_path):
    with pytest.raises(ExperimentError, match=message):
        experiment(tmp_path, "wrong", side)
