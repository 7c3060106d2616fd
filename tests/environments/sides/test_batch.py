"""Sides: what the learner sees, and who plays the others."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxagents as ja
from jaxagents.environments.factory import batch_of
from jaxagents.environments.sides.opponents import Seats
from jaxagents.environments.time_limits import time_limit_of
from tests.probes import Chords, Pennies, RealWalk, Walk, heads, tails

KEY = jax.random.key(0)


def make_batch(side, **options):
    limit = time_limit_of(side, None, None, None, options.pop("observe_time", None))
    return batch_of(side, None, max_episode_steps=None, time_limit=limit, **options)


def play(batch, actions, n_envs=4):
    """Play the same action everywhere, step by step."""
    observation, state = batch.reset(KEY, n_envs)
    advance = jax.jit(batch.step)
    steps = []
    for i, action in enumerate(actions):
        step, state = advance(
            jax.random.fold_in(KEY, i), state, jnp.full((n_envs, batch.n_actors), action)
        )
        steps.append(step)
    return observation, steps, state


@pytest.mark.parametrize("actor", [0, 1])
def test_the_learner_has_its_own_part_of_everything(actor):
    batch = make_batch(ja.Side(Pennies(), [actor], opponents=[heads]), observe_time=False)
    observation, (step,), state = play(batch, [0])
    assert observation.features.shape == (4, 1, 2)
    np.testing.assert_array_equal(observation.features[:, 0], [[actor, 0.0]] * 4)
    np.testing.assert_array_equal(step.final_observation.features[:, 0], [[actor, 1.0]] * 4)
    np.testing.assert_array_equal(step.reward, [[1.0 - actor]] * 4)  # both chose 0
    np.testing.assert_array_equal(step.truncated, [[True]] * 4)
    assert state.active.shape == (4, 1)


@pytest.mark.slow
def test_actions_reach_their_actors_in_any_order():
    env = Walk(deaths=(9, 9, 9), limit=9)
    batch = make_batch(ja.Side(env, [2, 0], opponents=[tails]))
    _, state = batch.reset(KEY, 1)
    step, _ = batch.step(KEY, state, jnp.array([[2, 0]]))  # actor 2 chooses 2, actor 0 chooses 0
    np.testing.assert_array_equal(step.reward, [[2.0, 0.0]])
    whole, _ = batch.whole.step(KEY, state.env_state.whole, jnp.array([[0, 1, 2]]))
    np.testing.assert_array_equal(whole.reward, [[0.0, 1.0, 2.0]])


@pytest.mark.slow
def test_one_member_plays_an_episode_to_its_end():
    batch = make_batch(ja.Side(Pennies(n_steps=3), [0], opponents=[heads, tails]))
    _, steps, _ = play(batch, [0] * 6, n_envs=32)
    rewards = np.stack([step.reward[:, 0] for step in steps])
    members = np.stack([step.info["opponent"] for step in steps])
    np.testing.assert_array_equal(rewards, members == 0)  # heads is met by heads
    np.testing.assert_array_equal(members[0], members[2])
    assert (members[2] != members[3]).any()  # drawn anew for the next episode
    np.testing.assert_array_equal(steps[2].info["beat_opponent"], members[2] == 0)


def test_results_make_the_standings():
    batch = make_batch(ja.Side(Pennies(), [0], opponents=[heads, tails]))
    *_, state = play(batch, [0] * 8, n_envs=16)
    standings = batch.standings(state)
    assert list(standings) == ["heads", "tails"]
    assert standings["heads"] > 0.9
    assert standings["tails"] < 0.1


def test_the_time_and_ids_are_observed_as_by_whole_environments():
    batch = make_batch(ja.Side(Pennies(n_steps=2), [1], opponents=[heads]), agent_id=True)
    observation, (step,), _ = play(batch, [0], n_envs=1)
    # Its number among the side's actors is the only one; then the share of the time.
    np.testing.assert_array_equal(observation.features[0, 0], [1.0, 0.0, 1.0, 0.0])
    np.testing.assert_array_equal(step.observation.features[0, 0], [1.0, 1.0, 1.0, 0.5])


def test_a_centralised_critic_sees_all_actors():
    batch = make_batch(ja.Side(Pennies(), [1], opponents=[heads]), global_state=True)
    observation, *_ = play(batch, [0], n_envs=1)
    np.testing.assert_array_equal(observation.global_state[0], [0.0, 0.0, 1.0, 0.0, 0.0])


def test_random_opponents_choose_what_is_allowed():
    env = Chords()
    observation, _ = jax.vmap(env.reset_env, in_axes=(0, None))(jax.random.split(KEY, 500), None)
    seats = Seats((0, 1), 2, env.action_space(None))
    members = jnp.zeros(500, jnp.int32)
    action, _ = ja.RandomOpponent().act(seats, (), members, KEY, observation, ())
    assert action.shape == (500, 2, 2)
    np.testing.assert_allclose(action.mean(axis=(0, 1)), [0.5, 0.5], atol=0.1)
    assert action.max() == 1  # the third action of the second choice is masked


def test_random_opponents_fill_a_box():
    env = RealWalk()
    seats = Seats((0,), 2, env.action_space(None))
    members = jnp.zeros(500, jnp.int32)
    observation = ja.Observation(jnp.zeros((500, 2, 2)))
    action, _ = ja.RandomOpponent().act(seats, (), members, KEY, observation, ())
    assert action.shape == (500, 1, 1)
    assert action.min() >= 0
    assert action.max() <= 2
    np.testing.assert_allclose(action.mean(), 1.0, atol=0.1)


def test_a_side_without_opponents_cannot_be_played_alone():
    batch = make_batch(ja.Side(Pennies(), [0]))
    _, state = batch.reset(KEY, 2)
    with pytest.raises(ValueError, match=r"nobody plays the actors \[1\]: give the Side opponents"):
        batch.step(KEY, state, jnp.zeros((2, 1), jnp.int32))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"actors": 0}, TypeError, r"actors=0 is no list of whole numbers, such as \[0\]"),
        ({"actors": [0], "past_selves": 3}, TypeError, "past_selves=3 is no jaxagents.Past"),
        ({"actors": []}, ValueError, "is no side of an environment with 2 actors"),
        ({"actors": [0, 1]}, ValueError, "is no side of an environment with 2 actors"),
        ({"actors": [2]}, ValueError, "is no side of an environment with 2 actors"),
        ({"actors": [1, 1]}, ValueError, "names an actor twice"),
        ({"actors": [0], "opponents": []}, ValueError, "opponents is empty"),
        ({"actors": [0], "opponents": [3]}, TypeError, "holds 3, which is neither an Opponent"),
        ({"actors": [0], "past_selves": ja.PastSelves(5)}, ValueError, "needs opponents as well"),
        (
            {"actors": [0], "opponents": [heads], "past_selves": ja.PastSelves(0)},
            ValueError,
            "past_selves.every=0 is too small",
        ),
        (
            {"actors": [0], "opponents": [heads], "past_selves": ja.PastSelves(2, 1.5)},
            TypeError,
            "past_selves.n_members=1.5 is not an integer",
        ),
        ({"actors": [0.5]}, TypeError, r"actors=\[0.5\] is no list of whole numbers"),
        (
            {"actors": [0], "opponents": ja.RandomOpponent},
            TypeError,
            "RandomOpponent'>, which is neither an Opponent, such as",
        ),
    ],
)
def test_wrong_sides_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        ja.Side(Pennies(), **arguments)


@pytest.mark.parametrize(
    ("actions", "shape"),
    [(jnp.zeros(2, jnp.int32), r"\(2,\)"), (0, r"\(\)"), (None, r"\(\)")],
)
def test_a_function_that_returns_too_few_or_too_many_actions_is_refused(actions, shape):
    def wrong(rng, observation):
        return actions

    batch = make_batch(ja.Side(Pennies(), [0], opponents=[wrong]))
    message = rf"wrong returns actions of shape {shape}; it must be \(1,\), .* the actors \[1\]"
    with pytest.raises(ValueError, match=message):
        play(batch, [0])


def test_past_selves_need_sides_of_equal_size():
    with pytest.raises(
        ValueError, match="cannot play 2 actors, because the agent learns to play 1"
    ):
        ja.Side(Walk((9, 9, 9)), [0], opponents=[heads], past_selves=ja.PastSelves(1))
