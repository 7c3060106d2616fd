"""Advantages and returns that other projects publish in their tests."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.ppo import advantages

generalized_advantages = jax.jit(advantages.generalized_advantages)
vtrace = jax.jit(advantages.vtrace)

# DeepMind's rlax 0.1.8, https://github.com/google-deepmind/rlax. Its discounts differ from step to
# step. In units of the first step's reward the discount is 1: rewards and values at step t are
# multiplied by the product of the discounts before t. A discount of 0 is a termination.


def in_units_of_the_first_reward(reward, value, next_value, discount):
    """Return the trajectory with a discount of 1, and each step's unit."""
    reward, value, next_value, discount = map(np.asarray, (reward, value, next_value, discount))
    terminated = discount == 0
    factors = np.where(terminated, 1.0, discount)
    unit = np.concatenate([[1.0], np.cumprod(factors)[:-1]])
    trajectory = {
        "reward": unit * reward,
        "value": unit * value,
        "next_value": unit * factors * next_value,
        "terminated": terminated,
        "truncated": np.zeros_like(terminated),
    }
    return {name: jnp.asarray(leaf) for name, leaf in trajectory.items()}, unit


# rlax/_src/vtrace_test.py, VTraceTest.setUp: two trajectories of four steps.
BEHAVIOUR_LOGITS = [
    [[8.9, 0.7], [5.0, 1.0], [0.6, 0.1], [-0.9, -0.1]],
    [[0.3, -5.0], [1.0, -8.0], [0.3, 1.7], [4.7, 3.3]],
]
TARGET_LOGITS = [
    [[0.4, 0.5], [9.2, 8.8], [0.7, 4.4], [7.9, 1.4]],
    [[1.0, 0.9], [1.0, -1.0], [-4.3, 8.7], [0.8, 0.3]],
]
ACTIONS = [[0, 1, 0, 0], [1, 0, 0, 1]]
REWARDS = [[-1.3, -1.3, 2.3, 42.0], [1.3, 5.3, -3.3, -5.0]]
DISCOUNTS = [[0.0, 0.89, 0.85, 0.99], [0.88, 1.0, 0.83, 0.95]]
VALUES = [[2.1, 1.1, -3.1, 0.0], [3.1, 0.1, -1.1, 7.4]]
LAST_VALUES = [8.4, -1.2]
VTRACE_ERRORS = [
    [-1.6155143, -3.4973226, 1.8670533, 50.316002],
    [1.4662437, 3.6116405, -8.3327293e-5, -13.54],
]
VTRACE_ADVANTAGES = [
    [-1.6155143, -3.4973226, 1.8670534, 50.316002],
    [1.4662433, 3.6116405, -8.3369283e-05, -13.54],
]


def rlax_vtrace(row, gae_lambda):
    """Return the ratios clipped at 1, the values' corrections and the advantages."""
    log_ratio = np.zeros(4)
    for t, action in enumerate(ACTIONS[row]):
        target, behaviour = TARGET_LOGITS[row][t], BEHAVIOUR_LOGITS[row][t]
        log_ratio[t] = target[action] - np.logaddexp(*target)
        log_ratio[t] -= behaviour[action] - np.logaddexp(*behaviour)
    next_value = [*VALUES[row][1:], LAST_VALUES[row]]
    trajectory, unit = in_units_of_the_first_reward(
        REWARDS[row], VALUES[row], next_value, DISCOUNTS[row]
    )
    ratio = np.exp(log_ratio)
    estimates = vtrace(
        **trajectory, ratio=jnp.asarray(ratio), **COEFFICIENTS, gae_lambda=gae_lambda
    )
    correction = (estimates.value_target - trajectory["value"]) / unit
    return np.minimum(ratio, 1.0), correction, estimates.advantage / unit


COEFFICIENTS = {"discount": 1.0, "rho_clip": 1.0, "c_clip": 1.0}


