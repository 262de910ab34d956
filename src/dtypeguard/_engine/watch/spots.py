"""Code of the program that a finding points at."""

import dataclasses
import linecache
import re
import sys
from types import FrameType

from ..._core.base.frames import installed, shown
from .sites import Site, site_of, user_wrote

_NAMED = re.compile(r"(?:\.to\(|\.type_as\(|dtype=)(?:dtype=)?(\w+)")  # whose dtype is asked for


@dataclasses.dataclass(frozen=True, slots=True)
class Spot:
    """Code on one line of the program, and what is said of it.

    Attributes:
        file: the file, as Python knows it.
        line: the number of the line.
        function: the function that the line is in.
        source: the text of the line, with its indentation; empty where there is no source.
        begin: the first column of the code in `source`, counted from 0.
        end: the column after the last one.
        label: what is said of the code; may be empty.
        stop: where the code ends, line and column, if it is known to the column; it may be on a later line.
    """

    file: str
    line: int
    function: str
    source: str
    begin: int
    end: int
    label: str = ""
    stop: tuple[int, int] | None = None

    @property
    def path(self) -> str:
        """The file as its reader knows it: from the working directory, or `In[5]`."""
        return shown(self.file)

    @property
    def place(self) -> str:
        """`train.py:42 in train_step`."""
        return f"{self.path}:{self.line} in {self.function}"

    @property
    def mine(self) -> bool:
        """Whether the line is of the program, not of an installed package."""
        return installed(self.file) is None


Spot.__module__ = "dtypeguard.results"


class Step(str):
    """A line of an origin, as text; the one at which the dtype was born knows its site.

    Attributes:
        site: of the birth, else None.
        label: what is said of the code there.
        edit: whether that is the code to change, if the rule says so of births.
    """

    site: Site | None
    label: str
    edit: bool

    def __new__(cls, text: str, site: Site | None = None, label: str = "", edit: bool = True) -> "Step":
        step = super().__new__(cls, text)
        step.site, step.label, step.edit = site, label, edit
        return step

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)  # a site holds code, which cannot be pickled


def spot_of(site: Site, label: str = "") -> Spot:
    """The code of a site; its whole line where the columns are not known."""
    source = linecache.getline(site.file, site.line).rstrip()
    begin, end = site.columns or (0, 0)
    if not begin < end <= len(source):
        begin, end = len(source) - len(source.lstrip()), len(source)
    stop = site.span and site.span[1:]
    return Spot(site.file, site.line, site.function, source, begin, end, label, stop)


def births_of(origin: tuple[str, ...]) -> list[tuple[Spot, bool]]:
    """The lines of an origin at which the dtype was born, and whether each may be the one to change."""
    steps = (step for step in origin if isinstance(step, Step))
    return [(spot_of(step.site, step.label), step.edit) for step in steps if step.site is not None]


def asked_for(site: Site, what: str) -> tuple[Step, ...]:
    """The call that has named the dtype, where the line of a running function takes that of an argument."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and site_of(frame) is not site:
        frame = frame.f_back
    named = _NAMED.search(site.written or site.source)
    if frame is None or named is None or frame.f_back is None or not user_wrote(frame.f_back):
        return ()
    code, caller = frame.f_code, site_of(frame.f_back)
    arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    if named[1] not in arguments or not caller.mine:
        return ()
    return (Step(f"{code.co_name} is called at {caller}", caller, f"`{named[1]}` is {what} here"),)
