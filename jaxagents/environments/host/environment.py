"""`HostEnvironment`: an environment outside of JAX, as users construct it."""

import contextlib
import functools
import logging
import operator
import random
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, final, get_args

import numpy as np

from jaxagents.config import TimeLimits, check_integer
from jaxagents.environments.host import WrongValueError
from jaxagents.environments.host.adapters import Adapter, adapt
from jaxagents.environments.host.encodings import ImageSettings, narrow
from jaxagents.environments.host.limits import layers_of
from jaxagents.environments.host.pool import OnWorkerFailure, PoolSettings, WorkerPool
from jaxagents.environments.host.sharing import ArraySpec, Layout, imported_modules, quiet_pygame
from jaxagents.environments.host.stepper import EnvironmentSettings, InfoFunctions
from jaxagents.environments.host.tuples import is_of_agents
from jaxagents.environments.host.vectors import SingleOfVector, autoreset_mode
from jaxagents.environments.spaces import ActionSpace
from jaxagents.environments.success import Success, check_success
from jaxagents.errors import stacklevel_of_caller

_OWN_STATISTICS = {
    "NormalizeObservation": "AgentConfig(normalize_observations=True)",
    "NormalizeReward": "AgentConfig(normalize_values=True)",
}
_logger = logging.getLogger(__name__)


