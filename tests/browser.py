"""A headless Chromium, driven by its DevTools protocol over pipes, without further packages."""

import base64
import contextlib
import itertools
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

CHROMIUM = next(
    filter(None, map(shutil.which, ["chromium", "chromium-browser", "google-chrome"])), None
)
_FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe")
# Chromium reads commands from descriptor 3 and writes answers to 4.
_WITH_PIPES = """
import os, sys
commands, output, *program = sys.argv[1:]
os.dup2(int(commands), 3)
os.dup2(int(output), 4)
os.execv(program[0], program)
"""
_TIMEOUT = 60  # seconds
_PROBLEMS = ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled")


class Browser(contextlib.ExitStack):
    """A browser with one page, for use in a with statement."""

    def __init__(self) -> None:
        super().__init__()
        self.problems: list[Any] = []  # messages on the console and exceptions
        self.requested: list[str] = []  # URLs
        self._numbers = itertools.count(1)
        self._session: dict[str, str] = {}
        self._received = b""

    def __enter__(self) -> "Browser":
        with contextlib.ExitStack() as stack:
            self._start(stack)
            self.push(stack.pop_all())
        return self

    def _start(self, stack: contextlib.ExitStack) -> None:
        temporary = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        profile = stack.enter_context(temporary)
        commands, self._commands = os.pipe()
        self._answers, output = os.pipe()
        stack.callback(os.close, self._answers)
        program = [str(CHROMIUM), *_FLAGS, f"--user-data-dir={profile}"]
        process = subprocess.Popen(
            [sys.executable, "-c", _WITH_PIPES, str(commands), str(output), *program],
            pass_fds=(commands, output),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        stack.callback(_end, process)
        stack.callback(os.close, self._commands)  # makes Chromium exit
        os.close(commands)
        os.close(output)
        page = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        self._session = {"sessionId": session}
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def open(self, path: Path, width: int, height: int, scheme: str = "light") -> None:
        """Load a file in a window of this size in CSS pixels; narrow windows act as phones."""
        self.problems.clear()
        self.requested.clear()
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2,
            mobile=width < 600,
        )
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.call("Emulation.setEmulatedMedia", features=[feature])
        self.call("Page.navigate", url=path.resolve().as_uri())
        while self._receive().get("method") != "Page.loadEventFired":
            pass

    def evaluate(self, expression: str) -> Any:
        """Evaluate a JavaScript expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def screenshot(self, path: Path, whole: bool = False) -> None:
        """Write the visible part, or the whole page, as PNG."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"clip": {**size, "scale": 1}} if whole else {}
        picture = self.call("Page.captureScreenshot", captureBeyondViewport=whole, **clip)
        path.write_bytes(base64.b64decode(picture["data"]))

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol, and return its result."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters, **self._session}
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._received:
            ready, _, _ = select.select([self._answers], [], [], _TIMEOUT)
            part = os.read(self._answers, 1 << 20) if ready else b""
            assert part, "Chromium has exited" if ready else "Chromium does not answer"
            self._received += part
        text, self._received = self._received.split(b"\0", 1)
        message = json.loads(text)
        if message.get("method") in _PROBLEMS:
            self.problems.append(message["params"])
        if message.get("method") == "Network.requestWillBeSent":
            self.requested.append(message["params"]["request"]["url"])
        return message


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
