"""Text files that are replaced as a whole."""

import pytest

from jaxagents.training.atomic_write import write_atomically


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
