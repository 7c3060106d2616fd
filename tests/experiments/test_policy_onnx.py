"""Policies exported to ONNX act as the agent does."""

import sys
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

import jaxagents as ja
from jaxagents.experiments.policy_export import export_policy
from jaxagents.ippo.distributions import UNAVAILABLE
from jaxagents.networks.network import MLP, PolicyNetwork
from jaxagents.ppo.normalization import RunningStatistics
from tests.agents import opinionated_runner, shared_agent
from tests.probes import Chords, RealWalk, Screen, Walk

MASKED, REAL, CHORDS, SCREEN = Walk(masked=True), RealWalk(), Chords(), Screen()
slow = pytest.mark.slow


def layers(**changes) -> ja.Layers:
    return ja.Layers(hidden_sizes=(8, 5), sizes_after_memory=(4,), memory_size=8, **changes)


def with_statistics(agent: ja.IPPOBase, runner: ja.Runner) -> ja.Runner:
    """Give the second feature a variance of 0: it never varied."""
    if runner.normalizers.observation is None:
        return runner
    shape = runner.normalizers.observation.mean.shape
    statistics = RunningStatistics(
        weight=jnp.ones(shape[0]),
        mean=jnp.linspace(-1.0, 1.0, np.prod(shape)).reshape(shape),
        variance=jnp.full(shape, 0.25).at[:, 1].set(0.0),
    )
    return runner.replace(normalizers=runner.normalizers._replace(observation=statistics))


def draw_observation(agent: ja.IPPOBase, step: int) -> ja.Observation:
    """Draw features, and mask each actor's first action at odd steps, the last one at even ones."""
    generator = np.random.default_rng(step)
    own = agent.environments.own_observation
    mask = own.action_mask
    if mask is not None:
        mask = np.ones(mask.shape, bool)
        mask[:, -(1 - step % 2)] = False
    features = generator.normal(size=own.features.shape).astype(np.float32)
    elapsed = None if agent.config.max_episode_steps is None else jnp.array(step)
    return ja.Observation(features=features, action_mask=mask, elapsed=elapsed)


@pytest.mark.parametrize(
    ("env", "options"),
    [
        (MASKED, {"normalize_observations": True, "agent_id": True}),
        (REAL, {"squash": True, "parameter_sharing": "independent"}),
        (REAL, {"recurrent": "gru", "squash": True, "parameter_sharing": "independent"}),
        pytest.param(
            REAL, {"recurrent": "lstm", "squash": False, "actor_layers": layers()}, marks=slow
        ),
        pytest.param(
            REAL, {"recurrent": "mingru", "actor_layers": layers(layer_norm=True)}, marks=slow
        ),
        pytest.param(
            SCREEN,
            {"parameter_sharing": "independent", "actor_layers": layers(channels=(3, 4, 2))},
            marks=slow,
        ),
        pytest.param(
            SCREEN,
            {"agent_id": True, "actor_layers": layers(channels=(3,), stride=2, layer_norm=True)},
            marks=slow,
        ),
        pytest.param(CHORDS, {"actor_layers": layers(activation="gelu")}, marks=slow),
        pytest.param(
            MASKED,
            {
                "max_episode_steps": 5,
                "observe_time": True,
                "agent_id": True,
                "actor_layers": layers(activation="elu"),
            },
            marks=slow,
        ),
        pytest.param(MASKED, {"actor_layers": layers(activation="silu")}, marks=slow),
    ],
    ids=lambda value: "-".join(map(str, value)) if isinstance(value, dict) else None,
)
def test_onnx_acts_as_the_agent_does(tmp_path, env, options):
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra onnx")
    is_continuous = env in (REAL, SCREEN)
    kind = ja.ContinuousIPPO if is_continuous else ja.DiscreteIPPO
    agent = shared_agent(env, kind, **options)
    runner = with_statistics(agent, opinionated_runner(agent))
    params = jax.tree.map(lambda leaf: 0.3 * leaf, runner.actor.params)  # within the bounds
    runner = runner.replace(actor=runner.actor._replace(params=params))
    *_, path = export_policy(agent, runner, tmp_path, "walk", onnx=True)
    session = onnxruntime.InferenceSession(path)
    inputs = {each.name: each for each in session.get_inputs()}
    outputs = [each.name for each in session.get_outputs()]
    remembered = inputs.keys() & {"hidden", "cell"}
    memory = {name: np.zeros(inputs[name].shape, np.float32) for name in remembered}
    carry = None if agent.config.recurrent is None else agent.initial_carry()
    for step in range(3):
        observation = draw_observation(agent, step)
        expected = agent.policy(runner, observation, carry)
        if carry is not None:
            expected, carry = expected
        given = {
            "observation": observation.features,
            "elapsed": np.array(step, np.float32),
            "action_mask": observation.action_mask,
            **memory,
        }
        found = session.run(None, {name: given[name] for name in inputs})
        found = dict(zip(outputs, found, strict=True))
        np.testing.assert_allclose(found["action"], expected, rtol=1e-5, atol=1e-5)
        if not is_continuous:
            logits = found["action_parameters"]
            if observation.action_mask is not None:
                logits = np.where(observation.action_mask, logits, UNAVAILABLE)
            expected = logits_of(agent, runner, observation)
            np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-5)
        memory = {name: found[f"next_{name}"] for name in memory}


@partial(jax.jit, static_argnums=0)
def logits_of(agent: ja.IPPOBase, runner: ja.Runner, observation: ja.Observation) -> jax.Array:
    one_env = jax.tree.map(lambda leaf: leaf[None], agent.environments.prepare(observation))
    return agent.networks.dist_params(agent.networks.actor_of(runner), one_env, ())[0][0]


def refused(agent: ja.IPPOBase, directory: Path) -> str:
    """Return why an export to ONNX is refused, which writes nothing."""
    with pytest.raises((ImportError, ValueError)) as error:
        export_policy(agent, opinionated_runner(agent), directory, "walk", onnx=True)
    assert list(directory.iterdir()) == []
    return str(error.value)


def test_a_network_of_the_users_is_refused_by_name(tmp_path):
    network = PolicyNetwork(3, MLP(1, (8,), activation=nn.softplus))
    message = refused(shared_agent(actor_network=network), tmp_path)
    assert message.startswith("ONNX is written for configured layers only, not for PolicyNetwork(")
    assert "\n" not in message


def test_without_onnx_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    message = refused(shared_agent(), tmp_path)
    assert "the export to ONNX needs onnx, which is not installed: pip install" in message
    assert '".[onnx]"' in message
