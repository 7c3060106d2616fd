"""Errors that are told apart where importing what raises them would take long."""


class CheckpointError(ValueError):
    """A run's checkpoints cannot be used as asked; the message says why, in one line."""
