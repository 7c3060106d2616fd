"""A worker process: steps some of the environments, and resets those whose episodes are over.

It imports no jax. Its arrays are shared with the process that started it, which says when to reset
and when to step; a worker whose process has gone ends.
"""

import os
import pickle
import random
import signal
import socket
import threading
import time
import traceback
from collections.abc import Iterator
from typing import NamedTuple, final

import numpy as np

from jaxagents.environments.host.actor_arrays import Sight
from jaxagents.environments.host.adapters import Adapter, adapt
from jaxagents.environments.host.errors import WrongValueError
from jaxagents.environments.host.images import ImageSettings
from jaxagents.environments.host.messages import (
    DONE,
    FAILED,
    RESET,
    STEP,
    Failure,
    receive_object,
    send_object,
)
from jaxagents.environments.host.shared_arrays import Layout, map_arrays

_SECONDS_BETWEEN_LOOKS = 1.0


class Task(NamedTuple):
    """What a worker needs to begin."""

    make_env: bytes  # pickled by cloudpickle
    images: ImageSettings
    layout: Layout
    n_envs: int  # of all workers
    envs: range  # of this one
    memory: int  # file descriptor
    max_episode_steps: int | None
    n_drawn: int  # the first environments, of which every step is drawn


@final
class Worker:
    """Steps a range of environments."""

    def __init__(self, task: Task):
        self._task = task
        self._arrays = map_arrays(task.memory, task.layout, task.n_envs)
        self._rows = slice(task.envs.start, task.envs.stop)
        self._sight = [name for name in Sight._fields if name in task.layout]
        self._adapters: dict[int, Adapter] = {}
        self._elapsed = dict.fromkeys(task.envs, 0)  # steps since the reset
        self._current: int | None = None  # the environment that the latest error belongs to

    def make(self) -> None:
        """Construct the environments."""
        make_env = pickle.loads(self._task.make_env)
        for env in self._each():
            adapter = self._adapters[env] = adapt(make_env(), self._task.images)
            adapter.observe("action_mask" in self._sight, "global_state" in self._sight)

    def reset(self) -> None:
        """Start an episode in each environment."""
        first = int(self._arrays["seed"][self._rows.start])
        random.seed(first)  # for environments that draw from the global generators
        np.random.seed(first)  # noqa: NPY002 -- likewise
        for env in self._each():
            self._begin_episode(env)
            self._draw(env)
        self._check("features", "global_state")

    def step(self) -> None:
        """Step each environment, and reset where no actor is left."""
        arrays, limit = self._arrays, self._task.max_episode_steps
        for env in self._each():
            outcome = self._adapters[env].step(arrays["action"][env])
            truncated, alive = outcome.truncated, outcome.alive
            self._elapsed[env] += 1
            if limit is not None and self._elapsed[env] >= limit:
                truncated, alive = truncated | alive, np.zeros_like(alive)
            arrays["reward"][env] = outcome.reward
            arrays["terminated"][env], arrays["truncated"][env] = outcome.terminated, truncated
            self._draw(env)
            is_over = not alive.any()
            arrays["over"][env] = is_over
            if is_over:
                self._write("final_", env, outcome.sight)
                self._begin_episode(env)
            else:
                self._write("", env, outcome.sight)
                arrays["alive"][env] = alive
        self._check("reward", "features", "global_state")
        over = arrays["over"][self._rows]
        if over.any():
            self._check("final_features", "final_global_state", where=over)

    def close(self) -> None:
        """Close each environment."""
        for adapter in self._adapters.values():
            adapter.close()

    def failure(self, error: BaseException) -> Failure:
        """Describe an error that an environment raised, or that was found in what it returned."""
        if isinstance(error, WrongValueError):
            return Failure(self._current, str(error), "")
        text = f"raised {type(error).__name__}: {' '.join(str(error).split())}"
        return Failure(self._current, text, traceback.format_exc())

    def _each(self) -> Iterator[int]:
        """Go through the environments, and mark where an environment is at work."""
        for env in self._task.envs:
            self._current = env
            self._arrays["at_work"][env] = True
            yield env
            self._arrays["at_work"][env] = False

    def _begin_episode(self, env: int) -> None:
        sight, alive = self._adapters[env].reset(seed=int(self._arrays["seed"][env]))
        self._write("", env, sight)
        self._arrays["alive"][env] = alive
        self._elapsed[env] = 0

    def _draw(self, env: int) -> None:
        if env < self._task.n_drawn:
            self._put("picture", env, self._adapters[env].picture())

    def _write(self, prefix: str, env: int, sight: Sight) -> None:
        for name in self._sight:
            self._put(prefix + name, env, getattr(sight, name))

    def _put(self, name: str, env: int, value: np.ndarray) -> None:
        target = self._arrays[name]
        if value.shape != target.shape[1:]:
            what = name.removeprefix("final_").replace("_", " ")
            raise WrongValueError(
                f"returned a {what} of shape {value.shape}, which was {target.shape[1:]} before"
            )
        target[env] = value

    def _check(self, *names: str, where: np.ndarray | None = None) -> None:
        """Raise `WrongValueError` if a number is NaN or infinite, in any row or ``where`` True."""
        for name in names:
            if name not in self._arrays:
                continue
            values = self._arrays[name][self._rows]
            if values.dtype.kind != "f" or np.isfinite(values).all():
                continue
            bad = ~np.isfinite(values).reshape(len(values), -1).all(axis=1)
            if where is not None:
                bad &= where
            if bad.any():
                self._current = self._task.envs[int(np.argmax(bad))]
                what = name.removeprefix("final_")
                what = {"features": "an observation", "reward": "a reward"}.get(what, "a state")
                raise WrongValueError(f"returned {what} that is NaN or infinite")


def main(descriptor: int) -> None:
    """Serve the process at the other end of a socket until it closes it."""
    for number in (signal.SIGINT, signal.SIGTERM):  # which reach whole groups of processes
        signal.signal(number, signal.SIG_IGN)  # the other process decides
    channel = socket.socket(fileno=descriptor)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    try:
        worker = Worker(receive_object(channel))
    except (EOFError, ConnectionError):
        return  # the other process has gone
    try:
        worker.make()
        _serve(worker, channel)
        worker.close()
    except ConnectionError:
        pass  # likewise
    except BaseException as error:
        channel.sendall(FAILED)
        send_object(channel, worker.failure(error))


def _serve(worker: Worker, channel: socket.socket) -> None:
    while command := channel.recv(1):
        {RESET: worker.reset, STEP: worker.step}[command]()
        channel.sendall(DONE)


def _end_with(parent: int) -> None:
    """End this process, even in the middle of a step, when its parent has ended."""
    while os.getppid() == parent:
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    os._exit(1)
