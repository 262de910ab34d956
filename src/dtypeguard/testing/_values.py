"""Values for specs: one function for each kind of spec, as the checker has one to check it."""

import contextlib
import functools
import inspect
import math
from collections import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import torch
from hypothesis import strategies as st
from hypothesis.errors import HypothesisException
from torch import Tensor, nn

from .._core.base.config import mode
from .._core.base.dtypes import TABLE, Kind
from .._core.base.errors import AnnotationError, DtypeGuardError
from .._core.base.patches import here
from .._core.contract.anchor import LAZY, Anchor
from .._core.contract.beartyped import bearable
from .._core.contract.hints import is_array_hint, show
from .._core.contract.spec import (
    CollectionSpec,
    FieldsSpec,
    MappingSpec,
    NoneSpec,
    OtherSpec,
    SelfSpec,
    Spec,
    TensorSpec,
    TupleSpec,
    UnionSpec,
    UnpackedSpec,
    ValidatedSpec,
    parts,
)
from ._elements import allocatable, converted, elements, tensor_of, usual
from ._layouts import LAYOUTS, layout_of
from ._sizes import SIZE, Draw, Sizes, Unfit, chosen, each

_EMPTY = inspect.Parameter.empty
_SEVERAL = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_SMALL, _COUNT, _FLIP = st.integers(0, 3), st.integers(1, 3), st.booleans()
_ANYTHING = st.none() | st.booleans() | st.integers() | st.text(max_size=3)
_DEEP = 4  # containers in each other, after which the smallest option is taken
_LARGE = 1 << 16  # elements, above which one is seen many times
NUMPY = frozenset(
    "bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 float16 float32 float64 complex64 complex128".split()
)


@dataclass(frozen=True)
class Options:
    """What was asked of the tensors; None is "anything that fits"."""

    device: Any = None
    layout: Any = None
    requires_grad: Any = None
    dtypes: frozenset[torch.dtype] | None = None
    elements: Any = None
    finite: bool = False


@dataclass
class Maker:
    """Draws values that keep specs, and each other's axes."""

    draw: Draw
    sizes: Sizes
    options: Options
    anchor: Anchor | None = None
    depth: int = 0

    def value(self, spec: Spec | None) -> Any:
        """A value that keeps a spec; Unfit is raised where with the sizes drawn there is none."""
        self.depth += 1
        try:
            return self.draw(_ANYTHING) if spec is None else _MAKERS[type(spec)](self, spec)
        finally:
            self.depth -= 1

    @property
    def deep(self) -> bool:
        return self.depth > _DEEP

    def made(self, spec: FieldsSpec, values: dict[str, Any]) -> Any:
        """An object that its own constructor makes of values of its fields."""
        try:
            with mode("strict"):  # an enforced class repairs nothing meanwhile
                return spec.origin(**values)
        except DtypeGuardError:  # of an enforced class
            raise Unfit from None

    def wants(self, spec: Spec | None) -> bool:
        """Whether a value must have something of this spec in it."""
        return False

    def count(self, spec: Spec | None) -> int:
        """How many elements a sequence or mapping gets."""
        return 0 if self.deep and not self.wants(spec) else int(self.draw(_COUNT if self.wants(spec) else _SMALL))


# ---------------------------------------------------------------- arrays


def dtypes_for(spec: TensorSpec, options: Options, anchor: Anchor | None = None) -> tuple[torch.dtype, ...]:
    """The dtypes that a value may have, the simplest first."""
    _check_array_type(spec)
    known = [d for d in allocatable() if spec.dtypes is None or d in spec.dtypes]
    if is_numpy(spec.array_type):
        known = [d for d in known if TABLE[d].name in NUMPY]
    elif options.elements is not None:  # what no number can be written to
        known = [d for d in known if TABLE[d].kind is not Kind.STORAGE or d.is_floating_point] or known
    if not known:
        names = ", ".join(map(str, spec.names or ())) or "any"
        library = "NumPy" if is_numpy(spec.array_type) else f"torch {torch.__version__}"
        raise AnnotationError(f"no value of {spec.hint} is made: {library} has no dtype called {names}")
    asked = options.dtypes
    if asked is not None and all(d.is_floating_point for d in asked) and not any(d.is_floating_point for d in known):
        asked = None  # dtypes of floats are not those of ids
    fit = [d for d in known if asked is None or d in asked]
    if anchor is not None and anchor.dtype is not None and spec.concrete is None and anchor.dtype in known:
        fit = [d for d in fit if not d.is_floating_point or d is anchor.dtype or d in anchor.accepts]
    if not fit:
        raise AnnotationError(f"no value of {spec.hint} is made: none of its dtypes is among those in dtype=")
    return tuple(fit)


