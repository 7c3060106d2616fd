"""Values at truncations: what they converge to, and how they are computed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxagents as ja
from jaxagents.ippo import actor_critic
from tests.agents import collect, opinionated_runner, shared_agent
from tests.probes import TruncatedCycle, Walk

LINEAR = ja.Layers(hidden_sizes=())


@pytest.mark.parametrize(
    ("few", "time_limits", "expected"),
    [
        (2_048, None, [8 / 7, 2 / 7, 4 / 7]),
        pytest.param(1, "bootstrap", [8 / 7, 2 / 7, 4 / 7], marks=pytest.mark.slow),
        (2_048, "terminal", [1.0, 0.0, 0.0]),
    ],
)
def test_values_bootstrap_from_the_observation_before_the_reset(
    few, time_limits, expected, monkeypatch
):
    """V(0) = 1 + V(1) / 2, V(1) = V(2) / 2, V(2) = V(0) / 2; with a limit as the task, 1, 0, 0.

    Bootstrapping from the observation after the reset would give 4/3, 1/3, 1/3.
    """
    monkeypatch.setattr(actor_critic, "_FEW_VALUES", few)
    config = ja.AgentConfig(
        n_steps=400, rollout_length=16, eval_frequency=400, n_evals=0, progress_bar=False,
        anneal_learning_rate=True, actor_layers=LINEAR, critic_layers=LINEAR,
        time_limits=time_limits,
    )  # fmt: skip
    optimizer = ja.OptimizerParams(learning_rate=3e-3)
    hyperparams = ja.HyperParameters(gamma=0.5, critic_optimizer_params=optimizer)
    agent = ja.DiscreteIPPO(TruncatedCycle(), None, config)
    runner, _ = agent.train(jax.random.key(0), hyperparams)
    values = [float(agent.value(runner, jnp.eye(3)[i][None])[0]) for i in range(3)]
    np.testing.assert_allclose(values, expected, atol=0.02)


WALK_OF_THREE = Walk((100, 100, 100), limit=3)
OPTIONS = [
    {"recurrent": "gru", "parameter_sharing": (0, 1, 1)},
    {"centralized_critic": True, "parameter_sharing": "independent"},
    {},
    {"parameter_sharing": "independent"},
    {"parameter_sharing": (0, 1, 1)},
    {"recurrent": "gru"},
    {"recurrent": "lstm", "parameter_sharing": "independent"},
    {"centralized_critic": True},
]


@pytest.mark.slow
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_values_of_final_observations_are_the_same_whether_computed_at_once_or_in_parts(
    options, monkeypatch
):
    # Of 8 x 6 steps of environments the 3rd and the 6th are truncated: 12, all or 6 at a time.
    agent = shared_agent(WALK_OF_THREE, batch_size=6, minibatch_size=6, rollout_length=8, **options)
    runner = opinionated_runner(agent)
    after, transitions, _ = collect(agent, runner, jax.random.key(1))
    after = after.replace(memory=runner.memory)  # critics remember what preceded the rollout
    next_values = []
    for few in (48, 1):
        monkeypatch.setattr(actor_critic, "_FEW_VALUES", few)
        value = jax.jit(lambda *rollout: agent.networks.value_rollout(*rollout)[1].next_value)
        next_values.append(agent.policies.to_actors(value(after, transitions), axis=2))
    np.testing.assert_allclose(*next_values, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(np.flatnonzero(transitions.truncated.all((1, 2))), [2, 5])
    if "recurrent" not in options:
        final = jax.tree.map(lambda leaf: leaf[5, 4], transitions.final_observation)
        np.testing.assert_allclose(
            next_values[1][5, 4], agent.value(runner, final), rtol=1e-5, atol=1e-6
        )
