"""One case of the differential test: what jaxtyping says, what `enforce` says, what the reference checker says."""

from typing import Any

from jaxtyping import AnnotationError as JaxtypingAnnotationError
from jaxtyping import jaxtyped
from strategies import family_of

import dtypeguard
from dtypeguard._core.base.errors import AnnotationError, DtypeError, HintError, ShapeError
from dtypeguard._core.check.reference import check, check_result

Case = tuple[list[tuple[str, Any, list[str]]], list[Any]]


def annotation_of(family: str, array_type: Any, parts: list[str]) -> Any:
    """The jaxtyping annotation; its own ValueError where it is malformed."""
    hint = array_type
    for part in reversed(parts):
        hint = family_of(family)[hint, part]
    return hint


def _unparsable(hint: Any) -> bool:
    """Whether an axis is less than nothing, or no Python, which jaxtyping finds out only if it comes to evaluate it."""
    for dim in hint.dims:
        if getattr(dim, "size", 0) < 0:
            return True
        text = getattr(dim, "elem", None)
        if isinstance(text, str) and not any(c in text for c in "{}'\\"):
            try:
                compile(text, "axis", "eval")
            except SyntaxError:
                return True
    return False


def _first_faults(checks: list[Any]) -> str:
    for ask in checks:
        try:
            if not ask():
                return "reject"
        except JaxtypingAnnotationError:
            return "annotation"
        except Exception:  # an axis expression that divides by zero, say: jaxtyping lets it out as it is
            return "annotation"
    return "accept"


def jaxtyping_says(case: Case) -> str:
    """'malformed', 'accept', 'reject' or 'annotation' (an axis that cannot be computed)."""
    annotations, values = case
    try:
        hints = [annotation_of(*annotation) for annotation in annotations]
    except ValueError:
        return "malformed"
    if any(_unparsable(hint) for hint in hints):
        return "malformed"

    names = [f"x{i}" for i in range(len(values) - 1)]

    def ask_all(*arguments: Any) -> str:
        return _first_faults([lambda h=h, v=v: isinstance(v, h) for h, v in zip(hints, values, strict=True)])

    scope: dict[str, Any] = {"ask_all": ask_all}
    exec(f"def scoped({', '.join(names)}): return ask_all()", scope)
    said: str = jaxtyped(scope["scoped"], typechecker=None)(*values[:-1])
    return said


def make_function(case: Case, *, strings: bool) -> Any:
    """A function with those annotations that returns the last value."""
    annotations, values = case
    scope: dict[str, Any] = {"result": values[-1], "annotation_of": annotation_of, "annotations": annotations}
    hints = [f"annotation_of(*annotations[{i}])" for i in range(len(annotations))]
    hints = [repr(hint) if strings else hint for hint in hints]
    params = ", ".join(f"x{i}: {hint}" for i, hint in enumerate(hints[:-1]))
    exec(f"def fn({params}) -> {hints[-1]}: return result", scope)
    return scope["fn"]


def enforce_says(case: Case) -> str:
    """The same of `enforce`; asserts that generated wrapper and reference checker agree."""
    _, values = case
    try:
        fn = dtypeguard.enforce(make_function(case, strings=True), mode="strict")
    except AnnotationError:
        return "malformed"
    contract = fn.__dtypeguard__[1]
    try:
        result = fn(*values[:-1])
    except AnnotationError:
        said = "annotation"
    except (DtypeError, ShapeError, HintError):
        said = "reject"
    else:
        said = "accept"
        assert result is values[-1]
    assert reference_says(contract, values) == said
    return said


def reference_says(contract: Any, values: list[Any]) -> str:
    try:
        call = check(contract, tuple(values[:-1]))
        if call.violations:
            return "reject"
        return "reject" if check_result(call, values[-1]).violations else "accept"
    except AnnotationError:
        return "annotation"
