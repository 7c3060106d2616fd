"""Pools of opponents: who plays, who has won, and how past selves enter."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.sides.opponents import (
    draw_members,
    new_pool,
    win_rate,
    with_past_self,
    with_places,
    with_results,
)

KEY = jax.random.key(0)


def test_before_the_first_game_a_win_is_as_likely_as_a_loss():
    np.testing.assert_allclose(win_rate(new_pool((), 3)), 0.5)


def test_results_are_counted_for_the_member_that_played():
    pool = with_results(
        new_pool((), 3),
        member=jnp.array([0, 0, 2, 1]),
        is_over=jnp.array([True, True, True, False]),
        margin=jnp.array([1.0, -2.0, 0.0, 5.0]),
    )
    np.testing.assert_allclose(pool.n_games, [2, 0, 1])
    np.testing.assert_allclose(pool.n_wins, [1, 0, 0.5])
    np.testing.assert_allclose(win_rate(pool), [2 / 4, 1 / 2, 1.5 / 3])


def test_earlier_games_fade():
    one = (jnp.array([0]), jnp.array([True]))
    pool = with_results(new_pool((), 1), *one, margin=jnp.array([1.0]))
    pool = with_results(pool, *one, margin=jnp.array([-1.0]))
    np.testing.assert_allclose(pool.n_games, [1.99])
    np.testing.assert_allclose(pool.n_wins, [0.99])


def test_members_are_drawn_equally_often():
    drawn = draw_members(KEY, new_pool((), 4), 4_000, prioritized=False)
    np.testing.assert_allclose(np.bincount(drawn, minlength=4), 1_000, atol=100)


def test_prioritised_members_are_drawn_by_the_square_of_their_wins():
    pool = new_pool((), 2)._replace(n_games=jnp.array([98.0, 98.0]), n_wins=jnp.array([98.0, 48.0]))
    # The learner wins 99 and 49 of 100; weights are 0.01² and 0.51², and 0.02 more for each.
    weights = np.array([0.01**2 + 0.02, 0.51**2 + 0.02])
    drawn = draw_members(KEY, pool, 20_000, prioritized=True)
    np.testing.assert_allclose(np.bincount(drawn) / 20_000, weights / weights.sum(), atol=0.01)


def test_empty_places_are_not_drawn():
    pool = with_places(new_pool(((),), 1), jnp.zeros(2), 3)
    assert not draw_members(KEY, pool, 100, prioritized=True).any()


@pytest.mark.parametrize(
    ("n_updates", "exists", "selves"),
    [
        ([0], [True, True, False], [0, 0]),
        ([0, 1], [True, True, False], [0, 0]),
        ([0, 1, 2], [True, True, True], [0, 2]),
        ([0, 1, 2, 3, 4], [True, True, True], [4, 2]),
    ],
)
def test_every_second_learner_takes_the_oldest_place(n_updates, exists, selves):
    pool = with_places(new_pool(((),), 1), jnp.float32(0.0), 2)
    for n in n_updates:
        pool = with_past_self(pool, jnp.float32(n), first=1, every=2, n_updates=jnp.array(n))
    np.testing.assert_array_equal(pool.exists, exists)
    np.testing.assert_array_equal(pool.params[-1], selves)


def test_a_new_member_has_no_games():
    pool = with_places(new_pool(((),), 1), jnp.float32(0.0), 1)
    pool = with_results(pool, jnp.array([1, 0]), jnp.array([True, True]), jnp.ones(2))
    pool = with_past_self(pool, jnp.float32(1.0), first=1, every=1, n_updates=jnp.array(1))
    np.testing.assert_array_equal(pool.n_games, [1, 0])
