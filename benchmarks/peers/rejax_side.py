"""rejax's PPO, and our agent in its hyperparameters."""

import json
import subprocess
from pathlib import Path

import numpy as np

import jaxagents as ja

HERE = Path(__file__).parent
PYTHON = HERE.parents[1] / "build" / "peers" / "rejax" / "bin" / "python"
TASKS = {
    "gymnax/CartPole-v1": 500_000,
    "gymnax/Acrobot-v1": 500_000,
    "gymnax/Pendulum-v1": 500_000,
    "gymnax/MountainCar-v0": 500_000,
    "gymnax/Catch-bsuite": 500_000,
}


def train(task: str, n_steps: int, n_seeds: int) -> tuple[np.ndarray, dict[str, float]]:
    """Return the final returns by seed, and rejax's default hyperparameters."""
    # -E: a PYTHONPATH that leads to our package must not change what rejax imports.
    command = [str(PYTHON), "-E", str(HERE / "rejax_learning.py"), task.removeprefix("gymnax/")]
    finished = subprocess.run(
        [*command, str(n_steps), str(n_seeds)], capture_output=True, text=True, check=True
    )
    line = next(line for line in finished.stdout.splitlines() if line.startswith("RESULT "))
    result = json.loads(line.removeprefix("RESULT "))
    return np.array(result["finals"]), result["hyperparameters"]


def configure(sizes: dict[str, float], n_steps: int) -> tuple[ja.AgentConfig, ja.HyperParameters]:
    """Configure our agent as rejax's."""
    n_envs, rollout_length = int(sizes["num_envs"]), int(sizes["num_steps"])
    layers = ja.Layers(hidden_sizes=(64, 64), activation="silu")
    config = ja.AgentConfig(
        n_steps=n_steps // (n_envs * rollout_length),
        batch_size=n_envs,
        rollout_length=rollout_length,
        minibatch_size=n_envs // int(sizes["num_minibatches"]),
        minibatch_unit="step",
        actor_epochs=int(sizes["num_epochs"]),
        critic_epochs=int(sizes["num_epochs"]),
        time_limits="terminal",
        normalize_observations=False,
        normalize_values=False,
        clip_values=True,
        actor_layers=layers,
        critic_layers=layers,
        n_evals=0,
        progress_bar=False,
    )
    optimizer = ja.OptimizerParams(
        learning_rate=sizes["learning_rate"], grad_clip=sizes["max_grad_norm"]
    )
    return config, ja.HyperParameters(
        gamma=sizes["gamma"],
        gae_lambda=sizes["gae_lambda"],
        eps_clip=sizes["clip_eps"],
        vf_coeff=sizes["vf_coef"] / 2,  # of half the squared error
        ent_coeff=sizes["ent_coef"],
        actor_optimizer_params=optimizer,
        critic_optimizer_params=optimizer,
    )
