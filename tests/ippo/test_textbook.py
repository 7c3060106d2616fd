"""The textbook's PPO: each of its settings by hand, and the preset that has them all."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxagents as ja
from jaxagents.ppo.optimization import (
    Objective,
    adam,
    clip_by_global_norm,
    clipped_adam,
    init_network,
    run_epoch,
    standardize_minibatches,
    take_minibatch,
)
from jaxagents.types import Batch
from tests.agents import begin, shared_agent, tiny
from tests.probes import Walk


def batch_of(advantage, weight=1.0):
    """Return a batch ``[time, envs, actors]`` with nothing but advantages and weights."""
    advantage = jnp.asarray(advantage, jnp.float32)
    fields = dict.fromkeys(Batch._fields)
    weight = jnp.broadcast_to(jnp.float32(weight), advantage.shape)
    return Batch(**{**fields, "advantage": advantage, "weight": weight, "value_weight": weight})


@pytest.mark.parametrize(
    ("unit", "minibatches", "expected"),
    [
        # Rows of 1, 3 and of 10, 30: each has mean 0 and deviation 1 by itself.
        ("time", [[0], [1]], [[-1.0, 1.0], [-1.0, 1.0]]),
        # Columns of 1, 10 and of 3, 30.
        ("trajectory", [[0], [1]], [[-1.0, -1.0], [1.0, 1.0]]),
        # Steps 1 with 30, and 3 with 10.
        ("step", [[0, 3], [1, 2]], [[-1.0, -1.0], [1.0, 1.0]]),
    ],
)
def test_advantages_are_standardised_over_each_minibatch(unit, minibatches, expected):
    batch = batch_of([[[1.0], [3.0]], [[10.0], [30.0]]])
    learnt = standardize_minibatches(batch, jnp.asarray(minibatches), unit)
    np.testing.assert_allclose(learnt.advantage[..., 0], expected, rtol=1e-5)


def test_samples_without_weight_do_not_count_in_a_minibatchs_statistics():
    batch = batch_of([[[1.0], [3.0], [900.0]]], weight=[[[1.0], [1.0], [0.0]]])
    learnt = standardize_minibatches(batch, jnp.asarray([[0]]), "time")
    np.testing.assert_allclose(learnt.advantage[..., 0], [[-1.0, 1.0, 0.0]], rtol=1e-5)


def linear_loss(slope):
    """Return a loss whose gradient is the slope times the minibatch's mean advantage."""

    def loss(params, minibatch):
        mean = jnp.mean(minibatch.advantage)
        return slope * params * mean, {f"loss_{slope}": mean}

    return loss


def test_a_joint_epoch_clips_gradients_by_their_common_norm():
    """Gradients 3 and 4 have the norm 5, and become 3/5 and 4/5; apart each would become 1."""
    batch, sgd = batch_of(jnp.ones((1, 1, 1))), optax.sgd(1.0)
    rng, slopes = jax.random.key(0), {"actor": 3.0, "critic": 4.0}
    networks, stats, norm = run_epoch(
        {name: init_network(jnp.zeros(()), sgd) for name in slopes},
        batch,
        {name: Objective(linear_loss(slope), "weight", sgd) for name, slope in slopes.items()},
        rng,
        n_minibatches=1,
        unit="time",
        grad_clip=1.0,
    )
    moves = [networks["actor"].params, networks["critic"].params]
    np.testing.assert_allclose(moves, [-0.6, -0.8], rtol=1e-6)
    np.testing.assert_allclose(norm, 5.0, rtol=1e-6)
    assert stats == {"loss_3.0": 1.0, "loss_4.0": 1.0}

    clipped = optax.chain(clip_by_global_norm(1.0), sgd)
    network = {"actor": init_network(jnp.zeros(()), clipped)}
    objective = {"actor": Objective(linear_loss(3.0), "weight", clipped)}
    alone, *_ = run_epoch(network, batch, objective, rng, n_minibatches=1, unit="time")
    np.testing.assert_allclose(alone["actor"].params, -1.0, rtol=1e-6)


def test_plain_adam_steps_beyond_the_learning_rate_after_a_calm():
    """Its first moment follows a gradient faster than the root of its second.

    After many small gradients a large one g makes the moments 0.1 g and 0.001 g²: the step is
    0.1 / sqrt(0.001), more than three times the rate; a clipped one is the rate.
    """
    params = ja.OptimizerParams(learning_rate=0.1, eps=0.0, grad_clip=np.inf)
    moves = []
    for optimizer in (adam(params), clipped_adam(params)):
        weight = jnp.zeros(())
        state = optimizer.init(weight)
        for gradient in [1e-6] * 5_000 + [1.0]:
            step, state = jax.jit(optimizer.update)(jnp.asarray(gradient), state, weight)
        moves.append(float(step))
    np.testing.assert_allclose(moves, [-0.1 * 0.1 / np.sqrt(0.001), -0.1], rtol=0.01)


@pytest.mark.parametrize(
    ("normalize", "scale"), [("batch", True), ("minibatch", False), (None, True)]
)
def test_advantages_are_normalised_and_the_loss_scaled_as_configured(normalize, scale):
    agent = shared_agent(normalize_advantages=normalize, scale_actor_loss=scale)
    runner = begin(shared_agent())

    @jax.jit
    def estimate(runner):
        keys = agent.split_key(runner)
        after, transitions = agent.collector.collect(runner, keys.rollout)
        after, valuation = agent.networks.value_rollout(after, transitions)
        return agent.estimate_advantages(
            after, transitions, valuation, agent.hyperparams_of(runner)
        )[1]

    batch = jax.tree.map(lambda leaf: leaf[0], estimate(runner))
    raw = batch.value_target - batch.trajectory.value
    if normalize == "batch":
        np.testing.assert_allclose(
            [batch.advantage.mean(), batch.advantage.std()], [0, 1], atol=1e-5
        )
    else:
        np.testing.assert_allclose(batch.advantage, raw, atol=1e-5)
    deviation = raw.std() / batch.trajectory.reward.std()
    expected = min(1.0, float(deviation)) if scale else 1.0
    np.testing.assert_allclose(batch.loss_scale, expected, rtol=1e-4)


