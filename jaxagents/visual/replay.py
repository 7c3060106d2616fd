"""Episodes written as animations, one file per episode."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxagents.environments.gif import write_gif
from jaxagents.evaluation.trajectories import Trajectory
from jaxagents.training.atomic_write import naming
from jaxagents.visual.renderers.film import find_ffmpeg, write_mp4
from jaxagents.visual.renderers.registry import make_scene
from jaxagents.visual.renderers.scene import compose

MAX_FRAMES = 300  # of longer episodes, only every second, third, ... state is shown


def check_replay(directory: Path, n_episodes: int, mp4: bool, max_frames: int = MAX_FRAMES) -> None:
    """Check that the animations can be written, before any episode is played.

    Raises:
        ValueError: ``n_episodes`` is less than 1, or ``max_frames`` less than 2.
        FileExistsError: One of the files exists already.
        NotADirectoryError: ``directory`` is a file.
        FileNotFoundError: ``mp4`` is set and ffmpeg is not installed.
    """
    if n_episodes < 1:
        raise ValueError(f"{n_episodes} episodes cannot be replayed; ask for at least 1.")
    if max_frames < 2:
        raise ValueError(
            f"max_frames={max_frames} cannot show the first and the last state; allow at least 2."
        )
    if mp4:
        find_ffmpeg()
    if directory.exists() and not directory.is_dir():
        raise NotADirectoryError(f"{directory} is not a folder; name another one.")
    for number in range(1, n_episodes + 1):
        for path in _paths(directory, number, mp4):
            if path.exists():
                raise FileExistsError(
                    f"{path} exists and is not replaced; name another folder, or remove it first."
                )


def write_replay(
    env: Any,
    params: Any,
    trajectories: Sequence[Trajectory],
    directory: Path,
    mp4: bool = False,
    max_frames: int = MAX_FRAMES,
) -> list[Path]:
    """Write each episode as ``episode-1.gif``, ``episode-2.gif``, ...

    Args:
        env: The environment, as `jaxagents.make` returns it.
        params: Its parameters.
        trajectories: Episodes of this environment.
        directory: Folder of the files; created if it does not exist.
        mp4: Also write ``episode-1.mp4``, ...
        max_frames: Of longer episodes, only every second, third, ... state is shown.

    Returns:
        The paths of the files.
    """
    check_replay(directory, len(trajectories), mp4, max_frames)
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for number, trajectory in enumerate(trajectories, start=1):
        scene = make_scene(env, params, trajectory)
        shown = shown_states(trajectory.n_steps, max_frames)
        frames = [compose(scene, trajectory, n) for n in shown]
        for path in _paths(directory, number, mp4):
            write = write_gif if path.suffix == ".gif" else write_mp4
            with naming(path):
                write(frames, path, scene.seconds_per_step)
            written.append(path)
    return written


def _paths(directory: Path, number: int, mp4: bool) -> list[Path]:
    """List the files of one episode."""
    suffixes = (".gif", ".mp4") if mp4 else (".gif",)
    return [directory / f"episode-{number}{suffix}" for suffix in suffixes]


def shown_states(n_steps: int, max_frames: int = MAX_FRAMES) -> list[int]:
    """List the indices of the states to show: evenly spaced, and always the last one."""
    stride = max(1, math.ceil(n_steps / (max_frames - 1)))
    shown = list(range(0, n_steps + 1, stride))
    return shown if shown[-1] == n_steps else [*shown, n_steps]
