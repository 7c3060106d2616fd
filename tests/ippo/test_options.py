"""What an agent's options change in training, and what they leave as it was."""

import functools
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxagents as ja
from jaxagents import Environment
from jaxagents.hyperparameters import per_policy
from jaxagents.training.named_arrays import strip_keys
from tests.ippo.test_training import (
    FAST,
    assert_trees_close,
    assert_trees_equal,
    largest_change,
    tiny,
)
from tests.probes import RealWalk, Team, Walk

SMALL = {"actor_layers": ja.Layers((8,)), "critic_layers": ja.Layers((8,)), "n_steps": 4}


def make(env=None, agent_class=ja.DiscreteIPPO, **options):
    return agent_class(Walk() if env is None else env, None, tiny(**SMALL, **options))


@functools.cache
def walking(**options):
    return make(**options)


def begin(agent, **hyperparams):
    return agent.init(jax.random.key(0), FAST.replace(**hyperparams))


def with_hyperparams(runner, **hyperparams):
    """Change what is traced: nothing is compiled anew."""
    arrays = jax.tree.map(jnp.float32, hyperparams)
    return runner.replace(hyperparams=runner.hyperparams.replace(**arrays))


def rate(learning_rate):
    return ja.OptimizerParams(learning_rate=learning_rate)


def of_policy(tree, policy):
    return jax.tree.map(lambda leaf: leaf[policy], tree)


def all_finite(tree):
    return all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(tree))


# V-trace.


def by_gae_and_vtrace():
    """Make agents of at most two actor epochs, which a tiny kl_threshold makes one."""
    return tuple(walking(advantages=name, actor_epochs=2) for name in ("gae", "vtrace"))


@pytest.mark.parametrize(("kl_threshold", "n_epochs"), [(1e-9, 1), (np.inf, 2)])
def test_vtrace_corrects_the_actor_from_its_second_epoch_on_and_the_critic_once_it_has_moved(
    kl_threshold, n_epochs
):
    gae, vtrace = (
        agent.step(begin(agent, kl_threshold=kl_threshold)) for agent in by_gae_and_vtrace()
    )
    assert vtrace[1]["actor_epochs"] == n_epochs
    actors_differ = largest_change(vtrace[0].actor.params, gae[0].actor.params)
    assert actors_differ > 1e-4 if n_epochs == 2 else actors_differ < 1e-5
    assert largest_change(vtrace[0].critic.params, gae[0].critic.params) > 1e-5
    assert vtrace[1]["explained_variance"] != gae[1]["explained_variance"]


def test_vtrace_of_an_actor_that_does_not_move_is_gae():
    still = {"actor_optimizer_params": rate(0.0)}
    (gae, _), (vtrace, _) = (agent.step(begin(agent, **still)) for agent in by_gae_and_vtrace())
    assert_trees_close(vtrace.critic.params, gae.critic.params, atol=1e-5)


@pytest.mark.parametrize("name", ["rho_clip", "c_clip"])
def test_each_clip_of_vtrace_changes_what_is_learnt(name):
    """Of an actor that does not move, all ratios are 1 and a clip of 1/2 halves them."""
    gae, vtrace = by_gae_and_vtrace()
    begun = begin(vtrace, actor_optimizer_params=rate(0.0))
    unclipped, clipped = (
        vtrace.step(with_hyperparams(begun, **{name: clip}))[0] for clip in (1.0, 0.5)
    )
    assert largest_change(unclipped.critic.params, clipped.critic.params) > 1e-4
    begun = begin(gae, actor_optimizer_params=rate(0.0))
    unclipped, clipped = (
        gae.step(with_hyperparams(begun, **{name: clip}))[0] for clip in (1.0, 0.5)
    )
    assert_trees_equal(unclipped.critic.params, clipped.critic.params)


