"""The zoo: entries play as their runs do, and are left unchanged by the commands that read them."""

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
from safetensors.numpy import load_file

import jaxagents as ja
from jaxagents.cli import main as cli
from jaxagents.errors import CheckpointError, ExperimentError
from jaxagents.experiments.config_files.schema import EvaluationConfig, ExperimentConfig
from jaxagents.experiments.experiment import Experiment
from jaxagents.experiments.zoo import checking, places
from jaxagents.experiments.zoo.adding import FEWEST_EPISODES, _command_text, _curve, add_entry
from jaxagents.experiments.zoo.cards import read_card, rows_of_cards
from jaxagents.experiments.zoo.places import entry_directory, entry_ids, zoo_folder
from jaxagents.experiments.zoo.policy_files import read_policy
from tests.plugins import forget_registrations
from tests.probes import Coordination

SHIPPED = Path(ja.__file__).parents[1] / "zoo"
SHIPPED_IDS = entry_ids(SHIPPED)
CHEAPEST = sorted(
    SHIPPED_IDS, key=lambda each: (SHIPPED / each / "policy.safetensors").stat().st_size
)[:3]
ID = "probe/coordination"
AGENT = ja.AgentConfig(
    n_steps=3,
    batch_size=4,
    minibatch_size=2,
    rollout_length=4,
    actor_epochs=1,
    critic_epochs=1,
    eval_frequency=1,
    n_evals=3,
    parameter_sharing="independent",
    actor_layers=ja.Layers((8,)),
    critic_layers=ja.Layers((8,)),
    progress_bar=False,
)


def register_probe(patch: pytest.MonkeyPatch) -> None:
    forget_registrations(patch)
    ja.register_environment(ID, Coordination)


def make_run(folder: Path, **changes) -> Path:
    fields = {
        "name": "probe",
        "env": ID,
        "agent": AGENT,
        "evaluation": EvaluationConfig(n_evals=4, greedy=False),
        "runs_dir": str(folder),
        **changes,
    }
    experiment = Experiment(ExperimentConfig(**fields))
    experiment.train()
    return experiment.directory


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> list[Path]:
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        register_probe(patch)
        return [make_run(folder, seed=seed) for seed in (0, 1)]


