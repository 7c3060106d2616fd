"""The zoo: entries are made from runs, play as the runs do, and begin trainings."""

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

import jaxagents as ja
from jaxagents.cli import main as cli
from jaxagents.cli.zoo import _rows
from jaxagents.environments.registry import ids_of_extras
from jaxagents.errors import CheckpointError, ExperimentError
from jaxagents.evaluation import zoo as folder_of_zoo
from jaxagents.evaluation.comparison import final_return
from jaxagents.evaluation.run_files import read_records
from jaxagents.evaluation.runs import read_config, read_run
from jaxagents.evaluation.zoo import CARD, directory_of, entry_ids, predictions, read_card
from jaxagents.experiments import zoo
from jaxagents.experiments.config_files.file import load_config
from jaxagents.experiments.config_files.schema import EvaluationConfig, ExperimentConfig, SideConfig
from jaxagents.experiments.experiment import Experiment
from jaxagents.experiments.zoo import add_to_zoo, check_entry
from jaxagents.training.saved_policy import POLICY, read_structure
from tests.agents import assert_trees_equal

REPOSITORY = Path(__file__).parents[2]
SHIPPED = REPOSITORY / "zoo"
ID = "hunting/discrete"
N_EVALS = 120  # above the fewest episodes
# Everything that is normalized, and critics that observe other things than actors.
AGENT = ja.AgentConfig(
    n_steps=4,
    batch_size=4,
    minibatch_size=2,
    rollout_length=4,
    actor_epochs=1,
    critic_epochs=1,
    eval_frequency=2,
    n_evals=3,
    max_episode_steps=6,
    progress_bar=False,
    normalize_observations=True,
    normalize_values=True,
    scale_rewards=True,
    actor_layers=ja.Layers((8,)),
    critic_layers=ja.Layers((8,)),
)
CONFIG = ExperimentConfig(
    name="tiny", env=ID, agent=AGENT, evaluation=EvaluationConfig("best", N_EVALS)
)


def changed(runs: Path, agent: dict | None = None, **changes) -> ExperimentConfig:
    own = dataclasses.replace(AGENT, **(agent or {}))
    return dataclasses.replace(CONFIG, agent=own, runs_dir=str(runs), **changes)


def trained(config: ExperimentConfig) -> Path:
    experiment = Experiment(config)
    experiment.train()
    return experiment.directory


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    return trained(changed(tmp_path_factory.mktemp("zoo") / "runs"))


@pytest.fixture(scope="module")
def made(run) -> Path:
    """A folder with one entry."""
    folder = run.parents[1] / "zoo"
    add_to_zoo(run, folder=folder)
    return folder


@pytest.fixture
def in_zoo(made, monkeypatch, tmp_path) -> Path:
    """That folder as the zoo, with an empty current folder."""
    monkeypatch.setenv(folder_of_zoo.VARIABLE, str(made))
    monkeypatch.chdir(tmp_path)
    return made


@pytest.fixture
def copied(made, monkeypatch, tmp_path) -> Path:
    """A copy as the zoo, which may be damaged."""
    folder = shutil.copytree(made, tmp_path / "zoo")
    monkeypatch.setenv(folder_of_zoo.VARIABLE, str(folder))
    return folder


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def line_of_failure(arguments: list[str], capsys) -> str:
    assert cli.main(arguments) == 2
    output = capsys.readouterr()
    assert output.err.count("\n") == 1
    return output.err


# What an entry holds.


def test_an_entry_has_three_files_and_plays_as_the_end_of_its_run(run, in_zoo):
    assert {each.name for each in (in_zoo / ID).iterdir()} == {CARD, POLICY, "config.yaml"}
    source = Experiment.of_run(run).restore("last")
    copy = ja.load_policy(ID)
    expected, runner = source.restore("last")[0], copy.restore("last")[0]
    assert_trees_equal(
        (runner.actor.params, runner.critic.params),
        (expected.actor.params, expected.critic.params),
    )
    for name in ("observation", "value"):
        assert_trees_equal(getattr(runner.normalizers, name), getattr(expected.normalizers, name))
    assert_trees_equal(runner.normalizers.reward.statistics, expected.normalizers.reward.statistics)
    assert int(runner.n_updates_done) == 4
    observation = jax.random.normal(
        jax.random.key(0), source.environments.own_observation.features.shape
    )
    rng = jax.random.key(1)
    np.testing.assert_array_equal(
        copy.policy(None, observation, rng=rng), source.policy(None, observation, rng=rng)
    )
    np.testing.assert_array_equal(copy.value(None, observation), source.value(None, observation))
    assert_trees_equal(copy.eval(rng, 3), source.eval(rng, 3))


