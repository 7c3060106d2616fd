"""The training loop through the public contract."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn

import jaxagents as ja
from jaxagents.ppo import minibatches
from jaxagents.hyperparameters import adam
from jaxagents.ippo import base, loop
from jaxagents.training.named_arrays import strip_keys
from jaxagents.ppo.optimization import run_epoch
from tests.probes import Aim, Coordination, Shaped, Walk

TINY = ja.AgentConfig(
    n_steps=3,
    batch_size=4,
    minibatch_size=2,
    rollout_length=6,
    eval_frequency=2,
    n_evals=2,
    progress_bar=False,
)
FAST = ja.HyperParameters(
    actor_optimizer_params=ja.OptimizerParams(learning_rate=1e-2),
    critic_optimizer_params=ja.OptimizerParams(learning_rate=1e-2),
)


def tiny(**changes) -> ja.AgentConfig:
    return dataclasses.replace(TINY, **changes)


def assert_trees_close(actual, expected, **tolerance):
    jax.tree.map(partial(np.testing.assert_allclose, **tolerance), actual, expected)


def assert_trees_equal(actual, expected):
    jax.tree.map(np.testing.assert_array_equal, strip_keys(actual), strip_keys(expected))


def largest_change(before, after) -> float:
    changes = jax.tree.map(lambda x, y: jnp.max(jnp.abs(x - y)), before, after)
    return float(max(jax.tree.leaves(changes)))


AGENTS = {
    "categorical": (ja.DiscreteIPPO, Walk((100, 100, 100)), {}),
    "masked": (ja.DiscreteIPPO, Walk((100, 100, 100), masked=True), {}),
    "mortal": (ja.DiscreteIPPO, Walk((2, 100, 3)), {}),
    "clipped": (ja.ContinuousIPPO, Aim(3, -0.5, 0.5), {}),
    "squashed": (ja.ContinuousIPPO, Aim(3, -0.5, 0.5), {"squash": True}),
}


@pytest.mark.parametrize("sharing", ["shared", "independent", (0, 1, 0)], ids=str)
@pytest.mark.parametrize("kind", AGENTS)
def test_the_first_minibatch_has_ratio_1_and_kl_0(kind, sharing):
    agent_class, env, options = AGENTS[kind]
    config = tiny(minibatch_size=4, actor_epochs=1, parameter_sharing=sharing, **options)
    agent = agent_class(env, None, config)
    runner = agent.init(jax.random.key(0), FAST)
    for _ in range(2):  # the second from parameters that have been trained
        runner, metrics = agent.step(runner)
        np.testing.assert_allclose(metrics["kl"], 0.0, atol=1e-6)
        np.testing.assert_array_equal(metrics["clip_fraction"], 0.0)


# With rbg the first policy's key draws for all: it must go on where that policy has stopped.
@pytest.mark.parametrize("prng_impl", [None, "rbg"])
def test_each_policy_stops_at_its_own_kl_and_leaves_the_others_alone(prng_impl):
    """Actors of Walk do not influence each other, so that their runs can be compared."""
    config = tiny(parameter_sharing="independent", n_evals=0, prng_impl=prng_impl)

    def train(kl_threshold, **changes):
        hyperparams = FAST.replace(kl_threshold=jnp.array(kl_threshold))
        agent = ja.DiscreteIPPO(Walk(), None, dataclasses.replace(config, **changes))
        runner, metrics = agent.train(jax.random.key(0), hyperparams)
        return runner.actor.params, metrics["actor_epochs"][-1]

    def of_policy(params, policy):
        return jax.tree.map(lambda leaf: leaf[policy], params)

    mixed, epochs = train([1e-9, jnp.inf])
    np.testing.assert_array_equal(epochs, [1, 4])
    assert_trees_close(of_policy(mixed, 1), of_policy(train([jnp.inf, jnp.inf])[0], 1), atol=1e-6)
    one_epoch, _ = train([jnp.inf, jnp.inf], actor_epochs=1)
    assert_trees_close(of_policy(mixed, 0), of_policy(one_epoch, 0), atol=1e-6)
    assert largest_change(of_policy(mixed, 1), of_policy(one_epoch, 1)) > 1e-3


def test_an_epochs_kl_stops_the_next_one_and_the_epochs_are_counted():
    runner_and_metrics = {}
    for threshold in (1e-9, 1e9):
        agent = ja.DiscreteIPPO(Walk(), None, tiny(actor_epochs=3))
        runner = agent.init(jax.random.key(0), FAST.replace(kl_threshold=threshold))
        runner_and_metrics[threshold] = agent.step(runner)
    assert runner_and_metrics[1e-9][1]["actor_epochs"] == 1
    assert runner_and_metrics[1e9][1]["actor_epochs"] == 3


def test_every_epoch_of_actors_and_critics_is_dealt_by_a_key_of_its_own(monkeypatch):
    def spy(*arguments, **options):
        jax.debug.callback(
            lambda key: keys.append(tuple(key.tolist())), jax.random.key_data(arguments[-1])
        )
        return run_epoch(*arguments, **options)

    keys = []
    monkeypatch.setattr(base, "run_epoch", spy)
    config = tiny(actor_epochs=3, critic_epochs=4, parameter_sharing="shared")
    agent = ja.DiscreteIPPO(Walk(), None, config)
    jax.block_until_ready(agent.step(agent.init(jax.random.key(0), FAST)))
    jax.effects_barrier()
    assert len(keys) == len(set(keys)) == 7


def test_a_single_epoch_changes_both_networks():
    agent = ja.DiscreteIPPO(Walk(), None, tiny(actor_epochs=1, critic_epochs=1))
    before = agent.init(jax.random.key(0), FAST)
    after, metrics = agent.step(before)
    assert metrics["actor_epochs"] == 1
    assert largest_change(before.actor.params, after.actor.params) > 1e-3
    assert largest_change(before.critic.params, after.critic.params) > 1e-3


@pytest.mark.parametrize("n_steps", [1, 7, 50, 105])
@pytest.mark.parametrize("eval_frequency", [1, 10, 50, 100])
def test_exactly_n_steps_updates_run(n_steps, eval_frequency):
    updates = []
    config = ja.AgentConfig(
        n_steps=n_steps,
        eval_frequency=eval_frequency,
        batch_size=1,
        minibatch_size=1,
        rollout_length=1,
        actor_epochs=1,
        critic_epochs=1,
        n_evals=1,
        progress_bar=False,
    )
    agent = ja.DiscreteIPPO(
        Coordination(), None, config, callbacks=[lambda e: updates.append(e.n_updates_done)]
    )
    runner, metrics = agent.train(jax.random.key(0), FAST)
    expected = [*range(0, n_steps, eval_frequency), n_steps]
    assert int(runner.n_updates_done) == n_steps
    # Adam counts its own steps: one minibatch an update here.
    assert int(runner.actor.opt_state[1][0].count[0]) == n_steps
    assert updates == expected
    np.testing.assert_array_equal(metrics["n_updates_done"], expected)
    assert metrics["returns"].shape == (len(expected), 1, 2)


@pytest.mark.parametrize("unit", ["trajectory", "time", "step"])
def test_sizes_of_one_work_for_every_minibatch_unit(unit):
    config = tiny(
        batch_size=1, minibatch_size=1, rollout_length=1, n_evals=1, n_steps=1, minibatch_unit=unit
    )
    agent = ja.DiscreteIPPO(Walk((100,)), None, config)
    runner, metrics = agent.train(jax.random.key(0), FAST)
    assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(runner.actor.params))
    assert metrics["returns"].shape == (2, 1, 1)


@pytest.mark.parametrize("unit", ["time", "step"])
def test_every_minibatch_unit_takes_as_many_gradient_steps(unit):
    agent = ja.DiscreteIPPO(Walk(), None, tiny(minibatch_unit=unit))
    runner, _ = agent.step(agent.init(jax.random.key(0), FAST))
    assert int(runner.actor.opt_state[1][0].count[0]) == 4 * 2  # epochs by minibatches


@pytest.mark.parametrize(
    "changes",
    [
        {"minibatch_unit": "step"},
        {"recurrent": "gru"},
        {"parameter_sharing": "independent", "advantages": "vtrace", "shared_torso": True},
    ],
)
def test_gradients_computed_in_parts_train_alike(monkeypatch, changes):
    config = tiny(n_steps=3, batch_size=8, minibatch_size=4, **changes)
    whole, _ = ja.DiscreteIPPO(Walk(), None, config).train(jax.random.key(0), FAST)
    monkeypatch.setattr(minibatches, "_MICROBATCH", (1, 10))
    parts, _ = ja.DiscreteIPPO(Walk(), None, config).train(jax.random.key(0), FAST)
    assert_trees_close(parts.actor.params, whole.actor.params, atol=1e-4)
    assert_trees_close(parts.critic.params, whole.critic.params, atol=1e-4)
    assert largest_change(parts.critic.params, whole.critic.params) > 0


def test_training_under_vmap_over_keys_equals_training_one_by_one():
    agent = ja.DiscreteIPPO(Coordination(), None, tiny(n_steps=20, eval_frequency=10))
    rngs = jax.random.split(jax.random.key(0), 3)
    together, metrics = jax.vmap(agent.train, in_axes=(0, None))(rngs, FAST)
    at_once, _ = jax.jit(jax.vmap(agent.train, in_axes=(0, None)))(rngs, FAST)
    for i, rng in enumerate(rngs):
        alone = agent.train(rng, FAST)
        taken = jax.tree.map(lambda leaf, i=i: leaf[i], (together, metrics))
        assert_trees_equal(taken, alone)
        batched = jax.tree.map(lambda leaf, i=i: leaf[i], at_once.actor.params)
        assert_trees_close(batched, alone[0].actor.params, atol=1e-4)


def test_training_under_vmap_over_hyperparameters_equals_training_one_by_one():
    agent = ja.ContinuousIPPO(Aim(), None, tiny(n_steps=20, eval_frequency=20))
    variants = [FAST, FAST.replace(gamma=0.5), FAST.replace(ent_coeff=0.1, kl_threshold=1e-4)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack([jnp.float32(x) for x in leaves]), *variants)
    together, _ = jax.vmap(agent.train, in_axes=(None, 0))(jax.random.key(0), stacked)
    for i, hyperparams in enumerate(variants):
        alone, _ = agent.train(jax.random.key(0), hyperparams)
        assert_trees_equal(jax.tree.map(lambda leaf, i=i: leaf[i], together), alone)


def test_training_side_by_side_comes_to_the_same_bits(monkeypatch):
    agent = ja.DiscreteIPPO(Coordination(), None, tiny(n_steps=4, eval_frequency=2))
    plain = agent.train(jax.random.key(0), FAST)
    used = []

    def spy(*arguments):
        used.append(arguments)
        return side_by_side(*arguments)

    side_by_side = loop._update_side_by_side
    monkeypatch.setattr(loop, "_update_side_by_side", spy)
    monkeypatch.setattr(loop, "_MANY_TO_COMPILE_ANEW", 1)
    monkeypatch.setattr(loop, "_MANY", 1)
    assert_trees_equal(agent.train(jax.random.key(0), FAST), plain)
    assert len(used) == 3
    # A member alone does so too; several have a core each.
    for n_members, n_used in ((2, 3), (1, 3 + 3)):
        rngs = jnp.stack([jax.random.key(0)] * n_members)
        members = jax.vmap(agent.train, in_axes=(0, None))(rngs, FAST)
        assert_trees_equal(jax.tree.map(lambda leaf: leaf[0], members), plain)
        assert len(used) == n_used
    given = agent.init(jax.random.key(0), FAST)
    agent.train(None, FAST, given)
    assert_trees_equal(given, agent.init(jax.random.key(0), FAST))  # not given away


@pytest.mark.parametrize(
    ("changes", "pays"),
    [
        ({"n_steps": 21}, True),  # of 24 environment steps by two actors: 1,008 samples
        ({"n_steps": 20}, False),  # compiling longer would take longer than it saves
        ({"n_steps": 100, "batch_size": 512}, False),  # it would take too much memory
        ({"n_steps": 100, "shared_torso": True}, False),  # the critic waits for the actor's torso
        ({"n_steps": 100, "advantages": "vtrace"}, False),
    ],
)
def test_long_trainings_run_side_by_side(monkeypatch, changes, pays):
    monkeypatch.setattr(loop, "keeps_compiled_programs", lambda: False)
    monkeypatch.setattr(loop, "_MANY", 1_000)
    monkeypatch.setattr(loop, "_TOO_MANY", 1_000)
    agent = ja.DiscreteIPPO(Coordination(), None, tiny(**changes))
    runner = agent.init(jax.random.key(0), FAST)
    assert agent._pays_side_by_side(runner) == pays
    monkeypatch.setattr(loop, "keeps_compiled_programs", lambda: True)
    assert not agent._pays_side_by_side(runner)


def test_the_same_seed_gives_the_same_bits_and_another_seed_does_not():
    agent = ja.DiscreteIPPO(Walk(), None, TINY)
    first, _ = agent.train(jax.random.key(0), FAST)
    again, _ = ja.DiscreteIPPO(Walk(), None, TINY).train(jax.random.key(0), FAST)
    other, _ = agent.train(jax.random.key(1), FAST)
    assert_trees_equal(first.actor.params, again.actor.params)
    assert largest_change(first.actor.params, other.actor.params) > 1e-3


def test_raw_keys_are_accepted_and_mean_the_same():
    agent = ja.DiscreteIPPO(Walk(), None, TINY)
    typed, _ = agent.train(jax.random.key(3), FAST)
    raw, _ = agent.train(jax.random.PRNGKey(3), FAST)
    assert_trees_equal(typed.actor.params, raw.actor.params)


@pytest.mark.parametrize(
    "changes", [{"n_evals": 0}, {"initial_evaluation": False}, {"n_evals": 5}, {"eval_seed": 9}]
)
def test_evaluation_does_not_touch_training(changes):
    trained, _ = ja.DiscreteIPPO(Walk(), None, TINY).train(jax.random.key(0), FAST)
    other, _ = ja.DiscreteIPPO(Walk(), None, tiny(**changes)).train(jax.random.key(0), FAST)
    assert_trees_close(trained.actor.params, other.actor.params, atol=1e-6)
    assert_trees_close(trained.critic.params, other.critic.params, atol=1e-6)


def test_steps_by_hand_are_the_training():
    agent = ja.DiscreteIPPO(Walk(), None, TINY)
    trained, _ = agent.train(jax.random.key(0), FAST)
    runner = agent.init(jax.random.key(0), FAST)
    for _ in range(3):
        runner, metrics = agent.step(runner)
    assert int(runner.n_updates_done) == 3
    assert_trees_close(runner.actor.params, trained.actor.params, atol=1e-5)
    assert metrics["actor_loss"].shape == (1,)


def test_a_given_runner_is_trained_on_up_to_n_steps():
    agent = ja.DiscreteIPPO(Walk(), None, TINY)
    straight, _ = agent.train(jax.random.key(0), FAST)
    runner, _ = agent.step(agent.init(jax.random.key(0), FAST))
    continued, metrics = agent.train(None, FAST, runner=runner)
    np.testing.assert_array_equal(metrics["n_updates_done"], [1, 2, 3])
    assert_trees_close(continued.actor.params, straight.actor.params, atol=1e-5)
    with pytest.raises(ValueError, match="larger n_steps"):
        agent.train(None, FAST, runner=continued)


class Naught(nn.Module):
    """Values 0 that the gradient can move."""

    @nn.compact
    def __call__(self, features):
        return nn.Dense(1, kernel_init=nn.initializers.zeros)(features)[..., 0]


@pytest.mark.parametrize(
    ("shaped_reward_steps", "rewards"),
    [(None, [0.0, 0.0, 0.0, 0.0]), (48, [10.0, 5.0, 0.0, 0.0]), (10**10, [10.0] * 4)],
)
def test_shaped_rewards_fade_over_the_environment_steps_done_and_leave_returns_alone(
    shaped_reward_steps, rewards
):
    """Of updates of 24 steps, the second comes halfway to 48 steps, the third at their end.

    The critic stays at 0, whose mean squared error is the square of the one reward of an episode.
    """
    config = tiny(
        n_steps=4,
        eval_frequency=1,
        critic_network=Naught(),
        shaped_reward_steps=shaped_reward_steps,
    )
    hyperparams = FAST.replace(critic_optimizer_params=ja.OptimizerParams(learning_rate=0.0))
    _, metrics = ja.DiscreteIPPO(Shaped(), None, config).train(jax.random.key(0), hyperparams)
    losses = hyperparams.vf_coeff * np.square(rewards)
    np.testing.assert_allclose(metrics["critic_loss"][1:, 0], losses, rtol=1e-5)
    np.testing.assert_array_equal(metrics["returns"], 0.0)


def test_shaped_rewards_stay_away_after_billions_of_steps():
    agent = ja.DiscreteIPPO(Shaped(), None, tiny(shaped_reward_steps=48))
    _, state = agent.environments.reset(jax.random.key(0), 4)
    step, _ = agent.environments.step(jax.random.key(0), state, jnp.zeros((4, 2), jnp.int32))
    for n_updates_done, reward in ((1, 5.0), (2, 0.0), (2**31 // 24 + 1, 0.0), (2**31 - 1, 0.0)):
        np.testing.assert_array_equal(agent._reward(step, jnp.int32(n_updates_done)), reward)


@pytest.mark.parametrize("teams", [(0, 0, 1), (1, 0, 0)])
def test_teams_are_policies_of_their_own(teams):
    env = Walk((100, 100, 100))
    env.teams = teams
    agent = ja.DiscreteIPPO(env, None, tiny(parameter_sharing="team"))
    np.testing.assert_array_equal(agent.policies.policy_of_actor, teams)


def test_learning_rates_anneal_by_the_updates_done():
    """With n_steps=4 the third update, after two, runs at half the rate."""
    constant = ja.DiscreteIPPO(Walk(), None, tiny(n_steps=4))
    annealed = ja.DiscreteIPPO(Walk(), None, tiny(n_steps=4, anneal_learning_rate=True))
    runner = constant.init(jax.random.key(0), FAST).replace(n_updates_done=jnp.int32(2))
    half = ja.OptimizerParams(learning_rate=0.5e-2)
    halved = FAST.replace(actor_optimizer_params=half, critic_optimizer_params=half)
    expected, _ = constant.step(runner.replace(hyperparams=jax.tree.map(jnp.float32, halved)))
    actual, _ = annealed.step(runner)
    assert_trees_close(actual.actor.params, expected.actor.params, atol=1e-7)
    assert_trees_close(actual.critic.params, expected.critic.params, atol=1e-7)


def test_changing_hyperparameter_values_does_not_trace_again():
    n_traces = 0

    def optimizer(params: ja.OptimizerParams) -> optax.GradientTransformation:
        nonlocal n_traces
        n_traces += 1
        return adam(params)

    agent = ja.DiscreteIPPO(Walk(), None, tiny(optimizer=optimizer))
    agent.train(jax.random.key(0), FAST)
    after_first = n_traces
    agent.train(jax.random.key(1), FAST.replace(gamma=0.5, kl_threshold=0.1, eps_clip=1))
    agent.train(jax.random.key(1), FAST.replace(gamma=jnp.float32(0.7), ent_coeff=np.float64(0)))
    assert after_first > 0
    assert n_traces == after_first


@pytest.mark.parametrize(
    "name", ["env", "env_params", "config", "environments", "policies", "actor_network",
             "critic_network", "something_new"]
)  # fmt: skip
def test_assigning_an_attribute_raises(name):
    agent = ja.DiscreteIPPO(Walk(), None, TINY)
    with pytest.raises(AttributeError, match="build a new agent"):
        setattr(agent, name, None)


def test_metrics_have_the_documented_shapes():
    agent = ja.DiscreteIPPO(Coordination(3), None, tiny(parameter_sharing=(0, 0, 1)))
    _, metrics = agent.train(jax.random.key(0), FAST)
    for name in ("returns", "final_rewards", "terminated", "truncated"):
        assert metrics[name].shape == (3, 2, 3)
    for name in ("episode_lengths", "info_won"):
        assert metrics[name].shape == (3, 2)
    for name in ("actor_loss", "critic_loss", "entropy", "kl", "clip_fraction", "actor_epochs",
                 "actor_gradient_norm", "critic_gradient_norm", "explained_variance"):  # fmt: skip
        assert metrics[name].shape == (3, 2)
        assert np.all(np.isnan(metrics[name][0]))  # nothing had been trained
        assert np.all(np.isfinite(metrics[name][1:]))
    assert {leaf.dtype for leaf in metrics.values()} == {jnp.dtype(jnp.float32)}


def test_without_evaluation_only_training_metrics_remain():
    _, metrics = ja.DiscreteIPPO(Walk(), None, tiny(n_evals=0)).train(jax.random.key(0), FAST)
    assert "returns" not in metrics
    assert metrics["actor_loss"].shape == (3, 1)


def test_without_the_initial_evaluation_the_first_row_is_the_first_block():
    config = tiny(initial_evaluation=False)
    _, metrics = ja.DiscreteIPPO(Walk(), None, config).train(jax.random.key(0), FAST)
    np.testing.assert_array_equal(metrics["n_updates_done"], [2, 3])


def test_a_callback_can_stop_training_and_the_rows_after_it_are_nan():
    events = []

    def stop_after_two_updates(evaluation: ja.Evaluation) -> bool:
        events.append(evaluation)
        return evaluation.n_updates_done >= 2

    config = tiny(n_steps=10)
    agent = ja.DiscreteIPPO(Walk(), None, config, callbacks=[stop_after_two_updates])
    runner, metrics = agent.train(jax.random.key(0), FAST)
    assert int(runner.n_updates_done) == 2
    assert [event.n_environment_steps for event in events] == [0, 2 * 6 * 4]
    assert events[-1].metrics["returns"].shape == (2, 2)
    assert np.all(np.isfinite(metrics["returns"][:2]))
    assert np.all(np.isnan(metrics["returns"][2:]))


def test_what_a_callback_raises_reaches_the_caller_as_it_was():
    def fail(evaluation: ja.Evaluation) -> None:
        raise LookupError("from the callback")

    agent = ja.DiscreteIPPO(Walk(), None, TINY, callbacks=[fail])
    with pytest.raises(LookupError, match="from the callback"):
        agent.train(jax.random.key(0), FAST)


def test_callbacks_are_refused_under_vmap():
    agent = ja.DiscreteIPPO(Walk(), None, TINY, callbacks=[lambda evaluation: None])
    with pytest.raises(ValueError, match="checkpoint_dir=None and without callbacks"):
        jax.vmap(agent.train, in_axes=(0, None))(jax.random.split(jax.random.key(0)), FAST)


def test_the_progress_bar_changes_nothing_and_works_under_vmap(capfd):
    plain, _ = ja.DiscreteIPPO(Walk(), None, TINY).train(jax.random.key(0), FAST)
    agent = ja.DiscreteIPPO(Walk(), None, tiny(progress_bar=True))
    shown, _ = agent.train(jax.random.key(0), FAST)
    assert_trees_close(plain.actor.params, shown.actor.params, atol=1e-6)
    jax.block_until_ready(
        jax.vmap(agent.train, in_axes=(0, None))(jax.random.split(jax.random.key(0)), FAST)
    )
    jax.effects_barrier()
    assert "Training: 100%" in capfd.readouterr().err
