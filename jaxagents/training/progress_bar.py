"""The bar that shows how far a training is."""

import contextlib
from typing import final

from jaxagents.training.callbacks import Evaluation

_FORMAT = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"


@final
class ProgressBar:
    """A bar over a training's updates on standard error, with the latest return and speed.

    Args:
        n_steps: Updates of the whole training.
        n_updates_done: Those that are done already.
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
        """Move on to an evaluation."""
        with _unread():
            self._bar.set_postfix_str(_postfix(evaluation), refresh=False)
            self._bar.update(evaluation.n_updates_done - self._bar.n)

    def close(self) -> None:
        """Leave the bar as it is, in its latest state."""
        with _unread():
            self._bar.close()


def _postfix(evaluation: Evaluation) -> str:
    parts = []
    if "returns" in evaluation.metrics:
        parts.append(f"return {evaluation.mean_return:,.2f}")
    if evaluation.steps_per_second > 0:
        parts.append(f"{evaluation.steps_per_second:,.0f} steps/s")
    return ", ".join(parts)


def _unread() -> contextlib.AbstractContextManager[None]:
    """Let nothing happen where nobody reads any more: training matters more than its bar."""
    return contextlib.suppress(OSError, ValueError)
