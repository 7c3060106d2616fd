"""What an agent's options change in training, and what they leave alone."""

import functools
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

import jaxagents as ja
from jaxagents import Environment
from jaxagents.hyperparameters import per_policy
from tests.agents import (
    FAST,
    WALK,
    all_finite,
    assert_trees_close,
    assert_trees_equal,
    begin,
    collect,
    largest_change,
    of_policy,
    opinionated_runner,
    rate,
    shared_agent,
    tiny,
    with_hyperparams,
)
from tests.probes import Coordination, RealWalk, Team, Walk


def make(env=WALK, agent_class=ja.DiscreteIPPO, **options):
    return shared_agent(env, agent_class, n_steps=4, **options)


def walking(**options):
    return make(actor_epochs=2, **options)


def walked(agent, **hyperparams):
    """Do one update from the start that all `walking` agents share."""
    return agent.step(with_hyperparams(begin(walking()), **hyperparams))


# V-trace.


def by_gae_and_vtrace():
    """Return agents of at most two actor epochs, which a tiny kl_threshold reduces to one."""
    return tuple(walking(advantages=name) for name in ("gae", "vtrace"))


@pytest.mark.parametrize(
    ("kl_threshold", "n_epochs"), [pytest.param(1e-9, 1, marks=pytest.mark.slow), (np.inf, 2)]
)
def test_vtrace_corrects_the_actor_from_its_second_epoch_on_and_the_critic_once_the_actor_has_moved(
    kl_threshold, n_epochs
):
    gae, vtrace = (walked(agent, kl_threshold=kl_threshold) for agent in by_gae_and_vtrace())
    assert vtrace[1]["actor_epochs"] == n_epochs
    actors_differ = largest_change(vtrace[0].actor.params, gae[0].actor.params)
    assert actors_differ > 1e-4 if n_epochs == 2 else actors_differ < 1e-5
    assert largest_change(vtrace[0].critic.params, gae[0].critic.params) > 1e-5
    assert vtrace[1]["explained_variance"] != gae[1]["explained_variance"]


STILL = {"actor_optimizer_params": rate(0.0)}


@pytest.mark.slow
def test_vtrace_of_an_actor_that_does_not_move_is_gae():
    (gae, _), (vtrace, _) = (walked(agent, **STILL) for agent in by_gae_and_vtrace())
    assert_trees_close(vtrace.critic.params, gae.critic.params, atol=1e-5)


@pytest.mark.parametrize("name", ["rho_clip", "c_clip"])
def test_each_clip_of_vtrace_changes_training(name):
    """If the actor does not move, all ratios are 1 and a clip of 1/2 halves them."""
    by_gae, by_vtrace = (
        [walked(agent, **STILL, **{name: clip})[0].critic.params for clip in (1.0, 0.5)]
        for agent in by_gae_and_vtrace()
    )
    assert largest_change(*by_vtrace) > 1e-4
    assert_trees_equal(*by_gae)


@pytest.mark.slow
def test_vtrace_follows_whole_trajectories_where_networks_learn_from_chunks():
    """Cut at every third step, trajectories of six go on: before the actor moves it all is GAE."""
    agent = make(advantages="vtrace", recurrent="mingru", recurrent_chunk_length=3)
    runner, _, by_gae = collect(agent, opinionated_runner(agent), jax.random.key(1))
    hyperparams = per_policy(runner.hyperparams, 1)
    by_vtrace = jax.jit(jax.vmap(agent._with_current_estimates))(runner.actor, by_gae, hyperparams)
    assert by_vtrace.advantage.shape == (1, 3, 2 * 4, 2)
    assert np.std(by_vtrace.value_target) > 0.1
    assert_trees_close(by_vtrace, by_gae, atol=1e-5)


@pytest.mark.slow
def test_vtrace_stays_finite_where_rewards_go_on_after_death():
    agent = make(Team((3, 100)), advantages="vtrace")
    runner = begin(agent)
    for _ in range(2):
        runner, metrics = agent.step(runner)
    assert all_finite((runner.actor, runner.critic, metrics))


