"""Training on several devices: as on one."""

import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxagents as ja
from jaxagents.compiler.devices import Devices
from jaxagents.ippo.population.training import check_can_be_population
from tests.agents import COORDINATION, FAST, shared_agent, tiny
from tests.ippo import divided_training
from tests.probes import Pennies, heads

KEYS = jax.vmap(jax.random.key)(jnp.arange(2))


def run(*arguments):
    command = [sys.executable, "-m", "tests.ippo.divided_training", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    "case",
    [
        case if case == "early-stopped" else pytest.param(case, marks=pytest.mark.slow)
        for case in divided_training.CASES
    ],
)
def test_four_devices_learn_what_one_does(case):
    result = run(case)
    assert max(result["state"].values()) < 1e-5
    assert max(result["metrics"].values()) < 1e-5
    if case == "early-stopped":
        assert 1 < result["epochs"] < 8


@pytest.mark.slow
def test_several_minibatches_make_as_many_steps_on_several_devices():
    counts = run("count")
    assert counts["1"] == counts["4"] == 3 * 4 * 4  # updates, epochs, minibatches


@pytest.mark.slow
def test_agents_that_train_together_on_several_devices_are_reported():
    assert run("together") == [0, 1, 2]


@pytest.mark.slow
def test_a_run_is_resumed_on_another_number_of_devices(tmp_path):
    differences = run("resume", tmp_path)
    assert differences["2"] == 0
    assert max(differences.values()) < 1e-5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"devices": 4}, "minibatch_size=2 does not divide among devices=4"),
        ({"devices": 2, "n_evals": 3}, "n_evals=3 does not divide among devices=2"),
        (
            {"devices": 2, "replay_updates": 1, "advantages": "vtrace"},
            "keeps rollouts on one device, but devices=2",
        ),
    ],
)
def test_what_does_not_divide_is_refused(changes, message):
    agent = ja.DiscreteIPPO(COORDINATION, None, tiny(**changes))
    with pytest.raises(ValueError, match=message):
        agent.train(KEYS[0], FAST)
    with pytest.raises(ValueError, match=message):
        agent.step(agent.init(KEYS[0], FAST))


def test_no_devices_are_refused():
    with pytest.raises(ValueError, match="devices=0 is too small"):
        tiny(devices=0)


def test_only_the_devices_of_a_member_divide_its_environments():
    agent = ja.DiscreteIPPO(COORDINATION, None, tiny(devices=4, n_evals=3))
    message = "n_evals=3 does not divide among devices=4, of which 2 train each of 2 members"
    with pytest.raises(ValueError, match=message):
        agent.train(KEYS, FAST)
    check_can_be_population(agent, n_members=4)


def test_the_members_of_a_vmap_are_not_divided():
    agent = ja.DiscreteIPPO(COORDINATION, None, tiny(devices=2))
    with pytest.raises(ValueError, match="devices=2 divide single runs and populations"):
        jax.vmap(agent.train, in_axes=(0, None))(KEYS, FAST)


@pytest.mark.parametrize(
    ("n", "n_members", "shape"), [(4, 8, (4, 1)), (4, 2, (2, 2)), (4, 3, (1, 4)), (4, 1, (1, 4))]
)
def test_members_are_divided_before_environments(n, n_members, shape):
    devices = Devices(n, n_members)
    assert (devices.n_groups, devices.n_per_member) == shape


def test_more_devices_than_there_are_are_refused():
    n = 2 * len(jax.local_devices())
    agent = ja.DiscreteIPPO(
        COORDINATION, None, tiny(devices=n, minibatch_size=n, batch_size=n, n_evals=n)
    )
    with pytest.raises(ValueError, match=f"devices={n}, but jax sees .* simulates more"):
        agent.train(KEYS[0], FAST)


@pytest.mark.slow
def test_policies_trained_on_many_devices_play_on_one(tmp_path):
    changes = {"checkpoint_dir": tmp_path, "n_evals": 64, "minibatch_size": 4}
    ja.DiscreteIPPO(COORDINATION, None, tiny(**changes)).train(KEYS[0], FAST)
    agent = ja.DiscreteIPPO(COORDINATION, None, tiny(**changes, devices=4))
    runner, _ = agent.restore("last")
    assert agent.eval(KEYS[0], 2, runner=runner)["returns"].shape == (2, COORDINATION.n_actors)


@pytest.mark.slow  # compiles a training under vmap
def test_an_axis_of_the_users_does_not_divide_anything():
    agent = shared_agent(COORDINATION)
    train = jax.vmap(agent.train, in_axes=(0, None), axis_name="devices")
    _, metrics = jax.jit(train)(KEYS, FAST)
    _, alone = agent.train(KEYS[1], FAST)
    np.testing.assert_allclose(metrics["returns"][1], alone["returns"], rtol=1e-5)


def test_environments_with_opponents_are_not_divided():
    side = ja.Side(Pennies(), [0], opponents=heads)
    agent = ja.DiscreteIPPO(side, None, tiny(devices=2))
    with pytest.raises(ValueError, match="devices=2, but these environments cannot be divided"):
        agent.train(KEYS[0], FAST)


def test_programs_of_one_device_have_no_collectives():
    agent = shared_agent(COORDINATION)
    program = type(agent).step_and_check.__wrapped__
    text = str(jax.make_jaxpr(lambda runner: program(agent, runner))(agent.init(KEYS[0], FAST)))
    assert "psum" not in text
    assert "shard_map" not in text
