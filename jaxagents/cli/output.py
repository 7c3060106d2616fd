"""The output of commands: progress lines, summaries and tables."""

import contextlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

if TYPE_CHECKING:
    from jaxagents.evaluation.comparison_tables import Row
    from jaxagents.evaluation.payoffs import CrossPlay
    from jaxagents.experiments.config_files.schema import ExperimentConfig
    from jaxagents.experiments.experiment import Experiment
    from jaxagents.training.callbacks import Evaluation

_MOST_ACTORS_IN_A_LINE = 4


@final
class EvaluationLines:
    """A callback that prints a line for each evaluation."""

    def __init__(self, beside_bar: bool):
        self._beside_bar = beside_bar
        self._titles: list[str] | None = None  # of returns, as printed last

    def __call__(self, evaluation: "Evaluation") -> None:
        """Print the line, with column titles before the first line and wherever they change.

        Once the actors' returns have differed, each actor keeps a column of its own.
        """
        from jaxagents.experiments.report.sentences import clock

        returns = _mean_returns(evaluation.metrics, apart=len(self._titles or ()) > 1)
        titles = _titles(returns)
        if titles != self._titles:
            self._titles = titles
            self._print(_line(["updates", "env steps", "steps/s", "time", *titles]))
        rate = evaluation.steps_per_second
        numbers = [
            f"{evaluation.n_updates_done:,}",
            f"{evaluation.n_environment_steps:,}",
            f"{rate:,.0f}" if rate > 0 else "",
            clock(evaluation.seconds),
        ]
        self._print(_line([*numbers, *map(decimal, returns)]))

    def _print(self, line: str) -> None:
        # A closed terminal or pipe must not end training.
        with contextlib.suppress(OSError, ValueError):
            if self._beside_bar:
                import tqdm

                tqdm.tqdm.write(line, file=sys.stdout)
                sys.stdout.flush()
            else:
                print(line, flush=True)


def _line(cells: Sequence[str]) -> str:
    widths = (8, 12, 10, 8, 12)
    return "".join(cell.rjust(widths[min(i, 4)]) for i, cell in enumerate(cells))


def _mean_returns(metrics: dict[str, Any], apart: bool) -> list[float]:
    """Return the mean returns per actor, or one for all if there are many actors.

    Equal returns are also shown as one, unless each actor has a column of its own.
    """
    if "returns" not in metrics:
        return []
    returns = metrics["returns"]
    if returns.ndim == 3:  # of a population
        returns = returns[(returns == returns).all(axis=(1, 2))].reshape(-1, returns.shape[-1])
    means = returns.mean(axis=0)
    alike = not apart and bool((returns == returns[:, :1]).all())
    many = len(means) > _MOST_ACTORS_IN_A_LINE
    return [float(means.mean())] if alike or many else means.tolist()


def _titles(returns: Sequence[float]) -> list[str]:
    if len(returns) == 1:
        return ["return"]
    return [f"return {i}" for i in range(len(returns))]


def titled(config: "ExperimentConfig") -> str:
    """Return the headline of a training run."""
    text = (
        f"{config.name}: {config.env}, {config.agent.n_steps:,} updates, "
        f"{config.n_environment_steps:,} environment steps"
    )
    if config.seeds == 1:
        return text
    return f"{text}, for each of {config.seeds} seeds"


def shown_path(path: Path) -> Path:
    """Return a path relative to the current directory, if it lies within it."""
    with contextlib.suppress(OSError, ValueError):
        return path.relative_to(Path.cwd())
    return path


def described(experiment: "Experiment") -> str:
    """Describe the agent of a training run and name the run's directory."""
    agent = experiment.agent
    n_actors, n_policies = agent.environments.n_actors, agent.policies.n_policies
    policies = "one policy" if n_policies == 1 else f"{n_policies} policies"
    actors = "one actor" if n_actors == 1 else f"{n_actors} actors"
    directory = shown_path(experiment.directory)
    return f"{type(agent).__name__}, {policies} for {actors}, in {directory}\n"


def summary_text(summary: dict[str, Any]) -> str:
    """Format an evaluation's statistics as a table."""
    from jaxagents.evaluation.success_rates import success_text, untold_infos
    from jaxagents.experiments.report.sentences import episodes_of

    evaluation, checkpoint, returns = (
        summary[key] for key in ("evaluation", "checkpoint", "returns")
    )
    n_actors = len(returns["mean"])
    columns = ("mean", "ci_low", "ci_high", "std", "min", "median", "max")
    titles = ["", "mean", "95 % from", "to", "std", "min", "median", "max"]
    values = [[decimal(returns[name][i]) for name in columns] for i in range(n_actors)]
    if all(each == values[0] for each in values):
        rows = [["return" if n_actors == 1 else f"return of each of {n_actors} actors", *values[0]]]
    else:
        rows = [[f"return of actor {i}", *each] for i, each in enumerate(values)]
    success = summary.get("success")
    rows += _info_rows(untold_infos(summary), len(titles))
    length = decimal(summary["means"]["episode_lengths"])
    n_seeds = len(summary.get("members", ()))
    of_seeds = ""
    if "best_member" in summary:
        of_seeds = f", by the best of {n_seeds} seeds that continued from each other"
    elif n_seeds:
        of_seeds = f", for each of {n_seeds} seeds; statistics are of their means"
    return "\n".join(
        [
            f"\n{summary['name']} ({summary['env']}), the {evaluation['mode']} checkpoint: "
            f"{checkpoint['n_updates_done']:,} updates, "
            f"{checkpoint['n_environment_steps']:,} environment steps",
            f"{episodes_of(evaluation)} of {length} steps on average{of_seeds}\n",
            table([titles, *rows], right_from=1),
            *([] if success is None else [f"\n{success_text(success)}"]),
        ]
    )


