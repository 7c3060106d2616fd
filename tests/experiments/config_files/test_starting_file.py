"""The configuration files that `jaxagents config` writes."""

import dataclasses
import re
from pathlib import Path

import gymnasium
import jax
import numpy as np
import pytest
import yaml

from jaxagents.cli import main as cli
from jaxagents.environments.registry import describe, registered_ids
from jaxagents.environments.time_limits import warn_of_short_episodes
from jaxagents.evaluation.run_files import read_records
from jaxagents.experiments.config_files.file import load_config
from jaxagents.experiments.config_files.measured_settings import MEASURED_SETTINGS
from jaxagents.experiments.config_files.schema import ExperimentConfig, keys_of
from jaxagents.experiments.config_files.starting_file import starting_file, suggestions_for
from jaxagents.experiments.experiment import Experiment
from jaxagents.experiments.make_agent import make_environment
from jaxagents.ippo.measured_losses import warn_of_measured_losses

CONFIGS = sorted((Path(__file__).parents[3] / "configs").glob("*.yaml"))
# Without those that would download their images and levels.
IDS = [each for each in registered_ids() if not re.search("MNIST|Sokoban", each)]
# Of each family, and with each kind of entry: arguments with choices, parameters, lists, neither;
# an argument that the id's registration chooses (Climbing), and one longer than a line (PacMan).
REPRESENTATIVES = (
    "gymnax/CartPole-v1",
    "gymnax/Reacher-misc",
    "hunting/continuous",
    "jaxmarl/MPE_simple_tag_v3",
    "jaxmarl/jaxnav",  # with arguments that are suggested
    "jaxmarl/overcooked",
    "jaxmarl/switch_riddle",
    "matrax/Climbing-stateful-v0",
)


def flat_keys(values: dict, prefix: str = "") -> set[str]:
    fields = dict(keys_of(ExperimentConfig))
    groups = [key for key in values if fields[f"{prefix}{key}"].is_group]
    nested = [flat_keys(values[key], f"{prefix}{key}.") for key in groups]
    return {f"{prefix}{key}" for key in values}.union(*nested)


def uncommented(text: str) -> str:
    """Uncomment the environment's arguments and parameters."""
    before, start, rest = text.partition("\nenv: ")
    return before + re.sub("^# (env_|  )", r"\1", start + rest, flags=re.MULTILINE)


@pytest.mark.parametrize(
    "env_id",
    [pytest.param(each, marks=() if each in REPRESENTATIVES else pytest.mark.slow) for each in IDS],
)
def test_the_file_of_every_environment_is_complete_and_can_be_read(env_id, tmp_path):
    text = starting_file(env_id)
    path = tmp_path / "start.yaml"
    path.write_text(text)
    config = load_config(path)
    assert config.env == env_id
    fields = dict(keys_of(ExperimentConfig))
    assert fields.keys() - flat_keys(yaml.safe_load(text)) <= {"env_kwargs", "env_params"}
    assert max(map(len, text.splitlines())) <= 100

    path.write_text(uncommented(text))
    env, params = make_environment(load_config(path))  # which refuses unknown names
    own_env, own_params = make_environment(config)
    assert env.n_actors == own_env.n_actors
    rules = [getattr(each, "truncation_rule", None) for each in (env, own_env)]
    assert rules[0] == rules[1]
    assert jax.tree.structure(params) == jax.tree.structure(own_params)
    for one, other in zip(jax.tree.leaves(params), jax.tree.leaves(own_params), strict=True):
        np.testing.assert_array_equal(one, other)


def test_arguments_and_parameters_are_listed_with_defaults_and_choices():
    lines = starting_file("jaxmarl/overcooked").splitlines()
    start = lines.index("# env_kwargs:")
    assert lines[start + 1 : start + 3] == [
        "#   layout: cramped_room",
        "#   # one of asymm_advantages, coord_ring, counter_circuit, cramped_room, forced_coord",
    ]
    assert "#   max_steps: 400" in lines
    assert "# env_params: {}  # this environment takes none" in lines
    lines = starting_file("hunting/discrete").splitlines()
    assert "# env_kwargs: {}  # this environment takes none" in lines
    assert lines[lines.index("# env_params:") + 3] == "#   prey_speed: 0.05"


def test_every_key_is_documented_with_its_type_and_default():
    text = " ".join(starting_file("hunting/discrete").replace("#", "").split())
    for key, field in keys_of(ExperimentConfig):
        assert len(field.meaning) >= 10, key
        assert field.meaning in text
        assert field.is_group or f"({field.type_and_default})" in text


@pytest.mark.parametrize(
    ("env_id", "expected"),
    [
        ("hunting/discrete", {"parameter_sharing": "independent", "mode": "last"}),
        ("jaxmarl/MPE_simple_tag_v3", {"parameter_sharing": "team", "mode": "last"}),
        ("jaxmarl/MPE_simple_speaker_listener_v4", {"parameter_sharing": "team"}),
        ("jaxmarl/MPE_simple_spread_v3", {}),
        ("jaxmarl/HeuristicEnemySMAX", {"recurrent": "gru"}),
        ("gymnax/MemoryChain-bsuite", {"recurrent": "gru"}),
        ("gymnax/CartPole-v1", {}),
    ],
)
def test_suggestions_follow_from_the_environment(env_id, expected):
    of_all = {"name", "env", "n_steps", "eval_frequency", "learning_rate_schedule"}
    measured = MEASURED_SETTINGS.get(env_id, {})
    suggestions = suggestions_for(describe(env_id)).items()
    named = {key.rpartition(".")[2]: each.value for key, each in suggestions if key not in measured}
    assert {name: value for name, value in named.items() if name not in of_all} == expected


