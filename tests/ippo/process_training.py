"""Trains as one of several processes.

    python -m tests.ippo.process_training PORT N_PROCESSES PROCESS_ID N_DEVICES N_MEMBERS DIRECTORY

Trains a population if there is more than one member. Writes the final state and the metrics to
DIRECTORY/process-PROCESS_ID.npz.
"""

import sys
from pathlib import Path

import jax
import numpy as np

import jaxagents as ja
from jaxagents.compiler.processes import join
from jaxagents.training.named_arrays import strip_keys, to_leaves


def main(
    port: str, n_processes: int, process_id: int, n_devices: int, n_members: int, directory: Path
) -> None:
    """Train, or resume the run in the directory."""
    if n_processes > 1:
        join(f"127.0.0.1:{port}", n_processes, process_id)
    env, env_params = ja.make("hunting/discrete")
    layers = ja.Layers(hidden_sizes=(8,))
    config = ja.AgentConfig(
        n_steps=4,
        batch_size=4,
        minibatch_size=4,
        rollout_length=8,
        eval_frequency=2,
        n_evals=4,
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
    runner, metrics = agent.train(rng, hyperparams)
    assert len(seen) == (3 if process_id == 0 else 0)
    leaves = to_leaves(jax.device_get(strip_keys(runner)))
    np.savez(directory / f"process-{process_id}.npz", returns=metrics["returns"], **leaves)


if __name__ == "__main__":
    port, *numbers, folder = sys.argv[1:]
    main(port, *map(int, numbers), Path(folder))
