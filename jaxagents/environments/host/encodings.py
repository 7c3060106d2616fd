"""Encode observations as arrays, and check returned values. Numpy and Pillow only."""

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple, final

import numpy as np

from jaxagents.environments.host import WrongValueError

_MASK = "action_mask"
_MOST_FEATURES = 10_000_000  # of a flattened observation
_LUMINANCE = np.array([0.299, 0.587, 0.114], np.float32)  # of red, green and blue, ITU-R BT.601
_BRIGHTEST = 255
_PICTURE_SIZE = 360  # at most, in pixels
_NAMES = {"features": "an observation", "reward": "a reward", "global_state": "a state"}


class ImageSettings(NamedTuple):
    """How images are observed."""

    size: tuple[int, int] | None = None  # height and width; None: not resized
    is_gray: bool = False
    is_scaled: bool = True  # to numbers from 0 to 1; False: bytes


AS_THEY_ARE = ImageSettings()


@final
class ImageEncoding:
    """Turns one actor's images into arrays ``[height, width, channels]``.

    Images of the space are ``[height, width]``, ``[height, width, channels]`` or, where that is
    less than both other sizes, ``[channels, height, width]``. The space may also be one of stacks
    of the latter two, ``[images, ...]``, whose channels are concatenated.

    Args:
        name: The environment, for errors.
        space: A space that `is_of_images`.
        settings: How images are observed.

    Raises:
        ValueError: ``settings`` ask for grey, but the channels are not red, green and blue.
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
            WrongValueError: it does not have the shape or dtype of the space.
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


class Encoding(NamedTuple):
    """How one actor's observations become arrays."""

    space: Any  # of Gymnasium, without any mask
    flattens: bool  # by Gymnasium: Dict and Tuple spaces, and numbers, which become one-hot
    has_mask: bool  # observations are dictionaries that hold an action mask
    inner: str | None  # the only key besides the mask
    image: ImageEncoding | None  # of spaces of images
    shape: tuple[int, ...]
    dtype: np.dtype
    is_array: bool = False  # unchanged

    def encode(self, observation: Any) -> np.ndarray:
        """Convert an observation that is in the space to an array of ``shape``."""
        if self.is_array:
            return np.asarray(observation)
        if self.has_mask:
            observation = {name: value for name, value in observation.items() if name != _MASK}
            if self.inner is not None:
                observation = observation[self.inner]
        if self.image is not None:
            return self.image(observation)
        if self.flattens:
            from gymnasium.spaces.utils import flatten

            observation = flatten(self.space, observation)
        return np.asarray(observation)


def encoding_of(name: str, space: Any, images: ImageSettings) -> Encoding:
    """Choose how observations of a space of Gymnasium become arrays."""
    from gymnasium import spaces
    from gymnasium.spaces.utils import flatdim, flatten_space

    inner, has_mask = None, isinstance(space, spaces.Dict) and _MASK in space.spaces
    if has_mask:
        others = {key: value for key, value in space.spaces.items() if key != _MASK}
        if not others:
            raise TypeError(f"{name} observes nothing but an {_MASK}; add what its actors observe.")
        inner = next(iter(others)) if len(others) == 1 else None
        space = spaces.Dict(others) if inner is None else others[inner]
    if is_of_images(space):
        image = ImageEncoding(name, space, images)
        return Encoding(space, False, has_mask, inner, image, image.shape, image.dtype)
    flattens = not isinstance(space, spaces.Box | spaces.MultiBinary)
    try:
        if flattens and space.is_np_flattenable and flatdim(space) > _MOST_FEATURES:
            raise ValueError(
                f"{name} has the observation space {space}, which is flattened into "
                f"{flatdim(space):,} features; wrap the environment so that it observes a Box."
            )
        flat = flatten_space(space) if flattens else space
    except NotImplementedError:
        flat = None
    if flat is None or flat.shape is None:
        raise TypeError(
            f"{name} has the observation space {space}, which Gymnasium does not flatten; wrap the "
            "environment, for example by wrappers of jaxagents.make, so that it observes a Box, or "
            "a Dict or Tuple of them."
        )
    dtype = np.dtype(np.float32) if flattens else narrow(flat.dtype)
    is_array = not flattens and not has_mask
    return Encoding(space, flattens, has_mask, inner, None, tuple(flat.shape), dtype, is_array)


