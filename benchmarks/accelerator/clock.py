"""The time that a measurement has."""

import time
from collections.abc import Callable


class Clock:
    """Counts down from a number of seconds.

    Args:
        seconds: The budget.
        now: Tells the time, in seconds.
    """

    def __init__(self, seconds: float, now: Callable[[], float] = time.perf_counter):
        self._now = now
        self._end = now() + seconds

    def left(self) -> float:
        """Return the seconds that are left; negative once they are used up."""
        return self._end - self._now()

    def part(self, share: float) -> "Clock":
        """Return a clock that has a share of what is left."""
        return Clock(share * self.left(), self._now)
