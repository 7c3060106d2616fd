"""The error of environments that fail in their workers."""


class HostEnvironmentError(RuntimeError):
    """An environment in a worker process failed; the message names it and the step."""
