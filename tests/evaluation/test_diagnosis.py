"""What a diagnosis says of metrics with and without each illness, and of trainings that are ill."""

import math

import jax
import numpy as np
import pytest

import jaxagents as ja
from jaxagents.evaluation.diagnosis import Task, diagnose, largest_return
from tests.probes import Clock, Coordination

TASK = Task(discount=[0.9], max_episode_steps=None, n_actions=4)
N_EVALUATIONS, N_EPISODES = 9, 32


def rows(first, *later):
    """Return a metric per evaluation and policy: NaN before training."""
    return np.array([[first], *([each] for each in later)], np.float32)


def constant(value):
    return rows(np.nan, *[value] * (N_EVALUATIONS - 1))


def returns(*means, n_actors=1):
    """Return episodes whose returns deviate by 1 from the means."""
    noise = np.resize([-1.0, 1.0], (len(means), N_EPISODES, n_actors))
    return np.reshape(means, (len(means), 1, -1)) + noise


HEALTHY = {
    "n_updates_done": np.arange(N_EVALUATIONS) * 10.0,
    "returns": returns(*range(0, 90, 10)),
    "explained_variance": constant(0.8),
    "value_mean": constant(20.0),
    "value_std": constant(3.0),
    "target_std": constant(3.5),
    "largest_value": constant(9.0),
    "largest_reward": constant(1.0),
    "entropy": constant(0.5),
    "kl": constant(0.01),
}


def ill(**changes):
    return diagnose(HEALTHY | changes, TASK)


def test_a_healthy_training_is_not_diagnosed():
    assert ill() == []


def test_a_training_without_evaluations_is_not_either():
    assert diagnose({"n_updates_done": np.array([])}, TASK) == []


def test_a_perfect_policy_whose_targets_hardly_differ_is_healthy():
    """Its critic explains nothing of their variance, but its values deviate as they do."""
    changes = {"explained_variance": constant(-5.0), "value_std": constant(1.0)}
    assert ill(**changes, target_std=constant(0.5)) == []


def test_a_constant_critic_explains_nothing():
    (sentence,) = ill(explained_variance=constant(0.0), value_std=constant(0.01))
    assert sentence.startswith("The critic explains nothing: its values deviate by 0.01 and")


def test_a_constant_critic_of_equal_targets_has_nothing_to_explain():
    flat = {"explained_variance": constant(0.0), "value_std": constant(0.01)}
    assert ill(**flat, target_std=constant(0.9)) == []


def test_only_the_end_of_training_tells_what_a_critic_explains():
    explained = rows(np.nan, *[0.0] * 6, 0.5, 0.5)
    flat = rows(np.nan, *[0.01] * 6, 3.0, 3.0)
    assert ill(explained_variance=explained, value_std=flat) == []


def test_large_targets_should_be_normalised():
    task = TASK._replace(normalizes_values=False)
    (sentence,) = diagnose(HEALTHY | {"target_std": constant(85.0)}, task)
    assert sentence.startswith("The value targets of the critic deviate by up to 85 and are not")
    assert diagnose(HEALTHY, task) == []
    assert ill(target_std=constant(85.0), value_std=constant(80.0)) == []


def test_values_beyond_the_largest_return_have_diverged():
    """Rewards of 1 allow 1 / (1 - 0.9) = 10 at most: values of 20 may still be noise."""
    assert ill(largest_value=constant(20.0)) == []
    (sentence,) = ill(largest_value=rows(np.nan, *[9.0] * 7, 20.1))
    assert "beyond what rewards allow: up to 20.1 where no discounted return exceeds 10" in sentence


def test_the_largest_return_counts_the_steps_of_an_episode_and_the_rewards_so_far():
    rewards = rows(np.nan, 1.0, 3.0, 2.0)
    np.testing.assert_allclose(largest_return(rewards, [0.5], 2), rows(np.nan, 1.5, 4.5, 4.5))
    np.testing.assert_allclose(largest_return(rewards, [1.0], 2), rows(np.nan, 2.0, 6.0, 6.0))
    assert largest_return(rewards, [1.0], None)[1] == math.inf
    np.testing.assert_array_equal(largest_return(0 * rewards, [1.0], None)[1:], 0.0)
    np.testing.assert_allclose(largest_return(rewards, [0.5], 10**9)[1], 2.0)
    np.testing.assert_allclose(largest_return(rewards, [0.0], 10**9)[1], 1.0)


