"""Suppression of JaxMARL's output and warnings, also when several threads use it."""

import contextlib
import io
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import final


@contextlib.contextmanager
def _replaced() -> Iterator[None]:
    """Discard the process's output and ignore warnings.

    On import JaxMARL resets `sys.stdout` to `sys.__stdout__`, which undoes a redirection. Both are
    therefore replaced, and all streams are restored.
    """
    streams = {name: getattr(sys, name) for name in ("stdout", "stderr", "__stdout__")}
    sys.stdout = sys.__stdout__ = io.StringIO()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for name, stream in streams.items():
            setattr(sys, name, stream)


@final
class Silence:
    """Context manager that mutes the process from the first entry to the last exit.

    If each thread restored the streams that it found, it could restore another's replacement.
    """

    def __init__(self):
        self._lock = threading.Lock()
        self._n_within = 0
        self._streams = contextlib.ExitStack()

    def __enter__(self) -> None:
        with self._lock:
            if self._n_within == 0:
                self._streams.enter_context(_replaced())
            self._n_within += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._n_within -= 1
            if self._n_within == 0:
                self._streams.close()


SILENCE = Silence()
