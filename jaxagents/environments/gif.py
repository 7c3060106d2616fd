"""Frames written as an animated GIF."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

_N_COLOURS = 96
LAST_FRAME_SECONDS = 1.5
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
    last = max(seconds_per_frame, LAST_FRAME_SECONDS)
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
