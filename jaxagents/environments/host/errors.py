"""The errors of environments that fail in their workers."""


class HostEnvironmentError(RuntimeError):
    """An environment in a worker process failed; the message names it and the step."""


class WrongValueError(ValueError):
    """An environment returned what its spaces do not allow; the message begins "returned"."""
