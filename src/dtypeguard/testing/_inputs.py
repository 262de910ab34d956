"""`tensors` and `inputs_for`: hypothesis strategies from annotations."""

import contextlib
import dataclasses
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpecArgs, ParamSpecKwargs, get_args

import torch
from hypothesis import reject
from hypothesis import strategies as st
from torch import nn

from .._core.base.dtypes import DtypeName, dtype_of
from .._core.base.errors import AnnotationError
from .._core.base.frames import caller
from .._core.base.modules import root_of
from .._core.base.options import explained, several
from .._core.check.reference import check, find_anchor
from .._core.check.state import CallState as Call
from .._core.contract.anchor import LAZY
from .._core.contract.hints import annotations_of, is_array_hint, resolve_hint, show
from .._core.contract.model import Contract, Param
from .._core.contract.spec import OtherSpec, Spec, UnpackedSpec
from .._core.doors.enforce import contract_behind
from .._core.wrap.annotations import read_annotation, unknown_name
from .._core.wrap.build import signed
from ._layouts import layout_of
from ._sizes import NAME, Axes, Draw, Plan, Sizes, Unfit, tensors_in
from ._values import TORCH, WRITABLE, Maker, Options, check_possible

_P = inspect.Parameter
_SEVERAL = (_P.VAR_POSITIONAL, _P.VAR_KEYWORD)
_TRIES = 5
_KEYS = st.lists(st.sampled_from(("a", "b", "c")), max_size=3, unique=True)
_SMALL = st.integers(0, 4)


@explained
def tensors(
    annotation: Any,
    /,
    *,
    axes: Axes | None = None,
    device: Any = None,
    layout: Any = None,
    requires_grad: Any = None,
    dtype: torch.dtype | DtypeName | Iterable[torch.dtype | DtypeName] | None = None,
    elements: st.SearchStrategy[Any] | None = None,
    finite: bool = False,
) -> st.SearchStrategy[Any]:
    """A hypothesis strategy for values that match an annotation: any annotation that `enforce` accepts.

    It draws tensors of every dtype that the annotation allows, with NaN, infinities, subnormals and the largest and
    smallest values of the dtype; empty, of one element, with broadcast axes; transposed, strided, expanded, with an
    offset in their storage. They shrink to the smallest shape and the simplest numbers, in the first of these dtypes.

    Args:
        annotation: `Float32[Tensor, "b c"]`, `list[Int64[Tensor, "n"]]`, `Float[Tensor, "b"] | None`, a dataclass, ...
        axes: sizes of named axes, `{"b": 3, "*rest": (2, 2)}`, or strategies of sizes.
        device: the device of tensors; default: torch's default device.
        layout: one of 'contiguous', 'transposed', 'strided', 'offset', 'expanded', 'channels_last'; default: any.
        requires_grad: whether floating and complex tensors require a gradient; default: only parameters do.
        dtype: a dtype, or several: only these of the annotation's dtypes are drawn.
        elements: a strategy of numbers, `st.floats(-1, 1)`; default: every value of the dtype. In an audit that looks
            at values, such as `pytest --dtypeguard-audit=values`, the default is floats of at most 16: what the
            largest ones of a dtype become is no fault of a program.
        finite: True to draw no infinities and no NaN.

    The sizes in `axes`, `device`, `layout` and `requires_grad` may also be strategies.

    Returns:
        A strategy, for `given`.

    Raises:
        AnnotationError: if the annotation is malformed, or no value matches it.
        ValueError, TypeError: for unknown options.

    >>> from hypothesis import given
    >>> from dtypeguard.testing import tensors
    >>> from jaxtyping import Float32
    >>> from torch import Tensor
    >>> @given(tensors(Float32[Tensor, "b 3"], axes={"b": 2}))
    ... def test(x):
    ...     assert x.shape == (2, 3)
    >>> test()
    """
    if annotation is None or (isinstance(annotation, type) and annotation.__module__ == "builtins"):
        told = "None" if annotation is None else annotation.__name__
        raise TypeError(
            f'tensors: the annotation is {told}, without a tensor in it: write Float32[Tensor, "b c"] for example; '
            f"hypothesis draws others, st.from_type({told})"
        )
    options = options_of(device, layout, requires_grad, dtype, elements, finite)
    return Recipe(contract_of(annotation, "tensors"), {} if axes is None else axes, options).strategy()


def from_type(annotation: Any) -> st.SearchStrategy[Any]:
    """For `st.from_type`: one annotation alone, with the sizes that its axes have in the whole test; or torch's own."""
    known = TORCH.get(annotation) if annotation.__hash__ else None
    if known is not None:
        return known
    return Recipe(contract_of(annotation, "from_type"), {}, Options(), shared=True).strategy()