# Normalised observations, values and rewards.


class Units(Walk):
    """Walk whose observations and rewards are in units of each actor's own, kept in the state.

    The second actor is truncated at its 14th step.
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
        if "scale" not in state:  # in Walk's own reset and step
            return jnp.zeros((self.n_actors, 2))
        features = super()._observe(state) * state["scale"][:, None] + state["shift"][:, None]
        alive = state["time"] < self._deaths
        return jnp.where(alive[:, None], features, state["seen_by_the_dead"])


def in_units(agent, runner, **units):
    """Change the units of all environments, without compiling anew."""
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
NORMALIZED = {"normalize_observations": True, "normalize_values": True}


UNITS_ENV, MORTAL_UNITS_ENV = Units(), Units(deaths=(3, 100))


def normalizing(env=UNITS_ENV, **options):
    return make(env, **options)


@functools.cache
def trained_in(units, env=UNITS_ENV, **options):
    agent = normalizing(env, **options)
    runner = in_units(agent, begin(agent), **UNITS[units])
    for _ in range(3):
        runner, _ = agent.step(runner)
    return runner


def positions(runner):
    """Return the positions to which all actors have walked."""
    return np.asarray(runner.env_state.env_state["position"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "units"),
    [
        ("normalize_observations", "other features"),
        ("normalize_values", "other rewards"),
        ("scale_rewards", "other rewards"),
    ],
)
def test_training_does_not_depend_on_the_unit_of_what_is_normalised(option, units):
    options = {option: True}
    runner, other = trained_in("the same", **options), trained_in(units, **options)
    np.testing.assert_array_equal(positions(runner), positions(other))
    assert_trees_close(other.actor.params, runner.actor.params, atol=1e-4)
    assert_trees_close(other.critic.params, runner.critic.params, atol=1e-4)
    untrained = begin(normalizing(**options))
    assert largest_change(untrained.actor.params, runner.actor.params) > 1e-2


@pytest.mark.slow
@pytest.mark.parametrize("units", ["other features", "other rewards"])
def test_training_depends_on_the_unit_of_what_is_not_normalised(units):
    runner, other = trained_in("the same"), trained_in(units)
    assert largest_change(other.actor.params, runner.actor.params) > 1e-3
    assert largest_change(other.critic.params, runner.critic.params) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("option", NORMALIZERS)
def test_every_normalizer_changes_training(option):
    runner, other = trained_in("the same"), trained_in("the same", **{option: True})
    assert largest_change(other.critic.params, runner.critic.params) > 1e-3


def test_policies_act_on_normalised_observations():
    """Where one runner observes x and the other 7 x - 3, actions and values are the same."""
    options = NORMALIZED
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
    options = NORMALIZED
    features = jax.random.normal(jax.random.key(0), (2, 2))
    value, hundredfold = (
        normalizing(**options).value(trained_in(units, **options), features)
        for units in ("the same", "other rewards")
    )
    assert np.all(np.abs(value) > 1e-2)
    np.testing.assert_allclose(hundredfold, 100 * value, rtol=1e-2)


def test_before_the_first_update_normalised_values_are_zero():
    agent = normalizing(**NORMALIZED)
    np.testing.assert_array_equal(agent.value(begin(agent), jnp.ones((2, 2))), [0.0, 0.0])


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"recurrent": "gru"}, {"shared_torso": True}], ids=str)
def test_values_do_not_move_with_their_statistics(options):
    """Without learning, values stay what they are from the first statistics on."""
    frozen = ja.OptimizerParams(learning_rate=0.0)
    agent = normalizing(normalize_values=True, **options)
    runner = begin(agent, actor_optimizer_params=frozen, critic_optimizer_params=frozen)
    runner, _ = agent.step(runner)
    features = jax.random.normal(jax.random.key(0), (2, 2))
    carry = agent.initial_carry() if "recurrent" in options else None
    before, statistics = agent.value(runner, features, carry), runner.normalizers.value
    for _ in range(3):
        runner, _ = agent.step(runner)
    np.testing.assert_allclose(agent.value(runner, features, carry), before, rtol=1e-4, atol=1e-5)
    moved = largest_change(
        runner.normalizers.value._replace(weight=0.0), statistics._replace(weight=0.0)
    )
    assert moved > 1e-2


class Linear(nn.Module):
    """A critic of the user's own, whose last layer the agent does not know."""

    @nn.compact
    def __call__(self, features):
        return nn.Dense(1)(features)[..., 0]


