"""Annotations, read once: a hint becomes a small tree of specs.

Floor 2. The grammar of axes is jaxtyping's own; a test holds `parse_dims`
against the `dims` that jaxtyping parsed.
"""

import ast
import builtins
import collections.abc
import dataclasses
import enum
import functools
import re
import sys
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeGuard, Union, get_args, get_origin

import jaxtyping
import torch
import typing_extensions
from jaxtyping import AbstractArray, AbstractDtype
from torch import Tensor

from ._dtypes import dtypes_named
from ._errors import AnnotationError

# ---------------------------------------------------------------- axes


class DimKind(enum.Enum):
    NAMED = "named"
    FIXED = "fixed"
    SYMBOLIC = "symbolic"
    ANONYMOUS = "anonymous"


@dataclass(frozen=True, slots=True, repr=False)
class Dim:
    """One token of a `dim_str`; `text` is what is left of it once its prefixes are gone."""

    kind: DimKind
    text: str = ""
    size: int = 0
    broadcast: bool = False
    variadic: bool = False
    tree: bool = False
    names: tuple[str, ...] | None = None  # of a symbolic axis: what `function` takes; None: evaluate `text` at the call
    function: Callable[..., Any] | None = None


_PREFIXES = {"#": "broadcast", "*": "variadic", "_": "anonymous", "?": "tree"}
_ANY_AXES = Dim(DimKind.ANONYMOUS, variadic=True)


def _token_error(token: str, reason: str) -> AnnotationError:
    return AnnotationError(f"axis `{token}` {reason}")


def parse_dim(token: str) -> Dim:
    """One axis of a jaxtyping annotation.

    Raises:
        AnnotationError: where jaxtyping's own subscription raises ValueError, and for an expression
            that is no Python, which jaxtyping notices only at a call.
    """
    if "," in token and "(" not in token:
        raise _token_error(token, "has a comma: axes are separated by spaces")
    if token.endswith("#"):
        raise _token_error(token, "has its # at the end: a broadcastable axis is written #name")
    if "..." in token:
        if token != "...":
            raise _token_error(token, "must be ... alone, or *name for axes with a name")
        return _ANY_AXES
    flags: set[str] = set()
    rest = token
    while rest:
        flag = _PREFIXES.get(rest[0])
        if flag is not None:
            if flag in flags:
                raise _token_error(token, f"has {rest[0]} twice")
            flags.add(flag)
            rest = rest[1:]
        elif rest.count("=") == 1:
            rest = rest.partition("=")[2]
        else:
            break
    broadcast, variadic = "broadcast" in flags, "variadic" in flags
    if not rest or rest.isidentifier():
        if "anonymous" not in flags:
            return Dim(DimKind.NAMED, rest, broadcast=broadcast, variadic=variadic, tree="tree" in flags)
        if broadcast:
            raise _token_error(token, "is anonymous and broadcastable: write _ or #name")
        return Dim(DimKind.ANONYMOUS, variadic=variadic)
    try:
        fixed: int | None = int(rest)
    except ValueError:
        fixed = None
    for flag in ("variadic", "anonymous", "tree"):
        if flag in flags:
            what = "an expression" if fixed is None else "a fixed size"
            raise _token_error(token, f"is {what}, which cannot be {flag}")
    if fixed is not None:
        return Dim(DimKind.FIXED, rest, size=fixed, broadcast=broadcast)
    names, function = _compile_axis(token, rest)
    return Dim(DimKind.SYMBOLIC, rest, broadcast=broadcast, names=names, function=function)


_SIMPLE = (
    ast.Expression, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Constant, ast.Call, ast.Name,
    ast.Load, ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.Tuple,
)  # fmt: skip


def _compile_axis(token: str, text: str) -> tuple[tuple[str, ...] | None, Callable[..., Any] | None]:
    """An expression over axes as a function of their names; (None, None) if it needs the call's arguments."""
    if any(c in text for c in "{}'\\"):  # an f-string over the arguments first: only the call can tell
        return None, None
    try:
        tree = ast.parse(text, mode="eval")
    except SyntaxError as error:
        raise _token_error(token, f"is no Python expression ({error.msg})") from error
    if not all(isinstance(node, _SIMPLE) for node in ast.walk(tree)):
        return None, None
    names = tuple(dict.fromkeys(n.id for n in ast.walk(tree) if isinstance(n, ast.Name)))
    return names, eval(f"lambda {', '.join(names)}: {text}", {"__builtins__": {}})


