"""Small tasks with a known optimum are learnt, from several seeds, by every kind of agent."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxagents as ja
from tests.probes import Aim, Coordination, Roles

CONFIG = {
    "n_steps": 60,
    "batch_size": 32,
    "minibatch_size": 8,
    "rollout_length": 8,
    "eval_frequency": 60,
    "n_evals": 0,
    "anneal_learning_rate": True,
    "progress_bar": False,
}
OPTIMIZER = ja.OptimizerParams(learning_rate=5e-3)
HYPERPARAMS = ja.HyperParameters(
    actor_optimizer_params=OPTIMIZER, critic_optimizer_params=OPTIMIZER
)


def worst_mean_return(agent: ja.IPPOBase, n_seeds: int = 3) -> float:
    rngs = jax.random.split(jax.random.key(0), n_seeds)
    runners, _ = jax.vmap(agent.train, in_axes=(0, None))(rngs, HYPERPARAMS)
    returns = [
        agent.eval(
            jax.random.key(1),
            n_evals=200,
            runner=jax.tree.map(lambda leaf, seed=seed: leaf[seed], runners),
        )["returns"].mean()
        for seed in range(n_seeds)
    ]
    return float(min(returns))


@pytest.mark.parametrize("sharing", ["shared", "independent", (0, 0, 1)], ids=str)
def test_discrete_actors_learn_to_do_what_they_see(sharing):
    """The optimum is 1; chance is 1/3."""
    config = ja.AgentConfig(parameter_sharing=sharing, **CONFIG)
    assert worst_mean_return(ja.DiscreteIPPO(Coordination(3), None, config)) > 0.98


@pytest.mark.parametrize(("agent_id", "optimum"), [(False, 0.5), (True, 1.0)])
def test_actors_of_one_policy_that_see_the_same_can_differ_by_their_id(agent_id, optimum):
    """Whatever all actors do alike is right for one of the two."""
    agent = ja.DiscreteIPPO(Roles(), None, ja.AgentConfig(agent_id=agent_id, **CONFIG))
    runner, _ = agent.train(jax.random.key(0), HYPERPARAMS)
    assert agent.policies.n_policies == 1
    returns = agent.eval(jax.random.key(1), n_evals=2, runner=runner)["returns"]
    np.testing.assert_array_equal(returns.mean(axis=1), optimum)
    # Observations as the environment gives them.
    observation = jnp.ones((2, 1))
    actions = agent.policy(runner, observation)
    assert actions.tolist() == [0, 1] if agent_id else actions[0] == actions[1]
    np.testing.assert_allclose(agent.value(runner, observation), optimum, atol=0.1)


@pytest.mark.parametrize("squash", [False, True], ids=["clipped", "squashed"])
def test_continuous_actors_learn_to_hit_what_they_see(squash):
    """The optimum is 0; standing still at 0 gives -2 * 0.8² / 3 = -0.43."""
    config = ja.AgentConfig(squash=squash, **CONFIG)
    assert worst_mean_return(ja.ContinuousIPPO(Aim(2), None, config)) > -0.03


def test_sampled_actions_are_noisier_than_the_likeliest():
    """The first Gaussians have a deviation of 1, by which sampled actions miss."""
    agent = ja.ContinuousIPPO(Aim(2, -5.0, 5.0), None, ja.AgentConfig(**CONFIG))
    runner = agent.init(jax.random.key(0), HYPERPARAMS)
    greedy = agent.eval(jax.random.key(1), 500, greedy=True, runner=runner)["returns"].mean()
    sampled = agent.eval(jax.random.key(1), 500, greedy=False, runner=runner)["returns"].mean()
    # Two dimensions of variance 1 each.
    np.testing.assert_allclose(greedy - sampled, 2.0, atol=0.3)
