"""Whose lines a report names: `source` and `omit`, which mean what they mean for coverage.py.

Code in an installed package, or in a folder that is left out, still runs under the audit. What is found there is told
at the user's line that led there.
"""

import functools
import importlib.util
import os
import sysconfig
from collections.abc import Callable
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from ..._core.base.frames import installed, internal, library
from ..._core.base.options import several
from .globs import matcher
from .sites import Site, site_of

_SCRIPTS = os.path.join(sysconfig.get_path("scripts"), "")  # `pytest`, which starts a program and is nobody's


class Led(Site):
    """A line that is not the user's, with the user's line that led there; None where there is none on the stack."""

    __slots__ = ("_mine",)

    def __init__(self, site: Site, mine: Site | None) -> None:
        super().__init__(site._code, site._lasti, site.line)
        self._mine = mine

    @property
    def mine(self) -> Site | None:
        return self._mine


class Scope:
    """The files that are the user's.

    Args:
        source: folders, files, or names of packages; none: all files outside of installed packages.
        omit: globs over paths; these files are not the user's.
        root: the folder that relative paths begin at.

    Raises:
        TypeError: for what is no string, or several.
        ValueError: for a source that is neither a path nor a package.
    """

    def __init__(self, source: Any, omit: Any, root: str | Path | None = None) -> None:
        base = Path(root or os.getcwd())
        sources = several("source", () if source is None else source, str, "folders or packages, as in ['src/']")
        globs = several("omit", () if omit is None else omit, str, "globs, as in ['tests/*']")
        for option, names in (("source", sources), ("omit", globs)):
            if "" in names:  # the path of the current folder, and a pattern that matches nothing
                raise ValueError(f"{option}='' names nothing")
        self._sources = [_path(name, base) for name in sources]
        self._omitted = [matcher(pattern, base) for pattern in globs]
        self.mine: Callable[[str], bool] = functools.cache(self._is_mine)
        self._led: dict[tuple[Site, Site | None], Led] = {}

    def _is_mine(self, file: str) -> bool:
        path = os.path.abspath(file)
        if internal(file) or file.startswith("<frozen ") or any(matches(path) for matches in self._omitted):
            return False
        apart = installed(path) is not None
        if not self._sources:
            return not apart and not library(path) and not path.startswith(_SCRIPTS)
        real = os.path.realpath(path)  # a virtual environment in a folder of the user's is not the user's
        return any(real.startswith(source) and (within or not apart) for source, within in self._sources)

    def seen(self, site: Site, frame: FrameType | None) -> Site:
        """A line as this report tells it, and what led there: the frames from `frame` outwards."""
        if self.mine(site.file):
            return site
        while frame is not None and not self.mine(frame.f_code.co_filename):
            frame = frame.f_back
        return self._led_to(site, None if frame is None else site_of(frame))

    def raised(self, site: Site, trace: TracebackType | None, frame: FrameType | None) -> Site:
        """The same for a line that a traceback led to, which begins at a frame that still runs."""
        found = None
        while trace is not None:
            if self.mine(trace.tb_frame.f_code.co_filename):
                found = Site(trace.tb_frame.f_code, trace.tb_lasti, trace.tb_lineno)
            trace = trace.tb_next
        return self.seen(site, frame) if found is None or self.mine(site.file) else self._led_to(site, found)

    def _led_to(self, site: Site, mine: Site | None) -> Site:
        key = site, mine
        return self._led.get(key) or self._led.setdefault(key, Led(site, mine))

    def place(self, site: Site) -> Site | None:
        """The line to name; None for what no line of the user's led to."""
        mine = site.mine
        return mine if mine is not None and self.mine(mine.file) else None


def scope_of(source: Any, omit: Any, root: str | Path | None = None) -> Scope | None:
    """The scope that options ask for; None where they ask for none."""
    return Scope(source, omit, root) if "" in (source, omit) or source or omit else None


def _path(name: str, base: Path) -> tuple[str, bool]:
    """What the paths of a source begin with (a folder with the separator behind it, a file), and if it is installed."""
    path = base / name
    if not path.exists():
        found = _package(name)
        if found is None:
            raise ValueError(f"source={name!r} is neither a folder or file below {base} nor a package")
        path = Path(found)
    real = os.path.realpath(path)
    begin = os.path.join(real, "") if path.is_dir() else real
    return begin, installed(os.path.join(real, "_")) is not None


def _package(name: str) -> str | None:
    """The folder or file of a package or module; None where there is none."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):  # a parent that is missing; no name of a module
        return None
    return None if spec is None else next(iter(spec.submodule_search_locations or ()), spec.origin)
