"""The training loop through the public contract."""

import logging
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn

import jaxagents as ja
from jaxagents.compiler import jit as compilation
from jaxagents.ippo import base, training_run
from jaxagents.ppo import optimization
from jaxagents.ppo.optimization import clipped_adam, run_epoch
from jaxagents.training.blocks import block_sizes
from tests.agents import (
    COORDINATION,
    FAST,
    TINY,
    WALK,
    all_finite,
    assert_trees_close,
    assert_trees_equal,
    begin,
    largest_change,
    of_policy,
    shared_agent,
    tiny,
    trained,
    with_hyperparams,
)
from tests.probes import Aim, Coordination, Shaped, Walk

MASKED = Walk((100, 100, 100), masked=True)
KINDS = {
    "categorical": (Walk((100, 100, 100)), ja.DiscreteIPPO, {}),
    "masked": (MASKED, ja.DiscreteIPPO, {}),
    "mortal": (Walk((2, 100, 3)), ja.DiscreteIPPO, {}),
    "clipped": (Aim(3, -0.5, 0.5), ja.ContinuousIPPO, {}),
    "squashed": (Aim(3, -0.5, 0.5), ja.ContinuousIPPO, {"squash": True}),
}
SHARINGS = ["shared", "independent", (0, 1, 0)]


def agent_of_one_epoch(kind, sharing):
    """Return an agent that takes one gradient step per update, from the whole batch."""
    env, agent_class, options = KINDS[kind]
    one = {"minibatch_size": 4, "actor_epochs": 1, "critic_epochs": 1}
    return shared_agent(env, agent_class, parameter_sharing=sharing, **one, **options)