@pytest.mark.parametrize("row", [0, 1])
def test_vtrace_equals_rlaxs_table(row):
    clipped_ratio, correction, advantage = rlax_vtrace(row, gae_lambda=1.0)
    np.testing.assert_allclose(correction, VTRACE_ERRORS[row], rtol=1e-5, atol=1e-6)
    # rlax multiplies advantages by the clipped ratio; here PPO's own ratio does.
    expected = VTRACE_ADVANTAGES[row]
    np.testing.assert_allclose(clipped_ratio * advantage, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("row", [0, 1])
def test_values_of_vtrace_move_by_the_clipped_ratio_times_the_advantage(row):
    """The same file, test_lambda_q_estimate: λ = 0.8."""
    clipped_ratio, correction, advantage = rlax_vtrace(row, gae_lambda=0.8)
    np.testing.assert_allclose(correction, clipped_ratio * advantage, rtol=1e-5, atol=1e-6)


# rlax/_src/multistep_test.py, LambdaReturnsTest and DiscountedReturnsTest (λ = 1): two trajectories
# of five steps, with the values after each step.
RETURN_REWARDS = [[1.0, 0.0, -1.0, 0.0, 1.0], [0.5, 0.8, -0.7, 0.0, 2.1]]
RETURN_DISCOUNTS = [[0.5, 0.9, 1.0, 0.5, 0.8], [0.9, 0.5, 0.3, 0.8, 0.7]]
NEXT_VALUES = [[3.0, 1.0, 5.0, -5.0, 3.0], [-1.7, 1.2, 2.3, 2.2, 2.7]]
RETURNS = {
    0.75: [
        [1.6460547, 0.72281253, 0.7375001, 0.6500001, 3.4],
        [0.7866317, 0.9913063, 0.1101501, 2.834, 3.99],
    ],
    1.0: [
        [1.315, 0.63000005, 0.70000005, 1.7, 3.4],
        [1.33592, 0.9288, 0.2576, 3.192, 3.9899998],
    ],
}


@pytest.mark.parametrize("gae_lambda", RETURNS)
@pytest.mark.parametrize("row", [0, 1])
def test_advantages_plus_values_equal_rlaxs_lambda_returns(row, gae_lambda):
    value = [7.0, *NEXT_VALUES[row][:-1]]  # the first state's value cancels
    trajectory, unit = in_units_of_the_first_reward(
        RETURN_REWARDS[row], value, NEXT_VALUES[row], RETURN_DISCOUNTS[row]
    )
    advantage = generalized_advantages(**trajectory, discount=1.0, gae_lambda=gae_lambda)
    returns = (advantage + trajectory["value"]) / unit
    np.testing.assert_allclose(returns, RETURNS[gae_lambda][row], rtol=1e-5)


# The same file, TruncatedGeneralizedAdvantageEstimationTest.
GAE_REWARDS = [[0.0, 0.0, 1.0, 0.0, -0.5], [0.0, 0.0, 0.0, 0.0, 1.0]]
GAE_VALUES = [[1.0, 4.0, -3.0, -2.0, -1.0, -1.0], [-3.0, -2.0, -1.0, 0.0, 5.0, -1.0]]
GAE_DISCOUNTS = [[0.99, 0.99, 0.99, 0.99, 0.99], [0.9, 0.9, 0.9, 0.0, 0.9]]
GAE_ADVANTAGES = {
    1.0: [[-1.45118, -4.4557, 2.5396, 0.5249, -0.49], [3.0, 2.0, 1.0, 0.0, -4.9]],
    0.7: [[-0.676979, -5.248167, 2.4846, 0.6704, -0.49], [2.2899, 1.73, 1.0, 0.0, -4.9]],
    0.4: [[0.56731, -6.042, 2.3431, 0.815, -0.49], [1.725, 1.46, 1.0, 0.0, -4.9]],
}


@pytest.mark.parametrize("gae_lambda", GAE_ADVANTAGES)
@pytest.mark.parametrize("row", [0, 1])
def test_advantages_equal_rlaxs_table(row, gae_lambda):
    """To the table's own 1e-3."""
    value = GAE_VALUES[row]
    trajectory, unit = in_units_of_the_first_reward(
        GAE_REWARDS[row], value[:-1], value[1:], GAE_DISCOUNTS[row]
    )
    advantage = generalized_advantages(**trajectory, discount=1.0, gae_lambda=gae_lambda) / unit
    np.testing.assert_allclose(advantage, GAE_ADVANTAGES[gae_lambda][row], atol=1e-3)


# tianshou 2.0.1, https://github.com/thu-ml/tianshou, test/base/test_returns.py,
# test_episodic_returns: returns of steps that terminate or are truncated, with the values after
# each step.
THREE_EPISODES = {
    "reward": [101, 102, 103, 200, 104, 105, 106, 201, 107, 108, 109, 202],
    "next_value": [2, 3, 4, -1, 5, 6, 7, -2, 8, 9, 10, -3],
    "discount": 0.99,
    "gae_lambda": 0.95,
}
TIANSHOU = {
    "discounted sums": {
        "reward": [0, 1, 2, 3, 4, 5, 6, 7],
        "terminated": [0, 3, 7],
        "truncated": [5],
        "returns": [0, 1.23, 2.3, 3, 4.5, 5, 6.7, 7],
    },
    "an unfinished episode": {
        "reward": [7, 6, 1, 2, 3, 4, 5],
        "terminated": [1, 3, 5],
        "returns": [7.6, 6, 1.2, 2, 3.4, 4, 5],
    },
    "a longer episode": {
        "reward": [7, 6, 1, 2, 3, 4, 5],
        "terminated": [1, 3, 6],
        "returns": [7.6, 6, 1.2, 2, 3.45, 4.5, 5],
    },
    "three terminations": {
        **THREE_EPISODES,
        "terminated": [3, 7, 11],
        "returns": [
            [454.8344, 376.1143, 291.298, 200.0],
            [464.5610, 383.1085, 295.387, 201.0],
            [474.2876, 390.1027, 299.476, 202.0],
        ],
    },
    "two truncations": {
        **THREE_EPISODES,
        "terminated": [11],
        "truncated": [3, 7],
        "returns": [
            [454.0109, 375.2386, 290.3669, 199.01],
            [462.9138, 381.3571, 293.5248, 199.02],
            [474.2876, 390.1027, 299.476, 202.0],
        ],
    },
}


def steps(length, indices):
    return jnp.isin(jnp.arange(length), jnp.asarray(indices, int))


@pytest.mark.parametrize("name", TIANSHOU)
def test_advantages_plus_values_equal_tianshous_returns(name):
    table = {"truncated": [], "discount": 0.1, "gae_lambda": 1.0, **TIANSHOU[name]}
    reward = jnp.asarray(table["reward"], jnp.float32)
    next_value = jnp.asarray(table.get("next_value", jnp.zeros(len(reward))), jnp.float32)
    value = jnp.roll(next_value, 1)  # that of an episode's first state cancels
    advantage = generalized_advantages(
        reward=reward,
        value=value,
        next_value=next_value,
        terminated=steps(len(reward), table["terminated"]),
        truncated=steps(len(reward), table["truncated"]),
        discount=table["discount"],
        gae_lambda=table["gae_lambda"],
    )
    np.testing.assert_allclose(advantage + value, np.ravel(table["returns"]), atol=1e-4)
