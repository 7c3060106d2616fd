"""Fabricated run directories, with metrics from which results can be derived by hand."""

import json
from pathlib import Path
from typing import Any

import yaml


def write_run(
    directory: Path,
    *,
    name: str = "run",
    seed: int = 0,
    env: str = "hunting/discrete",
    metrics: dict[str, list[Any]] | None = None,
    steps: list[int] | None = None,
    final_returns: list[float | None] | None = None,
    agent: dict[str, Any] | None = None,
    resumed: dict[int, dict[str, Any]] | None = None,
    **config: Any,
) -> Path:
    """Write the files of a run.

    Args:
        directory: Directory of the run.
        name: The configured name.
        seed: The configured seed.
        env: Id of the environment.
        metrics: One value per evaluation, by key in metrics.jsonl.
        steps: Environment steps of the evaluations; by default 0, 100, 200, ...
        final_returns: Mean return per actor in the summary; None writes no summary.
        agent: Further settings of the agent.
        resumed: Settings that the run was resumed with, by the number of updates done before.
        config: Further settings.
    """
    directory.mkdir(parents=True)
    agent = {"parameter_sharing": "shared", **(agent or {})}
    whole = {"name": name, "env": env, "agent": agent, "seed": seed, **config}
    (directory / "config.yaml").write_text(yaml.safe_dump(whole))
    for since, changed in (resumed or {}).items():
        changed_agent = {**agent, **changed.get("agent", {})}
        text = yaml.safe_dump({**whole, **changed, "agent": changed_agent})
        (directory / f"config_from_{since}.yaml").write_text(text)
    metrics = metrics or {}
    n_evaluations = len(next(iter(metrics.values()), []))
    steps = steps or [100 * i for i in range(n_evaluations)]
    lines = [
        {"n_updates_done": i, "n_environment_steps": steps[i], "seconds": 0.5 * i}
        | {key: values[i] for key, values in metrics.items()}
        for i in range(n_evaluations)
    ]
    (directory / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if final_returns is not None:
        summary = {"name": name, "env": env, "returns": {"mean": final_returns}}
        (directory / "summary.json").write_text(json.dumps(summary))
    return directory


def returns(*means: Any, std: float = 1.0, below: float = 2.0, above: float = 3.0) -> dict:
    """Make the metrics of returns; each mean is a number, or a list with one per actor."""
    rows = [[row] if isinstance(row, int | float) else list(row) for row in means]
    return {
        "return_mean": rows,
        "return_std": [[std for _ in row] for row in rows],
        "return_min": [[value - below for value in row] for row in rows],
        "return_max": [[value + above for value in row] for row in rows],
    }
