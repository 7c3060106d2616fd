import functools
import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

import jaxagents as ja
from tests.environments.host.probes import Stairs

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "host_environments.py"


@pytest.mark.slow
def test_rollouts_collected_by_the_host_keep_every_step(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARK.parent))
    spec = importlib.util.spec_from_file_location("host_environments", BENCHMARK)
    benchmark = sys.modules["host_environments"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    monkeypatch.setattr(benchmark, "ROLLOUT_LENGTH", 6)
    rollouts = []
    update = ja.DiscreteIPPO.update

    def kept(agent, runner, rollout):
        rollouts.append(rollout)
        return update(agent, runner, rollout)

    monkeypatch.setattr(ja.DiscreteIPPO, "update", kept)
    env = ja.HostEnvironment(functools.partial(Stairs, limit=3), n_workers=0)
    benchmark.training_by_host(env, n_envs=4, n_updates=1)()

    (rollout,) = rollouts
    is_cut = np.asarray(rollout.truncated)[:, :, 0]
    np.testing.assert_array_equal(is_cut, np.array([[False, False, True] * 2] * 4).T)