def parse_dims(dim_str: str) -> tuple[Dim, ...]:
    """All axes of a `dim_str`; at most one of them stands for any number of axes."""
    dims = tuple(parse_dim(token) for token in dim_str.split())
    if sum(dim.variadic for dim in dims) > 1:
        raise _token_error(dim_str.strip(), "has more than one of ... and *name")
    return dims


def axis_argument(name: str, axes: dict[str, int]) -> Any:
    """What a name in an axis expression stands for: an axis bound so far, else a Python builtin."""
    if name in axes:
        return axes[name]
    if hasattr(builtins, name):
        return getattr(builtins, name)
    raise NameError(name)


# ---------------------------------------------------------------- specs


@dataclass(slots=True, eq=False, repr=False)
class TensorSpec:
    """An array: its type, its dtypes (None is any), its axes."""

    hint: str
    array_type: Any
    names: tuple[str | re.Pattern[str], ...] | None
    dtypes: frozenset[torch.dtype] | None
    dims: tuple[Dim, ...]
    variadic: int | None

    @property
    def concrete(self) -> torch.dtype | None:
        """The one dtype that the annotation allows, if it is one."""
        return next(iter(self.dtypes)) if self.dtypes is not None and len(self.dtypes) == 1 else None

    @property
    def torch_only(self) -> bool:
        return isinstance(self.array_type, type) and issubclass(self.array_type, torch.Tensor)


@dataclass(slots=True, eq=False, repr=False)
class UnionSpec:
    hint: str
    options: tuple["Spec", ...]


@dataclass(slots=True, eq=False, repr=False)
class NoneSpec:
    hint: str = "None"


@dataclass(slots=True, eq=False, repr=False)
class SequenceSpec:
    """`list[X]`, `Sequence[X]`, `tuple[X, ...]`: every element is checked."""

    hint: str
    origin: type
    item: "Spec"


@dataclass(slots=True, eq=False, repr=False)
class TupleSpec:
    hint: str
    items: tuple["Spec | None", ...]
    hints: tuple[Any, ...] = ()  # of the items


@dataclass(slots=True, eq=False, repr=False)
class MappingSpec:
    hint: str
    origin: type
    value: "Spec"
    key: Any = str  # the hint, which is not checked


@dataclass(slots=True, eq=False, repr=False)
class FieldsSpec:
    """NamedTuple, dataclass or TypedDict (`origin` is dict then); a field may hold its own kind."""

    hint: str
    origin: type
    fields: dict[str, "Spec"]
    required: frozenset[str] = frozenset()  # keys that a TypedDict must have
    others: dict[str, "Spec"] = dataclasses.field(default_factory=dict)  # without tensors: not checked


@dataclass(slots=True, eq=False, repr=False)
class OtherSpec:
    """A hint without tensors, which is beartype's."""

    hint: str
    annotation: Any

    @property
    def classes(self) -> tuple[type, ...] | None:
        """The classes for `isinstance`, where the hint is a plain class; int is a float to PEP 484."""
        tower = {float: (float, int), complex: (complex, float, int)}
        plain = type(self.annotation) is type and not typing_extensions.is_typeddict(self.annotation)
        return tower.get(self.annotation, (self.annotation,)) if plain else None


Spec = TensorSpec | UnionSpec | NoneSpec | SequenceSpec | TupleSpec | MappingSpec | FieldsSpec | OtherSpec
_UNIONS = (Union, types.UnionType)
_WRAPPERS = (typing.Annotated, typing.Final, ClassVar, *(
    getattr(typing_extensions, name) for name in ("Required", "NotRequired", "ReadOnly")
))  # fmt: skip
_SEQUENCES = (list, collections.abc.Sequence, collections.abc.MutableSequence, collections.abc.Collection,
              collections.abc.Iterable)  # fmt: skip
_MAPPINGS = (collections.abc.Mapping, collections.abc.MutableMapping)
_ALIASES = (typing_extensions.TypeAliasType, getattr(typing, "TypeAliasType", typing_extensions.TypeAliasType))


