"""rejax's PPO, and our agent with its hyperparameters."""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import optax

import jaxagents as ja

HERE = Path(__file__).parent
PYTHON = HERE.parents[1] / "build" / "peers" / "rejax" / "bin" / "python"


class Task(NamedTuple):
    """An environment, and how long agents learn on it."""

    env: str
    n_steps: int = 500_000  # environment steps
    env_kwargs: Mapping[str, Any] = {}
    defaults: Mapping[str, Any] = {}  # of our agent with its own hyperparameters


TASKS = {
    name: Task(f"gymnax/{name}")
    for name in ("CartPole-v1", "Acrobot-v1", "Pendulum-v1", "MountainCar-v0", "Catch-bsuite")
}


def train(task: str, n_seeds: int) -> tuple[np.ndarray, dict[str, float]]:
    """Return the final returns by seed, and rejax's default hyperparameters."""
    # -E: a PYTHONPATH that leads to our package must not change what rejax imports.
    command = [str(PYTHON), "-E", str(HERE / "rejax_learning.py"), task]
    finished = subprocess.run(
        [*command, str(TASKS[task].n_steps), str(n_seeds)],
        capture_output=True,
        text=True,
        check=True,
    )
    line = next(line for line in finished.stdout.splitlines() if line.startswith("RESULT "))
    result = json.loads(line.removeprefix("RESULT "))
    return np.array(result["finals"]), result["hyperparameters"]


def clip_elements(params: ja.OptimizerParams) -> optax.GradientTransformation:
    """Make rejax's optimizer, which clips each element of a gradient."""
    return optax.chain(
        optax.clip(params.grad_clip), optax.adam(params.learning_rate, eps=params.eps)
    )


def configure(task: str, sizes: Mapping[str, float]) -> tuple[ja.AgentConfig, ja.HyperParameters]:
    """Configure our agent like rejax's."""
    n_envs, rollout_length = int(sizes["num_envs"]), int(sizes["num_steps"])
    layers = ja.Layers(hidden_sizes=(64, 64), activation="silu")
    optimizer = ja.OptimizerParams(
        learning_rate=sizes["learning_rate"], grad_clip=sizes["max_grad_norm"]
    )
    return ja.textbook_ppo(
        n_steps=TASKS[task].n_steps // (n_envs * rollout_length),
        batch_size=n_envs,
        rollout_length=rollout_length,
        n_minibatches=int(sizes["num_minibatches"]),
        actor_epochs=int(sizes["num_epochs"]),
        critic_epochs=int(sizes["num_epochs"]),
        joint_update=False,  # networks have optimizers of their own
        time_limits="terminal",
        clip_values=True,
        actor_layers=layers,
        critic_layers=layers,
        optimizer=clip_elements,
        n_evals=0,
        progress_bar=False,
        gamma=sizes["gamma"],
        gae_lambda=sizes["gae_lambda"],
        eps_clip=sizes["clip_eps"],
        vf_coeff=sizes["vf_coef"] / 2,  # of half the squared error
        ent_coeff=sizes["ent_coef"],
        actor_optimizer_params=optimizer,
        critic_optimizer_params=optimizer,
    )
