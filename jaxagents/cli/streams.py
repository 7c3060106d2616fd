"""Exit statuses, the error line, and standard streams that are closed or full."""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, final

FAILED, USAGE_ERROR, INTERRUPTED = 1, 2, 130


def complain(message: str, status: int) -> int:
    """Print a message to stderr; return the exit status."""
    print(f"jaxagents: {message}", file=sys.stderr)
    return status


class OutputError(Exception):
    """Standard output cannot be written to."""


@contextlib.contextmanager
def guarded_streams(goes_on: Callable[[], bool]) -> Iterator[None]:
    """Let a command continue without streams that fail.

    Args:
        goes_on: True if the command is useful for its files alone, as training is. Other commands
            end with an `OutputError` or, after a closed pipe, a `BrokenPipeError`.
    """
    _open_closed_streams()

    def on_lost_output(error: Exception) -> None:
        if not goes_on():
            raise error if isinstance(error, BrokenPipeError) else OutputError(_reason(error))
        if not isinstance(error, BrokenPipeError):
            reason = f"standard output failed ({_reason(error)})"
            print(f"jaxagents: {reason}; the command continues without it", file=sys.stderr)

    output, errors = _Guarded(sys.stdout, on_lost_output), _Guarded(sys.stderr, lambda _: None)
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(output):
        try:
            yield
        finally:
            errors.flush()


@final
class _Guarded:
    """A text stream that writes to the null device once it fails."""

    def __init__(self, stream: Any, on_loss: Callable[[Exception], None]):
        self._stream = stream
        self._on_loss = on_loss

    def write(self, text: str) -> int:
        """Write a text; return its length."""
        encoding = getattr(self._stream, "encoding", None)
        if encoding is not None:  # characters that the terminal lacks are escaped
            text = text.encode(encoding, "backslashreplace").decode(encoding)
        self._try(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        """Write what is buffered."""
        self._try(self._stream.flush)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _try(self, do: Callable[[], object]) -> None:
        try:
            do()
        except (OSError, ValueError) as error:
            with contextlib.suppress(OSError, ValueError):
                # Python flushes the stream once more at exit: see its documentation of SIGPIPE.
                os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
            self._on_loss(error)


def _open_closed_streams() -> None:
    """Open the null device for closed streams: the next file would take their numbers."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            while (opened := os.open(os.devnull, os.O_RDWR)) < number:
                pass
            os.set_inheritable(opened, True)
    for number, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w", closefd=False))


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
