"""Small tasks with a known optimum are learnt, from several seeds, by every kind of agent."""

import jax
import numpy as np
import pytest

import jaxagents as ja
from tests.probes import Aim, Coordination

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
