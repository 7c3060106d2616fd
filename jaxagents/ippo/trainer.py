"""A training as a whole: blocks of updates, their evaluations, and what is recorded of them."""

import logging
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from jaxagents.errors import CheckpointError
from jaxagents.finiteness import NonFiniteError, describe_nonfinite
from jaxagents.hyperparameters import (
    HyperParameters,
    as_arrays,
    check_hyperparams,
    flat_items,
)
from jaxagents.ippo.loop import TrainingLoop
from jaxagents.ippo.player import Metrics
from jaxagents.leaves import Leaves, strip_keys
from jaxagents.recording import highest_return
from jaxagents.tables import joined
from jaxagents.tracing import as_key, is_traced, key_of
from jaxagents.types import Runner, Training

_logger = logging.getLogger(__name__)


class Trainer(TrainingLoop):
    """An agent's public methods that train."""

    # Public methods: Python that checks and waits, around one compiled method each.

    def train(
        self,
        rng: PRNGKeyArray | None,
        hyperparams: HyperParameters,
        runner: Runner | None = None,
    ) -> tuple[Runner, Metrics]:
        """Train for ``n_steps`` updates, evaluating every ``eval_frequency`` of them.

        Without checkpoints and callbacks it may be vmapped, over keys and over hyperparameters:
        on a CPU the members of a `jax.vmap` then train in threads, one per core, each to the same
        bits as alone; elsewhere, or where the `jax.vmap` is itself compiled, all at once. With
        checkpoints or callbacks it runs in another thread, where context managers of jax do not
        apply.

        Args:
            rng: Random key; unused when a runner is given, which brings its own.
            hyperparams: Each leaf a scalar or one value per policy.
            runner: Continue from here, up to ``n_steps`` updates in all.

        Returns:
            The runner after training, and the metrics as float32 with one row per evaluation:
            ``returns``, ``final_rewards``, ``terminated``, ``truncated`` ``[n_evaluations,
            n_evals, n_actors]``, ``episode_lengths`` and ``info_<name>`` ``[n_evaluations,
            n_evals]``, ``n_updates_done`` ``[n_evaluations]``, and the training metrics as means
            over the block's updates ``[n_evaluations, n_policies]``. What did not run is NaN.

        Raises:
            ValueError: a hyperparameter is out of range; ``checkpoint_dir`` already holds a run,
                or cannot be written, or the key is of a generator that it could not be resumed
                with; nothing is left to train.
            NonFiniteError: a loss, a gradient or a parameter is no longer finite, and
                ``on_nonfinite`` is "stop". (Under `jax.vmap` nothing can be raised: the rows of
                the metrics from there on are NaN.)
            Interrupted: of an agent with checkpoints or callbacks, by Ctrl-C or SIGTERM, after the
                block in flight; the second one comes at once.
        """
        initial = self.config.initial_evaluation
        if is_traced((rng, hyperparams, runner)):
            self._refuse_to_be_traced(runner)
            sizes = self._block_sizes(0, initial)
            training, metrics = self._run_traced(as_key(rng), self._checked(hyperparams), sizes)
            return training.runner, metrics
        self._recorder.settle()
        self._recorder.refuse_to_overwrite()
        self._refuse_unrestorable_keys(rng if runner is None else runner.rng)
        if runner is None:
            return self._train(self.init(rng, hyperparams), 0, initial)
        rng = key_of(runner.rng, self.config.prng_impl)
        runner = runner.replace(rng=rng, hyperparams=self._checked(hyperparams))
        return self._train(runner, int(runner.n_updates_done), initial)

    def resume(self, hyperparams: HyperParameters | None = None) -> tuple[Runner, Metrics]:
        """Continue the run in ``checkpoint_dir`` from its last checkpoint to ``n_steps``.

        Args:
            hyperparams: Replace those of the checkpoint.

        Returns:
            As `train`; the metrics begin with those of the run so far.

        Raises:
            ValueError: there is no checkpoint, or it belongs to an agent of another structure;
                nothing is left to train.
            NonFiniteError: as for `train`.
            Interrupted: likewise.
        """
        self._recorder.settle()
        runner, history = self._recorder.restore(self._template(), "last", highest_return)
        n_evals = history["returns"].shape[1] if "returns" in history else 0
        if history and n_evals != self.config.n_evals:
            raise CheckpointError(
                f"n_evals={self.config.n_evals}, but the run's evaluations so far are of {n_evals} "
                f"episodes, and one table holds all; use n_evals={n_evals}."
            )
        if hyperparams is not None:
            runner = runner.replace(hyperparams=self._checked(hyperparams))
        return self._train(runner, int(runner.n_updates_done), initial=False, history=history)

    def restore(
        self,
        mode: str = "best",
        best_fn: Callable[[Leaves], int] | None = None,
    ) -> tuple[Runner, Leaves]:
        """Load a checkpoint and collect it, as `collect_training` does.

        Args:
            mode: "last", or "best": the highest return, averaged over episodes and actors. Such
                an average says nothing where one actor's gain is another's loss, as in the
                hunting environments: give a ``best_fn`` there.
            best_fn: Chooses among the kept checkpoints: from their metrics, one row each, to
                the row.

        Returns:
            The runner, and the metrics of all evaluations up to the last checkpoint.

        Raises:
            ValueError: there is no checkpoint, or it belongs to an agent of another structure.
        """
        if mode not in ("best", "last"):
            raise ValueError(f"mode={mode!r} is unknown; choose 'best' or 'last'.")
        runner, history = self._recorder.restore(self._template(), mode, best_fn or highest_return)
        self.collect_training(runner, history)
        return runner, history

    def log_hyperparams(self, hyperparams: HyperParameters) -> dict[str, Any]:
        """Log the hyperparameters by name, and return them so."""
        values = flat_items(hyperparams)
        items = {name: np.asarray(value).tolist() for name, value in values.items()}
        for name, value in items.items():
            _logger.info("%s = %s", name, value)
        return items

    def init(self, rng: PRNGKeyArray | None, hyperparams: HyperParameters) -> Runner:
        """Build the runner from which training starts."""
        return self._begin(as_key(rng), self._checked(hyperparams))

    def step(self, runner: Runner) -> tuple[Runner, Metrics]:
        """Do one update: collect a rollout and learn from it.

        A policy whose numbers are not finite afterwards stays as it was, and is counted in
        ``runner.n_updates_skipped``.

        Returns:
            The runner, and the training metrics, each ``[n_policies]``.
        """
        runner, metrics, _ = self._step(runner)
        return runner, metrics

    # The training loop.

    def _train(
        self, runner: Runner, n_updates_done: int, initial: bool, history: Leaves | None = None
    ) -> tuple[Runner, Metrics]:
        """Run the blocks that are left, recording them if that was asked for."""
        sizes = self._block_sizes(n_updates_done, initial)

        def train() -> tuple[Training, Metrics]:
            if self._recorder.has_work and not initial and history is None:
                self._recorder.save(jax.device_get(strip_keys(runner)))
            return self._run(runner, sizes)

        training, metrics = self._recorder.record(
            lambda: jax.block_until_ready(train()), n_updates_done, history
        )
        self._raise_if_nonfinite(training)
        if history:
            metrics = jax.tree.map(jnp.asarray, joined(history, metrics))
        return training.runner, metrics

    def _refuse_to_be_traced(self, runner: Runner | None) -> None:
        if self._recorder.has_work:
            raise ValueError(
                "train writes checkpoints or calls callbacks, which jax.vmap cannot do; use an "
                "agent with checkpoint_dir=None and without callbacks there."
            )
        if runner is not None:
            raise ValueError("train continues a runner only outside of jax transformations.")
        if self.config.prng_impl is not None:
            raise ValueError(
                f"prng_impl={self.config.prng_impl!r} would draw for all members of a jax.vmap by "
                "the first one's key; use an agent with prng_impl=None there."
            )

    def _refuse_unrestorable_keys(self, rng: Any) -> None:
        """Refuse to save keys of a generator that a checkpoint's reader could not know."""
        impl, default = (str(jax.random.key_impl(key)) for key in (as_key(rng), jax.random.key(0)))
        if self.config.checkpoint_dir is None or self.config.prng_impl or impl == default:
            return
        raise ValueError(
            f"rng is a key of {impl!r}, and checkpoints are read with keys of {default!r}; pass "
            "jax.random.key(seed), and choose another generator by prng_impl."
        )

    def _raise_if_nonfinite(self, training: Training) -> None:
        found = np.asarray(training.nonfinite)
        if self.config.on_nonfinite == "stop" and found.any():
            text = describe_nonfinite(found, int(training.runner.n_updates_done))
            advice = "lower the learning rate, normalise rewards or values, or skip such updates by"
            raise NonFiniteError(f"{text}; {advice} on_nonfinite='skip'.")

    def _block_sizes(self, n_updates_done: int, initial: bool) -> list[int]:
        """Divide the updates that are left into blocks; an initial evaluation is one of none."""
        n_steps, frequency = self.config.n_steps, self.config.eval_frequency
        if n_updates_done >= n_steps:
            raise ValueError(
                f"the runner has done {n_updates_done} updates and n_steps={n_steps}: nothing is "
                "left to train. Give the agent a larger n_steps."
            )
        first_end = (n_updates_done // frequency + 1) * frequency
        ends = [n_updates_done, *range(first_end, n_steps, frequency), n_steps]
        return [0] * initial + np.diff(ends).tolist()

    def _checked(self, hyperparams: HyperParameters) -> HyperParameters:
        check_hyperparams(hyperparams, self.policies.n_policies)
        return as_arrays(hyperparams)

    def _template(self) -> Runner:
        """Shape a runner of this agent, for checkpoints to be read into."""
        return jax.eval_shape(self._init, jax.random.key(0), as_arrays(HyperParameters()))