@pytest.mark.slow
@pytest.mark.parametrize("critic", [None, Linear()], ids=["default", "own"])
def test_values_are_clipped_around_the_critics_outputs(critic):
    """The statistics move between rollout and update; default critics are rescaled with them."""
    agent = normalizing(normalize_values=True, clip_values=True, critic_network=critic)
    runner, _ = agent.step(begin(agent))

    @jax.jit
    def outputs(runner):
        runner, _, batch = collect(agent, runner, jax.random.key(1))
        hyperparams = per_policy(runner.hyperparams, agent.policies.n_policies)
        before = batch.value
        runner, batch, _ = agent.make_targets(runner, batch, hyperparams)
        values = jax.vmap(agent.networks.batch_value)(runner.critic.params, batch)
        return before, batch.value, values

    before, centre, values = outputs(runner)
    np.testing.assert_allclose(centre, values, rtol=1e-4, atol=1e-5)
    assert (np.abs(centre - before).max() > 1e-3) == (critic is None)


class Generous(Coordination):
    """Coordination, with 100 more for all."""

    def step_env(self, rng, state, action, params):
        observation, state, reward, *rest = super().step_env(rng, state, action, params)
        return observation, state, reward + 100.0, *rest


@pytest.mark.slow
def test_a_constant_added_to_the_rewards_of_one_step_episodes_changes_no_policy():
    actors = []
    for env in (Coordination(), Generous()):
        agent = make(env, normalize_values=True, normalize_observations=True)
        runner = begin(agent)
        for _ in range(3):
            runner, _ = agent.step(runner)
        actors.append(runner.actor.params)
    assert_trees_close(*actors, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("units", ["others' features", "others' rewards"])
def test_each_policy_is_normalised_by_its_own_observations_and_rewards(units):
    """The units of the second actor do not affect the first one, unless they share a policy."""
    alone = {**ALL, "parameter_sharing": "independent"}
    runner, other = trained_in("the same", **alone), trained_in(units, **alone)
    first, others_first = (
        of_policy((each.actor.params, each.critic.params, each.normalizers), 0)
        for each in (runner, other)
    )
    assert_trees_close(others_first, first, atol=1e-6)
    second, others_second = (of_policy(each.normalizers, 1) for each in (runner, other))
    assert largest_change(others_second, second) > 1.0


@pytest.mark.slow
@pytest.mark.parametrize("units", ["others' features", "others' rewards"])
def test_actors_that_share_a_policy_share_its_statistics(units):
    runner, other = (trained_in(each, MORTAL_UNITS_ENV, **ALL) for each in ("the same", units))
    assert largest_change(other.actor.params, runner.actor.params) > 1e-3


class Clock(Walk):
    """Walk in which actors observe the time."""

    def _observe(self, state):
        return jnp.full((self.n_actors, 1), state["time"], jnp.float32)


@pytest.mark.slow
def test_statistics_are_over_all_samples_of_a_policys_own_actors():
    """In six steps actors observe the times 0 to 4, and 0 in a new episode.

    Each of four environments has two actors of the first policy and one of the second.
    """
    agent = make(Clock((100, 100, 100)), parameter_sharing=(0, 1, 0), **ALL)
    runner, _ = agent.step(begin(agent))
    of_features, _, of_values, of_rewards = runner.normalizers
    seen = np.array([0.0, 1.0, 2.0, 3.0, 4.0, 0.0])
    np.testing.assert_allclose(of_features.mean, [[seen.mean()]] * 2, rtol=1e-6)
    np.testing.assert_allclose(of_features.variance, [[seen.var()]] * 2, rtol=1e-5)
    for statistics in (of_features, of_values, of_rewards.statistics):
        np.testing.assert_array_equal(statistics.weight, [48.0, 24.0])
    # Of the weight of earlier value targets 99 % remain, of all else everything.
    runner, _ = agent.step(runner)
    of_features, _, of_values, of_rewards = runner.normalizers
    np.testing.assert_allclose(of_values.weight, [48.0 * 1.99, 24.0 * 1.99], rtol=1e-6)
    for statistics in (of_features, of_rewards.statistics):
        np.testing.assert_array_equal(statistics.weight, [96.0, 48.0])


@pytest.mark.slow
def test_observations_of_dead_actors_do_not_enter_the_statistics():
    """The first actor lives for three of the six steps."""
    agent = normalizing(MORTAL_UNITS_ENV, **ALL)
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
    """A run with everything adaptive and a centralised critic, saved after every update."""
    config = tiny(
        checkpoint_dir=tmp_path_factory.mktemp("run"),
        n_evals=3,
        eval_frequency=1,
        parameter_sharing="independent",
        agent_id=True,
        centralized_critic=True,
        learning_rate_schedule="kl",
        n_steps=4,
        **ALL,
    )
    agent = ja.DiscreteIPPO(WALK, None, config)
    # Updates exceed such a KL target: the learning rates, at their upper bound, can only fall.
    runner, _ = agent.train(jax.random.key(0), FAST.replace(kl_target=1e-5))
    return agent, runner


@pytest.mark.slow
def test_evaluation_does_not_affect_the_statistics(recorded):
    agent, evaluated = recorded
    runner = agent.init(jax.random.key(0), evaluated.hyperparams)
    np.testing.assert_array_equal(runner.learning_rate, np.float32([1e-2, 1e-2]))
    for _ in range(agent.config.n_steps):
        runner, _ = agent.step(runner)
    assert_trees_close(evaluated.normalizers, runner.normalizers, rtol=1e-4, atol=1e-5)
    assert_trees_close(evaluated.actor.params, runner.actor.params, atol=1e-5)


@pytest.mark.slow
def test_statistics_and_adapted_rates_are_restored_from_checkpoints_bit_for_bit(recorded):
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
    """One step: each of two actors observes a sign, and its reward is the other's sign."""

    n_actors = 2

    def action_space(self, params):
        return ja.Discrete(2)

    def reset_env(self, rng, params):
        signs = jax.random.rademacher(rng, (2,)).astype(jnp.float32)
        return signs[:, None], signs

    def step_env(self, rng, state, action, params):
        over = jnp.ones(2, bool)
        return state[:, None], state, state[::-1], over, ~over, {}


REAL_WALK, TOLD = RealWalk(), Told()


def real_walking(env=REAL_WALK, **options):
    """Return an agent whose greedy actions are real numbers, and its untrained runner."""
    agent = make(env, ja.ContinuousIPPO, squash=True, **options)
    return agent, begin(agent)


FEATURES = jnp.array([[0.5, -0.5], [1.0, 2.0]])
OTHERS_DIFFER = FEATURES.at[1].set(-3.0)


@pytest.mark.parametrize("centralized", [True, False])
def test_only_a_centralised_critic_uses_the_observations_of_other_actors(centralized):
    agent, runner = real_walking(centralized_critic=centralized)
    value, other_value = (agent.value(runner, each) for each in (FEATURES, OTHERS_DIFFER))
    assert (abs(value[0] - other_value[0]) > 1e-3) == centralized
    assert abs(value[1] - other_value[1]) > 1e-3


def test_policies_with_a_centralised_critic_use_only_their_own_observations():
    agent, runner = real_walking(centralized_critic=True)
    action, other_action = (agent.policy(runner, each) for each in (FEATURES, OTHERS_DIFFER))
    np.testing.assert_array_equal(action[0], other_action[0])
    assert abs(action[1] - other_action[1]) > 1e-4


def test_a_centralised_critic_distinguishes_the_actors():
    agent, runner = real_walking(centralized_critic=True)
    value = agent.value(runner, jnp.ones((2, 2)))
    assert abs(value[0] - value[1]) > 1e-3
    agent, runner = real_walking()
    value = agent.value(runner, jnp.ones((2, 2)))
    np.testing.assert_allclose(value[0], value[1], rtol=1e-6)


def test_a_centralised_critic_observes_the_environments_global_state_if_there_is_one():
    agent, runner = real_walking(TOLD, centralized_critic=True)
    assert agent.networks.critic.observation.shape == (5 + 2,)
    assert agent.networks.actor.observation.shape == (2,)
    state = jnp.arange(5.0)
    told = ja.Observation(FEATURES, global_state=state)
    seeing_else = ja.Observation(OTHERS_DIFFER - 1.0, global_state=state)
    told_else = ja.Observation(FEATURES, global_state=-state)
    value = agent.value(runner, told)
    np.testing.assert_array_equal(agent.value(runner, seeing_else), value)
    assert np.all(np.abs(agent.value(runner, told_else) - value) > 1e-3)
    np.testing.assert_array_equal(agent.policy(runner, told_else), agent.policy(runner, told))


def test_a_value_without_the_global_state_that_it_needs_is_an_error():
    agent, runner = real_walking(TOLD, centralized_critic=True)
    told = ja.Observation(FEATURES, global_state=jnp.arange(5.0))
    np.testing.assert_array_equal(agent.policy(runner, FEATURES), agent.policy(runner, told))
    with pytest.raises(ValueError, match="need the Observation that the environment returned"):
        agent.value(runner, FEATURES)


def test_a_global_state_is_unused_without_a_centralised_critic():
    agent, runner = real_walking(TOLD)
    told, told_else = (
        ja.Observation(FEATURES, global_state=sign * jnp.arange(5.0)) for sign in (1, -1)
    )
    np.testing.assert_array_equal(agent.value(runner, told), agent.value(runner, told_else))


@pytest.mark.slow
@pytest.mark.parametrize("centralized", [True, False])
def test_only_a_centralised_critic_predicts_rewards_that_others_observe(centralized):
    agent = make(Overheard(), centralized_critic=centralized)
    runner = begin(agent)
    for _ in range(60):
        runner, metrics = agent.step(runner)
    assert (metrics["explained_variance"] > 0.9) == centralized
    predicted = agent.value(runner, jnp.array([[1.0], [-1.0]]))
    if centralized:
        np.testing.assert_allclose(predicted, [-1.0, 1.0], atol=0.2)


@pytest.mark.slow
def test_training_with_a_centralised_critic_and_all_normalisation_stays_finite(recorded):
    """The critic observes both actors, without agent_id's indices, and the actor's own index."""
    agent, runner = recorded
    assert agent.networks.actor.observation.shape == (2 + 2,)
    assert agent.networks.critic.observation.shape == (2 * 2 + 2,)
    for _ in range(2):
        before = runner
        runner, metrics = agent.step(runner)
        assert largest_change(before.critic.params, runner.critic.params) > 1e-3
    assert all_finite((runner.actor, runner.critic, runner.normalizers, metrics))


# Losses of critics.


def robust(**hyperparams):
    """Do one update of a critic that clips its values and has the Huber loss."""
    return walked(walking(critic_error="huber", clip_values=True), **hyperparams)


@pytest.mark.slow
def test_the_huber_loss_is_the_squared_error_below_its_delta_and_smaller_beyond():
    unclipped = {"eps_clip": 1e6}
    squared, _ = walked(walking(), **unclipped)
    for delta in (1e6, np.inf):
        same, _ = robust(huber_delta=delta, **unclipped)
        assert_trees_close(same.critic.params, squared.critic.params, atol=1e-6)
        assert_trees_close(same.actor.params, squared.actor.params, atol=1e-6)
    other, metrics = robust(huber_delta=1e-3, **unclipped)
    assert largest_change(other.critic.params, squared.critic.params) > 1e-3
    assert_trees_close(other.actor.params, squared.actor.params, atol=1e-6)
    # Errors of about 1 cost at most 2 · 1e-3 each.
    assert 0 < metrics["critic_loss"] < 0.5 * 2e-3 * 5


@pytest.mark.slow
def test_clipped_values_move_less_and_only_where_the_clip_is_narrow():
    plain, _ = walked(walking())
    wide, _ = robust(huber_delta=np.inf, eps_clip=1e6)
    narrow, _ = robust(huber_delta=np.inf, eps_clip=1e-3)
    assert_trees_close(wide.critic.params, plain.critic.params, atol=1e-6)
    before, plainly, narrowly = (
        walking().value(runner, FEATURES) for runner in (begin(walking()), plain, narrow)
    )
    assert np.all(np.abs(narrowly - before) < 0.7 * np.abs(plainly - before))


def test_without_clipped_values_eps_clip_affects_only_the_actor():
    wide, narrow = (walked(walking(), eps_clip=eps_clip)[0] for eps_clip in (1e6, 1e-3))
    assert_trees_equal(wide.critic.params, narrow.critic.params)
    assert largest_change(wide.actor.params, narrow.actor.params) > 1e-4


# Schedules over four updates.

SCHEDULES = {
    "ent_coeff_schedule": "linear",
    "eps_clip_schedule": "cosine",
    "anneal_learning_rate": True,
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
    """Do one update of four after some others."""
    begun = with_hyperparams(begin(walking()), **hyperparams)
    runner, _ = walking(**options).step(begun.replace(n_updates_done=jnp.int32(n_updates_done)))
    return runner.actor.params, runner.critic.params


@pytest.mark.slow
def test_schedules_change_nothing_at_first():
    expected = networks_at(0, FROM)
    assert_trees_close(networks_at(0, FROM, **SCHEDULES), expected, atol=1e-6)


@pytest.mark.slow
def test_schedules_halve_their_hyperparameters_halfway():
    actual = networks_at(2, FROM, **SCHEDULES)
    assert_trees_close(actual, networks_at(2, HALFWAY), atol=1e-6)
    for name in FROM:
        all_but_one = networks_at(2, HALFWAY | {name: FROM[name]})
        assert largest_change(all_but_one, actual) > 1e-4, name


def adapted(learning_rate, **hyperparams):
    """Do one update with an adaptive learning rate."""
    begun = begin(walking()).replace(learning_rate=jnp.array([learning_rate]))
    return walking(learning_rate_schedule="kl").step(with_hyperparams(begun, **hyperparams))


def test_the_actors_rate_follows_the_kl_up_and_down_by_one_and_a_half():
    # From 1e-2, the upper bound, it could only fall.
    kl = adapted(2e-3)[1]["kl"]
    assert kl > 0
    for share, learning_rate in ((0.4, 2e-3 / 1.5), (0.6, 2e-3), (1.9, 2e-3), (2.1, 3e-3)):
        runner, _ = adapted(2e-3, kl_target=share * kl[0])
        np.testing.assert_allclose(runner.learning_rate, [learning_rate], rtol=1e-5)


def test_an_adapted_rate_is_the_actors_and_the_critics_stays():
    for learning_rate in (1e-2, 1e-3):
        runner, _ = adapted(learning_rate)
        expected, _ = walked(walking(), actor_optimizer_params=rate(learning_rate))
        assert_trees_close(runner.actor.params, expected.actor.params, atol=1e-6)
        assert_trees_close(runner.critic.params, expected.critic.params, atol=1e-6)


def test_without_adaptation_there_is_no_rate_to_keep():
    assert begin(walking()).learning_rate is None


# Compute dtype and random numbers.


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"recurrent": "mingru", "shared_torso": True}, marks=pytest.mark.slow),
        pytest.param({"recurrent": "gru"}, marks=pytest.mark.slow),
        pytest.param({"shared_torso": True}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_networks_that_compute_in_bfloat16_train_float32_parameters(options):
    agent, exact = (walking(compute_dtype=dtype, **options) for dtype in ("bfloat16", None))
    before = begin(agent)
    runner, metrics = agent.step(before)
    learnt = jax.tree.leaves((runner.actor, runner.critic, runner.memory))
    assert {leaf.dtype.name for leaf in learnt} <= {"float32", "int32"}
    assert all_finite((runner.actor.params, runner.critic.params, metrics))
    assert largest_change(runner.actor.params, before.actor.params) > 1e-4
    carry = agent.initial_carry() if "recurrent" in options else None
    value, exact_value = (each.value(before, FEATURES, carry) for each in (agent, exact))
    assert largest_change(value, exact_value) > 0
    np.testing.assert_allclose(value, exact_value, atol=0.05)


@pytest.mark.slow
def test_the_compute_dtype_does_not_change_the_initial_parameters():
    agent, exact = (walking(compute_dtype=dtype) for dtype in ("bfloat16", None))
    assert_trees_equal(begin(exact).actor, begin(agent).actor)
    (runner, _), (other, _) = agent.step(begin(agent)), walked(exact)
    assert largest_change(runner.actor.params, other.actor.params) > 0


@pytest.mark.slow
def test_a_run_with_another_random_generator_is_resumed_bit_for_bit(tmp_path):
    options = {"keep_latest": 9, "checkpoint_dir": tmp_path, "n_evals": 0, "n_steps": 4}
    agent = ja.DiscreteIPPO(WALK, None, tiny(prng_impl="rbg", **options))
    begun, of_default = begin(agent), begin(walking())
    assert str(jax.random.key_impl(begun.rng)) == "rbg"
    assert largest_change(begun.actor.params, of_default.actor.params) > 1e-4
    # A given runner continues with the generator of the agent.
    whole, metrics = agent.train(None, FAST, of_default)
    assert str(jax.random.key_impl(whole.rng)) == "rbg"
    later = [path for path in tmp_path.iterdir() if path.name.isdigit() and int(path.name) > 2]
    assert later
    for path in later:  # as if the training had been interrupted
        shutil.rmtree(path)
    resumed, history = agent.resume()
    assert_trees_equal(resumed, whole)
    assert_trees_equal(history, metrics)
    with pytest.raises(ValueError, match="its prng_impl is rbg, and this agent's is None"):
        ja.DiscreteIPPO(WALK, None, tiny(**options)).resume()


@pytest.mark.slow
def test_keys_that_could_not_be_restored_from_a_checkpoint_are_refused_at_once(tmp_path):
    rng, runner = jax.random.key(0, impl="rbg"), begin(walking())
    agent = ja.DiscreteIPPO(WALK, None, tiny(checkpoint_dir=tmp_path))
    for arguments in ((rng, FAST), (None, FAST, runner.replace(rng=rng))):
        with pytest.raises(ValueError, match=r"'rbg'.*'threefry2x32'.*prng_impl") as error:
            agent.train(*arguments)
        assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())
    runner, _ = make(n_evals=0).train(rng, FAST)
    assert str(jax.random.key_impl(runner.rng)) == "rbg"


def test_a_generator_that_would_draw_for_all_members_is_refused_under_vmap():
    agent, rngs = make(prng_impl="rbg", n_evals=0), jax.random.split(jax.random.key(0), 2)
    with pytest.raises(ValueError, match="use an agent with prng_impl=None") as error:
        jax.vmap(agent.train, in_axes=(0, None))(rngs, FAST)
    assert "\n" not in str(error.value)
