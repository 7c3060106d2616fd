"""The configuration of an agent: sizes and choices.

Unlike hyperparameters, they are constants of the compiled programs.
"""

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Any, Literal, get_args, get_type_hints

import numpy as np
import optax
from flax import linen as nn
from flax.core import FrozenDict

from jaxagents.hyperparameters import OptimizerParams


def _check_choice(name: str, value: Any, hint: Any) -> None:
    choices = [each for option in get_args(hint) for each in (get_args(option) or (option,))]
    choices = [None if each is type(None) else each for each in choices]
    if value not in choices:
        text = ", ".join(map(repr, choices[:-1]))
        raise ValueError(f"{name}={value!r} is unknown; choose {text} or {choices[-1]!r}.")


def _check_flag(name: str, value: Any) -> None:
    """Raise TypeError if a value is neither True nor False; any text would count as True."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name}={value!r} is neither True nor False.")


def check_integer(name: str, value: Any, minimum: int) -> None:
    """Check that a value is an integer, and large enough.

    Raises:
        TypeError: it is none.
        ValueError: it is too small.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name}={value!r} is not an integer.")
    if value < minimum:
        raise ValueError(f"{name}={value} is too small; it must be at least {minimum}.")


def check_seed(name: str, value: Any) -> None:
    """Check that a value is a valid seed. jax would silently wrap integers out of range.

    Args:
        name: The seed's name in errors.
        value: The seed.

    Raises:
        TypeError: It is not an integer.
        ValueError: It is too small or too large.
    """
    check_integer(name, value, minimum=0)
    if value >= 2**32:
        raise ValueError(f"{name}={value} is too large; it must be below 2**32 = {2**32}.")


def use_python_values(config: Any) -> None:
    """Replace NumPy's integers and flags in a frozen dataclass with Python's, which files hold."""
    for name, value in vars(config).items():
        if isinstance(value, np.integer | np.bool_):
            object.__setattr__(config, name, value.item())


MakeOptimizer = Callable[[OptimizerParams], optax.GradientTransformation]
"""Builds the optimizer of a network."""

Activation = Literal["tanh", "relu", "elu", "gelu", "silu"]
Schedule = Literal["constant", "linear", "cosine"]
TimeLimits = Literal["bootstrap", "terminal"]


@dataclass(frozen=True)
class Layers:
    """The layers of a default network.

    Attributes:
        hidden_sizes: Units of each hidden layer.
        activation: Applied after each layer; None takes tanh, or relu for images.
        layer_norm: Apply layer normalisation to the outputs of each layer, before the activation.
        channels: Output channels of each 3 by 3 convolution, for images: observations of three
            axes.
        memory_size: Units of the recurrent cell after the hidden layers, for recurrent agents.
        sizes_after_memory: Units of each hidden layer after the recurrent cell.
        stride: Pixels from one place of a convolution to the next, of all convolutions.
    """

    hidden_sizes: tuple[int, ...] = (64, 64)
    activation: Activation | None = None
    layer_norm: bool = False
    channels: tuple[int, ...] = (16,)
    memory_size: int = 64
    sizes_after_memory: tuple[int, ...] = ()
    stride: int = 1

    def __post_init__(self) -> None:
        """Check the sizes, and convert them to tuples of Python's integers."""
        for name in ("hidden_sizes", "channels", "sizes_after_memory"):
            sizes = getattr(self, name)
            if isinstance(sizes, int | str) or not hasattr(sizes, "__iter__"):
                raise TypeError(f"{name}={sizes!r} is not a sequence of integers.")
            sizes = tuple(sizes)
            for size in sizes:
                check_integer(name, size, minimum=1)
            object.__setattr__(self, name, tuple(map(int, sizes)))
        use_python_values(self)
        for name in ("memory_size", "stride"):
            check_integer(name, getattr(self, name), minimum=1)
        if self.activation is not None:
            _check_choice("activation", self.activation, Activation)


