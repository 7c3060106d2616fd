import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxagents as ja

pytest.importorskip("pgx")


def test_players_take_turns_and_who_waits_has_one_action_that_does_nothing():
    env, _ = ja.make("pgx/tic_tac_toe")
    assert (env.n_actors, env.teams) == (2, (0, 1))
    observation, state = env.reset_env(jax.random.key(0), None)
    for place in range(3):
        mover = int(state.current_player)
        assert bool(observation.has_turn[mover])
        assert not bool(observation.has_turn[1 - mover])
        np.testing.assert_array_equal(observation.action_mask[mover], jnp.arange(9) >= place)
        np.testing.assert_array_equal(observation.action_mask[1 - mover], jnp.arange(9) == 0)
        action = jnp.zeros(2, jnp.int32).at[mover].set(place).at[1 - mover].set(8)
        observation, state, *_ = env.step_env(jax.random.key(0), state, action, None)
    assert int(state.current_player) == 1 - mover


def test_a_win_is_the_others_loss_and_ends_the_game_for_both():
    env, _ = ja.make("pgx/tic_tac_toe")
    _, state = env.reset_env(jax.random.key(0), None)
    first = int(state.current_player)
    for place in (0, 3, 1, 4, 2):  # the first player completes the upper row
        action = jnp.full(2, place)
        _, state, reward, terminated, truncated, _ = env.step_env(
            jax.random.key(0), state, action, None
        )
    np.testing.assert_array_equal(reward, jnp.where(jnp.arange(2) == first, 1, -1))
    assert bool(jnp.all(terminated))
    assert not bool(jnp.any(truncated))


def test_each_player_sees_the_game_from_its_own_side():
    env, _ = ja.make("pgx/tic_tac_toe")
    _, state = env.reset_env(jax.random.key(0), None)
    first = int(state.current_player)
    observation, *_ = env.step_env(jax.random.key(0), state, jnp.full(2, 4), None)
    mine, others = observation.features[first].reshape(9, 2).T
    assert (mine[4], others[4]) == (1, 0)
    mine, others = observation.features[1 - first].reshape(9, 2).T
    assert (mine[4], others[4]) == (0, 1)


def test_a_picture_measured_in_points_is_drawn():
    class Drawn:
        def to_svg(self):
            return (
                '<svg xmlns="http://www.w3.org/2000/svg" width="30pt" height="15pt">'
                '<rect width="10pt" height="15pt" fill="#ff0000"/></svg>'
            )

    env, _ = ja.make("pgx/tic_tac_toe")
    picture = env.draw(Drawn(), None)
    assert picture.shape == (20, 40, 3)
    np.testing.assert_array_equal(picture[10, 3], (255, 0, 0))
    np.testing.assert_array_equal(picture[10, 30], (255, 255, 255))


def test_who_begins_is_drawn():
    env, _ = ja.make("pgx/connect_four")
    _, states = jax.vmap(lambda rng: env.reset_env(rng, None))(
        jax.random.split(jax.random.key(0), 64)
    )
    assert set(np.asarray(states.current_player)) == {0, 1}


@pytest.mark.slow
def test_one_side_learns_against_a_random_opponent():
    env, params = ja.make("pgx/tic_tac_toe")
    config = ja.AgentConfig(
        n_steps=1, batch_size=2, minibatch_size=1, rollout_length=8, n_evals=4, progress_bar=False
    )
    side = ja.Side(env, [0], opponents=ja.RandomOpponent())
    _, metrics = ja.DiscreteIPPO(side, params, config).train(
        jax.random.key(0), ja.HyperParameters()
    )
    assert set(np.unique(metrics["returns"])) <= {-1.0, 0.0, 1.0}
