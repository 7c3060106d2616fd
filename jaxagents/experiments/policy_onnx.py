"""Exported policies as ONNX: one step of all actors, as ``policy.json`` describes it.

Inputs, in float32 where no other type is named:

- ``observation`` ``[actors, *environment_shape]``;
- ``elapsed`` ``[]``, the steps since the reset, for policies that observe the time;
- ``action_mask`` ``[actors, outputs]``, bool, for environments that mask actions;
- ``hidden`` ``[actors, size]``, for recurrent policies, and ``cell`` for an LSTM: zeros at the
  start of an episode, then the outputs ``next_hidden`` and ``next_cell`` of the step before.

The output ``action`` ``[actors, ...]`` is the most probable one, and ``action_parameters``
``[actors, outputs]`` are what the network returns: logits before masking, or means before squashing
and clipping.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from jaxagents.errors import import_extra
from jaxagents.ippo.distributions import UNAVAILABLE
from jaxagents.networks.network import KERNEL_SIZE
from jaxagents.training.named_arrays import Leaves

_OPSET, _IR_VERSION = 18, 8  # read by onnxruntime 1.14, of 2023, and later
_LAYER_NORM_EPSILON = 1e-6


def onnx_model(description: dict[str, Any], tensors: Leaves) -> bytes:
    """Return an exported policy as a serialised ONNX model.

    Args:
        description: The contents of ``policy.json``.
        tensors: Those of ``policy.safetensors``, ``[policies, ...]``.

    Raises:
        ImportError: onnx is not installed.
        ValueError: the network is not one of configured layers.
    """
    if description["layers"] is None:
        raise ValueError(
            f"ONNX is written for configured layers only, not for {description['module']}; export "
            "this network without it."
        )
    graph = _Graph(import_extra("onnx", "the export to ONNX needs", "onnx"))
    policy_of_actor = description["policy_of_actor"]
    # A policy that all actors share is stored once, and broadcast.
    own = {
        name: each if len(each) == 1 else each[policy_of_actor] for name, each in tensors.items()
    }
    features = _normalized(_inputs(graph, description), description, own)
    outputs = _network(graph, features, description, own)
    action, dtype = _action(graph, outputs, description)
    graph.output("action_parameters", outputs)
    graph.output("action", action, dtype)
    return graph.serialized()


class _Value(NamedTuple):
    """An array in a graph; operators and `apply` add the nodes that compute others from it."""

    graph: "_Graph"
    name: str

    def apply(self, op: str, *others: Any, **attributes: Any) -> "_Value":
        return self.graph.add(op, self, *others, **attributes)

    def reshape(self, *shape: int) -> "_Value":
        return self.apply("Reshape", np.array(shape))

    def __add__(self, other: Any) -> "_Value":
        return self.apply("Add", other)

    def __sub__(self, other: Any) -> "_Value":
        return self.apply("Sub", other)

    def __mul__(self, other: Any) -> "_Value":
        return self.apply("Mul", other)

    def __truediv__(self, other: Any) -> "_Value":
        return self.apply("Div", other)

    def __matmul__(self, other: Any) -> "_Value":
        return self.apply("MatMul", other)


class _Graph:
    """A graph under construction."""

    def __init__(self, onnx: Any):
        self._onnx = onnx
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []

    def input(self, name: str, shape: tuple[int, ...], dtype: Any = np.float32) -> _Value:
        self._inputs.append(self._declared(name, dtype, shape))
        return _Value(self, name)

    def output(self, name: str, value: _Value, dtype: Any = np.float32) -> None:
        self._nodes.append(self._onnx.helper.make_node("Identity", [value.name], [name]))
        self._outputs.append(self._declared(name, dtype, None))  # shapes are inferred

    def add(self, op: str, *operands: Any, **attributes: Any) -> _Value:
        """Add a node; operands that are not in the graph become constants."""
        names = [
            each.name if isinstance(each, _Value) else self._constant(each) for each in operands
        ]
        name = f"value_{len(self._nodes)}"
        self._nodes.append(self._onnx.helper.make_node(op, names, [name], **attributes))
        return _Value(self, name)

    def serialized(self) -> bytes:
        onnx = self._onnx
        graph = onnx.helper.make_graph(
            self._nodes, "policy", self._inputs, self._outputs, self._constants
        )
        opset = [onnx.helper.make_opsetid("", _OPSET)]
        model = onnx.helper.make_model(graph, opset_imports=opset, ir_version=_IR_VERSION)
        model = onnx.shape_inference.infer_shapes(model, strict_mode=True)
        onnx.checker.check_model(model)
        return model.SerializeToString()

    def _constant(self, value: Any) -> str:
        values = np.asarray(value)
        if values.dtype != np.int64:
            values = values.astype(np.float32)
        name = f"constant_{len(self._constants)}"
        self._constants.append(self._onnx.numpy_helper.from_array(values, name))
        return name

    def _declared(self, name: str, dtype: Any, shape: tuple[int, ...] | None) -> Any:
        kind = self._onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        return self._onnx.helper.make_tensor_value_info(name, kind, shape)


def _inputs(graph: _Graph, description: dict[str, Any]) -> _Value:
    """Return the network's input ``[actors, pixels, channels]``, of vectors ``[actors, 1, n]``."""
    observation, n_actors = description["observation"], len(description["policy_of_actor"])
    shape = tuple(observation["environment_shape"])
    features = graph.input("observation", (n_actors, *shape))
    *leading, _ = shape or (1,)
    features = features.reshape(n_actors, *(shape or (1,)))
    if observation["agent_id"]:
        index = np.eye(n_actors).reshape(n_actors, *[1] * len(leading), n_actors)
        index = np.broadcast_to(index, (n_actors, *leading, n_actors))
        features = features.apply("Concat", index, axis=-1)
    if observation["time_limit"] is not None:
        share = (graph.input("elapsed", ()) / float(observation["time_limit"])).apply("Min", 1.0)
        share = share.apply("Expand", np.array([n_actors, *leading, 1]))
        features = features.apply("Concat", share, axis=-1)
    n_inputs = observation["shape"][-1]
    is_image = "convolution" in description["layers"][0]
    return (
        features.reshape(n_actors, -1, n_inputs) if is_image else features.reshape(n_actors, 1, -1)
    )