def _info_rows(infos: Mapping[str, Any], width: int) -> list[list[str]]:
    """Return a row for each scalar info of the environment, such as Craftax's achievements."""
    return [
        [name, decimal(mean), *[""] * (width - 2)]
        for name, mean in infos.items()
        if not isinstance(mean, list)
    ]


def early_end_text(experiment: "Experiment", summary: dict[str, Any]) -> str:
    """Say why training ended before its last update, or did not begin; empty otherwise."""
    n_done, n_steps = summary["training"]["n_updates_done"], experiment.config.agent.n_steps
    if n_done >= n_steps:
        if n_done > experiment.n_updates_before:
            return ""
        return (
            f"\nNothing was trained: the run had already finished at {n_done:,} updates; "
            "extend it by --agent.n_steps N."
        )
    return (
        f"\nEnded after {n_done:,} of {n_steps:,} updates: the return has reached "
        f"stop_at_return={experiment.config.stop_at_return}."
    )


def diagnosis_text(summary: dict[str, Any]) -> str:
    """Write a warning for each problem that the diagnosis found; empty if there is none."""
    return "".join(f"\nWarning: {sentence}" for sentence in summary["diagnosis"])


def next_steps_text(experiment: "Experiment") -> str:
    """List the commands for a run that has ended."""
    from jaxagents.environments.host.sharing import import_options, imported_modules
    from jaxagents.experiments.report.content import recipe

    directory, options = shown_path(experiment.directory), import_options()
    curve = directory / "learning_curve.png"  # drawn only if there were evaluations
    first, *then = recipe(directory)
    imports = ", ".join(["jaxagents as ja", *imported_modules()])
    rows = [
        *([["learning curve", str(curve)]] if curve.exists() else []),
        ["HTML report", f"jaxagents report {directory}"],
        ["watch it play", f"jaxagents replay {directory}{options}"],
        ["evaluate again", f"jaxagents eval {directory}{options}"],
        ["repeat the run", first],
        *(["", command] for command in then),
        ["extend the run", f"jaxagents resume {directory} --agent.n_steps N{options}"],
        ["from Python", f"import {imports}"],
        ["", f'agent = ja.Experiment.of_run("{directory}").restore()'],
    ]
    return "\n" + table(rows)


def table(rows: Sequence[Sequence[str]], right_from: int = 100) -> str:
    """Align columns to the left, and the columns from ``right_from`` on to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.rjust(width) if i >= right_from else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    return "\n".join(line.rstrip() for line in lines)


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """Format rows as a Markdown table; the first row is the titles."""
    title, *body = rows
    lines = [title, ["---"] * len(title), *body]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def comparison_text(rows: Sequence["Row"]) -> str:
    """Format a comparison as a table, with a sentence for each pair."""
    from jaxagents.evaluation.comparison_tables import cells_of, sentences_of

    notes = [
        "Returns are those of the runs' summaries, averaged over actors. Groups are compared by",
        "the difference of their interquartile means (iqm), with bootstrap intervals over seeds.",
    ]
    if any(row["kind"] == "method" for row in rows):
        notes = [
            "Columns of environments are interquartile means of the runs' returns. The score is",
            "the interquartile mean over all runs, on a scale from the return of random actions,",
            "0, to the best method's on each environment, 1; bootstrap intervals resample runs",
            "within each. Where random actions were not measured, 0 is the return before training.",
        ]
    return "\n".join([table(cells_of(rows), right_from=1), "", *sentences_of(rows), "", *notes])


def cross_play_text(result: "CrossPlay") -> str:
    """Format the mean returns of all pairs as a table."""
    rows = [
        [name, *map(decimal, row)]
        for name, row in zip(result.names, result.mean.tolist(), strict=True)
    ]
    interval = result.gap_interval
    return "\n".join(
        [
            table([["", *result.names], *rows], right_from=1),
            "",
            f"With itself {decimal(result.self_play)}, with others {decimal(result.cross_play)}: "
            f"a gap of {decimal(result.gap)} (95 % interval {decimal(interval.low)} to "
            f"{decimal(interval.high)}).",
        ]
    )


def decimal(value: float | None) -> str:
    """Write a number with two decimals, and a dash for None."""
    return "-" if value is None else f"{value:,.2f}"
