"""Export trained policies as safetensors and JSON, for use without jax and this package.

``policy.safetensors`` holds the actors' parameters ``[policies, ...]`` under their names in
checkpoints. ``policy.json`` describes observations, actions, layers and the policy of each actor. A
recurrent cell is one of the layers, with the tensors of its gates.
`examples/serve.py` chooses actions from both files with numpy alone. `policy_onnx` writes the same
as ONNX.
"""

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import linen as nn
from safetensors.numpy import save

from jaxagents.environments.host.environment import HostEnvironment
from jaxagents.environments.spaces import ActionSpace, Discrete, MultiDiscrete
from jaxagents.experiments.policy_onnx import onnx_model
from jaxagents.ippo.base import IPPOBase
from jaxagents.networks.network import ACTIVATIONS, CNN, KERNEL_SIZE, MLP, PolicyNetwork
from jaxagents.networks.recurrent import RecurrentNetwork
from jaxagents.ppo.normalization import FEATURE_LIMIT, standard_deviation
from jaxagents.training.atomic_write import replacing, write_atomically
from jaxagents.training.named_arrays import Leaves, to_leaves
from jaxagents.types import Runner

FORMAT_VERSION = 1
_PARAMS = ".params"
_A_GATE = {"gru": "update", "lstm": "forget", "mingru": "update"}


def export_policy(
    agent: IPPOBase, runner: Runner, directory: Path, env_id: str, onnx: bool = False
) -> list[Path]:
    """Write the files to a directory; overwrite nothing.

    Returns:
        The paths of the files.

    Raises:
        ImportError: ``onnx`` without the extra of that name.
        ValueError: one of the files exists already, or ``onnx`` with a network of the user's own.
        OSError: the files cannot be written.
    """
    names = ["policy.safetensors", "policy.json", *(["policy.onnx"] if onnx else [])]
    paths = [directory / name for name in names]
    for path in paths:
        if path.exists():
            raise ValueError(f"{path} exists already; move it away, or export elsewhere.")
    tensors = _tensors(runner)
    description = _describe(agent, tensors) | {"environment": env_id}
    model = onnx_model(description, tensors) if onnx else None
    directory.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:  # all or none
        stack.enter_context(replacing(paths[0])).write_bytes(save(tensors))
        if model is not None:
            stack.enter_context(replacing(paths[2])).write_bytes(model)
        write_atomically(paths[1], json.dumps(description, indent=2) + "\n")
    return paths


def _tensors(runner: Runner) -> Leaves:
    tensors = to_leaves({"actor": jax.device_get(runner.actor.params)})
    statistics = runner.normalizers.observation
    if statistics is not None:
        tensors["observation.mean"] = np.array(statistics.mean)
        tensors["observation.std"] = np.array(standard_deviation(statistics))
    return tensors


def _describe(agent: IPPOBase, tensors: Leaves) -> dict[str, Any]:
    """Describe how to compute actions from the tensors, as plain data."""
    environments, network = agent.environments, agent.networks.actor
    observation = environments.observation.features
    limit = environments.time_limit
    return {
        "format_version": FORMAT_VERSION,
        "policy_of_actor": agent.policies.policy_of_actor.tolist(),
        # In the order of observations and actions. Shorter vectors are padded with zeros at the
        # end; parts of a dictionary or tuple are flattened in this order, numbers as one-hot.
        "actors": _describe_actors(agent.env, environments.n_actors),
        # The environment's own shape. agent_id appends the actor's one-hot index, and time_limit
        # the share of it that has passed; "shape" is what networks receive.
        "observation": {
            "environment_shape": list(environments.own_observation.features.shape[1:]),
            "shape": list(observation.shape[1:]),
            "dtype": str(observation.dtype),
            "agent_id": agent.config.agent_id,
            "time_limit": limit.n_steps if limit.is_observed else None,
            "normalized_within": None if "observation.mean" not in tensors else FEATURE_LIMIT,
        },
        "action": _describe_action(
            environments.space,
            agent.config.squash,
            environments.observation.action_mask is not None,
        ),
        "layers": _describe_layers(network.module, tensors, observation.shape[1:]),
        "module": " ".join(repr(network.module).split()),
        "tensors": {name: list(values.shape) for name, values in tensors.items()},
    }


