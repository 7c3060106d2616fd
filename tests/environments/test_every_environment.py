"""Training and evaluation in every environment.

The default tests have the traits that meet nowhere else; the others run with `pytest -m slow`.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxagents as ja
from jaxagents.environments.registry import registered_ids
from jaxagents.environments.spaces import Discrete, as_space

TRAITS = {
    "unequal observations and actions": ("jaxmarl/MPE_simple_speaker_listener_v4", {}, "shared"),
    "unequal dimensions and teams": ("jaxmarl/MPE_simple_world_comm_v3", {}, "team"),
    "masked and mortal": ("jaxmarl/HeuristicEnemySMAX", {"scenario": "3m"}, "shared"),
    "turn-based": ("jaxmarl/hanabi", {}, "shared"),
    "images": ("jaxmarl/overcooked", {}, "shared"),
}
COMBINATIONS = TRAITS | {
    "unequal dimensions": ("jaxmarl/MPE_simple_world_comm_v3", {}, "shared"),
    "unequal teams": ("jaxmarl/MPE_simple_tag_v3", {}, "team"),
}

SMALL = {
    "n_steps": 2,
    "batch_size": 2,
    "minibatch_size": 1,
    "rollout_length": 8,
    "actor_epochs": 2,
    "critic_epochs": 1,
    "eval_frequency": 1,
    "n_evals": 2,
    "initial_evaluation": False,
    "max_episode_steps": 20,
    "progress_bar": False,
}


def train(env_id, env_kwargs, sharing, **changes):
    """Train; check that all numbers are finite, and return the metrics."""
    env, env_params = ja.make(env_id, **env_kwargs)
    config = ja.AgentConfig(parameter_sharing=sharing, **SMALL | changes)
    discrete = isinstance(as_space(env.action_space(env_params)), Discrete)
    agent = (ja.DiscreteIPPO if discrete else ja.ContinuousIPPO)(env, env_params, config)
    runner, metrics = agent.train(jax.random.key(0), ja.HyperParameters())
    assert int(runner.n_updates_done) == config.n_steps
    finite = {
        jax.tree_util.keystr(path): bool(jnp.all(jnp.isfinite(leaf)))
        for path, leaf in jax.tree_util.tree_leaves_with_path(
            (runner.actor, runner.critic, metrics)
        )
    }
    assert [name for name, is_finite in finite.items() if not is_finite] == []
    lengths = np.asarray(metrics["episode_lengths"])
    assert np.all((lengths >= 1) & (lengths <= 20))
    return metrics


@pytest.mark.slow
@pytest.mark.parametrize(("env_id", "env_kwargs", "sharing"), TRAITS.values(), ids=TRAITS)
def test_each_trait_trains_and_starts_every_update_at_ratio_1(env_id, env_kwargs, sharing):
    """In the first minibatch of the first epoch, the new policy equals the old one."""
    metrics = train(env_id, env_kwargs, sharing, actor_epochs=1, minibatch_size=2)
    # One row per update; the second starts from parameters that have been trained.
    assert len(metrics["kl"]) == 2
    np.testing.assert_allclose(metrics["kl"], 0.0, atol=1e-6)
    np.testing.assert_array_equal(metrics["clip_fraction"], 0.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env_id", "env_kwargs", "sharing"), COMBINATIONS.values(), ids=COMBINATIONS
)
def test_traits_train_in_several_epochs_and_minibatches(env_id, env_kwargs, sharing):
    train(env_id, env_kwargs, sharing)


def other_ids():
    representatives = {env_id for env_id, _, _ in COMBINATIONS.values()}
    return [each for each in registered_ids() if each not in representatives]


@pytest.mark.slow
@pytest.mark.parametrize("env_id", other_ids())
def test_every_other_environment_trains(env_id):
    try:
        train(env_id, {}, "shared")
    except OSError as error:
        pytest.skip(f"its data cannot be downloaded: {error}")
