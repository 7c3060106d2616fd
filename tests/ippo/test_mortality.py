"""Training with actors that die before their episode is over."""

import functools
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxagents as ja
from jaxagents.ippo.base import IPPOBase
from jaxagents.ppo.finiteness import NonFinite, skip_nonfinite
from jaxagents.ppo.normalization import Normalizers
from jaxagents.types import Batch, Metrics, NetworkState, Transition, UpdateKeys
from tests.agents import FAST, all_finite, assert_trees_equal, make_batch, tiny
from tests.probes import RealWalk, Team, Walk

# In a rollout of 6 steps the first actor dies at its third and stays dead.
DEATHS, DEATH = (3, 100), 3


class Trial:
    """An agent with one rollout, and what it learns from that or from an altered one."""

    def __init__(self, agent_class, env, **changes):
        self.agent = agent_class(env, None, tiny(**changes))
        self._make_batch = jax.jit(functools.partial(make_batch, self.agent))
        self._learn = jax.jit(skip_nonfinite(self.agent.learn))
        self._learn_from_batch = jax.jit(skip_nonfinite(self._learn_given))
        runner = self.agent.init(jax.random.key(0), FAST.replace(gamma=0.5, gae_lambda=1.0))
        collect = jax.jit(self.agent.collector.collect)
        self.runner, self.transitions = collect(runner, jax.random.key(1))
        if runner.normalizers != Normalizers():
            # The first rollout has no statistics yet: use those after an update.
            runner = runner.replace(normalizers=self.learn(self.transitions).normalizers)
            self.runner, self.transitions = collect(runner, jax.random.key(1))

    def batch_of(self, transitions: Transition) -> Batch:
        return self._make_batch(self.runner, transitions)[1]

    def learn(self, transitions: Transition, runner: ja.Runner | None = None) -> "Learnt":
        runner = runner or self.runner
        keys = self.agent.split_key(runner)
        return Learnt.from_update(*self._learn(runner, transitions, keys))

    def learn_from_batch(self, batch: Batch) -> "Learnt":
        keys = self.agent.split_key(self.runner)
        return Learnt.from_update(*self._learn_from_batch(self.runner, batch, keys))

    def _learn_given(self, runner: ja.Runner, batch: Batch, keys: UpdateKeys) -> Any:
        def estimate(_: IPPOBase, runner: ja.Runner, *__: Any, **___: Any) -> Any:
            return runner, batch

        with mock.patch.object(IPPOBase, "estimate_advantages", estimate):
            return self.agent.learn(runner, self.transitions, keys)


class Learnt(NamedTuple):
    """Networks with their optimizers' moments of the gradients, metrics, and statistics."""

    actor: NetworkState
    critic: NetworkState
    metrics: Metrics
    normalizers: Normalizers

    @classmethod
    def from_update(cls, runner: ja.Runner, metrics: Metrics, nonfinite: NonFinite) -> "Learnt":
        assert not np.any(nonfinite)
        return cls(runner.actor, runner.critic, metrics, runner.normalizers)

    @property
    def actor_metrics(self) -> Metrics:
        names = ("actor_loss", "entropy", "kl", "clip_fraction", "actor_gradient_norm")
        return {name: self.metrics[name] for name in names}


def holding(tree, value, n_steps=None, since=DEATH, actor=0):
    """Set an actor's later steps to ``value``; integers to 2, and masks to False."""

    def alter(leaf):
        number = {"f": value, "i": 2, "b": False}[leaf.dtype.kind]
        stop = None if n_steps is None else since + n_steps
        return leaf.at[since:stop, :, actor].set(number)

    return jax.tree.map(alter, tree)


OPTIONS = {
    "normalize_observations": True,
    "normalize_values": True,
    "scale_rewards": True,
    "advantages": "vtrace",
    "critic_error": "huber",
    "clip_values": True,
}
KINDS = {
    "discrete": (ja.DiscreteIPPO, Walk(DEATHS, limit=100), {}),
    "masked and independent": (
        ja.DiscreteIPPO,
        Walk(DEATHS, limit=100, masked=True),
        {"parameter_sharing": "independent"},
    ),
    "continuous": (ja.ContinuousIPPO, RealWalk(DEATHS, limit=100), {}),
    "recurrent": (
        ja.DiscreteIPPO,
        Walk(DEATHS, limit=100),
        {"recurrent": "mingru", "recurrent_chunk_length": 2},
    ),
    "optional": (ja.DiscreteIPPO, Walk(DEATHS, limit=100), OPTIONS),
}
REPRESENTATIVES = ("optional",)
CASES = [
    pytest.param(kind, marks=[] if kind in REPRESENTATIVES else pytest.mark.slow) for kind in KINDS
]


@functools.cache
def trial(kind):
    agent_class, env, changes = KINDS[kind]
    return Trial(agent_class, env, **changes)


@functools.cache
def team():
    return Trial(ja.DiscreteIPPO, Team(DEATHS, limit=5))


NUMBERS = ("observation", "memory", "final_observation", "action", "log_prob", "reward")


