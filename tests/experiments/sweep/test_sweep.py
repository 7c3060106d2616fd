"""Sweeps: spaces, studies and their trials."""

import itertools
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import optuna
import pytest

import jaxagents as ja
from jaxagents.cli import main as cli
from jaxagents.errors import ExperimentError
from jaxagents.experiments.config_files.file import load_config
from jaxagents.experiments.experiment import Experiment
from jaxagents.experiments.sweep import study as studies
from jaxagents.experiments.sweep.report import result_text, ties_text
from jaxagents.experiments.sweep.search_space import Choices, Range, load_space
from jaxagents.experiments.sweep.sweep import Scores, Sweep, SweepSettings, score_trials

CONFIG = """
name: tiny
env: hunting/discrete
agent:
  n_steps: 2
  batch_size: 4
  minibatch_size: 2
  rollout_length: 4
  actor_epochs: 1
  critic_epochs: 1
  eval_frequency: 1
  n_evals: 3
  progress_bar: false
"""
SPACE = """
hyperparams.gamma: [0.9, 0.99]
hyperparams.ent_coeff: [0.0, 0.01, 0.02]
"""
SETTINGS = SweepSettings(n_trials=4, n_seeds=2, n_at_once=3, sampler="random", n_confirming=2)


@pytest.fixture
def files(tmp_path):
    (tmp_path / "config.yaml").write_text(CONFIG)
    (tmp_path / "space.yaml").write_text(SPACE)
    return tmp_path


def sweep_in(files, settings=SETTINGS, to="sweep", **changes) -> Sweep:
    settings = settings._replace(**changes)
    return Sweep(files / "config.yaml", files / "space.yaml", files / to, settings)


def fake_training(sweep, monkeypatch) -> list:
    """Let trials score their entropy coefficient, without training; return what was trained."""
    trained = []

    def train(trials, seeds, halving):
        trained.extend(trials)
        scores = np.array([[each["hyperparams.ent_coeff"]] * len(seeds) for each in trials])
        ends = [1 if halving and each["hyperparams.gamma"] == 0.9 else None for each in trials]
        return Scores(scores, ends)

    monkeypatch.setattr(sweep, "train", train)
    return trained


def test_spaces_have_choices_and_ranges(files):
    (files / "space.yaml").write_text(
        "hyperparams.gamma: [0.9, 0.99]\n"
        "hyperparams.ent_coeff: {low: 0.0, high: 0.1}\n"
        "agent.actor_epochs: {low: 1, high: 4, log: true}\n"
    )
    assert load_space(files / "space.yaml", files / "config.yaml") == {
        "hyperparams.gamma": Choices((0.9, 0.99)),
        "hyperparams.ent_coeff": Range(0.0, 0.1, False),
        "agent.actor_epochs": Range(1, 4, True),
    }


def test_the_type_of_a_key_decides_whether_a_range_holds_integers(files):
    (files / "space.yaml").write_text(
        "hyperparams.gae_lambda: {low: 0, high: 1}\n"
        "stop_at_return: {low: 1, high: 4}\n"
        "agent.actor_epochs: {low: 1, high: 4}\n"
    )
    space = load_space(files / "space.yaml", files / "config.yaml")
    assert {key: domain.distribution() for key, domain in space.items()} == {
        "hyperparams.gae_lambda": optuna.distributions.FloatDistribution(0.0, 1.0),
        "stop_at_return": optuna.distributions.FloatDistribution(1.0, 4.0),
        "agent.actor_epochs": optuna.distributions.IntDistribution(1, 4),
    }


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ("agent.actor_epochs: {low: 1.0, high: 4}", "should be an integer, but is 1.0"),
        ("agent.actor_epochs: {low: 1, high: 4.5}", "should be an integer, but is 4.5"),
        ("hyperparams.gama: [0.9]", "gama"),
        ("hyperparams.gamma: [2.0]", "gamma=2.0 is out of range"),
        ("hyperparams.gamma: []", "has no choices"),
        (
            "agent.actor_epochs: [2020-01-01]",
            "a choice of agent.actor_epochs should be text, .* but is .*2020-01-01.*in quotes",
        ),
        ("env_kwargs.x: [[1, 2020-01-01]]", "a choice of env_kwargs.x should be text"),
        ("env_kwargs.x: [{2020-01-01: 1}]", "a choice of env_kwargs.x should be text"),
        ("hyperparams.gamma: {low: 0.9, high: 0.9}", "the range of hyperparams.gamma, 0.9 to 0.9"),
        ("hyperparams.gamma: {low: 0.9}", "neither a list of choices nor a range"),
        ("hyperparams.gamma: {low: 1e-3, high: 0.9}", "write 1.0e-3"),
        ("hyperparams.ent_coeff: {low: 0.0, high: 0.1, log: true}", "has no logarithm"),
        ("seed: [1, 2]", "seed cannot be varied"),
        ("[]", "holds no search space"),
        ("{", "cannot be read as a search space"),
    ],
)
def test_spaces_that_make_no_sense_are_refused(files, space, message):
    (files / "space.yaml").write_text(space)
    with pytest.raises(ExperimentError, match=message):
        sweep_in(files)
    assert not (files / "sweep").exists()


