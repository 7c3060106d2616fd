"""`jaxagents replay`: episodes of a run as animations."""

import sys

import pytest
from PIL import Image

import jaxagents as ja
from jaxagents.cli import main as cli
from jaxagents.experiments.config_files.schema import EvaluationConfig, ExperimentConfig
from jaxagents.experiments.experiment import Experiment
from jaxagents.visual.replay import shown_states
from tests.plugins import forget_registrations
from tests.probes import Walk

N_STEPS = 4


@pytest.fixture(scope="module", autouse=True)
def _walk():
    with pytest.MonkeyPatch.context() as patch:
        forget_registrations(patch)
        ja.register("probe/walk", lambda: Walk(deaths=(2, 100), limit=N_STEPS))
        yield


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    one_layer = ja.Layers(hidden_sizes=(8,))
    agent = ja.AgentConfig(
        n_steps=1,
        batch_size=2,
        minibatch_size=2,
        rollout_length=4,
        n_evals=2,
        progress_bar=False,
        actor_layers=one_layer,
        critic_layers=one_layer,
    )
    config = ExperimentConfig(
        name="walk",
        env="probe/walk",
        agent=agent,
        evaluation=EvaluationConfig(n_evals=3, greedy=False),
        runs_dir=str(tmp_path_factory.mktemp("runs")),
    )
    experiment = Experiment(config)
    experiment.train()
    return experiment


@pytest.fixture(scope="module")
def shown(experiment):
    """Write two of the three episodes that an evaluation plays, and return their paths."""
    assert cli.main(["replay", str(experiment.directory), "--episodes", "2"]) == 0
    return [experiment.directory / "replay" / f"episode-{number}.gif" for number in (1, 2)]


def fail(capsys, *arguments):
    """Run the command, which fails, and return its one-line error message."""
    capsys.readouterr()
    assert cli.main(["replay", *map(str, arguments)]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("\n") == 1
    return output.err


@pytest.mark.slow
def test_every_episode_is_a_gif_of_all_its_states(shown):
    for path in shown:
        with Image.open(path) as gif:
            assert gif.n_frames == N_STEPS + 1
    assert len(list(shown[0].parent.iterdir())) == 2


@pytest.mark.slow
def test_the_first_evaluated_episodes_are_shown_however_many_are_asked_for(experiment, shown):
    (again,) = experiment.replay()
    assert again.parent.name == "replay-2"
    assert again.read_bytes() == shown[0].read_bytes()


@pytest.mark.slow
def test_options_choose_the_episodes(experiment, shown, tmp_path, monkeypatch):
    # Commands share the compiled agent; `shown` rebuilds the experiment from its directory.
    monkeypatch.setattr(Experiment, "of_run", lambda directory: experiment)
    options = {
        "as configured": ["--sampled", "--seed", "1", "--mode", "last"],
        "another seed": ["--seed", "9"],
    }
    written = {}
    for name, arguments in options.items():
        to = str(tmp_path / name)
        assert cli.main(["replay", str(experiment.directory), "--to", to, *arguments]) == 0
        (path,) = (tmp_path / name).iterdir()
        written[name] = path.read_bytes()
    (greedy,) = experiment.replay(tmp_path / "greedy", greedy=True)
    assert written["as configured"] == shown[0].read_bytes()
    assert len({*written.values(), greedy.read_bytes()}) == 3


def test_a_film_has_no_more_frames_than_are_allowed(experiment, tmp_path, monkeypatch):
    monkeypatch.setattr(Experiment, "of_run", lambda directory: experiment)
    to = tmp_path / "few"
    arguments = ["replay", str(experiment.directory), "--to", str(to), "--max-frames", "3"]
    assert cli.main(arguments) == 0
    with Image.open(to / "episode-1.gif") as gif:
        assert gif.n_frames == 3


def test_values_and_likely_actions_are_shown_on_demand(experiment, tmp_path, monkeypatch):
    monkeypatch.setattr(Experiment, "of_run", lambda directory: experiment)
    heights = []
    for name, options in {"without": [], "with": ["--view"]}.items():
        to = str(tmp_path / name)
        assert cli.main(["replay", str(experiment.directory), "--to", to, *options]) == 0
        with Image.open(tmp_path / name / "episode-1.gif") as gif:
            heights.append(gif.height)
    assert heights[1] == heights[0] + 18 + 2 * 30  # a title, and a row for each actor


def test_the_file_is_shown_as_seen_from_here(experiment, monkeypatch, capsys):
    monkeypatch.setattr(Experiment, "of_run", lambda directory: experiment)
    monkeypatch.chdir(experiment.directory.parent)
    assert cli.main(["replay", experiment.directory.name]) == 0
    assert capsys.readouterr().out.startswith(f"{experiment.directory.name}/replay")


def test_no_file_is_replaced(experiment, tmp_path, capsys):
    (tmp_path / "episode-2.gif").write_bytes(b"mine")
    line = fail(capsys, experiment.directory, "--to", tmp_path, "--episodes", 2)
    assert "episode-2.gif exists" in line
    assert [each.name for each in tmp_path.iterdir()] == ["episode-2.gif"]
    assert (tmp_path / "episode-2.gif").read_bytes() == b"mine"


def test_mp4_without_ffmpeg_fails_with_one_line(experiment, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    line = fail(capsys, experiment.directory, "--mp4", "--to", tmp_path / "films")
    assert "an MP4 needs ffmpeg" in line
    assert '".[mp4]"' in line
    assert not (tmp_path / "films").exists()


def test_bad_arguments_fail_with_one_line(experiment, tmp_path, capsys):
    assert "0 episodes" in fail(capsys, experiment.directory, "--episodes", 0)
    (tmp_path / "file").touch()
    assert "not a folder" in fail(capsys, experiment.directory, "--to", tmp_path / "file")
    assert "config.yaml" in fail(capsys, tmp_path)


def test_long_episodes_are_shown_in_strides_that_reach_the_end():
    assert shown_states(4) == [0, 1, 2, 3, 4]
    assert shown_states(299) == list(range(300))
    assert shown_states(300) == list(range(0, 301, 2))
    assert shown_states(999) == [*range(0, 999, 4), 999]


def test_no_more_states_are_shown_than_frames_are_allowed():
    assert shown_states(400, max_frames=101) == list(range(0, 401, 4))
    assert shown_states(199, max_frames=100) == [*range(0, 199, 3), 199]
    assert shown_states(7, max_frames=2) == [0, 7]
