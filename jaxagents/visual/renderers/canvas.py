"""A canvas with its own coordinates, on which renderers draw shapes and text."""

from collections.abc import Sequence
from typing import Any, NamedTuple, final

import numpy as np

from jaxagents.visual.style import INK

_OVERSAMPLING = 3  # per axis: shapes are drawn larger and scaled down, which smooths their edges

Number = float | int | np.number
Point = Sequence[Number] | np.ndarray


class View(NamedTuple):
    """The rectangle of the world that a canvas shows, y upwards."""

    left: float
    right: float
    bottom: float
    top: float

    def height_of(self, width: int) -> int:
        """Return the height in pixels that keeps the view's aspect ratio."""
        return round(width * abs(self.top - self.bottom) / (self.right - self.left))


def pixels(width: int, height: int) -> View:
    """Make a view whose coordinates are pixels, y downwards."""
    return View(0, width, height, 0)


@final
class Canvas:
    """A picture being drawn.

    Positions and radii are in the coordinates of the view, line widths and text sizes in pixels of
    the finished picture.
    """

    def __init__(
        self, width: int, height: int, view: View | None = None, background: str = "white"
    ):
        from PIL import Image, ImageDraw

        self.size = (width, height)
        self._view = view or pixels(width, height)
        self._image = Image.new("RGB", (width * _OVERSAMPLING, height * _OVERSAMPLING), background)
        self._draw = ImageDraw.Draw(self._image)

    def circle(
        self,
        centre: Point,
        radius: Number,
        fill: str | None = None,
        outline: str | None = None,
        width: Number = 1.0,
    ) -> None:
        """Draw a circle."""
        x, y = self._pixel(centre)
        r = self.length(radius) * _OVERSAMPLING
        box = (x - r, y - r, x + r, y + r)
        self._draw.ellipse(box, fill, outline, width=_large(width))

    def line(self, points: Sequence[Point], colour: str, width: Number = 1.0) -> None:
        """Draw a line through the points, with round ends."""
        large = [self._pixel(point) for point in points]
        self._draw.line(large, colour, _large(width), joint="curve")
        radius = _large(width) / 2
        for x, y in (large[0], large[-1]):
            self._draw.ellipse((x - radius, y - radius, x + radius, y + radius), colour)

    def polygon(
        self, points: Sequence[Point], fill: str | None, outline: str | None = None
    ) -> None:
        """Draw a polygon."""
        self._draw.polygon([self._pixel(point) for point in points], fill, outline, _large(1.0))

    def rectangle(self, corner: Point, opposite: Point, fill: str, radius: Number = 0.0) -> None:
        """Fill a rectangle whose corners are rounded by ``radius`` pixels."""
        (x1, y1), (x2, y2) = self._pixel(corner), self._pixel(opposite)
        box = (min(x1, x2), min(y1, y2), max(x1, x2), max(y1, y2))
        self._draw.rounded_rectangle(box, radius * _OVERSAMPLING, fill)

    def cross(self, centre: Point, radius: Number, colour: str, width: Number = 2.0) -> None:
        """Draw an x that fits into a circle of this radius."""
        x, y = centre
        reach = radius * 0.7
        for side in (1, -1):
            self.line([(x - reach, y - side * reach), (x + reach, y + side * reach)], colour, width)

    def text(
        self,
        position: Point,
        text: str,
        size: Number,
        colour: str = INK,
        anchor: str = "lm",
        bold: bool = False,
    ) -> None:
        """Write one line of text.

        Args:
            position: Where the anchor goes.
            text: The line.
            size: In pixels.
            colour: As #rrggbb or a name.
            anchor: Pillow's text anchor: l, m or r, followed by a, m or s.
            bold: Thicken the letters.
        """
        self._draw.text(
            self._pixel(position),
            text,
            colour,
            _font(size),
            anchor,
            stroke_width=round(_OVERSAMPLING * size * 0.025) if bold else 0,
        )

    def paste(self, image: Any, corner: Point) -> None:
        """Paste an image at its own pixel size, its upper left corner at ``corner``."""
        large = image.resize([side * _OVERSAMPLING for side in image.size], resample=0)
        x, y = self._pixel(corner)
        self._image.paste(large, (round(x), round(y)))

    def length(self, length: Number) -> float:
        """Convert a length from the view's coordinates to pixels."""
        return abs(float(length)) * self.size[0] / abs(self._view.right - self._view.left)

    def finished(self) -> Any:
        """Return the finished picture as a Pillow image."""
        return self._image.reduce(_OVERSAMPLING)

    def _pixel(self, point: Point) -> tuple[float, float]:
        (width, height), view = self.size, self._view
        x = (float(point[0]) - view.left) / (view.right - view.left)
        y = (view.top - float(point[1])) / (view.top - view.bottom)
        return x * width * _OVERSAMPLING, y * height * _OVERSAMPLING


def mixed(colour: str, other: str, share: float) -> str:
    """Mix two #rrggbb colours: ``share`` of the second, the rest of the first."""
    channels = zip(_channels(colour), _channels(other), strict=True)
    return "#" + "".join(f"{round((1 - share) * one + share * two):02x}" for one, two in channels)


def _channels(colour: str) -> list[int]:
    return [int(colour[i : i + 2], 16) for i in (1, 3, 5)]


def text_width(text: str, size: Number) -> float:
    """Return the width of a line of text in pixels."""
    return _font(size).getlength(text) / _OVERSAMPLING


def _font(size: Number) -> Any:
    from PIL import ImageFont

    return ImageFont.load_default(size * _OVERSAMPLING)


def _large(width: Number) -> int:
    return max(1, round(width * _OVERSAMPLING))