@pytest.mark.slow
def test_a_trial_is_the_run_of_its_configuration(files):
    sweep = sweep_in(files)
    values = {"hyperparams.gamma": 0.9, "hyperparams.ent_coeff": 0.02}
    others = {"hyperparams.gamma": 0.99, "hyperparams.ent_coeff": 0.0}

    scores = sweep.train([others, values], [0, 1])

    config = load_config(
        files / "config.yaml",
        ["--hyperparams.gamma", "0.9", "--hyperparams.ent_coeff", "0.02", "--seed", "1"],
    )
    run = Experiment(config, files / "run")
    run.train()
    _, history = run.agent.restore("last")
    expected = np.mean(history["returns"], dtype=np.float64)
    np.testing.assert_allclose(scores.values[1, 1], expected)
    assert scores.values.shape == (2, 2)
    assert scores.n_updates == [None, None]


@pytest.mark.slow
def test_trials_of_other_structures_train_apart(files):
    (files / "space.yaml").write_text(SPACE + "agent.actor_epochs: [1, 2]\n")
    results = sweep_in(files).run()
    assert {each.values["agent.actor_epochs"] for each in results} == {1, 2}
    assert len(results) == 4
    assert [each.score for each in results] == sorted(
        (each.score for each in results), reverse=True
    )


def test_a_grid_has_every_combination_once(files, monkeypatch):
    sweep = sweep_in(files, sampler="grid")
    trained = fake_training(sweep, monkeypatch)
    results = sweep.run()
    assert len(trained) == sweep.study.n_trials == 6
    assert len({json.dumps(each) for each in trained}) == 6
    assert [each.score for each in results] == [0.02, 0.02, 0.01, 0.01, 0.0, 0.0]
    assert sweep.run() == results  # nothing is left


def test_random_trials_differ(files, monkeypatch):
    sweep = sweep_in(files, n_trials=6)
    trained = fake_training(sweep, monkeypatch)
    sweep.run()
    assert len({json.dumps(each, sort_keys=True) for each in trained}) == 6
    assert sweep_in(files, to="more", n_trials=50).study.n_trials == 6  # there are no more


def test_a_grid_of_a_range_is_refused(files):
    (files / "space.yaml").write_text("hyperparams.gamma: {low: 0.9, high: 0.99}")
    with pytest.raises(ExperimentError, match=r"a grid needs choices, and hyperparams.gamma is"):
        sweep_in(files, sampler="grid")


def test_two_processes_share_the_trials(files):
    first, second = (sweep_in(files, sampler="grid", n_at_once=2) for _ in range(2))
    asked = [first.study.ask(2), second.study.ask(2), first.study.ask(2), second.study.ask(2)]
    values = [json.dumps(each) for batch in asked for _, each in batch]
    assert len(values) == len(set(values)) == 6


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["grid", "tpe"])
def test_machines_that_ask_at_once_do_not_begin_more_trials_than_there_are(
    files, sampler, monkeypatch
):
    storage = f"sqlite:///{files / 'shared.db'}"
    settings = {"storage": storage, "sampler": sampler, "n_trials": 6}
    first = sweep_in(files, to="one machine", **settings).study
    second = sweep_in(files, to="another", **settings).study
    assert len(first.ask(5)) == 5
    monkeypatch.setattr(second, "_n_open", lambda: 1)  # as it was before the first asked
    assert len(second.ask(3)) == 1
    assert second.ask(1) == []
    assert first.ask(1) == []


