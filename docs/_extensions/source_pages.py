"""The repository's code as pages: links to files and folders lead there, and so do objects.

Names in docstrings and annotations that no page documents lead to the code that defines them. A
name that does not exist is a broken reference, which the build reports.
"""

import ast
import functools
import html
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.typing import ExtensionMetadata

PACKAGE = "jaxagents"
LANGUAGES = {".py": "python", ".sh": "bash", ".sbatch": "bash", ".yaml": "yaml"}
_REFERENCE = "source"  # the type of pending references to pages of code


# Links to files and folders


def redirect_links(app: Sphinx, doctree: nodes.document) -> None:
    """Let links to code lead to its pages; other files are downloaded."""
    for node in [*doctree.findall(addnodes.download_reference), *doctree.findall(is_myst_link)]:
        _, path = app.env.relfn2path(node["reftarget"], app.env.docname)
        target = Path(path)
        if target.is_dir() or target.suffix in LANGUAGES:
            name = target.relative_to(app.srcdir).as_posix()
            node.replace_self(reference_to(name, app.env.docname, node.children))
            linked_paths(app.env).setdefault(app.env.docname, set()).add(name)


def is_myst_link(node: nodes.Node) -> bool:
    """Return whether a node is a Markdown link to something that is no page."""
    return (
        isinstance(node, addnodes.pending_xref)
        and node["reftype"] == "myst"
        and node.get("refdomain") is None
        and not node["reftarget"].startswith("#")
    )


def reference_to(name: str, docname: str, children: list[nodes.Node]) -> addnodes.pending_xref:
    """Refer to the page of a path, relative to the root, perhaps with an anchor."""
    node = addnodes.pending_xref(
        "", reftype=_REFERENCE, refdomain="", reftarget=name, refdoc=docname, refexplicit=True
    )
    node += children
    return node


def linked_paths(env: BuildEnvironment) -> dict[str, set[str]]:
    """Return the paths of code that each page links to."""
    if not hasattr(env, "linked_source_paths"):
        env.linked_source_paths = {}
    return env.linked_source_paths


def forget_links(app: Sphinx, env: BuildEnvironment, docname: str) -> None:
    """Forget a page that is read anew or that has gone."""
    linked_paths(env).pop(docname, None)


def merge_links(app: Sphinx, env: BuildEnvironment, docnames: set[str], other: Any) -> None:
    """Take over what another process has read."""
    linked_paths(env).update({name: linked_paths(other).get(name, set()) for name in docnames})


# Objects


def add_source_links(app: Sphinx, doctree: nodes.document) -> None:
    """Add a link to the code to each signature of a Python object."""
    for signature in doctree.findall(addnodes.desc_signature):
        if signature.get("module") and (
            location := location_of(find(signature["fullname"], signature["module"]))
        ):
            text = nodes.inline("", "[source]", classes=["viewcode-link"])
            signature += reference_to(location, app.env.docname, [text])


def resolve(
    app: Sphinx, env: BuildEnvironment, node: addnodes.pending_xref, content: nodes.Element
) -> nodes.Element | None:
    """Resolve references to pages of code, and to objects that no page documents."""
    if node["reftype"] == _REFERENCE:
        return link(app, node["refdoc"], node["reftarget"], node.children)
    if node.get("refdomain") != "py":
        return None
    name = node["reftarget"].removesuffix("()")
    if re.search(r"['\" /]", name):  # axes, a command, or a file: no name
        return content
    method = env.domains.python_domain.resolve_xref(
        env, node["refdoc"], app.builder, "obj", f"{PACKAGE}.IPPOBase.{name}", node, content
    )
    if method is not None:
        return method
    context = [node.get("py:module"), node.get("py:class")]
    value = find(name, *filter(None, context))
    location = defined_once(name) if value is None else location_of(value)
    if location:
        return link(app, node["refdoc"], location, [content])
    return None if value is None else content


def link(app: Sphinx, docname: str, target: str, children: list[nodes.Node]) -> nodes.reference:
    """Link to the page of a path."""
    name, _, anchor = target.partition("#")
    uri = app.builder.get_relative_uri(docname, f"source/{name}")
    return nodes.reference(
        "", "", *children, internal=True, refuri=f"{uri}#{anchor}" if anchor else uri
    )


@functools.cache
def find(name: str, module: str = PACKAGE, cls: str | None = None) -> Any:
    """Find an object by the name that a docstring or annotation in a module or class gives it."""
    name = re.sub(r"^(jax\.)?jaxlib\._jax\.", "jax.", name)
    name = "numpy.ndarray" if name == "ndarray" else name
    scopes: list[Any] = [importlib.import_module(module)]
    scopes += [attribute(scopes[0], cls)] if cls else []
    homes = [getattr(each, "__module__", None) for each in scopes]
    scopes += [sys.modules[each] for each in homes if each in sys.modules]
    scopes += [base for each in list(scopes) for base in getattr(each, "__mro__", ())]
    scopes += [importlib.import_module(each) for each in (PACKAGE, "builtins")]
    values = (attribute(scope, name) for scope in reversed(scopes))
    return next((each for each in values if each is not None), imported(name))


def attribute(scope: Any, name: str) -> Any:
    """Get a dotted attribute, or None."""
    for part in name.split("."):
        fields = getattr(scope, "__dataclass_fields__", {})
        scope = getattr(scope, part, fields.get(part))
    return scope


