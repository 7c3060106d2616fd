"""Policies that learn one after the other."""

import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxagents.hyperparameters import HyperParameters
from jaxagents.ippo import base
from jaxagents.ippo.update_order import fit_in_turn
from jaxagents.ppo.policy_map import each_policy
from tests.agents import shared_agent, tiny
from tests.probes import Coordination


class Samples(NamedTuple):
    """The fields of a batch that the order reads; here log_prob is what log_ratio returns."""

    advantage: jax.Array
    log_prob: jax.Array
    weight: jax.Array


@pytest.mark.parametrize("fails", [False, True])
def test_advantages_are_multiplied_by_the_ratios_of_the_policies_before(fails):
    # Three policies of two actors, one environment, two steps. Policy 0 makes its actors' actions
    # 2 and 3 times as likely, policy 1 halves its first actor's, whose second is padding, and both
    # of policy 2's actors are dead at the second step.
    ratio = jnp.array([[[[2.0, 3.0]]] * 2, [[[0.5, 9.0]]] * 2, [[[5.0, 1.0]], [[np.nan, 7.0]]]])
    weight = jnp.ones(ratio.shape).at[1, ..., 1].set(0).at[2, 1].set(0)
    batch = Samples(advantage=jnp.ones(ratio.shape), log_prob=jnp.log(ratio), weight=weight)
    factors = np.array([[6, 6], [0.5, 0.5], [5, 1]])  # of each policy at each step
    if fails:  # the update of a policy that has become NaN is undone
        ratio = ratio.at[1, 0, 0, 0].set(np.nan)
        batch, factors = batch._replace(log_prob=jnp.log(ratio)), np.array([[6, 6], [1, 1], [5, 1]])

    def fit(networks, samples, hyperparams, rng):
        return networks, {"seen": samples.advantage[:, 0, 0]}

    class Network(NamedTuple):
        params: jax.Array

    orders = set()
    for seed in range(6):
        rng = jax.random.split(jax.random.key(seed), 3)
        networks = {"actor": Network(jnp.arange(3.0))}
        trained, metrics = fit_in_turn(
            fit, lambda _, own: own.log_prob, networks, batch, jnp.zeros(3), rng
        )
        assert trained["actor"].params.tolist() == [0, 1, 2]
        expected = {
            order: [
                np.prod(factors[list(order[: order.index(policy)])], axis=0) for policy in range(3)
            ]
            for order in itertools.permutations(range(3))
        }
        (order,) = [
            order
            for order, seen in expected.items()
            if np.allclose(metrics["seen"], seen, rtol=1e-6)
        ]
        orders.add(order)
    assert len(orders) > 2


@pytest.mark.slow
def test_the_second_policy_learns_from_what_the_first_has_become():
    agent = shared_agent(
        Coordination(),
        update_order="sequential",
        parameter_sharing="independent",
        actor_epochs=1,
        minibatch_size=4,
        optimizer=lambda _: optax.sgd(0.5),  # Adam's first step has the gradient's sign alone
    )

    @jax.jit
    def learn(rng):
        runner = agent.init(rng, HyperParameters())
        keys, hyperparams = agent.split_key(runner), agent.hyperparams_of(runner)
        after, transitions = agent.collector.collect(runner, keys.rollout)
        after, valuation = agent.networks.value_rollout(after, transitions)
        _, batch = agent.estimate_advantages(after, transitions, valuation, hyperparams)

        def params_after(fit, batch):
            networks, _ = fit({"actor": runner.actor}, batch, hyperparams, keys.actor)
            return networks["actor"].params

        # With one minibatch, the keys only change the order of the samples.
        alone = params_after(each_policy(agent.fit), batch)
        ratio = jnp.exp(jax.vmap(agent.networks.log_ratio)(alone, batch))
        weighted = batch._replace(advantage=batch.advantage * ratio[::-1])  # the other's ratio
        as_second = params_after(each_policy(agent.fit), weighted)
        return params_after(agent.fit_policies, batch), alone, as_second, ratio

    in_turn, alone, as_second, ratio = learn(jax.random.key(0))
    assert np.std(ratio) > 0.01

    def those_of(params):
        pairs = list(zip(jax.tree.leaves(params), jax.tree.leaves(in_turn), strict=True))
        return [
            policy
            for policy in range(2)
            if all(np.allclose(one[policy], new[policy], atol=1e-5) for one, new in pairs)
        ]

    first, second = those_of(alone), those_of(as_second)
    assert (len(first), len(second)) == (1, 1)
    assert first != second


@pytest.mark.parametrize("sharing", ["shared", (0, 0)])
def test_an_order_of_a_single_policy_is_an_error(sharing):
    with pytest.raises(ValueError, match="there is only one; choose 'independent'"):
        shared_agent(Coordination(), update_order="sequential", parameter_sharing=sharing)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"advantages": "vtrace"}, "estimates them anew in each epoch; choose 'gae'"),
        ({"normalize_advantages": "minibatch"}, "'minibatch' would undo; choose 'batch' or None"),
    ],
)
def test_a_sequential_order_needs_advantages_that_stay(options, message):
    with pytest.raises(ValueError, match=message):
        tiny(update_order="sequential", parameter_sharing="independent", **options)


def test_actors_learn_in_the_configured_order_and_critics_together(monkeypatch):
    monkeypatch.setattr(base, "fit_in_turn", lambda *_: "in turn")
    monkeypatch.setattr(base, "each_policy", lambda _: lambda *_: "together")
    options = {"parameter_sharing": "independent"}
    in_turn = shared_agent(Coordination(), **options, update_order="sequential")
    assert in_turn.fit_policies({"actor": None}, None, None, None) == "in turn"
    assert in_turn.fit_policies({"critic": None}, None, None, None) == "together"
    together = shared_agent(Coordination(), **options)
    assert together.fit_policies({"actor": None}, None, None, None) == "together"