@dataclass(frozen=True)
class NamedNetwork:
    """A registered network, as a configuration names it.

    Attributes:
        name: Its name.
        arguments: Arguments of its constructor, by name and in that order, with tuples for lists.
    """

    name: str
    arguments: FrozenDict[str, Any]

    def __repr__(self) -> str:
        return repr(self.plain)

    @property
    def plain(self) -> str | dict[str, Any]:
        """The network in the types of a file: its name, or its name and arguments."""
        return {"name": self.name, **_thawed(self.arguments)} if self.arguments else self.name


NetworkChoice = nn.Module | NamedNetwork | str | Mapping[str, Any] | None
"""What can be configured as a network."""


OptimizerChoice = Literal["clipped_adam", "adam"] | MakeOptimizer
"""What can be configured as an optimizer."""


@dataclass(frozen=True)
class AgentConfig:
    """The sizes and choices that fix an agent's computation.

    By groups: the size of a training run (``n_steps`` to ``minibatch_unit``); evaluation and
    checkpoints (``eval_frequency`` to ``keep_best``); policies (``parameter_sharing``,
    ``agent_id``); recurrent networks (``recurrent`` to ``recurrent_chunk_length``); critics
    (``centralized_critic``, ``shared_torso``); normalisation (``normalize_observations`` to
    ``scale_rewards``); losses and schedules (``advantages`` to ``anneal_learning_rate``); the run
    (``on_nonfinite`` to ``prng_impl``); networks and optimizers (``actor_layers`` to
    ``optimizer``).

    Attributes:
        n_steps: Updates of the whole training run; each consumes rollout_length * batch_size
            environment steps.
        batch_size: Number of parallel environments, one trajectory each per update.
        minibatch_size: Trajectories in a minibatch (with another minibatch_unit: as many samples as
            this many trajectories hold), a divisor of batch_size: an epoch takes batch_size /
            minibatch_size optimizer steps.
        rollout_length: Environment steps per trajectory.
        actor_epochs: Maximum epochs of the actor per update; the hyperparameter kl_threshold stops
            them early.
        critic_epochs: Epochs of the critic per update.
        minibatch_unit: What minibatches are drawn over: whole trajectories, time rows across all
            environments, or single steps. A policy's actors always stay together.
        n_minibatches: Number of minibatches in an epoch, in place of minibatch_size. It divides
            the units of minibatch_unit: batch_size trajectories, rollout_length time rows, or
            rollout_length * batch_size steps. None: batch_size / minibatch_size.
        eval_frequency: Updates between evaluations; checkpoints are written with them.
        n_evals: Episodes per evaluation; 0 switches evaluation off.
        initial_evaluation: Evaluate (and write a checkpoint) before training too.
        eval_seed: Seed of the evaluations during training. They all use the same random numbers,
            so that only the policy differs between them.
        checkpoint_dir: Directory of this run's checkpoints; None writes none.
        keep_latest: Number of latest checkpoints kept.
        keep_best: Number of checkpoints of highest return kept.
        parameter_sharing: How actors share policies. "shared": one policy for all; "independent":
            one each; "team": one for each team of the environment; or a policy index per actor,
            counted from 0, such as [0, 0, 1].
        agent_id: Append each actor's index, as a one-hot vector, to its observation, so that
            actors of one policy can differ.
        recurrent: Cell of recurrent actors and critics: "gru", "lstm", or "mingru", which trains
            fastest because its gates do not depend on the hidden state. None: feed-forward.
        recurrent_critic: Make critics recurrent too. A critic that observes the environment's
            whole state needs no memory.
        recurrent_chunk_length: Cut trajectories into chunks of this many steps, a divisor of
            rollout_length. Each chunk starts from the hidden state of the rollout, and gradients
            do not cross chunks. None: gradients go back through whole trajectories.
        centralized_critic: Let critics observe the environment's global state and, one-hot, the
            actor's index. Without a global state they observe all actors' observations, which must
            then be finite even for dead actors.
            Source: MAPPO, Yu et al. 2022, https://arxiv.org/abs/2103.01955.
        shared_torso: Let critics take the output of the actor's hidden layers and recurrent cell in
            place of the observation. Only the actor's loss trains the shared layers. An update
            computes their output once for all critic epochs, which is faster, above all for
            recurrent agents: their critics need no cell. critic_layers follow the shared layers.
        normalize_observations: Shift and scale observations, but not images, to mean 0 and standard
            deviation 1, by each policy's running statistics. The first rollout has none: its
            normalised observations are all 0.
        normalize_values: Normalise value targets to mean 0 and standard deviation 1, by a moving
            average of each policy's targets.
        scale_rewards: Divide rewards by the standard deviation of their discounted sums, by each
            policy's running statistics. Reported returns are not scaled.
        advantages: Estimator of advantages: "gae", or "vtrace", which corrects for the policy's
            change since the rollout and is recomputed before each actor epoch.
        joint_update: Train actor and critic in the same minibatches, and clip their gradients by
            their common norm, as if they were one network with the sum of both losses.
            actor_epochs and the hyperparameter kl_threshold then apply to both, and grad_clip is
            the actor's. False: the critic is trained after the actor, in minibatches of its own.
        update_order: "together": all policies learn at the same time. "sequential": one after the
            other, in a random order. The advantages of each are multiplied by the factor by which
            the updates of earlier policies changed the probability of their own actions. For teams
            whose actors have a policy each. Source: HAPPO, Kuba et al. 2022,
            https://arxiv.org/abs/2109.11251.
        normalize_advantages: Shift and scale advantages to mean 0 and standard deviation 1 over a
            policy's whole "batch", or over each "minibatch". None: leave them in units of reward.
        scale_actor_loss: Multiply the actor's loss by the standard deviation of the advantages
            relative to that of the rewards, at most 1. Steps then become small once a task is
            solved; see `ppo.statistics.relative_deviation`.
        replay_updates: In each update, also learn from this many of the latest earlier rollouts,
            which are kept on the device and corrected by V-trace; needs advantages="vtrace" and the
            extra "replay". An epoch takes replay_updates + 1 times as many optimizer steps. 0:
            learn from the new rollout alone.
        warmup_updates: Updates before the first one that learns from earlier rollouts; never fewer
            than replay_updates.
        critic_error: Cost of a value's error: "squared", or "huber": squared up to the
            hyperparameter huber_delta, linear beyond.
        clip_values: Clip values in the critic's loss to within the hyperparameter eps_clip of the
            values at the rollout; the larger of both errors counts. With normalize_values, eps_clip
            is in standard deviations of the value targets.
        learning_rate_schedule: "constant"; "linear" or "cosine": both learning rates fall to 0 over
            n_steps updates; or "kl": the actor's rate adapts to the hyperparameter kl_target.
        ent_coeff_schedule: Schedule of the hyperparameter ent_coeff: "constant", "linear" or
            "cosine".
        eps_clip_schedule: Schedule of the hyperparameter eps_clip: "constant", "linear" or
            "cosine".
        anneal_learning_rate: The same as learning_rate_schedule="linear".
        on_nonfinite: Reaction to a NaN or infinite quantity of an update: a reward, observation,
            running statistic, value, loss, gradient or parameter. "stop" ends the training with an
            error that names update, policy and quantity; only checkpoints survive. "skip" leaves
            that policy as it was before the update, but still counts the update.
        shaped_reward_steps: Environment steps over which an environment's shaped reward is added
            to the reward, times a factor that falls linearly from 1 to 0; None adds none. Returns
            never include it.
        max_episode_steps: Truncate episodes at this length, in environment steps; None leaves it
            to the environment.
        time_limits: What truncation means for learning. "bootstrap": the time limit is no part of
            the task, and the value of the final observation replaces the rest of the return.
            "terminal": it is a part of the task, and ends the return. The metric truncated is the
            same either way. None: as the environment says. Source: Pardo et al. 2018,
            https://arxiv.org/abs/1712.00378.
        observe_time: Append the share of the time limit that has passed to what actors and critics
            observe. None: only if the environment says that its time limit is a part of the task,
            time_limits does not change that, and the limit is known.
        progress_bar: Show a progress bar; it advances with each evaluation.
        devices: Number of devices that share the members of a population, the environments of an
            update and the episodes of an evaluation. Each draws minibatches from its own
            trajectories; gradients and statistics are taken over all devices. A resumed run may
            change it.
        squash: Continuous agents: squash actions into their bounds by tanh instead of clipping.
        compute_dtype: "bfloat16" computes the hidden layers of the default networks in bfloat16,
            and rounds observations to it, for accelerators. Parameters, recurrent cells, last
            layers and losses remain float32; None computes everything in float32. A resumed run
            may change it.
        prng_impl: "rbg" draws a run's random numbers with that generator of jax, seeded with the
            run's key. It is cheaper on accelerators, but its numbers depend on the machine and on
            jax's version. None draws with the key's own generator.
        actor_layers: The actor's network.
        critic_layers: The critic's network.
        actor_network: "attention" or "deep_sets", over the entities of an observation; or the name
            of a network added by `jaxagents.register_network`. With arguments, {name: attention,
            size: 32}. In Python it may also be a flax module, which files cannot hold. The module
            maps [*batch, *obs] to [*batch, n_actions] logits, or to [*batch, dimensions] means. For
            recurrent agents it has the interface of `RecurrentNetwork`: from [time, *batch, *obs],
            the hidden state and the steps at which it is reset, to outputs and the hidden states
            after each step. Its output for a sample must not depend on other samples, as it would
            with batch normalisation. None builds one from actor_layers.
        critic_network: The critic's network, given as for actor_network; it maps [*batch, *obs] to
            values [*batch]. None builds one from critic_layers.
        freeze: Paths of parameters, or of running statistics such as normalizers.observation, that
            no update changes, as in [actor.torso.Dense_0, critic]. A path stands for everything
            below it; an unknown one is an error, which lists all paths. Freezing the critic's last
            layer also freezes the normalizers value and reward, so that its outputs keep their
            meaning. Gradients are clipped by the norm over the other parameters.
        optimizer: "clipped_adam": Adam with clipped gradients, whose steps have a root mean square
            of at most the learning rate; or "adam", without that bound. In Python it may also be a
            function from a network's OptimizerParams to an optax.GradientTransformation, which
            files cannot hold.
    """

    # The size of a training run
    n_steps: int
    batch_size: int = 16
    minibatch_size: int = 4
    rollout_length: int = 128
    actor_epochs: int = 4
    critic_epochs: int = 4
    minibatch_unit: Literal["trajectory", "time", "step"] = "trajectory"
    n_minibatches: int | None = None
    # Evaluation and checkpoints
    eval_frequency: int = 50
    n_evals: int = 32
    initial_evaluation: bool = True
    eval_seed: int = 0
    checkpoint_dir: str | PathLike[str] | None = None
    keep_latest: int = 2
    keep_best: int = 1
    # Policies
    parameter_sharing: Literal["shared", "independent", "team"] | tuple[int, ...] = "shared"
    agent_id: bool = False
    # Recurrent networks
    recurrent: Literal["gru", "lstm", "mingru"] | None = None
    recurrent_critic: bool = True
    recurrent_chunk_length: int | None = None
    # Critics
    centralized_critic: bool = False
    shared_torso: bool = False
    # Normalisation
    normalize_observations: bool = True
    normalize_values: bool = True
    scale_rewards: bool = False
    # Losses and schedules
    advantages: Literal["gae", "vtrace"] = "gae"
    joint_update: bool = False
    update_order: Literal["together", "sequential"] = "together"
    normalize_advantages: Literal["batch", "minibatch"] | None = "batch"
    scale_actor_loss: bool = True
    replay_updates: int = 0
    warmup_updates: int = 0
    critic_error: Literal["squared", "huber"] = "squared"
    clip_values: bool = False
    learning_rate_schedule: Literal["constant", "linear", "cosine", "kl"] = "constant"
    ent_coeff_schedule: Schedule = "constant"
    eps_clip_schedule: Schedule = "constant"
    anneal_learning_rate: bool = False
    # The run
    on_nonfinite: Literal["stop", "skip"] = "stop"
    shaped_reward_steps: int | None = None
    max_episode_steps: int | None = None
    time_limits: TimeLimits | None = None
    observe_time: bool | None = None
    progress_bar: bool = True
    devices: int = 1
    squash: bool = False
    compute_dtype: Literal["bfloat16"] | None = None
    prng_impl: Literal["rbg"] | None = None
    # Networks and optimizers
    actor_layers: Layers = Layers()
    critic_layers: Layers = Layers()
    actor_network: NetworkChoice = None
    critic_network: NetworkChoice = None
    freeze: tuple[str, ...] = ()
    optimizer: OptimizerChoice = "clipped_adam"

    def __post_init__(self) -> None:
        """Check all that is known without the environment."""
        use_python_values(self)
        for name in _SIZES:
            check_integer(name, getattr(self, name), minimum=1)
        for name in ("n_evals", "keep_best", "replay_updates", "warmup_updates"):
            check_integer(name, getattr(self, name), minimum=0)
        check_seed("eval_seed", self.eval_seed)
        for name in _OPTIONAL_SIZES:
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name), minimum=1)
        for name in ("actor_layers", "critic_layers"):
            if not isinstance(getattr(self, name), Layers):
                raise TypeError(f"{name}={getattr(self, name)!r} is not a jaxagents.Layers.")
        hints = get_type_hints(type(self))
        for name in _CHOICES:
            _check_choice(name, getattr(self, name), hints[name])
        for name in ("actor_network", "critic_network"):
            object.__setattr__(self, name, _as_network(name, getattr(self, name)))
        for name, hint in hints.items():
            value = getattr(self, name)
            if hint is bool or (hint == bool | None and value is not None):
                _check_flag(name, value)
        if isinstance(self.optimizer, optax.GradientTransformation):
            raise TypeError(
                "optimizer is an optax.GradientTransformation; give a function that builds it from "
                "a network's OptimizerParams: lambda params: optax.adam(params.learning_rate)."
            )
        if not callable(self.optimizer):
            _check_choice("optimizer", self.optimizer, Literal["clipped_adam", "adam"])
        self._check_memory()
        self._check_minibatches()
        self._check_torso()
        self._check_replay()
        self._check_joint_update()
        self._check_update_order()
        if self.anneal_learning_rate and self.learning_rate_schedule not in ("constant", "linear"):
            raise ValueError(
                "anneal_learning_rate=True means learning_rate_schedule='linear', but "
                f"learning_rate_schedule={self.learning_rate_schedule!r}; remove one."
            )
        if not isinstance(self.checkpoint_dir, str | PathLike | None):
            raise TypeError(f"checkpoint_dir={self.checkpoint_dir!r} is no path, and not None.")
        if not isinstance(self.parameter_sharing, str):
            # A list, as from a configuration file, would make the configuration unhashable.
            object.__setattr__(self, "parameter_sharing", _as_indices(self.parameter_sharing))
        if isinstance(self.freeze, str):
            raise TypeError(f"freeze={self.freeze!r} is text; give a list of paths.")
        object.__setattr__(self, "freeze", tuple(self.freeze))

    def _check_memory(self) -> None:
        length = self.recurrent_chunk_length
        if self.recurrent is None:
            if length is not None:
                raise ValueError(
                    f"recurrent_chunk_length={length}, but recurrent=None: networks without memory "
                    "learn from single steps; leave it None or choose a recurrent cell."
                )
            return
        if self.minibatch_unit != "trajectory":
            raise ValueError(
                f"minibatch_unit={self.minibatch_unit!r} splits trajectories, but networks with "
                f"recurrent={self.recurrent!r} learn from whole ones; choose 'trajectory'."
            )
        if length is not None and self.rollout_length % length:
            raise ValueError(
                f"rollout_length={self.rollout_length} steps do not divide into chunks of "
                f"recurrent_chunk_length={length}; choose a divisor of {self.rollout_length}."
            )

    def _check_minibatches(self) -> None:
        size, given = self.minibatch_size, self.n_minibatches
        if given is None and self.batch_size % size:
            raise ValueError(
                f"batch_size={self.batch_size} trajectories do not divide into minibatches of "
                f"minibatch_size={size}; choose a divisor of {self.batch_size}."
            )
        if given is not None and size not in (type(self).minibatch_size, self.batch_size / given):
            raise ValueError(
                f"minibatch_size={size} and n_minibatches={given} contradict each other at "
                f"batch_size={self.batch_size}; give one of them."
            )
        n_minibatches, (n_units, units) = self.minibatches_per_epoch, self._minibatch_units()
        if self.minibatch_unit == "time":  # rows that go across all rollouts of an update
            n_minibatches *= 1 + self.replay_updates
        if n_units % n_minibatches:
            given = "n_minibatches" if self.n_minibatches else "batch_size / minibatch_size"
            replay = " * (1 + replay_updates)" if self.replay_updates else ""
            raise ValueError(
                f"{units} do not divide into {given}{replay} = {n_minibatches} minibatches; choose "
                f"a multiple of {n_minibatches}."
            )
        if self.learning_rate_schedule == "kl" and self.actor_epochs * n_minibatches == 1:
            raise ValueError(
                "learning_rate_schedule='kl' adapts to the divergence in an update's last epoch, "
                "which is always 0 with a single step of the optimizer (actor_epochs=1, one "
                "minibatch); choose more epochs or smaller minibatches."
            )

    def _minibatch_units(self) -> tuple[int, str]:
        """Count the units that minibatches of a rollout are drawn from, with a description."""
        if self.minibatch_unit == "trajectory":
            return self.batch_size, f"batch_size={self.batch_size} trajectories"
        if self.minibatch_unit == "time":
            return self.rollout_length, f"rollout_length={self.rollout_length} time rows"
        n_steps = self.steps_per_update
        return n_steps, f"rollout_length * batch_size = {n_steps} steps"

    def check_division(self, n_devices: int, given: str) -> None:
        """Raise ValueError if the work of a run does not divide among devices.

        Args:
            n_devices: Number of devices, above 1.
            given: The setting that asks for them, for the message.
        """
        sizes = {"minibatch_size": self.minibatch_size, "n_evals": self.n_evals}
        if self.n_minibatches is not None:
            n_units, units = self._minibatch_units()
            name = f"a minibatch ({units}, n_minibatches={self.n_minibatches})"
            sizes = {"batch_size": self.batch_size, name: n_units // self.n_minibatches} | sizes
            del sizes["minibatch_size"]
        for name, value in sizes.items():
            if value % n_devices:
                raise ValueError(
                    f"{name}={value} does not divide among {given}; choose a multiple of "
                    f"{n_devices}."
                )
        if self.replay_updates:
            raise ValueError(
                f"replay_updates={self.replay_updates} keeps rollouts on one device, but {given}; "
                "choose one of them."
            )

    def _check_torso(self) -> None:
        if not self.shared_torso:
            return
        if self.centralized_critic:
            raise ValueError(
                "shared_torso=True gives critics the actor's features, and centralized_critic=True "
                "the global state; choose one."
            )
        if self.actor_network is not None:
            raise ValueError(
                f"shared_torso=True cannot find the torso of actor_network={self.actor_network!r}; "
                "describe the actor by actor_layers, or choose shared_torso=False."
            )

    def _check_replay(self) -> None:
        if self.replay_updates and self.advantages != "vtrace":
            raise ValueError(
                f"replay_updates={self.replay_updates} learns from the rollouts of earlier "
                f"policies, which advantages={self.advantages!r} does not correct for; choose "
                "advantages='vtrace', or replay_updates=0."
            )
        if self.warmup_updates and not self.replay_updates:
            raise ValueError(
                f"warmup_updates={self.warmup_updates} delays a replay that replay_updates=0 "
                "switches off; leave it 0, or choose replay_updates."
            )

    def _check_joint_update(self) -> None:
        if not self.joint_update:
            return
        if self.advantages != "gae":
            raise ValueError(
                f"joint_update=True trains critics before advantages={self.advantages!r} knows the "
                "new policy; choose advantages='gae', or joint_update=False."
            )
        if self.shared_torso:
            raise ValueError(
                "joint_update=True trains two networks, but with shared_torso=True the actor's "
                "loss alone trains the shared layers; choose one of them."
            )
        if self.recurrent is not None and not self.recurrent_critic:
            raise ValueError(
                "joint_update=True draws the same minibatches for actor and critic, but "
                "recurrent_critic=False draws others for the critic; choose one of them."
            )

    def _check_update_order(self) -> None:
        if self.update_order == "together":
            return
        if self.advantages != "gae":
            raise ValueError(
                "update_order='sequential' multiplies advantages by ratios, but "
                f"advantages={self.advantages!r} estimates them anew in each epoch; choose 'gae'."
            )
        if self.normalize_advantages == "minibatch":
            raise ValueError(
                "update_order='sequential' multiplies advantages by ratios, which "
                "normalize_advantages='minibatch' would undo; choose 'batch' or None."
            )

    @property
    def minibatches_per_epoch(self) -> int:
        """Minibatches of an epoch over a single rollout."""
        return self.n_minibatches or self.batch_size // self.minibatch_size

    @property
    def steps_per_update(self) -> int:
        """Environment steps that one update consumes."""
        return self.rollout_length * self.batch_size

    @property
    def n_chunks(self) -> int:
        """Chunks per trajectory."""
        return self.rollout_length // self.chunk_length

    @property
    def chunk_length(self) -> int:
        """Steps per sequence."""
        return self.recurrent_chunk_length or self.rollout_length


_SIZES = (
    "n_steps",
    "batch_size",
    "minibatch_size",
    "rollout_length",
    "actor_epochs",
    "critic_epochs",
    "eval_frequency",
    "keep_latest",
    "devices",
)


_OPTIONAL_SIZES = (
    "n_minibatches",
    "max_episode_steps",
    "shaped_reward_steps",
    "recurrent_chunk_length",
)

_CHOICES = (
    "minibatch_unit",
    "update_order",
    "normalize_advantages",
    "recurrent",
    "advantages",
    "critic_error",
    "learning_rate_schedule",
    "ent_coeff_schedule",
    "eps_clip_schedule",
    "on_nonfinite",
    "time_limits",
    "compute_dtype",
    "prng_impl",
)


def _as_indices(parameter_sharing: Any) -> tuple[int, ...]:
    try:
        indices = tuple(operator.index(each) for each in parameter_sharing)
    except TypeError:
        raise TypeError(
            f"parameter_sharing={parameter_sharing!r} is neither 'shared', 'independent', 'team' "
            "nor a policy index per actor."
        ) from None
    return indices


def _as_network(field: str, choice: Any) -> Any:
    """Turn a network's name, or its name and arguments, into a `NamedNetwork`."""
    if isinstance(choice, str):
        choice = {"name": choice}
    if not isinstance(choice, Mapping):
        return choice
    arguments = dict(choice)
    name = arguments.pop("name", None)
    if not isinstance(name, str) or not name:
        raise ValueError(
            f"{field}={dict(choice)!r} names no network; give its name and arguments, as in "
            "{name: mine, width: 64}."
        )
    return NamedNetwork(name, _frozen(field, arguments))


def _frozen(name: str, value: Any) -> Any:
    """Make a value read from a file hashable."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.number | np.bool_):
        return value.item()
    if isinstance(value, list | tuple):
        return tuple(_frozen(name, each) for each in value)
    if isinstance(value, Mapping):
        names = sorted(value, key=str)
        return FrozenDict({str(each): _frozen(f"{name}.{each}", value[each]) for each in names})
    raise TypeError(f"{name}={value!r} is no number, text, list or mapping, which files can hold.")


def _thawed(value: Any) -> Any:
    """Undo `_frozen`."""
    if isinstance(value, tuple):
        return [_thawed(each) for each in value]
    if isinstance(value, Mapping):
        return {name: _thawed(each) for name, each in value.items()}
    return value
