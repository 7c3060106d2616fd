"""Blocks of updates, with updates whose results are known by hand."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxagents as ja
from jaxagents.training.blocks import (
    block_sizes,
    metrics_of_block,
    open_block,
    update_repeatedly,
)
from jaxagents.types import Memory, NetworkState, Observation, Runner, Training

N_POLICIES, N_QUANTITIES = 2, 3


@pytest.mark.parametrize(
    ("n_updates_done", "n_steps", "eval_frequency", "initial", "expected"),
    [
        (0, 7, 3, True, [0, 3, 3, 1]),
        (0, 6, 3, False, [3, 3]),
        (0, 5, 9, True, [0, 5]),
        (0, 3, 1, True, [0, 1, 1, 1]),
        (4, 10, 3, False, [2, 3, 1]),  # evaluations are at multiples of 3, and at the end
        (6, 10, 3, False, [3, 1]),
        (9, 10, 3, False, [1]),
    ],
)
def test_blocks_end_at_multiples_of_the_frequency_and_at_the_last_update(
    n_updates_done, n_steps, eval_frequency, initial, expected
):
    config = ja.AgentConfig(n_steps=n_steps, eval_frequency=eval_frequency)
    assert block_sizes(n_updates_done, config, initial) == expected


@pytest.mark.parametrize("n_updates_done", [10, 11])
def test_a_finished_run_has_no_blocks(n_updates_done):
    with pytest.raises(ValueError, match=r"n_steps=10: nothing is left.*larger n_steps"):
        block_sizes(n_updates_done, ja.AgentConfig(n_steps=10), initial=False)


def runner_after(n_updates: int) -> Runner:
    nothing = NetworkState((), ())
    return Runner(
        actor=nothing,
        critic=nothing,
        env_state=(),
        observation=Observation(jnp.zeros((1, 1, 1))),
        memory=Memory(),
        normalizers=None,
        learning_rate=None,
        rng=jax.random.key(0),
        hyperparams=(),
        n_updates_done=jnp.int32(n_updates),
        n_updates_skipped=jnp.zeros(N_POLICIES, jnp.int32),
    )


def training_after(n_updates: int, stop: bool = False) -> Training:
    nonfinite = jnp.zeros((N_POLICIES, N_QUANTITIES), bool)
    return Training(runner_after(n_updates), jnp.array(stop), nonfinite)


@pytest.mark.parametrize(
    ("before", "after", "change"),
    [
        ({"coeff": 1.0}, {"coeff": np.ones(1, np.float32)}, "float32[] to float32[1]"),
        ({"coeff": 1.0}, {"coeff": 1}, "float32[] to int32[]"),
        ({}, {"coeff": 1.0}, "None to float32[]"),
        ({"coeff": 1.0}, {}, "float32[] to None"),
    ],
)
def test_updates_that_change_what_arrays_a_runner_has_are_refused(before, after, change):
    training = training_after(0)
    olds, news = (
        training.runner.replace(hyperparams=jax.tree.map(jnp.asarray, each))
        for each in (before, after)
    )
    shapes = jax.eval_shape(lambda: (news, {}, jnp.zeros((N_POLICIES, N_QUANTITIES), bool)))
    with pytest.raises(ValueError, match=re.escape(f"runner's hyperparams.coeff from {change}. ")):
        open_block(training._replace(runner=olds), 1, shapes)


def step(runner: Runner):
    """Update k has loss k for policy 0 and 10 k for policy 1, whose update 2 is NaN."""
    k = runner.n_updates_done + 1
    loss = k * jnp.array([1.0, 10.0])
    loss = jnp.where(jnp.array([False, True]) & (k == 2), jnp.nan, loss)
    nonfinite = jnp.zeros((N_POLICIES, N_QUANTITIES), bool).at[1, 2].set(k == 2)
    metrics = {"loss": loss, "largest_value": loss * jnp.where(k == 3, 0.1, 1.0)}
    return runner.replace(n_updates_done=k), metrics, nonfinite


def never(nonfinite):
    return jnp.zeros((), bool)


def run_updates(training: Training, n_updates: int, has_failed=never):
    updates = open_block(training, jnp.int32(n_updates), jax.eval_shape(step, training.runner))
    return jax.jit(lambda updates: update_repeatedly(step, updates, has_failed))(updates)


@pytest.mark.parametrize(
    ("n_updates", "loss", "largest"),
    [
        (1, [1.0, 10.0], [1.0, 10.0]),
        (3, [(1 + 2 + 3) / 3, (10 + 30) / 2], [2.0, 10.0]),  # of 1, 2, 0.3 and of 10, 3
        (4, [(1 + 2 + 3 + 4) / 4, (10 + 30 + 40) / 3], [4.0, 40.0]),
        (0, [np.nan, np.nan], [np.nan, np.nan]),
    ],
)
def test_a_row_holds_means_and_maxima_over_a_policys_finite_updates(n_updates, loss, largest):
    updates = run_updates(training_after(0), n_updates)
    assert updates.runner.n_updates_done == n_updates
    assert updates.n_left == 0
    evaluation = {"returns": jnp.array([[5, 6]])}
    row = metrics_of_block(updates, evaluation, lost=jnp.array(False))
    np.testing.assert_allclose(row["loss"], loss, rtol=1e-6)
    np.testing.assert_allclose(row["largest_value"], largest, rtol=1e-6)
    np.testing.assert_array_equal(row["returns"], [[5.0, 6.0]])
    assert row["n_updates_done"] == n_updates
    np.testing.assert_array_equal(row["n_updates_skipped"], [0.0, 0.0])
    assert {leaf.dtype for leaf in row.values()} == {jnp.dtype(jnp.float32)}


def test_nonfinite_quantities_are_collected_over_the_updates():
    updates = run_updates(training_after(0), 4)
    np.testing.assert_array_equal(updates.nonfinite, [[False] * 3, [False, False, True]])
    np.testing.assert_array_equal(updates.n_finite, [4, 3])


def test_updates_end_after_the_one_that_fails():
    updates = run_updates(training_after(0), 4, has_failed=jnp.any)
    assert updates.runner.n_updates_done == 2
    assert updates.n_left == 2


def test_a_stopped_run_does_no_updates():
    updates = run_updates(training_after(5, stop=True), 4)
    assert updates.runner.n_updates_done == 5
    assert updates.n_left == 0


def test_the_row_of_a_lost_block_is_nan():
    updates = run_updates(training_after(0), 1)
    row = metrics_of_block(updates, {"returns": jnp.ones((2, 2))}, lost=jnp.array(True))
    assert all(bool(jnp.all(jnp.isnan(leaf))) for leaf in row.values())
