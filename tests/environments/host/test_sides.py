"""Sides of host environments."""

import jax
import numpy as np
import pytest

import jaxagents as ja
from tests.agents import FAST, tiny
from tests.environments.host.probes import DrawnEcho, Echo
from tests.environments.host.processes import workers

SIZES = {"rollout_length": 6, "batch_size": 16, "minibatch_size": 4, "eval_frequency": 10}


def sides(env, folder, n_steps):
    return {
        name: ja.DiscreteIPPO(
            ja.Side(env, [i]),
            None,
            tiny(n_steps=n_steps, n_evals=8, checkpoint_dir=folder / name, **SIZES),
        )
        for i, name in enumerate("ab")
    }


@pytest.mark.slow
def test_agents_of_both_sides_learn_in_one_pool_of_workers_and_resume(tmp_path):
    with ja.HostEnvironment(Echo, n_workers=1) as env:
        ja.train_together(sides(env, tmp_path, n_steps=10), jax.random.key(0), FAST)
        assert len(workers()) == 2  # of training and of evaluation
        env.close()
        results = ja.resume_together(sides(env, tmp_path, n_steps=20))
        assert len(workers()) == 2
    for runner, metrics in results.values():
        assert metrics["returns"].shape == (3, 8, 1)
        assert metrics["returns"][-1].mean() > 2.5  # of 3; 1.5 by chance
        assert int(runner.n_updates_done) == 20
    assert workers() == set()


def test_a_side_is_recorded_by_the_pictures_of_the_whole_environment():
    with ja.HostEnvironment(DrawnEcho, n_workers=1) as env:
        side = ja.Side(env, [0], opponents=[ja.RandomOpponent()])
        agent = ja.DiscreteIPPO(side, None, tiny())
        runner = agent.init(jax.random.key(0), FAST)
        (episode,) = agent.record(jax.random.key(1), runner=runner)
    assert (episode.n_actors, episode.states.shape) == (1, (4, 4, 6, 3))
    np.testing.assert_array_equal(episode.states[:, 0, 0, 0], [0, 1, 2, 3])
