"""Choose actions with an exported policy, using numpy alone.

jaxagents export RUN
python examples/serve.py RUN/export < observations.jsonl

Each line of the input is a JSON list of all actors' observations; each line of the output is a list
of their actions. For policies that observe the time, the lines are those of an episode.
"""

import json
import struct
import sys
from pathlib import Path

import numpy as np

ACTIVATIONS = {
    None: lambda x: x,
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0.0),
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0.0))),
    "silu": lambda x: x / (1.0 + np.exp(-x)),
    "gelu": lambda x: 0.5 * x * (1.0 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
}


def load_tensors(path):
    """Read a safetensors file: the length of its header, the header as JSON, and the values."""
    contents = Path(path).read_bytes()
    (length,) = struct.unpack("<Q", contents[:8])
    header = json.loads(contents[8 : 8 + length])
    header.pop("__metadata__", None)
    dtypes = {"F32": np.float32, "I32": np.int32}
    return {
        name: np.frombuffer(
            contents[8 + length + each["data_offsets"][0] : 8 + length + each["data_offsets"][1]],
            dtypes[each["dtype"]],
        ).reshape(each["shape"])
        for name, each in header.items()
    }


def append(features, values):
    """Append values ``[actors, n]`` to the last axis of features ``[actors, *obs]``."""
    features = features[:, None] if features.ndim == 1 else features
    values = values.reshape(len(values), *[1] * (features.ndim - 2), -1)
    values = np.broadcast_to(values, (*features.shape[:-1], values.shape[-1]))
    return np.concatenate([features, values.astype(np.float32)], axis=-1)


class Policy:
    """The most probable actions of trained actors."""

    def __init__(self, directory):
        self.description = json.loads((Path(directory) / "policy.json").read_text())
        self.tensors = load_tensors(Path(directory) / "policy.safetensors")
        if self.description["layers"] is None:
            raise ValueError(
                f"only feed-forward layers are supported: {self.description['module']}"
            )

    def act(self, observation, action_mask=None, elapsed=None):
        """Choose an action for each actor.

        Args:
            observation: ``[actors, *obs]``, without the one-hot index of `agent_id` and the time.
            action_mask: True for available actions, ``[actors, n_actions]``; of multidiscrete
                actions, those of all choices in a row.
            elapsed: Steps since the reset, for policies that observe the time.
        """
        features = np.asarray(observation, np.float32)
        self._check_shape(features.shape)
        if self.description["observation"]["agent_id"]:
            features = append(features, np.eye(len(features)))
        time_limit = self.description["observation"]["time_limit"]
        if time_limit is not None:
            if elapsed is None:
                raise ValueError(
                    "the policy observes the time; give elapsed, the steps since the reset"
                )
            share = min(elapsed / time_limit, 1.0)
            features = append(features, np.full((len(features), 1), share))
        features = features.reshape(len(features), -1)
        policies = self.description["policy_of_actor"]
        outputs = np.stack(
            [self._outputs(policy, each) for policy, each in zip(policies, features, strict=True)]
        )
        action = self.description["action"]
        if action["kind"] != "box":
            mask = True if action_mask is None else np.asarray(action_mask)
            logits = np.where(mask, outputs, -np.inf)
            if action["kind"] == "discrete":
                return logits.argmax(axis=-1)
            choices = np.split(logits, np.cumsum(action["n_choices"])[:-1], axis=-1)
            return np.stack([each.argmax(axis=-1) for each in choices], axis=-1)
        outputs = outputs.reshape(-1, *action["shape"])
        low, high = np.array(action["low"]), np.array(action["high"])
        if action["squash"]:
            outputs = low + (np.tanh(outputs) + 1.0) / 2.0 * (high - low)
        return np.clip(outputs, low, high)

    def _check_shape(self, shape):
        own = self.description["observation"].get("environment_shape")  # not in files of 1.0
        if own is None:
            return
        expected = [len(self.description["policy_of_actor"]), *own]
        if list(shape) != expected:
            raise ValueError(
                f"the observation has shape {list(shape)}; the policy takes {expected}: the actors "
                "and what the environment shows to one, without agent_id and time, appended here"
            )

    def _outputs(self, policy, features):
        limit = self.description["observation"]["normalized_within"]
        if limit is not None:
            mean, std = (self.tensors[f"observation.{name}"][policy] for name in ("mean", "std"))
            mean, std = mean.reshape(-1), std.reshape(-1)
            varies = std > 0
            features = np.where(varies, (features - mean) / np.where(varies, std, 1.0), 0.0)
            features = np.clip(features, -limit, limit)
        for layer in self.description["layers"]:
            features = features @ self.tensors[layer["kernel"]][policy]
            features = features + self.tensors[layer["bias"]][policy]
            if layer["layer_norm"] is not None:
                features = (features - features.mean()) / np.sqrt(features.var() + 1e-6)
                features = features * self.tensors[f"{layer['layer_norm']}.scale"][policy]
                features = features + self.tensors[f"{layer['layer_norm']}.bias"][policy]
            features = ACTIVATIONS[layer["activation"]](features)
        return features


if __name__ == "__main__":
    policy = Policy(sys.argv[1])
    for elapsed, line in enumerate(sys.stdin):
        print(json.dumps(policy.act(json.loads(line), elapsed=elapsed).tolist()), flush=True)
