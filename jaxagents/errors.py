"""Errors in a module of their own, so that catching them does not import jax."""

import contextlib
from collections.abc import Iterator


class CheckpointError(ValueError):
    """A run's checkpoints cannot be used as requested; the message says why in one line."""


class ExperimentError(ValueError):
    """A request cannot be fulfilled; the message says why in one line."""


class EntryPointError(ValueError):
    """An installed package's entry point cannot be used; the message names both in one line."""


_OF_CHECKS = (ImportError, OSError, TypeError, ValueError)
OF_FILES = (CheckpointError, OSError)  # other errors of training are not the user's


@contextlib.contextmanager
def explained(place: str = "", kinds: tuple[type[Exception], ...] = _OF_CHECKS) -> Iterator[None]:
    """Convert the errors of this package's or a library's checks to an `ExperimentError`."""
    try:
        yield
    except kinds as error:
        raise ExperimentError(place + " ".join(str(error).split())) from error