@final
class HostEnvironment:
    """A Gymnasium or PettingZoo environment, stepped in worker processes while jax waits.

    One environment is constructed here, to read its spaces and to play some first steps, which show
    any masks. The workers construct their own when an agent first needs them. They end with this
    process, by `close`, or at the end of a ``with`` block.

    Args:
        make_env: Constructs an environment of Gymnasium, of PettingZoo's parallel API, or of its
            AEC API, which PettingZoo converts. Entries of Gymnasium's Tuple spaces are agents. It
            is pickled by cloudpickle, so that functions of a notebook and lambdas work.
        n_workers: Processes that share the environments of an agent; None: one per processor; 0:
            the training process steps them itself, which is faster if a step of all of them takes
            less than half a millisecond.
        timeout: Seconds after which a step, or a worker's start, counts as hanging.
        on_worker_failure: Reaction when an environment raises, hangs, dies or returns wrong values:
            "raise" a `HostEnvironmentError`, or "restart" the worker. The episodes of the restarted
            worker's environments count as truncated.
        teams: Each actor's team, counted from 0. None: agents of PettingZoo whose names differ only
            in a final number are in the same team, and so are all agents of Tuple spaces.
        time_limits: "terminal" if the time limit is a part of the task, "bootstrap" if not.
        max_episode_steps: The environment's own time limit, in steps of the agent; None: read it
            from Gymnasium's ``TimeLimit`` or spec, or from PettingZoo's ``max_cycles``, if it is
            there. Where wrappers take several steps at a time, explored steps show how many.
        image_size: Height and width, in pixels, to which images are resized; None leaves them.
        grayscale: Turn the colours of images into grey.
        scale_images: Observe images as numbers from 0 to 1; False keeps bytes, for instance of
            grids whose bytes are symbols.
        make_drawn: Like ``make_env``, but for replays, which show what the environment's ``render``
            returns if its ``render_mode`` is "rgb_array"; None: ``make_env``. Its observations must
            be the same.
        vectorized: ``make_env`` takes a number of environments and returns a
            `gymnasium.vector.VectorEnv`, which the training process steps.
        infos: Metrics of evaluations besides the scalar infos. Each name has a function of an
            actor's info at its last step, which returns a number, or None if the actor has none.
        success: The info that evaluations report as success, of the last step.
        explored_steps: Steps that are played at construction, to find masks that a reset does not
            show, agents that come back, and episodes that end. Fewer steps make the construction of
            slow environments faster.

    Attributes:
        name: The environment's own name.
        frames_per_second: Speed at which its pictures are shown.
        n_actors: Number of actors: the possible agents of PettingZoo, the entries of Gymnasium's
            Tuple spaces, or 1.
        inputs: Each actor's name, the shape that it observes before padding, and the sizes of any
            parts, in order.
        observation: Shapes and dtypes of an observation, by the names of `Observation`.
        n_steps_without_end: Steps played at construction, if none of them ended an episode; else 0.
        is_vectorized: True if a vector steps the environments.
        has_idle_steps: True if the vector resets an environment in a step of its own.

    Raises:
        TypeError: the environment belongs to another library, or has a space that agents cannot
            use; or ``make_env`` cannot be pickled; or an argument is of another type.
        ValueError: an argument is out of range; the actors differ in ways that padding and masks
            cannot express; or the first observation is not in its space.
    """

    def __init__(
        self,
        make_env: Callable[..., Any],
        *,
        n_workers: int | None = None,
        timeout: float = 60.0,
        on_worker_failure: OnWorkerFailure = "raise",
        teams: Sequence[int] | None = None,
        time_limits: TimeLimits = "bootstrap",
        max_episode_steps: int | None = None,
        image_size: tuple[int, int] | None = None,
        grayscale: bool = False,
        scale_images: bool = True,
        make_drawn: Callable[[], Any] | None = None,
        vectorized: bool = False,
        infos: InfoFunctions | None = None,
        success: Success | None = None,
        explored_steps: int = 32,
    ):
        import cloudpickle

        _check(n_workers, timeout, on_worker_failure)
        _check_infos(infos)
        _check_success(success)
        check_integer("explored_steps", explored_steps, minimum=0)
        if vectorized and (n_workers or on_worker_failure == "restart"):
            raise ValueError(
                f"vectorized=True with n_workers={n_workers}, "
                f"on_worker_failure={on_worker_failure!r}; a vector of environments has no workers "
                "of this package: leave these out."
            )
        self.is_vectorized = bool(vectorized)
        self.has_idle_steps = False
        self._make_env = make_env
        self._images = ImageSettings(_as_size(image_size), bool(grayscale), bool(scale_images))
        self._pickled: bytes = cloudpickle.dumps(make_env)
        self._make_drawn = make_env if make_drawn is None and not vectorized else make_drawn
        self._pickled_drawn: bytes = cloudpickle.dumps(self._make_drawn)
        self._pickled_infos: bytes = cloudpickle.dumps(dict(infos or {}))
        self._n_workers = n_workers
        self._timeout = timeout
        self.on_worker_failure: OnWorkerFailure = on_worker_failure
        self.time_limits: TimeLimits = time_limits
        self.success = success
        self._pools: weakref.WeakSet[WorkerPool] = weakref.WeakSet()
        adapter = self._construct()
        _warn_of_own_statistics(adapter)
        try:
            with _keeping_global_generators():
                observation = adapter.explore(explored_steps)
        except WrongValueError as error:
            raise ValueError(f"{adapter.name} {error}.") from error
        finally:
            adapter.close()
        self.name, self._revives = adapter.name, adapter.revives
        self.n_steps_without_end = adapter.n_steps_without_end
        self.n_actors = adapter.arrays.n_actors
        self.inputs: list[dict[str, Any]] = [
            {"name": name, **each}
            for name, each in zip(
                adapter.actor_names or [None] * self.n_actors, adapter.arrays.inputs(), strict=True
            )
        ]
        self.frames_per_second = adapter.frames_per_second
        self.max_episode_steps = adapter.max_episode_steps
        if max_episode_steps is not None:
            self.max_episode_steps = max_episode_steps
        if self.max_episode_steps is not None:
            check_integer("max_episode_steps", self.max_episode_steps, minimum=1)
        self.teams = adapter.teams if teams is None else list(teams)
        _check_teams(self.teams, self.n_actors)
        self._space = adapter.arrays.space
        shape, dtype = adapter.arrays.action_layout()
        self._action = ArraySpec(shape, np.dtype(dtype).name)
        self.observation: Layout = {
            name: ArraySpec(value.shape, narrow(value.dtype).name)
            for name, value in observation._asdict().items()
            if value is not None
        }

    def warn_of_endless_episodes(self) -> None:
        """Warn if no time limit is known and no step at construction ended an episode."""
        if not self.n_steps_without_end:
            return
        remedy = "set AgentConfig(max_episode_steps=...)"
        if self.is_vectorized:
            remedy = "set a limit in the vector's constructor, and as max_episode_steps"
        warnings.warn(
            f"{self.name} has no known time limit, and none of the "
            f"{self.n_steps_without_end} steps that were played at construction ended an episode; "
            "evaluations wait for the end of every episode. If episodes may never end, "
            f"{remedy}.",
            stacklevel=stacklevel_of_caller(),
        )

    def action_space(self, params: Any = None) -> ActionSpace:
        """Return ONE actor's action space, which contains every actor's own."""
        del params
        return self._space

    def open(self) -> Adapter:
        """Construct one environment in this process, with an axis of actors.

        Its observations are as in training, including any masks and global state.
        """
        adapter = self._construct()
        adapter.revives = self._revives
        adapter.observe("action_mask" in self.observation, "global_state" in self.observation)
        return adapter

    def _construct(self) -> Adapter:
        with quiet_pygame():
            env = self._make_env(1) if self.is_vectorized else self._make_env()
        if not self.is_vectorized:
            return adapt(env, self._images)
        vector = env
        if not hasattr(vector, "single_action_space"):
            raise TypeError(
                f"make_env returns {type(vector).__name__}, which is not a vector of environments; "
                "leave out vectorized."
            )
        self.has_idle_steps = autoreset_mode(vector) == "NEXT_STEP"
        single = SingleOfVector(vector)
        if is_of_agents(single):
            raise TypeError(
                f"{type(vector).__name__} is a vector of environments of several agents, which has "
                "one reward for all; leave out vectorized."
            )
        return adapt(single, self._images)

    @functools.cached_property
    def picture(self) -> ArraySpec | None:
        """Shape and dtype of a picture of the environment; None if it cannot be drawn."""
        if self._make_drawn is None:
            return None
        try:
            adapter = adapt(self._make_drawn(), self._images)
            try:
                if not adapter.draws:
                    return None
                adapter.observe("action_mask" in self.observation, has_state=False)
                adapter.reset(seed=0)
                return ArraySpec(adapter.picture().shape, "uint8")
            finally:
                adapter.close()
        except Exception as error:
            _logger.warning("%s cannot be drawn: %s", self.name, error)
            return None

    def make_pool(
        self,
        n_envs: int,
        max_episode_steps: int | None,
        has_state: bool,
        n_drawn: int = 0,
        first_env: int = 0,
        keeps_infos: bool = False,
    ) -> WorkerPool:
        """Start environments, in workers of their own.

        Args:
            n_envs: Number of environments.
            max_episode_steps: Truncate episodes at this length.
            has_state: Also read the global state.
            n_drawn: Draw the first environments.
            first_env: As in `PoolSettings`.
            keeps_infos: Keep the infos of first episodes.
        """
        make_env = self._pickled_drawn if n_drawn else self._pickled
        is_vector = self.is_vectorized and not n_drawn
        settings = PoolSettings(
            environments=EnvironmentSettings(
                make_env,
                self._images,
                max_episode_steps,
                n_drawn,
                infos=self._pickled_infos if keeps_infos else None,
                revives=self._revives,
                is_vector=is_vector,
                imports=imported_modules(),
            ),
            layout=self.layout(has_state, n_drawn),
            n_workers=0 if is_vector else self._n_workers,
            timeout=self._timeout,
            on_worker_failure=self.on_worker_failure,
            first_env=first_env,
        )
        pool = WorkerPool(settings, n_envs)
        self._pools.add(pool)
        return pool

    @property
    def process_ids(self) -> list[int]:
        """The system's process ids of all workers."""
        return [each for pool in self._pools for each in pool.process_ids]

    def close(self) -> None:
        """End all workers; an agent that continues starts new ones."""
        for pool in list(self._pools):
            pool.close()

    def __enter__(self) -> "HostEnvironment":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def layout(self, has_state: bool, n_drawn: int = 0) -> Layout:
        """Return the arrays that are shared with workers, for one environment.

        Args:
            has_state: Include the global state.
            n_drawn: Include pictures of the first environments.
        """
        observation = {
            name: field
            for name, field in self.observation.items()
            if has_state or name != "global_state"
        }
        flags = ArraySpec((self.n_actors,), "bool")
        picture = self.picture if n_drawn else None
        return {
            **observation,
            **{f"final_{name}": field for name, field in observation.items()},
            "reward": ArraySpec((self.n_actors,), "float32"),
            "terminated": flags,
            "truncated": flags,
            "alive": flags,
            "over": ArraySpec((), "bool"),
            "action": self._action,
            "seed": ArraySpec((), "uint32"),
            "at_work": ArraySpec((), "bool"),
            **({"picture": picture._replace(n_envs=n_drawn)} if picture is not None else {}),
        }