@functools.lru_cache(4096)
def weighed(dtypes: tuple[torch.dtype, ...]) -> st.SearchStrategy[torch.dtype]:
    """One of these dtypes; what only stores is rarer than what programs compute in."""
    plain = [d for d in dtypes if TABLE[d].kind is not Kind.STORAGE]
    if not plain or len(plain) == len(dtypes):
        return st.sampled_from(dtypes)
    return st.integers(0, 3).flatmap(lambda n: st.sampled_from(dtypes if n == 3 else plain))


def _is_parameter(array_type: Any) -> bool:
    return isinstance(array_type, type) and issubclass(array_type, nn.Parameter)


def is_numpy(array_type: Any) -> bool:
    return (getattr(array_type, "__module__", ""), getattr(array_type, "__name__", "")) == ("numpy", "ndarray")


def _tensor(maker: Maker, spec: TensorSpec) -> Any:
    dtype = maker.draw(weighed(dtypes_for(spec, maker.options, maker.anchor)))
    return array_of(maker, spec, dtype, maker.sizes.shape(spec, maker.draw))


def _judged() -> bool:
    """Whether an audit looks at values: what it finds of extreme ones says nothing of the program."""
    audits = (getattr(listener, "audit", None) for listener in here.listeners)
    return any(audit is not None and audit.values is not None for audit in audits)


def array_of(maker: Maker, spec: TensorSpec, dtype: torch.dtype, shape: tuple[int, ...]) -> Any:
    """An array of the type that a spec wants, in a dtype and shape that need not be what it wants."""
    draw, options = maker.draw, maker.options
    element = elements(dtype, options.finite)
    if options.elements is not None:
        element = converted(options.elements, dtype, options.finite)
    elif _judged():
        element = usual(dtype)
    count = math.prod(shape)
    asked, fill = chosen(options.layout, draw), draw(element)
    # Drawn where there is no room for them too, or an empty tensor would take fewer draws, and count as simpler.
    others = draw(st.lists(st.tuples(st.integers(0, max(count, 1) - 1), element), max_size=4))
    lay: Callable[[Tensor], Tensor] = _expanded
    if asked is None and count >= _LARGE:  # one element, seen as often as there are
        tensor = tensor_of(dtype, (), fill).expand(shape)
    else:
        lay = layout_of(draw(WRITABLE if _is_parameter(spec.array_type) else _LAYOUT) if asked is None else asked)
        tensor = tensor_of(dtype, shape, fill, others if count else (), lay)
    if is_numpy(spec.array_type):
        return tensor.numpy()
    device = chosen(options.device, draw)
    if device is None:
        device = torch.empty(0).device if maker.anchor is None else maker.anchor.device
    if tensor.is_quantized and device is not None and torch.device(device).type == "meta":
        raise Unfit  # torch has no such tensors
    tensor = _moved(tensor, device, lay)
    kind = Tensor if spec.array_type is Any else spec.array_type
    return _typed(tensor, kind, chosen(options.requires_grad, draw))


_LAYOUT = st.sampled_from(tuple(LAYOUTS))
WRITABLE = st.sampled_from([name for name in LAYOUTS if name != "expanded"])  # each element has a place of its own


def _expanded(tensor: Tensor) -> Tensor:
    return tensor[(0,) * tensor.dim()].expand(tensor.shape)


def _moved(tensor: Tensor, device: Any, lay: Callable[[Tensor], Tensor]) -> Tensor:
    """On another device, in the same layout."""
    if device is None or (kind := torch.device(device).type) == "cpu":
        return tensor
    if tensor.is_quantized:
        return tensor.to(device)
    if kind == "meta":
        return lay(tensor.to(device))
    # As bytes: few kernels know dtypes of less than 8 bits.
    memory = tensor.untyped_storage().to(device=device)
    empty = torch.empty(0, dtype=tensor.dtype, device=device)
    return empty.set_(memory, tensor.storage_offset(), tensor.shape, tensor.stride())


def _typed(tensor: Tensor, array_type: Any, grad: bool | None) -> Any:
    able = tensor.is_floating_point() or tensor.is_complex()
    if _is_parameter(array_type):
        return array_type(tensor, requires_grad=able and grad is not False)
    if issubclass(array_type, nn.Buffer):
        tensor = nn.Buffer(tensor)
    elif array_type is not Tensor:
        tensor = tensor.as_subclass(array_type)
    return tensor.requires_grad_() if grad and able else tensor


