"""Rollouts in files."""

import re

import jax
import numpy as np
import pytest

import jaxagents as ja
from tests.agents import assert_trees_equal, begin, shared_agent
from tests.ippo.test_by_hand import SHAPE, logged


def saved_and_loaded(rollout, directory):
    rollout.save(directory / "rollout.npz")
    return ja.Rollout.load(directory / "rollout.npz")


def test_a_loaded_rollout_is_what_was_saved(tmp_path):
    rollout = logged(
        observation=ja.Observation(np.ones((*SHAPE, 2)), np.ones((*SHAPE, 3), bool)),
        log_prob=None,
        active=np.ones(SHAPE, bool),
    )
    loaded = saved_and_loaded(rollout, tmp_path)
    assert jax.tree.structure(loaded) == jax.tree.structure(rollout)
    assert_trees_equal(loaded, rollout)


@pytest.mark.slow
@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_recurrent_agents_learn_the_same_from_a_file(cell, tmp_path):
    agent = shared_agent(recurrent=cell)
    memory = jax.tree.map(
        lambda leaf: np.asarray(leaf) + 0.5, agent.networks.actor.empty_memory(*SHAPE)
    )
    rollout = logged(memory=memory, last_memory=jax.tree.map(lambda leaf: leaf[-1], memory))
    learnt = [
        agent.update(begin(agent), each)[0]
        for each in (rollout, saved_and_loaded(rollout, tmp_path))
    ]
    assert_trees_equal(*learnt)


@pytest.mark.slow
def test_recurrent_states_of_another_cell_are_refused():
    agent = shared_agent(recurrent="lstm")
    memory = np.zeros((*SHAPE, 8))
    message = "the rollout's recurrent states are 1 arrays, and the agent's 2"
    with pytest.raises(ValueError, match=message):
        agent.update(begin(agent), logged(memory=memory, last_memory=memory[-1]))


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "other.npz"
    np.savez(path, observation=np.zeros(3))
    message = f"{path} holds no rollout: it lacks action."
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        ja.Rollout.load(path)
    logged().save(path)
    with np.load(path) as file:
        arrays = dict(file)
    np.savez(path, **arrays, weights=np.zeros(3))
    message = f"{path} holds no rollout: it has weights."
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        ja.Rollout.load(path)
