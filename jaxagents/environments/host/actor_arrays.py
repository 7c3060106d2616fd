"""Observations, masks and actions, stacked along an axis of actors. Numpy only."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, final

import numpy as np

from jaxagents.environments.host import WrongValueError
from jaxagents.environments.host.encodings import (
    AS_THEY_ARE,
    ImageSettings,
    check_dtype,
    encoding_of,
    narrow,
    parts_of,
)
from jaxagents.environments.spaces import (
    Box,
    Discrete,
    action_dtype,
    action_shape,
    as_space,
    common_shape,
    common_space,
    float32_bounds,
    mask_size,
)

_MASK = "action_mask"


class HostObservation(NamedTuple):
    """One environment's observation, as an `Observation` of numpy arrays, field by field."""

    features: np.ndarray  # [actors, *obs]
    action_mask: np.ndarray | None  # [actors, n_actions]
    global_state: np.ndarray | None
    elapsed: None = None  # the caller counts steps
    age: None = None
    has_turn: np.ndarray | None = None  # [actors]; None: all act


@final
class BoxActions:
    """Turns an agent's numbers into actions of a Box of Gymnasium, within its bounds.

    For integer dtypes, they are rounded to the nearest integer, halves to the even one. Actions are
    finite even where the bounds are not.
    """

    def __init__(self, space: Any):
        self._dtype = space.dtype
        self._is_whole = space.dtype.kind != "f"
        limits = np.iinfo(space.dtype) if self._is_whole else np.finfo(space.dtype)
        self._low = np.maximum(space.low, limits.min)
        self._high = np.minimum(space.high, limits.max)
        bounds = float32_bounds(self._low, self._high, space.shape)
        self._bounds = np.clip(bounds, *float32_bounds(limits.min, limits.max, ()))

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """Convert numbers ``[*batch, *shape]``."""
        low, high = self._bounds
        inside = np.minimum(np.maximum(values, low), high)  # faster than `clip` for few numbers
        if self._is_whole:
            inside = np.rint(inside)
        own = np.asarray(inside, self._dtype)  # of a single number too
        if self._dtype == np.float32:
            return own
        # If no float32 lies between the bounds, even the nearest one is outside.
        return np.asarray(np.minimum(np.maximum(own, self._low), self._high), self._dtype)