def test_a_card_says_how_the_policy_was_trained_and_what_it_earns(run, made):
    card = read_card(made / ID)
    assert (card["id"], card["env"], card["name"]) == (ID, ID, "tiny")
    assert (card["seed"], card["seeds"], card["n_updates"]) == (0, 1, 4)
    assert card["n_environment_steps"] == 64
    assert card["seconds"] > 0
    assert card["versions"]["jax"] == jax.__version__
    assert card["evaluation"] == {"n_evals": N_EVALS, "greedy": True, "seed": 1}
    experiment = Experiment.of_run(run)
    last = experiment.evaluate(experiment.evaluation_by(mode="last"))["returns"]
    assert card["returns"] == {name: last[name] for name in ("mean", "std", "ci_low", "ci_high")}
    records = read_records(run / "metrics.jsonl")
    assert card["curve"]["n_environment_steps"] == [0, 32, 64]
    np.testing.assert_allclose(
        card["curve"]["return"],
        [np.mean(each["return_mean"]) for each in records],
        rtol=1e-4,
    )


def test_the_success_of_an_evaluation_is_copied(run, tmp_path, monkeypatch):
    success = {"title": "prey caught", "kind": "share", "mean": 0.25}
    evaluate = zoo.evaluate_runner
    monkeypatch.setattr(
        zoo, "evaluate_runner", lambda *given: {**evaluate(*given), "success": success}
    )
    entry = add_to_zoo(run, folder=tmp_path)
    card = read_card(entry)
    assert card["success"] == success
    assert "25.0 %" in _rows(ID, card, 1000)[0]


def test_a_run_with_few_episodes_is_evaluated_in_100(run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "run")
    text = (copy / "config.yaml").read_text()
    (copy / "config.yaml").write_text(text.replace(f"n_evals: {N_EVALS}", "n_evals: 2"))
    entry = add_to_zoo(copy, folder=tmp_path / "zoo")
    assert read_card(entry)["evaluation"]["n_evals"] == 100
    assert read_config(entry)["evaluation"]["n_evals"] == 100


def test_the_configuration_keeps_nothing_of_the_machine(run, made):
    before, after = read_config(run), read_config(made / ID)
    assert after["evaluation"] == {**before["evaluation"], "mode": "last"}
    assert after["runs_dir"] == "runs"
    assert {**after, "evaluation": 0, "runs_dir": 0} == {**before, "evaluation": 0, "runs_dir": 0}
    assert str(run.parents[1]) not in (made / ID / "config.yaml").read_text()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ["/bin/python", "-m", "jaxagents", "train", "/me/configs/a.yaml", "--runs_dir", "/x"],
            "jaxagents train configs/a.yaml",
        ),
        (
            ["/bin/jaxagents", "train", "a.yaml", "--seed", "1", "--quiet"],
            "jaxagents train a.yaml --seed 1",
        ),
        (["/bin/python", "/me/own.py"], "python own.py"),
        ([], ""),
    ],
)
def test_a_command_is_kept_without_the_paths_of_its_machine(words, expected):
    assert zoo._command({"command": words, "folder": "/me"}) == expected


def test_a_second_entry_may_lie_below_the_first_and_is_not_touched_by_its_replacement(run, copied):
    below = add_to_zoo(run, f"{ID}/second")
    before = contents(below)
    with pytest.raises(ExperimentError, match=r"zoo:hunting/discrete exists .* --replace"):
        add_to_zoo(run)
    add_to_zoo(run, replaces=True)
    assert entry_ids() == [ID, f"{ID}/second"]
    assert contents(below) == before


