"""Episodes written as animations, one file per episode."""

import importlib
import math
import shutil
import subprocess
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from jaxagents.environments.spaces import as_space
from jaxagents.errors import pip_install
from jaxagents.evaluation.episodes import Episode, EpisodeView
from jaxagents.training.atomic_write import replacing
from jaxagents.visual.picture_files import FILMS, check_replaceable, check_suffix
from jaxagents.visual.renderers.registry import make_scene
from jaxagents.visual.renderers.scene import compose
from jaxagents.visual.renderers.view_panel import with_view

MAX_FRAMES = 300  # of longer episodes, only every second, third, ... state is shown
_LAST_FRAME_SECONDS = 1.5
_N_COLOURS = 96  # of a GIF
_MAX_PALETTE_FRAMES = 12


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
    _check_max_frames(max_frames)
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


def film(
    episode: Episode,
    path: str | PathLike[str],
    env: Any,
    env_params: Any = None,
    max_frames: int = MAX_FRAMES,
    view: EpisodeView | None = None,
) -> None:
    """Write an episode as a GIF or an MP4, drawn as `jaxagents replay` does.

    Args:
        episode: From the agent's `record`.
        path: File that ends in .gif or .mp4; an earlier film is replaced.
        env: The episode's environment.
        env_params: Its parameters.
        max_frames: Show only every second, third, ... state of longer episodes.
        view: Also show the values and likely actions of up to twelve actors, from the agent's
            `view`.

    Raises:
        ValueError: ``path`` has another suffix, or is a file that this package did not make;
            ``max_frames`` is less than 2; ``view`` is another episode's; or the environment's
            ``draw`` returns no picture.
        FileNotFoundError: the folder does not exist, or an MP4 needs ffmpeg (the extra mp4).
    """
    path = Path(path)
    check_suffix(path, FILMS)
    _check_max_frames(max_frames)
    check_replaceable(path)
    if path.suffix.lower() == ".mp4":
        find_ffmpeg()
    _write_films(env, env_params, episode, [path], max_frames, view)


def write_replay(
    env: Any,
    params: Any,
    episodes: Sequence[Episode],
    directory: Path,
    mp4: bool = False,
    max_frames: int = MAX_FRAMES,
    views: Sequence[EpisodeView] | None = None,
) -> list[Path]:
    """Write each episode as ``episode-1.gif``, ``episode-2.gif``, ...

    Args:
        env: The environment, as `jaxagents.make` returns it.
        params: Its parameters.
        episodes: Episodes of this environment.
        directory: Folder of the files; created if it does not exist.
        mp4: Also write ``episode-1.mp4``, ...
        max_frames: Show only every second, third, ... state of longer episodes.
        views: Also show each episode's values and likely actions; from the agent's `view`.

    Returns:
        The paths of the files.
    """
    check_replay(directory, len(episodes), mp4, max_frames)
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for number, episode in enumerate(episodes, start=1):
        paths = _paths(directory, number, mp4)
        view = None if views is None else views[number - 1]
        _write_films(env, params, episode, paths, max_frames, view)
        written += paths
    return written


def _write_films(
    env: Any,
    params: Any,
    episode: Episode,
    paths: Sequence[Path],
    max_frames: int,
    view: EpisodeView | None,
) -> None:
    """Draw an episode once, and write it in the formats of the paths."""
    scene = make_scene(env, params, episode)
    if view is not None:
        scene = with_view(scene, view, episode, as_space(env.action_space(params)))
    frames = [compose(scene, episode, n) for n in shown_states(episode.n_steps, max_frames)]
    for path in paths:
        write = write_gif if path.suffix.lower() == ".gif" else write_mp4
        with replacing(path) as new:
            write(frames, new, scene.seconds_per_step)


def _check_max_frames(max_frames: int) -> None:
    if max_frames < 2:
        raise ValueError(
            f"max_frames={max_frames} cannot show the first and the last state; allow at least 2."
        )