# Where options have lost, classics, and of the host: with a short limit, and without any.
WARNED_OF = (
    "gymnax/Pendulum-v1",
    "gymnax/CartPole-v1",
    "gymnax/Catch-bsuite",
    "jaxmarl/MPE_simple_spread_v3",
    "jaxmarl/MPE_simple_speaker_listener_v4",
    "jaxmarl/SMAX",
    "gymnasium/Pendulum-v1",
    "gymnasium/Reach-v0",
    "gymnasium/Reach-v1",
)


class Reach(gymnasium.Env):
    """Never ends by itself."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), 0.0, False, False, {}


@pytest.mark.slow
@pytest.mark.parametrize("env_id", WARNED_OF)
@pytest.mark.filterwarnings("error")
def test_a_training_from_the_file_is_not_warned_of(env_id, tmp_path, monkeypatch):
    """Whatever its length: half of the file's is the length at which options have lost."""
    for name, limit in ("Reach-v0", 50), ("Reach-v1", None):
        spec = gymnasium.envs.registration.EnvSpec(name, Reach, max_episode_steps=limit)
        monkeypatch.setitem(gymnasium.registry, name, spec)
    path = tmp_path / "start.yaml"
    path.write_text(starting_file(env_id))
    config = load_config(path)
    for n_steps in (config.agent.n_steps, config.agent.n_steps // 2):
        agent = dataclasses.replace(config.agent, n_steps=n_steps, checkpoint_dir=None)
        experiment = Experiment(dataclasses.replace(config, agent=agent), tmp_path / "run")
        limit = experiment.agent.environments.time_limit
        warn_of_short_episodes(limit, [float(config.hyperparams.gamma)])
        warn_of_measured_losses(experiment.agent.env.name, agent, config.hyperparams)


def settings_of(path: Path):
    """Return all settings but the name, who shares parameters, and the layout."""
    config = load_config(path)
    schedule = (
        "linear" if config.agent.anneal_learning_rate else config.agent.learning_rate_schedule
    )
    agent = dataclasses.replace(
        config.agent,
        anneal_learning_rate=False,
        learning_rate_schedule=schedule,
        parameter_sharing="shared",
    )
    env_kwargs = {name: each for name, each in config.env_kwargs.items() if name != "layout"}
    return agent, config.hyperparams, config.evaluation, env_kwargs, config.env_params


@pytest.mark.slow
@pytest.mark.parametrize("env_id", MEASURED_SETTINGS)
def test_measured_settings_are_those_of_the_shipped_configurations(env_id, tmp_path):
    path = tmp_path / "start.yaml"
    path.write_text(starting_file(env_id))
    shipped = [each for each in CONFIGS if load_config(each).env == env_id]
    assert [settings_of(each) for each in shipped] == [settings_of(path)] * len(shipped) != []


def test_the_command_prints_the_file_or_writes_it_once(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["config", "hunting/discrete"]) == 0
    text = capsys.readouterr().out
    assert text == starting_file("hunting/discrete")
    assert cli.main(["config", "hunting/discrete", "--to", "mine.yaml"]) == 0
    assert capsys.readouterr().out == "jaxagents train mine.yaml\n"
    (tmp_path / "mine.yaml").write_text("mine")
    assert cli.main(["config", "hunting/discrete", "--to", "mine.yaml"]) == 2
    assert capsys.readouterr().err == (
        "jaxagents: error: the file cannot be written: [Errno 17] File exists: 'mine.yaml'\n"
    )
    assert (tmp_path / "mine.yaml").read_text() == "mine"


def test_an_unknown_environment_is_refused(capsys):
    assert cli.main(["config", "hunting/discreet"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "unknown environment id 'hunting/discreet'. Did you mean hunting/discrete?" in line


@pytest.mark.parametrize("env_id", ["gymnax/MemoryChain-bsuite", "jaxmarl/MPE_simple_tag_v3"])
def test_suggestions_fit_an_agent(env_id, tmp_path):
    path = tmp_path / "start.yaml"
    path.write_text(starting_file(env_id))
    Experiment(load_config(path))


@pytest.mark.slow
def test_the_file_trains(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["config", "hunting/discrete", "--to", "start.yaml"]) == 0
    sizes = ["n_steps=1", "rollout_length=8", "n_evals=2", "batch_size=4", "max_episode_steps=8"]
    overrides = [f"--agent.{each}" for each in sizes]
    assert cli.main(["train", "start.yaml", "--quiet", "--evaluation.n_evals=2", *overrides]) == 0
    run = tmp_path / capsys.readouterr().out.splitlines()[-1]
    assert [line["n_updates_done"] for line in read_records(run / "metrics.jsonl")] == [0, 1]
