"""The annotations of a function become specs; their faults name the function and the argument."""

import inspect
from typing import Any, get_args

from .._base.errors import AnnotationError
from .._check.scope import closure_of
from .._contract.hints import resolve_hint
from .._contract.spec import Spec, spec_of


def read_annotation(function: str, argument: str, annotation: Any, fn: Any, local: dict[str, Any]) -> Spec | None:
    return spec_in(function, argument, resolved(function, argument, annotation, fn, local), local)


def resolved(function: str, argument: str, annotation: Any, fn: Any, local: dict[str, Any]) -> Any:
    try:
        return resolve_hint(annotation, getattr(fn, "__globals__", {}), {**local, **closure_of(fn)})
    except AnnotationError as error:
        raise located(error, function, argument) from error.__cause__


def spec_in(function: str, argument: str, hint: Any, local: dict[str, Any]) -> Spec | None:
    """The spec of a resolved hint; its faults name the argument."""
    try:
        return spec_of(hint, local) if hint is not inspect.Parameter.empty else None
    except AnnotationError as error:
        raise located(error, function, argument) from error.__cause__


def located(error: AnnotationError, function: str, argument: str) -> AnnotationError:
    what = "the result" if argument == "return" else f"argument `{argument}`"
    located = AnnotationError(f"{function}: the annotation of {what} is malformed: {error}")
    located.function, located.argument = function, argument
    return located


def stream_hints(kind: str, hint: Any) -> tuple[Any, Any]:
    """What a function returns and what it yields, by its return annotation."""
    if not kind.endswith("generator"):
        return hint, inspect.Parameter.empty
    args = get_args(hint)
    returned = args[2] if kind == "generator" and len(args) > 2 else inspect.Parameter.empty
    return returned, args[0] if args else inspect.Parameter.empty
