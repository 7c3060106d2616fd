"""Fabricated run directories with every file that a finished run has."""

import json
from pathlib import Path
from typing import Any

import yaml

from jaxagents.config import AgentConfig
from jaxagents.experiments.config_files.schema import ExperimentConfig, to_plain

N_EVALUATIONS, N_STEPS, STEPS_PER_UPDATE = 6, 50, 2048


def write_run(
    directory: Path,
    *,
    name: str = "spread",
    seed: int = 0,
    env: str = "jaxmarl/MPE_simple_spread_v3",
    mean: tuple[float, ...] = (-19.25, -18.75),
    n_evaluations: int = N_EVALUATIONS,
    ended: bool = True,
    agent: dict[str, Any] | None = None,
    n_evals: int = 100,
) -> Path:
    """Write the files of a run.

    Args:
        directory: Directory of the run.
        name: The configured name.
        seed: The configured seed.
        env: Id of the environment.
        mean: Mean return per actor in the summary.
        n_evaluations: Number of evaluations during training.
        ended: Write a summary.
        agent: Further settings of the agent.
        n_evals: Number of episodes of the evaluation after training.
    """
    directory.mkdir(parents=True)
    agent_config = AgentConfig(n_steps=N_STEPS, eval_frequency=10)
    config = to_plain(ExperimentConfig(name="any", env=env, agent=agent_config, seed=seed))
    config["name"] = name  # set here to bypass its validation
    config["agent"] |= agent or {}
    (directory / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    records = [json.dumps(_record(i, seed, len(mean))) for i in range(n_evaluations)]
    (directory / "metrics.jsonl").write_text("".join(f"{each}\n" for each in records))
    if ended:
        text = json.dumps(_summary(name, env, mean, n_evals))
        (directory / "summary.json").write_text(text)
    return directory


def _record(index: int, seed: int, n_actors: int) -> dict[str, Any]:
    mean = [-50.0 + 6 * index + seed + actor_index for actor_index in range(n_actors)]
    losses = {"actor_loss": -0.01 * index, "critic_loss": 9.0 - index, "entropy": 1.5, "kl": 0.001}
    return {
        "n_updates_done": 10 * index,
        "n_environment_steps": 10 * index * STEPS_PER_UPDATE,
        "seconds": 2.0 * index,
        "return_mean": mean,
        "return_std": [3.0] * n_actors,
        "return_min": [each - 5 for each in mean],
        "return_max": [each + 5 for each in mean],
        "episode_length_mean": 25.0,
        **{name: [value if index else None] for name, value in losses.items()},
    }


def _summary(name: str, env: str, mean: tuple[float, ...], n_evals: int) -> dict[str, Any]:
    def shifted(by: float) -> list[float]:
        return [each + by for each in mean]

    return {
        "name": name,
        "env": env,
        "checkpoint": {"n_updates_done": 40, "n_environment_steps": 40 * STEPS_PER_UPDATE},
        "evaluation": {"mode": "best", "n_evals": n_evals, "greedy": True, "seed": 1},
        "returns": {
            "mean": shifted(0),
            "std": [4.5] * len(mean),
            "var": [20.25] * len(mean),
            "min": shifted(-10),
            "max": shifted(9),
            "median": shifted(0.25),
            "iqm": shifted(0.125),
            "ci_low": shifted(-0.875),
            "ci_high": shifted(0.8125),
            "has_nans": [False] * len(mean),
        },
        "means": {"episode_lengths": 25.0, "info_won": 0.875},
        "training": {
            "n_updates_done": N_STEPS,
            "n_environment_steps": N_STEPS * STEPS_PER_UPDATE,
            "seconds": 75.2,
            "environment_steps_per_second": 1361.7,
        },
        "versions": {"jaxagents": "1.0.0", "jax": "0.10.2"},
    }
