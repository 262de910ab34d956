"""`violations_of`: values that violate an annotation in one way."""

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from hypothesis import reject
from hypothesis import strategies as st
from torch import Tensor

from .._core.base.dtypes import TABLE
from .._core.base.errors import AnnotationError, DtypeError, DtypeGuardError, HintError, ShapeError, headline
from .._core.base.options import explained
from .._core.check.reference import check
from .._core.contract.beartyped import bearable
from .._core.contract.dims import DimKind
from .._core.contract.hints import show
from .._core.contract.spec import (
    CollectionSpec,
    FieldsSpec,
    MappingSpec,
    NoneSpec,
    OtherSpec,
    Spec,
    TensorSpec,
    TupleSpec,
    UnionSpec,
)
from ._elements import allocatable
from ._inputs import Recipe, contract_of, options_of
from ._sizes import SIZE, Axes, Draw, Unfit, every, tensors_in
from ._values import NUMPY, Maker, Options, array_of, dtypes_for, is_numpy, weighed

_TRIES = 5


@dataclass(frozen=True)
class Breach:
    """A value that violates an annotation in one way.

    Attributes:
        value: the value to pass.
        kind: what is wrong: 'dtype', 'rank', 'axis', 'type', 'length', 'key' or 'hint'.
        says: a part of the message that strict mode raises.
        error: the class of the error that strict mode raises.
    """

    value: Any
    kind: str
    says: str
    error: type[DtypeGuardError]


@explained
def violations_of(annotation: Any, /, *, axes: Axes | None = None, device: Any = None) -> st.SearchStrategy[Breach]:
    """A hypothesis strategy for values that violate an annotation in exactly one way. Each is a `Breach`.

    Args:
        annotation: as for `tensors`.
        axes, device: as for `tensors`.

    Returns:
        A strategy, for `given`.

    Raises:
        AnnotationError: if the annotation is malformed, or no value violates it.

    >>> import dtypeguard, pytest
    >>> from hypothesis import given
    >>> from dtypeguard.testing import violations_of
    >>> from jaxtyping import Float32
    >>> from torch import Tensor
    >>> @dtypeguard.enforce(mode="strict")
    ... def norm(x: Float32[Tensor, "b 3"]):
    ...     return x.norm(dim=-1)
    >>> @given(violations_of(Float32[Tensor, "b 3"]))
    ... def test(breach):
    ...     with pytest.raises(breach.error):
    ...         norm(breach.value)
    >>> test()
    """
    contract = contract_of(annotation, "violations_of")
    param = contract.params[0]
    breaks = () if param.skip else tuple(dict.fromkeys(_breaks_of(param.spec)))
    if not breaks:
        text = annotation if isinstance(annotation, str) else show(annotation)
        raise AnnotationError(f"violations_of: nothing breaks {text}")
    return _Breaches(contract, {} if axes is None else axes, options_of(device), breaks=breaks).strategy()


_Break = tuple[Spec, str, int]  # what to break, how, and at which of its occurrences


def _breaks_of(spec: Spec | None) -> Iterable[_Break]:
    """What may be wrong with a value, from the outside in."""
    for one in every(spec):
        for kind, way in _WAYS.items():
            if isinstance(one, way.specs) and way.possible(one):
                yield one, kind, 0
    if not isinstance(spec, TensorSpec):  # an earlier tensor may have bound an axis, or the same in a list
        named: set[tuple[bool, str]] = set()
        for tensor in tensors_in(spec):
            own = {(dim.variadic, dim.text) for dim in tensor.dims if dim.kind is DimKind.NAMED}
            if own & named:
                yield tensor, "axis", 0
            if own:
                yield tensor, "axis", 1
            named |= own


@dataclass
class _Breaker(Maker):
    """Makes one value wrong, and all others right."""

    target: Any = None
    kind: str = ""
    skip: int = 0
    done: bool = False

    def value(self, spec: Spec | None) -> Any:
        if spec is self.target and not self.done:
            self.done = self.skip == 0
            self.skip -= 1
            if self.done:
                return _WAYS[self.kind].make(self, spec)
        return super().value(spec)

    def made(self, spec: FieldsSpec, values: dict[str, Any]) -> Any:
        """With what its constructor would refuse or mend, as an assignment to the field afterwards leaves it."""
        try:
            made = super().made(spec, values)
            if not self.done or all(getattr(made, name) is value for name, value in values.items()):
                return made
        except Exception:
            if not self.done:
                raise
        return _unasked(spec.origin, values)

    def wants(self, spec: Spec | None) -> bool:
        return not self.done and spec is not None and any(part is self.target for part in every(spec))


