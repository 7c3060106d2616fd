"""Groups of runs that are read from directories."""

import json

import pytest

from jaxagents.errors import ExperimentError
from jaxagents.evaluation import runs
from jaxagents.evaluation.runs import read_groups, read_run
from tests.fabricated import write_run


def labels(*directories):
    return {label: len(group) for label, group in read_groups(directories).items()}


def test_runs_that_differ_only_in_their_seed_are_a_group(tmp_path):
    directories = [write_run(tmp_path / f"a{i}", name="a", seed=i) for i in range(3)]
    other = write_run(tmp_path / "b", name="b", seed=0, agent={"n_steps": 7})
    assert labels(*directories, other) == {"a": 3, "b": 1}


def test_runs_with_different_names_are_different_groups_even_if_configured_alike(tmp_path):
    directories = [write_run(tmp_path / name, name=name, seed=0) for name in ("before", "after")]
    assert list(read_groups(directories)) == ["before", "after"]


def test_progress_bars_and_null_keys_do_not_separate_groups(tmp_path):
    first = write_run(tmp_path / "a0", name="a", seed=0, agent={"progress_bar": False})
    second = write_run(tmp_path / "a1", name="a", seed=1, agent={"recurrent": None})
    assert labels(first, second) == {"a": 2}


def test_a_run_given_as_a_dot_is_labelled_by_its_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(write_run(tmp_path / "here", name="a"))
    other = write_run(tmp_path / "there", name="a", agent={"n_steps": 7})
    assert labels(".", other) == {"here": 1, "there": 1}


def test_groups_of_one_name_on_several_environments_are_labelled_by_these(tmp_path):
    directories = [write_run(tmp_path / env[-1], name="a", env=env) for env in ("x/y", "x/z")]
    assert labels(*directories) == {"a on x/y": 1, "a on x/z": 1}


def test_groups_of_one_name_are_labelled_by_their_directories(tmp_path):
    first = write_run(tmp_path / "a-1", name="a")
    second = write_run(tmp_path / "a-2", name="a", agent={"n_steps": 7})
    assert labels(first, second) == {"a-1": 1, "a-2": 1}


def write_population(folder, **settings):
    write_run(folder, seeds=2, **settings)
    return [write_run(folder / "members" / str(i), seed=i, **settings) for i in range(2)]


def test_populations_of_one_name_are_labelled_by_their_directories(tmp_path):
    write_population(tmp_path / "a-1", name="a")
    write_population(tmp_path / "a-2", name="a", agent={"n_steps": 7})
    single = write_run(tmp_path / "a-3", name="a", agent={"n_steps": 8})
    found = labels(tmp_path / "a-1", tmp_path / "a-2", single)
    assert found == {"a-1": 2, "a-2": 2, "a-3": 1}


def test_no_group_is_lost_if_populations_directories_have_equal_names(tmp_path, monkeypatch):
    for folder, n_steps in (("x", 7), ("y", 8)):
        write_population(tmp_path / folder / "a", name="a", agent={"n_steps": n_steps})
    monkeypatch.chdir(tmp_path)
    assert labels("x/a", "y/a") == {str(tmp_path / "x/a"): 2, str(tmp_path / "y/a"): 2}


def test_members_of_one_population_that_differ_are_labelled_by_their_own_directories(tmp_path):
    folder = tmp_path / "a"
    write_run(folder, name="a")
    members = [
        write_run(folder / "members" / str(i), name="a", hyperparams={"gamma": 0.9 + 0.01 * i})
        for i in range(2)
    ]
    assert labels(*members) == {"0": 1, "1": 1}


def test_no_group_is_lost_if_directories_have_equal_names_too(tmp_path):
    first = write_run(tmp_path / "x" / "a", name="a")
    second = write_run(tmp_path / "y" / "a", name="a", agent={"n_steps": 7})
    assert labels(first, second) == {str(first): 1, str(second): 1}


def test_no_group_is_lost_if_one_has_the_name_of_anothers_directory(tmp_path):
    first = write_run(tmp_path / "b", name="a")
    second = write_run(tmp_path / "c", name="a", agent={"n_steps": 7})
    third = write_run(tmp_path / "d", name="b", agent={"n_steps": 8})
    assert labels(first, second, third) == {str(first): 1, "c": 1, "b": 1}


LATE = {"hyperparams": {"gamma": 0.99}}


@pytest.mark.parametrize(
    ("resumed", "n_groups"),
    [
        ({20: LATE}, 2),
        ({20: LATE, 40: {**LATE, "evaluation": {"n_evals": 8}}}, 2),
        ({20: {"hyperparams": {"gamma": 0.9}}, 30: {}}, 2),  # there and back
        ({0: LATE}, 1),  # before the first update
    ],
)
def test_a_run_resumed_with_other_hyperparameters_is_in_a_group_of_its_own(
    tmp_path, resumed, n_groups
):
    early = {"gamma": 0.5}
    first = write_run(tmp_path / "0", seed=0, hyperparams=early, resumed=resumed)
    latest = {"hyperparams": early, **resumed[max(resumed)]}
    second = write_run(tmp_path / "1", seed=1, **latest)
    assert len(read_groups([first, second])) == n_groups


def test_each_configuration_is_read_once(tmp_path, monkeypatch):
    """Parsing it takes most of the time of reading a run."""
    directory = write_run(tmp_path / "run", resumed={20: LATE})
    read = []
    own = runs.read_run_config
    monkeypatch.setattr(runs, "read_run_config", lambda path: read.append(path.name) or own(path))
    run = read_run(directory)
    assert run.config == run.configs[20] != run.configs[0]
    assert sorted(read) == ["config.yaml", "config_from_20.yaml"]