def show(hint: Any) -> str:
    """A hint as its author wrote it, near enough: `Float[Tensor, "b c"]`, `int | None`."""
    if isinstance(hint, type) and issubclass(hint, AbstractArray):
        array = getattr(hint.array_type, "__name__", None) or str(hint.array_type)
        return f'{hint.dtype.__name__}[{array}, "{hint.dim_str}"]'
    if hint is type(None):
        return "None"
    args, origin = get_args(hint), get_origin(hint)
    if origin in _UNIONS:
        return " | ".join(show(arg) for arg in args)
    if args and not isinstance(origin, type):  # Literal["a", "b"]
        return str(hint).replace("typing.", "").replace("typing_extensions.", "")
    if args:
        inner = ", ".join("..." if arg is Ellipsis else show(arg) for arg in args)
        return f"{getattr(origin, '__name__', origin)}[{inner}]"
    return getattr(hint, "__name__", None) or str(hint).replace("typing.", "")


@functools.lru_cache(4096)
def _tensor_spec(array_type: Any, names: Any, dim_str: str, hint: str) -> TensorSpec:
    dims = parse_dims(dim_str)
    variadic = next((i for i, dim in enumerate(dims) if dim.variadic), None)
    return TensorSpec(hint, array_type, names, dtypes_named(names), dims, variadic)


_Open = dict[Any, FieldsSpec]  # classes whose fields are being read: a recursive class meets itself here
_Names = dict[str, Any]  # what forward references may mean besides the names of their own module


def spec_of(hint: Any, local: _Names | None = None, _open: _Open | None = None) -> Spec | None:
    """The spec of a resolved hint, or None where nothing is to be checked.

    Raises:
        AnnotationError: a jaxtyping annotation inside is malformed.
    """
    if hint is Any or hint is object:
        return None
    if hint is None or hint is type(None):
        return NoneSpec()
    if isinstance(hint, type) and issubclass(hint, AbstractArray):
        names = tuple(hint.dtypes) if isinstance(hint.dtypes, tuple | list) else None
        return _tensor_spec(hint.array_type, names, hint.dim_str, show(hint))
    if isinstance(hint, type) and issubclass(hint, torch.Tensor):
        return _tensor_spec(hint, None, "...", hint.__name__)
    if type(hint) is type(torch.LongTensor):  # the classes of torch.Tensor.type(): a dtype, on any device
        return _tensor_spec(torch.Tensor, (str(hint.dtype).rsplit(".", 1)[-1],), "...", hint.__name__)
    if isinstance(hint, torch.dtype | Tensor) or (isinstance(hint, type) and issubclass(hint, AbstractDtype)):
        raise AnnotationError(_no_annotation(hint))
    meant = _meaning(hint)
    if meant is not hint:
        return spec_of(meant, local, _open)
    return _container_spec(hint, get_origin(hint), get_args(hint), local or {}, _open or {})


def _no_annotation(hint: Any) -> str:
    """What somebody wrote who forgot the brackets, or gave a dtype or a value for a hint."""
    if isinstance(hint, Tensor):
        return "a tensor is no annotation; the value comes first, the annotation second"
    name = family = hint.__name__ if isinstance(hint, type) else str(hint)
    if isinstance(hint, torch.dtype):
        family = name.removeprefix("torch.").replace("bfloat", "BFloat").replace("uint", "UInt")
        family = family[0].upper() + family[1:]
        family = family if hasattr(jaxtyping, family) else "Shaped"
    return f'`{name}` alone is no annotation: write {family}[Tensor, "..."]'


def _meaning(hint: Any) -> Any:
    """What stands behind a type variable, an alias, a new type or a wrapper; the hint itself for all else."""
    origin = get_origin(hint)
    if isinstance(hint, typing.TypeVar):
        bounds = hint.__constraints__ or (hint.__bound__,)
        return Union[bounds] if bounds != (None,) else Any  # noqa: UP007  (a tuple of them)
    if isinstance(hint, typing.NewType):
        return hint.__supertype__
    if isinstance(hint, dataclasses.InitVar):
        return hint.type
    if isinstance(hint, _ALIASES):
        return hint.__value__
    if origin is not None and isinstance(origin, _ALIASES):
        return origin.__value__[get_args(hint)]
    return get_args(hint)[0] if origin in _WRAPPERS or hasattr(hint, "__metadata__") else hint


def _is_ours(spec: Spec | None) -> TypeGuard[Spec]:
    """Whether a spec asks more than beartype could answer."""
    return spec is not None and not isinstance(spec, OtherSpec | NoneSpec)


