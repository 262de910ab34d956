"""Hints before they are specs: how they are written, resolved, and filled in with what their parameters stand for."""

import ast
import sys
import types
import typing
from collections.abc import Iterable, Iterator
from typing import Any, Union, get_args, get_origin

import typing_extensions
from jaxtyping import AbstractArray

from ..base.errors import AnnotationError
from .dims import parse_dims

Names = dict[str, Any]  # what forward references may mean besides the names of their own module
UNIONS = (Union, types.UnionType)
# Python < 3.12: no `type` statement, and typing_extensions has a class of its own; goes with that floor
ALIASES = (typing_extensions.TypeAliasType, getattr(typing, "TypeAliasType", typing_extensions.TypeAliasType))
_UNPACK = (typing.Unpack, typing_extensions.Unpack)


def show(hint: Any) -> str:
    """A hint as its author wrote it, near enough: `Float[Tensor, "b c"]`, `int | None`."""
    if isinstance(hint, type) and issubclass(hint, AbstractArray):
        array = getattr(hint.array_type, "__name__", None) or str(hint.array_type)
        return f'{hint.dtype.__name__}[{array}, "{hint.dim_str}"]'
    if hint is type(None):
        return "None"
    if isinstance(hint, list):  # the arguments of a Callable
        return f"[{', '.join(map(show, hint))}]"
    args, origin, inside = get_args(hint), get_origin(hint), unpacked(hint)
    if inside is not None:
        return f"*{show(inside)}" if get_origin(inside) is tuple else f"Unpack[{show(inside)}]"
    if origin in UNIONS:
        return " | ".join(show(arg) for arg in args)
    if args and not isinstance(origin, (type, *ALIASES)):  # Literal["a", "b"]
        return str(hint).replace("typing.", "").replace("typing_extensions.", "")
    if args:
        inner = ", ".join("..." if arg is Ellipsis else show(arg) for arg in args)
        return f"{getattr(origin, '__name__', origin)}[{inner}]"
    return getattr(hint, "__name__", None) or str(hint).replace("typing.", "")


def unpacked(hint: Any) -> Any:
    """What stands behind the star of `*tuple[...]`, and in `Unpack[...]`; None for all else."""
    if getattr(hint, "__unpacked__", False):
        return get_origin(hint)[get_args(hint)]
    return get_args(hint)[0] if get_origin(hint) in _UNPACK else None


def bases(hint: Any) -> Iterator[Any]:
    """A hint, then all that its class is derived from, with its type parameters filled in."""
    yield hint
    cls = get_origin(hint) or hint
    if isinstance(cls, type):
        meant = _parameters(hint)
        for base in vars(cls).get("__orig_bases__", cls.__bases__):
            if get_origin(base) not in (typing.Generic, typing.Protocol):
                yield from bases(fill_in(base, meant))


def _parameters(hint: Any) -> dict[Any, Any]:
    """What the type parameters of a generic stand for."""
    cls = get_origin(hint)
    params = getattr(cls, "__parameters__", None)
    if params is None:  # `class Stack(list[T])`
        written = getattr(cls, "__orig_bases__", ())
        params = dict.fromkeys(param for base in written for param in getattr(base, "__parameters__", ()))
    return dict(zip(params, get_args(hint), strict=False))


def fill_in(hint: Any, meant: dict[Any, Any]) -> Any:
    """A hint with its type parameters, and `Self`, replaced by what they stand for."""
    if isinstance(hint, typing.TypeVar) or hint is typing.Self:
        return meant.get(hint, hint)
    args, origin = get_args(hint), get_origin(hint)
    new = tuple(fill_in(arg, meant) for arg in args)
    if all(now is before for now, before in zip(new, args, strict=True)):
        return hint
    generic: Any = Union if origin in UNIONS else origin
    several: Any = new
    return generic[several if len(new) > 1 else several[0]]


