"""Callbacks for trainings; any function of an `Evaluation` is one."""

from typing import final

from jaxagents.tracking import Evaluation


@final
class StopAtReturn:
    """Ends a training whose return has reached a target.

    Args:
        target: The return to reach, as the mean over an evaluation's episodes and actors.
        patience: How many evaluations in a row have to reach it.
    """

    def __init__(self, target: float, patience: int = 1):
        if patience < 1:
            raise ValueError(f"patience={patience} is too small; wait for at least 1 evaluation.")
        self._target = target
        self._patience = patience
        self._n_reached = 0
        self._latest = -1

    def __call__(self, evaluation: Evaluation) -> bool:
        """Tell whether training should end."""
        if "returns" not in evaluation.metrics:
            raise ValueError("StopAtReturn needs evaluations, but n_evals=0: choose n_evals > 0.")
        if evaluation.n_updates_done <= self._latest:  # it is another training
            self._n_reached = 0
        self._latest = evaluation.n_updates_done
        reached = evaluation.mean_return >= self._target
        self._n_reached = self._n_reached + 1 if reached else 0
        return self._n_reached >= self._patience