@final
class ActorArrays:
    """Stacks actors' observations and masks, and splits their actions.

    Shorter observation vectors are padded with zeros, and masks say which actions of the largest
    action space an actor has.

    Args:
        name: The environment, for errors.
        observation_spaces: One space of Gymnasium per actor.
        action_spaces: One space of Gymnasium per actor.
        images: How images are observed.

    Attributes:
        space: Contains every actor's actions.
        shape: Shape of one actor's observation.
        dtype: Dtype of observations.
        own_actions: The actions that each actor has in principle, ``[actors, n_actions]``.
        needs_mask: True once an actor has been seen to lack an action.

    Raises:
        TypeError: a space is of a kind that agents cannot observe or play.
        ValueError: the actors differ in ways that padding and masks cannot express.
    """

    def __init__(
        self,
        name: str,
        observation_spaces: Sequence[Any],
        action_spaces: Sequence[Any],
        images: ImageSettings = AS_THEY_ARE,
    ):
        self._encodings = [encoding_of(name, space, images) for space in observation_spaces]
        starts = [getattr(space, "start", 0) for space in action_spaces]
        self._starts = [int(start) if np.ndim(start) == 0 else start for start in starts]
        self._action_dtypes = [space.dtype for space in action_spaces]
        self._spaces = [as_space(_from_zero(space)) for space in action_spaces]
        self._boxes = [
            BoxActions(space) if isinstance(own, Box) else None
            for space, own in zip(action_spaces, self._spaces, strict=True)
        ]
        self.space = common_space(name, self._spaces)
        self.shape = common_shape(name, [each.shape for each in self._encodings])
        self.dtype = narrow(np.result_type(*(each.dtype for each in self._encodings)))
        sizes = np.array([mask_size(space) for space in self._spaces])
        size = mask_size(self.space)
        self.own_actions: np.ndarray = np.arange(size) < sizes[:, None]
        self.needs_mask: bool = bool(np.any(sizes != size)) or any(
            each.has_mask for each in self._encodings
        )

    @property
    def observes_images(self) -> bool:
        """True if an actor observes images."""
        return any(encoding.image is not None for encoding in self._encodings)

    @property
    def observes_arrays(self) -> bool:
        """True if observations need no conversion except of their dtype."""
        return all(encoding.is_array for encoding in self._encodings)

    @property
    def n_actors(self) -> int:
        """The number of actors."""
        return len(self._encodings)

    def inputs(self) -> list[dict[str, Any]]:
        """Describe what each actor observes before padding: its shape, and any parts' sizes."""
        return [
            {"shape": list(each.shape), "parts": parts_of(each.space) if each.flattens else None}
            for each in self._encodings
        ]

    def features(self, observations: Mapping[int, Any]) -> np.ndarray:
        """Stack observations by actor, ``[actors, *obs]``; missing actors' are zero.

        The result may be a view of an observation.

        Raises:
            WrongValueError: an observation does not have the shape or dtype of its space.
        """
        if len(self._encodings) == 1 and observations:
            return np.asarray(self._feature(0, observations[0]), self.dtype)[np.newaxis]
        features = np.zeros((self.n_actors, *self.shape), self.dtype)
        for actor, observation in observations.items():
            value = self._feature(actor, observation)
            if value.shape == self.shape:
                features[actor] = value
            else:
                features[actor, : len(value)] = value
        return features

    def _feature(self, actor: int, observation: Any) -> np.ndarray:
        encoding = self._encodings[actor]
        value = encoding.encode(observation)
        if value.shape != encoding.shape:
            raise WrongValueError(
                f"returned an observation of shape {value.shape} for actor {actor}, whose space "
                f"has shape {encoding.shape}"
            )
        if value.dtype is not encoding.dtype:
            check_dtype(
                value, encoding.dtype, "an observation", f" for actor {actor}, whose space has"
            )
        return value

    def masks(
        self, observations: Mapping[int, Any], infos: Mapping[int, Any], acts: np.ndarray
    ) -> np.ndarray:
        """Stack action masks by actor, ``[actors, n_actions]``.

        They come from the observations or the infos. Without one, all of an actor's actions are
        available.

        Args:
            observations: By actor.
            infos: By actor.
            acts: True for actors that act on these observations, ``[actors]``.

        Raises:
            WrongValueError: a mask lacks an entry per action, or leaves an acting actor no action.
        """
        masks = self.own_actions.copy()
        for actor in observations.keys() | infos.keys():
            info, observation = infos.get(actor), observations.get(actor)
            mask = info.get(_MASK) if isinstance(info, Mapping) else None
            if self._encodings[actor].has_mask and observation is not None:
                mask = observation[_MASK]
            if mask is None:
                continue
            self.needs_mask = True
            size = mask_size(self._spaces[actor])
            parts = mask if isinstance(mask, tuple | list) else (mask,)
            mask = np.concatenate([np.ravel(part) for part in parts]).astype(bool)
            if mask.shape != (size,):
                raise WrongValueError(
                    f"returned an action mask of {mask.size} entries for actor {actor}, which has "
                    f"{size} actions"
                )
            masks[actor, :size] = mask
            if acts[actor] and not self._leaves_a_choice(masks[actor]):
                raise WrongValueError(
                    f"returned an action mask without any available action for actor {actor}, "
                    "which acts next"
                )
        return masks

    def refuse_masks(self, infos: Mapping[int, Any]) -> None:
        """Raise if an info holds a mask, although the first steps showed none.

        Raises:
            WrongValueError: an info holds one.
        """
        for actor, info in infos.items():
            if isinstance(info, Mapping) and info.get(_MASK) is not None:
                raise WrongValueError(
                    f"returned its first action mask, for actor {actor}, later than in the first "
                    "steps that are played at construction; return one at every reset, True for "
                    "each action that is available"
                )

    def only_first_actions(self) -> np.ndarray:
        """Return the mask of an actor whose turn it is not, ``[n_actions]``.

        It allows a single action, or no dimension of a Box.
        """
        mask = np.zeros(mask_size(self.space), bool)
        if not isinstance(self.space, Box):
            mask[self._first_of_choices()] = True
        return mask

    def first_available(self, masks: np.ndarray) -> np.ndarray:
        """Return each actor's first available actions, or the action nearest to 0 in a Box."""
        shape, dtype = self.action_layout()
        if isinstance(self.space, Box):
            nearest = np.clip(0.0, self.space.low, self.space.high)
            return np.broadcast_to(nearest, shape).astype(dtype)
        choices = np.split(masks, self._first_of_choices()[1:], axis=1)
        firsts = [np.argmax(choice, axis=1) for choice in choices]
        return np.stack(firsts, axis=-1).reshape(shape).astype(dtype)

    def _leaves_a_choice(self, mask: np.ndarray) -> bool:
        """Return True if one actor's mask has an action of each choice; a Box needs none."""
        if isinstance(self.space, Box):
            return True
        return bool(np.logical_or.reduceat(mask, self._first_of_choices()).all())

    def _first_of_choices(self) -> np.ndarray:
        return np.cumsum([0, *self.space.n_choices[:-1]])  # pyright: ignore[reportAttributeAccessIssue]

    def actions(self, action: np.ndarray) -> list[Any]:
        """Convert all actors' actions to their own spaces."""
        return [self.action(actor, value) for actor, value in enumerate(action)]

    def action(self, actor: int, value: Any) -> Any:
        """Convert one actor's action to its own space."""
        space, box = self._spaces[actor], self._boxes[actor]
        if isinstance(space, Discrete):
            return int(value) + self._starts[actor]
        if isinstance(space, Box) and box is not None:
            return box(np.reshape(value, -1)[: space.size].reshape(space.shape))
        return (value + self._starts[actor]).astype(self._action_dtypes[actor])

    def action_batch(self, action: np.ndarray) -> np.ndarray:
        """Return the only actor's actions ``[envs, 1, ...]`` as a batch of its own space."""
        box = self._boxes[0]
        if box is not None:
            return box(action[:, 0])
        return (action[:, 0] + self._starts[0]).astype(self._action_dtypes[0])

    def action_layout(self) -> tuple[tuple[int, ...], Any]:
        """Return the shape and dtype of all actors' actions."""
        return (self.n_actors, *action_shape(self.space)), action_dtype(self.space)


def _from_zero(space: Any) -> Any:
    """Return a space whose numbers begin with 0."""
    if not np.any(getattr(space, "start", 0)):
        return space
    kind = type(space)
    return kind(space.nvec) if hasattr(space, "nvec") else kind(int(space.n))