def _check_array_type(spec: TensorSpec) -> None:
    """Refuse arrays of other libraries, and tensors that are wrappers of something."""
    kind = spec.array_type
    plain = isinstance(kind, type) and issubclass(kind, Tensor) and not issubclass(kind, LAZY)
    own, common = (getattr(one, "__torch_dispatch__", None) for one in (kind, Tensor))
    wraps = own is not common or hasattr(kind, "__tensor_flatten__")
    if kind is not Any and not is_numpy(kind) and (wraps or not plain):
        name = getattr(kind, "__name__", str(kind))
        told = f"it wants a {name}, and only plain tensors and ndarrays are"
        raise AnnotationError(f"no value of {spec.hint} is made: {told}")


def check_possible(spec: Spec | None, options: Options, *seen: Spec) -> None:
    """Refuse what no values are made for, before anything is drawn."""
    if isinstance(spec, TensorSpec):
        dtypes_for(spec, options)
    elif isinstance(spec, OtherSpec):
        resolved(spec.annotation, spec.hint)
    elif isinstance(spec, SelfSpec):
        resolved(Self, spec.hint)
    elif spec is not None and not any(spec is outer for outer in seen):
        if math.isinf(height(spec)):
            raise AnnotationError(f"no value of {spec.hint} is made: it would hold another one without end")
        inside = _all_parts(spec)
        for part in inside:
            if isinstance(part, OtherSpec) and is_array_hint(part.annotation):  # which nobody checks
                odd = f"arrays in {show(part.annotation)} would not agree with the others"
                raise AnnotationError(f"no value of {spec.hint} is made: {odd}; use list or tuple")
        each(spec, inside, lambda part: check_possible(part, options, *seen, spec))


def _all_parts(spec: Spec) -> tuple[Spec | None, ...]:
    """What a value is made of, what is not checked included."""
    if isinstance(spec, TupleSpec):
        return tuple(
            OtherSpec(spec.hint, hint) if item is None else item
            for item, hint in zip(spec.items, spec.hints, strict=True)
        )
    if not isinstance(spec, FieldsSpec):
        return parts(spec)
    known = {**spec.fields, **spec.others}
    return tuple(known.values() if spec.origin is dict else map(known.__getitem__, _arguments(spec)))


@functools.cache
def _arguments(spec: FieldsSpec) -> tuple[str, ...]:
    """The fields that a constructor gets; what has a default and no value that can be made is left out."""
    known = {**spec.fields, **spec.others}
    names = []
    for name, param in inspect.signature(spec.origin).parameters.items():
        if name in spec.fields or (name in spec.others and (param.default is _EMPTY or _can_resolve(known[name]))):
            names.append(name)
        elif param.default is _EMPTY and param.kind not in _SEVERAL:
            raise AnnotationError(f"no value of {spec.hint} is made: `{name}` of its constructor is no field")
    return tuple(names)


def _can_resolve(spec: Spec) -> bool:
    try:
        check_possible(spec, Options())
    except AnnotationError:
        return False
    return True


def height(spec: Spec | None, *seen: Spec) -> float:
    """How deep the smallest value is; infinite for a class that cannot be without another of its kind."""
    if spec is None or isinstance(spec, TensorSpec | NoneSpec | OtherSpec | SelfSpec):
        return 0
    if any(spec is outer for outer in seen):
        return math.inf
    if isinstance(spec, CollectionSpec | MappingSpec):
        return 1
    if isinstance(spec, UnionSpec):
        return min(height(option, spec, *seen) for option in spec.options)
    inner = parts(spec)
    if isinstance(spec, FieldsSpec) and spec.origin is dict:
        inner = tuple(part for name, part in spec.fields.items() if name in spec.required)
    return 1 + max((height(part, spec, *seen) for part in inner), default=0)


# ---------------------------------------------------------------- containers and other hints


def _union(maker: Maker, spec: UnionSpec) -> Any:
    options = tuple(o for o in spec.options if maker.wants(o)) or spec.options
    options = tuple(sorted(options, key=lambda option: not isinstance(option, NoneSpec)))  # the simplest first
    if maker.deep:
        options = (min(options, key=height),)
    first = maker.draw(st.integers(0, len(options) - 1))
    for option in (*options[first:], *options[:first]):
        bound = dict(maker.sizes.bound)
        with contextlib.suppress(Unfit, AnnotationError):
            return maker.value(option)
        maker.sizes.bound = bound
    raise Unfit


