"""A training's loop: blocks of updates, each with an evaluation and a report."""

import abc
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback
from jaxtyping import Array, Bool, Int, PRNGKeyArray, PyTree

from jaxagents.compilation import (
    keeps_compiled_programs,
    quick_to_compile,
    side_by_side,
    with_few_arrays,
)
from jaxagents.concurrency import is_on_cpu, map_in_threads, with_members
from jaxagents.config import AgentConfig, structure_of
from jaxagents.finiteness import QUANTITIES
from jaxagents.hyperparameters import HyperParameters
from jaxagents.ippo.actor_critic import actor_of
from jaxagents.ippo.player import Metrics, Player
from jaxagents.leaves import pack, strip_keys, unpack
from jaxagents.recording import Recorder
from jaxagents.tables import lengthened, stack
from jaxagents.tracking import Callback
from jaxagents.types import Runner, Training, Updates

# From so many samples of a training up to so many of an update, on a CPU, it pays to compile longer
# and to take more memory so that actors and critics are trained at the same time: see
# benchmarks/RESULTS.md.
_MANY = 1_000_000
_MANY_TO_COMPILE_ANEW = 5_000_000  # where jax keeps what it compiles
_TOO_MANY = 500_000


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

    # How blocks are run: by the host one after the other, or as one program.

    def _run(self, runner: Runner, sizes: Sequence[int]) -> tuple[Training, Metrics]:
        """Run blocks of updates, each followed by an evaluation.

        The host is in between: callbacks may use jax there, and what is compiled for the updates
        alone is what a resumed training finds again, whatever is recorded of it.

        Args:
            runner: Where to begin.
            sizes: Updates of each block.

        Returns:
            The training at its end, and a row of metrics per block, NaN for those that did not run.
        """
        # A recorder has a bar of its own.
        is_shown = self.config.progress_bar and not self._recorder.has_work
        return self._run_blocks(runner, sizes, is_shown, self._compiled_updates(runner))

    def _run_blocks(
        self,
        runner: Runner,
        sizes: Sequence[int],
        is_shown: bool,
        update: Callable[..., Updates],
    ) -> tuple[Training, Metrics]:
        from tqdm.auto import tqdm

        training = self._before(runner)
        rows = []
        for size in tqdm(sizes, "Training", disable=not is_shown):
            training, row = self._run_block(training, jnp.asarray(size, jnp.int32), update)
            rows.append(jax.device_get(row))
            if self._recorder.call_back(self, training.runner) or training.stop:
                break
        return training, jax.tree.map(jnp.asarray, stack(lengthened(rows, len(sizes))))

    def _compiled_updates(self, runner: Runner) -> Callable[..., Updates]:
        """Choose how `_update_repeatedly` is compiled."""
        if self._pays_side_by_side(runner):
            return _update_side_by_side
        return TrainingLoop._update_repeatedly

    def _pays_side_by_side(self, runner: Runner) -> bool:
        """Tell whether actors and critics should be trained at the same time."""
        config = self.config
        are_independent = config.advantages == "gae" and not config.shared_torso
        n_samples = config.steps_per_update * self.environments.n_actors
        many = _MANY_TO_COMPILE_ANEW if keeps_compiled_programs() else _MANY
        pays = config.n_steps * n_samples >= many and n_samples <= _TOO_MANY
        return are_independent and pays and is_on_cpu(runner.n_updates_done)

    def _run_traced(
        self, rng: PRNGKeyArray, hyperparams: HyperParameters, sizes: Sequence[int]
    ) -> tuple[Training, Metrics]:
        """Train from the beginning, under `jax.vmap` or as a part of a compiled program."""
        train = partial(self._run_as_one_program, sizes=tuple(sizes))
        return with_members(train, partial(self._run_in_threads, sizes))(rng, hyperparams)

    def _run_in_threads(
        self, sizes: Sequence[int], members: Sequence[tuple[PRNGKeyArray, HyperParameters]]
    ) -> list[tuple[Training, Metrics]]:
        """Train several times from the beginning, each time on a core; alone, on all of them."""
        runners = [self._begin(*member) for member in members]
        if len(members) == 1:
            return [self._run(runners[0], sizes)]
        update = TrainingLoop._update_repeatedly
        train = partial(self._run_blocks, sizes=sizes, is_shown=False, update=update)
        # Compiled here once, instead of in each thread.
        train(runners[0], sizes=[0])
        return map_in_threads(train, runners, self.config.progress_bar)

    @partial(jax.jit, static_argnames=("self", "sizes"))
    def _run_as_one_program(
        self, rng: PRNGKeyArray, hyperparams: HyperParameters, sizes: tuple[int, ...]
    ) -> tuple[Training, Metrics]:
        """Train from the beginning; see `_run`."""

        def run_block(training: Training, now: tuple[Array, Array]) -> tuple[Training, Metrics]:
            return self._run_block(training, now[1], TrainingLoop._update_repeatedly)

        shown: Any = run_block
        if self.config.progress_bar:
            from jax_tqdm.scan_pbar import scan_tqdm

            shown = scan_tqdm(len(sizes), print_rate=1, desc="Training")(run_block)
        blocks = (jnp.arange(len(sizes)), jnp.asarray(sizes, jnp.int32))
        return jax.lax.scan(shown, self._before(self._begin(rng, hyperparams)), blocks)

    def _before(self, runner: Runner) -> Training:
        """Stand at the beginning of a training's first block."""
        nothing = jnp.zeros((self.policies.n_policies, len(QUANTITIES)), bool)
        return Training(runner=runner, stop=jnp.zeros((), bool), nonfinite=nothing)

    def _run_block(
        self, training: Training, n_updates: Int[Array, ""], update: Callable[..., Updates]
    ) -> tuple[Training, Metrics]:
        """Do some updates, evaluate, and report to the host; nothing after a stop."""
        updates = update(self, self._open_block(training, n_updates))
        evaluation = {}
        if self.config.n_evals:
            rng = jax.random.key(self.config.eval_seed)
            evaluation = self._evaluate(rng, actor_of(updates.runner), self.config.n_evals, True)
        return self._close_block(training, updates, evaluation)

    # The parts of a block, a program each.

    @quick_to_compile(static_argnames=("self",), optimized=False)
    def _begin(self, rng: PRNGKeyArray, hyperparams: HyperParameters) -> Runner:
        return self._init(rng, hyperparams)

    # Jitted to be traced once: what loops over it asks for the shapes of its results first.
    @with_few_arrays(static_argnames=("self",))
    def _step(self, runner: Runner) -> tuple[Runner, Metrics, Bool[Array, "policies quantities"]]:
        return self._update(runner)

    @quick_to_compile(static_argnames=("self",), optimized=False)
    def _open_block(self, training: Training, n_updates: Int[Array, ""]) -> Updates:
        """Stand before the block's first update; none are left after a stop."""
        _, shapes, nonfinite = jax.eval_shape(self._step, training.runner)
        return Updates(
            runner=training.runner,
            n_left=jnp.where(training.stop, 0, n_updates),
            nonfinite=jnp.zeros(nonfinite.shape, bool),
            n_finite=jnp.zeros(self.policies.n_policies, jnp.int32),
            total=jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.float32), shapes),
        )

    @with_few_arrays(static_argnames=("self",))
    def _update_repeatedly(self, updates: Updates) -> Updates:
        """Do the updates that are left; fewer where one fails."""

        def unfinished(updates: Updates) -> Bool[Array, ""]:
            return (updates.n_left > 0) & ~self._has_failed(updates.nonfinite)

        def update(updates: Updates) -> Updates:
            runner, metrics, nonfinite = self._step(updates.runner)
            finite = ~jnp.any(nonfinite, axis=1)
            return Updates(
                runner=runner,
                n_left=updates.n_left - 1,
                # Read as well as written: where nobody reads it XLA would keep other things in it,
                # of actors and critics alike, and these would wait for each other.
                nonfinite=updates.nonfinite | nonfinite,
                n_finite=updates.n_finite + finite,
                total=jax.tree.map(
                    lambda total, value: total + jnp.where(finite, value, 0.0),
                    updates.total,
                    metrics,
                ),
            )

        # The number is traced: a shorter last block is the same compiled loop.
        return jax.lax.while_loop(unfinished, update, updates)

    @quick_to_compile(static_argnames=("self",), optimized=False)
    def _close_block(
        self, training: Training, updates: Updates, evaluation: Metrics
    ) -> tuple[Training, Metrics]:
        """Make the block's row of metrics, and report it to the host."""
        runner, failed = updates.runner, self._has_failed(updates.nonfinite)
        metrics = {
            # NaN where no update was done.
            **jax.tree.map(lambda total: total / updates.n_finite, updates.total),
            "n_updates_done": runner.n_updates_done,
            "n_updates_skipped": runner.n_updates_skipped,
            **evaluation,
        }
        # One dtype that has a NaN, for the rows of blocks that never run.
        lost = training.stop | failed
        metrics = jax.tree.map(
            lambda leaf: jnp.where(lost, jnp.nan, leaf.astype(jnp.float32)), metrics
        )
        stop = lost | self._report(runner, metrics, failed)
        return Training(runner, stop, training.nonfinite | updates.nonfinite), metrics

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


# What updates are done on is the outcome of a program, and so nobody else's. It is given away here
# only: without overlapping, XLA takes a third longer for CartPole's updates then.
_update_side_by_side = side_by_side(
    TrainingLoop._update_repeatedly, static_argnames=("self",), donate_argnames=("updates",)
)
