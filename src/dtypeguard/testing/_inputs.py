"""`tensors` and `inputs_for`: hypothesis strategies from annotations.

Floor 5.
"""

import contextlib
import dataclasses
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, TypeVar

import torch
from hypothesis import reject
from hypothesis import strategies as st
from torch import nn

from .._check import check, find_anchor
from .._contract import Call, Contract, Param
from .._enforce import enforce, read_annotation, signed
from .._errors import AnnotationError, caller
from .._spec import OtherSpec, Spec, annotations_of, parts
from ._layouts import LAYOUTS
from ._sizes import Axes, Draw, Plan, Sizes, Unfit, specs_in
from ._values import Maker, Options, check_array_type, dtypes_for, resolved

T = TypeVar("T")
_P = inspect.Parameter
_TRIES = 5
_KEYS = st.lists(st.sampled_from(("a", "b", "c")), max_size=3, unique=True)
_SMALL = st.integers(0, 4)


def tensors(
    annotation: Any,
    /,
    *,
    axes: Axes | None = None,
    device: Any = None,
    layout: Any = None,
    requires_grad: Any = None,
    dtypes: Any = None,
    elements: st.SearchStrategy[Any] | None = None,
    finite: bool = False,
) -> st.SearchStrategy[Any]:
    """A hypothesis strategy for values that keep an annotation, whatever `enforce` accepts as one.

    Tensors come in every dtype that the annotation allows, with NaN, infinities, subnormals and the edges of each dtype
    among their numbers; empty, of one element, with broadcast axes; transposed, strided, expanded, off the start of
    their storage. They shrink to the smallest shape and the simplest numbers, in the first of these dtypes.

    Args:
        annotation: `Float32[Tensor, "b c"]`, `list[Int64[Tensor, "n"]]`, `Float[Tensor, "b"] | None`, a dataclass, ...
        axes: sizes of named axes, `{"b": 3, "*rest": (2, 2)}`, or strategies of sizes.
        device: where tensors are made; default: torch's default device.
        layout: one of 'contiguous', 'transposed', 'strided', 'offset', 'expanded', 'channels_last'; default: any.
        requires_grad: of floating and complex tensors; default: only of parameters.
        dtypes: a dtype, or several, which narrow those of the annotation.
        elements: a strategy of numbers, `st.floats(-1, 1)`; default: every value of the dtype.
        finite: whether infinities and NaN stay out.

    `axes`' sizes, `device`, `layout` and `requires_grad` may also be strategies.

    Raises:
        AnnotationError: the annotation is malformed, or no value fits it.
        ValueError, TypeError: for unknown options.

    >>> from hypothesis import given
    >>> from jaxtyping import Float32
    >>> from torch import Tensor
    >>> @given(tensors(Float32[Tensor, "b 3"], axes={"b": 2}))
    ... def test(x):
    ...     assert x.shape == (2, 3)
    >>> test()
    """
    options = _options(device, layout, requires_grad, dtypes, elements, finite)
    return Recipe(contract_of(annotation, "tensors"), axes or {}, options).strategy(itemgetter(0))


def from_type(annotation: Any) -> st.SearchStrategy[Any]:
    """For `st.from_type`: one annotation alone, with the sizes that its axes have in the whole test."""
    return Recipe(contract_of(annotation, "from_type"), {}, Options(), shared=True).strategy(itemgetter(0))


def contract_of(annotation: Any, function: str) -> Contract:
    """The contract of one value."""
    frame = caller(sys._getframe(1))
    local = {**frame.f_globals, **frame.f_locals} if isinstance(annotation, str) and frame is not None else {}
    try:
        spec = read_annotation(function, "value", annotation, tensors, local)
    except NameError as error:
        raise AnnotationError(f"{function}: the annotation names what does not exist: {error}") from error
    for tensor, _ in specs_in(spec):
        if any("{" in dim.text for dim in tensor.dims):
            raise AnnotationError(f"{function}: {tensor.hint} asks for arguments of its function: use inputs_for(fn)")
    return Contract(function, (Param("value", _P.POSITIONAL_ONLY, spec),))