@pytest.fixture(scope="module")
def filled(runs, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("zoo")
    with pytest.MonkeyPatch.context() as patch:
        register_probe(patch)
        for run, name in zip(runs, ("first", "second"), strict=True):
            add_entry(run, f"{ID}/{name}", folder)
    return folder


@pytest.fixture
def zoo(filled, tmp_path, monkeypatch) -> Path:
    """Let the zoo be a copy of the filled one, and the current folder an empty one."""
    register_probe(monkeypatch)
    folder = shutil.copytree(filled, tmp_path / "zoo")
    monkeypatch.setenv(places.VARIABLE, str(folder))
    (tmp_path / "current").mkdir()
    monkeypatch.chdir(tmp_path / "current")
    return folder


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def fail(arguments: list[str], capsys) -> str:
    assert cli.main(arguments) == 2
    return capsys.readouterr().err


def test_an_entry_chooses_the_actions_and_estimates_the_values_of_its_run(zoo, runs):
    entry, run = ja.load_policy(f"{ID}/first"), Experiment.of_run(runs[0]).restore("last")
    observations = jax.random.normal(jax.random.key(0), (20, 2, 3))
    for observation in observations:
        for rng in (None, jax.random.key(1)):
            chosen, expected = (each.policy(None, observation, rng=rng) for each in (entry, run))
            np.testing.assert_array_equal(chosen, expected)
        values, expected = (each.value(None, observation) for each in (entry, run))
        np.testing.assert_array_equal(values, expected)


def test_an_entry_has_the_parameters_of_the_last_policy_and_nothing_else(zoo, runs):
    directory = zoo / ID / "first"
    assert {path.name for path in directory.iterdir()} == {
        places.CARD,
        places.POLICY,
        "config.yaml",
    }
    last = max((runs[0] / "checkpoints").glob("[0-9]*"), key=lambda path: int(path.name))
    tensors = load_file(directory / places.POLICY)
    with np.load(last / "state.npz") as state:
        wanted = ("actor.params.", "critic.params.", "normalizers.")
        assert tensors.keys() == {name for name in state if name.startswith(wanted)}
        assert any(name.startswith("normalizers.") for name in tensors)
        for name, values in tensors.items():
            assert values.dtype == np.float32
            np.testing.assert_array_equal(values, state[name])


def test_a_run_is_loaded_by_its_directory(runs, monkeypatch):
    register_probe(monkeypatch)
    assert ja.load_policy(runs[0]).policy(None, jnp.zeros((2, 3))).shape == (2,)
    assert ja.load_policy(str(runs[0])).policy(None, jnp.zeros((2, 3))).shape == (2,)


def test_the_card_says_how_the_policy_was_trained_and_evaluated(zoo, runs):
    card = read_card(zoo, f"{ID}/first").content
    assert (card["id"], card["environment"], card["seed"]) == (f"{ID}/first", ID, 0)
    assert card["n_environment_steps"] == 3 * AGENT.steps_per_update
    assert card["evaluation"] == {"greedy": False, "n_evals": FEWEST_EPISODES, "seed": 1}
    assert card["versions"]["jax"] == jax.__version__
    assert card["training_seconds"] > 0
    assert "success" not in card
    steps = [each * AGENT.steps_per_update for each in range(4)]
    assert card["curve"]["n_environment_steps"] == steps
    returns = np.array([card["returns"][name] for name in ("ci_low", "mean", "ci_high")])
    assert returns.shape == (3, 2)
    assert (np.diff(returns, axis=0) >= 0).all()


def test_the_card_and_the_table_say_how_often_the_final_policy_succeeds(zoo, runs, tmp_path):
    class Judged(Coordination):
        success = ja.Success("fit", "actions that fit")

        def step_env(self, rng, state, action, params):
            *results, info = super().step_env(rng, state, action, params)
            return *results, {**info, "fit": jnp.float32(0.75)}

    ja.register_environment("probe/judged", Judged)
    run = make_run(tmp_path / "runs", env="probe/judged")
    card = read_card(add_entry(run, folder=zoo).parents[1], "probe/judged")
    success = card.content["success"]
    assert (success["mean"], success["n_episodes"]) == (0.75, FEWEST_EPISODES)
    assert rows_of_cards([card])[1][2] == "actions that fit: 75.0 %"


def test_a_long_curve_is_thinned_and_keeps_its_ends():
    records = [{"n_environment_steps": i, "return_mean": [i, i + 2]} for i in range(1000)]
    curve = _curve(records)
    assert len(curve["n_environment_steps"]) == len(curve["return_mean"]) == 40
    assert curve["n_environment_steps"][::39] == [0, 999]
    assert curve["return_mean"][::39] == [1.0, 1000.0]


def test_a_command_is_shown_as_users_type_it():
    words = ["/env/bin/python", "-m", "jaxagents", "train", "a b.yaml"]
    assert _command_text(words) == "jaxagents train 'a b.yaml'"
    assert _command_text(["/env/bin/python", "/env/bin/jaxagents", "demo"]) == "jaxagents demo"


def test_the_table_lists_the_entries_without_jax(zoo, filled):
    code = (
        "import sys; from jaxagents.cli.main import main; main(['zoo']); main(['zoo', 'list']);"
        "print('jax' in sys.modules)"
    )
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    titles, first, second = output[:3]
    assert titles.split()[0] == "id"
    assert first.startswith(f"{ID}/first ")
    assert second.startswith(f"{ID}/second ")
    assert "48" in first.split()
    assert output[3:] == [titles, first, second, "False"]


def test_commands_play_an_entry_and_write_nothing_into_the_zoo(zoo, capsys):
    before = contents(zoo)
    entry = f"zoo:{ID}/first"
    assert cli.main(["eval", entry, "--n-evals", "3"]) == 0
    assert "the last checkpoint: 3 updates" in capsys.readouterr().out
    assert cli.main(["replay", entry]) == 0
    assert cli.main(["export", entry]) == 0
    assert cli.main(["crossplay", entry, f"zoo:{ID}/second", "--n-evals", "3"]) == 0
    assert "second" in capsys.readouterr().out
    assert contents(zoo) == before
    written = {path.name for path in Path().iterdir()}
    assert written == {"replay", "export", "crossplay.png", "crossplay.csv"}


def test_an_entry_has_only_the_last_policy(zoo, capsys):
    error = fail(["eval", f"zoo:{ID}/first", "--mode", "best"], capsys)
    assert "it has only the last policy" in error
    assert "holds no checkpoint" in fail(["resume", f"zoo:{ID}/first"], capsys)


def test_an_unknown_id_suggests_close_ones(zoo, capsys):
    error = fail(["eval", f"zoo:{ID}/frist"], capsys)
    assert f"Did you mean {ID}/first" in error
    assert "jaxagents zoo" in error
    with pytest.raises(ExperimentError, match=r"has no '\.\./zoo/probe"):
        entry_directory(f"../zoo/{ID}/first")
    with pytest.raises(ExperimentError, match="has no 'runs/nothing'"):
        ja.load_policy("runs/nothing")
    with pytest.raises(ExperimentError, match="is not a run"):
        ja.load_policy(Path("runs/nothing"))


def test_without_a_zoo_one_error_says_what_to_do(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv(places.VARIABLE, str(tmp_path / "none"))
    assert f"set {places.VARIABLE}" in fail(["eval", "zoo:any"], capsys)
    monkeypatch.delenv(places.VARIABLE)
    monkeypatch.setattr(ja, "__file__", str(tmp_path / "site-packages" / "jaxagents" / "x.py"))
    error = fail(["zoo"], capsys)
    assert error.count("\n") == 1
    assert f"not installed from its repository, which has it; set {places.VARIABLE}" in error


def test_the_zoo_of_a_repository_is_its_folder(tmp_path, monkeypatch):
    monkeypatch.delenv(places.VARIABLE, raising=False)
    monkeypatch.setattr(ja, "__file__", str(tmp_path / "jaxagents" / "__init__.py"))
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "zoo").mkdir()
    assert zoo_folder() == tmp_path / "zoo"


def test_an_entry_is_replaced_only_if_asked_for(zoo, runs, capsys):
    before = contents(zoo)
    command = ["zoo", "add", str(runs[1]), "--id", f"{ID}/first", "--to", str(zoo)]
    assert "exists already; give --replace" in fail(command, capsys)
    assert contents(zoo) == before
    assert cli.main([*command, "--replace"]) == 0
    assert read_card(zoo, f"{ID}/first").content["seed"] == 1
    assert {path.name for path in (zoo / ID).iterdir()} == {"first", "second"}


@pytest.mark.parametrize(
    ("entry_id", "message"),
    [
        (ID, "one lies within the other"),
        (f"{ID}/first/more", "one lies within the other"),
        ("../outside", "cannot be an id"),
        ("/outside", "cannot be an id"),
        (".hidden", "cannot be an id"),
        ("a//b", "cannot be an id"),
    ],
)
def test_ids_that_cannot_be_added_are_refused(zoo, runs, entry_id, message):
    with pytest.raises(ExperimentError, match=message):
        add_entry(runs[0], entry_id, zoo)


def test_runs_that_cannot_be_added_are_refused(zoo, runs, tmp_path):
    with pytest.raises(ExperimentError, match="is an entry of the zoo already"):
        add_entry(zoo / ID / "first", "another", zoo)
    unfinished = shutil.copytree(runs[0], tmp_path / "unfinished")
    (unfinished / "summary.json").unlink()
    with pytest.raises(ExperimentError, match="is unfinished; finish it by: jaxagents resume"):
        add_entry(unfinished, "another", zoo)
    population = shutil.copytree(runs[0], tmp_path / "population")
    config = population / "config.yaml"
    config.write_text(config.read_text().replace("seeds: 1", "seeds: 2"))
    with pytest.raises(ExperimentError, match=r"is a population; add one member, .*members/0"):
        add_entry(population, "another", zoo)
    assert "another" not in entry_ids(zoo)


def test_damaged_entries_are_named(zoo, runs):
    directory = zoo / ID / "first"
    agent = Experiment.of_run(directory).agent
    template = agent.runners.shapes()
    for content in (b"", b"no tensors"):
        (directory / places.POLICY).write_bytes(content)
        with pytest.raises(CheckpointError, match="cannot be read"):
            read_policy(directory / places.POLICY, template)
    Experiment.of_run(runs[0]).export(directory / "export")
    with pytest.raises(CheckpointError, match="is no policy of the zoo"):
        read_policy(directory / "export" / places.POLICY, template)
    wider = dataclasses.replace(AGENT, actor_layers=ja.Layers((9,)))
    other = ja.DiscreteIPPO(Coordination(), None, wider)
    with pytest.raises(CheckpointError, match="belongs to another agent"):
        read_policy(zoo / ID / "second" / places.POLICY, other.runners.shapes())
    card = directory / places.CARD
    for content, message in (("{", "cannot be read"), ("{}", "lacks 'returns'")):
        card.write_text(content)
        with pytest.raises(ExperimentError, match=message):
            read_card(zoo, f"{ID}/first")


def test_check_finds_a_return_that_does_not_hold(zoo, capsys):
    assert cli.main(["zoo", "check", f"{ID}/first"]) == 0
    assert capsys.readouterr().out.startswith(f"{ID}/first: agrees: ")
    path = zoo / ID / "first" / places.CARD
    card = json.loads(path.read_text())
    card["returns"]["mean"][1] += 0.9
    path.write_text(json.dumps(card))
    assert cli.main(["zoo", "check"]) == 1
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{ID}/first: DIFFERS: ")
    assert second.startswith(f"{ID}/second: agrees: ")


def test_the_interval_is_of_the_difference_of_two_means():
    # Standard errors of 3 / sqrt(100): the difference's is sqrt(2) * 0.3, of which 3.29 are 1.396.
    inside, outside = (checking.compared_returns(0.0, 3.0, now, 3.0, 100) for now in (1.39, 1.41))
    assert (inside.agrees, outside.agrees) == (True, False)
    assert inside.bound == pytest.approx(3.2905 * np.sqrt(2) * 0.3, abs=2e-4)


@pytest.mark.parametrize("entry_id", SHIPPED_IDS)
def test_every_shipped_entry_can_be_read(entry_id):
    card = read_card(SHIPPED, entry_id)
    assert card.content["id"] == entry_id
    assert card.content["evaluation"]["n_evals"] >= FEWEST_EPISODES
    assert card.content["command"].startswith("jaxagents ")
    tensors = load_file(SHIPPED / entry_id / places.POLICY)
    assert all(np.isfinite(each).all() for each in tensors.values())


@pytest.mark.parametrize("entry_id", CHEAPEST)
def test_the_cheapest_shipped_entries_are_restored(entry_id):
    agent = Experiment.of_run(SHIPPED / entry_id).restore()
    returns = agent.eval(jax.random.key(0), 1)["returns"]
    assert returns.shape == (1, agent.environments.n_actors)


@pytest.mark.slow
@pytest.mark.parametrize("entry_id", SHIPPED_IDS)
def test_every_shipped_entry_earns_what_its_card_says(entry_id):
    actors = checking.recheck_entry(SHIPPED / entry_id, read_card(SHIPPED, entry_id))
    assert all(actor.agrees for actor in actors), actors