@contextlib.contextmanager
def _keeping_global_generators() -> Iterator[None]:
    """Preserve the process's global generators, from which some environments draw."""
    of_python, of_numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)  # noqa: NPY002


def _check(n_workers: int | None, timeout: float, on_worker_failure: str) -> None:
    if n_workers is not None:
        check_integer("n_workers", n_workers, minimum=0)
    if not (isinstance(timeout, int | float | np.number) and timeout > 0):
        raise ValueError(f"timeout={timeout!r} s; it must be positive.")
    if on_worker_failure not in get_args(OnWorkerFailure):
        raise ValueError(
            f"on_worker_failure={on_worker_failure!r} is unknown; choose 'raise' or 'restart'."
        )
    if n_workers == 0 and on_worker_failure == "restart":
        raise ValueError(
            "on_worker_failure='restart' needs workers; with n_workers=0 there are none: give at "
            "least 1, or 'raise'."
        )


def _warn_of_own_statistics(adapter: Adapter) -> None:
    """Warn of wrappers whose statistics each environment collects by itself."""
    for name in (type(each).__name__ for each in layers_of(adapter.env)):
        if name in _OWN_STATISTICS:
            warnings.warn(
                f"{adapter.name} is wrapped by {name}, whose running statistics each environment "
                "collects by itself: those of evaluations differ from those of training, and "
                f"checkpoints hold neither. Leave it out; {_OWN_STATISTICS[name]} does the same "
                "for all environments together.",
                stacklevel=stacklevel_of_caller(),
            )


