"""What a command's process ends with."""

import sys

FAILED, USAGE_ERROR, INTERRUPTED = 1, 2, 130


def complain(message: str, status: int) -> int:
    """Print what went wrong; return the exit status."""
    print(f"jaxagents: {message}", file=sys.stderr)
    return status
