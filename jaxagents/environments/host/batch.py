"""Host environments as an agent plays them: one callback of compiled code per step."""

import contextlib
import functools
import json
import logging
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray, UInt32

from jaxagents.compiler.devices import n_devices, part_of_device
from jaxagents.compiler.host_calls import HostArrays, Shapes, call_host
from jaxagents.compiler.processes import (
    exchange,
    joined_over_processes,
    n_processes,
    process_id,
)
from jaxagents.compiler.waiting import wait_for
from jaxagents.environments.batch import BatchState, EnvironmentBatch
from jaxagents.environments.host import HostEnvironmentError
from jaxagents.environments.host.environment import HostEnvironment
from jaxagents.environments.host.pool import SECONDS_TO_CLOSE, Frame, WorkerPool
from jaxagents.environments.host.sharing import ArraySpec
from jaxagents.environments.host.stepper import has_final, mean_over_actors
from jaxagents.environments.time_limits import TimeLimit
from jaxagents.types import Observation, PyTree, TimeStep

_jax_logger = logging.getLogger("jax._src.callback")
_ENDS = ("reward", "terminated", "truncated", "over")
_AFTER_A_FAULT = {"reward": np.nan, "alive": True, "over": True}  # to end blocks soon
_MOST_CHARACTERS = 2000  # of a fault's text for other processes
_SECONDS_AFTER_CTRL_C = 0.5  # before workers that have not ended are killed
Work = Callable[[np.ndarray, HostArrays], None]

# The last line of a traceback in the text of an error.
_INTERRUPT = re.compile(r"^(KeyboardInterrupt|\S*Interrupted: .*)$", re.MULTILINE)


