"""Annotations, read once: a hint becomes a small tree of specs."""

import collections
import dataclasses
import functools
import inspect
import re
import sys
import types
import typing
from collections import abc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, TypeGuard, Union, get_args, get_origin

import jaxtyping
import torch
import typing_extensions
from jaxtyping import AbstractArray, AbstractDtype
from torch import Tensor

from ..base.dtypes import dtypes_named
from ..base.errors import AnnotationError
from .dims import Dim, parse_dims
from .hints import (
    ALIASES,
    UNIONS,
    Names,
    bases,
    by_name,
    fill_in,
    hints_of_class,
    is_array_hint,
    resolve_hint,
    show,
    unpacked,
)


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
class CollectionSpec:
    """`list[X]`, `Iterable[X]`, `tuple[X, ...]`, `set[X]`: every item is checked of what looking does not use up."""

    hint: str
    origin: Any
    item: "Spec"


@dataclass(slots=True, eq=False, repr=False)
class TupleSpec:
    hint: str
    items: tuple["Spec | None", ...]
    hints: tuple[Any, ...] = ()  # of the items
    origin: Any = tuple


@dataclass(slots=True, eq=False, repr=False)
class MappingSpec:
    hint: str
    origin: Any
    key: "Spec | None"
    value: "Spec | None"


@dataclass(slots=True, eq=False, repr=False)
class FieldsSpec:
    """NamedTuple, dataclass or TypedDict (`origin` is dict then); a field may hold its own kind."""

    hint: str
    origin: type
    fields: dict[str, "Spec"]
    required: frozenset[str] = frozenset()  # keys that a TypedDict must have
    others: dict[str, "Spec"] = dataclasses.field(default_factory=dict)  # without tensors: not checked


@dataclass(slots=True, eq=False, repr=False)
class UnpackedSpec:
    """`*args: *tuple[X, Y]` and `**kwargs: Unpack[D]`: a spec of all that the parameter got together."""

    hint: str
    whole: "Spec"


@dataclass(slots=True, eq=False, repr=False)
class ValidatedSpec:
    """`Annotated[X, Is[...]]`: a spec, and the validators of beartype that must hold as well."""

    hint: str
    spec: "Spec"
    validators: "OtherSpec"


@dataclass(slots=True, eq=False, repr=False)
class SelfSpec:
    """An instance of the class that the method was written in, whatever made a subclass of it meanwhile."""

    hint: str = "Self"


@dataclass(slots=True, eq=False, repr=False)
class OtherSpec:
    """A hint without tensors, which beartype checks; or one whose tensors cannot be reached: the class is checked."""

    hint: str
    annotation: Any
    alone: Any = None  # the class, where nothing else of the annotation can be checked
    sampled: bool | None = None  # whether beartype may look at a random item only; not known before the first check

    @property
    def classes(self) -> tuple[type, ...] | None:
        """The classes for `isinstance`, if they are the whole check; PEP 484 takes an int for a float."""
        if self.annotation is typing.Never or self.annotation is typing.NoReturn:
            return ()
        if self.alone is not None:
            return (self.alone,)
        tower = {float: (float, int), complex: (complex, float, int)}
        plain = type(self.annotation) is type and not typing_extensions.is_typeddict(self.annotation)
        return tower.get(self.annotation, (self.annotation,)) if plain else None


Spec = (
    TensorSpec | UnionSpec | NoneSpec | CollectionSpec | TupleSpec | MappingSpec | FieldsSpec | UnpackedSpec
    | ValidatedSpec | SelfSpec | OtherSpec
)  # fmt: skip
_WRAPPERS = (typing.Final, ClassVar, *(
    getattr(typing_extensions, name) for name in ("Required", "NotRequired", "ReadOnly")
))  # fmt: skip
_CONCRETE = (list, tuple, dict, set, frozenset, collections.deque, collections.UserDict, collections.UserList)
_COLLECTIONS = frozenset((
    list, set, frozenset, collections.deque, collections.UserList, abc.Sequence, abc.MutableSequence, abc.Collection,
    abc.Iterable, abc.Reversible, abc.Container, abc.Set, abc.MutableSet, abc.KeysView, abc.ValuesView,
))  # fmt: skip
_MAPPINGS = frozenset((
    dict, collections.OrderedDict, collections.defaultdict, collections.ChainMap, collections.UserDict,
    types.MappingProxyType, abc.Mapping, abc.MutableMapping,
))  # fmt: skip
# What is no hint, though it may stand in a `Literal`, or in a generic of the user's own.
_VALUES: Any = int | float | complex | bytes | list | tuple | dict | set | frozenset
_PARAMETERS = (typing.TypeVarTuple, typing.ParamSpec, typing.ParamSpecArgs, typing.ParamSpecKwargs)
_DEEPEST = 8  # of one generic in itself with other parameters, above which it surely grows at each step


