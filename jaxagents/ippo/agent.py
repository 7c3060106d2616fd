"""The base class of agents: environment, policies, networks, and the methods that apply them."""

import abc
import logging
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key, PRNGKeyArray, UInt32

from jaxagents.compiler.devices import Devices
from jaxagents.compiler.forks import check_has_threads
from jaxagents.compiler.jit import compiled_for_speed, compiled_quickly, is_traced
from jaxagents.compiler.platform import check_platform
from jaxagents.compiler.random_keys import as_key, key_of
from jaxagents.config import AgentConfig, MakeOptimizer
from jaxagents.environments.batch import EnvironmentBatch
from jaxagents.environments.factory import batch_of, warn_of_endless_episodes
from jaxagents.environments.sides.side import Side
from jaxagents.environments.spaces import ActionSpace
from jaxagents.environments.time_limits import time_limit_of, warn_of_short_episodes
from jaxagents.evaluation.diagnosis import Task, diagnose
from jaxagents.evaluation.episodes import Episode, EpisodeView
from jaxagents.evaluation.statistics import summarize
from jaxagents.hyperparameters import (
    HyperParameters,
    as_arrays,
    check_hyperparams,
    check_is_hyperparams,
    flat_items,
)
from jaxagents.ippo.actor_critic import ActorCritic
from jaxagents.ippo.cloning import Cloning
from jaxagents.ippo.collector import Collector
from jaxagents.ippo.distributions import Distribution
from jaxagents.ippo.freezing import check_paths
from jaxagents.ippo.frozen import Frozen, shared
from jaxagents.ippo.measured_losses import warn_of_measured_losses
from jaxagents.ippo.opponents import Policies
from jaxagents.ippo.player import Player
from jaxagents.ippo.population.members import best_member, count_members, member_of, members_first
from jaxagents.ippo.population.selection import VARIED, Selection
from jaxagents.ippo.population.training import resume_population, train_population
from jaxagents.ippo.replay import Replay
from jaxagents.ippo.rollout import (
    Acting,
    Record,
    Rollout,
    as_transitions,
    check_rollout,
    with_structure,
)
from jaxagents.ippo.runners import Runners, check_can_train, check_is_runner, check_is_single
from jaxagents.ippo.training_run import TrainingRun
from jaxagents.ippo.vmapped_training import check_can_be_traced, train_under_vmap
from jaxagents.networks.network import Network
from jaxagents.ppo.finiteness import NonFinite, Residues, skip_nonfinite
from jaxagents.ppo.optimization import optimizer_of
from jaxagents.ppo.policy_map import PolicyMap, make_policy_map
from jaxagents.training.callbacks import Callback
from jaxagents.training.named_arrays import Leaves
from jaxagents.training.recorder import Recorder
from jaxagents.training.saved_policy import PARTS
from jaxagents.training.saved_run import highest_return, structure_of
from jaxagents.types import (
    Memory,
    Metrics,
    MetricStats,
    NetworkParams,
    Observation,
    PyTree,
    Runner,
    Transition,
    UpdateKeys,
)

_logger = logging.getLogger(__name__)
# Configuration fields that no program reads, with their values in the part that equal agents share.
_OF_RECORDER: dict[str, Any] = {"checkpoint_dir": None, "keep_latest": 1, "keep_best": 0}