def _normalized(features: _Value, description: dict[str, Any], own: Leaves) -> _Value:
    limit = description["observation"]["normalized_within"]
    if limit is None:
        return features
    mean, std = (_rows(own[f"observation.{name}"]) for name in ("mean", "std"))
    divisor = np.where(std > 0, std, np.inf)  # features that never varied become 0
    return ((features - mean) / divisor).apply("Clip", -limit, limit)


def _rows(values: np.ndarray) -> np.ndarray:
    """Insert the axis of pixels: ``[policies, *shape]`` to ``[policies, 1, n]``."""
    return values.reshape(len(values), 1, -1)


def _network(graph: _Graph, features: _Value, description: dict[str, Any], own: Leaves) -> _Value:
    """Apply the layers; return the outputs ``[actors, outputs]``."""
    n_actors = len(description["policy_of_actor"])
    size = description["observation"]["shape"][:2]
    for layer in description["layers"]:
        if "cell" in layer:
            features = _remember(graph, features, layer, n_actors, own)
            continue
        kernel = own[layer["kernel"]]
        if "convolution" in layer:
            features, size = _patches(features, size, layer["convolution"], kernel, n_actors)
        else:
            features = features.reshape(n_actors, 1, -1)
        features = features @ kernel + _rows(own[layer["bias"]])
        if layer["layer_norm"] is not None:
            features = _standardized(features)
            features = features * _rows(own[f"{layer['layer_norm']}.scale"])
            features = features + _rows(own[f"{layer['layer_norm']}.bias"])
        features = _ACTIVATIONS[layer["activation"]](features)
    return features.reshape(n_actors, -1)


