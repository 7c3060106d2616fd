"""What is learnt from actors that die before their episode is over."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxagents as ja
from jaxagents.config import Layers
from jaxagents.hyperparameters import per_policy
from jaxagents.ippo.base import each_policy
from jaxagents.ppo.normalization import Normalizers
from jaxagents.types import Batch, NetworkState, Transition
from tests.ippo.test_training import FAST, assert_trees_equal, tiny
from tests.probes import RealWalk, Team, Walk

SMALL = Layers(hidden_sizes=(4,), memory_size=4)
# In a rollout of 6 steps the first actor dies at its third and stays dead.
DEATHS, DEATH = (3, 100), 3
N_ACTORS = len(DEATHS)


class Trial:
    """An agent with one rollout of it, and what it learns from that or from an altered one."""

    def __init__(self, agent_class, env, **changes):
        config = tiny(actor_layers=SMALL, critic_layers=SMALL, **changes)
        self.agent = agent_class(env, None, config)
        runner = self.agent.init(jax.random.key(0), FAST.replace(gamma=0.5, gae_lambda=1.0))
        if runner.normalizers != Normalizers():
            # The first rollout finds no statistics: let it be the second.
            stepped, _ = self.agent.step(runner)
            runner = runner.replace(normalizers=stepped.normalizers)
        self.runner, self.transitions = jax.jit(self.agent._collect_rollout)(
            runner, jax.random.key(1)
        )
        self._hyperparams = per_policy(runner.hyperparams, self.agent.policies.n_policies)
        self._make_batch = jax.jit(self.agent._make_batch)
        self._learn = jax.jit(self._update)

    def batch_of(self, runner: ja.Runner, transitions: Transition) -> Batch:
        return self._make_batch(runner, transitions, self._hyperparams)[1]

    def _update(self, batch: Batch, normalizers: Normalizers):
        agent, runner, hyperparams = self.agent, self.runner, self._hyperparams
        rngs = jax.random.split(jax.random.key(2), agent.policies.n_policies)
        actor = each_policy(agent._update_actor)(runner.actor, batch, hyperparams, rngs)
        batch, statistics, value_metrics = each_policy(agent._make_targets)(
            actor[0], batch, normalizers.value, hyperparams
        )
        critic = each_policy(agent._update_critic)(runner.critic, batch, hyperparams, rngs)
        return Learnt(*actor, *critic, value_metrics, normalizers._replace(value=statistics))

    def learn(self, transitions: Transition, runner: ja.Runner | None = None) -> "Learnt":
        runner, batch = self._make_batch(runner or self.runner, transitions, self._hyperparams)
        return self._learn(batch, runner.normalizers)

    def learn_from_batch(self, batch: Batch) -> "Learnt":
        return self._learn(batch, self.runner.normalizers)


class Learnt(NamedTuple):
    """Networks, with all gradients' moments in their optimizers, metrics, and statistics."""

    actor: NetworkState
    actor_metrics: dict[str, jax.Array]
    critic: NetworkState
    critic_metrics: dict[str, jax.Array]
    value_metrics: dict[str, jax.Array]
    normalizers: Normalizers


def holding(tree, value, n_steps=None, since=DEATH, actor=0):
    """Let an actor hold ``value`` in its later steps; integers become 2, masks rule all out."""

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
    "masked": (ja.DiscreteIPPO, Walk(DEATHS, limit=100, masked=True), {}),
    "real": (ja.ContinuousIPPO, RealWalk(DEATHS, limit=100), {}),
    "independent": (
        ja.DiscreteIPPO,
        Walk(DEATHS, limit=100),
        {"parameter_sharing": "independent"},
    ),
    "recurrent": (
        ja.DiscreteIPPO,
        Walk(DEATHS, limit=100),
        {"recurrent": "lstm", "recurrent_chunk_length": 2},
    ),
    "optional": (ja.DiscreteIPPO, Walk(DEATHS, limit=100), OPTIONS),
}


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


