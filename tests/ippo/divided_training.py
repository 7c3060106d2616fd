"""Trains agents on one and on four simulated devices, as a process of its own.

    python -m tests.ippo.divided_training CASE...
    python -m tests.ippo.divided_training resume DIRECTORY
    python -m tests.ippo.divided_training count
    python -m tests.ippo.divided_training together

Prints a line of JSON per case: the largest differences of parameters and of metrics. Minibatches
hold the whole batch, so that both sides learn from the same ones. Adam's epsilon is large: it would
turn the rounding error of a gradient of 0 into a step.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # before jax is imported
    flags = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count=4"

import jax
import numpy as np

import jaxagents as ja
from jaxagents.training.named_arrays import strip_keys, to_leaves

CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "feed-forward": ("hunting/discrete", {}, {}),
    "continuous": ("hunting/continuous", {}, {}),
    "recurrent": ("hunting/discrete", {"recurrent": "gru", "recurrent_chunk_length": 8}, {}),
    "independent": ("hunting/discrete", {"parameter_sharing": "independent"}, {}),
    "normalised": (
        "hunting/discrete",
        {"normalize_observations": True, "normalize_values": True, "scale_rewards": True},
        {},
    ),
    "early-stopped": (
        "hunting/discrete",
        {"parameter_sharing": "independent", "actor_epochs": 8},
        {"kl_threshold": 1e-4},
    ),
    "masked and dying": ("jaxmarl/SMAX", {"env_kwargs": {"scenario": "3m"}}, {}),
    "corrected": ("hunting/discrete", {"advantages": "vtrace", "centralized_critic": True}, {}),
}


def compare(name: str) -> dict[str, Any]:
    """Train a case on both sides."""
    env_id, changes, hyperparams = CASES[name]
    changes = {"normalize_observations": False, "normalize_values": False, **changes}
    env, env_params = ja.make(env_id, **changes.pop("env_kwargs", {}))
    optimizer = ja.OptimizerParams(learning_rate=1e-3, eps=1e-2)
    given = ja.HyperParameters(
        actor_optimizer_params=optimizer, critic_optimizer_params=optimizer, **hyperparams
    )
    is_continuous = env_id.endswith("continuous")
    agent_class = ja.ContinuousIPPO if is_continuous else ja.DiscreteIPPO
    layers = ja.Layers(hidden_sizes=(16,), memory_size=16)
    sides = []
    for n in (1, 4):
        config = ja.AgentConfig(
            n_steps=20,
            batch_size=8,
            minibatch_size=8,
            rollout_length=16,
            eval_frequency=10,
            n_evals=36,  # nine on each device, which no vector of a CPU holds
            progress_bar=False,
            actor_layers=layers,
            critic_layers=layers,
            devices=n,
            **changes,
        )
        runner, metrics = agent_class(env, env_params, config).train(jax.random.key(0), given)
        sides.append((to_leaves(jax.device_get(strip_keys(runner))), jax.device_get(metrics)))
    (one, of_one), (four, of_four) = sides
    return {
        "case": name,
        "state": {key: largest_difference(one[key], four[key]) for key in one},
        "metrics": {key: largest_difference(of_one[key], of_four[key]) for key in of_one},
        "epochs": float(np.nanmean(of_one["actor_epochs"])),
    }


def count_steps() -> dict[str, int]:
    """Train by several minibatches an epoch on both sides; count the optimizer's steps."""
    env, env_params = ja.make("hunting/discrete")
    counts = {}
    for n in (1, 4):
        config = ja.AgentConfig(
            n_steps=3,
            batch_size=16,
            minibatch_size=4,
            rollout_length=8,
            n_evals=4,
            progress_bar=False,
            devices=n,
        )
        runner, metrics = ja.DiscreteIPPO(env, env_params, config).train(
            jax.random.key(0), ja.HyperParameters()
        )
        assert np.isfinite(metrics["critic_loss"][-1]).all()
        leaves = to_leaves(jax.device_get(strip_keys(runner)))
        (count,) = {int(leaf[0]) for name, leaf in leaves.items() if name.endswith("count")}
        counts[n] = count
    return counts


def report_together() -> list[int]:
    """Train two agents beside each other on two devices; return the updates that were reported."""
    env, env_params = ja.make("hunting/discrete")
    seen: list[int] = []
    config = ja.AgentConfig(
        n_steps=2,
        batch_size=2,
        minibatch_size=2,
        rollout_length=2,
        eval_frequency=1,
        n_evals=2,
        progress_bar=False,
        devices=2,
    )
    agents: dict[str, ja.IPPOBase] = {
        "reported": ja.DiscreteIPPO(
            env, env_params, config, callbacks=[lambda each: seen.append(each.n_updates_done)]
        ),
        "other": ja.DiscreteIPPO(env, env_params, config),
    }
    ja.train_together(agents, jax.random.key(0), ja.HyperParameters())
    return seen


def largest_difference(first: np.ndarray, second: np.ndarray) -> float:
    """Return the largest difference, relative to 1 or to the values; NaN must be the same."""
    first, second = np.asarray(first, float), np.asarray(second, float)
    is_finite = np.isfinite(first)
    if not np.array_equal(is_finite, np.isfinite(second)):
        return float("inf")
    first, second = first[is_finite], second[is_finite]
    return float(np.max(np.abs(first - second) / np.maximum(1.0, np.abs(first)), initial=0.0))


def resume_elsewhere(directory: str) -> dict[str, Any]:
    """Train half a run on two devices, and the rest on four, on one, and on two."""
    env, env_params = ja.make("hunting/discrete")

    def agent(folder: Path | None, devices: int, n_steps: int = 4) -> ja.IPPOBase:
        config = ja.AgentConfig(
            n_steps=n_steps,
            batch_size=8,
            minibatch_size=8,
            rollout_length=8,
            eval_frequency=2,
            n_evals=4,
            checkpoint_dir=folder,
            progress_bar=False,
            devices=devices,
        )
        return ja.DiscreteIPPO(env, env_params, config)

    optimizer = ja.OptimizerParams(learning_rate=1e-3, eps=1e-2)
    given = ja.HyperParameters(actor_optimizer_params=optimizer, critic_optimizer_params=optimizer)
    whole, _ = agent(None, 2).train(jax.random.key(0), given)
    expected = to_leaves(jax.device_get(strip_keys(whole)))
    differences = {}
    for n in (1, 2, 4):
        folder = Path(directory) / str(n)
        agent(folder, 2, n_steps=2).train(jax.random.key(0), given)
        runner, metrics = agent(folder, n).resume()
        leaves = to_leaves(jax.device_get(strip_keys(runner)))
        differences[n] = max(largest_difference(expected[key], leaves[key]) for key in expected)
        assert np.isfinite(metrics["returns"]).all()
    return differences


if __name__ == "__main__":
    if sys.argv[1] == "resume":
        print(json.dumps(resume_elsewhere(sys.argv[2])))
    elif sys.argv[1] == "together":
        print(json.dumps(report_together()))
    elif sys.argv[1] == "count":
        print(json.dumps(count_steps()))
    else:
        for case in sys.argv[1:]:
            print(json.dumps(compare(case)), flush=True)