def altered(transitions, value, fields=NUMBERS, **where):
    return transitions._replace(
        **{name: holding(getattr(transitions, name), value, **where) for name in fields}
    )


@pytest.mark.parametrize(
    "value", [*(pytest.param(each, marks=pytest.mark.slow) for each in (-3.0, 1e6, np.inf)), np.nan]
)
@pytest.mark.parametrize("kind", CASES)
def test_a_dead_actor_contributes_exactly_nothing(kind, value):
    """Its observations, actions, rewards and recurrent states change not a single bit."""
    each = trial(kind)
    assert each.transitions.active[:, 0, 0].tolist() == [True] * DEATH + [False] * DEATH
    expected = each.learn(each.transitions)
    transitions = altered(each.transitions, value)
    last = each.runner.observation
    last = last._replace(features=last.features.at[:, 0].set(value))
    assert_trees_equal(each.learn(transitions, each.runner.replace(observation=last)), expected)
    assert all_finite(expected)


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        (("reward",), {"since": DEATH - 1, "n_steps": 1}),  # the step at which it dies
        (("observation",), {"since": DEATH - 1, "n_steps": 1}),
        (("reward",), {"actor": 1}),  # an actor that lives on
        (("observation",), {"actor": 1}),
    ],
    ids=str,
)
def test_active_samples_do_contribute(fields, where):
    each = trial("optional")
    expected = each.learn(each.transitions)
    learnt = each.learn(altered(each.transitions, -3.0, fields, **where))
    assert differ(learnt.actor.params, expected.actor.params)
    assert differ(learnt.critic.params, expected.critic.params)


def differ(tree, other) -> bool:
    leaves = zip(jax.tree.leaves(tree), jax.tree.leaves(other), strict=True)
    return any(not np.array_equal(leaf, its_other) for leaf, its_other in leaves)


def test_value_targets_end_at_an_actors_death_unless_rewards_go_on():
    """With λ = 1 targets are returns, of reward 1 a step and discount 1/2.

    The actors live for three and for five steps; the later death ends the episode. The sixth step
    begins the next one.
    """
    each = Trial(ja.DiscreteIPPO, Team((3, 5), limit=100))
    batch = each.batch_of(each.transitions)
    for_five_steps = [1.9375, 1.875, 1.75, 1.5, 1.0]
    for actor in (0, 1):
        np.testing.assert_allclose(batch.value_target[0, :5, 0, actor], for_five_steps, rtol=1e-5)

    each = Trial(ja.DiscreteIPPO, Walk((3, 5), limit=100))
    transitions = each.transitions._replace(reward=jnp.ones_like(each.transitions.reward))
    batch = each.batch_of(transitions)
    for_three_steps = [1.75, 1.5, 1.0]
    np.testing.assert_allclose(batch.value_target[0, :3, 0, 0], for_three_steps, rtol=1e-5)
    np.testing.assert_allclose(batch.value_target[0, :5, 0, 1], for_five_steps, rtol=1e-5)


@pytest.mark.slow
def test_actions_of_the_dead_change_nothing_even_where_rewards_go_on():
    each = team()
    expected = each.learn(each.transitions)
    for value in (-3.0, np.nan):
        transitions = altered(each.transitions, value, ("action", "log_prob"), n_steps=2)
        assert_trees_equal(each.learn(transitions), expected)


@pytest.mark.parametrize("name", ["critic_features", "value_target"])
def test_where_rewards_go_on_only_the_critic_learns_from_the_steps_of_the_dead(name):
    """The episode ends with the fifth step, after two steps of a dead actor."""
    each = team()
    batch = each.batch_of(each.transitions)
    n_envs = each.agent.config.batch_size
    assert batch.weight.sum() == 4 * n_envs + 6 * n_envs
    assert batch.value_weight.sum() == 2 * 6 * n_envs
    expected = each.learn_from_batch(batch)
    # Without the policies axis, of size 1.
    numbers = jax.tree.map(lambda leaf: leaf[0], getattr(batch, name))
    numbers = jax.tree.map(lambda leaf: leaf[None], holding(numbers, -3.0, n_steps=2))
    learnt = each.learn_from_batch(batch._replace(**{name: numbers}))
    assert_trees_equal(learnt.actor, expected.actor)
    assert_trees_equal(learnt.actor_metrics, expected.actor_metrics)
    assert differ(learnt.critic.params, expected.critic.params)


def test_rewards_after_death_reach_the_actions_before_it():
    """Of 100 more reward at the fifth step, after the death, the third step's target gains 25."""
    each = team()
    batch = each.batch_of(each.transitions)
    transitions = altered(each.transitions, 101.0, ("reward",), since=4, n_steps=1)
    rewarded = each.batch_of(transitions)
    gained = rewarded.value_target[0, :, 0] - batch.value_target[0, :, 0]
    np.testing.assert_allclose(gained[:, 0], [6.25, 12.5, 25.0, 50.0, 100.0, 0.0], atol=1e-4)
    np.testing.assert_allclose(gained[:, 1], 0.0)
    assert differ(each.learn_from_batch(rewarded).actor, each.learn_from_batch(batch).actor)