# What stands for an abstract collection; of all others the constructor takes the items.
_COLLECTIONS: dict[Any, Callable[[list[Any]], Any]] = {
    abc.Set: frozenset,
    abc.MutableSet: set,
    abc.KeysView: lambda items: dict.fromkeys(items).keys(),
    abc.ValuesView: lambda items: dict(enumerate(items)).values(),
    abc.ItemsView: lambda items: dict(items).items(),
}


def _collection(maker: Maker, spec: CollectionSpec) -> Any:
    items = [maker.value(spec.item) for _ in range(maker.count(spec.item))]
    make = _COLLECTIONS.get(spec.origin, list if inspect.isabstract(spec.origin) else spec.origin)
    with contextlib.suppress(TypeError):  # what cannot be hashed is in no set
        return make(items)
    raise Unfit


def _tuple(maker: Maker, spec: TupleSpec) -> Any:
    items = tuple(
        maker.draw(resolved(hint, spec.hint)) if item is None else maker.value(item)
        for item, hint in zip(spec.items, spec.hints, strict=True)
    )
    return items if spec.origin is tuple else spec.origin(items)


def _mapping(maker: Maker, spec: MappingSpec) -> Any:
    count = maker.count(spec.key if maker.wants(spec.key) else spec.value)
    pairs = [(maker.value(spec.key), maker.value(spec.value)) for _ in range(count)]
    try:
        items = dict(pairs)
    except TypeError:  # a key that cannot be hashed
        raise Unfit from None
    if inspect.isabstract(spec.origin) or spec.origin is dict:
        return items
    made: Any = spec.origin
    with contextlib.suppress(TypeError):
        return made(items)
    made = made(None)  # a defaultdict
    made.update(items)
    return made


def _fields(maker: Maker, spec: FieldsSpec) -> Any:
    cls = spec.origin
    known = {**spec.fields, **spec.others}
    if cls is dict:  # a TypedDict
        needed = [name for name in known if name in spec.required or maker.wants(known[name])]
        there = [name for name in known if name in needed or (not maker.deep and maker.draw(_FLIP))]
        return {name: maker.value(known[name]) for name in there}
    known = {name: known[name] for name in _arguments(spec)}
    return maker.made(spec, {name: maker.value(field) for name, field in known.items()})


def _validated(maker: Maker, spec: ValidatedSpec) -> Any:
    value = maker.value(spec.spec)
    if not bearable(spec.validators, value):
        raise Unfit
    return value


def _self(maker: Maker, spec: SelfSpec) -> Any:
    raise Unfit


# Classes of torch that hypothesis would call, but that are not made by calls, or not by calls with nothing.
TORCH: dict[Any, st.SearchStrategy[Any]] = {
    torch.dtype: st.deferred(lambda: st.sampled_from(allocatable())),
    torch.device: st.just(torch.device("cpu")),
    torch.layout: st.just(torch.strided),
    torch.memory_format: st.sampled_from((torch.contiguous_format, torch.preserve_format)),
    torch.Size: st.lists(SIZE, max_size=3).map(torch.Size),
    torch.Generator: st.integers(0, 1 << 32).map(lambda seed: torch.Generator().manual_seed(seed)),
}


def resolved(hint: Any, text: str) -> st.SearchStrategy[Any]:
    """What hypothesis itself makes of a hint without tensors."""
    if hint is Any or hint is object:
        return _ANYTHING
    if isinstance(hint, type) and hint in TORCH:
        return TORCH[hint]
    try:
        strategy = st.from_type(hint)
        strategy.validate()
    except HypothesisException as error:
        advice = "register one with hypothesis.strategies.register_type_strategy"
        raise AnnotationError(f"no value of {text} is made: hypothesis knows no strategy for it; {advice}") from error
    return strategy


_MAKERS: dict[type, Callable[[Maker, Any], Any]] = {
    TensorSpec: _tensor,
    UnionSpec: _union,
    NoneSpec: lambda maker, spec: None,
    CollectionSpec: _collection,
    TupleSpec: _tuple,
    MappingSpec: _mapping,
    FieldsSpec: _fields,
    UnpackedSpec: lambda maker, spec: maker.value(spec.whole),
    ValidatedSpec: _validated,
    SelfSpec: _self,
    OtherSpec: lambda maker, spec: maker.draw(resolved(spec.annotation, spec.hint)),
}