@pytest.mark.slow  # tests of recurrent agents and of host environments compute the ratio directly
@pytest.mark.parametrize("sharing", SHARINGS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_the_first_minibatch_has_ratio_1_and_kl_0(kind, sharing):
    agent = agent_of_one_epoch(kind, sharing)
    runner = begin(agent)
    for _ in range(2):  # the second from parameters that have been trained
        runner, metrics = agent.step(runner)
        np.testing.assert_allclose(metrics["kl"], 0.0, atol=1e-6)
        np.testing.assert_array_equal(metrics["clip_fraction"], 0.0)


def test_a_log_standard_deviation_stops_at_its_bound_from_where_it_returns_at_once():
    agent = agent_of_one_epoch("clipped", "shared")
    runner = begin(agent, ent_coeff=10.0)
    params = runner.actor.params
    params = {**params, "log_std": jnp.full_like(params["log_std"], 2.0)}
    runner = runner.replace(actor=runner.actor._replace(params=params))
    for _ in range(20):
        runner, _ = agent.step(runner)
        np.testing.assert_array_equal(runner.actor.params["log_std"], 2.0)
    runner = with_hyperparams(runner, ent_coeff=-10.0)
    for _ in range(20):  # at first Adam's momentum still leads upwards
        runner, _ = agent.step(runner)
    assert runner.actor.params["log_std"].max() < 1.999


@pytest.mark.slow
def test_a_single_epoch_changes_both_networks():
    agent = agent_of_one_epoch("squashed", "independent")
    before = begin(agent)
    after, metrics = agent.step(before)
    np.testing.assert_array_equal(metrics["actor_epochs"], [1, 1, 1])
    assert largest_change(before.actor.params, after.actor.params) > 1e-3
    assert largest_change(before.critic.params, after.critic.params) > 1e-3


def actors_after(agent, *kl_thresholds):
    """Do one update with a KL threshold per policy; return the parameters and the epochs done."""
    begun = begin(shared_agent(parameter_sharing="independent"), kl_threshold=[jnp.inf, jnp.inf])
    rng = jax.random.key(7, impl=agent.config.prng_impl)
    runner = with_hyperparams(begun, kl_threshold=jnp.array(kl_thresholds)).replace(rng=rng)
    runner, metrics = agent.step(runner)
    return runner.actor.params, metrics["actor_epochs"]


# With rbg one key draws for all policies: it must advance where the first policy has stopped.
@pytest.mark.parametrize("prng_impl", [None, pytest.param("rbg", marks=pytest.mark.slow)])
def test_a_policy_that_stops_at_its_kl_leaves_the_other_policy_alone(prng_impl):
    """The actors of Walk do not influence each other, so their updates can be compared."""
    agent = shared_agent(parameter_sharing="independent", prng_impl=prng_impl)
    first_stops, epochs = actors_after(agent, 1e-9, np.inf)
    np.testing.assert_array_equal(epochs, [1, 4])
    neither_stops, epochs = actors_after(agent, np.inf, np.inf)
    np.testing.assert_array_equal(epochs, [4, 4])
    assert_trees_close(of_policy(first_stops, 1), of_policy(neither_stops, 1), atol=1e-6)
    assert largest_change(of_policy(first_stops, 0), of_policy(neither_stops, 0)) > 1e-3


@pytest.mark.slow
def test_a_policy_that_stops_at_its_kl_keeps_the_parameters_of_its_last_epoch():
    first_stops, _ = actors_after(shared_agent(parameter_sharing="independent"), 1e-9, np.inf)
    one_epoch, epochs = actors_after(
        shared_agent(parameter_sharing="independent", actor_epochs=1), np.inf, np.inf
    )
    np.testing.assert_array_equal(epochs, [1, 1])
    assert_trees_close(of_policy(first_stops, 0), of_policy(one_epoch, 0), atol=1e-6)
    assert largest_change(of_policy(first_stops, 1), of_policy(one_epoch, 1)) > 1e-3


def test_an_epochs_kl_prevents_the_next_epoch():
    agent = shared_agent()
    for kl_threshold, n_epochs in ((1e-9, 1), (1e9, 4)):
        _, metrics = agent.step(with_hyperparams(begin(agent), kl_threshold=kl_threshold))
        assert metrics["actor_epochs"] == n_epochs


@pytest.mark.slow
def test_every_epoch_of_actors_and_critics_draws_minibatches_by_its_own_key(monkeypatch):
    def spy(*arguments, **options):
        jax.debug.callback(
            lambda key: keys.append(tuple(key.tolist())), jax.random.key_data(options["rng"])
        )
        return run_epoch(*arguments, **options)

    keys = []
    monkeypatch.setattr(base, "run_epoch", spy)
    agent = ja.DiscreteIPPO(WALK, None, tiny(actor_epochs=3, critic_epochs=4))
    jax.block_until_ready(agent.step(begin(shared_agent())))
    jax.effects_barrier()
    assert len(keys) == len(set(keys)) == 7


@pytest.mark.parametrize("n_steps", [1, 7, 50, 105])
@pytest.mark.parametrize("eval_frequency", [1, 10, 50, 100])
def test_blocks_end_at_multiples_of_the_eval_frequency_and_at_n_steps(n_steps, eval_frequency):
    config = ja.AgentConfig(n_steps=n_steps, eval_frequency=eval_frequency)
    ends = [*range(0, n_steps, eval_frequency), n_steps]
    np.testing.assert_array_equal(np.cumsum(block_sizes(0, config, initial=True)), ends)
    np.testing.assert_array_equal(np.cumsum(block_sizes(0, config, initial=False)), ends[1:])


ONE_OF_EACH = {
    "batch_size": 1,
    "minibatch_size": 1,
    "rollout_length": 1,
    "actor_epochs": 1,
    "critic_epochs": 1,
    "n_evals": 1,
}
WALK_ALONE = Walk((100,))


class Listener:
    """A callback that keeps the evaluations, and answers them as a test wants."""

    def __init__(self):
        self.evaluations: list[ja.Evaluation] = []
        self.answer: Any = None

    def __call__(self, evaluation):
        self.evaluations.append(evaluation)
        return self.answer(evaluation) if self.answer else None


@pytest.fixture(scope="module")
def agent_and_listener():
    listener = Listener()
    config = tiny(n_steps=105, eval_frequency=50, **ONE_OF_EACH)
    return ja.DiscreteIPPO(WALK_ALONE, None, config, callbacks=[listener]), listener


@pytest.fixture
def listened(agent_and_listener):
    """An agent of 105 updates, all sizes of which are 1, and its callback."""
    _, listener = agent_and_listener
    listener.evaluations, listener.answer = [], None
    return agent_and_listener


def assert_trains_exactly(agent, listener):
    runner, metrics = agent.train(jax.random.key(0), FAST)
    n_steps, frequency = agent.config.n_steps, agent.config.eval_frequency
    expected = [*range(0, n_steps, frequency), n_steps]
    assert int(runner.n_updates_done) == n_steps
    # Adam counts its own steps: one minibatch an update here.
    assert int(runner.actor.opt_state[1][0].count[0]) == n_steps
    assert [each.n_updates_done for each in listener.evaluations] == expected
    np.testing.assert_array_equal(metrics["n_updates_done"], expected)
    assert metrics["returns"].shape == (len(expected), 1, 1)
    assert all_finite(runner.actor.params)


def test_exactly_n_steps_updates_run_with_a_shorter_last_block(listened):
    assert_trains_exactly(*listened)


@pytest.mark.slow
@pytest.mark.parametrize("n_steps", [1, 7, 50, 105])
@pytest.mark.parametrize("eval_frequency", [1, 10, 50, 100])
def test_exactly_n_steps_updates_run(n_steps, eval_frequency):
    listener = Listener()
    config = tiny(n_steps=n_steps, eval_frequency=eval_frequency, **ONE_OF_EACH)
    assert_trains_exactly(ja.DiscreteIPPO(WALK_ALONE, None, config, callbacks=[listener]), listener)


def test_a_callback_can_stop_training_and_later_rows_are_nan(listened):
    agent, listener = listened
    listener.answer = lambda evaluation: evaluation.n_updates_done >= 50
    runner, metrics = agent.train(jax.random.key(0), FAST)
    assert int(runner.n_updates_done) == 50
    assert [each.n_environment_steps for each in listener.evaluations] == [0, 50]
    assert listener.evaluations[-1].metrics["returns"].shape == (1, 1)
    assert np.all(np.isfinite(metrics["returns"][:2]))
    assert np.all(np.isnan(metrics["returns"][2:]))


def test_an_error_in_a_callback_reaches_the_caller_unchanged(listened):
    def fail(evaluation: ja.Evaluation) -> None:
        raise LookupError("from the callback")

    agent, listener = listened
    listener.answer = fail
    with pytest.raises(LookupError, match="from the callback"):
        agent.train(jax.random.key(0), FAST)


def test_callbacks_are_refused_under_vmap(listened):
    agent, _ = listened
    with pytest.raises(ValueError, match="checkpoint_dir=None and without callbacks"):
        jax.vmap(agent.train, in_axes=(0, None))(jax.random.split(jax.random.key(0)), FAST)


def test_continuing_a_runner_is_refused_under_vmap():
    agent, rngs = shared_agent(), jax.random.split(jax.random.key(0))
    with pytest.raises(ValueError, match="cannot continue a runner under jax transformations"):
        jax.vmap(lambda rng: agent.train(rng, FAST, agent.runners.shapes()))(rngs)


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["time", "step"])  # whole trajectories: see above
def test_sizes_of_one_work_for_every_minibatch_unit(listened, unit):
    agent = shared_agent(WALK_ALONE, minibatch_unit=unit, **ONE_OF_EACH)
    runner, _ = agent.step(begin(listened[0]))
    assert int(runner.actor.opt_state[1][0].count[0]) == 1
    assert all_finite(runner.actor.params)


