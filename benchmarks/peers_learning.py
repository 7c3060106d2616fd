"""What agents learn beside rejax's PPO, in as many environment steps.

Three sides per environment: rejax in its default hyperparameters, ours in the same, and ours in our
own defaults. Each trains every seed; the final policies play 100 sampled episodes.

    python benchmarks/peers/make_environment.py rejax        # once
    python benchmarks/peers_learning.py --seeds 8
"""

import argparse
import json
import subprocess
from pathlib import Path
from typing import Any

import jax
import numpy as np
from matrix.report import comparison

import jaxagents as ja
from jaxagents.evaluation.bootstrap import interquartile_mean
from jaxagents.experiments.make_agent import agent_class

HERE = Path(__file__).parent
PYTHON = HERE.parent / "build" / "peers" / "rejax" / "bin" / "python"
TASKS = {
    "CartPole-v1": 500_000,
    "Acrobot-v1": 500_000,
    "Pendulum-v1": 500_000,
    "MountainCar-v0": 500_000,
    "Catch-bsuite": 500_000,
}
N_EPISODES = 100


def train_rejax(name: str, n_steps: int, n_seeds: int) -> tuple[np.ndarray, dict[str, float]]:
    """Return the final returns by seed, and rejax's hyperparameters."""
    # -E: a PYTHONPATH that leads to our package must not change what rejax imports.
    command = [str(PYTHON), "-E", str(HERE / "peers" / "rejax_learning.py"), name]
    finished = subprocess.run(
        [*command, str(n_steps), str(n_seeds)], capture_output=True, text=True, check=True
    )
    line = next(line for line in finished.stdout.splitlines() if line.startswith("RESULT "))
    result = json.loads(line.removeprefix("RESULT "))
    return np.array(result["finals"]), result["hyperparameters"]


def theirs(sizes: dict[str, float], n_steps: int) -> tuple[ja.AgentConfig, ja.HyperParameters]:
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
        vf_coeff=sizes["vf_coef"],
        ent_coeff=sizes["ent_coef"],
        actor_optimizer_params=optimizer,
        critic_optimizer_params=optimizer,
    )


def ours(n_steps: int) -> tuple[ja.AgentConfig, ja.HyperParameters]:
    """Configure our agent by its defaults."""
    config = ja.AgentConfig(n_steps=n_steps // (16 * 128), n_evals=0, progress_bar=False)
    return config, ja.HyperParameters()


def train_ours(
    name: str, config: ja.AgentConfig, hyperparams: ja.HyperParameters, n_seeds: int
) -> np.ndarray:
    """Return the final returns by seed."""
    env, params = ja.make(f"gymnax/{name}")
    agent = agent_class(env, params)(env, params, config)
    finals = []
    for seed in range(n_seeds):
        runner, _ = agent.train(jax.random.key(seed), hyperparams)
        metrics: Any = agent.eval(jax.random.key(1000 + seed), N_EPISODES, False, runner)
        finals.append(float(np.mean(metrics["returns"])))
    return np.array(finals)


def main() -> None:
    """Print a line per environment as it is done."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--environments", nargs="+", choices=TASKS, default=list(TASKS))
    arguments = parser.parse_args()
    print("| Environment | Steps | rejax | Ours, their hyperparameters | Ours | Better |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name in arguments.environments:
        n_steps = TASKS[name]
        rejax, sizes = train_rejax(name, n_steps, arguments.seeds)
        sides = [
            train_ours(name, *configuration, arguments.seeds)
            for configuration in (theirs(sizes, n_steps), ours(n_steps))
        ]
        cells = [
            f"{float(interquartile_mean(side)):.1f} (worst {side.min():.1f})"
            for side in (rejax, *sides)
        ]
        better = ", ".join(f"{100 * comparison(side, rejax).probability:.0f} %" for side in sides)
        print(f"| {name} | {n_steps:,} | {' | '.join(cells)} | {better} |", flush=True)


if __name__ == "__main__":
    main()
