"""The user's own line: which frames of the stack are dtypeguard's, torch's, or an installed package's."""

import dis
import functools
import inspect
import linecache
import os
import re
import sys
import threading
import warnings
from collections.abc import Callable
from itertools import islice
from pathlib import Path, PurePath
from types import CodeType, FrameType, TracebackType
from typing import Any

import jaxtyping
import torch

from . import private
from .errors import DtypeGuardError, DtypeGuardWarning
from .log import log_too
from .quiet import hears

known_files: dict[str, bool] = {}  # whether no line of theirs is the user's
# dtypeguard's own files, and the code that it generates.
_OWN: tuple[str, ...] = (str(Path(__file__).absolute().parents[2]) + os.sep, "<dtypeguard ")
TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_LIBRARY = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_TEXT = "<string>"  # of what dataclasses generate, and of `python -c`
# The frames of these files never are the user's own line.
_INTERNAL: tuple[str, ...] = (
    *_OWN,
    TORCH,
    os.path.dirname(os.path.abspath(jaxtyping.__file__)) + os.sep,  # whose decorator stands between
    _TEXT,
    os.path.join(os.path.dirname(os.path.abspath(sys.executable)), "dtypeguard"),  # the console script
)
_HOOKS = "accelerate/"  # stands between a caller and a model that it prepared
_PACKAGES = frozenset(["site-packages", "dist-packages"])  # the second on Debian, and so on Colab
_IPYTHON = re.compile(r"^<ipython-input-\d+-")  # a terminal's cells are numbered besides


def caller(frame: FrameType | None = None) -> FrameType | None:
    """The innermost frame that is neither dtypeguard's nor torch's, jaxtyping's or Python's own library's."""
    found = _program(frame or sys._getframe(1))
    return _program(_awaiting()) if found is None else found


def _program(frame: FrameType | None) -> FrameType | None:
    first = frame
    while frame is not None:
        file = frame.f_code.co_filename
        known = known_files.get(file)
        if not (internal(file) if known is None else known):
            return frame
        frame = frame.f_back
    # The program is `python -c`; or a thread that Python's library began has nobody's own line.
    return _nearest(first, _TEXT.__eq__) or _nearest(first, library)


