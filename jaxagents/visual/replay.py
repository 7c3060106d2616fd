"""Episodes as animations, one file each."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxagents.evaluation.trajectories import Trajectory
from jaxagents.visual.renderers.animation import find_ffmpeg, write_gif, write_mp4
from jaxagents.visual.renderers.registry import make_scene
from jaxagents.visual.renderers.scene import compose

_MOST_FRAMES = 300  # of longer episodes every second, third, ... state is shown


def check_replay(directory: Path, n_episodes: int, mp4: bool) -> None:
    """Find out, before anything is played, whether the animations can be written.

    Raises:
        ValueError: There is no episode to write.
        FileExistsError: One of the files is there already.
        NotADirectoryError: The directory is something else.
        FileNotFoundError: There is no ffmpeg for films.
    """
    if n_episodes < 1:
        raise ValueError(f"{n_episodes} episodes cannot be replayed; ask for at least 1.")
    if mp4:
        find_ffmpeg()
    if directory.exists() and not directory.is_dir():
        raise NotADirectoryError(f"{directory} is no folder; name another one.")
    for number in range(1, n_episodes + 1):
        for path in _paths(directory, number, mp4):
            if path.exists():
                raise FileExistsError(
                    f"{path} exists and is not replaced; name another folder, or remove it first."
                )


def write_replay(
    env: Any, params: Any, trajectories: Sequence[Trajectory], directory: Path, mp4: bool = False
) -> list[Path]:
    """Write each episode as ``episode-1.gif``, ..., and as a film beside it if asked for.

    Args:
        env: The environment, as `jaxagents.make` returns it.
        params: Its parameters.
        trajectories: Episodes in it.
        directory: Where to; it is made if it is not there.
        mp4: Whether to write ``episode-1.mp4``, ... as well.

    Returns:
        The files.
    """
    check_replay(directory, len(trajectories), mp4)
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for number, trajectory in enumerate(trajectories, start=1):
        scene = make_scene(env, params, trajectory)
        frames = [compose(scene, trajectory, n) for n in shown_states(trajectory.n_steps)]
        for path in _paths(directory, number, mp4):
            write = write_gif if path.suffix == ".gif" else write_mp4
            write(frames, path, scene.seconds_per_step)
            written.append(path)
    return written


def _paths(directory: Path, number: int, mp4: bool) -> list[Path]:
    """Name the files of an episode."""
    suffixes = (".gif", ".mp4") if mp4 else (".gif",)
    return [directory / f"episode-{number}{suffix}" for suffix in suffixes]


def shown_states(n_steps: int) -> list[int]:
    """List the states that are shown, by the number of steps before them, the last one always."""
    stride = math.ceil((n_steps + 1) / _MOST_FRAMES)
    shown = list(range(0, n_steps + 1, stride))
    return shown if shown[-1] == n_steps else [*shown, n_steps]
