"""Export trained policies as safetensors and JSON, for use without jax and this package.

``policy.safetensors`` holds the actors' parameters ``[policies, ...]`` under their names in
checkpoints. ``policy.json`` describes observations, actions, layers and the policy of each actor.
`examples/serve.py` chooses actions from both files with numpy alone.
"""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import linen as nn
from safetensors.numpy import save

from jaxagents.environments.spaces import ActionSpace, Discrete, MultiDiscrete
from jaxagents.ippo.base import IPPOBase
from jaxagents.networks.feed_forward import ACTIVATIONS, MLP, PolicyNetwork
from jaxagents.ppo.normalization import FEATURE_LIMIT, standard_deviation
from jaxagents.training.named_arrays import Leaves, to_leaves
from jaxagents.types import Runner

FORMAT_VERSION = 1
_LAST_BIAS = ".params.Dense_0.bias"


def export_policy(agent: IPPOBase, runner: Runner, directory: Path, env_id: str) -> list[Path]:
    """Write both files to a directory; overwrite nothing.

    Returns:
        The paths of the files.

    Raises:
        ValueError: one of the files exists already.
        OSError: the files cannot be written.
    """
    paths = [directory / "policy.safetensors", directory / "policy.json"]
    for path in paths:
        if path.exists():
            raise ValueError(f"{path} exists already; move it away, or export elsewhere.")
    tensors = _tensors(runner)
    description = json.dumps(_describe(agent, tensors) | {"environment": env_id}, indent=2)
    directory.mkdir(parents=True, exist_ok=True)
    paths[0].write_bytes(save(tensors))
    paths[1].write_text(description + "\n", encoding="utf-8")
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
        # The environment's own, to which with agent_id the actor's one-hot index is appended, and
        # with a time_limit the share of it that has passed; "shape" is what networks receive.
        "observation": {
            "environment_shape": list(environments.own_observation.features.shape[1:]),
            "shape": list(observation.shape[1:]),
            "dtype": str(observation.dtype),
            "agent_id": agent.config.agent_id,
            "time_limit": limit.n_steps if limit.is_observed else None,
            "normalized_within": None if "observation.mean" not in tensors else FEATURE_LIMIT,
        },
        "action": _describe_action(environments.space, agent.config.squash),
        "layers": _describe_layers(network.module, tensors),
        "module": " ".join(repr(network.module).split()),
        "tensors": {name: list(values.shape) for name, values in tensors.items()},
    }


def _describe_action(space: ActionSpace, squash: bool) -> dict[str, Any]:
    if isinstance(space, Discrete):
        return {"kind": "discrete", "n": space.n}
    if isinstance(space, MultiDiscrete):
        return {"kind": "multidiscrete", "n_choices": list(space.n_choices)}
    return {
        "kind": "box",
        "shape": list(space.shape),
        "low": np.broadcast_to(space.low, space.shape).tolist(),
        "high": np.broadcast_to(space.high, space.shape).tolist(),
        "squash": squash,
    }


def _describe_layers(module: nn.Module, tensors: Leaves) -> list[dict[str, Any]] | None:
    """List the layers of a feed-forward network; return None for any other network."""
    if type(module) is not PolicyNetwork or type(module.torso) is not MLP:
        return None
    names = {each: name for name, each in ACTIVATIONS.items()}
    if module.torso.activation not in names:
        return None
    (last_bias,) = (name for name in tensors if name.endswith(_LAST_BIAS))
    prefix = last_bias.removesuffix(".Dense_0.bias")
    hidden = [
        {
            "kernel": f"{prefix}.torso.Dense_{i}.kernel",
            "bias": f"{prefix}.torso.Dense_{i}.bias",
            "layer_norm": f"{prefix}.torso.LayerNorm_{i}" if module.torso.layer_norm else None,
            "activation": names[module.torso.activation],
        }
        for i in range(len(module.torso.hidden_sizes))
    ]
    last = {"kernel": f"{prefix}.Dense_0.kernel", "bias": f"{prefix}.Dense_0.bias"}
    return [*hidden, {**last, "layer_norm": None, "activation": None}]