def _nearest(frame: FrameType | None, wanted: Callable[[str], bool]) -> FrameType | None:
    while frame is not None and not wanted(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def below(depth: int) -> FrameType | None:
    """The frame so many below its caller's; in a thread of autograd without any, that of the program, which waits."""
    try:
        return sys._getframe(depth + 1)
    except ValueError:
        return _awaiting()


def _awaiting() -> FrameType | None:
    """In a thread of autograd, as backward on a GPU has: the frame of the one thread that waits for its backward."""
    if private.graph_task() == -1:
        return None
    frames = sys._current_frames()
    del frames[threading.get_ident()]
    waiting = [frame for frame in frames.values() if frame.f_code.co_name == "_engine_run_backward"]
    return waiting[0] if len(waiting) == 1 else None


def internal(file: str) -> bool:
    """Whether a file is dtypeguard's, torch's, jaxtyping's, or of Python's own library."""
    known = file.startswith(_INTERNAL) or library(file) or (installed(file) or "").startswith(_HOOKS) or launches(file)
    known_files[file] = known
    return known


def launches(file: str) -> bool:
    """Whether a file only begins a program: Python's `runpy`, or the command `dtypeguard`."""
    return file.startswith("<frozen ") or PurePath(file).name == "dtypeguard"


@functools.cache
def installed(file: str) -> str | None:
    """Where a file stands among the installed packages, `torch/nn/functional.py`; None for the user's own."""
    folders = PurePath(file).parts
    found = [n for n, name in enumerate(folders[:-1]) if name in _PACKAGES]
    return "/".join(folders[found[-1] + 1 :]) if found else None


def library(file: str) -> bool:
    """Whether a file is of Python's own library."""
    return file.startswith(_LIBRARY) and installed(file) is None


def user(frame: FrameType) -> FrameType | None:
    """The user's own line, past the training frameworks that are installed between; else the innermost there is."""
    first = found = caller(frame)
    while found is not None and installed(found.f_code.co_filename) is not None:
        found = None if found.f_back is None else caller(found.f_back)
    return found or first


def hide_frames() -> None:
    """Take dtypeguard's frames out of the traceback of the exception that is handled now.

    A bare `raise` must follow: it adds no entry for the frame that it stands in. An exception that dtypeguard did not
    mean to raise keeps its frames.
    """
    if torch.compiler.is_compiling():
        return
    error = sys.exception()
    meant = isinstance(error, DtypeGuardError | DtypeGuardWarning)
    while error is not None:
        if meant or not is_own(_innermost(error.__traceback__)):
            error.__traceback__ = without(error.__traceback__, is_own)
        error = error.__cause__ if meant else None


def chain_of(error: BaseException | None) -> list[BaseException]:
    """An exception, and those that led to it."""
    chain: list[BaseException] = []
    while error is not None and error not in chain:
        chain.append(error)
        error = error.__cause__ or error.__context__
    return chain


def runs_user_code(error: BaseException) -> bool:
    """Whether code of the user's, or of a library of theirs, raised it; and not what we or torch do with a value."""
    files: list[str] = []
    trace = error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        files = [] if is_own(file) else [*files, file]  # what called us raised nothing
        trace = trace.tb_next
    return not all(map(internal, files))


def shortly(error: BaseException) -> str:
    """The type of an exception, and the first line of what it says."""
    first = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def let_go(error: BaseException | None) -> None:
    """Drop the frames of an exception: they hold what the program made, a copy of a model, until `gc.collect` runs."""
    for one in chain_of(error):
        one.__traceback__ = None


def without(trace: TracebackType | None, unwanted: Callable[[str], bool]) -> TracebackType | None:
    """A traceback without the frames of some files."""
    entries = []
    while trace is not None:
        if not unwanted(trace.tb_frame.f_code.co_filename):
            entries.append(trace)
        trace = trace.tb_next
    kept = None
    for entry in reversed(entries):
        line: int | None = entry.tb_lineno  # None where a signal raised at the jump of a loop
        kept = TracebackType(kept, entry.tb_frame, entry.tb_lasti, line or entry.tb_frame.f_code.co_firstlineno)
    return kept


def _innermost(trace: TracebackType | None) -> str:
    file = ""
    while trace is not None:
        file, trace = trace.tb_frame.f_code.co_filename, trace.tb_next
    return file


def is_own(file: str) -> bool:
    """Whether a file is dtypeguard's, or stands for code that it generated."""
    return file.startswith(_OWN)


def warn_at(frame: FrameType | None, warning: Warning) -> None:
    """Warn at the user's own line, and log the warning with it."""
    if hears(warning):
        return
    _log(warning, place(frame))
    if frame is None:
        warnings.warn(warning, stacklevel=2)
    else:
        # What filters of warnings look at; for None, of code that `exec` runs in a dict, Python would say nothing.
        module = frame.f_globals.get("__name__") or frame.f_code.co_filename
        warnings.warn_explicit(warning, type(warning), frame.f_code.co_filename, frame.f_lineno, module)


def _log(warning: Warning, at: str | None) -> None:
    """Log a warning, with the line at which Python shows it."""
    head, newline, rows = str(warning).partition("\n")
    where = "" if at is None else f"\n  {'seen at':<10} {at}" if newline else f"; seen at {at}"
    log_too(f"{head}{where}{newline}{rows}")


_LOOP = re.compile(r"(async )?for\b")


def source_lines(code: CodeType, lasti: int) -> list[str]:
    """What an instruction computes, as the program has it, line by line; empty where there is no source."""
    first, last, begin, end = next(islice(code.co_positions(), lasti // 2, None), (None,) * 4)
    if first is None or last is None or begin is None or end is None:
        return []
    lines = [linecache.getline(code.co_filename, number).encode() for number in range(first, last + 1)]
    if not all(lines):
        return []
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][begin:]
    code_of = [line.decode(errors="replace").strip() for line in lines]
    if _LOOP.match(code_of[0]):  # and its body, which the instruction that draws does not compute
        heads = (n for n, line in enumerate(code_of) if line.split(" #")[0].rstrip().endswith(":"))
        last = next(heads, 0)
        return [*code_of[:last], code_of[last].split(" #")[0].rstrip().removesuffix(":")]
    return code_of


def same_line(frame: FrameType | None) -> tuple[Any, ...] | None:
    """What a line is known by where something is told once for each.

    A notebook compiles each statement of a cell by itself, and names the cell's file after the cell's text: a cell that
    runs again is the same, an edited one is another.
    """
    if frame is None:
        return None
    code = frame.f_code
    return _IPYTHON.sub("<ipython-input-", code.co_filename), code, frame.f_lineno


def warn_of(fn: Any, warning: Warning) -> None:
    """A warning at the line where a function is written; once for each line, as Python's own are."""
    code, module = fn.__code__, fn.__globals__
    _log(warning, f"{shown(code.co_filename)}:{code.co_firstlineno}, in {code.co_name}")
    seen = module.setdefault("__warningregistry__", {})
    warnings.warn_explicit(warning, type(warning), code.co_filename, code.co_firstlineno, module.get("__name__"), seen)


def place(frame: FrameType | None) -> str | None:
    """`train.py:42, in train_step`, with the path shortened against the working directory."""
    if frame is None:
        return None
    return f"{shown(frame.f_code.co_filename)}:{frame.f_lineno}, in {frame.f_code.co_name}"


def place_of(fn: Any) -> str | None:
    """`net.py:12`: the line of a function's `def`, which its decorators may stand above."""
    code = getattr(inspect.unwrap(fn), "__code__", None)
    if code is None:
        return None
    lines = islice(linecache.getlines(code.co_filename), code.co_firstlineno - 1, None)
    below = next((n for n, line in enumerate(lines) if f"def {code.co_name}" in line), 0)
    return f"{shown(code.co_filename)}:{code.co_firstlineno + below}"


def return_of(fn: Any) -> str | None:
    """`net.py:14`: the line of a function's `return`, if it has one and no other."""
    code = getattr(inspect.unwrap(fn), "__code__", None)
    if code is None or code.co_flags & (inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR):
        return None
    steps = dis.get_instructions(code)
    lines = {step.positions and step.positions.lineno for step in steps if step.opname.startswith("RETURN_")}
    lines = {line for line in lines if line and "return" in linecache.getline(code.co_filename, line)}
    return f"{shown(code.co_filename)}:{lines.pop()}" if len(lines) == 1 else None


def shown(file: str) -> str:
    """A file as its reader knows it: its path from the working directory, or from where packages are installed.

    A notebook's cell is `In[5]`.
    """
    ipython = sys.modules.get("IPython")
    compiler = getattr(getattr(ipython, "get_ipython", lambda: None)(), "compile", None)
    cell = None if compiler is None else getattr(compiler, "format_code_name", lambda _: None)(file)
    return str(cell[1]) if cell is not None else installed(file) or file.removeprefix(os.getcwd() + os.sep)
