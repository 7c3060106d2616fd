"""Films during training: an episode every few evaluations."""

from pathlib import Path
from typing import TYPE_CHECKING, final

import jax

from jaxagents.experiments.config_files.schema import ExperimentConfig
from jaxagents.training.callbacks import Evaluation
from jaxagents.training.trackers import Tracker

if TYPE_CHECKING:
    from jaxagents.ippo.base import IPPOBase

_MAX_FRAMES = 100  # so that logs stay small


def check_can_film(config: ExperimentConfig, agent: "IPPOBase") -> None:
    """Check that films can be made if the configuration asks for them.

    Raises:
        ValueError: the environments are outside of JAX, where a fault would end the training.
    """
    if config.tracking.film_frequency and not agent.environments.can_be_vmapped:
        raise ValueError(
            f"tracking.film_frequency={config.tracking.film_frequency} films environments in JAX, "
            f"and {config.env} is none; set it to 0, and use jaxagents replay after training."
        )


@final
class Films(Tracker):
    """Films the same episode every few evaluations; for a population, that of its best member.

    A film has a random key of its own, so training is the same with and without it.

    Args:
        config: The experiment's configuration.
        directory: Folder of the films, ``update-N.gif``.
        tracker: Receives each film.
    """

    def __init__(self, config: ExperimentConfig, directory: Path, tracker: Tracker):
        self._config = config
        self._directory = directory
        self._tracker = tracker
        self._n_updates = config.tracking.film_frequency * config.agent.eval_frequency

    def log(self, evaluation: Evaluation) -> None:
        """Film an episode if one is due."""
        from jaxagents.visual.replay import film

        if evaluation.n_updates_done % self._n_updates:
            return
        own = evaluation.of_best_member() if evaluation.n_members else evaluation
        if own is None:
            return
        agent, how = evaluation.agent, self._config.evaluation
        rng = jax.random.key(how.seed)
        (episode,) = agent.record(rng, n_evals=1, greedy=how.greedy, runner=own.runner)
        self._directory.mkdir(exist_ok=True)
        path = self._directory / f"update-{evaluation.n_updates_done}.gif"
        film(episode, path, agent.env, agent.env_params, _MAX_FRAMES)
        self._tracker.log_film(evaluation, path)
