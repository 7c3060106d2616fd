"""Films during training."""

import io

import pytest
from PIL import Image

import jaxagents as ja
from jaxagents.errors import ExperimentError
from jaxagents.evaluation.run_files import read_records
from jaxagents.experiments.config_files.schema import (
    EvaluationConfig,
    ExperimentConfig,
    TrackingConfig,
)
from jaxagents.experiments.experiment import Experiment
from jaxagents.experiments.films import Films
from jaxagents.training.trackers import TensorBoard, Trackers
from tests.agents import TINY, opinionated_runner, shared_agent
from tests.experiments.test_experiment import tiny_config
from tests.plugins import forget_registrations
from tests.probes import Walk
from tests.training.test_json_lines import evaluation

EVERY_SECOND = TrackingConfig(film_frequency=2)


class Undrawable(Walk):
    def draw(self, state, params):
        raise OSError("no display")


@pytest.fixture(scope="module")
def film(tmp_path_factory):
    """Film two evaluations, of which only the first is due."""
    folder = tmp_path_factory.mktemp("films")
    config = ExperimentConfig("walk", "probe/walk", TINY, tracking=EVERY_SECOND)
    agent = shared_agent()
    tensorboard = TensorBoard(folder / "tensorboard")
    films = Films(config, folder / "films", tensorboard)
    for n_updates_done in (2 * TINY.eval_frequency, 3 * TINY.eval_frequency):
        now = evaluation(n_updates_done)._replace(agent=agent, runner=opinionated_runner(agent))
        tensorboard.log(now)
        films.log(now)
    tensorboard.close()
    (path,) = (folder / "films").iterdir()
    return path


def test_an_episode_is_filmed_after_every_so_many_evaluations(film):
    assert film.name == "update-4.gif"
    with Image.open(film) as gif:
        assert gif.n_frames == 6


def test_tensorboard_shows_the_film(film):
    event_accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator"
    )
    accumulator = event_accumulator.EventAccumulator(str(film.parents[1] / "tensorboard"))
    accumulator.Reload()
    (shown,) = accumulator.Images("evaluation/film")
    assert shown.step == 4 * 2048
    assert shown.encoded_image_string == film.read_bytes()
    assert (shown.width, shown.height) == Image.open(io.BytesIO(film.read_bytes())).size


def test_films_that_cannot_be_made_are_refused_before_training(tmp_path):
    with pytest.raises(ValueError, match=r"^film_frequency=-1 is negative"):
        TrackingConfig(film_frequency=-1)
    last = EvaluationConfig(mode="last")
    with pytest.raises(ValueError, match=r"film_frequency=2 needs evaluations"):
        tiny_config(tmp_path, agent={"n_evals": 0}, evaluation=last, tracking=EVERY_SECOND)
    host = tiny_config(tmp_path, env="gymnasium/CartPole-v1", tracking=EVERY_SECOND)
    with pytest.raises(ExperimentError, match=r"film_frequency=2 films environments in JAX, and"):
        Experiment(host)


def test_a_drawing_that_fails_is_one_warning(tmp_path, caplog):
    config = ExperimentConfig("walk", "probe/walk", TINY, tracking=EVERY_SECOND)
    agent = shared_agent()
    films = Trackers([Films(config, tmp_path / "missing" / "films", Trackers([]))])
    for n_updates_done in (4, 8):
        now = evaluation(n_updates_done)._replace(agent=agent, runner=opinionated_runner(agent))
        films.log(now)
    (message,) = caplog.messages
    assert message.startswith("Films has failed, training continues: [Errno 2]")


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [1, 2])
def test_training_is_the_same_with_films_even_if_they_fail(seeds, tmp_path, monkeypatch, caplog):
    forget_registrations(monkeypatch)
    ja.register("probe/walk", Walk)
    ja.register("probe/undrawable", Undrawable)

    def train(name, env, tracking):
        config = tiny_config(tmp_path, name=name, env=env, seeds=seeds, tracking=tracking)
        experiment = Experiment(config)
        experiment.train()
        folder = experiment.directory
        lines = read_records(next(iter(sorted(folder.rglob("metrics.jsonl")))))
        timeless = [
            {key: value for key, value in line.items() if "second" not in key} for line in lines
        ]
        return folder, timeless

    _, without = train("without", "probe/walk", TrackingConfig())
    filmed, same = train("filmed", "probe/walk", EVERY_SECOND)
    assert same == without
    names = sorted(path.name for path in (filmed / "films").iterdir())
    assert names == ["update-0.gif", "update-2.gif"]
    assert not caplog.messages
    _, same = train("failed", "probe/undrawable", EVERY_SECOND)
    assert same == without
    assert caplog.messages == ["Films has failed, training continues: no display"]
