"""What the values converge to, and how the trace is cut, where episodes are truncated."""

import jax
import jax.numpy as jnp
import numpy as np

import jaxagents as ja
from tests.probes import TruncatedCycle


def test_values_bootstrap_from_the_observation_before_the_reset():
    """V(0) = 1 + V(1) / 2, V(1) = V(2) / 2, V(2) = V(0) / 2.

    Bootstrapping from the observation after the reset would give 4/3, 1/3, 1/3, taking
    truncation for termination 1, 0, 0.
    """
    config = ja.AgentConfig(
        n_steps=400, rollout_length=16, eval_frequency=400, n_evals=0, progress_bar=False,
        anneal_learning_rate=True,
    )  # fmt: skip
    optimizer = ja.OptimizerParams(learning_rate=3e-3)
    hyperparams = ja.HyperParameters(gamma=0.5, critic_optimizer_params=optimizer)
    agent = ja.DiscreteIPPO(TruncatedCycle(), None, config)
    runner, _ = agent.train(jax.random.key(0), hyperparams)
    values = [float(agent.value(runner, jnp.eye(3)[i][None])[0]) for i in range(3)]
    np.testing.assert_allclose(values, [8 / 7, 2 / 7, 4 / 7], atol=0.02)
