"""The user's own line: which frames of the stack are dtypeguard's, torch's, or an installed package's."""

import functools
import os
import sys
import sysconfig
import warnings
from pathlib import PurePath
from types import FrameType
from typing import Any

import jaxtyping
import torch

known_files: dict[str, bool] = {}  # whether they are dtypeguard's, torch's or jaxtyping's
# The frames of these files never are the user's own line.
_INTERNAL: tuple[str, ...] = (
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep,
    os.path.dirname(os.path.abspath(torch.__file__)) + os.sep,
    os.path.dirname(os.path.abspath(jaxtyping.__file__)) + os.sep,  # whose decorator stands between
    os.path.dirname(os.path.abspath(os.__file__)) + os.sep + "contextlib.py",
    "<dtypeguard ",
    "<string>",
)
_HOOKS = "accelerate/"  # stands between a caller and a model that it prepared
_PACKAGES = frozenset(["site-packages", "dist-packages"])  # the second on Debian, and so on Colab
_LIBRARY = sysconfig.get_path("stdlib") + os.sep


def caller(frame: FrameType | None = None) -> FrameType | None:
    """The innermost frame that is neither dtypeguard's nor torch's nor jaxtyping's."""
    frame = frame or sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        known = known_files.get(file)
        if not (internal(file) if known is None else known):
            return frame
        frame = frame.f_back
    return None


def internal(file: str) -> bool:
    """Whether a file is dtypeguard's, torch's or jaxtyping's."""
    known = known_files[file] = file.startswith(_INTERNAL) or (installed(file) or "").startswith(_HOOKS)
    return known


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


def warn_at(frame: FrameType | None, text: str, kind: type[Warning]) -> None:
    """A warning at the user's own line."""
    if frame is None:
        warnings.warn(text, kind, stacklevel=2)
    else:
        module = frame.f_globals.get("__name__")  # what filters of warnings look at
        warnings.warn_explicit(text, kind, frame.f_code.co_filename, frame.f_lineno, module)


def warn_of(fn: Any, text: str, kind: type[Warning]) -> None:
    """A warning at the line where a function is written; once for each line, as Python's own are."""
    code, module = fn.__code__, fn.__globals__
    seen = module.setdefault("__warningregistry__", {})
    warnings.warn_explicit(text, kind, code.co_filename, code.co_firstlineno, module.get("__name__"), seen)


def place(frame: FrameType | None) -> str | None:
    """`train.py:42, in train_step`, with the path shortened against the working directory."""
    if frame is None:
        return None
    path = frame.f_code.co_filename.removeprefix(os.getcwd() + os.sep)
    return f"{path}:{frame.f_lineno}, in {frame.f_code.co_name}"