def test_a_policy_of_one_action_that_earns_nothing_has_collapsed():
    flat = returns(*[0.0] * N_EVALUATIONS)
    collapsed, unlearnt = ill(entropy=constant(0.001), returns=flat)
    assert collapsed.startswith("The policy has collapsed to one action: its entropy is 0.001 nats")
    assert unlearnt == "Nothing was learnt: the return is 0, and was 0 before training."
    assert ill(entropy=constant(0.001)) == []  # a policy that knows what to do


def test_continuous_policies_do_not_collapse_to_one_action():
    task = TASK._replace(n_actions=None)
    changes = {"entropy": constant(-4.0), "returns": returns(*[0.0] * N_EVALUATIONS)}
    assert len(diagnose(HEALTHY | changes, task)) == 1


def test_updates_that_move_too_far():
    (sentence,) = ill(kl=constant(0.2))
    assert sentence.startswith("Updates move the policy too far: its KL divergence over an update")


def test_a_gain_within_the_noise_of_the_episodes_is_nothing():
    """Episodes of deviation 1: the difference of two means of 32 has one of 0.25."""
    at_first = [0.0] * (N_EVALUATIONS - 1)
    assert any("Nothing was learnt" in each for each in ill(returns=returns(*at_first, 0.45)))
    assert ill(returns=returns(*at_first, 0.55)) == []


def test_what_was_learnt_and_lost_again():
    (sentence,) = ill(returns=returns(0.0, 100.0, *[60.0] * 7))
    assert sentence == (
        "It was learnt and lost again: the return was 100 after 10 updates, and is 60 at the end."
    )
    assert ill(returns=returns(0.0, 100.0, *[75.0] * 7)) == []


def test_where_one_actors_loss_is_anothers_gain_nothing_is_lost():
    means = [[0.0, 0.0], *[[50.0, 10.0]] * 7, [10.0, 40.0]]
    assert ill(returns=returns(*means, n_actors=2)) == []


def test_what_was_never_learnt_is_not_lost():
    (sentence,) = ill(returns=returns(10.0, 5.0, 3.0, *[1.0] * 6))
    assert sentence.startswith("Nothing was learnt")
    assert len(ill(returns=returns(10.0, 10.2, *[1.0] * 7))) == 1


def test_a_single_episode_proves_neither_a_gain_nor_a_loss():
    one_episode = np.array([0.0, 1.0, 2.0, *[1.2] * 6]).reshape(-1, 1, 1)
    (sentence,) = ill(returns=one_episode)
    assert sentence.startswith("Nothing was learnt")


def test_rivals_that_learn_alike_earn_as_before():
    flat = {"returns": returns(*[0.0] * N_EVALUATIONS)}
    assert diagnose(HEALTHY | flat, TASK._replace(has_rivals=True)) == []
    assert len(diagnose(HEALTHY | flat, TASK)) == 1


@pytest.mark.parametrize("missing", sorted(HEALTHY.keys() - {"returns", "n_updates_done"}))
def test_metrics_that_earlier_versions_lack_are_not_diagnosed(missing):
    n_policies = 3
    metrics = {
        name: np.repeat(values, n_policies, axis=1) if values.ndim == 2 else values
        for name, values in HEALTHY.items()
        if name != missing
    }
    assert diagnose(metrics, TASK._replace(discount=[0.9] * n_policies)) == []


def test_an_untrained_critic_may_begin_beyond_what_rewards_allow():
    assert ill(largest_value=rows(np.nan, 150.0, *[9.0] * 7)) == []


def test_policies_are_named():
    both = {name: np.repeat(values, 2, axis=1) for name, values in HEALTHY.items() if name not in (
        "n_updates_done", "returns")}  # fmt: skip
    both["kl"][:, 1] = 0.3
    task = TASK._replace(discount=[0.9, 0.9])
    (sentence,) = diagnose(HEALTHY | both, task)
    assert sentence.startswith("Updates move the policy 1 too far")


# Trainings that are ill.


def make_agent(env, **changes):
    sizes = {"n_steps": 40, "eval_frequency": 5, "rollout_length": 16, "progress_bar": False}
    return ja.DiscreteIPPO(env, None, ja.AgentConfig(**sizes | changes))


