"""Actors to policies and back, for every way of sharing parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.ppo.policy_map import make_policy_map
from jaxagents.types import Observation

SHARINGS = {
    "shared": "shared",
    "independent": "independent",
    "interleaved teams": (1, 0, 1, 0),
    "teams of unequal size": (0, 1, 1, 1),
    "a team apart": (1, 0, 0, 1),
    "independent in another order": (3, 1, 0, 2),
}
N_ACTORS = 4

any_sharing = pytest.mark.parametrize("sharing", SHARINGS.values(), ids=SHARINGS.keys())


def with_actors_at(axis):
    """Number an array that has the actors at ``axis``: ``[4, 2, 3]`` for the first."""
    shape = [2, 3]
    shape.insert(axis, N_ACTORS)
    return np.arange(N_ACTORS * 6).reshape(shape)


@any_sharing
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_to_actors_undoes_to_policies(sharing, axis):
    policies = make_policy_map(sharing, N_ACTORS)
    values = with_actors_at(axis)
    moved = policies.to_policies(jnp.asarray(values), axis)
    np.testing.assert_array_equal(policies.to_actors(moved, axis), values)


@any_sharing
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_policies_hold_their_own_actors_in_order_at_the_actors_axis(sharing, axis):
    policies = make_policy_map(sharing, N_ACTORS)
    moved = np.asarray(policies.to_policies(jnp.asarray(with_actors_at(axis)), axis))
    membership = np.asarray(policies.membership(), bool)
    assert moved.shape[0] == policies.n_policies
    assert moved.shape[1 + axis] == membership.shape[1]
    for policy in range(policies.n_policies):
        own_actors = np.flatnonzero(policies.policy_of_actor == policy)
        own = np.compress(membership[policy], moved[policy], axis)
        np.testing.assert_array_equal(own, np.take(with_actors_at(axis), own_actors, axis))


@any_sharing
def test_every_actor_is_a_member_of_exactly_one_policy(sharing):
    policies = make_policy_map(sharing, N_ACTORS)
    assert policies.membership().sum() == N_ACTORS
    members = np.asarray(policies.to_policies(jnp.arange(N_ACTORS), 0))
    members = members[np.asarray(policies.membership(), bool)]
    np.testing.assert_array_equal(np.sort(members), np.arange(N_ACTORS))


def test_shared_parameters_are_one_policy_of_all_actors():
    policies = make_policy_map("shared", 3)
    assert (policies.n_policies, policies.n_actors) == (1, 3)
    np.testing.assert_array_equal(policies.to_policies(jnp.array([5, 6, 7]), 0), [[5, 6, 7]])
    np.testing.assert_array_equal(policies.membership(), [[1.0, 1.0, 1.0]])


def test_independent_parameters_are_one_policy_for_each_actor():
    policies = make_policy_map("independent", 3)
    assert (policies.n_policies, policies.n_actors) == (3, 3)
    np.testing.assert_array_equal(policies.to_policies(jnp.array([5, 6, 7]), 0), [[5], [6], [7]])
    np.testing.assert_array_equal(policies.membership(), [[1.0], [1.0], [1.0]])


def test_a_smaller_team_is_padded_with_copies_of_its_own_actors_that_are_no_members():
    policies = make_policy_map((0, 0, 0, 1), 4)
    assert (policies.n_policies, policies.n_actors) == (2, 4)
    np.testing.assert_array_equal(
        policies.to_policies(jnp.array([5, 6, 7, 8]), 0), [[5, 6, 7], [8, 8, 8]]
    )
    np.testing.assert_array_equal(policies.membership(), [[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]])


@pytest.mark.parametrize("teams", [(0, 0, 1, 1), (1, 0, 1, 0), [0, 1, 1, 1]])
def test_a_team_is_one_policy_whatever_its_size(teams):
    policies = make_policy_map("team", N_ACTORS, teams)
    assert policies.n_policies == 2
    np.testing.assert_array_equal(policies.policy_of_actor, teams)
    np.testing.assert_array_equal(
        policies.membership().sum(axis=1), [np.sum(np.equal(teams, team)) for team in (0, 1)]
    )


def test_teams_matter_only_where_parameters_are_shared_by_team():
    teams = (0, 0, 1, 1)
    np.testing.assert_array_equal(make_policy_map("shared", 4, teams).policy_of_actor, [0] * 4)
    np.testing.assert_array_equal(
        make_policy_map("independent", 4, teams).policy_of_actor, [0, 1, 2, 3]
    )
    np.testing.assert_array_equal(
        make_policy_map((0, 1, 1, 0), 4, teams).policy_of_actor, [0, 1, 1, 0]
    )


def test_sharing_by_team_without_teams_is_an_error_with_the_remedy():
    with pytest.raises(ValueError, match="names no teams; give a policy index per actor") as error:
        make_policy_map("team", 3)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("teams", "message"), [((0, 1), "names 2 actors.* has 3;"), ((0, 2, 2), "without gaps")]
)
def test_teams_that_do_not_number_policies_are_an_error(teams, message):
    with pytest.raises(ValueError, match=message):
        make_policy_map("team", 3, teams)


def test_the_policies_axis_comes_first_whatever_axis_the_actors_have():
    rollout = jnp.zeros((7, 5, 4, 2))  # [time, envs, actors, ...]
    assert make_policy_map((0, 1, 1, 1), 4).to_policies(rollout, 2).shape == (2, 7, 5, 3, 2)
    assert make_policy_map("independent", 4).to_policies(rollout, 2).shape == (4, 7, 5, 1, 2)
    assert make_policy_map("shared", 4).to_policies(rollout, 2).shape == (1, 7, 5, 4, 2)


def test_the_results_of_padding_reach_no_actor():
    policies = make_policy_map((0, 1, 1, 1), 4)
    padded = jnp.array([[1.0, jnp.nan, jnp.nan], [2.0, 3.0, 4.0]])
    np.testing.assert_array_equal(policies.to_actors(padded, 0), [1.0, 2.0, 3.0, 4.0])


@pytest.mark.parametrize(
    ("sharing", "factors"),
    [
        ("shared", [10.0, 10.0, 10.0, 10.0]),
        ("independent", [10.0, 20.0, 30.0, 40.0]),
        ((0, 1, 1, 1), [10.0, 20.0, 20.0, 20.0]),
        ((2, 0, 1, 0), [30.0, 10.0, 20.0, 10.0]),
        ((3, 1, 0, 2), [40.0, 20.0, 10.0, 30.0]),
    ],
)
def test_every_actor_acts_by_its_own_policys_parameters(sharing, factors):
    policies = make_policy_map(sharing, N_ACTORS)
    params = {"factor": 10.0 * jnp.arange(1, policies.n_policies + 1)}

    def scale(params, observation):
        products = params["factor"] * observation.features
        return {"sum": products.sum(axis=-1), "products": products}

    features = jnp.arange(24.0).reshape(3, N_ACTORS, 2)  # [envs, actors, ...]
    played = policies.apply(scale, params, Observation(features=features), axis=1)
    expected = features * jnp.array(factors)[:, None]
    np.testing.assert_array_equal(played["products"], expected)
    np.testing.assert_array_equal(played["sum"], expected.sum(axis=-1))


@any_sharing
def test_observations_and_recurrent_states_of_an_actor_reach_its_policy_together(sharing):
    policies = make_policy_map(sharing, N_ACTORS)
    factors = 10.0 * jnp.arange(1, policies.n_policies + 1)

    def weigh(factor, features, memory):
        sums = factor * features.sum(axis=-1) + memory["total"]
        return sums, {"total": sums, "seen": features}

    features = jnp.arange(24.0).reshape(3, N_ACTORS, 2)  # [envs, actors, ...]
    memory = {"total": 100.0 * jnp.arange(12.0).reshape(3, N_ACTORS)}
    sums, memory_after = policies.apply(weigh, factors, features, memory, axis=1)
    expected = factors[policies.policy_of_actor] * features.sum(axis=-1) + memory["total"]
    np.testing.assert_array_equal(sums, expected)
    np.testing.assert_array_equal(memory_after["total"], expected)
    np.testing.assert_array_equal(memory_after["seen"], features)


@any_sharing
def test_an_empty_recurrent_state_stays_empty(sharing):
    policies = make_policy_map(sharing, N_ACTORS)
    params = jnp.ones(policies.n_policies)
    features = with_actors_at(0)

    def double(factor, features, memory):
        return 2 * factor * features, memory

    doubled, memory = policies.apply(double, params, jnp.asarray(features), (), axis=0)
    np.testing.assert_array_equal(doubled, 2 * features)
    assert memory == ()


def test_moving_between_actors_and_policies_can_be_traced():
    policies = make_policy_map((0, 1, 1, 1), N_ACTORS)
    values = with_actors_at(1)
    round_trip = jax.jit(lambda leaf: policies.to_actors(policies.to_policies(leaf, 1), 1))
    np.testing.assert_array_equal(round_trip(jnp.asarray(values)), values)


@pytest.mark.parametrize("sharing", [(0, 1), [0, 0, 0, 1], ()])
def test_the_wrong_number_of_policy_indices_is_an_error_with_both_numbers(sharing):
    with pytest.raises(ValueError, match=f"names {len(sharing)} actors.* has 3;") as error:
        make_policy_map(sharing, 3)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("sharing", [(0, 2, 2), (1, 2, 3), (1, 1, 1), (-1, 0, 1)])
def test_policy_indices_with_gaps_are_an_error(sharing):
    with pytest.raises(ValueError, match="does not count policies from 0 without gaps") as error:
        make_policy_map(sharing, 3)
    assert str(list(sharing)) in str(error.value)


@pytest.mark.parametrize("word", ["", "Shared", "012", "none"])
def test_an_unknown_word_for_sharing_is_an_error_that_lists_the_known_ones(word):
    message = f"parameter_sharing={word!r} is unknown; choose 'shared', 'independent'"
    with pytest.raises(ValueError, match=message):
        make_policy_map(word, 3)