def test_vtrace_goes_along_whole_trajectories_where_networks_learn_from_chunks():
    """Cut at every third step, trajectories of six go on: before the actor moves it all is GAE."""
    agent = make(advantages="vtrace", recurrent="mingru", recurrent_chunk_length=3)
    begun = begin(agent)
    hyperparams = per_policy(begun.hyperparams, 1)

    @jax.jit
    def estimate(runner):
        runner, transitions = agent._collect_rollout(runner, jax.random.key(1))
        _, batch = agent._make_batch(runner, transitions, hyperparams)
        return batch, jax.vmap(agent._reestimated)(runner.actor, batch, hyperparams)

    by_gae, by_vtrace = estimate(begun)
    assert by_vtrace.advantage.shape == (1, 3, 2 * 4, 2)
    assert np.std(by_vtrace.value_target) > 0.1
    assert_trees_close(by_vtrace, by_gae, atol=1e-5)


def test_vtrace_stays_finite_where_the_dead_earn_on():
    agent = make(Team((3, 100)), advantages="vtrace")
    runner = begin(agent)
    for _ in range(2):
        runner, metrics = agent.step(runner)
    assert all_finite((runner.actor, runner.critic, metrics))


# Normalised observations, values and rewards.


class Units(Walk):
    """Walk, seen and rewarded in units of each actor's own, which are part of the state.

    The second actor is cut off at its 14th step.
    """

    def __init__(self, deaths=(100, 100), limits=(100, 14)):
        super().__init__(deaths, limit=jnp.array(limits))

    def reset_env(self, rng, params):
        _, state = super().reset_env(rng, params)
        ones = jnp.ones(self.n_actors)
        state |= {"scale": ones, "shift": 0 * ones, "pay": ones, "seen_by_the_dead": jnp.zeros(())}
        return self._observe(state), state

    def step_env(self, rng, state, action, params):
        _, moved, reward, *rest = super().step_env(rng, state, action, params)
        state |= moved
        return self._observe(state), state, reward * state["pay"], *rest

    def _observe(self, state):
        if "scale" not in state:  # of Walk, on the way
            return jnp.zeros((self.n_actors, 2))
        features = super()._observe(state) * state["scale"][:, None] + state["shift"][:, None]
        alive = state["time"] < self._deaths
        return jnp.where(alive[:, None], features, state["seen_by_the_dead"])


def in_units(agent, runner, **units):
    """Change the units of all environments: nothing is compiled anew."""
    state = runner.env_state.env_state
    state |= {name: jnp.broadcast_to(jnp.float32(units[name]), state[name].shape) for name in units}
    return runner.replace(
        env_state=runner.env_state._replace(env_state=state),
        observation=agent.environments.prepare(jax.vmap(agent.env._observe)(state)),
    )


UNITS = {
    "the same": {},
    "other features": {"scale": 7.0, "shift": -3.0},
    "other rewards": {"pay": 100.0},
    "others' features": {"scale": [1.0, 50.0], "shift": [0.0, -3.0]},
    "others' rewards": {"pay": [1.0, 100.0]},
}
NORMALIZERS = ("normalize_observations", "normalize_values", "scale_rewards")
ALL = dict.fromkeys(NORMALIZERS, True)


@functools.cache
def normalizing(**options):
    return make(Units(), **options)


@functools.cache
def trained_in(units, **options):
    agent = normalizing(**options)
    runner = in_units(agent, begin(agent), **UNITS[units])
    for _ in range(3):
        runner, _ = agent.step(runner)
    return runner


def positions(runner):
    """Tell where all actors have got to by what they did."""
    return np.asarray(runner.env_state.env_state["position"])


@pytest.mark.parametrize(
    ("option", "units"),
    [
        ("normalize_observations", "other features"),
        ("normalize_values", "other rewards"),
        ("scale_rewards", "other rewards"),
    ],
)
def test_what_is_normalised_may_come_in_any_unit(option, units):
    options = {option: True}
    runner, other = trained_in("the same", **options), trained_in(units, **options)
    np.testing.assert_array_equal(positions(runner), positions(other))
    assert_trees_close(other.actor.params, runner.actor.params, atol=1e-4)
    assert_trees_close(other.critic.params, runner.critic.params, atol=1e-4)
    untrained = begin(normalizing(**options))
    assert largest_change(untrained.actor.params, runner.actor.params) > 1e-2


