"""What a user fixes when building an agent: sizes and choices.

Changing one of them means compiling anew, unlike a hyperparameter.
"""

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike
from typing import Any, Literal, get_args, get_type_hints

import numpy as np
import optax
from flax import linen as nn

from jaxagents.hyperparameters import OptimizerParams, adam


def _check_choice(name: str, value: Any, hint: Any) -> None:
    choices = [each for option in get_args(hint) for each in (get_args(option) or (option,))]
    choices = [None if each is type(None) else each for each in choices]
    if value not in choices:
        text = ", ".join(map(repr, choices[:-1]))
        raise ValueError(f"{name}={value!r} is unknown; choose {text} or {choices[-1]!r}.")


def _check_integer(name: str, value: Any, minimum: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name}={value!r} is not an integer.")
    if value < minimum:
        raise ValueError(f"{name}={value} is too small; it must be at least {minimum}.")


def check_seed(name: str, value: Any) -> None:
    """Refuse what is no seed of jax's random keys: other numbers would be the same as one of these.

    Args:
        name: What to call it.
        value: The seed.

    Raises:
        TypeError: It is no integer.
        ValueError: It is too small or too large.
    """
    _check_integer(name, value, minimum=0)
    if value >= 2**32:
        raise ValueError(f"{name}={value} is too large; it must be below 2**32 = {2**32}.")


def use_python_integers(config: Any) -> None:
    """Replace numpy's integers in a frozen dataclass, as no file holds them."""
    for name, value in vars(config).items():
        if isinstance(value, np.integer):
            object.__setattr__(config, name, value.item())


Activation = Literal["tanh", "relu", "elu", "gelu", "silu"]
Schedule = Literal["constant", "linear", "cosine"]


@dataclass(frozen=True)
class Layers:
    """What a default network is built of.

    Attributes:
        hidden_sizes: Units of each hidden layer.
        activation: Applied after each layer; None takes tanh, or relu for images.
        layer_norm: Normalise the outputs of each layer over its units, before the activation.
        channels: Output channels of each convolution, of 3 by 3 pixels, where observations are
            images (three axes).
        memory_size: Units of the recurrent cell, behind the hidden layers; for recurrent agents.
        sizes_after_memory: Units of each hidden layer behind the recurrent cell; likewise.
    """

    hidden_sizes: tuple[int, ...] = (64, 64)
    activation: Activation | None = None
    layer_norm: bool = False
    channels: tuple[int, ...] = (16,)
    memory_size: int = 64
    sizes_after_memory: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Check the sizes, and make Python's tuples and integers of them."""
        for name in ("hidden_sizes", "channels", "sizes_after_memory"):
            sizes = getattr(self, name)
            if isinstance(sizes, int | str) or not hasattr(sizes, "__iter__"):
                raise TypeError(f"{name}={sizes!r} is no sequence of integers.")
            sizes = tuple(sizes)
            for size in sizes:
                _check_integer(name, size, minimum=1)
            object.__setattr__(self, name, tuple(map(int, sizes)))
        use_python_integers(self)
        _check_integer("memory_size", self.memory_size, minimum=1)
        if self.activation is not None:
            _check_choice("activation", self.activation, Activation)