def test_a_study_whose_creator_has_died_is_queued_completely(files, monkeypatch):
    monkeypatch.setattr(studies, "_SECONDS_TO_QUEUE", 0.2)
    grid = studies.Study._grid
    monkeypatch.setattr(studies.Study, "_grid", lambda self: grid(self)[:2])
    set_attribute = optuna.Study.set_user_attr

    def die(self, name, value):
        if name == "queued":
            raise KeyboardInterrupt
        set_attribute(self, name, value)

    monkeypatch.setattr(optuna.Study, "set_user_attr", die)
    with pytest.raises(KeyboardInterrupt):
        sweep_in(files, sampler="grid")
    monkeypatch.setattr(optuna.Study, "set_user_attr", set_attribute)
    monkeypatch.setattr(studies.Study, "_grid", grid)

    study = sweep_in(files, sampler="grid").study

    values = [json.dumps(each) for _, each in study.ask(10)]
    assert len(values) == len(set(values)) == study.n_trials == 6


@pytest.mark.parametrize("sampler", ["grid", pytest.param("tpe", marks=pytest.mark.slow)])
def test_the_trials_of_a_killed_process_are_trained_again(files, sampler, monkeypatch):
    script = (
        "import sys, time\n"
        "from tests.experiments.sweep.test_sweep import sweep_in\n"
        "from pathlib import Path\n"
        f"sweep = sweep_in(Path({str(files)!r}), sampler={sampler!r})\n"
        "print([values for _, values in sweep.study.ask(2)], flush=True)\n"
        "time.sleep(100)\n"
    )
    root = Path(ja.__file__).parents[1]
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as process:
        lost = eval(process.stdout.readline())
        alive = sweep_in(files, sampler=sampler)  # leaves the trials of a process that is alive
        n_trials = alive.study.n_trials
        assert alive.study._n_open() == n_trials - 2
        process.kill()

    sweep = sweep_in(files, sampler=sampler)
    trained = fake_training(sweep, monkeypatch)
    sweep.run()

    assert len(trained) == n_trials
    assert all(each in trained for each in lost)


def test_a_process_that_dies_before_a_trial_has_its_values_loses_none(files, monkeypatch):
    monkeypatch.setattr(studies, "_SECONDS_TO_OWN", 0.0)
    study = sweep_in(files, sampler="grid").study
    for _ in range(2):  # it dies twice
        study.optuna.ask()
        study._requeue_of_dead()
    values = [json.dumps(each, sort_keys=True) for _, each in study.ask(10)]
    assert len(values) == len(set(values)) == study.n_trials == 6


HOLDING = """
import sys, time
from pathlib import Path
from tests.experiments.sweep.test_sweep import sweep_in
study = sweep_in(Path(sys.argv[1])).study
asked = study.ask(2)
print("begun", flush=True)
sys.stdin.readline()
for trial, _ in asked:
    study.tell(trial, [5.0, 5.0])
"""


