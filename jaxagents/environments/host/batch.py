"""Host environments as an agent plays them: one callback of compiled code per step."""

import contextlib
import logging
import zlib
from collections.abc import Iterator
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray, UInt32

from jaxagents.compiler.host_calls import HostArrays, call_host
from jaxagents.environments.batch import BatchState, EnvironmentBatch
from jaxagents.environments.host.environment import HostEnvironment
from jaxagents.environments.host.errors import HostEnvironmentError
from jaxagents.environments.host.pool import Frame, Pool
from jaxagents.environments.host.shared_arrays import Field
from jaxagents.environments.time_limits import TimeLimit
from jaxagents.types import Observation, PyTree, TimeStep

_jax_logger = logging.getLogger("jax._src.callback")
_ENDS = ("reward", "terminated", "truncated", "over")


@final
class HostEnvironmentBatch(EnvironmentBatch):
    """Environments in worker processes, whose state compiled code does not hold.

    In place of the state, `BatchState.env_state` is a checksum of all seeds and actions so far: two
    batches with equal checksums have had the same history. Environments are seeded by the random
    key at every reset, so equal keys make equal rollouts.

    Callbacks handle numpy arrays only. An exception leaves compiled code as text, so the batch
    keeps it, and `raising_faults` raises it.

    Args:
        env: The environment.
        max_episode_steps: Truncate episodes at this length.
        time_limit: As for `EnvironmentBatch`, as are the others.
        agent_id: Likewise.
        global_state: Likewise.
        n_drawn: Draw the first environments at every step.
    """

    can_be_vmapped = False

    def __init__(
        self,
        env: HostEnvironment,
        max_episode_steps: int | None,
        time_limit: TimeLimit,
        agent_id: bool = False,
        global_state: bool = False,
        n_drawn: int = 0,
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
        self._pool: Pool | None = None
        self._checksum = 0
        self._action = env.layout(has_state=False)["action"]
        self._faults: list[BaseException] = []
        self._agents_batches: list[HostEnvironmentBatch] = [self]  # for evaluation too
        super().__init__(
            Observation(**{name: _abstract(field) for name, field in env.sight.items()}),
            env.action_space(),
            env.teams,
            time_limit,
            agent_id,
            global_state,
        )
        has_state = self._has_state = global_state and self._offers_global_state
        self._drawn = ("picture",) if n_drawn else ()
        self._counts = ("restarts",) if env.on_worker_failure == "restart" else ()
        self._sight = [name for name in env.sight if has_state or name != "global_state"]

    @property
    def n_restarts(self) -> int:
        """How often environments were made anew because their worker failed."""
        return 0 if self._pool is None else int(self._pool.n_restarts.sum())

    def for_evaluation(self) -> "HostEnvironmentBatch":
        """Return a batch with workers of its own; `raising_faults` of this one covers it."""
        batch = HostEnvironmentBatch(
            self._env, self._max_episode_steps, self.time_limit, self._agent_id, self._global_state
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

    def close(self) -> None:
        """End this batch's workers; `reset` starts new ones."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def can_continue(self, state: BatchState) -> bool:
        """Return True if the workers' environments are where the state left them."""
        here = self._pool is not None and self._pool.is_open
        return here and bool(np.all(np.asarray(state.env_state) == self._checksum))

    @contextlib.contextmanager
    def raising_faults(self) -> Iterator[None]:
        """Raise the fault of an environment instead of the text that compiled code makes of it."""
        self._faults.clear()
        _jax_logger.addFilter(_is_no_fault)
        try:
            yield
            jax.effects_barrier()
        except jax.errors.JaxRuntimeError:
            if not self._faults:
                raise
        if self._faults:
            for batch in self._agents_batches:
                batch.close()
            fault = self._faults[0]
            if isinstance(fault, HostEnvironmentError):
                # What jax and the callback add to the traceback says nothing of the environment.
                fault = fault.with_traceback(None)
            raise fault from None

    def reset(self, rng: PRNGKeyArray, n_envs: int) -> tuple[Observation, BatchState]:
        """Start an episode in each of ``n_envs`` environments."""
        shapes = self._shapes(n_envs, *self._sight, "alive", "checksum")
        frame = call_host(self._reset_workers, shapes, _seeds(rng, n_envs))
        steps = jnp.zeros(n_envs, jnp.int32)
        observation = self._prepare(self._observation(frame), steps)
        return observation, BatchState(frame["checksum"], frame["alive"], steps)

    def step(
        self, rng: PRNGKeyArray, state: BatchState, action: Array
    ) -> tuple[TimeStep, BatchState]:
        """Step each environment, ``[envs, actors, ...]``, and reset where the episode is over."""
        n_envs = len(state.episode_steps)
        finals = [f"final_{name}" for name in self._sight]
        names = (*self._sight, *finals, *_ENDS, *self._drawn, "alive", "checksum", *self._counts)
        frame = call_host(
            self._step_workers,
            self._shapes(n_envs, *names),
            _packed(state.env_state, _seeds(rng, n_envs), action),
        )
        elapsed, over = state.episode_steps + 1, frame["over"]
        next_steps = jnp.where(over, 0, elapsed)
        time_step = TimeStep(
            observation=self._prepare(self._observation(frame), next_steps),
            final_observation=self._prepare(self._observation(frame, "final_"), elapsed),
            reward=frame["reward"],
            shaped_reward=None,
            terminated=frame["terminated"],
            truncated=frame["truncated"],
            active=state.active,
            episode_over=over,
            info={name: frame[name] for name in self._counts},
            final_state=frame.get("picture"),
        )
        return time_step, BatchState(frame["checksum"], frame["alive"], next_steps)

    def _observation(self, frame: dict[str, Array], prefix: str = "") -> Observation:
        return Observation(
            frame[f"{prefix}features"],
            frame.get(f"{prefix}action_mask"),
            frame.get(f"{prefix}global_state"),
        )

    def _shapes(self, n_envs: int, *names: str) -> dict[str, jax.ShapeDtypeStruct]:
        layout = self._env.layout(self._has_state, self._n_drawn)
        known = {"checksum": Field((), "uint32"), "restarts": Field((), "int32"), **layout}
        return {name: _abstract(known[name], known[name].n_rows(n_envs)) for name in names}

    # The host's side: numpy only.

    def _reset_workers(self, seed: np.ndarray, results: HostArrays) -> None:
        with self._keeping_faults():
            pool, n_envs = self._pool, len(seed)
            if pool is None or not pool.is_open or pool.n_envs != n_envs:
                self.close()
                limit, n_drawn = self._max_episode_steps, self._n_drawn
                pool = self._env.make_pool(n_envs, limit, self._has_state, n_drawn)
                self._pool = pool
            frame = pool.reset(seed)
            self._checksum = zlib.crc32(seed.tobytes())
            self._fill(results, frame, pool)

    def _step_workers(self, packed: np.ndarray, results: HostArrays) -> None:
        with self._keeping_faults():
            pool, checksum, seed = self._pool, packed[0, 0], packed[:, 1]
            if pool is None or not pool.is_open or checksum != self._checksum:
                raise HostEnvironmentError(
                    "the environments are not where this runner left them; begin with reset."
                )
            action = packed[:, 2:].view(self._action.dtype).reshape(-1, *self._action.shape)
            frame = pool.step(action, seed)
            self._checksum = zlib.crc32(packed[:, 1:].tobytes(), self._checksum)
            self._fill(results, frame, pool)
            goes_on = ~frame["over"]
            for name in self._sight:
                results[f"final_{name}"][goes_on] = frame[name][goes_on]

    def _fill(self, results: HostArrays, frame: Frame, pool: Pool) -> None:
        for name, result in results.items():
            if name in frame:
                result[...] = frame[name]
        results["checksum"][...] = self._checksum
        if "restarts" in results:
            results["restarts"][...] = pool.n_restarts

    @contextlib.contextmanager
    def _keeping_faults(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self._faults.append(error)
            raise


def _is_no_fault(record: logging.LogRecord) -> bool:
    """Keep jax from logging faults, which `raising_faults` raises."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HostEnvironmentError)


def _abstract(field: Field, *batch_shape: int) -> Any:
    return jax.ShapeDtypeStruct((*batch_shape, *field.shape), field.dtype)


def _packed(
    checksum: UInt32[Array, " envs"], seed: UInt32[Array, " envs"], action: Array
) -> UInt32[Array, "envs words"]:
    """Put the arguments of a step into one array, which is also what the checksum is of."""
    words = jax.lax.bitcast_convert_type(action, jnp.uint32).reshape(len(seed), -1)
    return jnp.concatenate([checksum[:, None], seed[:, None], words], axis=1)


def _seeds(rng: PRNGKeyArray, n_envs: int) -> UInt32[Array, " envs"]:
    """Draw a seed per environment, of 31 bits: numpy's older generators take no more."""
    return jax.random.bits(rng, (n_envs,), jnp.uint32) >> 1
