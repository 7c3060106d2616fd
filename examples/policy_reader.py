"""Act with an exported policy by numpy alone: the lines to copy, or to port.

reader = Reader("RUN/export")
memory = reader.empty_memory()  # at the start of each episode
actions, memory = reader.step(features, memory)

``features`` ``[actors, *shape]`` are what policy.json calls observation.shape: serve.py makes them
from the environment's observations, and checks them.
"""

import json
from pathlib import Path

import numpy as np

ACTIVATIONS = {
    None: lambda x: x,
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0.0),
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0.0))),
    "silu": lambda x: x * _sigmoid(x),
    "gelu": lambda x: 0.5 * x * (1.0 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
}


def _sigmoid(x):
    return 0.5 * (1.0 + np.tanh(0.5 * x))


def _gru(gate, memory):
    candidate = np.tanh(gate["candidate"] + _sigmoid(gate["reset"]) * gate["recollection"])
    update = _sigmoid(gate["update"])
    return {"hidden": (1.0 - update) * candidate + update * memory["hidden"]}


def _lstm(gate, memory):
    cell = _sigmoid(gate["forget"]) * memory["cell"]
    cell = cell + _sigmoid(gate["input"]) * np.tanh(gate["candidate"])
    return {"cell": cell, "hidden": _sigmoid(gate["output"]) * np.tanh(cell)}


def _mingru(gate, memory):
    update = _sigmoid(gate["update"])
    return {"hidden": (1.0 - update) * memory["hidden"] + update * gate["candidate"]}


_CELLS = {"gru": _gru, "lstm": _lstm, "mingru": _mingru}


def load_tensors(path):
    """Read a safetensors file: its header's length, the header as JSON, and float32 values."""
    contents = Path(path).read_bytes()
    length = int.from_bytes(contents[:8], "little")
    header, data = json.loads(contents[8 : 8 + length]), contents[8 + length :]
    header.pop("__metadata__", None)
    return {
        name: np.frombuffer(data[slice(*each["data_offsets"])], "<f4").reshape(each["shape"])
        for name, each in header.items()
    }


class Reader:
    """The most probable actions of trained actors."""

    def __init__(self, directory):
        self.description = json.loads((Path(directory) / "policy.json").read_text())
        tensors = load_tensors(Path(directory) / "policy.safetensors")
        if self.description["layers"] is None:
            raise ValueError(f"only configured layers are supported: {self.description['module']}")
        self._tensors_of_actor = [
            {name: values[policy] for name, values in tensors.items()}
            for policy in self.description["policy_of_actor"]
        ]

    def empty_memory(self):
        """Return the memories of all actors at the start of an episode."""
        sizes = [layer["size"] for layer in self.description["layers"] if "cell" in layer]
        empty = {name: np.zeros(sizes[0]) for name in ("cell", "hidden")} if sizes else {}
        return [empty] * len(self._tensors_of_actor)

    def step(self, features, memory, action_mask=True):
        """Map the networks' inputs and the memories to actions and the next memories."""
        each_actor = zip(self._tensors_of_actor, features, memory, strict=True)
        outputs, memory = zip(*(self._network(*actor) for actor in each_actor), strict=True)
        return self._action(np.stack(outputs), action_mask), list(memory)

    def _action(self, outputs, action_mask):
        action = self.description["action"]
        if action["kind"] == "box":
            outputs = outputs.reshape(-1, *action["shape"])
            low, high = np.array(action["low"]), np.array(action["high"])
            if action["squash"]:
                outputs = low + (np.tanh(outputs) + 1.0) / 2.0 * (high - low)
            return np.clip(outputs, low, high)
        logits = np.where(action_mask, outputs, -np.inf)
        if action["kind"] == "discrete":
            return logits.argmax(axis=-1)
        choices = np.split(logits, np.cumsum(action["n_choices"])[:-1], axis=-1)
        return np.stack([each.argmax(axis=-1) for each in choices], axis=-1)

    def _network(self, tensors, x, memory):
        limit = self.description["observation"]["normalized_within"]
        if limit is not None:
            mean, std = tensors["observation.mean"], tensors["observation.std"]
            x = np.where(std > 0, (x - mean) / np.where(std > 0, std, 1.0), 0.0)
            x = np.clip(x, -limit, limit)
        for layer in self.description["layers"]:
            x = _patches(x, **layer["convolution"]) if "convolution" in layer else np.ravel(x)
            if "cell" in layer:
                memory = _remember(tensors, layer, x, memory)
                x = memory["hidden"]
                continue
            x = x @ tensors[layer["kernel"]] + tensors[layer["bias"]]
            if layer["layer_norm"] is not None:
                x = x - x.mean(axis=-1, keepdims=True)
                x = x / np.sqrt(np.square(x).mean(axis=-1, keepdims=True) + 1e-6)
                x = x * tensors[f"{layer['layer_norm']}.scale"]
                x = x + tensors[f"{layer['layer_norm']}.bias"]
            x = ACTIVATIONS[layer["activation"]](x)
        return x, memory


def _patches(image, stride, padding):
    """Place each pixel's 3 by 3 neighbourhood in one row: the convolution is a product with it."""
    image = np.pad(image, [(padding, padding)] * 2 + [(0, 0)])
    windows = np.lib.stride_tricks.sliding_window_view(image, (3, 3), axis=(0, 1))
    windows = np.moveaxis(windows[::stride, ::stride], 2, -1)
    return windows.reshape(*windows.shape[:2], -1)


def _remember(tensors, layer, x, memory):
    """Step a cell: each gate is W x + U h + b, some without a W or a U."""
    gates = {}
    for gate, names in layer["gates"].items():
        gates[gate] = tensors[names["bias"]]
        for values, kind in ((x, "input_kernel"), (memory["hidden"], "memory_kernel")):
            if names[kind] is not None:
                gates[gate] = gates[gate] + values @ tensors[names[kind]]
    return _CELLS[layer["cell"]](gates, memory)
