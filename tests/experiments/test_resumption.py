"""What a run records when it is resumed with another configuration, and how it is repeated."""

import dataclasses
from pathlib import Path

from jaxagents.config import AgentConfig
from jaxagents.evaluation.runs import read_config
from jaxagents.experiments.config_files.file import load_config, save_config
from jaxagents.experiments.config_files.schema import (
    EvaluationConfig,
    ExperimentConfig,
    SideConfig,
)
from jaxagents.experiments.report.content import recipe
from jaxagents.experiments.run_directory import (
    config_in_force,
    keep_config,
    stretched_schedules,
    warn_of_changes,
)
from jaxagents.hyperparameters import HyperParameters, OptimizerParams

FIRST = ExperimentConfig(
    name="run",
    env="hunting/discrete",
    agent=AgentConfig(n_steps=40, learning_rate_schedule="linear"),
    hyperparams=HyperParameters(
        actor_optimizer_params=OptimizerParams(learning_rate=1e-3),
        critic_optimizer_params=OptimizerParams(learning_rate=[1e-3, 2e-3]),
    ),
)


def changed(config: ExperimentConfig = FIRST, n_steps: int = 40, **changes) -> ExperimentConfig:
    return dataclasses.replace(
        config, agent=dataclasses.replace(config.agent, n_steps=n_steps), **changes
    )


def first_run(directory: Path) -> Path:
    save_config(FIRST, directory / "config.yaml")
    return directory


def test_a_resumed_run_keeps_its_first_configuration_and_records_each_change(tmp_path):
    before = (first_run(tmp_path) / "config.yaml").read_bytes()
    keep_config(FIRST, tmp_path, 10)
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]
    longer = changed(n_steps=80)
    keep_config(longer, tmp_path, 40)
    keep_config(changed(longer, 80, env_kwargs={"n": 3}), tmp_path, 60)
    assert (tmp_path / "config.yaml").read_bytes() == before
    assert read_config(tmp_path)["env_kwargs"] == {"n": 3}
    assert load_config(config_in_force(tmp_path, 59)).agent.n_steps == 80
    assert load_config(config_in_force(tmp_path, 39)).agent.n_steps == 40
    header = (tmp_path / "config_from_60.yaml").read_text().splitlines()[0]
    assert header.endswith("In force since the run was resumed after update 60.")
    assert recipe(tmp_path) == [
        f"jaxagents train {tmp_path}/config.yaml",
        "jaxagents resume NEW_RUN --agent.n_steps 80"
        "  # unless it has ended, press Ctrl-C after update 60",
        "jaxagents resume NEW_RUN --env_kwargs '{n: 3}'",
    ]


def test_configurations_of_updates_that_are_done_anew_are_kept_but_not_in_force(tmp_path):
    first_run(tmp_path)
    keep_config(changed(n_steps=50), tmp_path, 30)
    keep_config(changed(n_steps=60), tmp_path, 20)
    keep_config(changed(n_steps=70), tmp_path, 20)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "config.yaml",
        "config_from_20.yaml",
        "config_from_20.yaml.unused",
        "config_from_30.yaml.unused",
    ]
    assert read_config(tmp_path)["agent"]["n_steps"] == 70


def test_a_best_checkpoint_of_two_tasks_is_warned_of(tmp_path, caplog):
    first_run(tmp_path)
    other_task = {"env_kwargs": {"n": 3}}
    warn_of_changes(changed(**other_task), tmp_path, 20)
    warn_of_changes(changed(env_params={"n": 3}, side=SideConfig((0,))), tmp_path, 20)
    warn_of_changes(changed(**other_task, evaluation=EvaluationConfig("last")), tmp_path, 20)
    warn_of_changes(changed(evaluation=EvaluationConfig(seed=4)), tmp_path, 20)
    advice = (
        "changed after update 20, and evaluation.mode=best chooses among checkpoints of both "
        "tasks; use --evaluation.mode last, or begin another run by: jaxagents train FILE --from "
        "RUN"
    )
    assert caplog.messages == [f"env_kwargs {advice}", f"env_params, side {advice}"]


def test_stretched_schedules_are_told_with_both_values():
    """A quarter of the old training was left, and five eighths of the new one are."""
    assert stretched_schedules(FIRST, changed(n_steps=80), 30) == (
        "agent.n_steps=80 instead of 40 stretches the schedules: after update 30 "
        "actor_optimizer_params.learning_rate is 0.000625, not 0.00025, "
        "critic_optimizer_params.learning_rate is 0.000625 and 0.00125, not 0.00025 and 0.0005"
    )
    assert not stretched_schedules(FIRST, changed(hyperparams=HyperParameters()), 30)
    constant = dataclasses.replace(FIRST.agent, learning_rate_schedule="constant")
    constant = dataclasses.replace(FIRST, agent=constant)
    assert not stretched_schedules(constant, changed(constant, 80), 30)