@functools.lru_cache(4096)
def _tensor_spec(array_type: Any, names: Any, dim_str: str, hint: str) -> TensorSpec:
    dims = parse_dims(dim_str)
    variadic = next((i for i, dim in enumerate(dims) if dim.variadic), None)
    return TensorSpec(hint, array_type, names, dtypes_named(names), dims, variadic)


_Open = dict[Any, Any]  # the specs of classes and aliases that are being read: a recursive one meets itself here


def spec_of(hint: Any, local: Names | None = None, _open: _Open | None = None) -> Spec | None:
    """The spec of a resolved hint, or None where nothing is to be checked.

    Raises:
        AnnotationError: a jaxtyping annotation inside is malformed, or cannot be checked.
    """
    if hint is Any or hint is object or hint is inspect.Parameter.empty or isinstance(hint, _PARAMETERS):
        return None
    if hint is None or hint is type(None):
        return NoneSpec()
    if hint is typing.Self:
        return SelfSpec()
    if isinstance(hint, type) and issubclass(hint, AbstractArray):
        names = tuple(hint.dtypes) if isinstance(hint.dtypes, tuple | list) else None
        return _tensor_spec(hint.array_type, names, hint.dim_str, show(hint))
    if isinstance(hint, type) and issubclass(hint, torch.Tensor):
        return _tensor_spec(hint, None, "...", hint.__name__)
    if type(hint) is type(torch.LongTensor):  # the classes of torch.Tensor.type(): a dtype, on any device
        return _tensor_spec(torch.Tensor, (str(hint.dtype).rsplit(".", 1)[-1],), "...", hint.__name__)
    if isinstance(hint, torch.dtype | Tensor | _VALUES) or (isinstance(hint, type) and issubclass(hint, AbstractDtype)):
        raise AnnotationError(no_annotation(hint))
    meant = _meaning(hint)
    if meant is not hint:
        return spec_of(meant, local, _open)
    origin = get_origin(hint)
    if origin is not None and sum(get_origin(outer) is origin for outer in _open or ()) > _DEEPEST:
        raise AnnotationError(f"`{origin.__name__}` grows without end: each one holds another of more parameters")
    read = next((read for what, read in _READERS if what(hint)), _container_spec)
    return read(hint, local or {}, _open or {})


def no_annotation(hint: Any) -> str:
    """The message for a family without brackets, and for a dtype, a tensor or another value in place of a hint."""
    if isinstance(hint, Tensor):
        return "a tensor is no annotation; the value comes first, the annotation second"
    if isinstance(hint, _VALUES):
        items = ", ".join(map(show, hint)) if isinstance(hint, list | tuple | set) else "..."
        plain = not items or isinstance(hint, bytes) or not isinstance(hint, abc.Collection)
        meant = 'Float32[Tensor, "..."]' if plain else f"{type(hint).__name__}[{items}]"
        return f"`{show(hint)}` is no annotation: write {meant}"
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
    return get_args(hint)[0] if origin in _WRAPPERS else hint


def _is_ours(spec: Spec | None) -> TypeGuard[Spec]:
    """Whether a spec asks what beartype could not answer."""
    return spec is not None and not isinstance(spec, NoneSpec) and getattr(spec, "alone", spec) is not None


def _annotated_spec(hint: Any, local: Names, _open: _Open) -> Spec | None:
    """`Annotated`: of the notes those count that beartype has for checks."""
    inner = spec_of(get_args(hint)[0], local, _open)
    notes = tuple(note for note in hint.__metadata__ if type(note).__module__.startswith("beartype.vale"))
    if not notes:
        return inner
    if not _is_ours(inner):
        return OtherSpec(show(hint), hint)
    return ValidatedSpec(show(hint), inner, OtherSpec(show(hint), typing.Annotated[(object, *notes)]))