def contract_of(annotation: Any, function: str) -> Contract:
    """The contract of one value."""
    frame = caller(sys._getframe(1))
    local = {**frame.f_globals, **frame.f_locals} if isinstance(annotation, str) and frame is not None else {}
    try:
        spec = read_annotation(function, None, annotation, tensors, local)
    except NameError as error:
        raise unknown_name(f"{function}: the annotation", error) from error
    for tensor in tensors_in(spec):
        if any("{" in dim.text for dim in tensor.dims):
            raise AnnotationError(f"{function}: {tensor.hint} asks for arguments of its function: use inputs_for(fn)")
    param = Param("value", _P.POSITIONAL_ONLY, spec)
    return Contract(function, (_explicit(param, annotation, tensors, local),))


def _explicit(param: Param, annotation: Any, fn: Any, local: dict[str, Any]) -> Param:
    """A parameter whose hint is none to check, `deque[...]` for one, but one to make values for."""
    with contextlib.suppress(NameError):
        hint = resolve_hint(annotation, fn.__globals__, local)
        free = hint is Any or hint is object or isinstance(hint, ParamSpecArgs | ParamSpecKwargs)
        if param.spec is None and not free:
            return dataclasses.replace(param, spec=OtherSpec(show(hint), hint), skip=True)
    return param


