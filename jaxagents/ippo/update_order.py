"""Training policies one after the other, each with regard to the updates of the earlier ones."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from jaxagents.compiler.devices import max_over_devices
from jaxagents.compiler.tuned_forms import nan_unless_finite
from jaxagents.hyperparameters import HyperParameters
from jaxagents.ppo.losses import probability_ratio
from jaxagents.ppo.policy_map import each_policy
from jaxagents.types import Batch, Metrics, NetworkState, PyTree

Networks = dict[str, NetworkState]
LogRatio = Callable[[PyTree, Batch], Float[Array, "time sequences actors"]]


def fit_in_turn(
    fit: Callable[..., tuple[Networks, Metrics]],
    log_ratio: LogRatio,
    networks: Networks,
    batch: Batch,
    hyperparams: HyperParameters,
    rng: Key[Array, " policies"],
) -> tuple[Networks, Metrics]:
    """Train the policies one after the other, in a random order.

    Each policy's advantages are multiplied by the ratios, new to old, of the probabilities of all
    actions that the policies before it chose at the same step: M = Πⱼ πⱼ(aⱼ|oⱼ) / πⱼ,old(aⱼ|oⱼ).

    For a team, the surrogates of all policies then add up to the joint policy's, and the expected
    return does not fall if (i) all actors share one reward and each advantage is that of the joint
    action given the whole state, as a centralized critic estimates it; (ii) each actor has a policy
    of its own; and (iii) each policy's step is small in KL divergence. Clipping and
    ``kl_threshold`` approximate (iii). Where actors have rewards of their own, M still weighs the
    samples by how likely the others' new actions are, but there is no such bound.

    Source: Kuba et al. 2022, https://arxiv.org/abs/2109.11251, algorithm 4.

    Args:
        fit: Trains one policy: see `IPPOBase.fit`.
        log_ratio: Maps an actor's parameters and its batch to log ratios of its actions.
        networks: ``[policies, ...]``, with an "actor".
        batch: ``[policies, time, sequences, actors, ...]``.
        hyperparams: One value per policy.
        rng: A key for each policy.

    Returns:
        The networks and their metrics, ``[policies, ...]``.
    """
    n_policies = len(rng)
    keys = jax.vmap(jax.random.split)(rng)
    order = jax.random.permutation(keys[0, 1], n_policies)

    def fit_next(
        log_factor: Float[Array, "time sequences"], policy: Any
    ) -> tuple[Float[Array, "time sequences"], tuple[Networks, Metrics]]:
        everything = (networks, batch, hyperparams, keys[:, 0])
        mine, own, hypers, key = jax.tree.map(lambda leaf: leaf[policy], everything)
        factor = probability_ratio(log_factor)[..., None]
        weighted = own._replace(advantage=factor * own.advantage)
        alone = jax.tree.map(partial(jnp.expand_dims, axis=0), (mine, weighted, hypers, key))
        trained, metrics = jax.tree.map(lambda leaf: leaf[0], each_policy(fit)(*alone))
        # Padding, and actors that are dead or wait, choose nothing.
        ratios = jnp.where(own.weight > 0, log_ratio(trained["actor"].params, own), 0.0)
        # An update with NaN or infinity will be undone.
        params = {name: network.params for name, network in trained.items()}
        is_finite = jnp.isfinite(nan_unless_finite([ratios, params]))
        ratios = jnp.where(max_over_devices(~is_finite), 0.0, ratios)
        return log_factor + jnp.sum(ratios, axis=-1), (trained, metrics)

    _, results = jax.lax.scan(fit_next, jnp.zeros(batch.weight.shape[1:-1]), order)
    return jax.tree.map(lambda leaf: leaf[jnp.argsort(order)], results)