def _unpacked_spec(hint: Any, local: Names, _open: _Open) -> Spec | None:
    whole = spec_of(unpacked(hint), local, _open)
    return None if whole is None else UnpackedSpec(show(hint), whole)


def _pytree_spec(hint: Any, local: Names, _open: _Open) -> Spec | None:
    leaf, structure = getattr(hint, "leaftype", Any), getattr(hint, "structure", None)
    inner = spec_of(leaf, local, _open)
    if structure is None and not _is_ours(inner):
        return None if leaf is Any else OtherSpec(show(hint), hint)
    shape, what = "", "the axes in it are"
    if structure is not None:
        shape, what = f", {structure!r}", f"the structure {structure!r} is"
    raise AnnotationError(
        f"`PyTree[{show(leaf)}{shape}]` is not supported: {what} never bound; name the containers, "
        "list[...], dict[str, ...] or a dataclass, or an alias of them that names itself"
    )


def _union_spec(hint: Any, local: Names, _open: _Open) -> Spec | None:
    specs: Any = tuple(spec_of(arg, local, _open) for arg in get_args(hint))
    known = tuple(spec for spec in specs if spec is not None)
    if len(known) < len(specs):
        return None
    return UnionSpec(show(hint), known) if any(map(_is_ours, specs)) else OtherSpec(show(hint), hint)


def _alias_spec(hint: Any, local: Names, _open: _Open) -> Spec | None:
    """The spec of what a `type` alias stands for, which may name the alias itself."""
    if hint in _open:
        return typing.cast(Spec, _open[hint])
    alias = get_origin(hint) or hint
    module = sys.modules.get(alias.__module__)
    scope = {**local, **by_name(alias.__type_params__), alias.__name__: alias}
    value = resolve_hint(alias.__value__, vars(module) if module else {}, scope)
    made = UnionSpec(show(hint), ())
    meant = dict(zip(alias.__type_params__, get_args(hint), strict=False))
    spec = spec_of(fill_in(value, meant), local, {**_open, hint: made})
    if all(part is not made for part in walk(spec)):
        return spec
    made.options = spec.options if isinstance(spec, UnionSpec) else (spec,) if spec is not None else ()
    options = [*made.options]
    for option in options:
        if option is made:
            raise AnnotationError(f"the alias `{made.hint}` stands for itself")
        options += option.options if isinstance(option, UnionSpec) else ()
    return made


def _container_spec(hint: Any, local: Names, _open: _Open) -> Spec | None:
    """A class, or a generic: what it holds, as far as that can be looked at; else the class alone."""
    text, origin = show(hint), get_origin(hint)
    cls = origin if isinstance(origin, type) else hint
    spec: Spec | None = _fields_spec(hint, cls, local, _open)
    for base in bases(hint) if spec is None and isinstance(cls, type) else ():
        # What a class of the user's own does when it is looked at is known only of those made of a built-in one.
        if spec is None and (base is hint or get_origin(base) in _CONCRETE):
            spec = _items_spec(text, cls, get_origin(base), get_args(base), local, _open)
    if spec is not None:
        return spec
    args = [part for arg in get_args(hint) for part in (arg if isinstance(arg, list | tuple) else [arg])]
    hints = (arg for arg in args if arg is not Ellipsis and not isinstance(arg, _VALUES))
    holds = any(_is_ours(spec_of(arg, local, _open)) for arg in hints)
    if not holds or (origin is type and not is_array_hint(hint)):  # beartype knows what a type[Tensor] is
        return OtherSpec(text, hint)
    if getattr(cls, "_is_protocol", False) and not getattr(cls, "_is_runtime_protocol", False):
        twin = typing_extensions.runtime_checkable(types.new_class(cls.__name__, (cls, typing_extensions.Protocol)))
        cls = _Structure(cls.__name__, (), {"twin": twin})
    return OtherSpec(text, hint, cls if isinstance(cls, type) else object)


class _Structure(type):
    """A Protocol that is not made `runtime_checkable`; what looks its attributes up by itself may have them all."""

    twin: type

    def __instancecheck__(cls, value: Any) -> bool:
        return hasattr(type(value), "__getattr__") or isinstance(value, cls.twin)


