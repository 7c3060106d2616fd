"""Unrolled keys draw the same bits as jax's own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxagents as ja
from jaxagents.compiler.random_keys import _threefry, is_key, to_unrolled
from tests.probes import Walk

KEYS = jax.random.split(jax.random.key(7), 3)

DRAWS = {
    "bits": lambda rng: jax.random.bits(rng, (5, 3)),
    "bytes": lambda rng: jax.random.bits(rng, (5, 3), "uint8"),
    "one number": jax.random.uniform,
    "normal": lambda rng: jax.random.normal(rng, (7,)),
    "none": lambda rng: jax.random.normal(rng, (0, 2)),
    "integers": lambda rng: jax.random.randint(rng, (11,), 0, 1000),
    "permutation": lambda rng: jax.random.permutation(rng, 100),
    "categorical": lambda rng: jax.random.categorical(rng, jnp.arange(4.0), shape=(9,)),
    "split": lambda rng: jax.random.key_data(jax.random.split(rng, (2, 3))),
    "fold_in": lambda rng: jax.random.key_data(jax.random.fold_in(rng, 12)),
    "of the split": lambda rng: jax.vmap(jax.random.normal)(jax.random.split(rng, 4)),
}


OFTEN = ("bits", "one number", "normal", "split", "of the split")


@pytest.mark.parametrize(
    "draw",
    [
        pytest.param(draw, id=name, marks=() if name in OFTEN else pytest.mark.slow)
        for name, draw in DRAWS.items()
    ],
)
def test_unrolled_keys_draw_the_bits_of_jax(draw):
    np.testing.assert_array_equal(draw(to_unrolled(KEYS[0])), draw(KEYS[0]))
    np.testing.assert_array_equal(jax.vmap(draw)(to_unrolled(KEYS)), jax.vmap(draw)(KEYS))
    compiled = jax.jit(lambda rng: draw(to_unrolled(rng)))
    np.testing.assert_array_equal(compiled(KEYS[1]), draw(KEYS[1]))


def test_unrolled_keys_compile_without_a_loop():
    def program(key) -> str:
        return jax.jit(lambda rng: jax.random.normal(key(rng), (8,))).lower(KEYS[0]).as_text()

    assert "while" in program(lambda rng: rng)
    assert "while" not in program(to_unrolled)


@pytest.mark.parametrize(
    ("word", "encrypted"),
    [
        ((0, 0, 0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF,) * 4, (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344, 0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ],
    ids=["zeros", "ones", "pi"],
)
def test_threefry_gives_the_test_vectors_of_its_authors(word, encrypted):
    *key, high, low = map(jnp.uint32, word)
    assert tuple(map(int, _threefry(jnp.stack(key), high, low))) == encrypted


def test_keys_of_other_generators_are_returned_as_they_are():
    rng = jax.random.key(0, impl="rbg")
    assert to_unrolled(rng) is rng


def test_keys_are_not_unrolled_where_jax_draws_in_the_older_order():
    rng = KEYS[0]
    with jax.threefry_partitionable(False):
        assert to_unrolled(rng) is rng


class Keyed(Walk):
    """Walk that keeps a random key in its state and draws its rewards from it."""

    def reset(self, rng, params):
        observation, state = super().reset(rng, params)
        return observation, (rng, state)

    def step(self, rng, state, action, params):
        kept, inner = state
        observation, inner, reward, *rest = super().step(rng, inner, action, params)
        return observation, (rng, inner), reward + jax.random.normal(kept), *rest


@pytest.mark.slow
def test_environments_may_keep_keys_in_their_states():
    config = ja.AgentConfig(n_steps=1, batch_size=2, minibatch_size=1, rollout_length=4)
    agent = ja.DiscreteIPPO(Keyed(), None, config)
    before = agent.init(jax.random.key(0), ja.HyperParameters())
    runner, metrics = agent.step(before)
    assert runner.rng.dtype == before.rng.dtype
    key_types = [leaf.dtype for leaf in jax.tree.leaves(runner.env_state) if is_key(leaf)]
    assert key_types == [KEYS.dtype]
    assert jax.tree.map(jnp.shape, runner.env_state) == jax.tree.map(jnp.shape, before.env_state)
    assert np.isfinite(metrics["actor_loss"]).all()
