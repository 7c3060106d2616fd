"""The progress bar of a training run."""

import contextlib
from typing import final

from jaxagents.training.callbacks import Evaluation

_FORMAT = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"


@final
class ProgressBar:
    """A bar over a run's updates, on standard error, with the latest return and speed.

    Args:
        n_steps: Updates in the whole run.
        n_updates_done: Updates done so far.
    """

    def __init__(self, n_steps: int, n_updates_done: int):
        from tqdm.auto import tqdm

        self._bar = tqdm(
            total=n_steps,
            initial=n_updates_done,
            desc="Training",
            miniters=0,
            bar_format=_FORMAT,
        )

    def show(self, evaluation: Evaluation) -> None:
        """Advance the bar to an evaluation."""
        with _ignoring_closed_stream():
            self._bar.set_postfix_str(_postfix(evaluation), refresh=False)
            self._bar.update(evaluation.n_updates_done - self._bar.n)

    def close(self) -> None:
        """Leave the bar on the screen in its latest state."""
        with _ignoring_closed_stream():
            self._bar.close()


def _postfix(evaluation: Evaluation) -> str:
    parts = []
    if "returns" in evaluation.metrics:
        parts.append(f"return {evaluation.mean_return:,.2f}")
    if evaluation.steps_per_second > 0:
        parts.append(f"{evaluation.steps_per_second:,.0f} steps/s")
    return ", ".join(parts)


def _ignoring_closed_stream() -> contextlib.AbstractContextManager[None]:
    """Ignore errors of a closed terminal: training must continue without its bar."""
    return contextlib.suppress(OSError, ValueError)
