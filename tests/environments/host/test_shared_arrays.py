"""Memory that a process shares with its workers."""

import errno
import tempfile

import pytest

from jaxagents.environments.host.errors import HostEnvironmentError
from jaxagents.environments.host.shared_arrays import Field, new_memory


def test_shared_memory_that_cannot_be_created_is_an_error_with_a_remedy(monkeypatch):
    def refuse(dir):
        raise OSError(errno.EROFS, "Read-only file system", dir)

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    with pytest.raises(HostEnvironmentError, match=r"share 64 bytes.*Read-only.*n_workers=0"):
        new_memory({"reward": Field((), "float32")}, n_envs=2)
