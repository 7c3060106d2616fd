"""Every tutorial runs as written, and draws; its stored outputs are those of its code."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

TUTORIALS = sorted((Path(__file__).parents[1] / "docs" / "tutorials").glob("*.md"))
_CELL = re.compile(r"^```\{code-cell\}\n((?::[^\n]*\n)*)\n*(.*?)\n```$", re.MULTILINE | re.DOTALL)
_AFTERWARDS = """
import matplotlib.pyplot
assert matplotlib.pyplot.get_fignums(), "the tutorial has no picture"
"""


def cells(page: Path) -> list[tuple[dict, str]]:
    """List the options and the code of a notebook's cells."""
    return [
        (yaml.safe_load(re.sub("^:", "", options, flags=re.MULTILINE)) or {}, code)
        for options, code in _CELL.findall(page.read_text())
    ]


def code_of(page: Path) -> str:
    """Join the code of a notebook's cells."""
    return "\n".join(code for _, code in cells(page))


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_the_outputs_of_a_tutorial_are_those_of_its_code(page):
    file = page.parent / "_executed" / f"{page.stem}.ipynb"
    assert file.stat().st_size < 200_000
    stored = json.loads(file.read_text())["cells"]
    is_current = [(cell["metadata"], "".join(cell["source"])) for cell in stored] == cells(page)
    assert is_current, "run docs/_extensions/executed_tutorials.py, see CONTRIBUTING.md"


@pytest.mark.slow  # tutorials train until there is something to see: a minute each
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_a_tutorial_runs_as_written(page, tmp_path):
    code = code_of(page)
    if "IPython" in code:
        pytest.importorskip("IPython", reason="needs the extra docs")
    script = tmp_path / "tutorial.py"
    script.write_text(code + _AFTERWARDS)
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
