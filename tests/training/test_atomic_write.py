"""Files that are replaced as a whole."""

import contextlib
import resource

import pytest

from jaxagents.training.atomic_write import naming, replacing, write_atomically
from jaxagents.training.trackers import JsonLines
from jaxagents.visual.picture_files import write_figure
from jaxagents.visual.style import new_figure
from tests.training.test_json_lines import evaluation


@contextlib.contextmanager
def files_of_at_most(n_bytes: int):
    """Let the system refuse larger files, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path):
    path = tmp_path / "summary.json"
    for text in ("old", "δ new"):
        write_atomically(path, text)
        assert path.read_text(encoding="utf-8") == text
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_fails_leaves_the_old_text(tmp_path):
    path = tmp_path / "summary.json"
    write_atomically(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "new, and more \udcff")  # half of it could be written
    assert path.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_device_is_written_and_not_replaced(tmp_path):
    path = tmp_path / "device.txt"
    path.symlink_to("/dev/null")
    with replacing(path) as new:
        new.write_text("text")
    assert new == path
    assert path.is_symlink()
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_is_named_with_the_file(tmp_path):
    message = r"No space left on device: '.*text'"
    raises = pytest.raises(OSError, match=message)
    with raises, naming(tmp_path / "text"), open("/dev/full", "w") as full:
        full.write("text")


@pytest.mark.parametrize(
    "write",
    [
        lambda path: JsonLines(path).log(evaluation()),
        lambda path: write_figure(new_figure(4.0, 3.0), path),
    ],
    ids=["metrics", "plots"],
)
def test_metrics_and_pictures_name_their_file_on_a_full_disk(write, tmp_path):
    path = tmp_path / "file.png"
    path.symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"No space left on device: '.*file\.png'"):
        write(path)


@pytest.mark.parametrize(
    ("write", "name"),
    [
        (lambda path: write_figure(new_figure(4.0, 3.0), path), "curves.png"),
        (lambda path: write_figure(new_figure(4.0, 3.0), path), "curves.svg"),
        (lambda path: write_atomically(path, "x" * 5000), "report.html"),
    ],
)
def test_nothing_is_left_of_what_does_not_fit(write, name, tmp_path):
    path = tmp_path / name
    with files_of_at_most(200), pytest.raises(OSError, match=rf"File too large: '{path}'"):
        write(path)
    assert list(tmp_path.iterdir()) == []
