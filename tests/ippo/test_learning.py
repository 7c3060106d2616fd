"""Every kind of agent learns small tasks with a known optimum, from several seeds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxagents as ja
from tests.probes import Aim, Chords, Coordination, Roles, Tide

CONFIG = {
    "n_steps": 60,
    "batch_size": 32,
    "minibatch_size": 8,
    "rollout_length": 8,
    "eval_frequency": 60,
    "n_evals": 0,
    "anneal_learning_rate": True,
    "progress_bar": False,
    "actor_layers": ja.Layers((16,)),
    "critic_layers": ja.Layers((16,)),
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


@pytest.mark.parametrize(
    "sharing",
    [
        (0, 0, 1),
        pytest.param("shared", marks=pytest.mark.slow),
        pytest.param("independent", marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_discrete_actors_learn_to_choose_what_they_observe(sharing):
    """The optimum is 1; chance is 1/3."""
    config = ja.AgentConfig(parameter_sharing=sharing, **CONFIG)
    assert worst_mean_return(ja.DiscreteIPPO(Coordination(3), None, config)) > 0.98


@pytest.mark.slow
@pytest.mark.parametrize(("agent_id", "optimum"), [(True, 1.0), (False, 0.5)])
def test_actors_of_one_policy_with_the_same_observation_differ_by_their_id(agent_id, optimum):
    """An action that both actors choose is right for one of them."""
    agent = ja.DiscreteIPPO(Roles(), None, ja.AgentConfig(agent_id=agent_id, **CONFIG))
    runner, _ = agent.train(jax.random.key(0), HYPERPARAMS)
    assert agent.policies.n_policies == 1
    returns = agent.eval(jax.random.key(1), n_evals=2, runner=runner)["returns"]
    np.testing.assert_array_equal(returns.mean(axis=1), optimum)
    # An observation as the environment returns it, without the id.
    observation = jnp.ones((2, 1))
    actions = agent.policy(runner, observation)
    assert actions.tolist() == [0, 1] if agent_id else actions[0] == actions[1]
    np.testing.assert_allclose(agent.value(runner, observation), optimum, atol=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("squash", [False, True], ids=["clipped", "squashed"])
def test_continuous_actors_learn_to_hit_what_they_observe(squash):
    """The optimum is 0; the action 0 gives -2 * 0.8² / 3 = -0.43."""
    config = ja.AgentConfig(squash=squash, **CONFIG)
    assert worst_mean_return(ja.ContinuousIPPO(Aim(2), None, config)) > -0.03


@pytest.mark.slow
def test_sampled_actions_are_noisier_than_greedy_ones():
    """Initial Gaussians have a standard deviation of 1, by which sampled actions miss."""
    agent = ja.ContinuousIPPO(Aim(2, -5.0, 5.0), None, ja.AgentConfig(**CONFIG))
    runner = agent.init(jax.random.key(0), HYPERPARAMS)
    greedy = agent.eval(jax.random.key(1), 500, greedy=True, runner=runner)["returns"].mean()
    sampled = agent.eval(jax.random.key(1), 500, greedy=False, runner=runner)["returns"].mean()
    # Two dimensions of variance 1 each.
    np.testing.assert_allclose(greedy - sampled, 2.0, atol=0.3)


@pytest.mark.slow
def test_actors_learn_several_choices_at_once():
    """The optimum is 1; chance, without the masked action, is 1/2."""
    agent = ja.DiscreteIPPO(Chords(), None, ja.AgentConfig(**CONFIG))
    assert worst_mean_return(agent, n_seeds=2) > 0.95
    assert agent.environments.observation.action_mask.shape == (2, 5)


@pytest.mark.slow
def test_rewards_that_no_action_changes_do_not_hide_those_that_it_does():
    """By chance half of the actions are right. The entropy bonus keeps its share of the loss."""
    config = ja.AgentConfig(**{**CONFIG, "rollout_length": 32, "anneal_learning_rate": False})
    agent = ja.DiscreteIPPO(Tide(), None, config)
    runner, _ = agent.train(jax.random.key(0), HYPERPARAMS)
    evaluation = agent.eval(jax.random.key(1), n_evals=500, greedy=False, runner=runner)
    assert evaluation["info_is_right"].mean() > 0.95
