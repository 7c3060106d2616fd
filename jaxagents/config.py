"""What a user sets: the agent's configuration and the hyperparameters.

`AgentConfig` fixes the shape of the computation: changing it means compiling anew.
`HyperParameters` are traced values: changing one does not, and `jax.vmap` may sweep them.
"""

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from flax import struct
from jax.core import Tracer
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

ScalarLike = float | Float[Array, ""]
"""A Python number or a traced one."""

PerPolicy = float | Any
"""A scalar for all policies, or a sequence or array of one value per policy."""


class OptimizerParams(struct.PyTreeNode):
    """What the optimizer of one network is built from.

    Attributes:
        learning_rate: Step size of Adam.
        eps: Adam's epsilon.
        grad_clip: Largest global norm of a policy's gradient.
    """

    learning_rate: PerPolicy = 2.5e-4
    eps: PerPolicy = 1e-5
    grad_clip: PerPolicy = 0.5


class HyperParameters(struct.PyTreeNode):
    """The coefficients of PPO, each a scalar or one value per policy.

    Attributes:
        gamma: Discount per environment step, in [0, 1].
        gae_lambda: Decay of the generalised advantage estimate, in [0, 1].
        eps_clip: Half-width of the interval to which the policy ratio is clipped.
        ent_coeff: Weight of the entropy bonus in the actor loss.
        vf_coeff: Weight of the critic loss.
        kl_threshold: A policy's actor epochs of an update end once its KL divergence from the
            policy that collected the rollout exceeds this, in nats. The KL is the mean over a
            whole epoch, each minibatch taken before its own step: with one minibatch an epoch it
            lags one epoch. Infinity never stops.
        actor_optimizer_params: The actor's optimizer.
        critic_optimizer_params: The critic's optimizer.
    """

    gamma: PerPolicy = 0.99
    gae_lambda: PerPolicy = 0.95
    eps_clip: PerPolicy = 0.2
    ent_coeff: PerPolicy = 0.01
    vf_coeff: PerPolicy = 0.5
    kl_threshold: PerPolicy = math.inf
    actor_optimizer_params: OptimizerParams = OptimizerParams()
    critic_optimizer_params: OptimizerParams = OptimizerParams()


def adam(params: OptimizerParams) -> optax.GradientTransformation:
    """Build the default optimizer: Adam behind a clip of the gradient's global norm."""
    return optax.chain(
        optax.clip_by_global_norm(params.grad_clip),
        optax.adam(params.learning_rate, eps=params.eps),
    )