def test_runs_resumed_alike_are_a_group(tmp_path):
    directories = [
        write_run(tmp_path / f"{i}", seed=i, hyperparams={"gamma": 0.5}, resumed={20: LATE})
        for i in range(2)
    ]
    assert labels(*directories) == {"run": 2}
    later = write_run(tmp_path / "2", seed=2, hyperparams={"gamma": 0.5}, resumed={30: LATE})
    assert labels(*directories, later) == {str(directories[0].name): 2, "2": 1}


def test_a_run_that_was_extended_is_grouped_with_those_as_long_from_the_start(tmp_path):
    agent = {"n_steps": 20, "eval_frequency": 5, "keep_best": 1, "devices": 2}
    longer = {"n_steps": 40, "eval_frequency": 10, "keep_best": 2, "devices": 1}
    resumed = {20: {"agent": longer}}
    first = write_run(tmp_path / "0", seed=0, agent=agent, resumed=resumed)
    second = write_run(tmp_path / "1", seed=1, agent=longer)
    assert labels(first, second) == {"run": 2}


def test_evaluating_otherwise_changes_how_a_population_with_a_selection_learnt(tmp_path):
    selecting = {"population_based_training": {"vary": {"ent_coeff": [0.001, 0.1]}}}
    often = {"eval_frequency": 5}
    resumed = {20: {"agent": often}}
    first = write_run(tmp_path / "0", agent={"eval_frequency": 50}, resumed=resumed, **selecting)
    second = write_run(tmp_path / "1", seed=1, agent=often, **selecting)
    assert labels(first, second) == {"0": 1, "1": 1}


def test_extending_a_run_with_a_schedule_changes_how_it_learnt(tmp_path):
    annealed = {"learning_rate_schedule": "linear"}
    resumed = {20: {"agent": {"n_steps": 40}}}
    first = write_run(tmp_path / "0", seed=0, agent={"n_steps": 20, **annealed}, resumed=resumed)
    second = write_run(tmp_path / "1", seed=1, agent={"n_steps": 40, **annealed})
    assert labels(first, second) == {"0": 1, "1": 1}


def test_a_run_with_a_schedule_that_is_no_text_is_grouped_too(tmp_path):
    run = write_run(tmp_path / "0", name="a", agent={"learning_rate_schedule": ["linear"]})
    assert labels(run) == {"a": 1}


def test_seconds_are_added_up_where_a_process_has_begun(tmp_path):
    # Resumed after 2 s, and after 1 s more; the second process began slowly.
    rates = [None, 50.0, None, 50.0, None]
    run = write_run(tmp_path / "run", metrics={"steps_per_second": rates})
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for line, seconds in zip(lines, [1.0, 2.0, 5.0, 6.0, 0.5], strict=True):
        line["seconds"] = seconds
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = read_run(run)
    assert found.seconds.tolist() == [1.0, 2.0, 7.0, 8.0, 8.5]
    assert [found.seconds_until(n) for n in (0, 1, 3, 9)] == [1.0, 2.0, 8.0, 8.5]
    assert read_run(write_run(tmp_path / "new")).seconds_until(3) == 0.0


def test_evaluations_that_training_was_not_resumed_from_do_not_count(tmp_path):
    run = write_run(tmp_path / "run", metrics={"kl": [[0.0]] * 6})
    lines = (run / "metrics.jsonl").read_text().splitlines()
    resumed = [*lines[:4], '{"resumed_after_update": 1}', lines[5]]
    (run / "metrics.jsonl").write_text("\n".join(resumed))
    assert [each["n_updates_done"] for each in read_run(run).records] == [0, 1, 5]
    (run / "metrics.jsonl").write_text('{"resumed_after_update": "x"}\n')
    with pytest.raises(ExperimentError, match=r"jsonl:1: resumed_after_update should be an int"):
        read_run(run)


def test_two_runs_of_one_seed_are_refused(tmp_path):
    first = write_run(tmp_path / "first", seed=3)
    second = write_run(tmp_path / "second", seed=3)
    with pytest.raises(ExperimentError, match=r"second are the same run, of seed 3; leave one"):
        read_groups([first, second])
    with pytest.raises(ExperimentError, match="are the same run"):
        read_groups([first, first])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "config.yaml",
            "name: [a",
            "config.yaml:1: this is not valid YAML: a list that begins with [",
        ),
        ("config.yaml", "just words", "config.yaml: this is not a YAML file of keys and values"),
        ("config.yaml", "name: a\nenv: b", "config.yaml is not the configuration of a run."),
        ("summary.json", "{", "summary.json:1: this is not valid JSON: Expecting property name"),
    ],
)
def test_a_run_with_an_unreadable_file_is_refused_in_one_line(tmp_path, name, content, message):
    run = write_run(tmp_path / "run")
    (run / name).write_text(content)
    with pytest.raises(ExperimentError) as error:
        read_run(run)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("last", [3, 5, 6])
def test_a_run_is_finished_if_its_summary_is_of_its_last_evaluation(tmp_path, last):
    run = write_run(tmp_path / "run", metrics={"kl": [[0.0]] * (last + 1)}, final_returns=[1.0])
    summary = json.loads((run / "summary.json").read_text())
    summary["training"] = {"n_updates_done": 5}
    (run / "summary.json").write_text(json.dumps(summary))
    assert read_run(run).is_unfinished == (last != 5)
