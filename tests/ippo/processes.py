"""Starts several processes that train together, over the loopback interface."""

import os
import socket
import subprocess
import sys
import time

import numpy as np


def free_port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def start(*arguments):
    command = [sys.executable, "-m", *map(str, arguments)]
    env = {**os.environ, "JAX_PLATFORMS": "cpu"}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
    )


def start_training(n_processes, n_devices, directory, env_id, n_members=1):
    directory.mkdir()
    arguments = [n_devices, n_members, directory, env_id]
    port = free_port()
    return [
        start("tests.ippo.process_training", port, n_processes, i, *arguments)
        for i in range(n_processes)
    ]


def train(n_processes, n_devices, directory, env_id="hunting/discrete", n_members=1):
    """Train in processes; return what each of them has written."""
    for process in start_training(n_processes, n_devices, directory, env_id, n_members):
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    return [dict(np.load(directory / f"process-{i}.npz").items()) for i in range(n_processes)]


def jaxagents(tmp_path, command, n_processes, port=None):
    port = port or free_port()
    options = ["--coordinator", f"127.0.0.1:{port}", "--num-processes", n_processes]
    return [start("jaxagents", *command, *options, "--process-id", i) for i in range(n_processes)]


def wait_for_checkpoints(runs, n_checkpoints=2):
    deadline = time.monotonic() + 180
    while len(list(runs.glob("*/checkpoints/*/metadata.json"))) < n_checkpoints:
        assert time.monotonic() < deadline
        time.sleep(0.5)