@dataclass(repr=False)
class _Breaches(Recipe):
    """How to draw values that break an annotation."""

    breaks: tuple[_Break, ...] = ()

    def draw(self, draw: Draw) -> Breach:
        """Each kind as often as any other, however many places there are for it."""
        kinds = list(dict.fromkeys(kind for _, kind, _ in self.breaks))
        for kind in _from(kinds, draw):  # what other options of a union accept is no breach: the next kind, then
            for way in _from([way for way in self.breaks if way[1] == kind], draw):
                for _ in range(_TRIES):
                    with contextlib.suppress(Unfit, AnnotationError):
                        breach = self._breach(draw, *way)
                        if breach is not None:
                            return breach
        reject()

    def _breach(self, draw: Draw, target: Spec, kind: str, skip: int) -> Breach | None:
        maker = _Breaker(draw, self.sizes(draw), self.options, None, 0, target, kind, skip)
        value = maker.value(self.contract.params[0].spec)
        found = check(self.contract, (value,)).violations if maker.done else []
        as_meant = len(found) == 1 and found[0].error is _WAYS[kind].error  # options of a union may see it otherwise
        return Breach(value, kind, headline(found[0]), found[0].error) if as_meant else None


def _from(ways: Sequence[Any], draw: Draw) -> Sequence[Any]:
    """All of them, beginning anywhere."""
    first = draw(st.integers(0, len(ways) - 1))
    return (*ways[first:], *ways[:first])


def _unasked(cls: Any, values: dict[str, Any]) -> Any:
    """A dataclass or NamedTuple whose constructor is not called."""
    names = getattr(cls, "_fields", None)
    if names is not None:
        return tuple.__new__(cls, [{**cls._field_defaults, **values}[name] for name in names])
    made: Any = object.__new__(cls)
    for field in dataclasses.fields(cls):
        factory = field.default_factory
        value = values.get(field.name, field.default if factory is dataclasses.MISSING else factory())
        if value is not dataclasses.MISSING:
            object.__setattr__(made, field.name, value)
    return made


# ---------------------------------------------------------------- ways to be wrong


def _odd_dtype(maker: Maker, spec: TensorSpec) -> Any:
    return array_of(maker, spec, maker.draw(weighed(tuple(_odd_dtypes(spec)))), maker.sizes.shape(spec, maker.draw))


def _odd_dtypes(spec: TensorSpec) -> list[Any]:
    allowed = dtypes_for(spec, Options())
    known = [dtype for dtype in allocatable() if not is_numpy(spec.array_type) or TABLE[dtype].name in NUMPY]
    return [dtype for dtype in known if dtype not in allowed] if spec.dtypes is not None else []


def _odd_rank(maker: Maker, spec: TensorSpec) -> Any:
    shape, least = maker.sizes.shape(spec, maker.draw), len(spec.dims) - (spec.variadic is not None)
    shorter = shape[: maker.draw(st.integers(0, least - 1))] if least else shape
    longer = (*shape, maker.draw(SIZE))
    options = [s for s in (shorter, longer) if len(s) < least or (len(s) > least and spec.variadic is None)]
    return _array(maker, spec, maker.draw(st.sampled_from(options)))


