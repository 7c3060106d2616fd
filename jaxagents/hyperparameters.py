"""Hyperparameters: traced values, which change without recompiling."""

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import InitVar
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.core import Tracer
from jaxtyping import Array, Float

ScalarLike = float | Float[Array, ""]
"""A Python number or a traced one."""

PerPolicy = float | Any
"""A scalar for all policies, or a sequence or array of one value per policy."""


class OptimizerParams(struct.PyTreeNode):
    """The parameters of one network's optimizer.

    Attributes:
        learning_rate: Adam's learning rate; its initial value if it has a schedule.
        eps: Adam's epsilon, added to the root of the second moment.
        grad_clip: Maximum global norm of a policy's gradient; infinity never clips.
    """

    learning_rate: PerPolicy = 1e-3
    eps: PerPolicy = 1e-5
    grad_clip: PerPolicy = 0.5


class HyperParameters(struct.PyTreeNode):
    """The coefficients of PPO, each a scalar or one value per policy.

    The argument ``learning_rate`` sets the learning rate of both optimizers, in place of their
    parameters.

    Attributes:
        gamma: Discount per environment step, in [0, 1].
        gae_lambda: Decay of the generalised advantage estimate per environment step, in [0, 1].
        eps_clip: Half-width of the interval around 1 to which the ratio of the current to the
            behaviour policy is clipped.
        ent_coeff: Weight of the policy's entropy, in nats, in the actor loss.
        vf_coeff: Weight of the critic loss.
        kl_threshold: Early stopping: a policy's actor epochs of an update end once its KL
            divergence from the behaviour policy exceeds this, in nats. The KL is the mean over a
            whole epoch, where each minibatch's is computed before its own step: with one minibatch
            per epoch it lags by one epoch. Infinity never stops.
        kl_target: With AgentConfig.learning_rate_schedule="kl": the KL divergence, in nats, that
            an update's last epoch should reach. The actor's learning rate then stays between 1e-6
            and 1e-2; a resumed run continues with its current rate.
        rho_clip: With AgentConfig.advantages="vtrace": upper bound of the ratio that weights a
            step's own temporal difference, see `ppo.advantages.vtrace`.
        c_clip: The same for the ratios that weight the later temporal differences.
        huber_delta: With AgentConfig.critic_error="huber": the cost of value errors is linear
            beyond this. In standard deviations of the value targets with
            AgentConfig.normalize_values.
        actor_optimizer_params: The actor's optimizer.
        critic_optimizer_params: The critic's optimizer.
    """

    gamma: PerPolicy = 0.99
    gae_lambda: PerPolicy = 0.95
    eps_clip: PerPolicy = 0.2
    ent_coeff: PerPolicy = 0.01
    vf_coeff: PerPolicy = 0.5
    kl_threshold: PerPolicy = math.inf
    kl_target: PerPolicy = 0.008
    rho_clip: PerPolicy = 1.0
    c_clip: PerPolicy = 1.0
    huber_delta: PerPolicy = 10.0
    actor_optimizer_params: OptimizerParams = OptimizerParams()
    critic_optimizer_params: OptimizerParams = OptimizerParams()
    if TYPE_CHECKING:  # an argument of the constructor, not a field
        learning_rate: InitVar[PerPolicy | None] = None


LEARNING_RATE = "learning_rate"
"""Name of the learning rate of both optimizers."""
OPTIMIZERS = ("actor_optimizer_params", "critic_optimizer_params")
OWN_RATES = tuple(f"{name}.{LEARNING_RATE}" for name in OPTIMIZERS)


def check_one_rate(learning_rate: Any, own: Iterable[str], prefix: str = "") -> None:
    """Raise ValueError if a learning rate for both optimizers is given as well as one for either.

    Args:
        learning_rate: The rate for both.
        own: The names of the rates that are given for one of them.
        prefix: Prefix of all names in the message.
    """
    for name in own:
        raise ValueError(
            f"{prefix}{LEARNING_RATE}={learning_rate} is that of both optimizers, but "
            f"{prefix}{name} is given too; give one of them."
        )


