import jax
import numpy as np
import pytest

import jaxagents as ja

navix = pytest.importorskip("navix")

from jaxagents.environments.suites.navix import NavixEnvironment  # noqa: E402 -- needs navix


def test_the_locked_door_of_key_corridor_is_seen_as_locked():
    env, _ = ja.make("navix/Navix-KeyCorridorS3R1-v0")
    features, state = env.reset_env(jax.random.key(0), None)
    kinds, _, states = np.moveaxis(np.asarray(state.observation), -1, 0)
    assert 254 in states  # the library's own symbol
    np.testing.assert_array_equal(features.sum(-1), 3)
    locked = np.asarray(features)[0, ..., 11 + 6 + 2] == 1
    assert locked.any()
    np.testing.assert_array_equal(locked & (kinds == 4), states == 254)


@pytest.mark.parametrize("kind", ["rgb", "rgb_first_person"])
def test_pixels_are_numbers_from_0_to_1_whatever_the_size_of_the_grid(kind):
    env, _ = ja.make("navix/Navix-KeyCorridorS3R1-v0", observation=kind)
    features, state = env.reset_env(jax.random.key(0), None)
    pixels = np.asarray(state.observation)
    assert pixels.max() > 11  # no symbols
    np.testing.assert_allclose(features, pixels[np.newaxis] / np.float32(255), rtol=1e-6)


def test_symbols_of_a_large_grid_stay_symbols():
    env = NavixEnvironment(navix.environments.Room.create(height=33, width=34))
    features, _ = env.reset_env(jax.random.key(0), None)
    assert features.shape == (1, 33, 34, 21)
    np.testing.assert_array_equal(features.sum(-1), 3)


def test_a_step_at_the_limit_truncates_and_the_library_does_not_reset():
    env, _ = ja.make("navix/Navix-Empty-5x5-v0", max_steps=2)
    assert env.max_episode_steps() == 2
    _, state = env.reset_env(jax.random.key(0), None)
    for expected in (False, True):
        _, state, _, terminated, truncated, _ = env.step_env(
            jax.random.key(0), state, jax.numpy.zeros(1, int), None
        )
        assert (bool(terminated[0]), bool(truncated[0])) == (False, expected)
    assert int(state.t) == 2


def test_a_step_of_several_tasks_computes_no_reset(monkeypatch):
    env, _ = ja.make("navix/Navix-Empty-5x5-v0")
    library, resets = type(env.env), []
    of_library = library.reset

    def counted(self, *arguments):
        jax.debug.callback(lambda: resets.append(1))
        return of_library(self, *arguments)

    rngs = jax.random.split(jax.random.key(0), 2)
    _, state = jax.vmap(env.reset_env, (0, None))(rngs, None)
    monkeypatch.setattr(library, "reset", counted)
    step = jax.jit(jax.vmap(env.step_env, (0, 0, 0, None)))
    step(rngs, state, np.zeros((2, 1), np.int32), None)
    jax.effects_barrier()
    assert resets == []