def inputs_for(
    fn_or_module: Any,
    /,
    *,
    axes: Axes | None = None,
    device: Any = None,
    layout: Any = None,
    requires_grad: Any = None,
    dtypes: Any = None,
    elements: st.SearchStrategy[Any] | Mapping[str, st.SearchStrategy[Any]] | None = None,
    finite: bool = False,
) -> st.SearchStrategy[inspect.BoundArguments]:
    """A hypothesis strategy for all arguments of a function, or of a module's forward, with axes that agree.

    A value is an `inspect.BoundArguments`: call `fn(*inputs.args, **inputs.kwargs)`, or look at `inputs.arguments`.
    Floating tensors for a module are in the dtype, and all tensors on the device, of its parameters, as they are when
    a value is drawn. Arguments with a default are left out at times, those without an annotation always. Hints without
    tensors are hypothesis' own.

    Args:
        fn_or_module: a function, a method or a module; whether it is enforced, guarded or neither makes no difference.
        elements: a strategy of numbers for all arguments, or `{"ids": st.integers(0, 99)}` for some.
        axes, device, layout, requires_grad, dtypes, finite: as for `tensors`.

    Raises:
        AnnotationError: an argument that must be given has no annotation, or none that values can be made for.
        ValueError, TypeError: for unknown options, and for what has no arguments.

    >>> import torch
    >>> from hypothesis import given
    >>> from jaxtyping import Float
    >>> from torch import Tensor
    >>> def scale(x: Float[Tensor, "b c"], by: Float[Tensor, "c"]):
    ...     return x * by
    >>> @given(inputs_for(scale, dtypes=torch.float32))
    ... def test(inputs):
    ...     assert scale(*inputs.args).shape == inputs.arguments["x"].shape
    >>> test()
    """
    contract, signature, values = _callable(fn_or_module)
    own = elements if isinstance(elements, Mapping) else {}
    for name, strategy in own.items():
        if name not in signature.parameters:
            known = ", ".join(signature.parameters)
            raise ValueError(f"elements: {contract.function} has no argument {name!r}, only {known}")
        _check_elements(strategy)
    plain = None if isinstance(elements, Mapping) else elements
    options = _options(device, layout, requires_grad, dtypes, plain, finite)
    recipe = Recipe(contract, axes or {}, options, values, dict(own))
    skipped = len(contract.params) - len(signature.parameters)

    def bound(drawn: tuple[Any, ...]) -> inspect.BoundArguments:
        given = zip(signature.parameters, drawn[skipped:], strict=True)
        return inspect.BoundArguments(signature, {name: v for name, v in given if v is not LEFT_OUT})

    return recipe.strategy(bound)


def _callable(target: Any) -> tuple[Contract, inspect.Signature, tuple[Any, ...]]:
    """The contract of a call, the signature that its caller sees, and what stands before the first argument."""
    if isinstance(target, type) or not callable(target):
        what = f"the class {target.__name__}" if isinstance(target, type) else f"{target!r}"
        raise TypeError(
            f"inputs_for takes a function, a method or a module, not {what}: values of a class are made by tensors"
        )
    fn: Any = target
    values: tuple[Any, ...] = ()
    if isinstance(target, nn.Module):
        fn = target.forward
    if inspect.ismethod(fn):
        fn, values = fn.__func__, (fn.__self__,)
    note = signed(fn) or signed(enforce(fn))
    assert note is not None  # what enforce made is signed
    inner, contract = note
    signature = inspect.signature(fn)
    known = annotations_of(inspect.unwrap(inner))
    params = list(signature.parameters.values())[len(values) :]
    for param in contract.params[len(values) :]:
        several = param.kind in (_P.VAR_POSITIONAL, _P.VAR_KEYWORD)
        if param.name not in known and param.default is _P.empty and not several:
            raise AnnotationError(
                f"{contract.function}: argument `{param.name}` has no annotation and no default, so no value is made: "
                f'annotate it, `{param.name}: Float[Tensor, "..."]`'
            )
    return contract, signature.replace(parameters=params), values


LEFT_OUT: Any = _P.empty