@final
class HostEnvironmentBatch(EnvironmentBatch):
    """Environments in worker processes, whose state compiled code does not hold.

    In place of the state, `BatchState.env_state` is a checksum of all seeds and actions so far: two
    batches with equal checksums have had the same history. Environments are seeded by the random
    key at every reset, so equal keys make equal rollouts.

    Callbacks handle numpy arrays only. An exception leaves compiled code as text, so the batch
    keeps it, and `raising_faults` raises it. If there are several processes, each steps an equal
    part of the environments. A fault in one must not make the others wait forever, so its program
    continues with rewards of NaN until `share_faults` raises the fault in all of them.

    Args:
        env: The environment.
        max_episode_steps: Truncate episodes at this length.
        time_limit: As for `EnvironmentBatch`.
        agent_id: As for `EnvironmentBatch`.
        global_state: As for `EnvironmentBatch`.
        n_drawn: Draw this many of the first environments at every step.
        keeps_infos: Keep the infos of the first episode of each environment since a reset.
    """

    can_be_vmapped = False
    can_be_divided = True
    one_device_per_process = True

    def __init__(
        self,
        env: HostEnvironment,
        max_episode_steps: int | None,
        time_limit: TimeLimit,
        agent_id: bool = False,
        global_state: bool = False,
        n_drawn: int = 0,
        keeps_infos: bool = False,
    ):
        own, limit = env.max_episode_steps, max_episode_steps
        if env.is_vectorized and limit is not None and (own is None or limit < own):
            raise ValueError(
                f"max_episode_steps={limit} cannot end episodes of a vector of environments, whose "
                f"own limit is {own}; give the limit to its constructor."
            )
        self.has_idle_steps = env.has_idle_steps
        self._env = env
        self._max_episode_steps = max_episode_steps
        self._n_drawn = n_drawn
        self.has_hidden_infos = keeps_infos
        self.success = env.success
        self._info_names: dict[str, None] = {}  # seen so far, in this order
        self._pool: WorkerPool | None = None
        self._envs = range(0)  # of the pool, counted over all processes
        self._checksum = 0
        self._action = env.layout(has_state=False)["action"]
        self._faults: list[BaseException] = []
        self._agents_batches: list[HostEnvironmentBatch] = [self]  # for evaluation too
        super().__init__(
            Observation(**{name: _abstract(field) for name, field in env.observation.items()}),
            env.action_space(),
            env.teams,
            time_limit,
            agent_id,
            global_state,
        )
        has_state = self._has_state = global_state and self._offers_global_state
        self._drawn = ("picture",) if n_drawn else ()
        self._counts = ("restarts",) if env.on_worker_failure == "restart" else ()
        self._observed = [name for name in env.observation if has_state or name != "global_state"]

    @property
    def n_restarts(self) -> int:
        """How often environments were rebuilt because their worker failed."""
        return 0 if self._pool is None else int(self._pool.n_restarts.sum())

    def for_evaluation(self) -> "HostEnvironmentBatch":
        """Return a batch with workers of its own; `raising_faults` of this one covers it."""
        settings = (self.time_limit, self._agent_id, self._global_state)
        batch = HostEnvironmentBatch(
            self._env, self._max_episode_steps, *settings, keeps_infos=True
        )
        batch._faults = self._faults
        self._agents_batches.append(batch)
        return batch

    def for_recording(self, n_episodes: int) -> "HostEnvironmentBatch":
        """Return a batch whose recorded states are pictures of the first environments."""
        if self._env.picture is None:
            return self
        settings = (self.time_limit, self._agent_id, self._global_state)
        batch = HostEnvironmentBatch(self._env, self._max_episode_steps, *settings, n_episodes)
        batch._faults = self._faults
        return batch

    def environment_states(self, state: BatchState) -> PyTree:
        """Return pictures of the environments, if they are drawn."""
        return self._pool.pictures() if self._pool and self._n_drawn else state.env_state

    def infos_of_episodes(
        self, actors: Sequence[int] | None = None, is_divided: bool = False
    ) -> dict[str, np.ndarray]:
        """Return infos of the first episodes since a reset; see `EnvironmentBatch`.

        Once seen, a name stays, with NaN where it is absent.
        """
        if self._pool is None or not self.has_hidden_infos:
            return {}
        episodes = self._pool.infos()
        found = {name for episode in episodes for own in episode.values() for name in own}
        if is_divided:
            found = {
                name for text in exchange(json.dumps(sorted(found))) for name in json.loads(text)
            }
        self._info_names |= dict.fromkeys(sorted(found))
        actors = range(self.n_actors) if actors is None else actors
        infos = mean_over_actors(episodes, self._info_names, actors)
        return joined_over_processes(infos) if is_divided else infos

    def close(self, seconds: float = SECONDS_TO_CLOSE) -> None:
        """End this batch's workers; `reset` starts new ones.

        Args:
            seconds: Time after which workers that still run are killed.
        """
        if self._pool is not None:
            self._pool.close(seconds)
            self._pool = None

    def can_continue(self, state: BatchState) -> bool:
        """Return True if the workers' environments are where the state left them."""
        if self._pool is None or not self._pool.is_open:
            return False
        own = np.asarray(state.env_state)[self._envs.start : self._envs.stop]
        return len(own) == len(self._envs) and bool(np.all(own == self._checksum))

    @contextlib.contextmanager
    def raising_faults(self) -> Iterator[None]:
        """Raise an environment's own fault instead of its text from compiled code."""
        self._faults.clear()
        _jax_logger.addFilter(_is_no_fault)
        try:
            yield
            jax.effects_barrier()
        except (jax.errors.JaxRuntimeError, HostEnvironmentError) as error:
            if not self._faults:
                if not _INTERRUPT.search(str(error)):
                    raise
                self._faults.append(KeyboardInterrupt())  # it arrived in jax's part of the call
        except KeyboardInterrupt:
            self._faults.insert(0, KeyboardInterrupt())
            self._close_all()
            raise
        if self._faults:
            self._close_all()
            fault = self._faults[0]
            if isinstance(fault, HostEnvironmentError):
                # Frames that jax and the callback add to the traceback do not concern the
                # environment.
                fault = fault.with_traceback(None)
            raise fault from None

    def _close_all(self) -> None:
        """End the workers after a fault; a program that still runs fails at its next call."""
        is_interrupted = isinstance(self._faults[0], KeyboardInterrupt)
        for batch in self._agents_batches:
            batch.close(_SECONDS_AFTER_CTRL_C if is_interrupted else SECONDS_TO_CLOSE)

    def share_faults(self, results: PyTree) -> None:
        """Raise an environment's error in all processes."""
        if n_processes() == 1:
            return
        wait_for(results)
        own = [str(fault) or type(fault).__name__ for fault in self._faults[:1]]
        for i, text in enumerate(exchange("".join(own)[:_MOST_CHARACTERS])):
            if text and not own:
                self._faults.append(HostEnvironmentError(f"in process {i}, {text}"))
        if self._faults:
            raise self._faults[0]

    def reset(self, rng: PRNGKeyArray, n_envs: int) -> tuple[Observation, BatchState]:
        """Start an episode in each of ``n_envs`` environments."""
        seed = part_of_device(_seeds(rng, n_devices() * n_envs), axis=0)
        return self._reset(seed, is_divided=n_devices() > 1)

    def reset_part(
        self, rng: PRNGKeyArray, n_envs: int, n_parts: int
    ) -> tuple[Observation, BatchState]:
        """Start an episode in each environment of this process; see `EnvironmentBatch`."""
        if n_parts == 1:
            return self.reset(rng, n_envs)
        envs = _envs_of_process(n_envs // n_parts)
        own = slice(envs.start, envs.stop)
        return jax.tree.map(
            lambda part: jnp.zeros((n_envs, *part.shape[1:]), part.dtype).at[own].set(part),
            self._reset(_seeds(rng, n_envs)[own], is_divided=True),
        )

    def _reset(
        self, seed: UInt32[Array, " envs"], is_divided: bool
    ) -> tuple[Observation, BatchState]:
        n_envs = len(seed)
        shapes = self._shapes(n_envs, *self._observed, "alive", "checksum")
        envs = _envs_of_process(n_envs) if is_divided else range(n_envs)
        reset = functools.partial(self._reset_workers, envs)
        frame = self._call(reset, shapes, seed, is_divided)
        steps, alive = jnp.zeros(n_envs, jnp.int32), frame["alive"]
        observation = self._prepare(self._observation(frame), steps)
        return observation, BatchState(frame["checksum"], alive, steps, self._first_age(alive))

    def step(
        self, rng: PRNGKeyArray, state: BatchState, action: Array
    ) -> tuple[TimeStep, BatchState]:
        """Step each environment, ``[envs, actors, ...]``, and reset where the episode is over."""
        n_envs = len(state.episode_steps)
        finals = [f"final_{name}" for name in self._observed]
        names = (*self._observed, *finals, *_ENDS, *self._drawn, "alive", "checksum", *self._counts)
        seed = part_of_device(_seeds(rng, n_devices() * n_envs), axis=0)
        frame = self._call(
            self._step_workers,
            self._shapes(n_envs, *names),
            _packed(state.env_state, seed, action),
            is_divided=n_devices() > 1,
        )
        elapsed, over = state.episode_steps + 1, frame["over"]
        age = None if state.age is None else state.age + 1
        ended = frame["terminated"] | frame["truncated"]
        following, begins = state.stepped(frame["checksum"], ended, frame["alive"], over)
        observation, final = self._observation(frame), self._observation(frame, "final_")
        time_step = TimeStep(
            observation=self._prepare(observation, following.episode_steps, following.age),
            final_observation=self._prepare(final, elapsed, age),
            reward=frame["reward"],
            shaped_reward=None,
            terminated=frame["terminated"],
            truncated=frame["truncated"],
            active=state.active,
            episode_over=over,
            begins=begins,
            info={name: frame[name] for name in self._counts},
            final_state=frame.get("picture"),
        )
        return time_step, following

    def _observation(self, frame: dict[str, Array], prefix: str = "") -> Observation:
        return Observation(
            frame[f"{prefix}features"],
            frame.get(f"{prefix}action_mask"),
            frame.get(f"{prefix}global_state"),
            has_turn=frame.get(f"{prefix}has_turn"),
        )

    def _shapes(self, n_envs: int, *names: str) -> dict[str, jax.ShapeDtypeStruct]:
        layout = self._env.layout(self._has_state, self._n_drawn)
        known = {"checksum": ArraySpec((), "uint32"), "restarts": ArraySpec((), "int32"), **layout}
        return {name: _abstract(known[name], known[name].n_rows(n_envs)) for name in names}

    def _call(self, work: Work, shapes: Shapes, argument: Array, is_divided: bool) -> Any:
        """Call the workers from compiled code, and keep their exceptions; see the class."""

        def keep_faults(argument: np.ndarray, results: HostArrays) -> None:
            if not self._faults:
                try:
                    work(argument, results)
                except BaseException as error:
                    self._faults.append(error)
            if self._faults:
                if not is_divided:
                    raise self._faults[0]
                for name, result in results.items():
                    result[...] = _AFTER_A_FAULT.get(name, 0)

        return call_host(keep_faults, shapes, argument)

    # The host's side: numpy only.

    def _reset_workers(self, envs: range, seed: np.ndarray, results: HostArrays) -> None:
        pool = self._pool
        if pool is None or not pool.is_open or envs != self._envs:
            self.close()
            pool = self._env.make_pool(
                len(envs),
                self._max_episode_steps,
                self._has_state,
                self._n_drawn,
                envs.start,
                self.has_hidden_infos,
            )
            self._pool, self._envs = pool, envs
            if self._faults:  # Ctrl-C has closed all others meanwhile
                self.close()
        frame = pool.reset(seed)
        self._checksum = zlib.crc32(seed.tobytes())
        self._fill(results, frame, pool)

    def _step_workers(self, packed: np.ndarray, results: HostArrays) -> None:
        pool, checksum, seed = self._pool, packed[0, 0], packed[:, 1]
        if pool is None or not pool.is_open or checksum != self._checksum:
            raise HostEnvironmentError(
                "the environments are not where this runner left them; begin with reset."
            )
        action = packed[:, 2:].view(self._action.dtype).reshape(-1, *self._action.shape)
        frame = pool.step(action, seed)
        self._checksum = zlib.crc32(packed[:, 1:].tobytes(), self._checksum)
        self._fill(results, frame, pool)
        goes_on = ~has_final(frame)
        for name in self._observed:
            results[f"final_{name}"][goes_on] = frame[name][goes_on]

    def _fill(self, results: HostArrays, frame: Frame, pool: WorkerPool) -> None:
        for name, result in results.items():
            if name in frame:
                result[...] = frame[name]
        results["checksum"][...] = self._checksum
        if "restarts" in results:
            results["restarts"][...] = pool.n_restarts


def _envs_of_process(size: int) -> range:
    """Return this process's environments, if each process has ``size``."""
    first = process_id() * size
    return range(first, first + size)


def _is_no_fault(record: logging.LogRecord) -> bool:
    """Keep jax from logging faults, which `raising_faults` raises."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HostEnvironmentError | KeyboardInterrupt)


def _abstract(field: ArraySpec, *batch_shape: int) -> Any:
    return jax.ShapeDtypeStruct((*batch_shape, *field.shape), field.dtype)


def _packed(
    checksum: UInt32[Array, " envs"], seed: UInt32[Array, " envs"], action: Array
) -> UInt32[Array, "envs words"]:
    """Pack the arguments of a step into one array, which is also the input of the checksum."""
    words = jax.lax.bitcast_convert_type(action, jnp.uint32).reshape(len(seed), -1)
    return jnp.concatenate([checksum[:, None], seed[:, None], words], axis=1)


def _seeds(rng: PRNGKeyArray, n_envs: int) -> UInt32[Array, " envs"]:
    """Draw a seed of 31 bits per environment: numpy's older generators take no more."""
    return jax.random.bits(rng, (n_envs,), jnp.uint32) >> 1
