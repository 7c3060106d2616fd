"""A training as a whole: blocks of updates, their evaluations, and what is recorded of them."""

import abc
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback
from jaxtyping import Array, Bool, Int, PRNGKeyArray, PyTree

from jaxagents.config import AgentConfig, structure_of
from jaxagents.errors import CheckpointError
from jaxagents.finiteness import QUANTITIES, NonFiniteError, describe_nonfinite
from jaxagents.hyperparameters import (
    HyperParameters,
    as_arrays,
    check_hyperparams,
    flat_items,
)
from jaxagents.ippo.actor_critic import actor_of
from jaxagents.ippo.player import Metrics, Player
from jaxagents.leaves import Leaves, pack, strip_keys, unpack
from jaxagents.recording import Recorder, highest_return
from jaxagents.tables import joined, lengthened, stack
from jaxagents.tracing import as_key, is_traced
from jaxagents.tracking import Callback
from jaxagents.types import Blocks, Runner, Training, Updates

_logger = logging.getLogger(__name__)


class Trainer(Player):
    """Trains by an algorithm that subclasses bring: how to begin, and how to do one update."""

    def __init__(
        self,
        env: Any,
        env_params: PyTree,
        config: AgentConfig,
        callbacks: Sequence[Callback] = (),
    ):
        super().__init__(env, env_params, config)
        self._recorder = Recorder(config, callbacks, metadata=self._describe())
        self._freeze(except_for="_collected")

    # What the algorithm brings.

    @abc.abstractmethod
    def _init(self, rng: PRNGKeyArray, hyperparams: HyperParameters) -> Runner:
        """Build the runner from which training starts."""

    @abc.abstractmethod
    def _update(self, runner: Runner) -> tuple[Runner, Metrics, Bool[Array, "policies quantities"]]:
        """Do one update.

        Returns:
            The runner, the training metrics, each ``[n_policies]``, and what is not finite, of the
            `QUANTITIES`; policies of which something is not have stayed as they were.
        """

    # Public methods: Python that checks and waits, around one compiled method each.

    def train(
        self,
        rng: PRNGKeyArray | None,
        hyperparams: HyperParameters,
        runner: Runner | None = None,
    ) -> tuple[Runner, Metrics]:
        """Train for ``n_steps`` updates, evaluating every ``eval_frequency`` of them.

        Without checkpoints and callbacks it may be vmapped, over keys and over hyperparameters.
        With them it runs in another thread, where context managers of jax do not apply.

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
                or cannot be written; nothing is left to train.
            NonFiniteError: a loss, a gradient or a parameter is no longer finite, and
                ``on_nonfinite`` is "stop". (Under `jax.vmap` nothing can be raised: the rows of
                the metrics from there on are NaN.)
            Interrupted: of an agent with checkpoints or callbacks, by Ctrl-C or SIGTERM, after the
                block in flight; the second one comes at once.
        """
        if self._recorder.has_work and is_traced((rng, hyperparams, runner)):
            raise ValueError(
                "train writes checkpoints or calls callbacks, which jax.vmap cannot do; use an "
                "agent with checkpoint_dir=None and without callbacks there."
            )
        self._recorder.settle()
        self._recorder.refuse_to_overwrite()
        if runner is None:
            runner = self.init(rng, hyperparams)
            return self._train(runner, 0, initial=self.config.initial_evaluation)
        if is_traced(runner):
            raise ValueError("train continues a runner only outside of jax transformations.")
        runner = runner.replace(hyperparams=self._checked(hyperparams))
        n_updates_done = int(runner.n_updates_done)
        return self._train(runner, n_updates_done, initial=self.config.initial_evaluation)

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
            if self._recorder.has_callbacks:
                return self._run_with_callbacks(runner, sizes)
            training, rows = self._run(runner, sizes, len(sizes))
            return training, {name: values[: len(sizes)] for name, values in rows.items()}

        if is_traced(runner):
            training, metrics = train()
            return training.runner, metrics
        training, metrics = self._recorder.record(
            lambda: jax.block_until_ready(train()), n_updates_done, history
        )
        self._raise_if_nonfinite(training)
        if history:
            metrics = jax.tree.map(jnp.asarray, joined(history, metrics))
        return training.runner, metrics

    def _run_with_callbacks(self, runner: Runner, sizes: Sequence[int]) -> tuple[Training, Metrics]:
        """Run blocks one at a time, so that callbacks may use jax.

        Inside a compiled program they could not: what they compute could wait for the program that
        waits for them.
        """
        rows = []
        while True:
            training, block = self._run(runner, sizes[len(rows) :], 1)
            rows.append({name: values[0] for name, values in jax.device_get(block).items()})
            runner = training.runner
            stop = self._recorder.call_back(self, runner) or bool(training.stop)
            if stop or len(rows) == len(sizes):
                return training, jax.tree.map(jnp.asarray, stack(lengthened(rows, len(sizes))))

    def _run(self, runner: Runner, sizes: Sequence[int], n_blocks: int) -> tuple[Training, Metrics]:
        """Run the first ``n_blocks`` blocks; see `_run_blocks`."""
        # Padded to what a whole run may need: a resumed one is the same compiled program, and so
        # comes to the same bits.
        padded = np.zeros(self.config.n_steps // self.config.eval_frequency + 3, np.int32)
        padded[: len(sizes)] = sizes
        # A recorder has a bar of its own.
        n_shown = len(sizes) if self.config.progress_bar and not self._recorder.has_work else 0
        return self._run_blocks(runner, jnp.asarray(padded), n_blocks, n_shown)

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

    @partial(jax.jit, static_argnames="self")
    def _begin(self, rng: PRNGKeyArray, hyperparams: HyperParameters) -> Runner:
        return self._init(rng, hyperparams)

    # This and `_training_block` are jitted to be traced once: what loops over them asks for the
    # shapes of their results first.
    @partial(jax.jit, static_argnames="self")
    def _step(self, runner: Runner) -> tuple[Runner, Metrics, Bool[Array, "policies quantities"]]:
        return self._update(runner)

    @partial(jax.jit, static_argnames=("self", "n_shown"))
    def _run_blocks(
        self,
        runner: Runner,
        sizes: Int[Array, " blocks"],
        n_blocks: Int[Array, ""],
        n_shown: int,
    ) -> tuple[Training, Metrics]:
        """Run blocks of updates, each followed by an evaluation.

        Args:
            runner: Where to begin.
            sizes: Updates of each block.
            n_blocks: How many of the blocks to run.
            n_shown: The same for the progress bar; 0 shows none.

        Returns:
            The training at its end, and a row of metrics per block, NaN for those that did not run.
        """
        nothing = jnp.zeros((self.policies.n_policies, len(QUANTITIES)), bool)
        training = Training(runner=runner, stop=jnp.zeros((), bool), nonfinite=nothing)
        row = jax.eval_shape(self._training_block, training, sizes[0])[1]
        rows = jax.tree.map(lambda leaf: jnp.full((len(sizes), *leaf.shape), jnp.nan), row)

        def unfinished(blocks: Blocks) -> Bool[Array, ""]:
            unfinished = blocks.n_done < n_blocks
            # Where nothing is recorded a training may be vmapped, and one of many cannot end alone.
            return unfinished & ~blocks.training.stop if self._recorder.has_work else unfinished

        def run_block(i: Any, blocks: Blocks) -> Blocks:
            training, row = self._training_block(blocks.training, sizes[i])
            rows = jax.tree.map(lambda rows, row: rows.at[i].set(row), blocks.rows, row)
            return Blocks(n_done=i + 1, training=training, rows=rows)

        shown: Any = run_block
        if n_shown:
            from jax_tqdm.loop_pbar import loop_tqdm

            shown = loop_tqdm(n_shown, print_rate=1, desc="Training")(run_block)
        start = Blocks(n_done=jnp.zeros((), jnp.int32), training=training, rows=rows)
        blocks = jax.lax.while_loop(unfinished, lambda blocks: shown(blocks.n_done, blocks), start)
        return blocks.training, blocks.rows

    @partial(jax.jit, static_argnames="self")
    def _training_block(
        self, training: Training, n_updates: Int[Array, ""]
    ) -> tuple[Training, Metrics]:
        """Do some updates, evaluate, and report to the host; nothing after a stop."""
        n_updates = jnp.where(training.stop, 0, n_updates)
        runner, metrics, nonfinite = self._updates(training.runner, n_updates)
        failed = self._has_failed(nonfinite)
        metrics |= {
            "n_updates_done": runner.n_updates_done,
            "n_updates_skipped": runner.n_updates_skipped,
        }
        if self.config.n_evals:
            rng = jax.random.key(self.config.eval_seed)
            metrics |= self._evaluate(rng, actor_of(runner), self.config.n_evals, True)
        # One dtype that has a NaN, for the rows of blocks that never run.
        lost = training.stop | failed
        metrics = jax.tree.map(
            lambda leaf: jnp.where(lost, jnp.nan, leaf.astype(jnp.float32)), metrics
        )
        stop = lost | self._report(runner, metrics, failed)
        return Training(runner, stop, training.nonfinite | nonfinite), metrics

    def _updates(
        self, runner: Runner, n_updates: Int[Array, ""]
    ) -> tuple[Runner, Metrics, Bool[Array, "policies quantities"]]:
        """Do ``n_updates`` and average their metrics, NaN for none; fewer where one fails."""
        _, shapes, nonfinite = jax.eval_shape(self._step, runner)

        def unfinished(loop: Updates) -> Bool[Array, ""]:
            return (loop.n_done < n_updates) & ~self._has_failed(loop.nonfinite)

        def update(loop: Updates) -> Updates:
            runner, metrics, nonfinite = self._step(loop.runner)
            finite = ~jnp.any(nonfinite, axis=1)
            return Updates(
                runner=runner,
                n_done=loop.n_done + 1,
                nonfinite=nonfinite,
                n_finite=loop.n_finite + finite,
                total=jax.tree.map(
                    lambda total, value: total + jnp.where(finite, value, 0.0), loop.total, metrics
                ),
            )

        # The number is traced: a shorter last block is the same compiled loop.
        nothing = jnp.zeros(nonfinite.shape, bool)
        n_finite = jnp.zeros(self.policies.n_policies, jnp.int32)
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.float32), shapes)
        start = Updates(runner, jnp.zeros((), jnp.int32), nothing, n_finite, zeros)
        loop = jax.lax.while_loop(unfinished, update, start)
        means = jax.tree.map(lambda total: total / loop.n_finite, loop.total)
        return loop.runner, means, loop.nonfinite

    def _has_failed(self, nonfinite: Bool[Array, "policies quantities"]) -> Bool[Array, ""]:
        """Tell whether numbers that are not finite end the training."""
        return jnp.any(nonfinite) & (self.config.on_nonfinite == "stop")

    # The host's side.

    def _report(self, runner: Runner, metrics: Metrics, failed: Bool[Array, ""]) -> Bool[Array, ""]:
        """Hand an evaluation to the host, which answers whether to stop."""
        if not self._recorder.has_work:
            return jnp.zeros((), bool)
        report = (strip_keys(runner), metrics, failed)
        shapes = jax.eval_shape(lambda: report)
        stop = jax.ShapeDtypeStruct((), bool)
        return io_callback(partial(self._on_evaluation, shapes), stop, pack(report), ordered=True)

    def _on_evaluation(self, shapes: PyTree, report: dict[str, Any]) -> np.bool_:
        runner, metrics, failed = unpack(report, shapes)
        # What came before a failure in the same block is not kept: going on from it would fail.
        return np.bool_(True) if failed else self._recorder.on_evaluation(runner, metrics)

    def _checked(self, hyperparams: HyperParameters) -> HyperParameters:
        check_hyperparams(hyperparams, self.policies.n_policies)
        return as_arrays(hyperparams)

    def _template(self) -> Runner:
        """Shape a runner of this agent, for checkpoints to be read into."""
        return jax.eval_shape(self._init, jax.random.key(0), as_arrays(HyperParameters()))

    def _describe(self) -> dict[str, Any]:
        """Tell what checkpoints of this agent's training have in common, as plain data."""
        return {
            "agent": type(self).__name__,
            "environment": type(self.env).__name__,
            "policy_of_actor": self.policies.policy_of_actor.tolist(),
            **structure_of(self.config),
        }
