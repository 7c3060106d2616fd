"""Populations that an accelerator's memory does not hold at once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxagents as ja
from jaxagents.compiler.tuned_forms import plain_jax
from jaxagents.ippo.population import memory, training
from tests.agents import COORDINATION, FAST, shared_agent, tiny


@pytest.mark.parametrize(
    ("n_training", "n_members", "at_once", "size"),
    [
        (5, 5, None, 5),
        (6, 6, 3, 3),
        (7, 7, 3, 3),
        (8, 8, 6, 4),
        (3, 3, 1, 1),
        (7, 8, None, 8),
        (4, 8, None, 4),
        (5, 16, 4, 4),
        (1, 9, None, 1),
    ],
)
def test_batches_keep_their_size_until_half_of_it_is_enough(n_training, n_members, at_once, size):
    assert memory.batch_size(n_training, n_members, at_once) == size


@pytest.mark.slow
def test_the_formula_counts_state_and_samples():
    config = {"n_steps": 1, "batch_size": 8, "rollout_length": 5}
    agent = shared_agent(COORDINATION, **config)
    runner, _ = agent.train(jax.random.key(0), FAST)
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(runner.replace(rng=None)))
    observation_size = runner.observation.features[0, 0].size
    widest = max(leaf.shape[-1] for leaf in jax.tree.leaves(runner.actor.params))
    n_samples = 5 * 8 * COORDINATION.n_actors
    expected = 2 * size + 12 * n_samples * (observation_size + 0.8 * widest + 4)
    assert memory.bytes_of_member(agent) == pytest.approx(expected, rel=0.01)
    divided = memory.bytes_of_member(agent, n_devices=2)
    assert divided == pytest.approx(size + expected / 2, rel=0.01)


def test_as_many_members_train_at_once_as_fit(monkeypatch):
    class Device:
        def memory_stats(self):
            return {"bytes_limit": 2.6 * memory.bytes_of_member(agent) / 0.8}

    agent = shared_agent(COORDINATION)
    assert memory.members_at_once(agent) is None  # a CPU does not tell
    monkeypatch.setattr(jax, "local_devices", lambda: [Device()])
    assert memory.members_at_once(agent) == 2


def test_a_training_that_cannot_fit_is_refused_before_anything_is_allocated():
    agent = ja.DiscreteIPPO(COORDINATION, None, tiny(batch_size=10**11, minibatch_size=10**11))
    with pytest.raises(ValueError, match=r"^batch_size=100,000,000,000 with .* GB of memory, but"):
        agent.train(jax.random.key(0), FAST)


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"rollout_length": 10**11}, "rollout_length=100,000,000,000"),
        ({"n_evals": 10**12}, "n_evals=1,000,000,000,000"),
    ],
)
def test_what_cannot_fit_is_named(config, text):
    with pytest.raises(ValueError, match=text):
        memory.check_fits(ja.DiscreteIPPO(COORDINATION, None, tiny(**config)))


def test_what_fits_is_not_refused(monkeypatch):
    agent = shared_agent(COORDINATION)
    most = max(n_bytes for _, n_bytes in memory._necessary_arrays(agent))
    monkeypatch.setattr(memory, "memory_of_device", lambda: int(most))
    memory.check_fits(agent)
    monkeypatch.setattr(memory, "memory_of_device", lambda: int(most) - 1)
    with pytest.raises(ValueError, match="reduce it"):
        memory.check_fits(agent)
    monkeypatch.setattr(memory, "memory_of_device", lambda: None)
    memory.check_fits(agent)


@pytest.mark.slow
def test_parts_train_like_the_whole_batch(monkeypatch):
    keys = jax.vmap(jax.random.key)(jnp.arange(3))
    config = tiny(n_steps=2, eval_frequency=1, n_evals=2)
    with plain_jax():
        whole = ja.DiscreteIPPO(COORDINATION, None, config).train(keys, FAST)
        monkeypatch.setattr(training, "members_at_once", lambda *_: 2)
        in_parts = ja.DiscreteIPPO(COORDINATION, None, config).train(keys, FAST)
    for mine, other in zip(
        jax.tree.leaves((in_parts[0].actor, in_parts[1])),
        jax.tree.leaves((whole[0].actor, whole[1])),
        strict=True,
    ):
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-5)


def test_a_containers_limit_counts_if_it_is_lower_than_the_machines(tmp_path):
    files = {
        "proc/self/cgroup": "4:memory:/job\n1:cpu:/\n0::/outer/inner\n",
        "sys/fs/cgroup/outer/inner/memory.max": "max\n",
        "sys/fs/cgroup/outer/memory.max": "2000\n",
        "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "3000\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "sys/memory.max": "1\n",  # not of a group
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert sorted(memory._limits_of_groups(tmp_path)) == [2000, 3000, 9223372036854771712]
    assert memory._limits_of_groups(tmp_path / "elsewhere") == []


def test_the_arrays_of_an_agent_are_counted_once(monkeypatch):
    agent, calls = shared_agent(COORDINATION, batch_size=8), []
    count = memory._necessary_arrays
    monkeypatch.setattr(
        memory, "_necessary_arrays", lambda each: [calls.append(each), count(each)][1]
    )
    memory.check_fits(agent)
    memory.check_fits(agent)
    assert len(calls) <= 1
