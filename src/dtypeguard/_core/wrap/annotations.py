"""The annotations of a function become specs; their faults name the function and the argument."""

import difflib
from types import TracebackType
from typing import Any, get_args

import jaxtyping
import torch
from jaxtyping import AbstractDtype

from ..base.codes import UNKNOWN
from ..base.errors import AnnotationError
from ..check.scope import closure_of
from ..contract.hints import resolve_hint
from ..contract.spec import Spec, no_annotation, spec_of

_KINDS = [getattr(jaxtyping, name, None) for name in dir(jaxtyping)]
_ARRAYS = ["Tensor", *(one.__name__ for one in _KINDS if isinstance(one, type) and issubclass(one, AbstractDtype))]


def read_annotation(
    function: str, argument: str | None, annotation: Any, fn: Any, local: dict[str, Any]
) -> Spec | None:
    with located(function, argument):
        return spec_of(resolved(annotation, fn, local), local)


def unknown_name(whose: str, error: NameError, advice: str = "") -> AnnotationError:
    """The error where an annotation names what does not exist, with what to write instead."""
    dtype = getattr(torch, error.name or "", None)
    if near := difflib.get_close_matches(error.name or "", _ARRAYS, 1, 0.85):
        meant = f"did you mean {near[0]}?{advice and f' Else {advice}'}"
        advice = advice if error.name in _ARRAYS else meant
    advice = no_annotation(dtype) if isinstance(dtype, torch.dtype) else advice
    told = AnnotationError(f"{whose} names what does not exist: {error}{advice and f'; {advice}'}")
    told.code = UNKNOWN.id
    return told


def resolved(annotation: Any, fn: Any, local: dict[str, Any]) -> Any:
    return resolve_hint(annotation, getattr(fn, "__globals__", {}), {**local, **closure_of(fn)})


class located:  # noqa: N801  (a context manager whose own frames a traceback can do without)
    """Around what reads an annotation: its faults name the argument, if there is one; "" for the fields of a class."""

    def __init__(self, function: str, argument: str | None = "") -> None:
        self._function, self._argument = function, argument

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(error, AnnotationError):
            function, argument = self._function, str(error.argument) if self._argument == "" else self._argument
            what = "of the result " if argument == "return" else f"of argument `{argument}` " if argument else ""
            named = AnnotationError(f"{function}: the annotation {what}is malformed: {error.args[0]}")
            named.function, named.argument = function, argument
            raise named from error.__cause__


def stream_hints(kind: str, hint: Any) -> tuple[Any, Any]:
    """What a function returns and what it yields, by its return annotation."""
    if not kind.endswith("generator"):
        return hint, Any
    args = get_args(hint)
    returned = args[2] if kind == "generator" and len(args) > 2 else Any
    return returned, args[0] if args else Any
