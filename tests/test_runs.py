import pytest

from jaxagents.errors import ExperimentError
from jaxagents.runs import read_groups
from tests.fabricated import write_run


def labels(*directories):
    return {label: len(group) for label, group in read_groups(directories).items()}


def test_runs_that_differ_in_their_seed_only_are_a_group(tmp_path):
    directories = [write_run(tmp_path / f"a{i}", name="a", seed=i) for i in range(3)]
    other = write_run(tmp_path / "b", name="b", seed=0, agent={"n_steps": 7})
    assert labels(*directories, other) == {"a": 3, "b": 1}


def test_groups_of_one_name_are_told_apart_by_their_directories(tmp_path):
    first = write_run(tmp_path / "a-1", name="a")
    second = write_run(tmp_path / "a-2", name="a", agent={"n_steps": 7})
    assert labels(first, second) == {"a-1": 1, "a-2": 1}


def test_no_group_is_lost_where_directories_are_of_one_name_too(tmp_path):
    first = write_run(tmp_path / "x" / "a", name="a")
    second = write_run(tmp_path / "y" / "a", name="a", agent={"n_steps": 7})
    assert labels(first, second) == {str(first): 1, str(second): 1}


def test_no_group_is_lost_where_one_is_named_as_another_s_directory(tmp_path):
    first = write_run(tmp_path / "b", name="a")
    second = write_run(tmp_path / "c", name="a", agent={"n_steps": 7})
    third = write_run(tmp_path / "d", name="b", agent={"n_steps": 8})
    assert labels(first, second, third) == {str(first): 1, "c": 1, "b": 1}


def test_a_seed_is_no_second_piece_of_evidence(tmp_path):
    first = write_run(tmp_path / "first", seed=3)
    second = write_run(tmp_path / "second", seed=3)
    with pytest.raises(ExperimentError, match=r"second are the same run, of seed 3; leave one"):
        read_groups([first, second])
    with pytest.raises(ExperimentError, match="are the same run"):
        read_groups([first, first])