@pytest.mark.parametrize(
    "unit",
    [
        "trajectory",
        pytest.param("time", marks=pytest.mark.slow),
        pytest.param("step", marks=pytest.mark.slow),
    ],
)
def test_every_minibatch_unit_takes_the_same_number_of_gradient_steps(unit):
    runner, _ = shared_agent(minibatch_unit=unit).step(begin(shared_agent()))
    assert int(runner.actor.opt_state[1][0].count[0]) == 4 * 2  # epochs times minibatches


OTHER_GRADIENTS = {"parameter_sharing": "independent", "advantages": "vtrace", "shared_torso": True}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        pytest.param({"minibatch_unit": "step"}, marks=pytest.mark.slow),
        pytest.param({"recurrent": "mingru", **OTHER_GRADIENTS}, marks=pytest.mark.slow),
        pytest.param({"recurrent": "gru"}, marks=pytest.mark.slow),
        pytest.param(OTHER_GRADIENTS, marks=pytest.mark.slow),
    ],
    ids=["trajectories", "steps", "recurrent and others", "recurrent", "others"],
)
def test_gradients_accumulated_over_parts_of_minibatches_train_the_same(monkeypatch, changes):
    agent = shared_agent(**changes)
    begun = begin(agent)
    whole, _ = agent.step(begun)
    monkeypatch.setattr(optimization, "_FEWEST_SAMPLES", 1)
    monkeypatch.setattr(optimization, "_MOST_SAMPLES", 10)
    with_parts = type("WithParts", (ja.DiscreteIPPO,), {})  # runs no programs of its equals
    parts, _ = with_parts(WALK, None, agent.config).step(begun)
    assert_trees_close(parts.actor.params, whole.actor.params, atol=1e-4)
    assert_trees_close(parts.critic.params, whole.critic.params, atol=1e-4)
    assert largest_change(parts.critic.params, whole.critic.params) > 0


