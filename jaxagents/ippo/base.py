"""Independent PPO: the algorithm, top to bottom.

IPPO is PPO, vmapped over policies: losses and updates are written for one policy and its
samples, and the policies axis appears in a `jax.vmap` around them.

Source: de Witt et al. 2020, https://arxiv.org/abs/2011.09533; Schulman et al. 2017,
https://arxiv.org/abs/1707.06347.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from jaxagents.architecture import Network
from jaxagents.batches import make_batch, normalize_targets, with_estimates
from jaxagents.checkpointing import Leaves, strip_keys
from jaxagents.config import AgentConfig
from jaxagents.hyperparameters import (
    HyperParameters,
    OptimizerParams,
    as_arrays,
    check_hyperparams,
    flat_items,
    per_policy,
)
from jaxagents.ippo.actor_critic import actor_of
from jaxagents.ippo.player import Metrics, Player
from jaxagents.losses import ActorStats
from jaxagents.normalization import RunningStatistics
from jaxagents.optimization import init_network, run_epoch
from jaxagents.recording import Recorder, highest_return
from jaxagents.schedules import adapt_learning_rate, scheduled
from jaxagents.statistics import explained_variance
from jaxagents.tracing import as_key, is_traced
from jaxagents.tracking import Callback
from jaxagents.types import (
    ActorLoop,
    Batch,
    CriticLoop,
    NetworkState,
    Rollout,
    Runner,
    TimeStep,
    Training,
    Transition,
)

_logger = logging.getLogger(__name__)


class IPPOBase(Player):
    """A multi-agent IPPO agent; subclasses bring the distribution of actions.

    An agent is static under `jax.jit`: what its compiled methods read is fixed at construction,
    and assigning it raises. Trained states travel as `Runner` arguments; the agent merely keeps
    the one that it was given by `collect_training` or `restore`.

    Args:
        env: An environment of `jaxagents.make`, or any with the interface of
            `jaxagents.Environment`.
        env_params: Its parameters.
        config: Sizes and choices.
        callbacks: Called on the host with each `Evaluation` of a training; one that returns
            True ends the training there.

    Raises:
        TypeError: the environment's actions are not this agent's kind, or it breaks the protocol.
        ValueError: the configuration does not fit the environment.
    """

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

    # Public methods: Python that checks and waits, around one compiled method each.

    def train(
        self,
        rng: PRNGKeyArray | None,
        hyperparams: HyperParameters,
        runner: Runner | None = None,
    ) -> tuple[Runner, Metrics]:
        """Train for ``n_steps`` updates, evaluating every ``eval_frequency`` of them.

        Without checkpoints and callbacks it may be vmapped, over keys and over hyperparameters.

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
            ValueError: a hyperparameter is out of range; ``checkpoint_dir`` already holds a run;
                nothing is left to train.
        """
        if self._recorder.has_work and is_traced((rng, hyperparams, runner)):
            raise ValueError(
                "train writes checkpoints or calls callbacks, which jax.vmap cannot do; use an "
                "agent with checkpoint_dir=None and without callbacks there."
            )
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
        """
        runner, history = self._recorder.restore(self._template(), "last", highest_return)
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
        return self._init(as_key(rng), self._checked(hyperparams))

    def step(self, runner: Runner) -> tuple[Runner, Metrics]:
        """Do one update: collect a rollout and learn from it.

        Returns:
            The runner, and the training metrics, each ``[n_policies]``.
        """
        return self._step(runner)

    # The training loop.

    def _train(
        self, runner: Runner, n_updates_done: int, initial: bool, history: Leaves | None = None
    ) -> tuple[Runner, Metrics]:
        """Run the blocks that are left, recording them if that was asked for."""
        blocks = self._blocks(n_updates_done, initial)
        if not self._recorder.has_work:
            return self._run_blocks(runner, blocks)
        with self._recorder.recording(history):
            if not initial and history is None:
                self._recorder.save(jax.device_get(strip_keys(runner)))
            runner, metrics = jax.block_until_ready(self._run_blocks(runner, blocks))
        if history:
            metrics = {name: jnp.concatenate([history[name], metrics[name]]) for name in metrics}
        return runner, metrics

    def _blocks(self, n_updates_done: int, initial: bool) -> Int[Array, " blocks"]:
        """Divide the updates that are left into blocks; an initial evaluation is one of none."""
        n_steps, frequency = self.config.n_steps, self.config.eval_frequency
        if n_updates_done >= n_steps:
            raise ValueError(
                f"the runner has done {n_updates_done} updates and n_steps={n_steps}: nothing is "
                "left to train. Give the agent a larger n_steps."
            )
        first_end = (n_updates_done // frequency + 1) * frequency
        ends = [n_updates_done, *range(first_end, n_steps, frequency), n_steps]
        return jnp.asarray([0] * initial + np.diff(ends).tolist(), jnp.int32)

    @partial(jax.jit, static_argnames="self")
    def _init(self, rng: PRNGKeyArray, hyperparams: HyperParameters) -> Runner:
        rng, rng_actor, rng_critic, rng_env = jax.random.split(rng, 4)
        observation, env_state = self.environments.reset(rng_env, self.config.batch_size)

        def init_actor(args: tuple[PRNGKeyArray, OptimizerParams]) -> NetworkState:
            rng, params = args
            return init_network(self._init_actor_params(rng), self.config.optimizer(params))

        def init_critic(args: tuple[PRNGKeyArray, OptimizerParams]) -> NetworkState:
            rng, params = args
            return init_network(self.critic_network.init(rng), self.config.optimizer(params))

        n_policies = self.policies.n_policies
        optimizers = per_policy(hyperparams, n_policies)
        rngs_actor = jax.random.split(rng_actor, n_policies)
        rngs_critic = jax.random.split(rng_critic, n_policies)
        # One after the other: a user's initializer may call LAPACK, whose batched calls can wait
        # for each other for ever (see networks.orthogonal).
        return Runner(
            actor=jax.lax.map(init_actor, (rngs_actor, optimizers.actor_optimizer_params)),
            critic=jax.lax.map(init_critic, (rngs_critic, optimizers.critic_optimizer_params)),
            env_state=env_state,
            observation=observation,
            memory=self._empty_memory(self.config.batch_size, self.policies.n_actors),
            normalizers=self._no_normalizers(),
            learning_rate=(
                optimizers.actor_optimizer_params.learning_rate
                if self.config.learning_rate_schedule == "kl"
                else None
            ),
            rng=rng,
            hyperparams=hyperparams,
            n_updates_done=jnp.zeros((), jnp.int32),
        )

    @partial(jax.jit, static_argnames="self")
    def _step(self, runner: Runner) -> tuple[Runner, Metrics]:
        return self._update(runner)

    @partial(jax.jit, static_argnames="self")
    def _run_blocks(
        self, runner: Runner, block_sizes: Int[Array, " blocks"]
    ) -> tuple[Runner, Metrics]:
        """Scan over blocks of updates, each followed by an evaluation."""
        n_blocks = len(block_sizes)
        block: Any = self._training_block
        if self.config.progress_bar:
            from jax_tqdm.scan_pbar import scan_tqdm

            block = scan_tqdm(n_blocks, print_rate=1, desc="Training")(block)
        training = Training(runner=runner, stop=jnp.zeros((), bool))
        training, metrics = jax.lax.scan(block, training, (jnp.arange(n_blocks), block_sizes))
        return training.runner, metrics

    def _training_block(
        self, training: Training, block: tuple[Array, Array]
    ) -> tuple[Training, Metrics]:
        """Do some updates, evaluate, and report to the host; nothing once it has said stop."""
        _, n_updates = block

        def run() -> tuple[Training, Metrics]:
            runner, metrics = self._updates(training.runner, n_updates)
            metrics |= {"n_updates_done": runner.n_updates_done}
            if self.config.n_evals:
                rng = jax.random.key(self.config.eval_seed)
                metrics |= self._evaluate(rng, actor_of(runner), self.config.n_evals, True)
            # One dtype that has a NaN, for the rows of blocks that never run.
            metrics = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), metrics)
            return Training(runner=runner, stop=self._report(runner, metrics)), metrics

        def skip() -> tuple[Training, Metrics]:
            shapes = jax.eval_shape(run)[1]
            return training, jax.tree.map(lambda leaf: jnp.full(leaf.shape, jnp.nan), shapes)

        return jax.lax.cond(training.stop, skip, run) if self._recorder.has_work else run()

    def _updates(self, runner: Runner, n_updates: Int[Array, ""]) -> tuple[Runner, Metrics]:
        """Do ``n_updates`` and average their metrics, NaN for none."""
        shapes = jax.eval_shape(self._update, runner)[1]

        def add_update(_: Array, carry: tuple[Runner, Metrics]) -> tuple[Runner, Metrics]:
            runner, total = carry
            runner, metrics = self._update(runner)
            return runner, jax.tree.map(jnp.add, total, metrics)

        # The number is traced: a shorter last block is the same compiled loop.
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        runner, total = jax.lax.fori_loop(0, n_updates, add_update, (runner, zeros))
        return runner, jax.tree.map(lambda leaf: leaf / n_updates, total)

    # The stages of one update.

    def _update(self, runner: Runner) -> tuple[Runner, Metrics]:
        n_policies = self.policies.n_policies
        rng, rng_rollout, rng_actor, rng_critic = jax.random.split(runner.rng, 4)
        hyperparams = per_policy(self._scheduled(runner), n_policies)
        runner, transitions = self._collect_rollout(runner, rng_rollout)
        runner, batch = self._make_batch(runner, transitions, hyperparams)
        actor, actor_metrics = jax.vmap(self._update_actor)(
            runner.actor, batch, hyperparams, jax.random.split(rng_actor, n_policies)
        )
        batch, value_statistics, value_metrics = jax.vmap(self._make_targets)(
            actor, batch, runner.normalizers.value, hyperparams
        )
        critic, critic_metrics = jax.vmap(self._update_critic)(
            runner.critic, batch, hyperparams, jax.random.split(rng_critic, n_policies)
        )
        runner = runner.replace(
            actor=actor,
            critic=critic,
            normalizers=runner.normalizers._replace(value=value_statistics),
            learning_rate=adapt_learning_rate(
                runner.learning_rate, actor_metrics["kl"], hyperparams.kl_target
            ),
            rng=rng,
            n_updates_done=runner.n_updates_done + 1,
        )
        return runner, actor_metrics | critic_metrics | value_metrics

    def _collect_rollout(self, runner: Runner, rng: PRNGKeyArray) -> tuple[Runner, Transition]:
        """Act for ``rollout_length`` steps; transitions are ``[time, envs, actors, ...]``."""

        def act(rollout: Rollout, rng: PRNGKeyArray) -> tuple[Rollout, Transition]:
            rng_action, rng_env = jax.random.split(rng)
            head, memory = self._heads(actor_of(runner), rollout.observation, rollout.memory)
            action = self._sample(rng_action, head)
            step, env_state = self.environments.step(
                rng_env, rollout.env_state, self._environment_action(action)
            )
            over = jnp.broadcast_to(step.episode_over[:, None], step.active.shape)
            transition = Transition(
                observation=rollout.observation,
                memory=rollout.memory,
                action=action,
                log_prob=self._log_prob(head, action),
                reward=self._reward(step, runner.n_updates_done),
                terminated=step.terminated,
                truncated=step.truncated,
                active=step.active,
                episode_over=over,
                final_observation=step.final_observation._replace(action_mask=None),
            )
            memory = self.actor_network.emptied(memory, over)
            return Rollout(env_state, step.observation, memory), transition

        rollout = Rollout(runner.env_state, runner.observation, runner.memory.actor)
        rollout, transitions = jax.lax.scan(
            act, rollout, jax.random.split(rng, self.config.rollout_length)
        )
        runner = runner.replace(
            env_state=rollout.env_state,
            observation=rollout.observation,
            memory=runner.memory._replace(actor=rollout.memory),
        )
        return runner, transitions

    def _reward(
        self, step: TimeStep, n_updates_done: Int[Array, ""]
    ) -> Float[Array, "envs actors"]:
        """Give the reward to learn from: the environment's, and early on its shaped one too."""
        if step.shaped_reward is None or self.config.shaped_reward_steps is None:
            return step.reward
        # By updates, not by environment steps: these can be too many for an int32.
        n_updates = self.config.shaped_reward_steps / self.config.steps_per_update
        factor = jnp.maximum(0.0, 1.0 - n_updates_done / n_updates)
        return step.reward + factor * step.shaped_reward

    def _make_batch(
        self, runner: Runner, transitions: Transition, hyperparams: HyperParameters
    ) -> tuple[Runner, Batch]:
        """Value the rollout and make of it each policy's batch, ``[policies, ...]``."""
        valuation, memory = self._value_rollout(runner, transitions)
        local = transitions.observation._replace(global_state=None)
        # Final observations have served, in the valuation: they need not go to the policies.
        transitions = transitions._replace(observation=local, final_observation=local)
        make = partial(
            make_batch,
            chunk_length=self.config.chunk_length,
            rewards_after_death=self.environments.rewards_after_death,
        )
        batch, normalizers = jax.vmap(make)(
            self.policies.to_policies(transitions, axis=2),
            valuation,
            runner.normalizers,
            self.policies.membership(),
            hyperparams,
        )
        memory = runner.memory._replace(critic=memory)
        return runner.replace(memory=memory, normalizers=normalizers), batch

    def _update_actor(
        self, actor: NetworkState, batch: Batch, hyperparams: HyperParameters, rng: PRNGKeyArray
    ) -> tuple[NetworkState, Metrics]:
        """Train one policy's actor until ``actor_epochs`` or ``kl_threshold`` is reached."""
        optimizer = self.config.optimizer(hyperparams.actor_optimizer_params)
        loss = partial(self._actor_loss, hyperparams=hyperparams)

        def unfinished(loop: ActorLoop) -> Bool[Array, ""]:
            # Stop on the whole epoch's KL: one minibatch's estimate is too noisy.
            return (loop.epoch < self.config.actor_epochs) & (
                loop.stats.kl <= hyperparams.kl_threshold
            )

        def train_epoch(loop: ActorLoop) -> ActorLoop:
            rng, rng_epoch = jax.random.split(loop.rng)
            samples = self._reestimated(loop.actor, batch, hyperparams)
            actor, stats, norm = self._run_epoch(
                self.actor_network, loop.actor, samples, loss, optimizer, rng_epoch
            )
            return ActorLoop(
                actor=actor, stats=stats, gradient_norm=norm, epoch=loop.epoch + 1, rng=rng
            )

        zero = jnp.zeros(())
        loop = ActorLoop(
            actor=actor,
            stats=ActorStats(loss=zero, entropy=zero, kl=zero, clip_fraction=zero),
            gradient_norm=zero,
            epoch=jnp.zeros((), jnp.int32),
            rng=rng,
        )
        loop = jax.lax.while_loop(unfinished, train_epoch, loop)
        return loop.actor, {
            "actor_loss": loop.stats.loss,
            "entropy": loop.stats.entropy,
            "kl": loop.stats.kl,
            "clip_fraction": loop.stats.clip_fraction,
            "actor_gradient_norm": loop.gradient_norm,
            "actor_epochs": loop.epoch,
        }

    def _make_targets(
        self,
        actor: NetworkState,
        batch: Batch,
        statistics: RunningStatistics | None,
        hyperparams: HyperParameters,
    ) -> tuple[Batch, RunningStatistics | None, Metrics]:
        """Make what one policy's critic should learn, and tell how much of it the values explain.

        Returns:
            The batch; the statistics of the targets, where these are normalised; a metric.
        """
        batch = self._reestimated(actor, batch, hyperparams)
        explained = explained_variance(batch.path.value, batch.value_target, batch.value_weight)
        batch, statistics = normalize_targets(batch, statistics)
        batch = self._with_critic_features(actor.params, batch)
        return batch, statistics, {"explained_variance": explained}

    def _reestimated(
        self, actor: NetworkState, batch: Batch, hyperparams: HyperParameters
    ) -> Batch:
        """Estimate advantages and targets for a policy that has moved, if they depend on that."""
        if self.config.advantages == "gae":
            return batch
        log_ratio = self._log_ratio(actor.params, batch)
        return with_estimates(batch, hyperparams, self.config.n_chunks, log_ratio)

    def _update_critic(
        self, critic: NetworkState, batch: Batch, hyperparams: HyperParameters, rng: PRNGKeyArray
    ) -> tuple[NetworkState, Metrics]:
        """Train one policy's critic for ``critic_epochs``."""
        optimizer = self.config.optimizer(hyperparams.critic_optimizer_params)
        loss = partial(self._critic_loss, hyperparams=hyperparams)

        def train_epoch(_: Array, loop: CriticLoop) -> CriticLoop:
            rng, rng_epoch = jax.random.split(loop.rng)
            critic, mean, norm = self._run_epoch(
                self.critic_network, loop.critic, batch, loss, optimizer, rng_epoch
            )
            return CriticLoop(critic=critic, loss=mean, gradient_norm=norm, rng=rng)

        zero = jnp.zeros(())
        loop = CriticLoop(critic=critic, loss=zero, gradient_norm=zero, rng=rng)
        loop = jax.lax.fori_loop(0, self.config.critic_epochs, train_epoch, loop)
        return loop.critic, {"critic_loss": loop.loss, "critic_gradient_norm": loop.gradient_norm}

    def _run_epoch(
        self, network: Network, *arguments: Any
    ) -> tuple[NetworkState, Any, Float[Array, ""]]:
        """Call `run_epoch` with the minibatches that suit a network."""
        return run_epoch(
            *arguments,
            n_minibatches=self.config.n_minibatches,
            unit="sequence" if network.recurrent else self.config.minibatch_unit,
        )

    def _scheduled(self, runner: Runner) -> HyperParameters:
        """Give the hyperparameters of this update.

        By the updates done, never by an optimizer's own count: a policy that stops its epochs
        early would anneal more slowly.
        """
        progress = runner.n_updates_done / self.config.n_steps
        return scheduled(runner.hyperparams, self.config, progress, runner.learning_rate)

    # The host's side.

    def _report(self, runner: Runner, metrics: Metrics) -> Bool[Array, ""]:
        """Hand an evaluation to the host, which answers whether to stop."""
        if not self._recorder.has_work:
            return jnp.zeros((), bool)
        stop = jax.ShapeDtypeStruct((), bool)
        return io_callback(self._on_evaluation, stop, strip_keys(runner), metrics, ordered=True)

    def _on_evaluation(self, runner: Runner, metrics: Metrics) -> np.bool_:
        return self._recorder.on_evaluation(runner, metrics)

    def _checked(self, hyperparams: HyperParameters) -> HyperParameters:
        check_hyperparams(hyperparams, self.policies.n_policies)
        return as_arrays(hyperparams)

    def _template(self) -> Runner:
        """Shape a runner of this agent, for checkpoints to be read into."""
        return jax.eval_shape(self._init, jax.random.key(0), as_arrays(HyperParameters()))

    def _describe(self) -> dict[str, Any]:
        return {
            "agent": type(self).__name__,
            "environment": type(self.env).__name__,
            "policy_of_actor": self.policies.policy_of_actor.tolist(),
        }
