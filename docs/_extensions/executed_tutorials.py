"""The tutorials' outputs, which the repository holds, so that building the site executes nothing.

`python docs/_extensions/executed_tutorials.py` executes the tutorials whose code has changed since,
or those that it is given; the site's builder finds the outputs in MyST-NB's cache.
"""

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
from jupyter_cache import get_cache
from myst_nb.core.read import read_myst_markdown_notebook
from nbclient import NotebookClient
from sphinx.application import Sphinx
from sphinx.util.typing import ExtensionMetadata

TUTORIALS = Path(__file__).parents[1] / "tutorials"
EXECUTED = TUTORIALS / "_executed"


def code_of(page: Path) -> nbformat.NotebookNode:
    """Read a page as a notebook of its code cells."""
    notebook = read_myst_markdown_notebook(page.read_text())
    notebook.cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    notebook.nbformat_minor = 4  # cells have no random ids
    for cell in notebook.cells:
        del cell["id"]
    return notebook


def execute(page: Path) -> None:
    """Execute a page in an empty folder, and store its cells with their outputs."""
    notebook = code_of(page)
    with TemporaryDirectory() as folder:
        resources = {"metadata": {"path": folder}}
        NotebookClient(notebook, timeout=1200, resources=resources, record_timing=False).execute()
    notebook.metadata.pop("language_info")
    nbformat.write(notebook, EXECUTED / f"{page.stem}.ipynb")


def is_current(page: Path) -> bool:
    """Return whether a page's outputs are those of its code cells."""
    file = EXECUTED / f"{page.stem}.ipynb"
    if not file.exists():
        return False
    stored = nbformat.read(file, nbformat.NO_CONVERT)
    return [(each.source, each.metadata) for each in stored.cells] == [
        (each.source, each.metadata) for each in code_of(page).cells
    ]


def fill_cache(app: Sphinx) -> None:
    """Put the outputs where MyST-NB looks for those of unchanged code."""
    cache = get_cache(app.env.mystnb_config.execution_cache_path)
    for file in sorted(EXECUTED.glob("*.ipynb")):
        cache.cache_notebook_file(str(file), overwrite=True)


def setup(app: Sphinx) -> ExtensionMetadata:
    """Connect to Sphinx."""
    app.connect("builder-inited", fill_cache, priority=600)  # after MyST-NB has chosen a cache
    return {"parallel_read_safe": True, "parallel_write_safe": True}


if __name__ == "__main__":
    os.environ |= {
        "JAX_PLATFORMS": "cpu",
        "MATPLOTLIBRC": str(TUTORIALS / "matplotlibrc"),
        "PYTHONWARNINGS": "ignore:IProgress not found",  # of tqdm, in notebooks without widgets
    }
    named = [TUTORIALS / f"{name}.md" for name in sys.argv[1:]]
    for page in named or [each for each in sorted(TUTORIALS.glob("*.md")) if not is_current(each)]:
        print(page.stem, flush=True)
        execute(page)
