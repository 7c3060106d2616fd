"""The tables and pictures of a report: returns, curves, episodes, settings, commands."""

import base64
import re
import shlex
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxagents.environments.host.sharing import import_options
from jaxagents.errors import ExperimentError, explained
from jaxagents.evaluation.learning_curves import health_metrics
from jaxagents.evaluation.run_files import read_run_config
from jaxagents.evaluation.runs import Run, configs_of, is_population_based, read_lineages
from jaxagents.evaluation.success_rates import success_number
from jaxagents.experiments.report.parts import (
    CaptionedTable,
    Code,
    Datum,
    Heading,
    Listing,
    Part,
    Picture,
    SideBySide,
)
from jaxagents.experiments.report.sentences import (
    Groups,
    all_runs,
    between,
    by_environment,
    episodes_of,
    estimates,
    listed,
    n_evaluated,
    name_of,
    number,
    rows_of_actors,
)
from jaxagents.training.trackers import flat_keys

_STATISTICS = ("mean", "ci_low", "ci_high", "iqm", "std", "min", "median", "max")
_TITLES = ("mean", "CI low", "CI high", "IQM", "std", "min", "median", "max")
_LATEST = ("return_mean", "return_std", "return_min", "return_max")
_REQUIRED = ("name", "env", "agent.n_steps")
_PER_RUN = ("name", "seed", "runs_dir")
_LOSSES = ("actor_loss", "critic_loss", "kl")
_MEDIA_TYPES = {".gif": "image/gif", ".png": "image/png", ".svg": "image/svg+xml"}
_NEW_RUN = "NEW_RUN"


def evaluation_tables(groups: Groups) -> list[Part]:
    """Tabulate the returns after training per run and, if there are several runs, per group.

    If no run has been evaluated after training, tabulate the latest evaluation during training.
    """
    runs = all_runs(groups)
    if not any(run.summary for run in runs):
        return [_table_of_latest(runs)]
    if len(runs) == 1:
        return [_table_of_runs(runs, named=False), *_table_of_successes(runs)]
    return [
        *_table_of_groups(groups),
        _table_of_runs(runs, named=True),
        *_table_of_successes(runs),
    ]


def _table_of_runs(runs: Sequence[Run], named: bool) -> Part:
    rows = []
    for run in runs:
        if run.summary:
            names = [name_of(run)] if named else []
            steps = f"{run.summary['checkpoint']['n_environment_steps']:,}"
            for subject, values in rows_of_actors(run.summary["returns"], _STATISTICS):
                rows.append([*names, subject, *map(_datum, values), steps])
    titles = [*(["run"] if named else []), "return of", *_TITLES, "steps"]
    kinds = dict.fromkeys(_kind_of_evaluation(run.summary) for run in runs if run.summary)
    caption = (
        f"{' '.join(kinds)} Steps: environment steps up to the checkpoint. CI: 95 % interval of "
        "the mean, by bootstrap over episodes."
    )
    return CaptionedTable(titles, rows, caption, n_headers=1 + named)


def _table_of_successes(runs: Sequence[Run]) -> list[Part]:
    """Tabulate each run's success, and its other infos, if it has one."""
    rows = []
    for run in runs:
        success = (run.summary or {}).get("success")
        if success is not None:
            main = [success["title"], *(success[each] for each in ("mean", "low", "high"))]
            others = [[name.replace("_", " "), mean] for name, mean in success["others"].items()]
            for title, *numbers in (main, *others):
                cells = [
                    Datum(success_number(success, each), None if each is None else repr(each))
                    for each in numbers
                ]
                cells += [""] * (3 - len(cells))
                rows.append([name_of(run), title, *cells, str(success["n_episodes"])])
    titles = ["run", "success", "mean", "CI low", "CI high", "episodes"]
    caption = (
        "Success in the same episodes. CI: 95 % interval of the mean, Wilson's for shares, by "
        "bootstrap over episodes for counts."
    )
    return [CaptionedTable(titles, rows, caption, n_headers=2)] if rows else []


def _table_of_groups(groups: Groups) -> list[Part]:
    rows = [
        [label, subject, str(n_evaluated(runs)), *map(_datum, estimate)]
        for label, runs in groups.items()
        for subject, estimate in estimates(runs)
    ]
    titles = ["group", "return of", "runs", "IQM", "CI low", "CI high"]
    caption = (
        "Groups of runs that differ only in their seed. IQM: interquartile mean of the runs' mean "
        "returns. CI: its 95 % interval, by bootstrap over runs."
    )
    return [CaptionedTable(titles, rows, caption, n_headers=2)] if rows else []


def _table_of_latest(runs: Sequence[Run]) -> Part:
    latest = [(run, run.records[-1]) for run in runs if run.records]
    rows = []
    for run, record in latest:
        if "return_mean" in record:
            name, steps = name_of(run), f"{record['n_environment_steps']:,}"
            for subject, values in rows_of_actors(record, _LATEST):
                rows.append([name, subject, steps, *map(_datum, values)])
    if not rows:
        return "Nothing has been evaluated yet."
    titles = ["run", "return of", "environment steps", "mean", "std", "min", "max"]
    return CaptionedTable(titles, rows, "Latest evaluation during training.", n_headers=2)