def trained(env, hyperparams, **changes):
    agent = make_agent(env, **changes)
    return agent.diagnose(*agent.train(jax.random.key(0), hyperparams))


def optimizers(actor, critic):
    return ja.HyperParameters(
        actor_optimizer_params=ja.OptimizerParams(learning_rate=actor),
        critic_optimizer_params=ja.OptimizerParams(learning_rate=critic),
    )


@pytest.mark.slow
def test_an_agent_that_learns_is_healthy():
    assert trained(Coordination(), optimizers(3e-3, 3e-3)) == []


@pytest.mark.slow
def test_values_bootstrapped_beyond_a_limit_are_what_they_should_be():
    """Reward 1 in each step, without end: V is 1 / (1 - γ) = 10, though episodes last 4 steps."""
    hyperparams = optimizers(1e-3, 1e-2).replace(gamma=0.9)
    sentences = trained(Clock(), hyperparams, time_limits="bootstrap", n_steps=80)
    assert not any("lie beyond" in each for each in sentences)


@pytest.mark.slow
def test_an_agent_that_does_not_learn_is_told():
    # Normalised observations would move even a frozen policy.
    sentences = trained(Coordination(), optimizers(0.0, 3e-3), normalize_observations=False)
    assert any(each.startswith("Nothing was learnt") for each in sentences)


@pytest.mark.slow
def test_a_critic_that_does_not_learn_is_told():
    """The environment always pays the same, so that no policy is better than another."""
    sentences = trained(Clock(), optimizers(1e-3, 0.0), critic_layers=ja.Layers(hidden_sizes=()),
                        observe_time=False, normalize_values=False)  # fmt: skip
    assert any(each.startswith("The critic explains nothing") for each in sentences)


@pytest.mark.slow
def test_an_agent_that_moves_too_far_is_told():
    sentences = trained(Coordination(), optimizers(0.3, 3e-3), n_steps=5)
    assert any("too far" in each for each in sentences)


@pytest.mark.slow
def test_values_that_leave_what_rewards_allow_are_told():
    """Four steps of reward 1 allow a return of 4."""
    sentences = trained(Clock(), optimizers(1e-3, 1.0), n_steps=5, normalize_observations=False,
                        normalize_values=False)  # fmt: skip
    assert any("lie beyond what rewards allow" in each for each in sentences)


@pytest.mark.slow
def test_a_policy_that_collapses_is_told():
    """Actions make no difference, and steps of 3 are so large that one of them remains."""
    sentences = trained(Clock(), optimizers(3.0, 1e-3).replace(ent_coeff=0.0), n_steps=5)
    assert any("has collapsed to one action" in each for each in sentences)


@pytest.mark.slow
def test_what_an_agent_learns_and_loses_is_told():
    """A training that goes on with steps of 3 after it has learnt."""
    agent = make_agent(Coordination())
    runner, learning = agent.train(jax.random.key(0), optimizers(3e-3, 3e-3))
    destroying = make_agent(Coordination(), n_steps=42, initial_evaluation=False)
    steps_of_3 = optimizers(3.0, 3e-3)
    runner, losing = destroying.train(None, steps_of_3, runner)
    both = {name: np.concatenate([learning[name], losing[name]]) for name in learning}
    sentences = agent.diagnose(runner, both)
    assert any("learnt and lost again" in each for each in sentences)


def test_what_random_actions_earn_is_not_learnt():
    # The first network earned 0; random actions earn 10 as the policies do at the end.
    metrics = {"returns": returns(0.0, 10.0), "n_updates_done": np.array([0.0, 1.0])}
    assert diagnose(metrics, TASK) == []
    (sentence,) = diagnose(metrics, TASK, random_returns=returns(10.0)[0])
    assert sentence == "Nothing was learnt: the return is 10, and random actions earn 10."


def test_a_first_network_that_does_well_hides_no_gain_over_random_actions():
    metrics = {"returns": returns(10.0, 10.0), "n_updates_done": np.array([0.0, 1.0])}
    assert len(diagnose(metrics, TASK)) == 1
    assert diagnose(metrics, TASK, random_returns=returns(0.0)[0]) == []
