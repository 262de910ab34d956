"""Sphinx configuration: `make docs` builds the pages, and tests/test_docs.py runs their examples.

Pages are plain Markdown, as GitHub shows it. What only the site has, its tree of pages, is here.
"""

import dtypeguard

project = "dtypeguard"
author = "dtypeguard contributors"
copyright = "2026, dtypeguard contributors"
version = release = dtypeguard.__version__

extensions = ["myst_parser"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = "dtypeguard"

# For each page the captions and the pages below it.
TREES = {
    "index": {
        "Tutorials": "quickstart nan bf16",
        "How-to guides": "howto/install howto/half-model howto/does-not-learn audit amp compare dryrun testing "
        "howto/fix howto/suite howto/long-runs howto/state howto/port howto/formats howto/ci "
        "howto/settings howto/notebook howto/production howto/log howto/adopt howto/jaxtyped wild",
        "Explanation": "explanation/inside explanation/program explanation/cost explanation/comparison found "
        "explanation/decisions",
        "Reference": "reference rules/index errors/index semantics limits",
    },
    "reference": {"": "reference/*"},
    "rules/index": {"": "DG*"},
    "errors/index": {"": "DG*"},
}


def add_trees(app, page, source):
    """Add the tree of a page to its text."""
    for caption, pages in TREES.get(page, {}).items():
        lines = [":hidden:", ":glob:", *[f":caption: {caption}"] * bool(caption), "", *pages.split()]
        source[0] += "\n".join(["\n```{toctree}", *lines, "```\n"])


def setup(app):
    app.connect("source-read", add_trees)
