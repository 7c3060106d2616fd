"""Errors that are told apart where importing what raises them would take long."""

import contextlib
from collections.abc import Iterator


class CheckpointError(ValueError):
    """A run's checkpoints cannot be used as asked; the message says why, in one line."""


class ExperimentError(ValueError):
    """What was asked for cannot be done; the message says why, in one line."""


_OF_CHECKS = (ImportError, OSError, TypeError, ValueError)
OF_FILES = (CheckpointError, OSError)  # anything else that training raises is not the user's fault


@contextlib.contextmanager
def explained(place: str = "", kinds: tuple[type[Exception], ...] = _OF_CHECKS) -> Iterator[None]:
    """Turn what a check of this package or of a library raises into an `ExperimentError`."""
    try:
        yield
    except kinds as error:
        raise ExperimentError(place + " ".join(str(error).split())) from error