def test_an_entry_does_not_exist_until_its_card_is_written(run, tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(zoo, "write_atomically", fail)
    with pytest.raises(ExperimentError, match="No space left"):
        add_to_zoo(run, folder=tmp_path)
    assert entry_ids(tmp_path) == []


@pytest.mark.parametrize("entry_id", ["../up", "/root", "a//b", "a/./b", "", "~x", "a:b"])
def test_ids_that_lead_out_of_the_zoo_are_refused(entry_id, run, tmp_path):
    with pytest.raises(ExperimentError, match="is no id"):
        add_to_zoo(run, entry_id, tmp_path)


def test_runs_that_cannot_become_entries_are_refused(run, in_zoo, tmp_path):
    unfinished = shutil.copytree(run, tmp_path / "unfinished")
    (unfinished / "summary.json").unlink()
    with pytest.raises(ExperimentError, match="has not ended; finish it by `jaxagents resume"):
        add_to_zoo(unfinished)
    with pytest.raises(ExperimentError, match="is an entry of a zoo already"):
        add_to_zoo(f"zoo:{ID}")
    with pytest.raises(ExperimentError, match="is not a population"):
        add_to_zoo(run, member=1)
    rivalling = shutil.copytree(run, tmp_path / "rivalling")
    text = (rivalling / "config.yaml").read_text()
    (rivalling / "config.yaml").write_text(
        text.replace("actors: []", "actors: [0]").replace("- random", f"- {run}")
    )
    with pytest.raises(ExperimentError, match="which only this machine has"):
        add_to_zoo(rivalling)


@pytest.mark.slow
def test_a_populations_member_becomes_an_entry(tmp_path):
    population = trained(changed(tmp_path / "runs", seeds=2))
    first = add_to_zoo(population, "first", tmp_path / "zoo")
    second = add_to_zoo(population, "second", tmp_path / "zoo", member=1)
    cards = [read_card(first), read_card(second)]
    assert [(card["seed"], card["seeds"]) for card in cards] == [(0, 2), (1, 2)]
    for index, entry in enumerate((first, second)):
        expected = Experiment.of_run(population / "members" / str(index)).restore("last")
        rng = jax.random.key(3)
        assert_trees_equal(Experiment.of_run(entry).restore().eval(rng), expected.eval(rng))
    with pytest.raises(ExperimentError, match="has 2 members, which are counted from 0"):
        add_to_zoo(population, "third", tmp_path / "zoo", member=2)


# Where the zoo is.


def test_an_unknown_id_suggests_close_ones(in_zoo):
    with pytest.raises(ExperimentError, match="Did you mean hunting/discrete"):
        directory_of("zoo:hunting/discret")
    with pytest.raises(ExperimentError, match="It has hunting/discrete"):
        directory_of("zoo:hunting")
    with pytest.raises(ExperimentError, match="is no entry of the zoo"):
        ja.load_policy("../zoo")


def test_without_a_zoo_one_line_says_what_to_do(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv(folder_of_zoo.VARIABLE, str(tmp_path / "none"))
    assert "JAXAGENTS_ZOO=" in line_of_failure(["zoo"], capsys)
    monkeypatch.delenv(folder_of_zoo.VARIABLE)
    monkeypatch.setattr(ja, "__file__", str(tmp_path / "site-packages" / "jaxagents" / "a.py"))
    error = line_of_failure(["eval", f"zoo:{ID}"], capsys)
    assert "there is no zoo" in error
    assert "Clone the repository" in error
    assert "JAXAGENTS_ZOO" in error


def test_an_entry_is_not_compared_because_its_training_is_not_there(in_zoo):
    with pytest.raises(ExperimentError, match="is a policy without its training; compare runs"):
        final_return(read_run(in_zoo / ID))


def test_the_names_of_files_are_those_that_are_written():
    assert folder_of_zoo._POLICY == POLICY


# Commands.


def test_commands_read_an_entry_and_write_nothing_into_it(in_zoo, tmp_path, capsys):
    before, name = contents(in_zoo), f"zoo:{ID}"
    assert cli.main(["eval", name, "--n-evals", "2"]) == 0
    assert "the last checkpoint: 4 updates" in capsys.readouterr().out
    assert cli.main(["export", name]) == 0
    assert cli.main(["replay", name, "--max-frames", "2"]) == 0
    assert cli.main(["replay", name, "--max-frames", "2"]) == 0
    assert contents(in_zoo) == before
    assert {each.name for each in tmp_path.iterdir()} == {"export", "replay", "replay-2"}
    assert "exists already" in line_of_failure(["export", name], capsys)


def test_an_entry_is_evaluated_as_its_card_says(in_zoo):
    experiment = Experiment.of_run(f"zoo:{ID}")
    returns, card = experiment.evaluate()["returns"], read_card(in_zoo / ID)
    assert {name: returns[name] for name in card["returns"]} == card["returns"]


def test_what_needs_the_state_of_a_training_is_refused(run, in_zoo, capsys):
    before, name = contents(in_zoo), f"zoo:{ID}"
    resumed = line_of_failure(["resume", name, "--agent.n_steps", "9"], capsys)
    assert "without the state of its training" in resumed
    assert "not its best checkpoint" in line_of_failure(["eval", name, "--mode", "best"], capsys)
    agent = ja.load_policy(ID)
    runner = agent.restore("last")[0]
    for use in (
        lambda: agent.step(runner),
        lambda: agent.train(None, CONFIG.hyperparams, runner),
        lambda: agent.act(runner, jnp.zeros(1)),
    ):
        with pytest.raises(ValueError, match="a policy without the state of its training"):
            use()
    with pytest.raises(CheckpointError, match="so it cannot be resumed"):
        agent.resume()
    with pytest.raises(ValueError, match="already holds a run"):
        agent.train(jax.random.key(0), CONFIG.hyperparams)
    assert contents(in_zoo) == before


def test_the_structure_of_an_entry_is_checked(in_zoo):
    with pytest.raises(ExperimentError, match="belongs to another"):
        Experiment.of_run(f"zoo:{ID}", ["--agent.actor_layers.hidden_sizes", "[4]"]).restore()


def test_damaged_entries_are_named_in_one_line(copied, capsys):
    policy, card = copied / ID / POLICY, copied / ID / CARD
    whole = policy.read_bytes()
    policy.write_bytes(whole[:-8])
    assert POLICY in line_of_failure(["eval", f"zoo:{ID}"], capsys)
    policy.write_bytes(whole)
    card.write_text(json.dumps({**json.loads(card.read_text()), "returns": {}}))
    assert "is no card of an entry" in line_of_failure(["zoo"], capsys)
    card.write_text("[" * 100_000)
    assert CARD in line_of_failure(["zoo"], capsys)


def test_an_export_for_other_programs_is_not_taken_for_a_policy(run, copied, capsys):
    shutil.copy(Experiment.of_run(run).export(copied / "export")[0], copied / ID / POLICY)
    assert "perhaps an export" in line_of_failure(["eval", f"zoo:{ID}"], capsys)


def test_the_table_is_printed_without_jax(made):
    code = (
        "import sys; from jaxagents.cli.main import main; main(['zoo']); "
        "print([each for each in ('jax', 'numpy', 'flax') if each in sys.modules])"
    )
    finished = subprocess.run(
        [sys.executable, "-c", code],
        env={"JAXAGENTS_ZOO": str(made), "PYTHONPATH": str(REPOSITORY), "HOME": str(made)},
        capture_output=True,
        text=True,
        check=True,
    )
    *lines, modules = finished.stdout.splitlines()
    assert modules == "[]"
    assert lines[0].split() == [
        *("return", "95", "%", "from", "to", "success", "steps", "seeds", "kB")
    ]
    assert lines[1].split()[:4] == [ID, "-", "64", "1"]
    assert [line.split()[:2] for line in lines[2:4]] == [["actor", "0"], ["actor", "1"]]
    assert lines[-1].startswith("1 in ")


def test_actions_of_the_zoo_run_from_the_command_line(run, copied, capsys):
    assert cli.main(["zoo", "add", str(run), "--id", "a/b", "--to", str(copied)]) == 0
    assert capsys.readouterr().out.strip().endswith("a/b")
    assert cli.main(["zoo", "check", "a/b", f"zoo:{ID}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4  # two actors each
    assert all("as predicted" in line for line in lines)
    card = json.loads((copied / ID / CARD).read_text())
    card["returns"]["mean"][1] += 1000.0
    (copied / ID / CARD).write_text(json.dumps(card))
    assert cli.main(["zoo", "check", ID]) == 1
    assert "actor 1: " in (output := capsys.readouterr().out)
    assert output.count("NOT as predicted") == 1


# Predictions.


def card_of(mean: float, std: float, n_evals: int, n_actors: int = 1) -> dict:
    returns = {"mean": [mean] * n_actors, "std": [std] * n_actors}
    return {"returns": returns, "evaluation": {"n_evals": n_evals}}


def test_predictions_reach_to_3_29_standard_errors_of_the_difference():
    (found,) = predictions(card_of(0.0, 5.0, 100), {"mean": [2.0], "std": [5.0]}, 100)
    assert found.high == pytest.approx(3.2905 * np.sqrt(2) * 0.5, rel=1e-4)
    assert found.low == -found.high
    assert found.holds
    (found,) = predictions(card_of(0.0, 5.0, 100), {"mean": [2.4], "std": [5.0]}, 100)
    assert not found.holds


def test_actors_share_the_probability_of_a_false_alarm():
    returns = {"mean": [0.0] * 4, "std": [1.0] * 4}
    found = predictions(card_of(0.0, 1.0, 100, 4), returns, 100)
    assert found[0].high == pytest.approx(3.6623 * np.sqrt(2) * 0.1, rel=1e-4)


def test_a_rare_failure_is_predicted_though_the_card_has_none():
    episodes = np.full(100, 500.0)
    episodes[0] = 300.0
    returns = {"mean": [float(episodes.mean())], "std": [float(episodes.std())]}
    assert predictions(card_of(500.0, 0.0, 100), returns, 100)[0].holds
    episodes[:30] = 300.0
    returns = {"mean": [float(episodes.mean())], "std": [float(episodes.std())]}
    assert not predictions(card_of(500.0, 0.0, 100), returns, 100)[0].holds


# Opponents and partners.


@pytest.mark.slow
def test_entries_play_with_each_other_and_with_runs(in_zoo, run, tmp_path, capsys):
    folder = shutil.copytree(in_zoo, tmp_path / "zoo")
    other = shutil.copytree(folder / ID, folder / "other")
    text = (other / "config.yaml").read_text()
    (other / "config.yaml").write_text(text.replace("name: tiny", "name: other"))
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv(folder_of_zoo.VARIABLE, str(folder))
        assert cli.main(["crossplay", f"zoo:{ID}", "zoo:other", "--n-evals", "2"]) == 0
    output = capsys.readouterr().out
    rows = [line.split() for line in output.splitlines()]
    assert rows[0] == ["tiny", "other"]
    assert rows[1][1:] == rows[2][1:]  # the same policy twice
    assert (tmp_path / "crossplay.png").is_file()
    text = (other / "config.yaml").read_text()
    (other / "config.yaml").write_text(text.replace("env: hunting/discrete", "env: hunting/other"))
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv(folder_of_zoo.VARIABLE, str(folder))
        error = line_of_failure(["crossplay", f"zoo:{ID}", "zoo:other", "--n-evals", "2"], capsys)
    assert "partners must play the same game" in error


def test_an_entry_is_an_opponent_by_its_name(in_zoo, tmp_path):
    side = SideConfig(actors=(0,), opponents=(f"zoo:{ID}",))
    experiment = Experiment(changed(tmp_path / "runs", side=side))
    assert experiment.agent.recorder.saved.structure["opponents"] == [f"zoo:{ID}"]


# Starting points.


@pytest.mark.slow
def test_a_training_begins_where_its_starting_point_ended_and_resumes_bit_for_bit(
    run, in_zoo, tmp_path
):
    def started(n_steps: int) -> Experiment:
        config = changed(tmp_path / "runs", {"n_steps": n_steps}, init_from=f"zoo:{ID}", seed=5)
        return Experiment(config)

    whole, stopped = started(4), started(2)
    whole.train()
    stopped.train()
    first, *_ = read_records(whole.directory / "metrics.jsonl")
    *_, last = read_records(run / "metrics.jsonl")
    assert first["n_updates_done"] == 0
    assert first["return_mean"] == last["return_mean"]  # evaluated in the same episodes

    (start,) = json.loads((whole.directory / "environment.json").read_text())
    assert start["init_from"]["run"] == f"zoo:{ID}"
    assert start["init_from"]["n_updates_done"] == 4
    assert len(start["init_from"]["sha256"]) == 64
    assert read_config(whole.directory)["init_from"] == f"zoo:{ID}"

    with pytest.MonkeyPatch.context() as environment:  # the starting point is needed no more
        environment.setenv(folder_of_zoo.VARIABLE, str(tmp_path / "none"))
        resumed = Experiment.of_run(stopped.directory, ["--agent.n_steps", "4"])
        resumed.resume()
    assert_trees_equal(
        resumed.agent.restore("last")[0].replace(n_steps=0),
        whole.agent.restore("last")[0].replace(n_steps=0),
    )
    with pytest.raises(ExperimentError, match="init_from='zoo:other', but the run began with"):
        Experiment.of_run(stopped.directory, ["--init_from", "zoo:other"]).resume()
    with pytest.raises(ExperimentError, match="but the run began with None"):
        Experiment.of_run(run, ["--init_from", f"zoo:{ID}"]).resume()


def test_a_run_is_a_starting_point_in_python(run):
    agent = Experiment.of_run(run).agent
    trained, _ = agent.restore("last")
    begun = agent.init(jax.random.key(7), CONFIG.hyperparams, start=trained)
    new = agent.init(jax.random.key(7), CONFIG.hyperparams)
    assert_trees_equal(
        (begun.actor.params, begun.critic.params), (trained.actor.params, trained.critic.params)
    )
    assert_trees_equal(begun.normalizers.observation, trained.normalizers.observation)
    assert_trees_equal(begun.normalizers.reward.statistics, trained.normalizers.reward.statistics)
    # All else is as new: optimizers, environments, keys and counts.
    assert_trees_equal(
        (begun.actor.opt_state, begun.critic.opt_state),
        (new.actor.opt_state, new.critic.opt_state),
    )
    for name in ("env_state", "observation", "rng", "n_updates_done", "learning_rate"):
        assert_trees_equal(getattr(begun, name), getattr(new, name))


@pytest.mark.slow
def test_all_members_of_a_population_begin_with_the_starting_point(run, in_zoo, tmp_path):
    directory = trained(changed(tmp_path / "runs", seeds=2, init_from=str(run)))
    best = Experiment.of_run(run).evaluate()
    for index in range(2):
        member = directory / "members" / str(index)
        first, *_ = read_records(member / "metrics.jsonl")
        assert len(first["return_mean"]) == len(best["returns"]["mean"])
        assert read_config(member)["init_from"] == str(run)
    firsts = [
        read_records(directory / "members" / str(i) / "metrics.jsonl")[0]["return_mean"]
        for i in range(2)
    ]
    assert firsts[0] == firsts[1]


@pytest.mark.slow
def test_an_actor_begins_beside_a_new_critic_and_the_run_says_so(run, in_zoo, tmp_path):
    begun = {"init_from": f"zoo:{ID}", "init_parts": ("actor",)}
    agent = {"critic_layers": ja.Layers((6,)), "freeze": ("actor.torso",)}
    directory = trained(changed(tmp_path / "runs", agent, **begun))
    first, *_ = read_records(directory / "metrics.jsonl")
    *_, last = read_records(run / "metrics.jsonl")
    assert first["return_mean"] == last["return_mean"]  # evaluated in the same episodes
    (start,) = json.loads((directory / "environment.json").read_text())
    assert start["init_from"]["parts"] == ["actor"]
    before, _ = Experiment.of_run(run).agent.restore("last")
    after, _ = Experiment.of_run(directory).agent.restore("last")
    assert_trees_equal(
        before.actor.params["params"]["torso"], after.actor.params["params"]["torso"]
    )
    with pytest.raises(ExperimentError, match=r"init_parts=\['critic'\], but the run began with"):
        Experiment.of_run(directory, ["--init_parts", "[critic]"]).resume()


def test_parts_without_a_starting_point_are_located(in_zoo):
    path = in_zoo / ID / "config.yaml"
    with pytest.raises(ExperimentError, match=r"line: init_parts=\['actor'\] of what\? Give init"):
        load_config(path, ["--init_parts", "[actor]"])
    with pytest.raises(ExperimentError, match=r"line: init_parts=\('torso',\) is unknown"):
        load_config(path, ["--init_from", "zoo:x", "--init_parts", "[torso]"])
    config = load_config(path, ["--agent.freeze", "[actor.torso, critic]"])
    assert config.agent.freeze == ("actor.torso", "critic")


@pytest.mark.parametrize(
    ("agent", "message"),
    [
        (
            {"actor_layers": ja.Layers((6,))},
            r"init_from: zoo:hunting/discrete: start does not fit this agent: actor\.\S+kernel is "
            r"\[1, 8, 4\] there and \[1, 6, 4\] here",
        ),
        ({"normalize_values": False}, r"normalizers\.value\.mean is \[1\] there and missing here"),
        (
            {"actor_layers": ja.Layers((8,), activation="relu")},
            r"actor_layers\.activation is None there and 'relu' here; choose the same",
        ),
    ],
)
def test_what_does_not_fit_is_named_before_anything_is_written(agent, message, in_zoo, tmp_path):
    config = changed(tmp_path / "runs", agent, init_from=f"zoo:{ID}")
    with pytest.raises(ExperimentError, match=message) as raised:
        Experiment(config).train()
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "runs").exists()


def test_the_option_from_sets_init_from(in_zoo, tmp_path, capsys):
    (tmp_path / "tiny.yaml").write_text((in_zoo / ID / "config.yaml").read_text())
    error = line_of_failure(["train", "tiny.yaml", "--quiet", "--from", "zoo:hunting/d"], capsys)
    assert "init_from: zoo:hunting/d: zoo:hunting/d is no entry of the zoo" in error


# The repository's own zoo.


def shipped() -> list[str]:
    return entry_ids(SHIPPED) if SHIPPED.is_dir() else []


def needs_extra(entry_id: str) -> bool:
    return read_card(SHIPPED / entry_id)["env"] in ids_of_extras()


def check_shipped(entry_id: str, monkeypatch) -> None:
    monkeypatch.setenv(folder_of_zoo.VARIABLE, str(SHIPPED))
    try:
        found = check_entry(entry_id)
    except ExperimentError as error:
        if isinstance(error.__cause__, ImportError):
            pytest.skip(str(error))
        raise
    assert all(each.holds for each in found), found


def test_every_shipped_entry_can_be_read_and_all_are_small():
    for entry_id in shipped():
        card, entry = read_card(SHIPPED / entry_id), SHIPPED / entry_id
        assert card["id"] == entry_id
        assert {each.name for each in entry.iterdir() if each.is_file()} == {
            CARD,
            POLICY,
            "config.yaml",
        }
        assert read_config(entry)["env"] == card["env"]
        read_structure(entry / POLICY)
    folders = {path.parent for path in SHIPPED.rglob("*") if path.is_file()}
    assert {folder.relative_to(SHIPPED).as_posix() for folder in folders} <= {*shipped(), "."}
    total = sum(path.stat().st_size for path in SHIPPED.rglob("*") if path.is_file())
    assert total <= 30e6


@pytest.mark.parametrize("index", [0, *(pytest.param(i, marks=pytest.mark.slow) for i in (1, 2))])
def test_the_cheapest_shipped_entries_earn_what_their_cards_say(index, monkeypatch):
    def cost(entry_id: str) -> float:
        return read_card(SHIPPED / entry_id)["seconds"]

    cheap = sorted((each for each in shipped() if not needs_extra(each)), key=cost)
    if index >= len(cheap):
        pytest.skip("the zoo has fewer entries")
    check_shipped(cheap[index], monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("entry_id", shipped())
def test_every_shipped_entry_earns_what_its_card_says(entry_id, monkeypatch):
    check_shipped(entry_id, monkeypatch)


def test_the_policies_of_an_entry_play_in_a_changed_environment(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shorter = ["--env_params.max_steps_in_episode", "3"]
    assert cli.main(["eval", "zoo:hunting/discrete", "--n-evals", "2", *shorter]) == 0
    assert "2 greedy episodes of 3.00 steps" in capsys.readouterr().out
    assert cli.main(["replay", "zoo:hunting/discrete", *shorter]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["replay"]
    with Image.open(tmp_path / "replay" / "episode-1.gif") as film:
        assert film.n_frames == 1 + 3
