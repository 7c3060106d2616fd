"""Uniformly random actions."""

import jax
import jax.numpy as jnp
import numpy as np

import jaxagents as ja
from jaxagents.environments.sides.opponents import random_actions


def _draw(space, mask=None):
    observation = ja.Observation(jnp.zeros((3000, 1, 2)), mask)
    return np.asarray(random_actions(jax.random.key(0), space, observation))


def test_available_actions_are_equally_frequent():
    mask = jnp.broadcast_to(jnp.array([True, False, True]), (3000, 1, 3))
    action = _draw(ja.Discrete(3), mask)
    assert (action.shape, action.dtype) == ((3000, 1), np.int32)
    np.testing.assert_allclose(np.bincount(action[:, 0]) / 3000, [0.5, 0.0, 0.5], atol=0.05)


def test_choices_are_drawn_each():
    action = _draw(ja.MultiDiscrete((2, 4)))
    assert action.shape == (3000, 1, 2)
    pairs = action[:, 0, 0] * 4 + action[:, 0, 1]
    np.testing.assert_allclose(np.bincount(pairs) / 3000, np.full(8, 1 / 8), atol=0.03)


def test_bounded_dimensions_are_uniform_and_unbounded_ones_normal():
    space = ja.Box(np.array([-1.0, -np.inf, 0.0]), np.array([3.0, np.inf, np.inf]), (3,))
    bounded, unbounded, half = _draw(space)[:, 0].T
    assert bounded.min() >= -1.0
    assert bounded.max() <= 3.0
    np.testing.assert_allclose([bounded.mean(), bounded.var()], [1.0, 16 / 12], atol=0.1)
    np.testing.assert_allclose([unbounded.mean(), unbounded.var()], [0.0, 1.0], atol=0.1)
    assert half.min() == 0.0
