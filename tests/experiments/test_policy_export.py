"""Exported policies act as the agent does, without jax."""

import dataclasses
import functools
import importlib
import json
import resource
import subprocess
import sys
from pathlib import Path

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from safetensors.numpy import load_file

import jaxagents as ja
from jaxagents.experiments.policy_export import export_policy
from jaxagents.networks.network import MLP, PolicyNetwork
from tests.agents import opinionated_runner, shared_agent
from tests.environments.host.probes import Observed
from tests.probes import RealWalk, Screen, Walk

SERVE = Path(__file__).parents[2] / "examples" / "serve.py"
SMALL = ja.AgentConfig(
    n_steps=1,
    batch_size=2,
    minibatch_size=1,
    rollout_length=4,
    actor_epochs=1,
    critic_epochs=1,
    normalize_observations=False,
    actor_layers=ja.Layers((8, 5)),
    critic_layers=ja.Layers((8,)),
)
NORMALIZED = (("parameter_sharing", "independent"), ("normalize_observations", True))
OBSERVATIONS = [[[0.5, -0.5], [1.0, 2.0]], [[-3.0, 0.1], [0.0, 0.7]], [[9.0, -9.0], [0.2, 0.2]]]


@pytest.fixture(scope="module")
def serve():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SERVE.parent)
        yield importlib.import_module("serve")


@functools.cache
def make_agent(*options, is_continuous=False) -> tuple[ja.IPPOBase, ja.Runner]:
    """Build an agent, and a runner with parameters that distinguish all observations."""
    config = dataclasses.replace(SMALL, **dict(options))
    agent_class, env = (
        (ja.ContinuousIPPO, RealWalk()) if is_continuous else (ja.DiscreteIPPO, Walk())
    )
    agent = agent_class(env, None, config)
    runner = opinionated_runner(agent)
    if config.normalize_observations:
        trained, _ = agent.step(runner)  # which fills the running statistics
        runner = trained.replace(actor=runner.actor)
    return agent, runner


def exported(directory, *options, is_continuous=False) -> tuple[ja.IPPOBase, ja.Runner]:
    agent, runner = make_agent(*options, is_continuous=is_continuous)
    export_policy(agent, runner, directory, "walk")
    return agent, runner


@pytest.mark.parametrize(
    "options",
    [
        (),
        pytest.param(NORMALIZED, marks=pytest.mark.slow),
        (("agent_id", True), ("actor_layers", ja.Layers((8,), activation="gelu", layer_norm=True))),
        (("actor_layers", ja.Layers((8, 8), activation="elu")), ("minibatch_unit", "step")),
        (("actor_layers", ja.Layers((8, 8), activation="silu", layer_norm=True)),),
        (("actor_layers", ja.Layers((), activation="relu")),),
    ],
    ids=["tanh", "normalized", "agent_id_gelu", "elu", "silu", "linear"],
)
def test_discrete_actions_are_the_agents(tmp_path, serve, options):
    agent, runner = exported(tmp_path, *options)
    policy = serve.Policy(tmp_path)
    for observation in OBSERVATIONS:
        expected = agent.policy(runner, jnp.array(observation))
        np.testing.assert_array_equal(policy.act(observation), expected)


def test_images_are_convolved_as_the_agent_does(tmp_path, serve):
    layers = ja.Layers((5,), layer_norm=True, channels=(3, 4), stride=2)  # the second one is padded
    agent = shared_agent(Screen(), ja.ContinuousIPPO, actor_layers=layers)
    runner = opinionated_runner(agent)
    export_policy(agent, runner, tmp_path, "screen")
    images = np.random.default_rng(0).normal(size=(2, 8, 5, 2))
    expected = agent.policy(runner, jnp.array(images))
    np.testing.assert_allclose(serve.Policy(tmp_path).act(images), expected, atol=1e-5)


@pytest.mark.parametrize("elapsed", [0, 3, 9])
def test_the_time_is_observed(tmp_path, serve, elapsed):
    time = {"max_episode_steps": 5, "observe_time": True, "agent_id": True}
    agent, runner = exported(tmp_path, *time.items())
    policy = serve.Policy(tmp_path)
    for features in OBSERVATIONS:
        observation = ja.Observation(jnp.array(features), elapsed=jnp.array(elapsed))
        expected = agent.policy(runner, observation)
        np.testing.assert_array_equal(policy.act(features, elapsed=elapsed), expected)


def test_the_shape_to_give_is_the_environments_own(tmp_path, serve):
    time = {"max_episode_steps": 5, "observe_time": True, "agent_id": True}
    exported(tmp_path, *time.items())
    observation = json.loads((tmp_path / "policy.json").read_text())["observation"]
    assert observation["environment_shape"] == [2]
    assert observation["shape"] == [2 + 2 + 1]
    policy = serve.Policy(tmp_path)
    for given in ([2, 5], [2, 3], [3, 2], [2]):
        with pytest.raises(ValueError, match="the observation has shape") as raised:
            policy.act(np.zeros(given), elapsed=0)
        start = f"the observation has shape {given}; the policy takes [2, 2]: the actors and"
        assert str(raised.value).startswith(start)