def _container_spec(hint: Any, origin: Any, args: tuple[Any, ...], local: _Names, _open: _Open) -> Spec | None:
    text = show(hint)
    specs = tuple(None if arg is Ellipsis else spec_of(arg, local, _open) for arg in args)
    holds = any(_is_ours(spec) for spec in specs)
    if origin in _UNIONS:
        known = tuple(spec for spec in specs if spec is not None)
        if len(known) < len(specs):
            return None
        return UnionSpec(text, known) if holds else OtherSpec(text, hint)
    if holds and origin is tuple:
        if len(args) == 2 and args[1] is Ellipsis and specs[0] is not None:
            return SequenceSpec(text, tuple, specs[0])
        return TupleSpec(text, specs, args)
    if holds and isinstance(origin, type) and specs[-1] is not None:
        if origin in _SEQUENCES:
            return SequenceSpec(text, origin, specs[-1])
        if origin in _MAPPINGS or issubclass(origin, dict):
            return MappingSpec(text, origin, specs[-1], args[0])
    cls = origin if isinstance(origin, type) else hint
    return _fields_spec(text, cls, local, _open) or (None if holds else OtherSpec(text, hint))


def _fields_spec(text: str, cls: Any, local: _Names, _open: _Open) -> FieldsSpec | None:
    """The spec of a NamedTuple, dataclass or TypedDict; None if its fields hold no tensors."""
    if isinstance(cls, type) and cls in _open:
        return _open[cls]
    typed = typing_extensions.is_typeddict(cls)
    named = isinstance(cls, type) and issubclass(cls, tuple) and hasattr(cls, "_fields")
    if not (typed or named or (isinstance(cls, type) and dataclasses.is_dataclass(cls))):
        return None
    spec = FieldsSpec(text, dict if typed else cls, {}, getattr(cls, "__required_keys__", frozenset()))
    shared: Any = ClassVar
    for name, hint in hints_of_class(cls, local).items():
        field = spec_of(hint, local, {**_open, cls: spec}) if get_origin(hint) is not shared else None
        if _is_ours(field):
            spec.fields[name] = field
        elif get_origin(hint) is not shared:
            spec.others[name] = field or OtherSpec(show(hint), hint)
    return spec if any(holds_tensor(field, spec) for field in spec.fields.values()) else None


def holds_tensor(spec: Spec | None, *seen: Spec) -> bool:
    """Whether a tensor is somewhere in a spec; `seen` are the specs around it, which a recursive class meets again."""
    if isinstance(spec, TensorSpec):
        return True
    if spec is None or any(spec is outer for outer in seen):
        return False
    return any(holds_tensor(part, spec, *seen) for part in parts(spec))


_PARTS = {UnionSpec: "options", TupleSpec: "items", SequenceSpec: "item", MappingSpec: "value", FieldsSpec: "fields"}


def parts(spec: Spec) -> tuple[Spec | None, ...]:
    """The specs of what a spec's value holds, in the order in which they are checked."""
    held: Any = getattr(spec, _PARTS[type(spec)]) if type(spec) in _PARTS else ()
    return tuple(held.values()) if isinstance(held, dict) else held if isinstance(held, tuple) else (held,)


def hints_of_class(cls: Any, local: _Names) -> dict[str, Any]:
    """The hints of a class' fields, each read in the module of the class that wrote it.

    Raises:
        NameError: a forward reference means nothing there.
    """
    hints: dict[str, Any] = {}
    for base in reversed(getattr(cls, "__mro__", (cls,))):
        module = sys.modules.get(base.__module__)
        scope = {**vars(base), **local, base.__name__: base}
        for name, annotation in annotations_of(base).items() if base is not object else ():
            try:
                hints[name] = resolve_hint(annotation, vars(module) if module else {}, scope)
            except AnnotationError as error:
                error.argument = name
                raise
    return hints


# ---------------------------------------------------------------- hints of a function


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
        raise _malformed(annotation, error) from error


def _malformed(annotation: Any, error: Exception) -> AnnotationError:
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
    return typing_extensions.get_annotations(fn, format=typing_extensions.Format.FORWARDREF)


def is_array_hint(annotation: Any) -> bool:
    """Whether a hint, or any part of it, is a jaxtyping annotation."""
    if isinstance(annotation, type) and issubclass(annotation, AbstractArray):
        return True
    return any(is_array_hint(arg) for arg in get_args(annotation))