def _patches(
    features: _Value,
    size: list[int],
    convolution: dict[str, int],
    kernel: np.ndarray,
    n_actors: int,
) -> tuple[_Value, list[int]]:
    """Gather the pixels under the kernel; return them, and the height and width of the result."""
    n_pixels, n_inputs = size[0] * size[1], kernel.shape[1]
    zero = np.zeros((n_actors, 1, n_inputs // KERNEL_SIZE**2))  # the pixels of the padding
    pixels = np.pad(
        np.arange(n_pixels).reshape(size), convolution["padding"], constant_values=n_pixels
    )
    windows = np.lib.stride_tricks.sliding_window_view(pixels, (KERNEL_SIZE, KERNEL_SIZE))
    windows = windows[:: convolution["stride"], :: convolution["stride"]]
    taken = features.apply("Concat", zero, axis=1).apply("Gather", windows.reshape(-1), axis=1)
    return taken.reshape(n_actors, -1, n_inputs), list(windows.shape[:2])


def _remember(
    graph: _Graph, features: _Value, layer: dict[str, Any], n_actors: int, own: Leaves
) -> _Value:
    """Step a cell: each gate is W x + U h + b, some without a W or a U."""
    names = ("hidden", "cell") if layer["cell"] == "lstm" else ("hidden",)
    shape = (n_actors, layer["size"])
    memory = {name: graph.input(name, shape).reshape(n_actors, 1, -1) for name in names}
    gates: dict[str, Any] = {}
    for gate, parts in layer["gates"].items():
        gates[gate] = graph.add("Identity", _rows(own[parts["bias"]]))
        for values, kind in ((features, "input_kernel"), (memory["hidden"], "memory_kernel")):
            if parts[kind] is not None:
                gates[gate] = gates[gate] + values @ own[parts[kind]]
    after = _CELLS[layer["cell"]](gates, memory)
    for name, value in after.items():
        graph.output(f"next_{name}", value.reshape(*shape))
    return after["hidden"]


def _action(graph: _Graph, outputs: _Value, description: dict[str, Any]) -> tuple[_Value, Any]:
    """Return the most probable action and its dtype."""
    action, n_actors = description["action"], len(description["policy_of_actor"])
    if action["kind"] == "box":
        low, high = np.array(action["low"]), np.array(action["high"])
        mean = outputs.reshape(n_actors, *action["shape"])
        if action["squash"]:
            mean = (mean.apply("Tanh") + 1.0) / 2.0 * (high - low) + low
        return mean.apply("Max", low).apply("Min", high), np.float32
    is_single = action["kind"] == "discrete"
    n_choices = [action["n"]] if is_single else action["n_choices"]
    if action["masked"]:
        mask = graph.input("action_mask", (n_actors, sum(n_choices)), np.bool_)
        outputs = mask.apply("Where", outputs, UNAVAILABLE)
    ends = np.cumsum([0, *n_choices])
    choices = [
        outputs.apply("Slice", ends[i : i + 1], ends[i + 1 : i + 2], np.array([1])).apply(
            "ArgMax", axis=1, keepdims=not is_single
        )
        for i in range(len(n_choices))
    ]
    return choices[0] if is_single else graph.add("Concat", *choices, axis=1), np.int64


def _standardized(features: _Value) -> _Value:
    """Subtract the mean of the last axis and divide by the standard deviation."""
    last = np.array([-1])
    centered = features - features.apply("ReduceMean", last)
    variance = (centered * centered).apply("ReduceMean", last)
    return centered / (variance + _LAYER_NORM_EPSILON).apply("Sqrt")


def _gelu(x: _Value) -> _Value:
    cubic = x + x * x * x * 0.044715
    return x * 0.5 * ((cubic * np.sqrt(2 / np.pi)).apply("Tanh") + 1.0)


def _gru(gates: dict[str, _Value], memory: dict[str, _Value]) -> dict[str, _Value]:
    recollection = gates["reset"].apply("Sigmoid") * gates["recollection"]
    candidate = (gates["candidate"] + recollection).apply("Tanh")
    update = gates["update"].apply("Sigmoid")
    return {"hidden": candidate + update * (memory["hidden"] - candidate)}


def _lstm(gates: dict[str, _Value], memory: dict[str, _Value]) -> dict[str, _Value]:
    kept = gates["forget"].apply("Sigmoid") * memory["cell"]
    cell = kept + gates["input"].apply("Sigmoid") * gates["candidate"].apply("Tanh")
    return {"hidden": gates["output"].apply("Sigmoid") * cell.apply("Tanh"), "cell": cell}


def _mingru(gates: dict[str, _Value], memory: dict[str, _Value]) -> dict[str, _Value]:
    update = gates["update"].apply("Sigmoid")
    return {"hidden": memory["hidden"] + update * (gates["candidate"] - memory["hidden"])}


_ACTIVATIONS: dict[str | None, Callable[[_Value], _Value]] = {
    None: lambda x: x,
    "tanh": lambda x: x.apply("Tanh"),
    "relu": lambda x: x.apply("Relu"),
    "elu": lambda x: x.apply("Elu"),
    "silu": lambda x: x * x.apply("Sigmoid"),
    "gelu": _gelu,
}
_CELLS: dict[str, Callable[..., dict[str, _Value]]] = {
    "gru": _gru,
    "lstm": _lstm,
    "mingru": _mingru,
}