@dataclass(frozen=True)
class AgentConfig:
    """The sizes and choices that fix an agent's computation.

    Attributes:
        n_steps: Updates of the whole training; each consumes rollout_length * batch_size
            environment steps.
        batch_size: Number of parallel environments, one trajectory each per update.
        minibatch_size: Trajectories in a minibatch, a divisor of batch_size: an epoch takes
            batch_size / minibatch_size steps of the optimizer.
        rollout_length: Environment steps per trajectory.
        actor_epochs: Most passes of an update's actor over the rollout; the hyperparameter
            kl_threshold ends them earlier.
        critic_epochs: Passes of an update's critic over the rollout.
        minibatch_unit: What minibatches are drawn over: whole trajectories, time rows across all
            environments, or single steps. A policy's actors always stay together.
        eval_frequency: Updates between evaluations; checkpoints are written with them.
        n_evals: Episodes per evaluation; 0 switches evaluation off.
        initial_evaluation: Evaluate (and checkpoint) before training too.
        eval_seed: Seed of the evaluations during training. They all use the same random
            numbers, so what differs between them is the policy.
        checkpoint_dir: Directory of this run's checkpoints; None writes none.
        keep_latest: Number of latest checkpoints kept.
        keep_best: Number of checkpoints kept for their return.
        parameter_sharing: Which policies there are. "shared": one for all actors; "independent":
            one each; "team": one for each team of the environment; or a policy index per actor,
            counted from 0, such as [0, 0, 1].
        agent_id: Append each actor's index, as a one-hot vector, to what it observes, so that
            actors of one policy can differ.
        recurrent: Give actors and critics a memory: "gru", "lstm", or "mingru", which trains
            fastest as its gates do not look at it. None: they are feed-forward.
        recurrent_critic: Whether critics have a memory too. One that sees the whole state of the
            environment needs none.
        recurrent_chunk_length: Cut trajectories into pieces of this many steps, a divisor of
            rollout_length, each learnt from on its own, beginning with the memory of the rollout.
            None: gradients go back through whole trajectories.
        centralized_critic: Let critics see the environment's global state where it offers one,
            and otherwise what all actors observe, which must then be finite even for the dead; and
            the actor's index, as a one-hot vector.
            Source: MAPPO, Yu et al. 2022, https://arxiv.org/abs/2103.01955.
        shared_torso: Let critics see what the actor's hidden layers, and its memory, make of an
            observation in place of the observation. Only the actor's own loss trains these; an
            update applies them once for all of the critic's epochs, so that this is faster, above
            all with a memory, of which the critic then needs none of its own. critic_layers come
            behind them.
        normalize_observations: Shift and scale what networks see to mean 0 and standard
            deviation 1, by statistics of each policy's observations so far. The first rollout
            finds none: its observations are all 0.
        normalize_values: Let critics learn value targets of mean 0 and standard deviation 1, by
            a moving average of each policy's.
        scale_rewards: Divide the rewards that are learnt from by the standard deviation of their
            discounted sums so far, each policy's by its own.
        advantages: How advantages are estimated: "gae", or "vtrace", which corrects them for how
            far the policy has moved since the rollout, anew before each of its epochs.
        critic_error: What the critic minimises: "squared" errors, or "huber": squared up to the
            hyperparameter huber_delta, linear beyond.
        clip_values: Leave critics without gain from moving a value by more than the
            hyperparameter eps_clip in an update; in standard deviations of the value targets, with
            normalize_values.
        learning_rate_schedule: "constant", "linear" or "cosine": the factor of both learning
            rates over n_steps updates, from 1 to 0; or "kl": the actor's follows the
            hyperparameter kl_target.
        ent_coeff_schedule: Likewise, the factor of the hyperparameter ent_coeff.
        eps_clip_schedule: Likewise, the factor of the hyperparameter eps_clip.
        anneal_learning_rate: The same as learning_rate_schedule="linear".
        on_nonfinite: What happens where a loss, a gradient or a parameter is infinite or NaN:
            "stop" ends the training with an error that names update, policy and quantity; "skip"
            leaves that policy as it was before the update, and counts it. Either way no parameters
            are lost to it.
        shaped_reward_steps: Environment steps over which an environment's shaped reward is added
            to the reward that actors learn from, times a factor that falls linearly from 1 to 0;
            None adds none. Returns never include it.
        max_episode_steps: Truncate episodes at this length, in environment steps; None leaves it
            to the environment.
        progress_bar: Show a progress bar; it moves on with each evaluation.
        squash: Continuous agents: squash actions into their bounds by tanh instead of clipping.
        compute_dtype: "bfloat16" lets the hidden layers of the default networks compute in it, and
            round what they see to it, which is for accelerators. Parameters, recurrent cells, last
            layers and losses remain float32; None leaves everything so. May change within a run.
        prng_impl: "rbg" draws a training's random numbers by that generator of jax, which the
            training's key then only seeds. It is cheaper on accelerators, but gives other numbers
            on other machines and with other versions of jax. None draws by the key's own.
        actor_layers: The actor's network.
        critic_layers: The critic's network.
        actor_network: Flax module from [*batch, *obs] to [*batch, n_actions] logits, or to
            [*batch, dimensions] means; with a memory, as `RecurrentNetwork` has it: from
            [time, *batch, *obs], the memory and the steps at which it is emptied to outputs and
            the memories after each step. What it makes of a sample must not depend on others, as by
            statistics of a batch. None builds one of actor_layers.
        critic_network: Flax module from [*batch, *obs] to values [*batch]; None likewise.
        optimizer: Builds the optimizer of a network from its OptimizerParams.
    """

    n_steps: int
    batch_size: int = 16
    minibatch_size: int = 4
    rollout_length: int = 128
    actor_epochs: int = 4
    critic_epochs: int = 4
    minibatch_unit: Literal["trajectory", "time", "step"] = "trajectory"
    eval_frequency: int = 50
    n_evals: int = 32
    initial_evaluation: bool = True
    eval_seed: int = 0
    checkpoint_dir: str | PathLike[str] | None = None
    keep_latest: int = 2
    keep_best: int = 1
    parameter_sharing: Literal["shared", "independent", "team"] | tuple[int, ...] = "shared"
    agent_id: bool = False
    recurrent: Literal["gru", "lstm", "mingru"] | None = None
    recurrent_critic: bool = True
    recurrent_chunk_length: int | None = None
    centralized_critic: bool = False
    shared_torso: bool = False
    normalize_observations: bool = False
    normalize_values: bool = False
    scale_rewards: bool = False
    advantages: Literal["gae", "vtrace"] = "gae"
    critic_error: Literal["squared", "huber"] = "squared"
    clip_values: bool = False
    learning_rate_schedule: Literal["constant", "linear", "cosine", "kl"] = "constant"
    ent_coeff_schedule: Schedule = "constant"
    eps_clip_schedule: Schedule = "constant"
    anneal_learning_rate: bool = False
    on_nonfinite: Literal["stop", "skip"] = "stop"
    shaped_reward_steps: int | None = None
    max_episode_steps: int | None = None
    progress_bar: bool = True
    squash: bool = False
    compute_dtype: Literal["bfloat16"] | None = None
    prng_impl: Literal["rbg"] | None = None
    actor_layers: Layers = Layers()
    critic_layers: Layers = Layers()
    actor_network: nn.Module | None = None
    critic_network: nn.Module | None = None
    optimizer: Callable[[OptimizerParams], optax.GradientTransformation] = adam

    def __post_init__(self) -> None:
        """Check all that is known without the environment."""
        use_python_integers(self)
        for name in _SIZES:
            _check_integer(name, getattr(self, name), minimum=1)
        for name in ("n_evals", "keep_best"):
            _check_integer(name, getattr(self, name), minimum=0)
        check_seed("eval_seed", self.eval_seed)
        for name in ("max_episode_steps", "shaped_reward_steps", "recurrent_chunk_length"):
            if getattr(self, name) is not None:
                _check_integer(name, getattr(self, name), minimum=1)
        if self.batch_size % self.minibatch_size:
            raise ValueError(
                f"batch_size={self.batch_size} trajectories do not divide into minibatches of "
                f"minibatch_size={self.minibatch_size}; choose a divisor of {self.batch_size}."
            )
        for name in ("actor_layers", "critic_layers"):
            if not isinstance(getattr(self, name), Layers):
                raise TypeError(f"{name}={getattr(self, name)!r} is no jaxagents.Layers.")
        hints = get_type_hints(type(self))
        for name in _CHOICES:
            _check_choice(name, getattr(self, name), hints[name])
        self._check_memory()
        self._check_torso()
        if self.anneal_learning_rate and self.learning_rate_schedule not in ("constant", "linear"):
            raise ValueError(
                f"anneal_learning_rate=True is learning_rate_schedule='linear', but that is "
                f"{self.learning_rate_schedule!r}; choose one."
            )
        if self.learning_rate_schedule == "kl" and self.actor_epochs * self.n_minibatches == 1:
            raise ValueError(
                "learning_rate_schedule='kl' adapts to the divergence in an update's last epoch, "
                "and a single step of the optimizer (actor_epochs=1, minibatch_size=batch_size) "
                "leaves none before it; choose more epochs or smaller minibatches."
            )
        if self.minibatch_unit == "time" and self.rollout_length % self.n_minibatches:
            raise ValueError(
                f"rollout_length={self.rollout_length} time rows do not divide into the "
                f"{self.n_minibatches} minibatches of batch_size={self.batch_size} and "
                f"minibatch_size={self.minibatch_size}; choose a multiple of {self.n_minibatches}."
            )
        if not isinstance(self.parameter_sharing, str):
            # A list from a configuration file would make the configuration unhashable.
            object.__setattr__(self, "parameter_sharing", _as_indices(self.parameter_sharing))

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
                f"minibatch_unit={self.minibatch_unit!r} tears trajectories apart, which networks "
                f"with recurrent={self.recurrent!r} learn from as a whole; choose 'trajectory'."
            )
        if length is not None and self.rollout_length % length:
            raise ValueError(
                f"rollout_length={self.rollout_length} steps do not divide into chunks of "
                f"recurrent_chunk_length={length}; choose a divisor of {self.rollout_length}."
            )

    def _check_torso(self) -> None:
        if not self.shared_torso:
            return
        if self.centralized_critic:
            raise ValueError(
                "shared_torso=True gives critics what the actor makes of its own observation, and "
                "centralized_critic=True something else to observe; choose one."
            )
        if self.actor_network is not None:
            raise ValueError(
                f"shared_torso=True knows no torso of actor_network={self.actor_network!r}; "
                "describe the actor by actor_layers, or choose shared_torso=False."
            )

    @property
    def n_minibatches(self) -> int:
        """Minibatches an epoch."""
        return self.batch_size // self.minibatch_size

    @property
    def steps_per_update(self) -> int:
        """Environment steps that one update consumes."""
        return self.rollout_length * self.batch_size

    @property
    def n_chunks(self) -> int:
        """Sequences that each trajectory is learnt from in."""
        return self.rollout_length // self.chunk_length

    @property
    def chunk_length(self) -> int:
        """Steps of the sequences that networks learn from."""
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
)


