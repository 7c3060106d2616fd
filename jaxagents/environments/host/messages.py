"""What a process and its workers say to each other over a socket. Numpy only.

A step costs one byte each way: `multiprocessing.connection` takes three times as long.
"""

import pickle
import socket
import struct
from typing import Any, NamedTuple

RESET, STEP = b"r", b"s"  # to the worker
INFOS = b"i"  # likewise; a list of `EpisodeInfos` follows DONE
DONE, FAILED = b"d", b"f"  # from the worker; a `Failure` follows FAILED
_LENGTH = struct.Struct("!Q")


class Failure(NamedTuple):
    """A fault that a worker reports before it ends."""

    env: int | None  # None: the fault belongs to no environment
    text: str  # of one line
    traceback: str  # empty if the worker itself found the fault


def send_object(channel: socket.socket, value: Any) -> None:
    """Send any value that can be pickled."""
    data = pickle.dumps(value)
    channel.sendall(_LENGTH.pack(len(data)) + data)


def receive_object(channel: socket.socket) -> Any:
    """Receive what `send_object` sent.

    Raises:
        EOFError: the other side has gone.
        TimeoutError: nothing came within the socket's timeout.
    """
    (length,) = _LENGTH.unpack(_receive(channel, _LENGTH.size))
    return pickle.loads(_receive(channel, length))


def _receive(channel: socket.socket, n_bytes: int) -> bytes:
    data = bytearray()
    while len(data) < n_bytes:
        part = channel.recv(n_bytes - len(data))
        if not part:
            raise EOFError("the other side has gone")
        data += part
    return bytes(data)