@pytest.mark.slow
def test_8_environments_of_128_steps_train_in_32_minibatches():
    sizes = {"batch_size": 8, "rollout_length": 128, "n_minibatches": 32, "actor_epochs": 1}
    config = ja.AgentConfig(n_steps=1, minibatch_unit="step", **sizes)
    agent = ja.DiscreteIPPO(Walk(), None, config)
    runner, _ = agent.step(agent.init(jax.random.key(0), ja.HyperParameters()))
    counts = [leaf for leaf in jax.tree.leaves(runner.actor.opt_state) if leaf.dtype == jnp.int32]
    assert int(counts[0][0]) == 32


@pytest.mark.slow
def test_a_joint_update_stops_both_networks_at_the_kl_threshold():
    agent = shared_agent(joint_update=True)
    runner = agent.init(jax.random.key(0), ja.HyperParameters(kl_threshold=1e-12))
    stepped, metrics = agent.step(runner)
    steps = [
        int(leaf[0])
        for network in (stepped.actor, stepped.critic)
        for leaf in jax.tree.leaves(network.opt_state)
        if leaf.dtype == jnp.int32
    ]
    # Two minibatches an epoch: the second's divergence already exceeds the threshold.
    assert metrics["actor_epochs"].tolist() == [1]
    assert set(steps) == {agent.config.minibatches_per_epoch}
    assert float(metrics["critic_loss"][0]) > 0


def test_the_preset_has_every_setting_of_the_textbook():
    config, hyperparams = ja.textbook_ppo(n_steps=7, batch_size=8, gamma=0.9, learning_rate=1e-3)
    assert (config.n_steps, config.batch_size, hyperparams.gamma) == (7, 8, 0.9)
    assert config.optimizer == "adam"
    assert config.joint_update
    assert not config.scale_actor_loss
    assert config.normalize_advantages == "minibatch"
    assert (config.minibatch_unit, config.minibatches_per_epoch) == ("step", 4)
    assert not any([config.normalize_observations, config.normalize_values, config.observe_time])
    rates = hyperparams.actor_optimizer_params, hyperparams.critic_optimizer_params
    assert [params.learning_rate for params in rates] == [1e-3, 1e-3]
    assert ja.textbook_ppo(n_steps=7)[1].critic_optimizer_params.learning_rate == 2.5e-4


def test_recurrent_agents_of_the_preset_draw_whole_trajectories():
    config, _ = ja.textbook_ppo(n_steps=7, recurrent="gru")
    assert (config.minibatch_unit, config.minibatches_per_epoch) == ("trajectory", 4)


def test_a_field_that_neither_configuration_has_is_an_error():
    with pytest.raises(TypeError, match="n_step"):
        ja.textbook_ppo(n_step=7)


def test_a_rate_for_both_networks_excludes_one_of_either():
    with pytest.raises(ValueError, match=r"learning_rate=0\.5 is that of both"):
        ja.textbook_ppo(n_steps=7, learning_rate=0.5, actor_optimizer_params=ja.OptimizerParams())


def test_a_file_may_name_the_preset_and_change_it(tmp_path):
    path = tmp_path / "textbook.yaml"
    path.write_text(
        "name: t\nenv: gymnax/CartPole-v1\npreset: textbook\n"
        "agent: {n_steps: 7, n_minibatches: 8, normalize_values: true}\n"
        "hyperparams: {actor_optimizer_params: {learning_rate: 0.001}}\n"
    )
    config = ja.load_config(path, ["--agent.scale_actor_loss", "true"])
    agent, hyperparams = ja.textbook_ppo(
        n_steps=7, n_minibatches=8, normalize_values=True, scale_actor_loss=True
    )
    assert config.agent == agent
    assert config.hyperparams.actor_optimizer_params.learning_rate == 1e-3
    assert config.hyperparams.critic_optimizer_params == hyperparams.critic_optimizer_params


def test_a_size_of_minibatches_replaces_the_presets_number(tmp_path):
    path = tmp_path / "textbook.yaml"
    sizes = "{n_steps: 7, batch_size: 32, minibatch_size: 2}"
    path.write_text(f"name: t\nenv: gymnax/CartPole-v1\npreset: textbook\nagent: {sizes}\n")
    agent, _ = ja.textbook_ppo(n_steps=7, batch_size=32, minibatch_size=2)
    assert ja.load_config(path).agent == agent
    assert agent.minibatches_per_epoch == 16


def test_the_agent_is_chosen_by_the_action_space():
    discrete = ja.make("gymnax/CartPole-v1")
    continuous = ja.make("gymnax/Pendulum-v1")
    config = tiny()
    assert type(ja.IPPO(*discrete, config)) is ja.DiscreteIPPO
    assert type(ja.IPPO(*continuous, config)) is ja.ContinuousIPPO


def test_a_minibatch_of_steps_keeps_a_policys_actors_together():
    batch = batch_of(jnp.arange(12.0).reshape(2, 3, 2))
    minibatch = take_minibatch({"a": batch.advantage}, jnp.asarray([1, 4]), "step")
    np.testing.assert_array_equal(minibatch["a"], [2.0, 3.0, 8.0, 9.0])
