"""Sphinx configuration: `make docs` builds the pages and runs their examples."""

import doctest
import linecache
import sys
from pathlib import Path

import dtypeguard

sys.path.append(str(Path(__file__).parent.parent / "examples"))  # compare.md imports one of them

project = "dtypeguard"
author = "dtypeguard contributors"
copyright = "2026, dtypeguard contributors"
version = release = dtypeguard.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.doctest", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
default_role = "code"
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = "dtypeguard"

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True

# Messages are compared, module names of exceptions too: they are part of what is documented.
doctest_default_flags = doctest.ELLIPSIS | doctest.DONT_ACCEPT_TRUE_FOR_1
doctest_global_setup = """
import warnings

import hypothesis

import dtypeguard
from dtypeguard import *

hypothesis.settings.register_profile("docs", deadline=None)  # the first call of an operation is slow
hypothesis.settings.load_profile("docs")
warnings.simplefilter("ignore", dtypeguard.DtypeGuardWarning)
"""
doctest_global_cleanup = """
dtypeguard.set_mode(None)
dtypeguard.reset_casts()
"""


class _Block(doctest.DocTest):
    """One block of a page, whose lines stay known in the blocks below it: what an audit reports quotes them."""

    def __init__(self, examples, globs, name, filename, lineno, docstring):
        super().__init__(examples, globs, f"{name}, line {lineno}", filename, lineno, docstring)
        for number, example in enumerate(examples):
            file = f"<doctest {self.name}[{number}]>"
            linecache.cache[file] = len(example.source), None, example.source.splitlines(True), file


doctest.DocTest = _Block