def coordinated():
    return shared_agent(COORDINATION, n_steps=4)


@pytest.mark.slow
def test_training_under_vmap_over_keys_equals_training_one_by_one():
    agent, rngs = coordinated(), jax.random.split(jax.random.key(0), 3)
    together, metrics = jax.vmap(agent.train, in_axes=(0, None))(rngs, FAST)
    at_once, _ = jax.jit(jax.vmap(agent.train, in_axes=(0, None)))(rngs, FAST)
    for i, rng in enumerate(rngs):
        alone = agent.train(rng, FAST)
        assert_trees_equal(of_policy((together, metrics), i), alone)
        assert_trees_close(of_policy(at_once.actor.params, i), alone[0].actor.params, atol=1e-4)


@pytest.mark.slow
def test_training_under_vmap_over_hyperparameters_equals_training_one_by_one():
    agent = coordinated()
    variants = [FAST, FAST.replace(gamma=0.5), FAST.replace(ent_coeff=0.1, kl_threshold=1e-4)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack([jnp.float32(x) for x in leaves]), *variants)
    together, _ = jax.vmap(agent.train, in_axes=(None, 0))(jax.random.key(0), stacked)
    for i, hyperparams in enumerate(variants):
        alone, _ = agent.train(jax.random.key(0), hyperparams)
        assert_trees_equal(of_policy(together, i), alone)


@pytest.mark.slow
def test_training_with_overlapping_loops_gives_the_same_bits(monkeypatch):
    agent = coordinated()
    plain = agent.train(jax.random.key(0), FAST)
    used = []

    def spy(*arguments):
        used.append(arguments)
        return overlapping(*arguments)

    overlapping, name = agent.run.update_repeatedly_overlapping, "update_repeatedly_overlapping"
    monkeypatch.setattr(training_run.TrainingRun, name, property(lambda _: spy))
    monkeypatch.setattr(compilation, "_MANY_SAMPLES_WITH_CACHE", 1)
    monkeypatch.setattr(compilation, "_MANY_SAMPLES", 1)
    assert_trees_equal(agent.train(jax.random.key(0), FAST), plain)
    assert len(used) == 3
    # So does a single member of a vmap; of several, each has a core of its own.
    for n_members, n_used in ((2, 3), (1, 3 + 3)):
        rngs = jnp.stack([jax.random.key(0)] * n_members)
        members = jax.vmap(agent.train, in_axes=(0, None))(rngs, FAST)
        assert_trees_equal(of_policy(members, 0), plain)
        assert len(used) == n_used
    given = begin(agent)
    agent.train(None, FAST, given)
    assert_trees_equal(given, begin(agent))  # not donated


@pytest.mark.parametrize(
    ("changes", "overlaps"),
    [
        ({"n_steps": 21}, True),  # of 24 environment steps by two actors: 1,008 samples
        ({"n_steps": 20}, False),
        ({"n_steps": 100, "batch_size": 512}, False),
        ({"n_steps": 100, "shared_torso": True}, False),  # the critic needs the actor's torso
        ({"n_steps": 100, "advantages": "vtrace"}, False),
    ],
    ids=str,
)
def test_long_trainings_of_independent_networks_overlap_their_loops(monkeypatch, changes, overlaps):
    monkeypatch.setattr(compilation, "keeps_compiled_programs", lambda: False)
    monkeypatch.setattr(compilation, "_MANY_SAMPLES", 1_000)
    monkeypatch.setattr(compilation, "_TOO_MANY_SAMPLES_AT_ONCE", 1_000)
    agent = ja.DiscreteIPPO(COORDINATION, None, tiny(**changes))
    update = agent.run.updates_compiled_for(begin(coordinated()))
    assert (update is agent.run.update_repeatedly_overlapping) == overlaps


