"""Payoff matrices, and their picture."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

import jaxagents as ja
from tests.probes import Pennies, heads, tails

KEY = jax.random.key(0)


def test_every_row_plays_every_column():
    result = ja.payoffs(ja.Side(Pennies(), [0]), None, [heads, tails], [tails, heads], KEY, 5)
    assert result.rows == ("heads", "tails")
    assert result.columns == ("tails", "heads")
    assert result.returns.shape == (2, 2, 5, 2)
    np.testing.assert_array_equal(result.mean, [[0, 1], [1, 0]])
    np.testing.assert_array_equal(result.win_rate, [[0, 1], [1, 0]])


class Push(Pennies):
    """One step of pushing: an actor earns how much farther it pushes than the other."""

    def action_space(self, params):
        return ja.Box(-1.0, 1.0, (1,))

    def step_env(self, rng, state, action, params):
        observation, state, _, *rest = super().step_env(rng, state, action, params)
        lead = action[0, 0] - action[1, 0]
        return observation, state, jnp.stack([lead, -lead]), *rest


def pushing(force):
    return lambda rng, observation: jnp.full((len(observation.features), 1), force)


def test_players_act_within_the_bounds_as_opponents_do():
    far, still = pushing(5.0), pushing(0.0)
    result = ja.payoffs(ja.Side(Push(), [0]), None, [far, still], [far, still], KEY, 2)
    np.testing.assert_array_equal(result.mean, [[0, 1], [-1, 0]])


def test_the_other_side_may_be_the_rows():
    result = ja.payoffs(ja.Side(Pennies(), [1]), None, heads, ja.RandomOpponent(), KEY, 400)
    assert result.columns == ("random",)
    np.testing.assert_allclose(result.win_rate, [[0.5]], atol=0.1)
    np.testing.assert_array_equal(result.returns.sum(axis=-1), 1.0)


def test_equal_returns_are_half_a_win():
    returns = np.zeros((1, 1, 4, 2))
    returns[0, 0, 0] = [1.0, 0.0]
    assert ja.Payoffs(("a",), ("b",), returns).win_rate == (1 + 3 / 2) / 4


def test_no_episodes_are_refused():
    with pytest.raises(ValueError, match="n_episodes=0; play at least 1"):
        ja.payoffs(ja.Side(Pennies(), [0]), None, heads, tails, KEY, 0)


def test_the_picture_shows_wins_and_losses_in_other_colours(tmp_path):
    returns = np.zeros((2, 1, 3, 2))
    returns[0, ..., 0] = 1.0
    returns[1, ..., 1] = 1.0
    path = tmp_path / "payoffs.png"
    ja.draw_payoffs(ja.Payoffs(("wins", "loses"), ("other",), returns), path)
    pixels = np.asarray(Image.open(path).convert("RGB")).reshape(-1, 3)
    colours, counts = np.unique(pixels, axis=0, return_counts=True)
    cells = colours[counts > 2_000]
    assert len(cells) == 3  # the ground, a win and a loss
