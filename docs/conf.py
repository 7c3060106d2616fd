"""The documentation site. CONTRIBUTING.md says how to build it.

Its source is the repository's root, so that the pages' relative links to code, benchmarks and each
other hold on the site as they do in the repository.
"""

import sys
from pathlib import Path

import jaxagents

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

project = "jaxagents"
author = "The jaxagents authors"
copyright = author
version = release = jaxagents.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "executed_tutorials",
    "generated_reference",
    "mathml",
    "source_pages",
]
if tags.has("online"):
    extensions.append("sphinx.ext.intersphinx")
    intersphinx_mapping = {
        "python": ("https://docs.python.org/3", None),
        "jax": ("https://docs.jax.dev/en/latest", None),
        "numpy": ("https://numpy.org/doc/stable", None),
    }
root_doc = "docs/index"
include_patterns = ["docs/**", "benchmarks/**", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"]
exclude_patterns = [".*", "build", "**/_*"]

# Pages
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 4
myst_links_external_new_tab = False
nb_execution_mode = "cache"  # executed_tutorials fills it
nb_execution_in_temp = True  # tutorials write files
nb_execution_timeout = 600
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_merge_streams = True

# Reference
nitpick_ignore = [("py:class", "Figure")]  # of matplotlib, which only type checkers import
default_role = "py:obj"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
maximum_signature_line_length = 80
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
toc_object_entries_show_parents = "hide"

# Appearance
html_theme = "furo"
html_title = f"jaxagents {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_favicon = "_static/logo-light.svg"
html_theme_options = {"light_logo": "logo-light.svg", "dark_logo": "logo-dark.svg"}
html_js_files = ["site.js"]
html_additional_pages = {"index": "redirect.html"}
templates_path = ["_templates"]
html_copy_source = False
html_show_sourcelink = False
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"
