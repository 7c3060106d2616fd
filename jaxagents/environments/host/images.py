"""Images that actors observe, and pictures that environments draw of themselves.

Numpy and Pillow only.
"""

from typing import Any, NamedTuple, final

import numpy as np

from jaxagents.environments.host.errors import WrongValueError

_LUMINANCE = np.array([0.299, 0.587, 0.114], np.float32)  # of red, green and blue, ITU-R BT.601
_BRIGHTEST = 255
_PICTURE_SIZE = 360  # at most, in pixels


class ImageSettings(NamedTuple):
    """How images are observed."""

    size: tuple[int, int] | None = None  # height and width; None: as they are
    is_gray: bool = False
    is_scaled: bool = True  # to numbers from 0 to 1; False: bytes


AS_THEY_ARE = ImageSettings()


@final
class ImageEncoding:
    """Turns one actor's images into arrays ``[height, width, channels]``.

    Images of the space are ``[height, width]``, ``[height, width, channels]`` or, where that is
    less than both other sizes, ``[channels, height, width]``. The space may also be of stacks of
    the latter two, ``[images, ...]``, whose channels follow each other.

    Args:
        name: The environment, for errors.
        space: A space that `is_of_images`.
        settings: How images are observed.

    Raises:
        ValueError: ``settings`` ask for grey, and channels are not red, green and blue.
    """

    def __init__(self, name: str, space: Any, settings: ImageSettings):
        self._space_shape = tuple(space.shape)
        self._settings = settings
        height, width, channels = self._with_channels_last(np.empty(self._space_shape, bool)).shape
        if settings.is_gray and channels % len(_LUMINANCE):
            raise ValueError(
                f"{name} has images of {channels} channel{'s' * (channels != 1)}, of which "
                "grayscale=True needs three, or a multiple; leave it out."
            )
        if settings.size is not None:
            height, width = settings.size
        if settings.is_gray:
            channels //= len(_LUMINANCE)
        self.shape: tuple[int, int, int] = (height, width, channels)
        self.dtype = np.dtype(np.float32 if settings.is_scaled else np.uint8)

    def __call__(self, image: Any) -> np.ndarray:
        """Encode an image.

        Raises:
            WrongValueError: it has not the shape or dtype of its space.
        """
        image = np.asarray(image)
        if image.shape != self._space_shape or image.dtype != np.uint8:
            raise WrongValueError(
                f"returned an image of shape {image.shape} and dtype {image.dtype}, whose space "
                f"has {self._space_shape} and uint8"
            )
        image = self._with_channels_last(image)
        if self._settings.size is not None:
            image = _resized(image, *self._settings.size)
        if self._settings.is_gray:
            image = image.reshape(*image.shape[:2], -1, len(_LUMINANCE)) @ _LUMINANCE
        if self._settings.is_scaled:
            return (image / np.float32(_BRIGHTEST)).astype(np.float32)
        return np.rint(image).astype(np.uint8)

    def _with_channels_last(self, image: np.ndarray) -> np.ndarray:
        if image.ndim == 2:
            return image[..., None]
        if image.shape[-3] < min(image.shape[-2:]):
            image = np.moveaxis(image, -3, -1)
        if image.ndim == 3:
            return image
        return np.moveaxis(image, 0, 2).reshape(*image.shape[1:3], -1)


def is_of_images(space: Any) -> bool:
    """Return True for spaces of whole images: bytes from 0 to 255, of two to four axes."""
    from gymnasium.spaces import Box

    return (
        isinstance(space, Box)
        and space.dtype == np.uint8
        and 2 <= len(space.shape) <= 4
        and bool(np.all(space.low == 0) and np.all(space.high == _BRIGHTEST))
    )


def as_picture(drawn: Any) -> np.ndarray:
    """Turn what an environment has drawn into bytes ``[height, width, 3]``, not too large.

    Raises:
        WrongValueError: it is no picture.
    """
    picture = np.asarray(drawn)
    if picture.ndim != 3 or picture.shape[2] != 3 or picture.dtype != np.uint8:
        raise WrongValueError(
            f"drew {type(drawn).__name__} of shape {picture.shape} and dtype {picture.dtype}, not "
            "bytes of shape [height, width, 3]"
        )
    height, width = picture.shape[:2]
    scale = min(1.0, _PICTURE_SIZE / max(height, width))
    if scale == 1.0:
        return picture
    return _resized(picture, max(1, round(height * scale)), max(1, round(width * scale)))


def _resized(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """Average the pixels that come to lie in each new one."""
    from PIL import Image

    colors = len(_LUMINANCE)
    step = colors if image.shape[2] % colors == 0 else 1  # channels that Pillow takes at once
    parts = [
        Image.fromarray(np.ascontiguousarray(part[..., 0] if step == 1 else part))
        for part in (image[..., i : i + step] for i in range(0, image.shape[2], step))
    ]
    small = [np.asarray(part.resize((width, height), Image.Resampling.BOX)) for part in parts]
    return np.concatenate([part.reshape(height, width, step) for part in small], axis=2)
