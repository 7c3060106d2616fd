"""Train one task with one setting from several seeds; print a row of results per seed as JSON.

Started by `learning_matrix` in a process of its own.
"""

import dataclasses
import json
import sys
import time
from typing import Any

import jax
import numpy as np
from matrix.tasks import SETTINGS, TASKS, Task

import jaxagents as ja
from jaxagents.evaluation.diagnosis import largest_return
from jaxagents.experiments.make_agent import agent_class

N_EVALUATIONS = 10
N_EVALS = 100


def configure(task: Task, setting: dict[str, Any]) -> tuple[ja.AgentConfig, ja.HyperParameters]:
    """Build the configuration and the hyperparameters of a task under a setting."""
    values = {**task.overrides, **setting}
    fields = {field.name for field in dataclasses.fields(ja.AgentConfig)}
    of_config = {name: value for name, value in values.items() if name.split(".")[0] in fields}
    config = _replaced(ja.AgentConfig(n_steps=1, progress_bar=False), of_config)
    n_steps = max(1, round(task.n_environment_steps / config.steps_per_update))
    config = dataclasses.replace(
        config,
        n_steps=n_steps,
        eval_frequency=max(1, -(-n_steps // N_EVALUATIONS)),
        on_nonfinite="skip",
    )
    others = {name: value for name, value in values.items() if name not in of_config}
    return config, _replaced(ja.HyperParameters(), others)


def _replaced(group: Any, values: dict[str, Any]) -> Any:
    """Replace fields by dotted name."""
    for name, value in values.items():
        head, _, rest = name.partition(".")
        value = _replaced(getattr(group, head), {rest: value}) if rest else value
        group = dataclasses.replace(group, **{head: value})
    return group


def main() -> None:
    """Train, and print a row per seed."""
    name, setting_name, n_steps, *seeds = sys.argv[1:]
    task, setting = TASKS[name], SETTINGS[setting_name]
    if int(n_steps):
        task = task._replace(n_environment_steps=int(n_steps))
    env, params = ja.make(task.env, **task.env_kwargs)
    if task.env_params:
        params = params.replace(**task.env_params)
    config, hyperparams = configure(task, setting)
    agent = agent_class(env, params)(env, params, config)
    for seed in map(int, seeds):
        started = time.perf_counter()
        runner, metrics = agent.train(jax.random.key(seed), hyperparams)
        seconds = time.perf_counter() - started
        final = agent.eval(jax.random.key(1000 + seed), N_EVALS, task.greedy, runner)
        metrics = {key: np.asarray(values) for key, values in metrics.items()}
        limit = agent.environments.time_limit.last_step_of_returns
        bound = largest_return(metrics["largest_reward"], [float(hyperparams.gamma)], limit)
        row = {
            "final": _mean_return(final["returns"][None])[0],
            "area": float(_mean_return(metrics["returns"][1:]).mean()),
            "explained_variance": float(metrics["explained_variance"][-1].mean()),
            "largest_value_of_possible": float(
                np.nanmax(metrics["largest_value"][1:] / np.maximum(bound[1:], 1e-9))
            ),
            "n_updates_skipped": int(metrics["n_updates_skipped"][-1].sum()),
            "seconds": round(seconds, 1),
        }
        if "info_won" in final:
            row["won"] = float(np.mean(final["info_won"]))
        print("ROW " + json.dumps({"seed": seed, **row}), flush=True)


def _mean_return(returns: Any) -> np.ndarray:
    """Average over episodes and actors: ``[evaluations, episodes, actors]``."""
    return np.asarray(returns, np.float64).mean(axis=(1, 2))


if __name__ == "__main__":
    main()