def with_both_rates(values: Mapping[str, Any]) -> dict[str, Any]:
    """Replace "learning_rate" among dotted names by the learning rates of both optimizers.

    Raises:
        ValueError: one of these is given too.
    """
    others = dict(values)
    if LEARNING_RATE not in others:
        return others
    value = others.pop(LEARNING_RATE)
    check_one_rate(value, [name for name in OWN_RATES if name in others])
    return others | dict.fromkeys(OWN_RATES, value)


def _taking_optimizers(init: Callable[..., None]) -> Callable[..., None]:
    """Take the learning rate of both optimizers, and say where their other parameters belong."""

    @functools.wraps(init)
    def checked(self: HyperParameters, *values: Any, **named: Any) -> None:
        learning_rate = named.pop(LEARNING_RATE, None)
        if learning_rate is not None:
            given = [*list(HyperParameters.__dataclass_fields__)[: len(values)], *named]
            check_one_rate(learning_rate, [name for name in OPTIMIZERS if name in given])
            named |= dict.fromkeys(OPTIMIZERS, OptimizerParams(learning_rate=learning_rate))
        for name in named.keys() & OptimizerParams.__dataclass_fields__.keys():
            params = f"jaxagents.OptimizerParams({name}={named[name]!r})"
            raise TypeError(
                f"HyperParameters has no {name}, which each optimizer has its own: give "
                f"actor_optimizer_params={params}, and critic_optimizer_params likewise."
            )
        init(self, *values, **named)

    return checked


HyperParameters.__init__ = _taking_optimizers(HyperParameters.__init__)


_UNIT_INTERVAL = ("gamma", "gae_lambda")
_NON_NEGATIVE = ("ent_coeff", "vf_coeff", "learning_rate")
_FINITE = ("kl_target",)
_POSITIVE = ("eps_clip", "kl_threshold", "rho_clip", "c_clip", "huber_delta", "eps", "grad_clip")


def as_arrays(hyperparams: HyperParameters) -> HyperParameters:
    """Convert every leaf to a float32 array, so that changing a value never recompiles."""
    return jax.tree.map(
        lambda leaf: jnp.asarray(leaf, jnp.float32),
        hyperparams,
        is_leaf=lambda node: isinstance(node, list | tuple),
    )


def per_policy(hyperparams: HyperParameters, n_policies: int) -> HyperParameters:
    """Broadcast every leaf to one value per policy, ``[policies]``."""
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (n_policies,)), hyperparams)


def check_is_hyperparams(hyperparams: Any) -> None:
    """Raise TypeError if a value is not `HyperParameters`."""
    if not isinstance(hyperparams, HyperParameters):
        raise TypeError(
            f"hyperparams is {type(hyperparams).__name__}; pass jaxagents.HyperParameters."
        )


def check_hyperparams(hyperparams: HyperParameters, n_policies: int) -> None:
    """Check every concrete leaf; leaves that `jax.vmap` sweeps are not checked.

    Raises:
        TypeError: not `HyperParameters`, or a value is not a number.
        ValueError: a value is out of range, or neither a scalar nor one value per policy.
    """
    check_is_hyperparams(hyperparams)
    for name in OPTIMIZERS:
        if not isinstance(getattr(hyperparams, name), OptimizerParams):
            raise TypeError(
                f"{name}={getattr(hyperparams, name)!r} is not OptimizerParams; pass "
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
    if not jnp.issubdtype(values.dtype, jnp.number) or np.iscomplexobj(values):
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
    elif field in _FINITE:
        valid, demand = (values > 0) & np.isfinite(values), "finite and positive"
    elif field in _POSITIVE:
        valid, demand = values > 0, "positive"
    else:  # of a subclass
        valid, demand = ~np.isnan(values), "a number"
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


def with_items(hyperparams: HyperParameters, changes: Mapping[str, Any]) -> HyperParameters:
    """Replace hyperparameters by dotted name, as `flat_items` lists them."""
    by_group: dict[str, dict[str, Any]] = {}
    for name, value in changes.items():
        group, _, field = name.rpartition(".")
        by_group.setdefault(group, {})[field] = value
    groups = {
        group: getattr(hyperparams, group).replace(**fields)
        for group, fields in by_group.items()
        if group
    }
    return hyperparams.replace(**groups, **by_group.get("", {}))