class Agent(Frozen, abc.ABC):
    """Policies for an environment, and the public methods that apply them.

    An agent is static under `jax.jit`: what its compiled methods read is fixed at construction,
    and assigning an attribute raises AttributeError. Trained states are `Runner` arguments; the
    agent only keeps the one given to `collect_training` or loaded by `restore`.

    Attributes:
        env: The environment.
        env_params: Its parameters.
        config: Sizes and choices.
        environments: The batch of environments that the agent plays.
        distribution: The distribution over actions.
        policies: Which policy each actor has.
        networks: The actor and critic networks.
        collector: Collects rollouts.
        optimizer: Builds a network's optimizer.
        n_minibatches: Minibatches per epoch over one rollout.
        replay: Adds earlier rollouts to an update's batch; None: no replay.
        runners: Builds and recognises runners.
        recorder: Writes checkpoints, and calls callbacks and trackers.
        player: Applies trained policies.
        run: Trains the agent.
        member_run: Trains a member of a population; its programs report nothing.
        default_hyperparams: The default hyperparameters. A subclass with more hyperparameters
            overrides it.
    """

    default_hyperparams: HyperParameters = HyperParameters()
    _mutable = ("_collected",)

    def __init__(
        self,
        env: Any,
        env_params: PyTree,
        config: AgentConfig,
        callbacks: Sequence[Callback] = (),
    ):
        check_has_threads()
        check_platform()
        if jnp.zeros(()).dtype != jnp.float32:
            raise ValueError(
                "jax_enable_x64 is on, and agents learn in float32; switch it off, by "
                'jax.config.update("jax_enable_x64", False) or without JAX_ENABLE_X64.'
            )
        if not isinstance(config, AgentConfig):
            raise TypeError(
                f"config is {type(config).__name__}; give {type(self).__name__} the environment, "
                "its parameters (or None), then a jaxagents.AgentConfig."
            )
        own, silent = dict(vars(self)), replace(config, **_OF_RECORDER)

        def build() -> Agent:
            agent = object.__new__(type(self))
            vars(agent).update(own)
            agent._build(env, env_params, silent)
            return agent

        parts = (type(self), tuple(own.items()), env, env_params, silent)
        self._share(shared(parts, build, lambda agent: agent.environments.can_be_vmapped))
        vars(self).update(own, env=env, env_params=env_params, config=config)
        if config.n_evals and self.environments.time_limit.n_steps is None:
            warn_of_endless_episodes(env)
        self.recorder = self._make_recorder(callbacks)
        self.run = TrainingRun(self, silent=self.member_run)
        self._freeze()

    def _make_recorder(self, callbacks: Sequence[Callback]) -> Recorder:
        structure = {
            "agent": type(self).__name__,
            **_names_of_environment(self.env),
            "policy_of_actor": self.policies.policy_of_actor.tolist(),
            "observes_time": self.environments.time_limit.is_observed,
            **structure_of(self.config),
        }
        return Recorder(self.config, callbacks, structure)

    def _build(self, env: Any, env_params: PyTree, config: AgentConfig) -> None:
        """Build what equal agents share: an agent without checkpoints, callbacks and results."""
        self.env = env
        self.env_params = env_params
        self.config = config
        self.environments: EnvironmentBatch = batch_of(
            env,
            env_params,
            max_episode_steps=config.max_episode_steps,
            time_limit=time_limit_of(
                env,
                env_params,
                config.max_episode_steps,
                config.time_limits,
                config.observe_time,
            ),
            agent_id=config.agent_id,
            global_state=config.centralized_critic,
        )
        self.distribution: Distribution = self._make_distribution(self.environments.space)
        self.policies: PolicyMap = make_policy_map(
            config.parameter_sharing, self.environments.n_actors, self.environments.teams
        )
        if config.update_order == "sequential" and self.policies.n_policies == 1:
            raise ValueError(
                "update_order='sequential' trains policies one after the other, but with "
                f"parameter_sharing={config.parameter_sharing!r} there is only one; choose "
                "'independent', 'team' or a policy index per actor."
            )
        if config.shaped_reward_steps is not None and not self.environments.has_shaped_reward:
            raise ValueError(
                f"shaped_reward_steps={config.shaped_reward_steps}, but {type(env).__name__} "
                "has no shaped reward; leave it None."
            )
        self.networks: ActorCritic = ActorCritic(
            self.environments, self.policies, self.distribution, config
        )
        self.collector: Collector = Collector(
            config, self.environments, self.networks, self.distribution
        )
        self.environments.bind_learner(Policies(self, ["past self"]))
        self.replay: Replay | None = None
        if config.replay_updates:
            self.replay = Replay(config, self.networks, self.policies)
        self.runners: Runners = Runners(
            config,
            self.environments,
            self.policies,
            self.networks,
            self.collector,
            self.replay,
            self.default_hyperparams,
        )
        self.optimizer: MakeOptimizer = optimizer_of(config)
        self.n_minibatches: int = config.minibatches_per_epoch
        self.devices: Devices = Devices(
            config.devices, one_per_process=self.environments.one_device_per_process
        )
        self._cloning = Cloning(
            self.environments, self.policies, self.distribution, self.networks, config
        )
        self.player = Player(self.environments.for_evaluation(), self.policies, self.networks)
        self._collected: tuple[Runner, Metrics | Leaves] | None = None
        self.recorder: Recorder = self._make_recorder(())
        self.run: TrainingRun = TrainingRun(self)  # which reports nothing
        self.member_run: TrainingRun = self.run
        if config.freeze:
            check_paths(config.freeze, self.runners.shapes())
        self._freeze()

    @abc.abstractmethod
    def _make_distribution(self, space: ActionSpace) -> Distribution:
        """Build the distribution over one actor's actions.

        Raises:
            TypeError: the agent cannot play such actions; the message names the one that can.
        """

    @abc.abstractmethod
    def step_and_check(self, runner: Runner) -> tuple[Runner, Metrics, NonFinite]:
        """Do one update, compiled; also return which quantities are NaN or infinite."""

    @abc.abstractmethod
    def learn(
        self, runner: Runner, transitions: Transition, keys: UpdateKeys
    ) -> tuple[Runner, Metrics, Residues]:
        """Learn from a rollout; traceable."""

    @abc.abstractmethod
    def split_key(self, runner: Runner) -> UpdateKeys:
        """Split a runner's key for the consumers of one update."""

    @abc.abstractmethod
    def hyperparams_of(self, runner: Runner) -> HyperParameters:
        """Return the hyperparameters of the runner's next update, one value per policy."""

    def __repr__(self) -> str:
        config, n_actors = self.config, self.environments.n_actors
        features, networks = self.environments.observation.features, self.networks
        n_policies = self.policies.n_policies
        return "\n".join(
            [
                f"{type(self).__name__} of {n_policies} polic{'y' if n_policies == 1 else 'ies'} "
                f"for {n_actors} actor{'' if n_actors == 1 else 's'}",
                f"  environment: {type(getattr(self.env, 'env', self.env)).__name__}, "
                f"{config.batch_size} in parallel",
                f"  observation: {features.dtype}{list(features.shape[1:])}",
                f"  action:      {self.environments.space}",
                f"  actor:       {_network_text(networks.actor, networks.init_actor)}",
                f"  critic:      {_network_text(networks.critic, networks.init_critic)}",
                f"  training:    {config.n_steps:,} update{'' if config.n_steps == 1 else 's'} of "
                f"{config.steps_per_update:,} environment steps",
            ]
        )

    # Training.

    def train(
        self,
        rng: PRNGKeyArray | Key[Array, " members"] | UInt32[Array, "members words"] | None,
        hyperparams: HyperParameters,
        runner: Runner | None = None,
        selection: Selection | None = None,
    ) -> tuple[Runner, Metrics]:
        """Train for ``n_steps`` updates, evaluating every ``eval_frequency`` of them.

        Several keys, or hyperparameters stacked along a first axis, train a population, with one
        member for each. Without a selection, members do not influence each other. One checkpoint
        holds them all. The runner and the metrics then have the members as their first axis; see
        `member`. On a CPU members train in threads, one per core; elsewhere they train as one
        batch, which several devices divide. A member with NaN or infinite quantities stops alone.

        Without checkpoints and callbacks it may be vmapped, over keys and over hyperparameters. On
        a CPU the members of a `jax.vmap` train in threads, one per core, and are bit-identical to
        single runs; on other devices, under `plain_jax`, or if the `jax.vmap` is itself compiled,
        they train as one batch.

        Args:
            rng: Random key, or one per member, ``[members]``; unused if a runner is given, which
                has its own.
            hyperparams: Each leaf a scalar or one value per policy; with a key per member also one
                value per member; or ``[members, policies]``.
            runner: Continue from here, up to ``n_steps`` updates in all.
            selection: Selects among a population's members between blocks of updates:
                `PopulationBasedTraining` or `SuccessiveHalving`. The metrics then have ``parents``,
                ``[n_evaluations]`` per member: the index of the member whose runner the block began
                with, or -1 where it did not train; and ``hyperparams.<name>`` of those varied.

        Returns:
            The runner after training, and the metrics: float32, one row per evaluation.

            Of evaluations: ``returns``, ``final_rewards``, ``terminated``, ``truncated``
            ``[n_evaluations, n_evals, n_actors]``; ``episode_lengths``, ``info_<name>``
            ``[n_evaluations, n_evals]``, and ``success`` if the environment has one.

            Counts: ``n_updates_done`` ``[n_evaluations]``, ``n_updates_skipped``
            ``[n_evaluations, n_policies]``.

            Means over a block's updates, ``[n_evaluations, n_policies]``: ``actor_loss``,
            ``critic_loss``, ``entropy``, ``kl``, ``clip_fraction``, ``explained_variance``,
            ``actor_epochs``, ``learning_rate``, ``actor_gradient_norm``,
            ``critic_gradient_norm``, ``value_mean``, ``value_std``, ``target_std``; with action
            masks ``empty_masks``, samples per update whose living actor had no available action.
            Maxima of magnitudes: ``largest_value``, ``largest_reward``. These values, targets and
            rewards are in units of the reward that the critic learns from.

            Rows of blocks that did not run are NaN.

        Raises:
            TypeError: ``rng`` is not a random key, or ``hyperparams`` not `HyperParameters`.
            ValueError: a hyperparameter is out of range; ``checkpoint_dir`` already holds a run,
                or cannot be written; the key's generator could not be restored from a checkpoint;
                nothing is left to train; a selection does not fit, or there is no population; or,
                under a jax transformation, the agent has checkpoints, callbacks or ``prng_impl``,
                or a runner or a selection is given.
            NonFiniteError: a quantity of an update (a reward, observation, running statistic,
                value, loss, gradient or parameter) is NaN or infinite, and ``on_nonfinite`` is
                "stop". (Under `jax.vmap` the rows from there on are NaN instead.)
            Interrupted: Ctrl-C, SIGTERM or SIGHUP ended the training of an agent with checkpoints
                or callbacks, after the block in flight; a second signal ends it at once.
            HostEnvironmentError: an environment outside of JAX failed.
        """
        initial = self.config.initial_evaluation
        if is_traced((rng, hyperparams, runner)):
            check_can_be_traced(self, runner, selection)
            rng = as_key(rng)
            training, metrics = train_under_vmap(self.member_run, rng, self.checked(hyperparams))
            return training.runner, metrics
        if runner is not None:
            check_can_train(runner)
        given = rng if runner is None else runner.rng
        n_members = count_members(given, hyperparams)
        self.recorder.prepare(given)
        if n_members is not None:
            return train_population(self, n_members, rng, hyperparams, runner, selection)
        if selection is not None:
            raise ValueError("selection needs a population to select among; give a key per member.")
        self.run.check()
        if runner is None:
            return self.run.train(self.init(rng, hyperparams), 0, initial)
        rng = key_of(runner.rng, self.config.prng_impl)
        runner = runner.replace(rng=rng, hyperparams=self.checked(hyperparams))
        return self.run.train(runner, int(runner.n_updates_done), initial)

    def resume(
        self,
        hyperparams: HyperParameters | None = None,
        selection: Selection | None = None,
    ) -> tuple[Runner, Metrics]:
        """Continue the run in ``checkpoint_dir`` from its last checkpoint to ``n_steps``.

        Args:
            hyperparams: Replace the checkpoint's. Those that a selection varies need each member's
                own values, as ``restore("last")`` returns them.
            selection: The run's selection, if its population has one.

        Returns:
            As `train`; the metrics begin with those of the run so far.

        Raises:
            ValueError: there is no checkpoint, or it belongs to an agent of another structure;
                nothing is left to train; another process trains there.
            NonFiniteError: as for `train`.
            Interrupted: as for `train`.
        """
        with self.recorder.holding_run():
            n_members = self.recorder.saved.n_members()
            if n_members is not None:
                return resume_population(self, n_members, hyperparams, selection)
            runner, history = self.recorder.saved.read_to_resume(self.runners.shapes())
            if hyperparams is not None:
                runner = runner.replace(hyperparams=self.checked(hyperparams))
            n_updates_done = int(runner.n_updates_done)
            return self.run.train(runner, n_updates_done, initial=False, history=history)

    def init(
        self,
        rng: PRNGKeyArray | None,
        hyperparams: HyperParameters,
        start: Runner | None = None,
        parts: Sequence[str] = PARTS,
    ) -> Runner:
        """Build the initial runner; `train` continues it if given as ``runner``.

        If several processes divide environments outside of JAX, all of them call this, and each
        runner has zeros in place of the other processes' environments.

        Args:
            rng: Random key.
            hyperparams: Each leaf a scalar or one value per policy.
            start: A trained runner, of this agent or of another one. Its actor, critic and
                normalizers become the initial ones; optimizers, schedules and environments start
                anew. None: new networks.
            parts: Take the "actor", the "critic" or both from ``start``; the other is new, and need
                not fit. The statistics of observations come with either part; those of the global
                state, value targets and rewards come with the critic.

        Raises:
            TypeError: as for `train`; or ``start`` is not a runner.
            ValueError: a hyperparameter is out of range; ``rng`` holds several keys; ``start`` does
                not fit the agent; a part is unknown, or there is no ``start``; or ``freeze`` names
                statistics that have seen no samples.
            HostEnvironmentError: an environment outside of JAX failed.
        """
        trained = self.runners.start_from(start, parts)
        hyperparams = self.checked(hyperparams)
        rng = as_key(rng)
        if rng.ndim:
            raise ValueError(
                f"rng holds {rng.size} keys, and a runner begins with one; pass rng[i]."
            )
        with self.environments.raising_faults():
            return self.run.shared(self.runners.begin(rng, hyperparams, trained))

    def step(self, runner: Runner) -> tuple[Runner, Metrics]:
        """Do one update: collect a rollout and learn from it.

        If a policy's update has a NaN or infinite quantity, the policy keeps its actor, critic,
        normalizers and learning rate. ``runner.n_updates_skipped`` counts such updates.

        Args:
            runner: As `init`, `train`, `restore` or this method returned it.

        Returns:
            The runner after the update, and the training metrics, each ``[n_policies]``.

        Raises:
            ValueError: the devices cannot divide the environments.
            HostEnvironmentError: an environment outside of JAX failed.
        """
        self.run.check()
        with self.runners.explaining(runner), self.environments.raising_faults():
            runner, metrics, _ = self.step_and_check(
                self.run.with_environments(self.runners.for_this_agent(runner))
            )
            return runner, metrics

    def act(
        self, runner: Runner, observation: Observation | Array, carry: Acting | None = None
    ) -> tuple[Array, Record]:
        """Act in all environments, for one step of a rollout by hand.

        Args:
            runner: As `init` or `update` returned it.
            observation: From ``batch_size`` environments, ``[batch_size, n_actors, *obs]``: as the
                environment or as ``agent.environments`` returns it.
            carry: None at the start of a rollout, then the carry of the previous step's record.
                Reset a recurrent agent's carry where an episode ended: see `reset_carry`.

        Returns:
            The actions as the environment takes them, ``[batch_size, n_actors, ...]``, and what
            `Rollout.from_records` collects.

        Raises:
            ValueError: the rollout is complete, or the observation has another shape.
        """
        check_can_train(runner)
        check_is_single(runner)
        observation = self.environments.as_flat(observation, n_batch_axes=2)
        self.environments.check_shape("observation", observation, (self.config.batch_size,))
        self.environments.check_mask(observation)
        observation = self.environments.as_prepared(observation)
        acting: Acting = self._begin_rollout(runner) if carry is None else carry
        if acting.n_steps >= self.config.rollout_length:
            raise ValueError(
                f"the rollout has its {self.config.rollout_length} steps (rollout_length); call "
                "update, and begin the next with carry=None."
            )
        with self.runners.explaining(runner):
            return self._act(self.networks.actor_of(runner), observation, acting)

    def update(self, runner: Runner, rollout: Rollout) -> tuple[Runner, Metrics]:
        """Learn from a rollout that was collected by hand or elsewhere, as `step` does.

        Experience from another policy needs ``advantages="vtrace"``.

        Args:
            runner: As `init`, `train`, `restore` or this method returned it; its environments are
                not stepped.
            rollout: The experience.

        Returns:
            As `step`.

        Raises:
            ValueError: a shape is wrong; the rollout has no ``log_prob``; or truncated steps lack
                final observations.
        """
        check_rollout(rollout, self.environments, self.config, self.distribution.action_shape)
        with self.runners.explaining(runner):
            runner, metrics, _ = self._update_from(self.runners.for_this_agent(runner), rollout)
        return runner, metrics

    def pretrain(
        self, runner: Runner, rollouts: Sequence[Rollout], n_epochs: int = 10
    ) -> tuple[Runner, Metrics]:
        """Clone the behaviour of rollouts, as a starting point: see `Cloning`.

        Args:
            runner: As `init`, `train`, `restore` or this method returned it.
            rollouts: The experience; it needs no ``log_prob``.
            n_epochs: Passes over all of it.

        Returns:
            The runner with trained actors and observation statistics, and the metrics, each
            ``[n_epochs, n_policies]``: ``cloning_loss``, the mean negative log probability of the
            actions, in nats, and for discrete actions ``cloning_accuracy``, the share of them that
            are the policy's most probable ones.

        Raises:
            ValueError: there are no rollouts or epochs; a shape is wrong; or rollouts differ in
                their parts.
            NonFiniteError: the loss is NaN or infinite.
        """
        hyperparams = self.hyperparams_of(self.runners.for_this_agent(runner))
        return self._cloning.clone(runner, rollouts, hyperparams, n_epochs)

    @compiled_for_speed()
    def _update_from(self, runner: Runner, rollout: Rollout) -> tuple[Runner, Metrics, NonFinite]:
        own = runner.memory.actor
        rollout = rollout._replace(
            memory=with_structure(rollout.memory, own),
            last_memory=with_structure(rollout.last_memory, own),
        )
        transitions = as_transitions(rollout, self.environments, self.config, runner.n_updates_done)
        memory = self.networks.actor.reset_memory(rollout.last_memory, transitions.begins[-1])
        runner = runner.replace(
            observation=self.environments.as_prepared(rollout.last_observation),
            memory=runner.memory._replace(actor=memory),
        )
        return skip_nonfinite(self.learn)(runner, transitions, self.split_key(runner))

    @compiled_quickly()
    def _begin_rollout(self, runner: Runner) -> Acting:
        rngs, noise = self.collector.draw(self.split_key(runner).rollout)
        return Acting(rngs, noise, runner.memory.actor, n_steps=jnp.zeros((), jnp.int32))

    @compiled_for_speed()
    def _act(
        self, actor: NetworkParams, observation: Observation, carry: Acting
    ) -> tuple[Array, Record]:
        choice = self.collector.choose(actor, observation, carry.memory, carry.noise[carry.n_steps])
        record = Record(
            observation=observation,
            memory=carry.memory,
            action=choice.action,
            log_prob=self.distribution.log_prob(choice.dist_params, choice.action),
            carry=carry._replace(memory=choice.memory, n_steps=carry.n_steps + 1),
            rng=carry.rngs[carry.n_steps],
        )
        return self.distribution.to_environment(choice.action), record

    # Trained policies.

    def eval(
        self,
        rng: PRNGKeyArray,
        n_evals: int | None = None,
        greedy: bool = True,
        runner: Runner | None = None,
    ) -> Metrics:
        """Play whole episodes with the trained policies.

        Args:
            rng: Random key.
            n_evals: Number of episodes; None: the configuration's.
            greedy: Take the most probable actions instead of sampling.
            runner: The runner whose policies act; None: the collected training's.

        Returns:
            ``returns`` (undiscounted sums of the environment's rewards), ``final_rewards``,
            ``terminated`` and ``truncated`` ``[n_evals, n_actors]``; ``episode_lengths`` and the
            last step's scalar infos, as ``info_<name>``, ``[n_evals]``; and ``success``,
            ``[n_evals]``, if the environment has one, see `Success`.

        Raises:
            TypeError: ``n_evals`` is not an integer.
            ValueError: ``n_evals`` is below 1; or no runner is given and no training collected.
            HostEnvironmentError: an environment outside of JAX failed.
        """
        n_evals = self._checked_n_evals(n_evals)
        runner = self._runner_or_collected(runner)
        actor = self.networks.actor_of(runner)
        with self.runners.explaining(runner), self.environments.raising_faults():
            return self.player.evaluate(as_key(rng), actor, n_evals, greedy)

    def eval_random(
        self, rng: PRNGKeyArray, n_evals: int | None = None, max_steps: int | None = None
    ) -> Metrics:
        """Play whole episodes with actions drawn uniformly from those that are available.

        Args:
            rng: Random key.
            n_evals: As for `eval`.
            max_steps: End all episodes after this many steps; None: never.

        Returns:
            As `eval`, without infos of environments outside of JAX.

        Raises:
            ValueError: ``n_evals`` is below 1.
            HostEnvironmentError: an environment outside of JAX failed.
        """
        n_evals = self._checked_n_evals(n_evals)
        with self.environments.raising_faults():
            return self.player.evaluate_random(as_key(rng), n_evals, max_steps)

    def record(
        self,
        rng: PRNGKeyArray,
        n_episodes: int = 1,
        n_evals: int | None = None,
        greedy: bool = True,
        runner: Runner | None = None,
    ) -> list[Episode]:
        """Play as `eval` does, and keep the first episodes step by step.

        Args:
            rng: Random key.
            n_episodes: Number of episodes to keep.
            n_evals: Number of episodes to play, at least ``n_episodes``: the kept ones are the
                first of those that `eval` plays with the same key and number.
            greedy: As for `eval`.
            runner: As for `eval`.

        Returns:
            One `Episode` of numpy arrays per episode.

        Raises:
            ValueError: ``n_episodes`` is below 1; or no runner is given and no training collected.
        """
        if n_episodes < 1:
            raise ValueError(f"n_episodes={n_episodes}; record at least 1.")
        n_evals = max(n_episodes, self.config.n_evals if n_evals is None else n_evals)
        runner = self._runner_or_collected(runner)
        actor = self.networks.actor_of(runner)
        with self.runners.explaining(runner), self.environments.raising_faults():
            return self.player.record(as_key(rng), actor, n_evals, greedy, n_episodes)

    def view(self, episode: Episode, runner: Runner | None = None) -> EpisodeView:
        """Return what the critics expected and the policies were likely to do in an episode.

        Args:
            episode: An episode of the agent's environment, from `record`.
            runner: As for `policy`.

        Raises:
            TypeError: it is no episode.
            ValueError: the episode is another environment's; or there is no runner.
        """
        runner = self._runner_or_collected(runner)
        if not isinstance(episode, Episode):
            raise TypeError(
                f"episode is {type(episode).__name__}; pass an Episode, one of those that record "
                "returns."
            )
        seen = [leaf.shape[1:] for leaf in jax.tree.leaves(episode.observation)]
        expected = [leaf.shape for leaf in jax.tree.leaves(self.environments.observation)]
        if seen != expected:
            raise ValueError(
                f"the episode's observations have shapes {seen}, and the agent's {expected}; pass "
                "an episode that it recorded."
            )
        actor, critic = self.networks.actor_of(runner), self.networks.critic_of(runner)
        observation = jax.tree.map(lambda leaf: leaf[:-1], episode.observation)
        with self.runners.explaining(runner):
            value, shown = self.player.view(
                actor, critic, runner.normalizers.value, observation, episode.begins
            )
        return EpisodeView(np.asarray(value), **jax.tree.map(np.asarray, shown))

    def summarize(self, values: Any) -> MetricStats:
        """Compute a metric's statistics over episodes; see `evaluation.statistics.summarize`."""
        return summarize(values)

    def diagnose(
        self, runner: Runner, metrics: Mapping[str, Any], random_returns: Any = None
    ) -> list[str]:
        """Return a sentence for each problem of a training run; none if it is healthy.

        Args:
            runner: As `train` returned it.
            metrics: As `train` returned them.
            random_returns: Returns of random actions, from `eval_random`; None: those of the
                evaluation before training take their place.
        """
        runner = self._runner_or_collected(runner)
        # A member of a selection may have had several values: take the largest.
        varied = metrics.get(f"{VARIED}gamma")
        gamma = runner.hyperparams.gamma if varied is None else np.nanmax(varied, axis=0)
        discount = np.broadcast_to(gamma, self.policies.n_policies)
        task = Task(
            discount=discount.tolist(),
            max_episode_steps=self.environments.time_limit.last_step_of_returns,
            n_actions=getattr(self.environments.space, "n", None),
            has_rivals=self.environments.has_rivals,
            normalizes_values=self.config.normalize_values,
        )
        return diagnose(metrics, task, random_returns)

    def policy(
        self,
        runner: Runner | None,
        observation: Observation | Array,
        carry: Memory | None = None,
        rng: PRNGKeyArray | None = None,
    ) -> Any:
        """Choose every actor's action, as the environment takes it.

        Args:
            runner: The runner whose policies act; None: the collected training's.
            observation: One environment's, ``[n_actors, *obs]``.
            carry: The recurrent state of a recurrent agent: first `initial_carry`, then what this
                method returned; see also `reset_carry`.
            rng: Random key to sample with; None takes the most probable actions.

        Returns:
            ``[n_actors]`` or ``[n_actors, choices]`` int32, or ``[n_actors, *shape]`` float32; a
            recurrent agent returns that and the carry for the next step.

        Raises:
            ValueError: the agent is recurrent and there is no carry, or the other way round; no
                runner is given and no training collected; or the observation has another shape, or
                lacks the mask that the environment's observations have.
        """
        runner = self._runner_or_collected(runner)
        carry = self._checked_carry(carry)
        observation = self.environments.as_flat(observation, n_batch_axes=1)
        self._check_actors(observation)
        self.environments.check_mask(observation)
        rng = None if rng is None else as_key(rng)
        actor, critic = self.networks.actor_of(runner), self.networks.critic_of(runner)
        with self.runners.explaining(runner):
            action, carry = self.player.act(actor, critic, observation, carry, rng)
        return action if self.config.recurrent is None else (action, carry)

    def value(
        self,
        runner: Runner | None,
        observation: Observation | Array,
        carry: Memory | None = None,
    ) -> Float[Array, " actors"]:
        """Estimate every actor's discounted return from one environment's observation.

        With ``scale_rewards`` it is the return of scaled rewards.

        Args:
            runner: As for `policy`.
            observation: As for `policy`.
            carry: The one that `policy` gets with this observation.

        Raises:
            ValueError: as for `policy`.
        """
        runner = self._runner_or_collected(runner)
        carry = self._checked_carry(carry)
        observation = self.environments.as_flat(observation, n_batch_axes=1)
        self._check_actors(observation)
        critic = self.networks.critic_of(runner)
        with self.runners.explaining(runner):
            return self.player.value(critic, runner.normalizers.value, observation, carry)

    def initial_carry(self) -> Memory:
        """Return a recurrent agent's recurrent state at an episode's start."""
        return self.networks.initial_memory(self.policies.n_actors)

    def reset_carry(self, carry: Any, mask: Bool[Array | np.ndarray, "*envs actors"]) -> Any:
        """Reset the recurrent state of actors whose episode begins: where ``mask`` is True.

        Args:
            carry: The carry of `policy`, or of `act`, whose mask is ``[batch_size, n_actors]``.
            mask: True where an episode begins.
        """
        mask = jnp.asarray(mask, bool)
        if isinstance(carry, Acting):
            return carry._replace(memory=self.networks.actor.reset_memory(carry.memory, mask))
        return Memory(
            actor=self.networks.actor.reset_memory(carry.actor, mask),
            critic=self.networks.value.reset_memory(carry.critic, mask),
        )

    def collect_training(self, runner: Runner, metrics: Metrics | Leaves | None = None) -> None:
        """Keep the result of `train` for `eval`, `record`, `policy` and `value`.

        Raises:
            TypeError: ``runner`` is not a runner.
        """
        check_is_runner(runner)
        self._collected = (runner, metrics or {})

    def member(self, tree: Any, index: int) -> Any:
        """Return one member's part of a population's runner or metrics, ``[members, ...]``.

        Raises:
            TypeError: the index is not an integer.
            ValueError: the tree is the runner of a single agent.
            IndexError: there is no such member.
        """
        if not all(map(jnp.ndim, jax.tree.leaves(tree))):
            raise ValueError("this is a single agent's, and only populations have members.")
        try:
            index = operator.index(index)
        except TypeError:
            raise TypeError(f"index={index!r} is not an integer; members count from 0.") from None
        n_members = len(jax.tree.leaves(tree)[0])
        if not 0 <= index < n_members:
            raise IndexError(f"member {index} of a population of {n_members}; they begin with 0.")
        return member_of(tree, index)

    def restore(
        self,
        mode: str = "best",
        best_fn: Callable[[Leaves], int] | None = None,
        member: int | str | None = None,
    ) -> tuple[Runner, Leaves]:
        """Load a checkpoint and collect it, as `collect_training` does.

        Args:
            mode: "last", or "best": the highest return, averaged over episodes and actors. Where
                one actor's gain is another's loss, as in the hunting environments, this average is
                meaningless: pass a ``best_fn``.
            best_fn: Chooses among the kept checkpoints: maps their metrics, one row each, to the
                index of a row.
            member: For a population: load this member, or the "best", which has the highest return,
                averaged as above. None: load all, each at its own best.

        Returns:
            The runner, and the metrics of all evaluations up to the last checkpoint.

        Raises:
            ValueError: there is no checkpoint, or it belongs to an agent of another structure; the
                mode is unknown; "best" without evaluations; or ``best_fn`` returned an index out
                of range.
            TypeError: ``best_fn`` returned no index.
        """
        if mode not in ("best", "last"):
            raise ValueError(f"mode={mode!r} is unknown; choose 'best' or 'last'.")
        n_members = self.recorder.saved.n_members()
        if n_members is not None:
            runner, history = self._restore_population(n_members, mode, best_fn, member)
        elif member is not None:
            raise ValueError(f"member={member!r}, but the run is not a population; leave it out.")
        else:
            runner, history = self.recorder.saved.read(
                self.runners.shapes(), mode, best_fn or highest_return
            )
        self.collect_training(runner, history)
        return runner, history

    def _restore_population(
        self, n_members: int, mode: str, best_fn: Any, member: int | str | None
    ) -> tuple[Runner, Leaves]:
        if best_fn is not None:
            raise ValueError(
                "best_fn chooses among the checkpoints of a single run; each member of a "
                "population keeps the runner of its highest return."
            )
        recorder = self.recorder.of_population(n_members)
        runner, history = recorder.saved.read(self.runners.shapes(n_members), mode, highest_return)
        metrics = members_first(history)
        if member is None:
            return runner, metrics
        index = best_member(metrics, mode) if member == "best" else member
        if not isinstance(index, int | np.integer):
            raise ValueError(f"member={member!r} is unknown; give a number, or 'best'.")
        return self.member(runner, index), self.member(metrics, index)

    def log_hyperparams(self, hyperparams: HyperParameters) -> dict[str, Any]:
        """Log the hyperparameters by name, and return them as plain data.

        Args:
            hyperparams: The hyperparameters.

        Returns:
            Numbers, or lists of one per policy, by dotted name.

        Raises:
            TypeError: ``hyperparams`` is not `HyperParameters`.
        """
        check_is_hyperparams(hyperparams)
        values = flat_items(hyperparams)
        items = {name: np.asarray(value).tolist() for name, value in values.items()}
        for name, value in items.items():
            _logger.info("%s = %s", name, value)
        return items

    def _checked_n_evals(self, n_evals: int | None) -> int:
        n_evals = self.config.n_evals if n_evals is None else n_evals
        if not isinstance(n_evals, int | np.integer):
            raise TypeError(f"n_evals={n_evals!r} is not an integer.")
        if n_evals < 1:
            raise ValueError(f"n_evals={n_evals} episodes; evaluate at least 1.")
        return int(n_evals)

    def checked(self, hyperparams: HyperParameters) -> HyperParameters:
        """Check hyperparameters, and return them as arrays."""
        check_hyperparams(hyperparams, self.policies.n_policies)
        missing = flat_items(self.default_hyperparams).keys() - flat_items(hyperparams).keys()
        if missing:
            raise TypeError(
                f"{type(self).__name__} also needs the hyperparameters {sorted(missing)}; pass "
                f"{type(self.default_hyperparams).__name__}."
            )
        if not is_traced(hyperparams.gamma):
            discounts = np.ravel(np.asarray(hyperparams.gamma, float)).tolist()
            warn_of_short_episodes(self.environments.time_limit, discounts)
        warn_of_measured_losses(getattr(self.env, "name", None), self.config, hyperparams)
        return as_arrays(hyperparams)

    def _check_actors(self, observation: Observation | Array) -> None:
        """Raise ValueError where policies of several actors observe fewer actors, or more."""
        if self.policies.n_policies > 1:  # one policy may play in other teams
            self.environments.check_shape("observation", observation, ())

    def _checked_carry(self, carry: Memory | None) -> Memory:
        if self.config.recurrent is None and carry is not None:
            raise ValueError(
                "a carry was given, but the agent is not recurrent; a random key is rng=..."
            )
        if self.config.recurrent is not None and carry is None:
            raise ValueError(
                f"an agent with recurrent={self.config.recurrent!r} needs a carry; begin with "
                "initial_carry(), then pass the one that policy returns."
            )
        return Memory() if carry is None else carry

    def _runner_or_collected(self, runner: Runner | None) -> Runner:
        if runner is None and self._collected is not None:
            runner = self._collected[0]
        if runner is None:
            raise ValueError(
                "no training is collected; call collect_training(runner, metrics) or restore() "
                "first, or pass a runner."
            )
        check_is_runner(runner)
        check_is_single(runner)
        return runner


def _names_of_environment(env: Any) -> dict[str, Any]:
    """Describe an environment for the checkpoints, with its side and opponents if it has any."""
    if not isinstance(env, Side):
        return {"environment": type(env).__name__}
    opponents = [name for opponent in env.opponents or () for name in opponent.names]
    return {
        "environment": type(env.env).__name__,
        "side": list(env.actors),
        "opponents": opponents,
        "past_selves": None if env.past_selves is None else list(env.past_selves),
    }


def _network_text(network: Network, init: Callable[[PRNGKeyArray], PyTree]) -> str:
    shapes = jax.eval_shape(init, jax.random.key(0))
    n_params = sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(shapes))
    return f"{type(network.module).__name__}, {n_params:,} parameters per policy"