def _odd_axis(maker: Maker, spec: TensorSpec) -> Any:
    before, runs = dict(maker.sizes.bound), set(maker.sizes.bound_runs)
    sizes = list(maker.sizes.shape(spec, maker.draw))
    where = len(spec.dims) if spec.variadic is None else spec.variadic
    numbered = [(n if n < where else n - len(spec.dims), dim) for n, dim in enumerate(spec.dims) if not dim.variadic]
    twice = Counter(dim.text for _, dim in numbered)
    known: list[int | None] = [
        n
        for n, dim in numbered
        if dim.kind in (DimKind.FIXED, DimKind.SYMBOLIC)
        or (dim.kind is DimKind.NAMED and (dim.text in before or twice[dim.text] > 1))
    ]
    if where < len(spec.dims) and spec.dims[where].text in runs:
        known.append(None)
    if not known:
        raise Unfit
    odd, wrong = maker.draw(st.sampled_from(known)), maker.draw(SIZE)
    if odd is None:  # one axis more of those that a name stands for
        sizes.insert(where, wrong)
    else:
        sizes[odd] = wrong if wrong != sizes[odd] else sizes[odd] + 1
    return _array(maker, spec, tuple(sizes))


def _array(maker: Maker, spec: TensorSpec, shape: tuple[int, ...]) -> Any:
    return array_of(maker, spec, maker.draw(st.sampled_from(dtypes_for(spec, maker.options))), shape)


def _as_it_is(value: Any) -> Any:
    """So that hypothesis shows the value, and not which of the strangers it is."""
    return value


_STRANGERS = st.sampled_from((None, 1.5, "x", 2, b"", [1.0], (), {}, object())).map(_as_it_is)


def _stranger(maker: Maker, spec: Spec) -> Any:
    return maker.draw(_STRANGERS)


def _odd_type(maker: Maker, spec: Spec) -> Any:
    """A stranger, or nearly what is wanted: an ndarray for a tensor, a tensor for a parameter, one in a list."""
    if not isinstance(spec, TensorSpec):
        return _stranger(maker, spec)
    right = maker.value(spec)
    near: Any = [right]
    if not isinstance(right, Tensor):
        near = torch.from_numpy(right)
    elif spec.array_type is not Tensor:
        near = right.detach().as_subclass(Tensor)
    elif TABLE[right.dtype].name in NUMPY and right.device.type == "cpu":
        near = right.detach().resolve_conj().numpy()
    return maker.draw(st.sampled_from((None, 1.5, "x", [1.0], [right], near)).map(_as_it_is))


def _odd_length(maker: Maker, spec: TupleSpec) -> Any:
    items = [maker.value(item) for item in spec.items]
    longer = not items or maker.draw(st.booleans())
    return (*items, None) if longer else tuple(items[:-1])


def _odd_key(maker: Maker, spec: FieldsSpec) -> Any:
    known = {**spec.fields, **spec.others}
    lost = maker.draw(st.sampled_from(sorted(spec.required)))
    return {name: maker.value(known[name]) for name in known if name in spec.required and name != lost}


def _names_an_axis(spec: TensorSpec) -> bool:
    named = Counter(dim.text for dim in spec.dims if dim.kind is DimKind.NAMED and not dim.variadic)
    fixed = any(dim.kind in (DimKind.FIXED, DimKind.SYMBOLIC) for dim in spec.dims)
    return fixed or any(count > 1 for count in named.values())


class _Way(NamedTuple):
    """A kind of breach: of which specs, the error of it, what makes it, and whether it is possible."""

    specs: Any
    error: type[DtypeGuardError]
    make: Callable[[Any, Any], Any]
    possible: Callable[[Any], bool] = lambda spec: True


_HOLDERS = TensorSpec | CollectionSpec | MappingSpec | FieldsSpec | TupleSpec | UnionSpec | NoneSpec
_WAYS = {
    "dtype": _Way(TensorSpec, DtypeError, _odd_dtype, lambda spec: bool(_odd_dtypes(spec))),
    "rank": _Way(TensorSpec, ShapeError, _odd_rank, lambda spec: len(spec.dims) != 1 or spec.variadic is None),
    "axis": _Way(TensorSpec, ShapeError, _odd_axis, _names_an_axis),
    "type": _Way(_HOLDERS, HintError, _odd_type),
    "length": _Way(TupleSpec, HintError, _odd_length),
    "key": _Way(FieldsSpec, HintError, _odd_key, lambda spec: spec.origin is dict and bool(spec.required)),
    "hint": _Way(
        OtherSpec, HintError, _stranger, lambda spec: not bearable(spec, object()) or not bearable(spec, None)
    ),
}