def hints_of_class(hint: Any, local: Names) -> dict[str, Any]:
    """The hints of a class' fields, each read in the module of the class that wrote it.

    Raises:
        NameError: a forward reference means nothing there.
    """
    hints: dict[str, Any] = {}
    cls = get_origin(hint) or hint
    meant = {get_origin(base) or base: _parameters(base) for base in bases(hint)}
    typed = typing_extensions.is_typeddict(cls)
    if typed:  # it has all fields of those that it was derived from
        meant[cls] = {param: arg for known in reversed(meant.values()) for param, arg in known.items()}
    for base in reversed(getattr(cls, "__mro__", (cls,))):
        module = sys.modules.get(base.__module__)
        params = [param for known in (meant if typed else [base]) for param in getattr(known, "__type_params__", ())]
        scope = {**vars(base), **local, **by_name(params), base.__name__: base}
        for name, annotation in annotations_of(base).items() if base is not object else ():
            try:
                own = resolve_hint(annotation, vars(module) if module else {}, scope)
                hints[name] = fill_in(own, {**meant.get(base, {}), typing.Self: hint})
            except AnnotationError as error:
                error.argument = name
                raise
    return hints


def by_name(params: Iterable[Any]) -> Names:
    """Type parameters (PEP 695) by their names."""
    return {param.__name__: param for param in params}


def resolve_hint(annotation: Any, namespace: dict[str, Any], local: dict[str, Any]) -> Any:
    """An annotation with its strings and forward references evaluated.

    Raises:
        NameError: a name is not defined (yet).
        AnnotationError: it is malformed.
    """
    if not isinstance(annotation, str | typing.ForwardRef) and not get_args(annotation):
        return annotation
    holder = types.SimpleNamespace(__annotations__={"hint": annotation})
    try:
        return typing.get_type_hints(holder, namespace, local, include_extras=True)["hint"]
    except (NameError, AnnotationError):
        raise
    except Exception as error:
        if isinstance(error, AttributeError) and _is_loading(error.obj, error.name):
            raise NameError(str(error), name=error.name) from error
        raise _malformed_token(annotation, error) from error


def _is_loading(module: Any, name: str | None) -> bool:
    """Whether a module is not imported to its end, or its submodule of a name, so that the name may be set later."""
    if not isinstance(module, types.ModuleType):
        return False
    loading = getattr(getattr(module, "__spec__", None), "_initializing", False)  # what Python's own message asks
    return bool(loading) or f"{module.__name__}.{name}" in sys.modules


def _malformed_token(annotation: Any, error: Exception) -> AnnotationError:
    """Which token jaxtyping's ValueError was about: the first that our own parser refuses."""
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__forward_arg__", str(annotation))
    for dim_str in _strings_in(text):
        try:
            parse_dims(dim_str)
        except AnnotationError as ours:
            return ours
    return AnnotationError(f"`{text}` is malformed: {error}")


def _strings_in(text: str) -> list[str]:
    """The string constants of an annotation; one that itself is an annotation in quotes is looked into."""
    try:
        nodes = list(ast.walk(ast.parse(text, mode="eval")))
    except SyntaxError:
        return [text]
    if not any(isinstance(node, ast.Subscript | ast.Constant) for node in nodes):
        return [text]
    return [
        part for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str) for part in _quoted(n.value)
    ]


def _quoted(text: str) -> list[str]:
    return _strings_in(text) if "[" in text and text.rstrip().endswith("]") else [text]


def annotations_of(fn: Any) -> dict[str, Any]:
    """A function's annotations, unevaluated where they are deferred (PEP 649) and name what does not exist yet."""
    if getattr(fn, "__dict__", {}).get("__no_type_check__"):  # they are no types
        return {}
    return typing_extensions.get_annotations(fn, format=typing_extensions.Format.FORWARDREF)


def is_array_hint(annotation: Any) -> bool:
    """Whether a hint, or any part of it, is a jaxtyping annotation."""
    if isinstance(annotation, type) and issubclass(annotation, AbstractArray):
        return True
    return any(is_array_hint(arg) for arg in get_args(annotation))
