"""Text files that are replaced as a whole."""

import pytest

from jaxagents.training.atomic_write import naming, write_atomically


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


def test_a_full_disk_is_named_with_the_file(tmp_path):
    message = r"No space left on device: '.*text'"
    raises = pytest.raises(OSError, match=message)
    with raises, naming(tmp_path / "text"), open("/dev/full", "w") as full:
        full.write("text")