def _items_spec(text: str, cls: type, origin: Any, args: Any, local: Names, _open: _Open) -> Spec | None:
    """The spec of a collection, a mapping or a tuple; None for what is none, or holds no tensors."""
    if origin is abc.ItemsView:
        origin, args = abc.Collection, (tuple[args],)
    elif origin is tuple and len(args) == 2 and args[1] is Ellipsis:
        origin, args = list, args[:1]  # of any length
    elif origin is tuple:
        args = _unpack_items(args)
    if origin is not tuple and origin not in _COLLECTIONS and origin not in _MAPPINGS:
        return None
    specs: Any = tuple(spec_of(arg, local, _open) for arg in args if arg is not Ellipsis)
    if not any(map(_is_ours, specs)) or len(specs) < len(args):
        return None
    if origin is tuple:
        return TupleSpec(text, specs, args, cls)
    return MappingSpec(text, cls, *specs) if origin in _MAPPINGS else CollectionSpec(text, cls, *specs)


def _unpack_items(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The items of a tuple with those of the tuples that are unpacked in it; `...` for any number of them."""
    flat: list[Any] = []
    for arg in args:
        inner = unpacked(arg)
        flat += [arg] if inner is None else _unpack_items(get_args(inner)) if get_origin(inner) is tuple else [Ellipsis]
    return tuple(flat)


def _fields_spec(hint: Any, cls: Any, local: Names, _open: _Open) -> FieldsSpec | None:
    """The spec of a NamedTuple, dataclass or TypedDict; None if its fields hold no tensors."""
    typed = typing_extensions.is_typeddict(cls)
    named = isinstance(cls, type) and issubclass(cls, tuple) and hasattr(cls, "_fields")
    if not (typed or named or (isinstance(cls, type) and dataclasses.is_dataclass(cls))):
        return None
    if hint in _open:
        return typing.cast(FieldsSpec, _open[hint])
    spec = FieldsSpec(show(hint), dict if typed else cls, {}, getattr(cls, "__required_keys__", frozenset()))
    shared: Any = ClassVar
    for name, own in hints_of_class(hint, local).items():
        field = spec_of(own, local, {**_open, hint: spec}) if get_origin(own) is not shared else None
        if _is_ours(field):
            spec.fields[name] = field
        elif get_origin(own) is not shared:
            spec.others[name] = field or OtherSpec(show(own), own)
        if get_origin(own) in (typing.Required, typing.NotRequired):  # which a string hid from the class
            spec.required = spec.required - {name} | ({name} if get_origin(own) is typing.Required else set())
    return spec if any(holds_tensor(field) for field in spec.fields.values()) else None


def holds_tensor(spec: Spec | None) -> bool:
    return any(isinstance(part, TensorSpec) for part in walk(spec))


def walk(spec: Spec | None, seen: tuple[Spec, ...] = ()) -> Iterator[Spec]:
    """A spec and all in it; `seen` are the specs around it, which a recursive class meets again."""
    if spec is not None and all(spec is not outer for outer in seen):
        yield spec
        for part in parts(spec):
            yield from walk(part, (*seen, spec))


_PARTS: dict[type, Callable[[Any], Any]] = {
    UnionSpec: lambda spec: spec.options,
    TupleSpec: lambda spec: spec.items,
    CollectionSpec: lambda spec: (spec.item,),
    MappingSpec: lambda spec: (spec.key, spec.value),
    FieldsSpec: lambda spec: tuple(spec.fields.values()),
    UnpackedSpec: lambda spec: (spec.whole,),
    ValidatedSpec: lambda spec: (spec.spec,),
}


def parts(spec: Spec) -> tuple[Spec | None, ...]:
    """The specs of what a spec's value holds, in the order in which they are checked."""
    held: tuple[Spec | None, ...] = _PARTS[type(spec)](spec) if type(spec) in _PARTS else ()
    return held


# What a hint is, and what reads it; all else is a class or a generic.
_READERS: tuple[tuple[Callable[[Any], bool], Callable[[Any, Names, _Open], Spec | None]], ...] = (
    (lambda hint: get_origin(hint) in UNIONS, _union_spec),
    (lambda hint: get_origin(hint) is typing.Annotated, _annotated_spec),
    (lambda hint: isinstance(hint, ALIASES) or isinstance(get_origin(hint), ALIASES), _alias_spec),
    (lambda hint: unpacked(hint) is not None, _unpacked_spec),
    (lambda hint: type(hint).__name__ == "_MetaPyTree", _pytree_spec),  # jaxtyping has it only where jax is
)