def test_the_same_seed_gives_the_same_bits_and_another_seed_does_not():
    first, _ = trained(shared_agent())
    again, _ = ja.DiscreteIPPO(WALK, None, TINY).train(jax.random.key(0), FAST)
    other, _ = trained(shared_agent(), seed=3)
    assert_trees_equal(first.actor.params, again.actor.params)
    assert largest_change(first.actor.params, other.actor.params) > 1e-3


def test_raw_keys_are_accepted_and_mean_the_same():
    typed, _ = trained(shared_agent(), seed=3)
    raw, _ = shared_agent().train(jax.random.PRNGKey(3), FAST)
    assert_trees_equal(typed.actor.params, raw.actor.params)


OTHER_EVALUATIONS = {"initial_evaluation": False, "n_evals": 5, "eval_seed": 9}


@pytest.mark.parametrize(
    "changes",
    [
        {"n_evals": 0},
        pytest.param(OTHER_EVALUATIONS, marks=pytest.mark.slow),
        *[
            pytest.param({name: value}, marks=pytest.mark.slow)
            for name, value in OTHER_EVALUATIONS.items()
        ],
    ],
    ids=str,
)
def test_evaluation_does_not_affect_training(changes):
    (runner, _), (other, _) = trained(shared_agent()), trained(shared_agent(**changes))
    assert_trees_close(runner.actor.params, other.actor.params, atol=1e-6)
    assert_trees_close(runner.critic.params, other.critic.params, atol=1e-6)


def test_without_evaluation_only_training_metrics_remain():
    _, metrics = trained(shared_agent(n_evals=0))
    assert "returns" not in metrics
    assert metrics["actor_loss"].shape == (3, 1)


@pytest.mark.slow  # test_checkpoints.py has its checkpoints and history
def test_without_the_initial_evaluation_the_first_row_is_the_first_block():
    _, metrics = trained(shared_agent(initial_evaluation=False))
    np.testing.assert_array_equal(metrics["n_updates_done"], [2, 3])


def test_steps_by_hand_equal_the_training():
    agent = shared_agent()
    runner = begin(agent)
    for _ in range(3):
        runner, metrics = agent.step(runner)
    assert int(runner.n_updates_done) == 3
    assert_trees_close(runner.actor.params, trained(agent)[0].actor.params, atol=1e-5)
    assert metrics["actor_loss"].shape == (1,)


def test_a_given_runner_is_trained_up_to_n_steps():
    agent = shared_agent()
    runner, _ = agent.step(begin(agent))
    continued, metrics = agent.train(None, FAST, runner=runner)
    np.testing.assert_array_equal(metrics["n_updates_done"], [1, 2, 3])
    assert_trees_close(continued.actor.params, trained(agent)[0].actor.params, atol=1e-5)
    with pytest.raises(ValueError, match="larger n_steps"):
        agent.train(None, FAST, runner=continued)


class ZeroValue(nn.Module):
    """A value network whose outputs are 0 before any gradient."""

    @nn.compact
    def __call__(self, features):
        return nn.Dense(1, kernel_init=nn.initializers.zeros)(features)[..., 0]


@pytest.mark.slow
def test_shaped_rewards_are_learnt_from_and_leave_returns_alone():
    """In updates of 24 environment steps, they fade within the first two: 10, 5, 0, 0.

    The values stay 0: the mean squared error is the square of the one reward of an episode.
    """
    config = tiny(n_steps=4, eval_frequency=1, critic_network=ZeroValue(), shaped_reward_steps=48)
    hyperparams = FAST.replace(critic_optimizer_params=ja.OptimizerParams(learning_rate=0.0))
    _, metrics = ja.DiscreteIPPO(Shaped(), None, config).train(jax.random.key(0), hyperparams)
    losses = hyperparams.vf_coeff * np.square([10.0, 5.0, 0.0, 0.0])
    np.testing.assert_allclose(metrics["critic_loss"][1:, 0], losses, rtol=1e-5)
    np.testing.assert_array_equal(metrics["returns"], 0.0)


