"""The algorithm in one file, beside the package in its textbook setting."""

import importlib.util
from pathlib import Path

import jax
import numpy as np
import pytest

import jaxagents as ja

FILE = Path(__file__).parents[1] / "examples" / "ippo_in_one_file.py"


def load_example():
    spec = importlib.util.spec_from_file_location("ippo_in_one_file", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def layers_of(params):
    """Return the parameters of one of the package's networks as the file's `MLP` names them."""
    own = params["params"]
    layers = [*own["torso"].values(), own["Dense_0"]]
    layers = [jax.tree.map(lambda leaf: leaf[0], layer) for layer in layers]
    return {"params": {f"Dense_{i}": layer for i, layer in enumerate(layers)}}


@pytest.mark.slow
def test_the_algorithm_in_one_file_trains_as_the_package_does():
    example = load_example()
    sizes = example.Config(n_envs=4, n_steps=32)
    env, env_params = ja.make("jaxmarl/MPE_simple_spread_v3")
    config, hyperparams = ja.textbook_ppo(n_steps=20, batch_size=4, rollout_length=32)
    agent = ja.IPPO(env, env_params, config)
    runner = agent.init(jax.random.key(0), hyperparams)
    state = example.init(jax.random.key(0), sizes)
    params = {"actor": layers_of(runner.actor.params), "critic": layers_of(runner.critic.params)}
    assert jax.tree.structure(params) == jax.tree.structure(state.params)
    state = state._replace(params=params)

    for _ in range(20):
        runner, _ = agent.step(runner)
        state, _ = example.update(state, sizes)

    trained = {"actor": layers_of(runner.actor.params), "critic": layers_of(runner.critic.params)}
    moved = jax.tree.map(lambda new, old: np.abs(new - old).max(), trained, params)
    assert min(jax.tree.leaves(moved)) > 1e-3
    jax.tree.map(
        lambda leaf, expected: np.testing.assert_allclose(leaf, expected, atol=1e-5),
        state.params,
        trained,
    )
