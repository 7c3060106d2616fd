"""Every tutorial runs as written, and draws."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TUTORIALS = sorted((Path(__file__).parents[1] / "docs" / "tutorials").glob("*.md"))
# Tutorials train until there is something to see: a minute each.
pytestmark = pytest.mark.slow

_AFTERWARDS = """
import matplotlib.pyplot
assert matplotlib.pyplot.get_fignums(), "the tutorial has no picture"
"""


def cells(page: Path) -> str:
    """Join a notebook's cells to a script."""
    pattern = re.compile(r"^```\{code-cell\}\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    blocks = pattern.findall(page.read_text())
    return "\n".join(re.sub(r"\A(:.*\n)+", "", block) for block in blocks)


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_a_tutorial_runs_as_written(page, tmp_path):
    script = tmp_path / "tutorial.py"
    script.write_text(cells(page) + _AFTERWARDS)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    result = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env=environment | {"JAX_PLATFORMS": "cpu", "MPLBACKEND": "agg"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert result.returncode == 0, result.stdout + result.stderr
