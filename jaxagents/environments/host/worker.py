"""A worker process: steps some of the environments of a pool.

It imports no jax. Its arrays are shared with the process that started it, which says when to reset
and when to step; a worker whose process has gone ends.
"""

import os
import random
import signal
import socket
import threading
import time
from typing import NamedTuple

import numpy as np

from jaxagents.environments.host.messages import (
    DONE,
    FAILED,
    INFOS,
    RESET,
    receive_object,
    send_object,
)
from jaxagents.environments.host.shared_arrays import Layout, map_arrays
from jaxagents.environments.host.stepper import Making, Stepper

_SECONDS_BETWEEN_LOOKS = 1.0
_SECONDS_AWAKE = 300e-6  # waiting for a command; training is 5 to 18 % faster than asleep


class Task(NamedTuple):
    """What a worker needs to begin."""

    making: Making
    layout: Layout
    n_envs: int  # of all workers
    envs: range  # of this one
    memory: int  # file descriptor


def main(descriptor: int) -> None:
    """Serve the process at the other end of a socket until it closes it."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):  # which reach whole groups of processes
        if hasattr(signal, name):  # Windows has no SIGHUP
            signal.signal(getattr(signal, name), signal.SIG_IGN)  # the other process decides
    channel = socket.socket(fileno=descriptor)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    try:
        task: Task = receive_object(channel)
    except (EOFError, ConnectionError):
        return  # the other process has gone
    arrays = map_arrays(task.memory, task.layout, task.n_envs)
    stepper = Stepper(task.making, task.envs, arrays)
    try:
        stepper.make()
        while command := _receive(channel):
            if command == INFOS:
                channel.sendall(DONE)
                send_object(channel, stepper.infos())
                continue
            if command == RESET:
                _seed_global_generators(int(arrays["seed"][task.envs.start]))
                stepper.reset()
            else:
                stepper.step()
            channel.sendall(DONE)
        stepper.close()
    except ConnectionError:
        pass  # likewise
    except BaseException as error:
        channel.sendall(FAILED)
        send_object(channel, stepper.failure(error))


def _receive(channel: socket.socket) -> bytes:
    """Receive a command, or nothing if the other end has closed.

    The next one mostly comes at once, and a process that sleeps wakes up late.
    """
    until = time.perf_counter() + _SECONDS_AWAKE
    while time.perf_counter() < until:
        try:
            return channel.recv(1, socket.MSG_DONTWAIT)
        except BlockingIOError:
            os.sched_yield()
    return channel.recv(1)


def _seed_global_generators(seed: int) -> None:
    """Seed the generators of the process, from which some environments draw."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 -- the generator meant


def _end_with(parent: int) -> None:
    """End this process, even in the middle of a step, when its parent has ended."""
    while os.getppid() == parent:
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    os._exit(1)
