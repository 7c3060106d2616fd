"""Hiding what JaxMARL prints, whichever threads make environments or trace their steps."""

import contextlib
import io
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import final


@contextlib.contextmanager
def _replaced() -> Iterator[None]:
    """Replace what the process prints to, and ignore warnings.

    While it is imported, JaxMARL points the standard streams at the process's own, past a
    redirection: they are replaced as well, and all are put back.
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
    """Replaces the streams of the process for the first who enters; the last one puts them back.

    Were each to put back what it has found, one could find another's replacement.
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