@pytest.mark.parametrize("units", ["other features", "other rewards"])
def test_what_is_not_normalised_may_not(units):
    runner, other = trained_in("the same"), trained_in(units)
    assert largest_change(other.actor.params, runner.actor.params) > 1e-3
    assert largest_change(other.critic.params, runner.critic.params) > 1e-3


@pytest.mark.parametrize("option", NORMALIZERS)
def test_every_normalizer_changes_training(option):
    runner, other = trained_in("the same"), trained_in("the same", **{option: True})
    assert largest_change(other.critic.params, runner.critic.params) > 1e-3


def test_policies_act_on_normalised_observations():
    """One runner sees x where the other sees 7 x - 3: both act, and value, alike."""
    options = {"normalize_observations": True}
    agent, runner = normalizing(**options), trained_in("the same", **options)
    other = trained_in("other features", **options)
    values = []
    for seed in range(20):
        features = jax.random.normal(jax.random.key(seed), (2, 2))
        in_its_units = 7 * features - 3
        np.testing.assert_array_equal(
            agent.policy(runner, features, rng=jax.random.key(1)),
            agent.policy(other, in_its_units, rng=jax.random.key(1)),
        )
        values.append(agent.value(runner, features))
        np.testing.assert_allclose(values[-1], agent.value(other, in_its_units), atol=1e-3)
    assert np.std(values) > 1e-2


def test_values_are_estimated_in_units_of_reward():
    options = {"normalize_values": True}
    features = jax.random.normal(jax.random.key(0), (2, 2))
    value, hundredfold = (
        normalizing(**options).value(trained_in(units, **options), features)
        for units in ("the same", "other rewards")
    )
    assert np.all(np.abs(value) > 1e-2)
    np.testing.assert_allclose(hundredfold, 100 * value, rtol=1e-2)


def test_before_the_first_update_normalised_values_are_zero():
    agent = normalizing(normalize_values=True)
    np.testing.assert_array_equal(agent.value(begin(agent), jnp.ones((2, 2))), [0.0, 0.0])


@pytest.mark.parametrize("units", ["others' features", "others' rewards"])
def test_each_policy_is_normalised_by_what_it_alone_sees_and_earns(units):
    """The units of the second actor leave the first one alone, unless they share a policy."""
    alone = {**ALL, "parameter_sharing": "independent"}
    runner, other = trained_in("the same", **alone), trained_in(units, **alone)
    first, others_first = (
        of_policy((each.actor.params, each.critic.params, each.normalizers), 0)
        for each in (runner, other)
    )
    assert_trees_close(others_first, first, atol=1e-6)
    second, others_second = (of_policy(each.normalizers, 1) for each in (runner, other))
    assert largest_change(others_second, second) > 1.0


@pytest.mark.parametrize("units", ["others' features", "others' rewards"])
def test_actors_that_share_a_policy_share_its_statistics(units):
    runner, other = trained_in("the same", **ALL), trained_in(units, **ALL)
    assert largest_change(other.actor.params, runner.actor.params) > 1e-3


class Clock(Walk):
    """Walk in which actors see the time."""

    def _observe(self, state):
        return jnp.full((self.n_actors, 1), state["time"], jnp.float32)


def test_the_statistics_are_those_of_all_that_a_policys_own_actors_see():
    """Of the six steps five see the times 0 to 4, and the last one a new episode's 0.

    In each of four environments there are two actors of the first policy and one of the second.
    """
    agent = make(Clock((100, 100, 100)), parameter_sharing=(0, 1, 0), **ALL)
    runner, _ = agent.step(begin(agent))
    of_features, _, of_values, of_rewards = runner.normalizers
    seen = np.array([0.0, 1.0, 2.0, 3.0, 4.0, 0.0])
    np.testing.assert_allclose(of_features.mean, [[seen.mean()]] * 2, rtol=1e-6)
    np.testing.assert_allclose(of_features.variance, [[seen.var()]] * 2, rtol=1e-5)
    for statistics in (of_features, of_values, of_rewards.statistics):
        np.testing.assert_array_equal(statistics.weight, [48.0, 24.0])
    # Of earlier targets 99 % remain, of all else everything.
    runner, _ = agent.step(runner)
    of_features, _, of_values, of_rewards = runner.normalizers
    np.testing.assert_allclose(of_values.weight, [48.0 * 1.99, 24.0 * 1.99], rtol=1e-6)
    for statistics in (of_features, of_rewards.statistics):
        np.testing.assert_array_equal(statistics.weight, [96.0, 48.0])