def _describe_action(space: ActionSpace, squash: bool, masked: bool) -> dict[str, Any]:
    if isinstance(space, Discrete):
        return {"kind": "discrete", "n": space.n, "masked": masked}
    if isinstance(space, MultiDiscrete):
        return {"kind": "multidiscrete", "n_choices": list(space.n_choices), "masked": masked}
    return {
        "kind": "box",
        "shape": list(space.shape),
        "low": np.broadcast_to(space.low, space.shape).tolist(),
        "high": np.broadcast_to(space.high, space.shape).tolist(),
        "squash": squash,
    }


def _describe_actors(env: Any, n_actors: int) -> list[dict[str, Any]] | None:
    """List the actors in order, with each one's shape before padding; None: all have the same."""
    if isinstance(env, HostEnvironment):
        return env.inputs
    library: Any = getattr(env, "env", env)  # JaxMARL's, below its adapter
    names = list(getattr(library, "agents", ()))
    if len(names) != n_actors or not callable(getattr(library, "observation_space", None)):
        return None
    shapes = [getattr(library.observation_space(name), "shape", None) for name in names]
    return [
        {"name": str(name), "shape": None if shape is None else list(shape), "parts": None}
        for name, shape in zip(names, shapes, strict=True)
    ]


def _describe_layers(
    module: nn.Module, tensors: Leaves, shape: Sequence[int]
) -> list[dict[str, Any]] | None:
    """List the layers of configured networks in order; return None for any other network.

    Args:
        module: The actor's network.
        tensors: Its parameters.
        shape: Shape of its input.
    """
    if type(module) is not RecurrentNetwork:
        return _describe_feed_forward(module, tensors, shape)
    after = _describe_feed_forward(module.after, tensors, shape, ".after")
    (update,) = (
        name for name in tensors if name.endswith(f"{_PARAMS}.{_A_GATE[module.cell]}_bias")
    )
    prefix = update.removesuffix(f".{_A_GATE[module.cell]}_bias")
    before = _describe_hidden(module.torso, f"{prefix}.torso", shape)
    if before is None or after is None:
        return None
    gates = [
        name.removeprefix(f"{prefix}.").removesuffix("_bias")
        for name in tensors
        if name.startswith(f"{prefix}.")
        and name.count(".") == prefix.count(".") + 1
        and name.endswith("_bias")
    ]
    parts = {
        gate: {
            kind: name if (name := f"{prefix}.{gate}_{kind}") in tensors else None
            for kind in ("input_kernel", "memory_kernel", "bias")
        }
        for gate in gates
    }
    return [*before, {"cell": module.cell, "size": module.size, "gates": parts}, *after]


def _describe_feed_forward(
    module: nn.Module | None, tensors: Leaves, shape: Sequence[int], place: str = ""
) -> list[dict[str, Any]] | None:
    if type(module) is not PolicyNetwork:
        return None
    ending = f"{_PARAMS}{place}.Dense_0.bias"
    (last_bias,) = (name for name in tensors if name.endswith(ending))
    prefix = last_bias.removesuffix(".Dense_0.bias")
    hidden = _describe_hidden(module.torso, f"{prefix}.torso", shape)
    if hidden is None:
        return None
    last = {"kernel": f"{prefix}.Dense_0.kernel", "bias": last_bias}
    return [*hidden, {**last, "layer_norm": None, "activation": None}]


def _describe_hidden(
    torso: nn.Module, prefix: str, shape: Sequence[int]
) -> list[dict[str, Any]] | None:
    names = {each: name for name, each in ACTIVATIONS.items()}
    if type(torso) not in (MLP, CNN) or torso.activation not in names:
        return None

    def layer(prefix: str, i: int) -> dict[str, Any]:
        return {
            "kernel": f"{prefix}.Dense_{i}.kernel",
            "bias": f"{prefix}.Dense_{i}.bias",
            "layer_norm": f"{prefix}.LayerNorm_{i}" if torso.layer_norm else None,
            "activation": names[torso.activation],
        }

    convolutions = []
    if isinstance(torso, CNN):
        smallest = min(shape[:2])
        for i in range(len(torso.channels)):
            padding = KERNEL_SIZE // 2 if smallest <= KERNEL_SIZE else 0
            convolution = {"stride": torso.stride, "padding": padding}
            convolutions.append(layer(prefix, i) | {"convolution": convolution})
            smallest = (smallest + 2 * padding - KERNEL_SIZE) // torso.stride + 1
        prefix = f"{prefix}.MLP_0"
    return [*convolutions, *(layer(prefix, i) for i in range(len(torso.hidden_sizes)))]
