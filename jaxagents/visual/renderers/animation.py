"""From pictures to a GIF or a film."""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_N_COLOURS = 96
_LAST_SECONDS = 1.5
_MOST_SAMPLES = 12  # frames from which the palette is taken


def write_gif(frames: Sequence[Any], path: Path, seconds_per_frame: float) -> None:
    """Write an endlessly repeated GIF, whose last frame stays on for longer.

    Args:
        frames: Pillow's images, of one size.
        path: Of the file.
        seconds_per_frame: At least 0.02: viewers slow down what is faster.
    """
    from PIL import Image

    palette = _palette(frames)
    images = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    last = max(seconds_per_frame, _LAST_SECONDS)
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
    """Write a film with ffmpeg.

    Args:
        frames: As for `write_gif`.
        path: Of the file.
        seconds_per_frame: As for `write_gif`.

    Raises:
        FileNotFoundError: There is no ffmpeg.
        OSError: It fails.
    """
    width, height = frames[0].size
    command = [find_ffmpeg(), "-y", "-loglevel", "error", "-f", "rawvideo", "-pix_fmt", "rgb24"]
    command += ["-s", f"{width}x{height}", "-r", f"{1 / seconds_per_frame:g}", "-i", "-"]
    # What players everywhere can show: an even size and halved colours.
    command += ["-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2", "-pix_fmt", "yuv420p"]
    command += ["-movflags", "+faststart", str(path)]
    shown = [*frames, *[frames[-1]] * (round(_LAST_SECONDS / seconds_per_frame) - 1)]
    pixels = b"".join(frame.tobytes() for frame in shown)
    finished = subprocess.run(command, input=pixels, capture_output=True)
    if finished.returncode:
        reason = finished.stderr.decode(errors="replace").strip() or finished.returncode
        raise OSError(f"ffmpeg could not write {path}: {reason}")


def find_ffmpeg() -> str:
    """Find the program that writes films.

    Raises:
        FileNotFoundError: There is none.
    """
    found = shutil.which("ffmpeg")
    if found is None:
        raise FileNotFoundError(
            "there is no ffmpeg, which writes MP4: install it (Debian: apt install ffmpeg), "
            "or go without --mp4."
        )
    return found


def _palette(frames: Sequence[Any]) -> Any:
    """Choose colours for all frames: with a palette each, they would flicker."""
    from PIL import Image

    n_samples = min(_MOST_SAMPLES, len(frames))
    indices = {round(i * (len(frames) - 1) / max(1, n_samples - 1)) for i in range(n_samples)}
    width, height = frames[0].size
    montage = Image.new("RGB", (width * len(indices), height))
    for column, index in enumerate(sorted(indices)):
        montage.paste(frames[index], (column * width, 0))
    return montage.quantize(_N_COLOURS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
