"""How long does an exported policy take for one observation of each actor? Without training.

pip install -c constraints.txt -e ".[onnx]"
python benchmarks/serving.py
"""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import onnxruntime

import jaxagents as ja
from jaxagents.experiments.policy_export import export_policy

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
from policy_reader import Reader

CONFIG = {
    "n_steps": 1,
    "batch_size": 2,
    "minibatch_size": 2,
    "rollout_length": 4,
    "observe_time": False,
    "progress_bar": False,
}
POLICIES = {
    "CartPole, MLP": ("gymnax/CartPole-v1", {}),
    "CartPole, GRU": ("gymnax/CartPole-v1", {"recurrent": "gru"}),
    "Breakout, CNN": ("gymnax/Breakout-MinAtar", {}),
}
N_CALLS = 1000


def median_microseconds(call: Callable[[], Any]) -> float:
    """Time calls one by one, after a hundred that are not counted."""
    times = []
    for _ in range(100 + N_CALLS):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return 1e6 * float(np.median(times[100:]))


def measure(env_id: str, options: dict[str, Any]) -> tuple[float, float, float]:
    """Return the times of the numpy reader, of onnxruntime and of the agent's own policy."""
    agent = ja.DiscreteIPPO(*ja.make(env_id), ja.AgentConfig(**CONFIG, **options))
    runner = agent.init(jax.random.key(0), ja.HyperParameters())
    shape = agent.environments.observation.features.shape
    features = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        *_, model = export_policy(agent, runner, Path(folder), env_id, onnx=True)
        reader, threads = Reader(folder), onnxruntime.SessionOptions()
        threads.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(model, threads)
    sizes = {each.name: each.shape for each in session.get_inputs()}
    inputs = {name: np.zeros(sizes[name], np.float32) for name in sizes}
    inputs["observation"] = features
    memory = reader.empty_memory()
    carry = agent.initial_carry() if agent.config.recurrent else None
    return (
        median_microseconds(lambda: reader.step(features, memory)),
        median_microseconds(lambda: session.run(None, inputs)),
        median_microseconds(lambda: jax.block_until_ready(agent.policy(runner, features, carry))),
    )


def main() -> None:
    """Print a row of the table for each policy."""
    for name, (env_id, options) in POLICIES.items():
        print(f"| {name} | {' | '.join(f'{each:.0f}' for each in measure(env_id, options))} |")


if __name__ == "__main__":
    main()
