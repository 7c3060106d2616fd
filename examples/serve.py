"""Choose actions with an exported policy, using numpy alone.

jaxagents export RUN
python examples/serve.py RUN/export < observations.jsonl

Each line of the input is a JSON list of all actors' observations; each line of the output is a list
of their actions, or {"error": ...} for a line that cannot be used. The lines are those of an
episode, as recurrent policies remember and others may observe the time; the line null begins
another one, and prints nothing.
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


def sigmoid(x):
    """Return the logistic function of x."""
    return 0.5 * (1.0 + np.tanh(0.5 * x))


def gru(gates, memory):
    """Step a GRU."""
    candidate = np.tanh(gates["candidate"] + sigmoid(gates["reset"]) * gates["recollection"])
    update = sigmoid(gates["update"])
    return {"hidden": (1.0 - update) * candidate + update * memory["hidden"]}


def lstm(gates, memory):
    """Step an LSTM."""
    kept = sigmoid(gates["forget"]) * memory["cell"]
    cell = kept + sigmoid(gates["input"]) * np.tanh(gates["candidate"])
    return {"cell": cell, "hidden": sigmoid(gates["output"]) * np.tanh(cell)}


def mingru(gates, memory):
    """Step a minimal GRU."""
    update = sigmoid(gates["update"])
    return {"hidden": (1.0 - update) * memory["hidden"] + update * gates["candidate"]}


CELLS = {"gru": gru, "lstm": lstm, "mingru": mingru}


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
            raise ValueError(f"only configured layers are supported: {self.description['module']}")
        self.reset()

    def reset(self, actors=None):
        """Forget, as an episode begins: all actors, or those of a list of indices.

        An actor that comes back within an episode begins anew, too.
        """
        sizes = [each["size"] for each in self.description["layers"] if "cell" in each]
        empty = {name: np.zeros(sizes[0]) for name in ("cell", "hidden")} if sizes else {}
        n_actors = len(self.description["policy_of_actor"])
        if actors is None:
            self.memory = [empty] * n_actors
        for actor in [] if actors is None else actors:
            self.memory[actor] = empty

    def act(self, observation, action_mask=None, elapsed=None):
        """Choose an action for each actor; a recurrent policy remembers the observation.

        Args:
            observation: ``[actors, *obs]``, without the one-hot index of `agent_id` and the time,
                in the order of ``actors`` in policy.json. Vectors are padded, and dictionaries
                flattened, as it says.
            action_mask: True for available actions, ``[actors, n_actions]``; of multidiscrete
                actions, those of all choices in a row.
            elapsed: Steps since the reset, for policies that observe the time.

        Raises:
            ValueError: an argument is missing, or has a wrong shape, NaN or infinity.
        """
        features = self._as_array(observation)
        self._check_shape(features.shape)
        self._check_mask(action_mask)
        if self.description["observation"]["agent_id"]:
            features = append(features, np.eye(len(features)))
        time_limit = self.description["observation"]["time_limit"]
        if time_limit is not None:
            if elapsed is None:
                raise ValueError(
                    "the policy observes the time; give elapsed, the steps since the reset"
                )
            if not (np.isfinite(elapsed) and elapsed >= 0):
                raise ValueError(f"elapsed is {elapsed}; give the steps since the reset")
            share = min(elapsed / time_limit, 1.0)
            features = append(features, np.full((len(features), 1), share))
        features = features.reshape(len(features), -1)
        policies = self.description["policy_of_actor"]
        results = [
            self._outputs(*each) for each in zip(policies, features, self.memory, strict=True)
        ]
        outputs = np.stack([output for output, _ in results])
        self.memory = [memory for _, memory in results]
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

    def _check_mask(self, action_mask):
        action = self.description["action"]
        if action_mask is None or action["kind"] == "box":
            return
        choices = [action["n"]] if action["kind"] == "discrete" else action["n_choices"]
        mask = np.asarray(action_mask, bool)
        expected = (len(self.description["policy_of_actor"]), sum(choices))
        if mask.shape != expected:
            raise ValueError(f"the mask has shape {list(mask.shape)}, not {list(expected)}")
        parts = np.split(mask, np.cumsum(choices)[:-1], axis=-1)
        if not all(part.any(axis=-1).all() for part in parts):
            raise ValueError("the mask leaves an actor without any action")

    def _as_array(self, observation):
        """Flatten dictionaries, pad vectors, and refuse what is no finite number."""
        actors = self.description.get("actors")
        if actors is not None and len(observation) == len(actors):
            observation = [self._own(*each) for each in zip(actors, observation, strict=True)]
        try:
            features = np.asarray(observation, np.float32)
        except (TypeError, ValueError, ArithmeticError, RecursionError) as error:
            raise ValueError(f"the observation is no array of numbers: {error}") from error
        if not np.isfinite(features).all():
            raise ValueError("the observation has NaN or infinity, or exceeds float32")
        return features

    def _own(self, actor, observation):
        """Return one actor's observation as the network takes it."""
        if isinstance(observation, dict):
            parts = actor["parts"]
            if parts is None or set(observation) != {name for name, _ in parts}:
                raise ValueError(f"an observation has the keys {sorted(observation)}, not {parts}")
            flat = [np.ravel(observation[name]) for name, _ in parts]
            sizes = [[name, len(each)] for (name, _), each in zip(parts, flat, strict=True)]
            if sizes != parts:
                raise ValueError(f"an observation has parts {sizes}, not {parts}")
            observation = np.concatenate(flat)
        wanted = self.description["observation"]["environment_shape"]
        if len(wanted) == 1 and actor["shape"] == list(np.shape(observation)) != wanted:
            return np.pad(observation, (0, wanted[0] - len(observation)))
        return observation

    def _outputs(self, policy, features, memory):
        limit = self.description["observation"]["normalized_within"]
        if limit is not None:
            mean, std = (self.tensors[f"observation.{name}"][policy] for name in ("mean", "std"))
            mean, std = mean.reshape(-1), std.reshape(-1)
            varies = std > 0
            features = np.where(varies, (features - mean) / np.where(varies, std, 1.0), 0.0)
            features = np.clip(features, -limit, limit)
        for layer in self.description["layers"]:
            if "cell" in layer:
                memory = self._remember(policy, layer, features, memory)
                features = memory["hidden"]
                continue
            features = features @ self.tensors[layer["kernel"]][policy]
            features = features + self.tensors[layer["bias"]][policy]
            if layer["layer_norm"] is not None:
                features = (features - features.mean()) / np.sqrt(features.var() + 1e-6)
                features = features * self.tensors[f"{layer['layer_norm']}.scale"][policy]
                features = features + self.tensors[f"{layer['layer_norm']}.bias"][policy]
            features = ACTIVATIONS[layer["activation"]](features)
        return features, memory

    def _remember(self, policy, layer, features, memory):
        """Step a cell: each gate is W x + U h + b, some without a W or a U."""
        gates = {}
        for gate, names in layer["gates"].items():
            gates[gate] = self.tensors[names["bias"]][policy]
            for values, name in ((features, "input_kernel"), (memory["hidden"], "memory_kernel")):
                if names[name] is not None:
                    gates[gate] = gates[gate] + values @ self.tensors[names[name]][policy]
        return CELLS[layer["cell"]](gates, memory)


def serve(policy, lines):
    """Print the actions, or what is wrong, for each line of observations."""
    elapsed = 0
    for line in lines:
        try:
            observation = json.loads(line)
            if observation is None:
                policy.reset()
                elapsed = 0
                continue
            answer = policy.act(observation, elapsed=elapsed).tolist()
            elapsed += 1
        except (
            TypeError,
            ValueError,
            ArithmeticError,
            RecursionError,
        ) as error:  # the next line may be right
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    try:
        serve(Policy(sys.argv[1]), sys.stdin)
    except (IndexError, OSError, ValueError) as error:
        sys.exit(f"serve.py DIRECTORY: {error}")
