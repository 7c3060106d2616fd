"""The compiled part of a training: blocks of updates, each with an evaluation and a report."""

import abc
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback
from jaxtyping import Array, Bool, Int, PRNGKeyArray, PyTree

from jaxagents.concurrency import (
    is_on_cpu,
    keeps_compiled_programs,
    map_in_threads,
    side_by_side,
    with_members,
)
from jaxagents.config import AgentConfig, structure_of
from jaxagents.finiteness import QUANTITIES
from jaxagents.hyperparameters import HyperParameters
from jaxagents.ippo.actor_critic import actor_of
from jaxagents.ippo.player import Metrics, Player
from jaxagents.leaves import pack, strip_keys, unpack
from jaxagents.recording import Recorder
from jaxagents.tracking import Callback
from jaxagents.types import Blocks, Runner, Training, Updates

# Between these, on a CPU, it pays to compile longer so that actors and critics are trained at the
# same time: see benchmarks/RESULTS.md. The matrix products of fewer samples are so short that XLA
# does not leave the thread that it is in, and those of more fill all cores anyway.
_LONG = 100_000  # environment steps of a training
_LONG_ENOUGH_TO_COMPILE_ANEW = 5_000_000  # likewise, where jax keeps what it compiles
_SAMPLES = (4_000, 20_000)  # of an update


class TrainingLoop(Player):
    """Loops over an algorithm that subclasses bring: how to begin, and how to do one update."""

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

    # How blocks are run: alone, or as one of many.

    def _run(self, runner: Runner, sizes: Sequence[int], n_blocks: int) -> tuple[Training, Metrics]:
        """Run the first ``n_blocks`` blocks; see `_run_blocks`."""
        # A recorder has a bar of its own.
        n_shown = len(sizes) if self.config.progress_bar and not self._recorder.has_work else 0
        run_blocks = _run_blocks_side_by_side if self._pays_side_by_side(runner) else _run_blocks
        training, rows = run_blocks(self, runner, *self._blocks(sizes, n_blocks), n_shown)
        return training, _first_rows(rows, len(sizes))

    def _blocks(
        self, sizes: Sequence[int], n_blocks: int
    ) -> tuple[Int[Array, " blocks"], Int[Array, ""]]:
        """Give the blocks as `_run_blocks` takes them.

        Padded to what a whole run may need: a resumed one is the same compiled program, and so
        comes to the same bits.
        """
        padded = np.zeros(self.config.n_steps // self.config.eval_frequency + 3, np.int32)
        padded[: len(sizes)] = sizes
        return jnp.asarray(padded), jnp.asarray(n_blocks, jnp.int32)

    def _pays_side_by_side(self, runner: Runner) -> bool:
        """Tell whether actors and critics should be trained at the same time."""
        config = self.config
        are_independent = config.advantages == "gae" and not config.shared_torso
        long = _LONG_ENOUGH_TO_COMPILE_ANEW if keeps_compiled_programs() else _LONG
        is_long = config.n_steps * config.steps_per_update >= long
        fewest, most = _SAMPLES
        is_medium = fewest <= config.steps_per_update * self.environments.n_actors <= most
        return are_independent and is_long and is_medium and is_on_cpu(runner.n_updates_done)

    def _run_traced(
        self, rng: PRNGKeyArray, hyperparams: HyperParameters, sizes: Sequence[int]
    ) -> tuple[Training, Metrics]:
        """Train from the beginning, under `jax.vmap` or as a part of a compiled program."""
        n_shown = len(sizes) if self.config.progress_bar else 0

        def train(rng: PRNGKeyArray, hyperparams: HyperParameters) -> tuple[Training, Metrics]:
            runner = self._begin(rng, hyperparams)
            training, rows = self._run_blocks(runner, *self._blocks(sizes, len(sizes)), n_shown)
            return training, _first_rows(rows, len(sizes))

        train_members = partial(self._run_in_threads, sizes)
        return with_members(train, train_members)(rng, hyperparams)

    def _run_in_threads(
        self, sizes: Sequence[int], members: Sequence[tuple[PRNGKeyArray, HyperParameters]]
    ) -> list[tuple[Training, Metrics]]:
        """Train several times from the beginning, each time on a core."""
        blocks = self._blocks(sizes, len(sizes))
        runners = [self._begin(*member) for member in members]
        # In the threads it would be compiled by each.
        program = self._run_blocks.lower(self, runners[0], *blocks, n_shown=0).compile()

        def train(runner: Runner) -> tuple[Training, Metrics]:
            training, rows = jax.block_until_ready(program(runner, *blocks))
            return training, _first_rows(rows, len(sizes))

        return map_in_threads(train, runners, self.config.progress_bar)

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

    def _describe(self) -> dict[str, Any]:
        """Tell what checkpoints of this agent's training have in common, as plain data."""
        return {
            "agent": type(self).__name__,
            "environment": type(self.env).__name__,
            "policy_of_actor": self.policies.policy_of_actor.tolist(),
            **structure_of(self.config),
        }


def _first_rows(metrics: Metrics, n_rows: int) -> Metrics:
    """Leave out the rows of blocks that a run does not have."""
    return {name: values[:n_rows] for name, values in metrics.items()}


_run_blocks = TrainingLoop._run_blocks
_run_blocks_side_by_side = side_by_side(_run_blocks, static_argnames=("self", "n_shown"))