def imported(name: str) -> Any:
    """Import a dotted name, of this package or another, or None."""
    parts = name.split(".")
    for prefix in (*([PACKAGE] if parts[0] != PACKAGE else []), ""):
        for length in range(len(parts), 0, -1):
            path = ".".join(filter(None, [prefix, *parts[:length]]))
            try:
                value = importlib.import_module(path)
            except ImportError:
                continue
            if length == len(parts):
                return value
            if (found := attribute(value, ".".join(parts[length:]))) is not None:
                return found
    return None


@functools.cache
def definitions() -> dict[str, str]:
    """Return the location of each module, class and function of the package by its dotted name."""
    root = Path(importlib.import_module(PACKAGE).__file__ or "").parents[1]
    found = {}
    for file in sorted((root / PACKAGE).rglob("*.py")):
        path = file.relative_to(root)
        module = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
        found[module] = path.as_posix()
        for name, line in definitions_in(ast.parse(file.read_text()), module):
            found[name] = f"{path.as_posix()}#L-{line}"
    return found


def definitions_in(tree: ast.AST, prefix: str) -> Iterator[tuple[str, int]]:
    """List the classes and functions of a module or class by dotted name, with their lines."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            name = f"{prefix}.{node.name}"
            yield name, node.lineno
            if isinstance(node, ast.ClassDef):
                yield from definitions_in(node, name)


def defined_once(name: str) -> str | None:
    """Return the location of what only one module, class or function of the package is called."""
    places = [place for full, place in definitions().items() if full.endswith(f".{name}")]
    return places[0] if len(places) == 1 else None


def location_of(value: Any) -> str | None:
    """Return the path and line of an object's code, if it is of this package."""
    value = inspect.unwrap(value.fget if isinstance(value, property) else value)
    if isinstance(value, ModuleType):
        return definitions().get(value.__name__)
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    return definitions().get(f"{module}.{name}")


# Pages


def collect_pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Make a page of each file and folder of the package, and of whatever else is linked to."""
    root = Path(app.srcdir)
    names = {name for linked in linked_paths(app.env).values() for name in linked}
    chosen = {root / name for name in [PACKAGE, *names]}
    paths = chosen | {inside for path in chosen if path.is_dir() for inside in contents(path)}
    for path in sorted(paths):
        name = path.relative_to(root).as_posix()
        body = folder_page(path) if path.is_dir() else file_page(app, path)
        above = [
            f'<a href="{relative(name, each)}">{each}</a>' if root / each in paths else each
            for each in map(Path.as_posix, reversed(Path(name).parents[:-1]))
        ]
        trail = " / ".join(above)
        title = f"<h1><code>{html.escape(name)}</code></h1>"
        yield f"source/{name}", {"title": name, "body": f"{title}<p>{trail}</p>{body}"}, "page.html"


def contents(folder: Path) -> list[Path]:
    """List what a folder holds, at any depth, and pages may show."""
    return [
        path
        for path in folder.rglob("*")
        if not re.search(r"/(\.|__pycache__)", path.relative_to(folder.parent).as_posix())
        and (path.is_dir() or path.suffix in LANGUAGES)
    ]


def relative(page: str, other: str) -> str:
    """Return the address of a path's page, as its own contents refer to it."""
    return "../" * page.count("/") + f"{other}.html"


def file_page(app: Sphinx, path: Path) -> str:
    """Show a file, with an anchor for each line."""
    language = LANGUAGES[path.suffix]
    return app.builder.highlighter.highlight_block(path.read_text(), language, linespans="L")


def folder_page(folder: Path) -> str:
    """List the contents of a folder, with the first line of each one's docstring."""
    rows = [
        f'<tr><td><a href="{folder.name}/{path.name}.html"><code>{path.name}</code></a></td>'
        f"<td>{in_html(summary(path))}</td></tr>"
        for path in sorted(folder.iterdir(), key=lambda path: (path.is_file(), path.name))
        if path in contents(folder)
    ]
    text = in_html(docstring(folder))
    head = "<thead><tr><th>Name</th><th>Contents</th></tr></thead>"
    return f"<p>{text}</p><table class='folder'>{head}<tbody>{''.join(rows)}</tbody></table>"


def docstring(path: Path) -> str:
    """Return the docstring of a Python file or package, or nothing."""
    file = path / "__init__.py" if path.is_dir() else path
    if file.suffix != ".py" or not file.exists():
        return ""
    return ast.get_docstring(ast.parse(file.read_text())) or ""


def summary(path: Path) -> str:
    """Return the first paragraph of a docstring."""
    return docstring(path).partition("\n\n")[0]


def in_html(text: str) -> str:
    """Write a docstring's paragraphs and literals in HTML."""
    text = re.sub(r"`+([^`]+)`+", r"<code>\1</code>", html.escape(text))
    return text.replace("\n\n", "</p><p>")


def setup(app: Sphinx) -> ExtensionMetadata:
    """Connect to Sphinx."""
    app.connect("doctree-read", redirect_links, priority=400)  # before downloads are collected
    app.connect("doctree-read", add_source_links)
    app.connect("missing-reference", resolve)
    app.connect("env-purge-doc", forget_links)
    app.connect("env-merge-info", merge_links)
    app.connect("html-collect-pages", collect_pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
