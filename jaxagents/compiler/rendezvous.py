"""A meeting of all processes before jax's runtime starts, which would abort without a reason.

Does not import jax, whose own import may fail in a command.
"""

import contextlib
import json
import socket
import time

_SECONDS_BETWEEN_TRIES = 0.2
_SECONDS_TO_SPEAK = 1.0


class ProcessError(RuntimeError):
    """Processes cannot train together, or can no longer; the message says why in one line."""


def meet(coordinator: str, n_processes: int, process_id: int, seconds: float) -> None:
    """Wait until all processes have connected to the first one's address.

    Args:
        coordinator: The address, "host:port".
        n_processes: Number of processes.
        process_id: Index of this one.
        seconds: Longest time to wait.

    Raises:
        ProcessError: some have not connected, or they expect another number of processes.
    """
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdigit():
        raise ProcessError(f"{coordinator!r} is no address; give HOST:PORT, as in 10.0.0.1:1234.")
    if n_processes == 1:
        return
    until = time.monotonic() + seconds
    if process_id == 0:
        _receive(int(port), n_processes, until, seconds)
    else:
        _come(host, int(port), n_processes, process_id, until, seconds)


def _receive(port: int, n_processes: int, until: float, seconds: float) -> None:
    """Wait for all others, and tell them to continue, or why they cannot."""
    come: dict[int, socket.socket] = {}
    problem = ""
    with contextlib.ExitStack() as sockets:
        try:
            listening = sockets.enter_context(socket.create_server(("", port)))
        except OSError as error:
            raise ProcessError(f"port {port} cannot be used by the coordinator: {error}") from error
        while len(come) < n_processes - 1 and not problem:
            try:
                listening.settimeout(max(until - time.monotonic(), 0.01))
                other = sockets.enter_context(listening.accept()[0])
            except TimeoutError:
                missing = sorted(set(range(1, n_processes)) - come.keys())
                names = ", ".join(map(str, missing))
                problem = f"process {names} of {n_processes} has not come within {seconds:g} s"
                continue
            try:
                other.settimeout(_SECONDS_TO_SPEAK)
                their_id, their_number = json.loads(other.recv(64))
            except (OSError, TypeError, ValueError):
                continue  # another program
            if their_number != n_processes:
                problem = (
                    f"process {their_id} is one of {their_number}, but process 0 is one of "
                    f"{n_processes}"
                )
            elif their_id in come:
                problem = f"two processes are number {their_id}"
            come[their_id] = other
        for other in come.values():
            with contextlib.suppress(OSError):
                other.sendall(problem.encode() or b"go")
    if problem:
        raise ProcessError(f"{problem}; start each of the {n_processes} once.")


def _come(
    host: str, port: int, n_processes: int, process_id: int, until: float, seconds: float
) -> None:
    """Connect to the first process, and wait for its answer."""
    while True:
        try:
            with socket.create_connection((host, port), timeout=5.0) as connection:
                connection.sendall(json.dumps([process_id, n_processes]).encode())
                connection.settimeout(max(until - time.monotonic(), 0.01) + seconds)
                answer = connection.recv(1024).decode()
            break
        except OSError as error:
            if time.monotonic() > until:
                raise ProcessError(
                    f"no process answers at {host}:{port} ({error}) within {seconds:g} s; start "
                    "process 0 there, and check that its port can be reached."
                ) from error
            time.sleep(_SECONDS_BETWEEN_TRIES)
    if answer != "go":
        raise ProcessError(f"{answer or 'process 0 has ended'}; start each process once.")
