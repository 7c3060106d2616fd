"""The figures of a report: curves over training, and an episode."""

import base64
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from jaxagents.errors import ExperimentError, explained
from jaxagents.evaluation.learning_curves import health_metrics
from jaxagents.evaluation.lineages import read_lineages
from jaxagents.evaluation.runs import Run, is_population_based
from jaxagents.experiments.report.parts import Heading, Part, Picture, SideBySide
from jaxagents.experiments.report.sentences import (
    Groups,
    between,
    by_environment,
    listed,
    name_of,
)

_LOSSES = ("actor_loss", "critic_loss", "kl")


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
        for runs in groups.values()
        for run in runs
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
    from jaxagents.visual.plots import plot_runs

    return _drawn(lambda path: plot_runs(groups, path, metrics=metrics), alt)


def _drawn(draw: Callable[[Path], None], alt: str) -> Part:
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


_MEDIA_TYPES: Mapping[str, str] = {
    ".gif": "image/gif",
    ".png": "image/png",
    ".svg": "image/svg+xml",
}


def data_uri(path: Path) -> str:
    """Return a picture as an address that holds it."""
    data = base64.b64encode(path.read_bytes()).decode()
    return f"data:{_MEDIA_TYPES[path.suffix]};base64,{data}"