@pytest.mark.parametrize("teams", [(0, 0, 1), (1, 0, 0)])
def test_sharing_by_team_gives_each_team_a_policy(teams):
    env = Walk((100, 100, 100))
    env.teams = teams
    agent = ja.DiscreteIPPO(env, None, tiny(parameter_sharing="team"))
    np.testing.assert_array_equal(agent.policies.policy_of_actor, teams)


def test_changing_hyperparameter_values_does_not_trace_again():
    n_traces = 0

    def optimizer(params: ja.OptimizerParams) -> optax.GradientTransformation:
        nonlocal n_traces
        n_traces += 1
        return clipped_adam(params)

    agent = ja.DiscreteIPPO(WALK, None, tiny(optimizer=optimizer, n_evals=0))
    agent.train(jax.random.key(0), FAST)
    after_first = n_traces
    agent.train(jax.random.key(1), FAST.replace(gamma=0.5, kl_threshold=0.1, eps_clip=1))
    agent.train(jax.random.key(1), FAST.replace(gamma=jnp.float32(0.7), ent_coeff=np.float64(0)))
    assert after_first > 0
    assert n_traces == after_first


@pytest.mark.parametrize(
    "name",
    ["env", "env_params", "config", "environments", "distribution", "policies", "networks",
     "something_new"],
)  # fmt: skip
def test_assigning_an_attribute_raises(name):
    with pytest.raises(AttributeError, match="build a new agent"):
        setattr(shared_agent(), name, None)


@pytest.mark.parametrize("name", ["actor", "critic", "torso", "value"])
def test_assigning_a_network_raises(name):
    with pytest.raises(AttributeError, match=r"ActorCritic.*build a new agent"):
        setattr(shared_agent().networks, name, None)


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


@pytest.mark.slow
def test_the_progress_bar_changes_nothing_and_works_under_vmap(capfd):
    agent = ja.DiscreteIPPO(WALK, None, tiny(progress_bar=True))
    shown, _ = agent.train(jax.random.key(0), FAST)
    assert_trees_close(shown.actor.params, trained(shared_agent())[0].actor.params, atol=1e-6)
    jax.block_until_ready(
        jax.vmap(agent.train, in_axes=(0, None))(jax.random.split(jax.random.key(0)), FAST)
    )
    jax.effects_barrier()
    assert "Training: 100%" in capfd.readouterr().err


def test_hyperparameters_are_logged_by_name_and_returned_as_plain_data(caplog):
    hyperparams = FAST.replace(gamma=0.5, kl_threshold=jnp.array([0.25, jnp.inf]))
    with caplog.at_level(logging.INFO, "jaxagents"):
        items = shared_agent().log_hyperparams(hyperparams)
    assert items["gamma"] == 0.5
    assert items["kl_threshold"] == [0.25, float("inf")]
    assert items["actor_optimizer_params.learning_rate"] == 1e-2
    assert caplog.messages == [f"{name} = {value}" for name, value in items.items()]


def test_policy_is_greedy_without_a_key_and_value_is_per_actor():
    agent = shared_agent(parameter_sharing="independent")
    runner, observation = begin(agent), jnp.ones((2, 2))
    actions = agent.policy(runner, observation)
    assert actions.shape == (2,)
    assert actions.dtype == jnp.int32
    np.testing.assert_array_equal(actions, agent.policy(runner, observation))
    values = agent.value(runner, observation)
    assert values.shape == (2,)
    assert values[0] != values[1]  # each actor has its own critic
    agent.collect_training(runner)
    np.testing.assert_array_equal(agent.value(None, observation), values)


def test_masked_actions_are_never_chosen():
    agent = agent_of_one_epoch("masked", "independent")
    runner = begin(agent)
    mask = jnp.array([[True, True, False], [False, False, True], [True, False, False]])
    observation = ja.Observation(features=jnp.zeros((3, 2)), action_mask=mask)
    rngs = [None, *jax.random.split(jax.random.key(0), 20)]
    actions = np.array([agent.policy(runner, observation, rng=rng) for rng in rngs])
    assert set(actions[:, 0]) == {0, 1}
    assert set(actions[:, 1]) == {2}
    assert set(actions[:, 2]) == {0}