def parts_of(space: Any) -> list[tuple[str, int]] | None:
    """List the parts of a Dict or Tuple with their sizes, as Gymnasium orders and flattens them."""
    from gymnasium.spaces.utils import flatdim

    spaces = getattr(space, "spaces", None)
    if spaces is None:
        return None
    items = spaces.items() if isinstance(spaces, Mapping) else enumerate(spaces)
    return [(str(name), flatdim(each)) for name, each in items]


def narrow(dtype: Any) -> np.dtype:
    """Return the dtype in which numbers are observed.

    It is float32 for all but integers of at most 32 bits.
    """
    dtype = np.dtype(dtype)
    is_short = dtype.kind in "iub" and dtype.itemsize <= np.dtype(np.float32).itemsize
    return dtype if is_short else np.dtype(np.float32)


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
    """Convert a drawn picture to bytes ``[height, width, 3]``, not too large.

    Raises:
        WrongValueError: it is not a picture.
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
    """Average the pixels that fall into each new one."""
    from PIL import Image

    colors = len(_LUMINANCE)
    step = colors if image.shape[2] % colors == 0 else 1  # channels that Pillow takes at once
    parts = [
        Image.fromarray(np.ascontiguousarray(part[..., 0] if step == 1 else part))
        for part in (image[..., i : i + step] for i in range(0, image.shape[2], step))
    ]
    small = [np.asarray(part.resize((width, height), Image.Resampling.BOX)) for part in parts]
    return np.concatenate([part.reshape(height, width, step) for part in small], axis=2)


def check_dtype(values: np.ndarray, dtype: np.dtype, what: str, wanted: str) -> None:
    """Check that a dtype holds numbers, to the precision of float32.

    Args:
        values: The numbers.
        dtype: The dtype.
        what: Their description, for the error.
        wanted: Whose dtype it is, for the error.

    Raises:
        WrongValueError: the numbers are of another kind, or an integer is out of range.
    """
    if values.dtype is dtype:
        return
    can_become, can_wrap = _conversion(values.dtype, dtype)
    if not can_become:
        raise WrongValueError(f"returned {what} of {values.dtype}{wanted} {dtype}")
    if can_wrap:
        wrong = values.astype(dtype) != values
        if wrong.any():
            raise WrongValueError(
                f"returned {what} that holds {values[wrong][0]}{wanted} {dtype}, which cannot "
                "hold it"
            )


@functools.cache
def _conversion(given: np.dtype, wanted: np.dtype) -> tuple[bool, bool]:
    """Return whether one dtype converts to the other, and whether integers can wrap around."""
    can_wrap = wanted.kind in "iu" and not np.can_cast(given, wanted)
    return np.can_cast(given, wanted, "same_kind"), can_wrap


def not_finite(
    arrays: Mapping[str, np.ndarray], rows: slice, *names: str, where: np.ndarray | None = None
) -> tuple[int, str] | None:
    """Find an environment that returned NaN or infinity, and describe the value.

    Args:
        arrays: ``[envs, ...]`` by name.
        rows: The environments to look at.
        names: The arrays to look at; missing ones are skipped.
        where: Look only where it is True, of the rows' length; None: everywhere.
    """
    for name in names:
        if name not in arrays:
            continue
        values = arrays[name][rows]
        if values.dtype.kind != "f" or np.isfinite(values).all():
            continue
        bad = ~np.isfinite(values).reshape(len(values), -1).all(axis=1)
        if where is not None:
            bad &= where
        if bad.any():
            what = _NAMES[name.removeprefix("final_")]
            return rows.start + int(np.argmax(bad)), f"returned {what} that is NaN or infinite"
    return None