def test_files_without_the_shape_to_give_are_served(tmp_path, serve):
    exported(tmp_path)
    path = tmp_path / "policy.json"
    description = json.loads(path.read_text())
    del description["observation"]["environment_shape"]
    path.write_text(json.dumps(description))
    assert serve.Policy(tmp_path).act(OBSERVATIONS[0]).shape == (2,)


def test_values_are_appended_to_the_last_axis(serve):
    appended = serve.append(np.zeros((2, 3, 1), np.float32), np.array([[1.0, 2.0], [3.0, 4.0]]))
    expected = [[[0.0, 1.0, 2.0]] * 3, [[0.0, 3.0, 4.0]] * 3]
    np.testing.assert_array_equal(appended, expected)
    assert serve.append(np.zeros(2, np.float32), np.ones((2, 1))).shape == (2, 2)


def test_masked_actions_are_not_chosen(tmp_path, serve):
    exported(tmp_path)
    policy = serve.Policy(tmp_path)
    for only in range(3):
        mask = np.arange(3) == only
        assert policy.act(OBSERVATIONS[0], [mask, mask]).tolist() == [only, only]


@pytest.mark.parametrize("squash", [True, False])
def test_continuous_actions_are_the_agents(tmp_path, serve, squash):
    agent, runner = exported(tmp_path, ("squash", squash), is_continuous=True)
    policy = serve.Policy(tmp_path)
    for observation in OBSERVATIONS:
        expected = agent.policy(runner, jnp.array(observation))
        np.testing.assert_allclose(policy.act(observation), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_the_example_reads_the_tensors_as_the_library_does(tmp_path, serve):
    exported(tmp_path, *NORMALIZED)
    reader = importlib.import_module("policy_reader")
    own, expected = (
        load(tmp_path / "policy.safetensors") for load in (reader.load_tensors, load_file)
    )
    assert own.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(own[name], values)
    description = json.loads((tmp_path / "policy.json").read_text())
    assert description["tensors"] == {name: list(each.shape) for name, each in expected.items()}
    assert description["policy_of_actor"] == [0, 1]


def test_the_example_serves_actions_without_jax(tmp_path):
    agent, runner = exported(tmp_path)
    lines = "".join(json.dumps(each) + "\n" for each in OBSERVATIONS)
    code = "\n".join(
        [
            "import runpy, sys",
            f"sys.path.insert(0, {str(SERVE.parent)!r})",
            f"sys.argv = ['serve', {str(tmp_path)!r}]",
            f"runpy.run_path({str(SERVE)!r}, run_name='__main__')",
            "assert 'jax' not in sys.modules",
        ]
    )
    finished = subprocess.run(
        [sys.executable, "-c", code], input=lines, capture_output=True, text=True, check=True
    )
    actions = [json.loads(line) for line in finished.stdout.splitlines()]
    assert actions == [agent.policy(runner, jnp.array(each)).tolist() for each in OBSERVATIONS]


def exported_mild(directory, *options) -> tuple[ja.IPPOBase, ja.Runner]:
    """Export a policy whose actions lie within their bounds."""
    agent, runner = make_agent(("squash", True), *options, is_continuous=True)
    params = jax.tree.map(lambda leaf: 0.3 * leaf, runner.actor.params)
    runner = runner.replace(actor=runner.actor._replace(params=params))
    export_policy(agent, runner, directory, "walk")
    return agent, runner


@pytest.mark.parametrize(
    "options",
    [
        (("recurrent", "gru"), ("parameter_sharing", "independent")),
        pytest.param((("recurrent", "lstm"), ("agent_id", True)), marks=pytest.mark.slow),
        pytest.param(
            (
                ("recurrent", "mingru"),
                ("actor_layers", ja.Layers((8,), sizes_after_memory=(4,), layer_norm=True)),
            ),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["gru", "lstm", "mingru"],
)
def test_recurrent_policies_remember_as_the_agent_does(tmp_path, serve, options):
    agent, runner = exported_mild(tmp_path, *options)
    policy = serve.Policy(tmp_path)
    carry = agent.initial_carry()
    for step, observation in enumerate([*OBSERVATIONS, *OBSERVATIONS, *OBSERVATIONS]):
        if step == 3:  # the first actor's episode begins anew
            policy.reset([0])
            carry = agent.reset_carry(carry, np.array([True, False]))
        if step == 6:
            policy.reset()
            carry = agent.initial_carry()
        expected, carry = agent.policy(runner, jnp.array(observation), carry)
        np.testing.assert_allclose(policy.act(observation), expected, rtol=1e-5, atol=1e-5)


def test_what_a_recurrent_policy_remembers_decides(tmp_path, serve):
    exported_mild(tmp_path, ("recurrent", "gru"), ("parameter_sharing", "independent"))
    policy = serve.Policy(tmp_path)
    first, later = (policy.act(OBSERVATIONS[0]) for _ in range(2))
    policy.reset()
    assert np.abs(first - later).max() > 1e-3
    np.testing.assert_array_equal(policy.act(OBSERVATIONS[0]), first)


@pytest.mark.parametrize(
    ("observation", "message"),
    [
        ([[0.0, np.nan], [0.0, 0.0]], "NaN or infinity"),
        ([[0.0, 0.0], [-np.inf, 0.0]], "NaN or infinity"),
        ([[1e39, 0.0], [0.0, 0.0]], "NaN or infinity, or exceeds float32"),
        ([["a", 0.0], [0.0, 0.0]], "no array of numbers"),
        ([[0.0], [0.0, 0.0]], "no array of numbers"),
    ],
)
@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
def test_wrong_observations_are_refused(tmp_path, serve, observation, message):
    exported(tmp_path)
    with pytest.raises(ValueError, match=message):
        serve.Policy(tmp_path).act(observation)


@pytest.mark.parametrize(
    ("mask", "message"),
    [([[True] * 3] * 3, r"shape \[3, 3\]"), ([[True] * 3, [False] * 3], "without any action")],
)
def test_wrong_masks_are_refused(tmp_path, serve, mask, message):
    exported(tmp_path)
    with pytest.raises(ValueError, match=message):
        serve.Policy(tmp_path).act(OBSERVATIONS[0], mask)


def test_the_program_answers_a_bad_line_and_goes_on(tmp_path, serve, capsys):
    exported(tmp_path)
    policy = serve.Policy(tmp_path)
    good = json.dumps(OBSERVATIONS[0])
    serve.serve(policy, [good, "[[NaN, 0], [0, 0]]", "no json", "7", "null", good])
    first, nan, no_json, number, again = map(json.loads, capsys.readouterr().out.splitlines())
    assert again == first
    assert all(list(each) == ["error"] for each in (nan, no_json, number))


def test_padding_and_dictionaries_are_described_and_served(tmp_path, serve):
    spaces = gymnasium.spaces
    space = spaces.Dict({"far": spaces.Box(-1, 1, (2,)), "kind": spaces.Discrete(3)})
    env = ja.HostEnvironment(lambda: Observed(space, {"far": np.ones(2, "f4"), "kind": 1}))
    agent = ja.DiscreteIPPO(env, None, SMALL)
    params = agent.networks.init_actor(jax.random.key(0))
    params = jax.tree.map(lambda leaf: leaf[None], params)
    runner = agent.runners.shapes()
    export_policy(agent, runner.replace(actor=runner.actor._replace(params=params)), tmp_path, "")
    (actor,) = json.loads((tmp_path / "policy.json").read_text())["actors"]
    assert actor == {"name": None, "shape": [5], "parts": [["far", 2], ["kind", 3]]}
    policy = serve.Policy(tmp_path)
    flat = policy.act([[0.5, -0.5, 0.0, 1.0, 0.0]])
    assert policy.act([{"kind": [0, 1, 0], "far": [0.5, -0.5]}]) == flat
    with pytest.raises(ValueError, match="has the keys"):
        policy.act([{"kind": [0, 1, 0]}])
    policy.description["observation"]["environment_shape"] = [7]
    assert policy._as_array([[1, 2, 3, 4, 5]]).tolist() == [[1, 2, 3, 4, 5, 0, 0]]


def test_networks_with_an_activation_of_the_users_are_exported_without_a_list_of_layers(tmp_path):
    network = PolicyNetwork(3, MLP(1, (8,), activation=nn.softplus))
    agent = ja.DiscreteIPPO(Walk(), None, dataclasses.replace(SMALL, actor_network=network))
    runner = agent.runners.shapes()
    params = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), runner.actor.params)
    export_policy(agent, runner.replace(actor=runner.actor._replace(params=params)), tmp_path, "")
    description = json.loads((tmp_path / "policy.json").read_text())
    assert description["layers"] is None
    assert "softplus" in description["module"]


def test_nothing_is_overwritten(tmp_path):
    exported(tmp_path)
    with pytest.raises(ValueError, match=r"policy.safetensors exists already; move it away"):
        exported(tmp_path)


def test_half_an_export_is_none(tmp_path):
    agent, runner = make_agent()
    limit, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, most))
    try:
        with pytest.raises(OSError, match=r"File too large: '.*/policy.safetensors'"):
            export_policy(agent, runner, tmp_path, "walk")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, most))
    assert list(tmp_path.iterdir()) == []
