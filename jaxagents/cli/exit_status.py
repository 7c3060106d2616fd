"""Exit statuses and the error line of commands."""

import sys

FAILED, USAGE_ERROR, INTERRUPTED = 1, 2, 130


def complain(message: str, status: int) -> int:
    """Print a message to stderr; return the exit status."""
    print(f"jaxagents: {message}", file=sys.stderr)
    return status
