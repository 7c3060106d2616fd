"""Minibatches: every sample once an epoch, and a policy's actors together."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.config import AgentConfig
from jaxagents.ppo.batches import beside, cut, join_chunks
from jaxagents.ppo.optimization import draw_minibatches, take_minibatch, unit_of
from jaxagents.types import Observation

N_STEPS, N_ENVS, N_ACTORS = 6, 4, 3
N_UNITS = {
    "sequence": N_ENVS,
    "trajectory": N_ENVS,
    "time": N_STEPS,
    "step": N_STEPS * N_ENVS,
}
UNITS = list(N_UNITS)

SAMPLES = jnp.arange(N_STEPS * N_ENVS * N_ACTORS).reshape(N_STEPS, N_ENVS, N_ACTORS)
"""The number of each sample, ``[time, envs, actors]``."""


def draw(seed, unit):
    return draw_minibatches(jax.random.key(seed), N_STEPS, N_ENVS, n_minibatches=2, unit=unit)


@pytest.mark.parametrize("unit", UNITS)
def test_every_unit_is_drawn_exactly_once_an_epoch(unit):
    indices = draw(0, unit)
    assert indices.shape == (2, N_UNITS[unit] // 2)
    np.testing.assert_array_equal(jnp.sort(indices.ravel()), jnp.arange(N_UNITS[unit]))


@pytest.mark.parametrize("unit", UNITS)
def test_every_sample_is_in_exactly_one_minibatch_of_an_epoch(unit):
    minibatches = [take_minibatch(SAMPLES, indices, unit) for indices in draw(0, unit)]
    samples = jnp.concatenate([minibatch.ravel() for minibatch in minibatches])
    np.testing.assert_array_equal(jnp.sort(samples), SAMPLES.ravel())


@pytest.mark.parametrize("unit", UNITS)
def test_equal_keys_draw_the_same_minibatches_and_different_keys_others(unit):
    np.testing.assert_array_equal(draw(0, unit), draw(0, unit))
    assert len({tuple(draw(seed, unit).ravel().tolist()) for seed in range(8)}) > 4


@pytest.mark.parametrize("unit", UNITS)
def test_the_actors_of_a_step_stay_together_and_in_order(unit):
    minibatch = take_minibatch(SAMPLES, draw(0, unit)[0], unit)
    actors_of_steps = minibatch.reshape(-1, N_ACTORS)
    np.testing.assert_array_equal(actors_of_steps % N_ACTORS, [range(N_ACTORS)] * 12)
    assert jnp.all(actors_of_steps // N_ACTORS == actors_of_steps[:, :1] // N_ACTORS)


def test_trajectories_stay_whole_and_in_order():
    np.testing.assert_array_equal(
        take_minibatch(SAMPLES, jnp.array([3, 1]), "trajectory"),
        SAMPLES[:, jnp.array([3, 1])].ravel(),
    )


def test_a_time_row_holds_all_environments():
    np.testing.assert_array_equal(
        take_minibatch(SAMPLES, jnp.array([5, 0, 2]), "time"),
        SAMPLES[jnp.array([5, 0, 2])].ravel(),
    )


def test_single_steps_are_numbered_row_by_row():
    np.testing.assert_array_equal(
        take_minibatch(SAMPLES, jnp.array([0, 5, 23]), "step"),
        jnp.concatenate([SAMPLES[0, 0], SAMPLES[1, 1], SAMPLES[5, 3]]),
    )


@pytest.mark.parametrize("unit", ["trajectory", "time", "step"])
def test_a_minibatch_is_flat_but_keeps_the_axes_of_a_sample_and_the_tree(unit):
    batch = {"weight": SAMPLES, "observation": Observation(jnp.zeros((*SAMPLES.shape, 5, 2)))}
    minibatch = take_minibatch(batch, draw(0, unit)[0], unit)
    assert minibatch["weight"].shape == (36,)
    assert minibatch["observation"].features.shape == (36, 5, 2)
    assert minibatch["observation"].action_mask is None


@pytest.mark.parametrize("unit", UNITS)
def test_all_leaves_are_gathered_at_the_same_indices(unit):
    batch = {"one": SAMPLES, "other": SAMPLES[..., None] + 1000}
    minibatch = take_minibatch(batch, draw(0, unit)[1], unit)
    np.testing.assert_array_equal(minibatch["one"] + 1000, minibatch["other"][..., 0])


def test_sequences_keep_their_axes_and_their_order():
    batch = {"weight": SAMPLES, "observation": Observation(jnp.zeros((*SAMPLES.shape, 5)))}
    minibatch = take_minibatch(batch, jnp.array([3, 1]), "sequence")
    np.testing.assert_array_equal(minibatch["weight"], SAMPLES[:, jnp.array([3, 1])])
    assert minibatch["observation"].features.shape == (N_STEPS, 2, N_ACTORS, 5)


def test_sequences_come_with_their_initial_recurrent_state():
    memory = jnp.arange(N_ENVS * N_ACTORS * 2).reshape(1, N_ENVS, N_ACTORS, 2)
    minibatch = take_minibatch({"memory": memory}, jnp.array([3, 1]), "sequence")
    np.testing.assert_array_equal(minibatch["memory"], memory[:, jnp.array([3, 1])])


def test_trajectories_are_cut_into_chunks_along_the_environments_axis():
    chunks = cut(SAMPLES, 2)
    assert chunks.shape == (2, 3 * N_ENVS, N_ACTORS)
    for chunk in range(3):
        np.testing.assert_array_equal(
            chunks[:, chunk * N_ENVS : (chunk + 1) * N_ENVS], SAMPLES[2 * chunk : 2 * chunk + 2]
        )


@pytest.mark.parametrize("chunk_length", [1, 2, 3, N_STEPS])
def test_joining_undoes_cutting(chunk_length):
    tree = {"samples": SAMPLES, "more": (SAMPLES[..., None, None] + jnp.arange(4), None)}
    chunks = cut(tree, chunk_length)
    assert chunks["more"][0].shape[:2] == (chunk_length, N_STEPS // chunk_length * N_ENVS)
    joined = join_chunks(chunks, N_STEPS // chunk_length)
    jax.tree.map(np.testing.assert_array_equal, joined, tree)


def test_a_single_chunk_is_the_trajectory_itself():
    np.testing.assert_array_equal(cut(SAMPLES, N_STEPS), SAMPLES)
    np.testing.assert_array_equal(join_chunks(SAMPLES, 1), SAMPLES)


@pytest.mark.parametrize("chunk_length", [1, 2, 3])
def test_every_chunk_is_in_exactly_one_minibatch_and_stays_whole(chunk_length):
    chunks = cut(SAMPLES, chunk_length)
    n_sequences = chunks.shape[1]
    minibatches = [
        take_minibatch(chunks, indices, "sequence")
        for indices in draw_minibatches(
            jax.random.key(0), chunk_length, n_sequences, n_minibatches=2, unit="sequence"
        )
    ]
    sequences = jnp.concatenate(minibatches, axis=1)
    assert sequences.shape == chunks.shape
    first_samples = sequences[0, :, 0]
    np.testing.assert_array_equal(sequences[:, jnp.argsort(first_samples)], np.sort(chunks, axis=1))
    steps = np.diff(sequences, axis=0)
    np.testing.assert_array_equal(steps, np.full_like(steps, N_ENVS * N_ACTORS))


def test_recurrent_networks_learn_from_sequences_and_others_from_the_configured_unit():
    config = AgentConfig(n_steps=1, minibatch_unit="step")
    assert unit_of(config, is_recurrent=False) == "step"
    assert unit_of(config, is_recurrent=True) == "sequence"


def test_batches_beside_each_other_are_trajectories_of_more_environments():
    """Chunks stay in order: cutting and joining commute with it."""
    chunks = cut(SAMPLES, 2)
    together = beside([chunks, -chunks], N_STEPS // 2)
    expected = jnp.concatenate([SAMPLES, -SAMPLES], axis=1)
    np.testing.assert_array_equal(join_chunks(together, N_STEPS // 2), expected)
    np.testing.assert_array_equal(together, cut(expected, 2))