def _kind_of_evaluation(summary: Any) -> str:
    evaluation = summary["evaluation"]
    return f"{episodes_of(evaluation)} of the {evaluation['mode']} checkpoint."


def _datum(value: float | None) -> Datum:
    """Write a rounded number, with its full precision as value and tooltip."""
    return Datum(number(value), None if value is None else repr(value))


def non_defaults(groups: Groups) -> list[Part]:
    """Tabulate the settings of each group that differ from their defaults."""
    defaults = _defaults()
    configs = {label: dict(flat_keys(runs[0].config)) for label, runs in groups.items()}
    keys = dict.fromkeys(key for config in configs.values() for key in config)
    rows = []
    for key in keys:
        values = [_shown(config, key) for config in configs.values()]
        default = _shown(defaults, key)
        if key not in _PER_RUN and any(value != default for value in values):
            rows.append([Code(key.split(".")), *values, default])
    titles = ["key", *(configs if len(configs) > 1 else ["value"]), "default"]
    caption = "Settings that differ from their defaults, apart from name, seed and folder."
    return [CaptionedTable(titles, rows, caption, kind="words")]


def _defaults() -> dict[str, Any]:
    """Return the defaults of all optional keys."""
    from jaxagents.config import AgentConfig
    from jaxagents.experiments.config_files.schema import ExperimentConfig, to_plain

    config = ExperimentConfig(name="any", env="any", agent=AgentConfig(n_steps=1))
    return {key: value for key, value in flat_keys(to_plain(config)) if key not in _REQUIRED}


def complete_configurations(groups: Groups) -> list[Part]:
    """Write the complete configuration of each group, collapsed."""
    return [
        Listing(_yaml(runs[0].config), f"Complete configuration of {name_of(runs[0])}")
        for runs in groups.values()
    ]


def _shown(config: Mapping[str, Any], key: str) -> str:
    """Write a value as YAML on one line, or nothing if the key is absent."""
    from jaxagents.experiments.config_files.schema import yaml_text

    return yaml_text(config[key]) if key in config else ""


def _yaml(config: Mapping[str, Any]) -> str:
    import yaml

    return yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True).rstrip()


def reproduction(groups: Groups) -> list[Part]:
    """Write the commands and software versions that reproduce the runs."""
    runs = all_runs(groups)
    recipes = [recipe(run.directory) for run in runs]
    commands = "\n".join(command for each in recipes for command in each)
    versions = [run.summary["versions"] for run in runs if run.summary]
    names = list(dict.fromkeys(name for each in versions for name in each))
    of_name = {name: {str(each.get(name, "?")) for each in versions} for name in names}
    rows = [[name, ", ".join(sorted(values))] for name, values in of_name.items()]
    said = "With the same software versions, each command reproduces its run exactly:"
    if len(runs) < sum(map(len, recipes)):
        said = (
            "With the same software versions, these commands reproduce the runs exactly. Some were "
            "resumed with another configuration; NEW_RUN is the directory that their first command "
            "writes:"
        )
    versions_table = [CaptionedTable(["package", "version"], rows, "Versions", kind="words")]
    return [said, Listing(commands), *(versions_table if rows else [])]