def _check_infos(infos: InfoFunctions | None) -> None:
    if not isinstance(infos, Mapping | None):
        raise TypeError(
            f"infos={infos!r}; give a dictionary of functions of an actor's info, such as "
            "{'gap': lambda info: info['best'] - info['own']}. Scalars of infos need no entry."
        )
    for name, function in (infos or {}).items():
        if not callable(function):
            raise TypeError(f"infos[{name!r}] is {function!r}; give a function of an actor's info.")


def _check_success(success: Any) -> None:
    check_success("HostEnvironment", success)
    if success is not None and success.of_episode != "last":
        raise ValueError(
            f"success has of_episode={success.of_episode!r}; outside of JAX infos are those of the "
            "last step: sum them in the environment."
        )


def _as_size(image_size: Sequence[int] | None) -> tuple[int, int] | None:
    if image_size is None:
        return None
    try:
        height, width = (operator.index(size) for size in image_size)
    except (TypeError, ValueError):
        height = width = 0
    if min(height, width) < 1:
        raise ValueError(f"image_size={image_size!r}; give a height and a width in pixels.")
    return height, width


def _check_teams(teams: Sequence[int] | None, n_actors: int) -> None:
    if teams is not None and len(teams) != n_actors:
        raise ValueError(
            f"{len(teams)} teams for {n_actors} actor{'s' * (n_actors != 1)}; give each actor one."
        )
