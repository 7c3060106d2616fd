"""Frames written as GIF or MP4."""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_N_COLOURS = 96
_LAST_FRAME_SECONDS = 1.5
_MAX_PALETTE_FRAMES = 12


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
        optimize=True,
    )


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
    shown = [*frames, *[frames[-1]] * (round(_LAST_FRAME_SECONDS / seconds_per_frame) - 1)]
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