@pytest.mark.slow
@pytest.mark.parametrize("end", ["tells", "is killed"])
def test_a_sweep_waits_for_the_trials_of_others_and_says_whose_they_are(files, end, monkeypatch):
    command = [sys.executable, "-c", HOLDING, str(files)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    monkeypatch.setattr(studies, "_SECONDS_BETWEEN_LOOKS", 0.1)
    with subprocess.Popen(command, **pipes, cwd=Path(ja.__file__).parents[1]) as process:
        assert process.stdout.readline() == "begun\n"
        sweep, said = sweep_in(files), []
        trained = fake_training(sweep, monkeypatch)

        def on_waiting(text):
            said.append(text)
            if end == "tells":
                process.stdin.write("\n")
                process.stdin.flush()
            else:
                process.kill()
            process.wait()

        results = sweep.run(report_waiting=on_waiting)
    assert said == [f"waiting for the trials of others: process {process.pid} trains 0 1"]
    assert len(results) == 4
    assert len(trained) == (2 if end == "tells" else 4)
    assert (results[0].score == 5.0) == (end == "tells")


FAR = {"host": "far", "pid": 1, "started": "5"}


def show_signs(study, monkeypatch):
    """Let the process on another machine show a sign of life whenever somebody waits."""
    numbers = itertools.count()
    name = studies._beat_of(FAR)
    monkeypatch.setattr(
        studies.time, "sleep", lambda _: study.optuna.set_user_attr(name, next(numbers))
    )


@pytest.mark.slow
def test_trials_of_another_machine_are_trained_again_once_it_gives_no_sign(files, monkeypatch):
    far = sweep_in(files).study
    (trial, values), *_ = far.ask(1)
    trial.set_user_attr("owner", FAR)
    sweep, said, began = sweep_in(files), [], time.monotonic()
    trained = fake_training(sweep, monkeypatch)
    monkeypatch.setattr(studies, "_SECONDS_WITHOUT_BEAT", 1.0)
    monkeypatch.setattr(studies, "_SECONDS_BETWEEN_LOOKS", 0.1)

    results = sweep.run(report_waiting=said.append)

    assert time.monotonic() - began > 1.0
    assert said == ["waiting for the trials of others: process 1 on far trains 0"]
    assert len(trained) == len(results) == 4
    assert values in trained
    far.tell(trial, [9.0, 9.0])  # it was suspended, and comes too late
    assert max(each.score for each in far.results()) < 9.0


@pytest.mark.slow
def test_trials_of_another_machine_that_shows_signs_are_left_to_it(files, monkeypatch):
    monkeypatch.setattr(studies, "_SECONDS_WITHOUT_BEAT", 0.0)
    far = sweep_in(files).study
    ((trial, _),) = far.ask(1)
    trial.set_user_attr("owner", FAR)
    watching = sweep_in(files).study
    far.optuna.set_user_attr(studies._beat_of(FAR), 1)
    watching._requeue_of_dead()
    assert watching._n_open() == 3
    watching._requeue_of_dead()  # no sign since
    assert watching._n_open() == 4


@pytest.mark.slow
def test_one_of_several_processes_concludes_a_sweep(files, monkeypatch):
    first, second = (sweep_in(files).study for _ in range(2))
    first.optuna.set_user_attr("concluded by", FAR)
    with monkeypatch.context() as patches:
        show_signs(first, patches)
        with second.concluding() as other:
            assert other == "process 1 on far"
    with monkeypatch.context() as patches:  # that process has died
        patches.setattr(studies, "_SECONDS_WITHOUT_BEAT", 0.0)
        said = []
        with sweep_in(files).study.concluding(said.append) as other:
            assert not other
        assert said == ["waiting for a sign of process 1 on far"]
    first.optuna.set_user_attr("concluded by", studies._this_process() | {"started": "earlier"})
    with second.concluding() as other:  # that process has died
        assert not other
    with first.concluding() as other:  # it was opened before
        assert other.startswith("process ")
    interrupted = sweep_in(files).study
    with pytest.raises(KeyboardInterrupt), interrupted.concluding():
        raise KeyboardInterrupt
    with sweep_in(files).study.concluding() as other:
        assert not other


@pytest.mark.slow
def test_a_trial_that_diverges_counts_as_failed(files):
    (files / "space.yaml").write_text("hyperparams.vf_coeff: [0.5, 3.0e+38]")
    results = sweep_in(files, sampler="grid").run()
    assert [each.values["hyperparams.vf_coeff"] for each in results] == [0.5, 3e38]
    assert np.isfinite(results[0].score)
    assert np.isnan(results[1].score)


@pytest.mark.parametrize("sampler", ["random", "grid", "tpe"])
def test_a_trial_whose_values_do_not_go_together_is_impossible(files, sampler, monkeypatch):
    (files / "space.yaml").write_text(
        "agent.batch_size: [2, 4]\n"
        "agent.minibatch_size: [2, 4]\n"
        "hyperparams.ent_coeff: [0.0, 0.01]\n"
    )
    sweep, reported = sweep_in(files, sampler=sampler, n_trials=8), []
    trained = fake_training(sweep, monkeypatch)
    if sampler == "tpe":  # which may not come to them
        refused = {"agent.batch_size": 2, "agent.minibatch_size": 4, "hyperparams.ent_coeff": 0.0}
        sweep.study.optuna.enqueue_trial(refused)

    results = sweep.run(reported.append)

    impossible = [each for each in results if each.impossible]
    assert len(results) == len(reported) == len(trained) + len(impossible) == 8
    assert len(impossible) == 2 or sampler == "tpe"
    assert results[-len(impossible) :] == impossible
    for each in impossible:
        assert (each.values["agent.batch_size"], each.values["agent.minibatch_size"]) == (2, 4)
        assert np.isnan(each.scores).all()
    number, ent_coeff = impossible[0].number, impossible[0].values["hyperparams.ent_coeff"]
    assert result_text(impossible[0]) == (
        f"trial {number}: impossible with agent.batch_size 2, agent.minibatch_size 4, "
        f"hyperparams.ent_coeff {ent_coeff:g}: batch_size=2 trajectories do not divide into "
        "minibatches of minibatch_size=4; choose a divisor of 2."
    )
    assert sweep_in(files, sampler=sampler, n_trials=8).study.ask(1) == []


def test_a_trial_that_could_not_be_trained_or_scored_is_impossible(files, monkeypatch):
    (files / "space.yaml").write_text(
        "agent.n_evals: [3, 0]\nhyperparams.gamma: [0.9, [0.9, 0.9, 0.9]]\n"
    )
    (files / "config.yaml").write_text(CONFIG + "evaluation: {mode: last}\n")
    sweep = sweep_in(files, sampler="grid")
    monkeypatch.setattr(sweep, "train", lambda *given: Scores(np.ones((1, 2)), [None]))
    results = sorted(sweep.run(), key=lambda each: each.number)
    reasons = [each.impossible for each in results]
    assert reasons[0] is None
    assert reasons[1].startswith("gamma has shape (3,)")
    assert reasons[2] == reasons[3]
    assert reasons[2].startswith("agent.n_evals=0 leaves a sweep nothing to compare")


def test_an_edited_configuration_makes_no_trial_impossible(files):
    sweep = sweep_in(files)
    (files / "config.yaml").write_text("name: {")
    with pytest.raises(ExperimentError, match="this is not valid YAML"):
        sweep.run()
    assert sweep.study.results() == []


def test_trials_that_end_early_rank_below_the_others(files, monkeypatch):
    sweep = sweep_in(files, sampler="grid", halving=2)
    fake_training(sweep, monkeypatch)
    results = sweep.run()
    assert [each.n_updates for each in results] == [None] * 3 + [1] * 3
    assert [each.score for each in results] == [0.02, 0.01, 0.0] * 2
    assert sweep.run() == results
    with pytest.raises(ExperimentError, match="its halving is 2, and this one's is None"):
        sweep_in(files, sampler="grid")


def test_scores_tell_ended_trials_from_those_that_have_diverged():
    returns = np.array(
        # Two seeds each of a trial that trains to the end, one that ends, and one that diverges.
        [[1, 2, 3], [3, 4, 5], [1, 3, np.nan], [1, 1, np.nan], [1, np.nan, np.nan], [1, 1, np.nan]]
    )
    metrics = {
        "returns": returns[:, :, None, None],
        "n_updates_done": np.where(np.isnan(returns), np.nan, [0, 10, 20]),
        "parents": np.array([[i, i, i if i < 2 else -1] for i in range(6)]),
    }
    scores = score_trials(metrics, 3)
    np.testing.assert_array_equal(scores.values, [[2, 4], [2, 1], [np.nan, 1]])
    assert scores.n_updates == [None, 10, 10]


def test_a_trial_that_diverges_before_any_evaluation_has_no_score():
    nan = np.nan
    metrics = {
        "returns": np.array([[1.0, 2.0], [nan, nan]])[:, :, None, None],
        "n_updates_done": np.array([[1.0, 2.0], [nan, nan]]),
        "parents": np.array([[0, 0], [1, -1]]),
    }
    scores = score_trials(metrics, 2)
    np.testing.assert_array_equal(scores.values, [[1.5], [nan]])
    assert scores.n_updates == [None, None]


@pytest.mark.slow
def test_halving_ends_most_trials_early(files):
    (files / "config.yaml").write_text(CONFIG.replace("n_steps: 2", "n_steps: 3"))
    results = sweep_in(files, sampler="grid", halving=3, n_at_once=6).run()
    assert [each.n_updates for each in results] == [None, None, 1, 1, 1, 1]


def test_another_sweep_in_the_directory_is_refused(files):
    sweep_in(files)
    with pytest.raises(ExperimentError, match="its number of seeds is 2, and this one's is 3"):
        sweep_in(files, n_seeds=3)
    (files / "config.yaml").write_text(CONFIG.replace("n_steps: 2", "n_steps: 3"))
    with pytest.raises(ExperimentError, match="the study is of another sweep: its configuration"):
        sweep_in(files)


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_more_trials_extend_a_sweep_and_fewer_are_refused(files, sampler, monkeypatch):
    first = sweep_in(files, sampler=sampler, n_trials=2)
    fake_training(first, monkeypatch)
    ended = {each.number for each in first.run()}

    second = sweep_in(files, sampler=sampler, n_trials=4)
    trained = fake_training(second, monkeypatch)
    results = second.run()

    assert len(trained) == 2
    assert ended < {each.number for each in results}
    assert len(results) == first.study.n_trials == second.study.n_trials == 4
    if sampler == "random":
        assert len({json.dumps(each.values, sort_keys=True) for each in results}) == 4
    with pytest.raises(ExperimentError, match="the sweep has 4 trials, more than n_trials=3; give"):
        sweep_in(files, sampler=sampler, n_trials=3)


def test_a_grid_keeps_its_number_of_trials(files):
    for n_trials in 4, 2, 50:
        study = sweep_in(files, sampler="grid", n_trials=n_trials).study
        assert len(study.optuna.get_trials()) == study.n_trials == 6


@pytest.mark.parametrize("storage", ["sqlite:////nowhere/at/all/study.db", "nonsense"])
def test_a_storage_that_cannot_be_reached_is_an_error(files, storage):
    with pytest.raises(ExperimentError, match=f"the storage {storage} cannot be used"):
        sweep_in(files, storage=storage)


def test_a_journal_is_a_storage(files, monkeypatch):
    storage = f"journal:{files / 'journal.log'}"
    sweep = sweep_in(files, storage=storage)
    fake_training(sweep, monkeypatch)
    sweep.run()
    assert sweep_in(files, storage=storage).study.results() == sweep.study.results()


@pytest.mark.slow
def test_the_command_reports_and_writes_the_best(files, capsys, monkeypatch):
    monkeypatch.chdir(files)
    command = ["sweep", "config.yaml", "--space", "space.yaml", "--to", "swept", "--trials", "4"]
    options = ["--sampler", "random", "--confirm", "2", "--best-to", "best.yaml"]

    assert cli.main([*command, *options]) == 0

    output = capsys.readouterr().out
    assert output.count("trial ") >= 5  # each of four, and the best
    assert "the configuration as it is" in output
    page = (files / "swept" / "sweep.html").read_text()
    assert "4 of 4 trials, 2 seeds each" in page
    assert page.count("<img") >= 2
    lines = (files / "swept" / "trials.csv").read_text().splitlines()
    assert lines[0].startswith("trial,score,score_0,score_1,ended_after_updates,hyperparams.")
    assert len(lines) == 5
    best = load_config(files / "best.yaml").hyperparams
    assert f"hyperparams.gamma {best.gamma}" in output.split("best:")[1]
    assert cli.main([*command, *options]) == 2
    assert "best.yaml exists already" in capsys.readouterr().err


def test_trials_with_equal_scores_are_called_a_tie():
    seven = [studies.Result(number, {}, 500.0, [500.0]) for number in range(7)]
    (sentence,) = ties_text([*seven, studies.Result(7, {}, 499.0, [499.0])])
    assert sentence.startswith("Tie: 7 of 8 trials have the best score, 500.000: 0, 1, 2, 3, 4, 5")
    assert ties_text(seven[:1]) == []


def test_a_directory_of_other_files_is_refused(files):
    (files / "mine").mkdir()
    (files / "mine" / "importance.png").write_text("a picture")
    with pytest.raises(ExperimentError, match="holds other files and no sweep"):
        sweep_in(files, to="mine")


def test_environments_outside_of_jax_are_refused(files):
    (files / "config.yaml").write_text(CONFIG.replace("hunting/discrete", "gymnasium/CartPole-v1"))
    with pytest.raises(ExperimentError, match="played by one member at a time"):
        sweep_in(files).run()


def test_without_optuna_the_extra_is_named_and_nothing_is_written(files, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ExperimentError, match=r'sweeps need optuna.* -e "\.\[sweep\]"'):
        sweep_in(files)
    assert not (files / "sweep").exists()


def test_a_missing_space_is_called_missing(files):
    (files / "space.yaml").unlink()
    with pytest.raises(ExperimentError, match=r"space\.yaml: there is no such file$"):
        sweep_in(files)


def test_settings_out_of_range_are_refused(files):
    with pytest.raises(ExperimentError, match="n_seeds=0 is too small"):
        sweep_in(files, n_seeds=0)
