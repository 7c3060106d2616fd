"""Trains as one of several processes.

    python -m tests.ippo.process_training PORT N_PROCESSES PROCESS_ID N_DEVICES N_MEMBERS DIR ENV

Trains a population if there is more than one member. Writes the final state and the metrics to
DIR/process-PROCESS_ID.npz.
"""

import functools
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

import jaxagents as ja
from jaxagents.compiler.processes import connect_processes, ending_together
from jaxagents.training.named_arrays import strip_keys, to_leaves
from tests.environments.host.probes import Echo, Faulty, Stairs, Unstartable

SIZES = {"n_steps": 4, "eval_frequency": 2, "batch_size": 4, "minibatch_size": 4}
ON_HOST = {"n_steps": 20, "eval_frequency": 10, "batch_size": 8, "minibatch_size": 8}


def make(env_id: str, process_id: int, directory: Path) -> tuple[Any, Any]:
    """Make an environment; those with a fault have it in process 1 only."""
    fault = directory / f"fault-of-{process_id}"
    probes = {
        "echo": Echo,
        "raises": functools.partial(Faulty, "raise", once=fault),
        "unstartable": functools.partial(Unstartable, fault) if process_id else Stairs,
    }
    if env_id not in probes:
        return ja.make(env_id)
    env = ja.HostEnvironment(probes[env_id], n_workers=1)
    if env_id == "raises" and process_id == 1:
        fault.touch()
    return env, None


def main(
    port: str,
    n_processes: int,
    process_id: int,
    n_devices: int,
    n_members: int,
    directory: Path,
    env_id: str,
) -> None:
    """Train."""
    if n_processes > 1:
        connect_processes(f"127.0.0.1:{port}", n_processes, process_id)
    env, env_params = make(env_id, process_id, directory)
    layers = ja.Layers(hidden_sizes=(8,))
    initial_evaluation = n_members != 3  # without it the first checkpoint is the driver's
    config = ja.AgentConfig(
        **(ON_HOST if isinstance(env, ja.HostEnvironment) else SIZES),
        rollout_length=8,
        n_evals=4,
        initial_evaluation=initial_evaluation,
        checkpoint_dir=directory / "checkpoints",
        progress_bar=False,
        devices=n_devices,
        actor_layers=layers,
        critic_layers=layers,
    )
    optimizer = ja.OptimizerParams(learning_rate=1e-3, eps=1e-2)
    hyperparams = ja.HyperParameters(
        actor_optimizer_params=optimizer, critic_optimizer_params=optimizer
    )
    seen = []
    agent = ja.DiscreteIPPO(
        env, env_params, config, callbacks=[lambda evaluation: seen.append(evaluation)]
    )
    rng = jax.random.key(0)
    if n_members > 1:
        rng = jax.random.split(rng, n_members)
    with ending_together():
        runner, metrics = agent.train(rng, hyperparams)
    assert len(seen) == (2 + initial_evaluation if process_id == 0 else 0)
    leaves = to_leaves(jax.device_get(strip_keys(runner)))
    if isinstance(env, ja.HostEnvironment):
        leaves["n_own_envs"] = np.array(sorted(pool.n_envs for pool in env._pools))
    np.savez(directory / f"process-{process_id}.npz", returns=metrics["returns"], **leaves)


if __name__ == "__main__":
    port, *numbers, folder, name = sys.argv[1:]
    main(port, *map(int, numbers), Path(folder), name)