def _paths(directory: Path, number: int, mp4: bool) -> list[Path]:
    """List the files of one episode."""
    suffixes = (".gif", ".mp4") if mp4 else (".gif",)
    return [directory / f"episode-{number}{suffix}" for suffix in suffixes]


def shown_states(n_steps: int, max_frames: int = MAX_FRAMES) -> list[int]:
    """List the indices of the states to show: evenly spaced, and always the last one."""
    stride = max(1, math.ceil(n_steps / (max_frames - 1)))
    shown = list(range(0, n_steps + 1, stride))
    return shown if shown[-1] == n_steps else [*shown, n_steps]


def write_mp4(frames: Sequence[Any], path: Path, seconds_per_frame: float) -> None:
    """Write an MP4 with ffmpeg that holds its last frame for 1.5 s.

    Args:
        frames: Pillow images of equal size.
        path: File to write.
        seconds_per_frame: Any positive number.

    Raises:
        FileNotFoundError: ffmpeg is not installed.
        OSError: ffmpeg fails.
    """
    width, height = frames[0].size
    command = [find_ffmpeg(), "-y", "-loglevel", "error", "-f", "rawvideo", "-pix_fmt", "rgb24"]
    command += ["-s", f"{width}x{height}", "-r", f"{1 / seconds_per_frame:g}", "-i", "-"]
    # Many players need an even size and yuv420p.
    command += ["-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2", "-pix_fmt", "yuv420p"]
    # The comment is the mark of `check_replaceable`.
    command += ["-movflags", "+faststart", "-metadata", "comment=jaxagents", str(path)]
    shown = [*frames, *[frames[-1]] * (round(_LAST_FRAME_SECONDS / seconds_per_frame) - 1)]
    pixels = b"".join(frame.tobytes() for frame in shown)
    finished = subprocess.run(command, input=pixels, capture_output=True)
    if finished.returncode:
        reason = finished.stderr.decode(errors="replace").strip() or finished.returncode
        raise OSError(f"ffmpeg could not write {path}: {reason}")


def find_ffmpeg() -> str:
    """Return the path of ffmpeg: the system's, or that of the extra mp4.

    Raises:
        FileNotFoundError: Neither is installed.
    """
    found = shutil.which("ffmpeg")
    if found is not None:
        return found
    try:
        return importlib.import_module("imageio_ffmpeg").get_ffmpeg_exe()
    except (ImportError, RuntimeError) as error:  # RuntimeError: without a program for this system
        raise FileNotFoundError(
            f"an MP4 needs ffmpeg, which is not installed: {pip_install('mp4')}, or write a GIF."
        ) from error


def write_gif(frames: Sequence[Any], path: Path, seconds_per_frame: float) -> None:
    """Write a looping GIF that holds its last frame for 1.5 s.

    Args:
        frames: Pillow images of equal size.
        path: File to write.
        seconds_per_frame: At least 0.02; viewers slow down faster GIFs.
    """
    from PIL import Image

    palette = _palette(frames)
    images = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    last = max(seconds_per_frame, _LAST_FRAME_SECONDS)
    seconds = [seconds_per_frame] * (len(images) - 1) + [last]
    images[0].save(
        path,
        format="GIF",
        save_all=True,
        append_images=images[1:],
        duration=[round(1000 * each) for each in seconds],
        loop=0,
        comment=b"jaxagents",  # the mark of `check_replaceable`
        optimize=True,
    )


def _palette(frames: Sequence[Any]) -> Any:
    """Choose one palette for all frames: a palette per frame would flicker."""
    from PIL import Image

    n_samples = min(_MAX_PALETTE_FRAMES, len(frames))
    indices = {round(i * (len(frames) - 1) / max(1, n_samples - 1)) for i in range(n_samples)}
    width, height = frames[0].size
    montage = Image.new("RGB", (width * len(indices), height))
    for column, index in enumerate(sorted(indices)):
        montage.paste(frames[index], (column * width, 0))
    return montage.quantize(_N_COLOURS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