@dataclass
class Recipe:
    """How to draw the arguments of a contract."""

    contract: Contract
    axes: Axes
    options: Options
    before: tuple[Any, ...] = ()  # the module, or the object of a method
    elements: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    shared: bool = False

    def __post_init__(self) -> None:
        params = self.contract.params[len(self.before) :]
        specs = [pair for param in params for pair in specs_in(param.spec)]
        call = Call(self.contract, (*self.before, *(None if p.default is _P.empty else p.default for p in params)))
        try:
            for spec, _ in specs:
                check_array_type(spec)
                dtypes_for(spec, self.options)
            for param in params:
                _check_others(param.spec)
            self.plan = Plan(specs, call, self.axes, self.shared)
        except AnnotationError as error:
            raise AnnotationError(f"{self.contract.function}: {error}") from error.__cause__
        braces = [dim.text for spec, _ in specs for dim in spec.dims if "{" in dim.text]
        self.sizing = {p.name for p in params if any(p.name in text for text in braces)}

    def __repr__(self) -> str:
        return self.contract.function

    def strategy(self, finish: Callable[[tuple[Any, ...]], T]) -> st.SearchStrategy[T]:
        return _draw_arguments(self, finish)

    def sizes(self, draw: Draw) -> Sizes:
        return self.plan.draw(draw, Call(self.contract, ()))

    def draw(self, draw: Draw) -> tuple[Any, ...]:
        """The values of all parameters, those before the first argument included.

        Raises:
            Unfit: with the sizes drawn there are none.
        """
        params = self.contract.params
        values = [*self.before, *(LEFT_OUT for _ in params[len(self.before) :])]
        maker = Maker(draw, self.sizes(draw), self.options)
        call = maker.sizes.call
        for n in self._order():
            call.values = self._filled(values)
            maker.anchor = find_anchor(self.contract, call.values)
            maker.options = dataclasses.replace(
                self.options, elements=self.elements.get(params[n].name, self.options.elements)
            )
            values[n] = self._argument(params[n], maker)
        return tuple(values)

    def kept(self, drawn: tuple[Any, ...]) -> bool:
        """What the checker says: an option of a union may bind an axis that another one was drawn for.

        Raises:
            AnnotationError: an axis needs what is not bound.
        """
        return self.shared or not check(self.contract, self._filled(drawn)).violations

    def _filled(self, drawn: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(p.default if v is LEFT_OUT else v for p, v in zip(self.contract.params, drawn, strict=True))

    def _order(self) -> list[int]:
        """What expressions may use comes first, then the argument that others follow."""
        params = self.contract.params
        numbers = range(len(self.before), len(params))
        return sorted(numbers, key=lambda n: (any(specs_in(params[n].spec)), params[n].name != self.contract.anchor))

    def _argument(self, param: Param, maker: Maker) -> Any:
        if param.kind is _P.VAR_POSITIONAL:
            return tuple(maker.value(param.spec) for _ in range(maker.draw(_SMALL))) if param.spec else ()
        if param.kind is _P.VAR_KEYWORD:
            return {key: maker.value(param.spec) for key in maker.draw(_KEYS)} if param.spec else {}
        if param.default is not _P.empty and (param.spec is None or param.skip or not maker.draw(st.booleans())):
            return LEFT_OUT
        if param.name in self.sizing and isinstance(param.spec, OtherSpec) and param.spec.annotation is int:
            return maker.draw(_SMALL)
        return maker.value(param.spec)


@st.composite
def _draw_arguments(draw: Draw, recipe: Recipe, finish: Callable[[tuple[Any, ...]], T]) -> T:
    for _ in range(_TRIES):
        with contextlib.suppress(Unfit, AnnotationError):
            drawn = recipe.draw(draw)
            if recipe.kept(drawn):
                return finish(drawn)
    reject()


def _check_others(spec: Spec | None, *seen: Spec) -> None:
    """Refuse hints that hypothesis has no strategy for, before anything is drawn."""
    if isinstance(spec, OtherSpec):
        resolved(spec.annotation, spec.hint)
    elif spec is not None and not any(spec is outer for outer in seen):
        for part in parts(spec):
            _check_others(part, *seen, spec)


# ---------------------------------------------------------------- options


def _options(device: Any, layout: Any, requires_grad: Any, dtypes: Any, elements: Any, finite: bool) -> Options:
    if isinstance(layout, str) and layout not in LAYOUTS:
        raise ValueError(f"layout={layout!r} is not a layout: use one of {', '.join(map(repr, LAYOUTS))}")
    if layout is not None and not isinstance(layout, str | st.SearchStrategy):
        raise TypeError(f"layout={layout!r} is not a layout: use one of {', '.join(map(repr, LAYOUTS))}")
    if isinstance(device, str):
        try:
            device = torch.device(device)
        except RuntimeError as error:
            raise ValueError(f"device={device!r} is not a device: {error}") from None
    if elements is not None:
        _check_elements(elements)
    return Options(device, layout, requires_grad, _dtypes(dtypes), elements, bool(finite))


def _dtypes(asked: Any) -> frozenset[torch.dtype] | None:
    if asked is None:
        return None
    several = frozenset(asked) if isinstance(asked, Iterable) else frozenset([asked])
    for dtype in several:
        if not isinstance(dtype, torch.dtype):
            raise TypeError(f"dtypes={asked!r}: {dtype!r} is not a dtype such as torch.float32")
    return several


def _check_elements(elements: Any) -> None:
    if not isinstance(elements, st.SearchStrategy):
        raise TypeError(f"elements={elements!r} is not a strategy of numbers such as st.floats(-1, 1)")