@pytest.mark.parametrize("value", [-3.0, 1e6, np.inf, np.nan])
@pytest.mark.parametrize("kind", KINDS)
def test_an_actor_contributes_exactly_nothing_after_its_death(kind, value):
    """All that it sees, does and earns once dead may change without changing a single bit."""
    each = trial(kind)
    assert each.transitions.active[:, 0, 0].tolist() == [True] * DEATH + [False] * DEATH
    expected = each.learn(each.transitions)
    transitions = altered(each.transitions, value)
    seen_last = each.runner.observation
    seen_last = seen_last._replace(features=seen_last.features.at[:, 0].set(value))
    assert_trees_equal(
        each.learn(transitions, each.runner.replace(observation=seen_last)), expected
    )
    assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(expected))


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        (("reward",), {"since": DEATH - 1, "n_steps": 1}),  # the step at which it dies
        (("observation",), {"since": DEATH - 1, "n_steps": 1}),
        (("reward",), {"actor": 1}),  # while the other one lives on
        (("observation",), {"actor": 1}),
    ],
    ids=str,
)
def test_the_living_do_contribute(fields, where):
    each = trial("discrete")
    expected = each.learn(each.transitions)
    learnt = each.learn(altered(each.transitions, -3.0, fields, **where))
    assert differ(learnt.actor.params, expected.actor.params)
    assert differ(learnt.critic.params, expected.critic.params)


def differ(tree, other) -> bool:
    leaves = zip(jax.tree.leaves(tree), jax.tree.leaves(other), strict=True)
    return any(not np.array_equal(leaf, its_other) for leaf, its_other in leaves)


def test_value_targets_end_at_an_actors_death_unless_the_dead_earn_on():
    """With λ = 1 targets are returns: here of 1 a step, discounted by 1/2.

    Two are alive for three and for five steps, of an episode that their last death ends. The
    sixth step begins the next episode.
    """
    each = Trial(ja.DiscreteIPPO, Team((3, 5), limit=100))
    batch = each.batch_of(each.runner, each.transitions)
    for_five_steps = [1.9375, 1.875, 1.75, 1.5, 1.0]
    for actor in (0, 1):
        np.testing.assert_allclose(batch.value_target[0, :5, 0, actor], for_five_steps, rtol=1e-5)

    each = Trial(ja.DiscreteIPPO, Walk((3, 5), limit=100))
    transitions = each.transitions._replace(reward=jnp.ones_like(each.transitions.reward))
    batch = each.batch_of(each.runner, transitions)
    for_three_steps = [1.75, 1.5, 1.0]
    np.testing.assert_allclose(batch.value_target[0, :3, 0, 0], for_three_steps, rtol=1e-5)
    np.testing.assert_allclose(batch.value_target[0, :5, 0, 1], for_five_steps, rtol=1e-5)


def test_where_the_dead_earn_on_what_they_do_still_changes_nothing():
    each = team()
    expected = each.learn(each.transitions)
    for value in (-3.0, np.nan):
        transitions = altered(each.transitions, value, ("action", "log_prob"), n_steps=2)
        assert_trees_equal(each.learn(transitions), expected)


@pytest.mark.parametrize("name", ["critic_features", "value_target"])
def test_where_the_dead_earn_on_the_critic_alone_learns_from_their_steps(name):
    """The episode ends with the fifth step: two steps of the dead."""
    each = team()
    batch = each.batch_of(each.runner, each.transitions)
    n_envs = each.agent.config.batch_size
    assert batch.weight.sum() == 4 * n_envs + 6 * n_envs
    assert batch.value_weight.sum() == 2 * 6 * n_envs
    expected = each.learn_from_batch(batch)
    # Without the axis of policies, of which there is one.
    numbers = jax.tree.map(lambda leaf: leaf[0], getattr(batch, name))
    numbers = jax.tree.map(lambda leaf: leaf[None], holding(numbers, -3.0, n_steps=2))
    learnt = each.learn_from_batch(batch._replace(**{name: numbers}))
    assert_trees_equal(learnt.actor, expected.actor)
    assert_trees_equal(learnt.actor_metrics, expected.actor_metrics)
    assert differ(learnt.critic.params, expected.critic.params)


def test_where_the_dead_earn_on_their_earnings_praise_what_they_did_alive():
    """Reward 100 to the dead in the fifth step, the episode's last, is 25 to its third."""
    each = team()
    batch = each.batch_of(each.runner, each.transitions)
    transitions = altered(each.transitions, 101.0, ("reward",), since=4, n_steps=1)
    praised = each.batch_of(each.runner, transitions)
    gained = praised.value_target[0, :, 0] - batch.value_target[0, :, 0]
    np.testing.assert_allclose(gained[:, 0], [6.25, 12.5, 25.0, 50.0, 100.0, 0.0], atol=1e-4)
    np.testing.assert_allclose(gained[:, 1], 0.0)
    assert differ(each.learn_from_batch(praised).actor, each.learn_from_batch(batch).actor)