def recipe(directory: Path) -> list[str]:
    """List the commands that repeat a run; one, unless it was resumed with another configuration.

    ``NEW_RUN`` stands for the directory that the first command writes.
    """
    (_, first), *resumed = configs_of(directory)
    options = import_options()
    commands = [f"jaxagents train {shlex.quote(str(first))}{options}"]
    before = read_run_config(first) if resumed else {}
    for n_updates_done, path in resumed:
        after = read_run_config(path)
        if n_updates_done < _value(before, "agent.n_steps"):
            commands[-1] += f"  # unless it has ended, press Ctrl-C after update {n_updates_done}"
        commands.append(f"jaxagents resume {_NEW_RUN}{options}{_changes(before, after)}")
        before = after
    return commands


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Write the fields in which two configurations differ as overrides, with the later values."""
    from jaxagents.experiments.config_files.schema import ExperimentConfig, keys_of, yaml_text

    keys = [key for key, field in keys_of(ExperimentConfig) if not field.is_group]
    return "".join(
        f" --{key} {shlex.quote(yaml_text(_value(after, key)))}"
        for key in keys
        if _value(before, key) != _value(after, key)
    )


def _value(config: Mapping[str, Any], key: str) -> Any:
    value: Any = config
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def learning_curves(groups: Groups) -> list[Part]:
    """Plot the returns over training, one figure per environment."""
    drawn = _with_values(groups, ["return_mean"])
    if not drawn:
        return ["No curves yet: nothing has been evaluated."]
    pictures = []
    for env, of_env in by_environment(drawn).items():
        ends = [f"{label} {_start_and_end(runs)}" for label, runs in of_env.items()]
        alt = f"Episode return on {env} over environment steps: {'; '.join(ends)}."
        pictures.append(_curves(of_env, ["return"], alt))
    return _with_titles(pictures, drawn)


def training_curves(groups: Groups) -> list[Part]:
    """Plot the metrics of training, one figure per environment."""
    drawn = _with_values(groups, _LOSSES)
    if not drawn:
        return ["No curves yet: no update has been recorded."]
    metrics = [*_LOSSES, *health_metrics(drawn)]
    pictures = []
    for env, of_env in by_environment(drawn).items():
        names = listed([name.replace("_", " ") for name in metrics])
        alt = f"Curves over environment steps on {env}: {names}."
        pictures.append(_curves(of_env, metrics, alt))
    return _with_titles(pictures, drawn)


def lineages(groups: Groups) -> list[Part]:
    """Draw the lineages of each run of population-based training."""
    from jaxagents.visual.population_plots import draw_lineages

    drawn = [
        run
        for run in all_runs(groups)
        if is_population_based(run.config) and _values(run, "return_mean")
    ]
    pictures = []
    for run in drawn:
        history = read_lineages(run.directory)
        names = listed(["the return", *history.hyperparams])
        alt = f"Lineages of {name_of(run)}: {names} of each member over environment steps."
        pictures.append(_drawn(lambda path, history=history: draw_lineages(history, path), alt))
    return pictures


def _with_titles(pictures: Sequence[Part], groups: Groups) -> list[Part]:
    """Title each picture with its environment, if there are several."""
    envs = list(by_environment(groups))
    if len(envs) == 1:
        return list(pictures)
    titles = [Heading(env) for env in envs]
    return [each for pair in zip(titles, pictures, strict=True) for each in pair]


def _with_values(groups: Groups, keys: Sequence[str]) -> dict[str, list[Run]]:
    """Keep the runs that have recorded all of these metrics, and drop empty groups."""
    drawn = {
        label: [run for run in runs if all(_values(run, key) for key in keys)]
        for label, runs in groups.items()
    }
    return {label: runs for label, runs in drawn.items() if runs}


def _values(run: Run, key: str) -> list[list[float]]:
    """List the finite values of a metric per evaluation, skipping evaluations without any."""
    rows = [[each for each in record.get(key) or [] if each is not None] for record in run.records]
    return [row for row in rows if row]


def _start_and_end(runs: Sequence[Run]) -> str:
    values = [_values(run, "return_mean") for run in runs]
    first, last = ([each for rows in values for each in rows[end]] for end in (0, -1))
    return f"starts at {between(first)} and ends at {between(last)}"


def _curves(groups: Groups, metrics: Sequence[str], alt: str) -> Part:
    from jaxagents.visual.run_plots import plot_runs

    return _drawn(lambda path: plot_runs(groups, path, metrics=metrics), alt)


def _drawn(draw: Callable[[Path], Any], alt: str) -> Part:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "curves.svg"
        try:
            draw(path)
        except ExperimentError as error:  # the runs cannot be plotted together
            return f"No plot: {error}"
        # At its original width, so that its text has the intended size.
        return Picture(data_uri(path), alt, width=_width_of(path))


def _width_of(drawing: Path) -> str:
    width = re.search(r'<svg[^>]* width="([\d.]+pt)"', drawing.read_text(encoding="utf-8"))
    return width[1] if width else "100%"


def episodes(groups: Groups) -> list[Part]:
    """Show an episode of the first run of each group."""
    titled = len(groups) > 1
    return [
        SideBySide(
            [
                [*([Heading(label)] if titled else []), _episode(runs[0])]
                for label, runs in groups.items()
            ]
        )
    ]


def _episode(run: Run) -> Part:
    with tempfile.TemporaryDirectory() as folder:
        try:
            moving = _play(run, Path(folder))
            still = _last_frame(moving)
        except ExperimentError as error:
            return f"No episode of {name_of(run)} can be shown: {error}"
        alt = f"An episode of {run.config['env']} played by the policies of {name_of(run)}."
        return Picture(data_uri(moving), alt, still=data_uri(still))


def _play(run: Run, folder: Path) -> Path:
    with explained():
        from jaxagents.experiments.experiment import Experiment

        pictures = Experiment.of_run(run.directory).replay(folder, n_episodes=1)
    return next(path for path in pictures if path.suffix == ".gif")


def _last_frame(moving: Path) -> Path:
    from PIL import Image

    still = moving.with_suffix(".png")
    with Image.open(moving) as image:
        image.seek(getattr(image, "n_frames", 1) - 1)
        image.convert("RGB").save(still)
    return still


def data_uri(path: Path) -> str:
    """Return a picture as an address that holds it."""
    data = base64.b64encode(path.read_bytes()).decode()
    return f"data:{_MEDIA_TYPES[path.suffix]};base64,{data}"