def test_what_the_dead_see_does_not_enter_the_statistics():
    """The first actor lives for three of the six steps."""
    agent = make(Units(deaths=(3, 100)), **ALL)
    runner, other = (
        agent.step(in_units(agent, begin(agent), seen_by_the_dead=number))[0]
        for number in (0.0, 1e6)
    )
    np.testing.assert_array_equal(runner.normalizers.observation.weight, [4 * (3 + 6)])
    np.testing.assert_array_equal(runner.normalizers.value.weight, [4 * (3 + 6)])
    assert np.max(other.observation.features) == 1e6
    assert_trees_equal(other.normalizers, runner.normalizers)
    assert_trees_equal(other.actor.params, runner.actor.params)
    assert_trees_equal(other.critic.params, runner.critic.params)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A run with all that adapts itself, evaluated and saved after every update."""
    agent = make(
        checkpoint_dir=tmp_path_factory.mktemp("run"),
        n_evals=3,
        eval_frequency=1,
        parameter_sharing="independent",
        centralized_critic=True,
        learning_rate_schedule="kl",
        **ALL,
    )
    # Updates move policies farther than that: their rates, at the upper bound, can but fall.
    runner, _ = agent.train(jax.random.key(0), FAST.replace(kl_target=1e-5))
    return agent, runner


def test_evaluation_does_not_touch_the_statistics(recorded):
    agent, evaluated = recorded
    runner = agent.init(jax.random.key(0), evaluated.hyperparams)
    for _ in range(agent.config.n_steps):
        runner, _ = agent.step(runner)
    assert_trees_close(evaluated.normalizers, runner.normalizers, rtol=1e-4, atol=1e-5)
    assert_trees_close(evaluated.actor.params, runner.actor.params, atol=1e-5)


def test_statistics_and_adapted_rates_survive_in_checkpoints_bit_for_bit(recorded):
    agent, runner = recorded
    restored, _ = agent.restore(mode="last")
    assert len(jax.tree.leaves(restored.normalizers)) == 3 + 3 + 3 + 4
    assert_trees_equal(restored.normalizers, runner.normalizers)
    assert_trees_equal(restored.learning_rate, runner.learning_rate)
    assert largest_change(restored.learning_rate, jnp.full(2, 1e-2)) > 1e-3
    assert_trees_equal(restored.actor, runner.actor)


# Centralised critics.


class Told(RealWalk):
    """RealWalk whose observations come with a state of five numbers."""

    def _observe(self, state):
        features = super()._observe(state)
        time = jnp.full(1, state["time"], jnp.float32)
        return ja.Observation(features, global_state=jnp.concatenate([features.ravel(), time]))


class Overheard(Environment):
    """One step: each of two actors sees a sign, and earns the one that the other sees."""

    n_actors = 2

    def action_space(self, params):
        return ja.Discrete(2)

    def reset_env(self, rng, params):
        signs = jax.random.rademacher(rng, (2,)).astype(jnp.float32)
        return signs[:, None], signs

    def step_env(self, rng, state, action, params):
        over = jnp.ones(2, bool)
        return state[:, None], state, state[::-1], over, ~over, {}


@functools.cache
def real_walking(env_class=RealWalk, **options):
    """Make an agent whose greedy actions are real numbers, and its untrained runner."""
    agent = make(env_class(), ja.ContinuousIPPO, squash=True, **options)
    return agent, begin(agent)


FEATURES = jnp.array([[0.5, -0.5], [1.0, 2.0]])
OTHERS_DIFFER = FEATURES.at[1].set(-3.0)


@pytest.mark.parametrize("centralized", [True, False])
def test_only_a_centralised_critic_looks_at_what_other_actors_see(centralized):
    agent, runner = real_walking(centralized_critic=centralized)
    value, other_value = (agent.value(runner, each) for each in (FEATURES, OTHERS_DIFFER))
    assert (abs(value[0] - other_value[0]) > 1e-3) == centralized
    assert abs(value[1] - other_value[1]) > 1e-3


def test_policies_beside_a_centralised_critic_see_their_own_observations_only():
    agent, runner = real_walking(centralized_critic=True)
    action, other_action = (agent.policy(runner, each) for each in (FEATURES, OTHERS_DIFFER))
    np.testing.assert_array_equal(action[0], other_action[0])
    assert abs(action[1] - other_action[1]) > 1e-4


def test_a_centralised_critic_knows_whose_value_it_gives():
    agent, runner = real_walking(centralized_critic=True)
    value = agent.value(runner, jnp.ones((2, 2)))
    assert abs(value[0] - value[1]) > 1e-3
    agent, runner = real_walking()
    value = agent.value(runner, jnp.ones((2, 2)))
    np.testing.assert_allclose(value[0], value[1], rtol=1e-6)


def test_the_environments_own_global_state_is_what_a_centralised_critic_sees():
    agent, runner = real_walking(Told, centralized_critic=True)
    assert agent.critic_network.observation.shape == (5 + 2,)
    assert agent.actor_network.observation.shape == (2,)
    state = jnp.arange(5.0)
    told = ja.Observation(FEATURES, global_state=state)
    seeing_else = ja.Observation(OTHERS_DIFFER - 1.0, global_state=state)
    told_else = ja.Observation(FEATURES, global_state=-state)
    value = agent.value(runner, told)
    np.testing.assert_array_equal(agent.value(runner, seeing_else), value)
    assert np.all(np.abs(agent.value(runner, told_else) - value) > 1e-3)
    np.testing.assert_array_equal(agent.policy(runner, told_else), agent.policy(runner, told))


def test_a_critic_of_the_environments_own_state_says_so_where_it_is_missing():
    agent, runner = real_walking(Told, centralized_critic=True)
    told = ja.Observation(FEATURES, global_state=jnp.arange(5.0))
    np.testing.assert_array_equal(agent.policy(runner, FEATURES), agent.policy(runner, told))
    with pytest.raises(ValueError, match="need the Observation that the environment returned"):
        agent.value(runner, FEATURES)


def test_a_global_state_is_not_looked_at_without_a_centralised_critic():
    agent, runner = real_walking(Told)
    told, told_else = (
        ja.Observation(FEATURES, global_state=sign * jnp.arange(5.0)) for sign in (1, -1)
    )
    np.testing.assert_array_equal(agent.value(runner, told), agent.value(runner, told_else))


@pytest.mark.parametrize("centralized", [True, False])
def test_only_a_centralised_critic_foretells_rewards_that_others_see(centralized):
    agent = make(Overheard(), centralized_critic=centralized)
    runner = begin(agent)
    for _ in range(60):
        runner, metrics = agent.step(runner)
    assert (metrics["explained_variance"] > 0.9) == centralized
    foretold = agent.value(runner, jnp.array([[1.0], [-1.0]]))
    if centralized:
        np.testing.assert_allclose(foretold, [-1.0, 1.0], atol=0.2)


@pytest.mark.parametrize(
    ("options", "n_features"),
    [
        (ALL | {"agent_id": True}, 2 + 2),
        ({"parameter_sharing": "independent"}, 2),
    ],
    ids=str,
)
def test_training_with_a_centralised_critic_stays_finite(options, n_features):
    """Critics see what two actors do, and the index: not the indices that each observation has."""
    agent = make(centralized_critic=True, **options)
    assert agent.actor_network.observation.shape == (n_features,)
    assert agent.critic_network.observation.shape == (2 * 2 + 2,)
    runner = begin(agent)
    for _ in range(2):
        before = runner
        runner, metrics = agent.step(runner)
        assert largest_change(before.critic.params, runner.critic.params) > 1e-3
    assert all_finite((runner.actor, runner.critic, runner.normalizers, metrics))


# Losses of critics.


def test_huber_is_the_squared_error_of_errors_below_its_delta_and_another_beyond():
    squared, _ = walking().step(begin(walking()))
    huber = walking(critic_error="huber")
    begun = begin(huber)
    for delta in (1e6, np.inf):
        same, _ = huber.step(with_hyperparams(begun, huber_delta=delta))
        assert_trees_close(same.critic.params, squared.critic.params, atol=1e-6)
        assert_trees_close(same.actor.params, squared.actor.params, atol=1e-6)
    other, metrics = huber.step(with_hyperparams(begun, huber_delta=1e-3))
    assert largest_change(other.critic.params, squared.critic.params) > 1e-3
    assert_trees_close(other.actor.params, squared.actor.params, atol=1e-6)
    # Errors of about 1 cost at most 2 · 1e-3 each.
    assert 0 < metrics["critic_loss"] < 0.5 * 2e-3 * 5


def test_clipped_values_move_less_and_only_where_the_clip_is_narrow():
    plain, _ = walking().step(begin(walking()))
    clipping = walking(clip_values=True)
    begun = begin(clipping)
    wide, _ = clipping.step(with_hyperparams(begun, eps_clip=1e6))
    narrow, _ = clipping.step(with_hyperparams(begun, eps_clip=1e-3))
    assert_trees_close(wide.critic.params, plain.critic.params, atol=1e-6)
    before, plainly, narrowly = (
        clipping.value(runner, FEATURES) for runner in (begun, plain, narrow)
    )
    assert np.all(np.abs(narrowly - before) < 0.7 * np.abs(plainly - before))


def test_without_clipped_values_eps_clip_is_the_actors_alone():
    agent = walking()
    begun = begin(agent)
    wide, narrow = (
        agent.step(with_hyperparams(begun, eps_clip=eps_clip))[0] for eps_clip in (1e6, 1e-3)
    )
    assert_trees_equal(wide.critic.params, narrow.critic.params)
    assert largest_change(wide.actor.params, narrow.actor.params) > 1e-4


# Schedules: of four updates.

SCHEDULES = {
    "ent_coeff_schedule": "linear",
    "eps_clip_schedule": "cosine",
    "learning_rate_schedule": "cosine",
}
FROM = {
    "ent_coeff": 0.5,
    "eps_clip": 0.1,
    "actor_optimizer_params": rate(1e-2),
    "critic_optimizer_params": rate(1e-2),
}
HALFWAY = {
    "ent_coeff": 0.25,
    "eps_clip": 0.05,
    "actor_optimizer_params": rate(0.5e-2),
    "critic_optimizer_params": rate(0.5e-2),
}


def networks_at(n_updates_done, hyperparams, **options):
    """Do one update of four, as if some had been done."""
    agent = walking(**options)
    begun = begin(agent, **hyperparams).replace(n_updates_done=jnp.int32(n_updates_done))
    runner, _ = agent.step(begun)
    return runner.actor.params, runner.critic.params


def test_schedules_do_nothing_at_first():
    expected = networks_at(0, FROM)
    assert_trees_close(networks_at(0, FROM, **SCHEDULES), expected, atol=1e-6)


def test_schedules_halve_what_they_name_halfway():
    actual = networks_at(2, FROM, **SCHEDULES)
    assert_trees_close(actual, networks_at(2, HALFWAY), atol=1e-6)
    for name in FROM:
        but_one = networks_at(2, HALFWAY | {name: FROM[name]})
        assert largest_change(but_one, actual) > 1e-4, name


def adapting():
    return walking(learning_rate_schedule="kl")


def test_the_actors_rate_follows_the_kl_up_and_down_by_one_and_a_half():
    agent = adapting()
    begun = begin(agent)
    np.testing.assert_array_equal(begun.learning_rate, np.float32([1e-2]))
    # From 1e-2 there is no way up.
    begun = begun.replace(learning_rate=jnp.array([2e-3]))
    kl = agent.step(begun)[1]["kl"]
    assert kl > 0
    for share, learning_rate in ((0.4, 2e-3 / 1.5), (0.6, 2e-3), (1.9, 2e-3), (2.1, 3e-3)):
        runner, _ = agent.step(with_hyperparams(begun, kl_target=share * kl[0]))
        np.testing.assert_allclose(runner.learning_rate, [learning_rate], rtol=1e-5)


def test_the_rate_that_has_adapted_itself_is_the_actors_and_the_critics_stays():
    agent, constant = adapting(), walking()
    for learning_rate in (1e-2, 1e-3):
        begun = begin(agent).replace(learning_rate=jnp.array([learning_rate]))
        adapted, _ = agent.step(begun)
        expected, _ = constant.step(begin(constant, actor_optimizer_params=rate(learning_rate)))
        assert_trees_close(adapted.actor.params, expected.actor.params, atol=1e-6)
        assert_trees_close(adapted.critic.params, expected.critic.params, atol=1e-6)


def test_without_adaptation_there_is_no_rate_to_keep():
    assert begin(walking()).learning_rate is None


# What networks compute in, and random numbers.


@pytest.mark.parametrize("options", [{}, {"recurrent": "gru"}, {"shared_torso": True}], ids=str)
def test_networks_of_bfloat16_are_trained_on_float32_parameters(options):
    agent, exact = (make(compute_dtype=dtype, **options) for dtype in ("bfloat16", None))
    before = begin(agent)
    assert_trees_equal(begin(exact).actor, before.actor)
    (runner, metrics), (other, _) = agent.step(before), exact.step(begin(exact))
    learnt = jax.tree.leaves((runner.actor, runner.critic, runner.memory))
    assert {leaf.dtype.name for leaf in learnt} <= {"float32", "int32"}
    assert all_finite((runner.actor.params, runner.critic.params, metrics))
    assert largest_change(runner.actor.params, before.actor.params) > 1e-4
    assert largest_change(runner.actor.params, other.actor.params) > 0


def test_a_run_with_random_numbers_of_another_generator_is_resumed_bit_for_bit(tmp_path):
    options = {"prng_impl": "rbg", "keep_latest": 9}
    whole, metrics = make(checkpoint_dir=tmp_path, **options).train(jax.random.key(0), FAST)
    assert str(jax.random.key_impl(whole.rng)) == "rbg"
    threefry, _ = walking().train(jax.random.key(0), FAST)
    assert largest_change(whole.actor.params, threefry.actor.params) > 1e-4
    later = [path for path in tmp_path.iterdir() if path.name.isdigit() and int(path.name) > 2]
    assert later
    for path in later:  # as if the training had ended before
        shutil.rmtree(path)
    resumed, history = make(checkpoint_dir=tmp_path, **options).resume()
    assert_trees_equal(strip_keys(resumed), strip_keys(whole))
    assert_trees_equal(history, metrics)
    with pytest.raises(ValueError, match="its prng_impl is rbg, and this agent's is None"):
        make(checkpoint_dir=tmp_path).resume()


def test_a_runner_goes_on_with_the_generator_of_the_agent_that_trains_it():
    runner, _ = make(prng_impl="rbg").train(None, FAST, begin(walking()))
    assert str(jax.random.key_impl(runner.rng)) == "rbg"


def test_keys_that_no_checkpoint_would_be_read_with_are_refused_at_once(tmp_path):
    rng, runner = jax.random.key(0, impl="rbg"), begin(walking())
    for arguments in ((rng, FAST), (None, FAST, runner.replace(rng=rng))):
        with pytest.raises(ValueError, match=r"'rbg'.*'threefry2x32'.*prng_impl") as error:
            make(checkpoint_dir=tmp_path).train(*arguments)
        assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())
    runner, _ = make().train(rng, FAST)
    assert str(jax.random.key_impl(runner.rng)) == "rbg"


def test_members_of_a_vmap_do_not_share_the_numbers_of_one():
    agent, rngs = make(prng_impl="rbg"), jax.random.split(jax.random.key(0), 2)
    with pytest.raises(ValueError, match="use an agent with prng_impl=None") as error:
        jax.vmap(agent.train, in_axes=(0, None))(rngs, FAST)
    assert "\n" not in str(error.value)