_CHOICES = (
    "minibatch_unit",
    "recurrent",
    "advantages",
    "critic_error",
    "learning_rate_schedule",
    "ent_coeff_schedule",
    "eps_clip_schedule",
    "on_nonfinite",
    "compute_dtype",
    "prng_impl",
)


_ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # in the text of a function, other in each process
_STRUCTURE = (
    "batch_size",
    "rollout_length",  # by which updates are counted as environment steps
    "agent_id",
    "recurrent",
    "recurrent_critic",
    "centralized_critic",
    "shared_torso",
    "normalize_observations",
    "normalize_values",
    "scale_rewards",
    "max_episode_steps",
    "squash",
    "prng_impl",
    "actor_layers",
    "critic_layers",
    "actor_network",
    "critic_network",
    "optimizer",
)


def structure_of(config: AgentConfig) -> dict[str, Any]:
    """Tell, as plain data, what a run's checkpoints depend on: it cannot change within a run."""
    values = {name: getattr(config, name) for name in _STRUCTURE}
    adapts = config.learning_rate_schedule == "kl"
    return {name: _plain(value) for name, value in values.items()} | {
        "adapts_learning_rate": adapts
    }


def _plain(value: Any) -> Any:
    """Describe a choice by what JSON has, and alike in every process."""
    if value is None or isinstance(value, bool | int | str):
        return value
    name = getattr(value, "__qualname__", None)
    return name or _ADDRESS.sub("", " ".join(repr(value).split()))


def _as_indices(parameter_sharing: Any) -> tuple[int, ...]:
    try:
        indices = tuple(operator.index(each) for each in parameter_sharing)
    except TypeError:
        raise TypeError(
            f"parameter_sharing={parameter_sharing!r} is neither 'shared', 'independent', 'team' "
            "nor a policy index per actor."
        ) from None
    return indices