@explained
def inputs_for(
    fn_or_module: Any,
    /,
    *,
    axes: Axes | None = None,
    device: Any = None,
    layout: Any = None,
    requires_grad: Any = None,
    dtype: torch.dtype | DtypeName | Iterable[torch.dtype | DtypeName] | None = None,
    elements: st.SearchStrategy[Any] | Mapping[str, st.SearchStrategy[Any]] | None = None,
    finite: bool = False,
) -> st.SearchStrategy[inspect.BoundArguments]:
    """A hypothesis strategy for all arguments of a function, or of a module's forward, with sizes that agree.

    A value is an `inspect.BoundArguments`: call `fn(*inputs.args, **inputs.kwargs)`, or look at `inputs.arguments`. For
    a module, floating tensors have the dtype of its parameters, and all tensors their device, at the time of drawing.
    Arguments with a default are sometimes left out, and always if they have no annotation. Values for hints without
    tensors come from hypothesis.

    Args:
        fn_or_module: a function, a method or a module; it may be enforced, guarded or neither.
        elements: a strategy of numbers for all arguments, or `{"ids": st.integers(0, 99)}` for some.
        axes, device, layout, requires_grad, dtype, finite: as for `tensors`.

    Returns:
        A strategy, for `given`.

    Raises:
        AnnotationError: if an argument without a default has no annotation, or one that no values can be made for.
        ValueError, TypeError: for unknown options, and for an object that cannot be called.

    >>> import torch
    >>> from hypothesis import given
    >>> from dtypeguard.testing import inputs_for
    >>> from jaxtyping import Float
    >>> from torch import Tensor
    >>> def scale(x: Float[Tensor, "b c"], by: Float[Tensor, "c"]):
    ...     return x * by
    >>> @given(inputs_for(scale, dtype=torch.float32))
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
    options = options_of(device, layout, requires_grad, dtype, plain, finite)

    return Recipe(contract, {} if axes is None else axes, options, signature, values, dict(own)).strategy()


def _callable(target: Any) -> tuple[Contract, inspect.Signature, tuple[Any, ...]]:
    """The contract of a call, the signature that its caller sees, and what stands before the first argument."""
    fn: Any = target
    if isinstance(target, nn.Module):
        fn = root_of(target).forward
        if any(isinstance(parameter, LAZY) for parameter in target.parameters()):
            raise AnnotationError(f"{type(target).__name__} is lazy and has no parameters yet: call it once before")
    elif not isinstance(target, type) and not inspect.isroutine(target):
        fn = getattr(target, "__call__", None)  # noqa: B004  (what it is bound to is asked for, not whether it is there)
    values: tuple[Any, ...] = ()
    if inspect.ismethod(fn):
        fn, values = fn.__func__, (fn.__self__,)
    if not inspect.isfunction(fn):
        a_class = isinstance(target, type)
        what = f"the class {target.__name__}: give an instance, or a method" if a_class else repr(target)
        raise TypeError(f"inputs_for takes a function, a method or a module, not {what}")
    contract = _contract_of(fn)
    signature = inspect.signature(fn)
    params = list(signature.parameters.values())[len(values) :]
    hints = annotations_of(inspect.unwrap(fn)).items()
    known = {name: hint for name, hint in hints if not isinstance(hint, ParamSpecArgs | ParamSpecKwargs)}
    name = contract.function
    for n, param in enumerate(params):
        several = param.kind in _SEVERAL
        if param.name in known or (param.default is not _P.empty and not several):
            continue
        if n == 0 and param.name == "self":
            raise TypeError(
                f"{name} is a method without its object: give a bound one, {name.rpartition('.')[0]}().{fn.__name__}"
            )
        if not several or not known.keys() - {"return"}:
            raise AnnotationError(
                f"{name}: argument `{param.name}` has no annotation{'' if several else ' and no default'}, so no value "
                f'is made: annotate it, `{param.name}: Float[Tensor, "..."]`, or with Int, or Bool'
            )
    return contract, signature.replace(parameters=params), values


def _contract_of(fn: Any) -> Contract:
    """What annotations say, and, of a guarded forward, what the guard was told besides."""
    note = signed(fn)
    if note is not None and note[1].guarded:
        guard = note[1]
        return dataclasses.replace(_contract_of(note[0]), anchor="self", dtype=guard.dtype, device=guard.device)
    contract, inner = note[1] if note is not None else contract_behind(fn), inspect.unwrap(fn)
    known = annotations_of(inner)
    explicit = [_explicit(p, known[p.name], inner, {}) if p.name in known else p for p in contract.params]
    return dataclasses.replace(contract, params=tuple(explicit))


LEFT_OUT: Any = _P.empty


@dataclass(repr=False)
class Recipe:
    """How to draw the arguments of a contract."""

    contract: Contract
    axes: Axes
    options: Options
    signature: inspect.Signature | None = None  # None: the one argument alone is wanted
    before: tuple[Any, ...] = ()  # the module, or the object of a method
    elements: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    shared: bool = False

    def __post_init__(self) -> None:
        params = self.contract.params[len(self.before) :]
        call = Call(self.contract, (*self.before, *(None if p.default is _P.empty else p.default for p in params)))
        where = ""
        try:
            for param in params:
                where = f"argument `{param.name}`: " if self.signature else ""
                check_possible(param.spec, self.options)
                self._check_reach(param.spec)
            where = ""
            self.plan = Plan([param.spec for param in params], call, self.axes, self.shared)
        except AnnotationError as error:
            raise AnnotationError(f"{self.contract.function}: {where}{error.args[0]}") from error.__cause__
        dims = [dim for param in params for spec in tensors_in(param.spec) for dim in spec.dims]
        self.sizing = {name for dim in dims if "{" in dim.text for name in NAME.findall(dim.text)}

    def _check_reach(self, spec: Spec | None) -> None:
        """Options for tensors in what is hypothesis' own, a deque or a set, would be lost in silence."""
        options = dataclasses.replace(self.options, device=None)
        if isinstance(spec, OtherSpec) and is_array_hint(spec.annotation) and options != Options():
            asked = ", ".join(f"{name}=" for name, value in vars(options).items() if value != vars(Options())[name])
            raise AnnotationError(f"{asked} does not reach into {spec.hint}: use list or tuple")

    def __repr__(self) -> str:
        spec = self.contract.params[0].spec if self.signature is None else None
        return self.contract.function if spec is None else spec.hint

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))

    def strategy(self) -> st.SearchStrategy[Any]:
        return _STRATEGIES[self.contract.function if self.signature is None else "inputs_for"](self)

    def sizes(self, draw: Draw) -> Sizes:
        return self.plan.draw(draw, Call(self.contract, (None,) * len(self.contract.params)))

    def draw(self, draw: Draw) -> Any:
        """Values of all parameters, those before the first argument included, as the caller wants them."""
        faults: list[AnnotationError] = []
        for _ in range(_TRIES):
            try:
                drawn = self._drawn(draw)
                # An option of a union may bind an axis that another one was drawn for.
                if self.shared or not check(self.contract, self._filled(drawn)).violations:
                    return drawn[0] if self.signature is None else self._bound(self.signature, drawn)
            except Unfit:
                pass
            except AnnotationError as fault:
                faults.append(fault)
        if self.sizing and len(faults) == _TRIES:  # what is in braces cannot be computed from any arguments
            raise faults[-1]
        reject()

    def _drawn(self, draw: Draw) -> tuple[Any, ...]:
        params = self.contract.params
        values = [*self.before, *(LEFT_OUT for _ in params[len(self.before) :])]
        maker = Maker(draw, self.sizes(draw), self.options)
        call = maker.sizes.call
        for n in self._order():
            call.values = self._filled(values)
            maker.anchor = find_anchor(self.contract, call.values)
            own = self.elements.get(params[n].name, self.options.elements)
            asked = self.options.layout
            if asked is None and params[n].name in self.contract.mutates:
                asked = WRITABLE
            maker.options = dataclasses.replace(self.options, elements=own, layout=asked)
            values[n] = self._argument(params[n], maker)
        gap = False  # behind a positional argument that is left out none can be passed by position
        for n, param in enumerate(params):
            if gap and param.kind in (_P.POSITIONAL_ONLY, _P.VAR_POSITIONAL):
                values[n] = () if param.kind is _P.VAR_POSITIONAL else LEFT_OUT
            gap |= values[n] is LEFT_OUT and param.kind in (_P.POSITIONAL_ONLY, _P.POSITIONAL_OR_KEYWORD)
        return tuple(values)

    def _bound(self, signature: inspect.Signature, drawn: tuple[Any, ...]) -> inspect.BoundArguments:
        given = zip(signature.parameters.values(), drawn[len(self.before) :], strict=True)
        there = {p.name: v for p, v in given if v is not LEFT_OUT and (p.kind not in _SEVERAL or v)}
        return inspect.BoundArguments(signature, there)

    def _filled(self, drawn: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(p.default if v is LEFT_OUT else v for p, v in zip(self.contract.params, drawn, strict=True))

    def _order(self) -> list[int]:
        """What expressions may use comes first, then the argument that others follow."""
        params = self.contract.params

        def rank(n: int) -> tuple[bool, bool, bool]:
            name, tensors = params[n].name, tensors_in(params[n].spec)
            return bool(tensors), name not in self.sizing, name != self.contract.anchor

        return sorted(range(len(self.before), len(params)), key=rank)

    def _argument(self, param: Param, maker: Maker) -> Any:
        if isinstance(param.spec, UnpackedSpec):
            return maker.value(param.spec)
        if param.kind is _P.VAR_POSITIONAL:
            return tuple(maker.value(param.spec) for _ in range(maker.draw(_SMALL))) if param.spec else ()
        if param.kind is _P.VAR_KEYWORD:
            return {key: maker.value(param.spec) for key in maker.draw(_KEYS)} if param.spec else {}
        if param.default is not _P.empty and (param.spec is None or not maker.draw(st.booleans())):
            return LEFT_OUT
        if param.name in self.sizing and _takes_int(param.spec):
            return maker.draw(_SMALL)
        return maker.value(param.spec)


def _takes_int(spec: Spec | None) -> bool:
    return isinstance(spec, OtherSpec) and int in (spec.annotation, *get_args(spec.annotation))


def _strategy(name: str) -> Callable[[Recipe], st.SearchStrategy[Any]]:
    """What makes strategies that hypothesis shows under a name."""

    def called(draw: Draw, recipe: Recipe) -> Any:
        return recipe.draw(draw)

    called.__name__ = name
    return st.composite(called)


_STRATEGIES = {name: _strategy(name) for name in ("tensors", "inputs_for", "violations_of", "from_type")}


# ---------------------------------------------------------------- options


def options_of(
    device: Any = None,
    layout: Any = None,
    requires_grad: Any = None,
    dtype: torch.dtype | DtypeName | Iterable[torch.dtype | DtypeName] | None = None,
    elements: Any = None,
    finite: bool = False,
) -> Options:
    """Options as users write them."""
    if layout is not None and not isinstance(layout, st.SearchStrategy):
        layout_of(layout)
    if not isinstance(requires_grad, bool | None | st.SearchStrategy):
        raise TypeError(f"requires_grad={requires_grad!r} is neither True, False, None nor a strategy of these")
    if not isinstance(device, str | torch.device | None | st.SearchStrategy):
        raise TypeError(f"device={device!r} is neither a torch.device, nor the name of one, nor a strategy of these")
    if isinstance(device, str):
        try:
            device = torch.device(device)
        except RuntimeError as error:
            raise ValueError(f"device={device!r} is not a device: {error}") from None
    if elements is not None:
        _check_elements(elements)
    dtypes = None
    if dtype is not None:
        asked = several("dtype", dtype, torch.dtype | str, "a dtype such as torch.float32, or several")
        dtypes = frozenset(dtype_of(one, "dtype") for one in asked)
    return Options(device, layout, requires_grad, dtypes, elements, bool(finite))


def _check_elements(elements: Any) -> None:
    if not isinstance(elements, st.SearchStrategy):
        raise TypeError(f"elements={elements!r} is not a strategy of numbers such as st.floats(-1, 1)")
