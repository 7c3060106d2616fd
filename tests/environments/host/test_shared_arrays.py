"""Memory that a process shares with its workers."""

import errno
import tempfile

import pytest

from jaxagents.environments.host import HostEnvironmentError
from jaxagents.environments.host.sharing import ArraySpec, new_memory


def test_shared_memory_that_cannot_be_created_is_an_error_with_a_remedy(monkeypatch):
    def refuse(dir):
        raise OSError(errno.EROFS, "Read-only file system", dir)

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    with pytest.raises(HostEnvironmentError, match=r"share 64 bytes.*Read-only.*n_workers=0"):
        new_memory({"reward": ArraySpec((), "float32")}, n_envs=2)