@dataclass(frozen=True)
class AgentConfig:
    """The sizes and choices that fix an agent's computation.

    Attributes:
        n_steps: Number of updates; each consumes rollout_length * batch_size environment steps.
        batch_size: Number of parallel environments, one trajectory each per update.
        minibatch_size: Trajectories in a minibatch, a divisor of batch_size.
        rollout_length: Environment steps per trajectory.
        actor_epochs: Most passes of an update's actor over the rollout.
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
        parameter_sharing: "shared": one policy for all actors; "independent": one each; "team":
            one for each team of the environment; or a policy index per actor, counted from 0,
            such as (0, 0, 1).
        agent_id: Append each actor's index, as a one-hot vector, to what it observes, so that
            actors of one policy can differ.
        anneal_learning_rate: Let the learning rates fall linearly to 0 over n_steps updates.
        shaped_reward_steps: Environment steps over which an environment's shaped reward is added
            to the reward that actors learn from, times a factor that falls linearly from 1 to 0;
            None adds none. Returns never include it.
        max_episode_steps: Truncate episodes at this length; None leaves it to the environment.
        progress_bar: Show a progress bar over the evaluations.
        squash: Continuous agents: squash actions into their bounds by tanh instead of clipping.
        actor_network: Flax module from [*batch, *obs] to [*batch, n_actions] logits, or to
            [*batch, dimensions] means; None builds two hidden layers of 64 tanh units, behind
            a convolution where observations are images (three axes).
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
    anneal_learning_rate: bool = False
    shaped_reward_steps: int | None = None
    max_episode_steps: int | None = None
    progress_bar: bool = True
    squash: bool = False
    actor_network: nn.Module | None = None
    critic_network: nn.Module | None = None
    optimizer: Callable[[OptimizerParams], optax.GradientTransformation] = adam

    def __post_init__(self) -> None:
        """Check all that is known without the environment."""
        for name in _SIZES:
            _check_integer(name, getattr(self, name), minimum=1)
        for name in ("n_evals", "eval_seed", "keep_best"):
            _check_integer(name, getattr(self, name), minimum=0)
        for name in ("max_episode_steps", "shaped_reward_steps"):
            if getattr(self, name) is not None:
                _check_integer(name, getattr(self, name), minimum=1)
        if self.batch_size % self.minibatch_size:
            raise ValueError(
                f"batch_size={self.batch_size} trajectories do not divide into minibatches of "
                f"minibatch_size={self.minibatch_size}; choose a divisor of {self.batch_size}."
            )
        if self.minibatch_unit not in ("trajectory", "time", "step"):
            raise ValueError(
                f"minibatch_unit={self.minibatch_unit!r} is unknown; choose 'trajectory', 'time' "
                "or 'step'."
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

    @property
    def n_minibatches(self) -> int:
        """Minibatches an epoch."""
        return self.batch_size // self.minibatch_size

    @property
    def steps_per_update(self) -> int:
        """Environment steps that one update consumes."""
        return self.rollout_length * self.batch_size


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


def _check_integer(name: str, value: Any, minimum: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name}={value!r} is not an integer.")
    if value < minimum:
        raise ValueError(f"{name}={value} is too small; it must be at least {minimum}.")


def _as_indices(parameter_sharing: Any) -> tuple[int, ...]:
    try:
        indices = tuple(operator.index(each) for each in parameter_sharing)
    except TypeError:
        raise TypeError(
            f"parameter_sharing={parameter_sharing!r} is neither 'shared', 'independent', 'team' "
            "nor a policy index per actor."
        ) from None
    return indices


_UNIT_INTERVAL = ("gamma", "gae_lambda")
_NON_NEGATIVE = ("ent_coeff", "vf_coeff", "learning_rate")


def as_arrays(hyperparams: HyperParameters) -> HyperParameters:
    """Turn every leaf into a float32 array, so that changing a value never compiles anew."""
    return jax.tree.map(
        lambda leaf: jnp.asarray(leaf, jnp.float32),
        hyperparams,
        is_leaf=lambda node: isinstance(node, list | tuple),
    )


def per_policy(hyperparams: HyperParameters, n_policies: int) -> HyperParameters:
    """Give every leaf one value per policy, ``[policies]``."""
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (n_policies,)), hyperparams)


def scale_learning_rates(hyperparams: HyperParameters, factor: ScalarLike) -> HyperParameters:
    """Multiply the learning rates of both networks."""

    def scale(params: OptimizerParams) -> OptimizerParams:
        return params.replace(learning_rate=params.learning_rate * factor)

    return hyperparams.replace(
        actor_optimizer_params=scale(hyperparams.actor_optimizer_params),
        critic_optimizer_params=scale(hyperparams.critic_optimizer_params),
    )


def check_hyperparams(hyperparams: HyperParameters, n_policies: int) -> None:
    """Check every leaf that has a concrete value; what `jax.vmap` sweeps is left alone.

    Raises:
        TypeError: not `HyperParameters`, or a value is no number.
        ValueError: a value is out of range, or neither a scalar nor one value per policy.
    """
    if not isinstance(hyperparams, HyperParameters):
        raise TypeError(
            f"hyperparams is {type(hyperparams).__name__}; pass jaxagents.HyperParameters."
        )
    for name in ("actor_optimizer_params", "critic_optimizer_params"):
        if not isinstance(getattr(hyperparams, name), OptimizerParams):
            raise TypeError(
                f"{name}={getattr(hyperparams, name)!r} is no OptimizerParams; pass "
                "jaxagents.OptimizerParams(learning_rate=...)."
            )
    for name, value in flat_items(hyperparams).items():
        if not isinstance(value, Tracer):
            _check_leaf(name, value, n_policies)


def _check_leaf(name: str, value: Any, n_policies: int) -> None:
    try:
        values = np.asarray(value)
    except (TypeError, ValueError):  # lists of unequal lengths
        values = np.asarray(None)
    if not jnp.issubdtype(values.dtype, jnp.number):
        raise TypeError(f"{name}={value!r} is not a number or one number per policy.")
    values = values.astype(np.float32)
    if values.shape not in ((), (n_policies,)):
        raise ValueError(
            f"{name} has shape {values.shape}; give a scalar or one value for each of the "
            f"{n_policies} policies, shape ({n_policies},)."
        )
    field = name.rpartition(".")[2]
    if field in _UNIT_INTERVAL:
        valid, demand = (values >= 0) & (values <= 1), "between 0 and 1"
    elif field in _NON_NEGATIVE:
        valid, demand = (values >= 0) & np.isfinite(values), "finite and at least 0"
    else:
        valid, demand = values > 0, "positive"
    if not np.all(valid):
        raise ValueError(f"{name}={value} is out of range; it must be {demand}.")


def flat_items(hyperparams: HyperParameters) -> dict[str, Any]:
    """List the hyperparameters by dotted name, such as "actor_optimizer_params.learning_rate"."""
    items: dict[str, Any] = {}
    for name in hyperparams.__dataclass_fields__:
        value = getattr(hyperparams, name)
        if isinstance(value, OptimizerParams):
            for field in value.__dataclass_fields__:
                items[f"{name}.{field}"] = getattr(value, field)
        else:
            items[name] = value
    return items


def is_traced(tree: PyTree) -> bool:
    """Whether anything in a tree has no concrete value, as under `jax.vmap`."""
    return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(tree))


def as_key(rng: Any) -> PRNGKeyArray:
    """Accept typed random keys, and the raw arrays of `jax.random.PRNGKey`."""
    dtype = getattr(rng, "dtype", None)
    if dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key):
        return rng
    if dtype == jnp.uint32:
        return jax.random.wrap_key_data(rng)
    raise TypeError(f"rng={rng!r} is not a random key; pass jax.random.key(seed).")
