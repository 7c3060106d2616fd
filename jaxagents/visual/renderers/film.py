"""Frames written as a film."""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxagents.environments.gif import LAST_FRAME_SECONDS


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
    command += ["-movflags", "+faststart", str(path)]
    shown = [*frames, *[frames[-1]] * (round(LAST_FRAME_SECONDS / seconds_per_frame) - 1)]
    pixels = b"".join(frame.tobytes() for frame in shown)
    finished = subprocess.run(command, input=pixels, capture_output=True)
    if finished.returncode:
        reason = finished.stderr.decode(errors="replace").strip() or finished.returncode
        raise OSError(f"ffmpeg could not write {path}: {reason}")


def find_ffmpeg() -> str:
    """Return the path of ffmpeg.

    Raises:
        FileNotFoundError: It is not installed.
    """
    found = shutil.which("ffmpeg")
    if found is None:
        raise FileNotFoundError(
            "writing MP4 needs ffmpeg, which is not installed: install it (Debian: apt install "
            "ffmpeg), or drop --mp4."
        )
    return found
