"""What happens in a program, as rules hear of it.

A rule is a function over one kind of event, registered with `on`. Kinds:

    start, end   the audit begins, ends                                      (audit)
    cast         a tensor became one of another dtype or device, in forward  (Op, audit)
    write        a tensor was written into one of another dtype              (Op, audit)
    mixed        operands of several dtypes met, and promoted each other     (Op, audit)
    before       one of the named operations is about to run                 (Op, audit)
    after        one of the named operations has run                         (Op, audit)
    scalar       an operation in forward reduced tensors to one float        (Op, audit)
    ended        an operation in forward gave no floats, while promotions are open  (Op, audit)
    summed       an operation in forward added up half tensors, without a gradient (Op, audit)
    half         an operation in forward gave float16                        (Op, audit)
    integer      an operation in forward took integers that `Recorder.integers` names  (Op, audit)
    added        an operation in forward added a matrix to each of many                        (Op, audit)
    backward     operands of several dtypes met in backward                  (Op, audit)
    refused      an exception left a module, or the audit                    (Refusal, audit)
    entered, left  a module's forward begins, has ended                      (Call, audit)
    exported     torch.export or torch.jit.trace has made a program of something (it, the program, Site, audit)
    harmed       values were spoilt, and that was felt, if at all, where values leave the program  (Harm, audit)
    decided      choices that come out otherwise than in a wider dtype           (Row, audit)
    amplified    a line made a large error of a small one, which is no finding by itself         (Row, audit)
    converted    a module was converted or moved                             (Conversion, audit)
    loading      entries of a state are about to be loaded and converted     (Loading, audit)

What becomes of optimizers and GradScalers is told by `amp`, in a watch and in an audit; functions for that may raise
(`tell`):

    look         a parameter group is looked at, with the state of its parameters  (Group)
    held         what optimizers hold is compared with what their models have      (Holdings)
    stepping     an optimizer is about to step; its gradients are there, or it computes them       (WatchedOptimizer)
    stepped      it has stepped, and everything is looked at, or it was late       (WatchedOptimizer)
    over         an audit ends in which it was watched                             (WatchedOptimizer)
    averaged     the average that a watch was given is looked at                   (Tracks, step, Add)
    alone        an optimizer steps without a scaler; the dtype of autocast        (WatchedOptimizer, dtype, device)
    scaled       losses are given to `scaler.scale`, none of them with a graph     (losses, whether, scaling)
    computed     the dtypes between the parameters and these losses are known      (dtypes, scaling)
    driven       the scaler is about to unscale an optimizer's gradients           (Driven, scaling)
    unscale, step  `scaler.unscale_(optimizer)`, `scaler.step(optimizer)` begins   (Driven, OptState, scaling)
    gradients    gradients are about to be unscaled; which were written to since   (Driven, written, operation, scaling)
    past         `optimizer.step()` was called, and not by the scaler              (Driven, OptState, scaling)
    update       `scaler.update()` has ended                                       (scaling)
    unchecked    `scaler.update()` has failed: no gradient was checked since then  (scaling)
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from ..._core.base import private
from ..._core.base.dtypes import TABLE, Kind, name_of
from ..._core.base.errors import AmpError, summary
from ..._core.base.modules import inside, tensors_of
from .lineage import Cause, Node
from .rule import RULES, Finding, Rule, Severity
from .sites import Site, direct
from .text import shape_of, size_of

_LEAVES, _DEEP = 64, 4
_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)  # which have few operations
_STORED = frozenset([*(dtype for dtype, info in TABLE.items() if info.kind is Kind.STORAGE), *_UNSIGNED])
_PLAIN = frozenset([Tensor, torch.nn.Parameter])
KINDS = tuple(
    "start end cast write mixed before after scalar ended summed half integer added viewed backward refused entered "
    "left harmed decided amplified exported converted loading look held stepping stepped over averaged alone scaled "
    "computed driven unscale step gradients past update unchecked".split()
)
Handler = Callable[..., None]
_HANDLERS: dict[str, list[tuple[Handler, frozenset[str], frozenset[str]]]] = {kind: [] for kind in KINDS}


def on(kind: str, *rules: Rule | str, ops: Iterable[str] = ()) -> Callable[[Handler], Handler]:
    """Call the function at each event of a kind.

    Args:
        kind: of event.
        rules: that the function finds; it is not called where none of them is wanted. None: it always is.
        ops: for "before" and "after", the operations that it wants to hear of (`mul_`).
    """

    def register(function: Handler) -> Handler:
        ids = frozenset(rule if isinstance(rule, str) else rule.id for rule in rules)
        _HANDLERS[kind].append((function, ids, frozenset(ops)))
        return function

    return register


def handlers(kind: str, wanted: frozenset[str]) -> list[Handler]:
    """The functions to call at events of a kind."""
    return [function for function, rules, _ in _HANDLERS[kind] if not rules or rules & wanted]


def handlers_of(kind: str, wanted: frozenset[str]) -> dict[str, list[Handler]]:
    """The same by operation."""
    table: dict[str, list[Handler]] = {}
    for function, rules, ops in _HANDLERS[kind]:
        if not rules or rules & wanted:
            for op in ops:
                table.setdefault(op, []).append(function)
    return table


def tell(kind: str, *event: Any) -> None:
    """Call the functions of all rules for a kind, by their ids; in strict mode the first finding is raised."""
    __tracebackhide__ = True
    try:
        for function in _detectors(kind):
            function(*event)
    except AmpError as error:
        raise error.with_traceback(None)  # noqa: B904  # the same one: its place is the program's line


@functools.cache
def _detectors(kind: str) -> list[Handler]:
    order = list(RULES)  # asking for them imports them, which registers their functions
    return [function for function, _, _ in sorted(_HANDLERS[kind], key=lambda row: order.index(min(row[1])))]


def readable(*tensors: Any) -> bool:
    """Whether tensors have values to look at: none is fake, on meta, sparse, quantized, or of a subclass."""
    for tensor in tensors:
        if isinstance(tensor, Tensor):
            plain = type(tensor) in _PLAIN and tensor.layout is torch.strided and not tensor.is_meta
            if not plain or tensor.is_nested or tensor.dtype in _STORED or tensor.is_quantized:
                return False
    if private.infra_mode(private.FAKE) is not None or private.infra_mode(private.PROXY) is not None:
        return False
    cuda: Any = torch.cuda  # which torch leaves untyped
    return not (cuda.is_initialized() and cuda.is_current_stream_capturing())


@dataclass(slots=True)
class Op:
    """One operation of torch."""

    name: str  # `mul`, as in `aten.mul.Tensor`
    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    out: Any
    inputs: list[Tensor]
    site: Site
    module: str | None
    backward: bool
    autocast: bool  # in an enabled region
    kind: str = ""  # of a cast
    kept: Any = None  # what `before` left for `after`
    frame: FrameType | None = None  # that called torch
    _readable: bool | None = None

    @property
    def what(self) -> str:
        """What it computes, as the program has it."""
        return self.site.expression or self.name

    @property
    def direct(self) -> bool:
        """Whether the user's own line called it, with no code of torch between."""
        return self.frame is not None and direct(self.frame)

    @property
    def readable(self) -> bool:
        """Whether its tensors have values that can be looked at now."""
        if self._readable is None:
            self._readable = readable(*self.inputs, self.out)
        return self._readable


@dataclass(eq=False)
class Suspect(Cause):
    """What may become a finding: at once, or when something comes of the tensors whose cause it is."""

    rule: Rule
    site: Site
    facts: dict[str, Any]
    fields: dict[str, Any]

    def find(self, audit: Any, severity: Severity | None = None, /, **facts: Any) -> Finding | None:
        """Enter it."""
        facts = {**self.facts, **facts}
        found: Finding | None = audit.find(self.rule, self.site, severity=severity, facts=facts, **self.fields)
        return found

    def blame(self, audit: Any, effect: str) -> None:
        """It is no fault by itself."""


@dataclass(slots=True)
class Operand:
    """What is known of a tensor that was refused; it may be gone when that is told."""

    name: str
    text: str  # `f32[3,4] on cpu`
    dtype: torch.dtype
    device: str
    size: int
    node: Node | None
    held: bool  # by a module, as a parameter
    owned: bool = False  # by the running module, which its name says

    @classmethod
    def of(cls, name: str, tensor: Tensor, node: Node | None, owned: bool = False) -> "Operand":
        held = isinstance(tensor, torch.nn.Parameter) or (node is not None and node.op.startswith("parameter "))
        return cls(name, summary(tensor), tensor.dtype, str(tensor.device), size_of(tensor), node, held, owned)

    def __str__(self) -> str:
        birth = None if self.node is None else self.node.birth
        since = f", since {birth.parents[0]}" if birth is not None and birth.named and birth.parents else ""
        return f"`{self.name}` = {self.text}" + (f" ({birth}{since})" if birth is not None else "")


@dataclass(slots=True)
class Refusal:
    """An exception on its way through the user's program."""

    error: BaseException
    site: Site
    frame: FrameType  # the innermost
    module: str | None
    autocast: bool
    op: str | None
    operands: list[Operand]  # of the operation, where it reached the dispatcher
    function: type | None  # the autograd.Function whose backward ran
    caller: Site  # the line that called the function in which it was raised
    final: bool  # it ends the audit, or a thread; else the program may catch it

    @property
    def reason(self) -> str:
        """The first line of its message."""
        return str(self.error).partition("\n")[0]

    @property
    def own(self) -> bool:
        """Whether the program raised it: its line is a `raise`, no call of torch."""
        return self.op is None and self.site.raises


def row_of(tensor: Tensor, name: str) -> dict[str, Any]:
    """A tensor in the report."""
    dtype, device = name_of(tensor.dtype), str(tensor.device)
    return {"name": name, "dtype": dtype, "device": device, "shape": shape_of(tensor)}


@dataclass(slots=True)
class ModuleRow:
    """A module in the report; it may be gone by then."""

    path: str
    name: str  # of its class
    parameters: list[dict[str, Any]]
    calls: int = 0
    inputs: list[dict[str, Any]] = field(default_factory=list)
    outputs: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def of(cls, path: str, module: torch.nn.Module) -> "ModuleRow":
        rows = [{**row_of(t, name), "kind": kind, "bytes": size_of(t)} for kind, name, t in tensors_of(module)]
        return cls(path, type(module).__name__, rows)


@dataclass(slots=True)
class Call:
    """The forward of a module, which may be called often."""

    module: torch.nn.Module
    path: str
    output: Any = None
    kept: dict[str, Any] = field(default_factory=dict)  # what `entered` leaves for `left`, by rule


@dataclass(slots=True)
class Conversion:
    """A module and all in it."""

    model: torch.nn.Module
    root: str  # its path
    name: str  # of the method
    device: torch.device | None  # that was asked for
    dtype: torch.dtype | None
    before: dict[tuple[str, str], torch.dtype]  # of floating parameters and buffers, by path in the model and name
    values: dict[tuple[str, str], Tensor]  # of small buffers among them, as they were
    site: Site

    def inside(self, path: str) -> str:
        """The path of a module in the model."""
        return inside(self.root, path)


@dataclass(slots=True)
class Loading:
    """Entries of one dtype, for tensors of another."""

    path: str  # of the model
    own: dict[str, Tensor]  # all of the model's
    state: Mapping[str, Any]
    was: torch.dtype
    dtype: torch.dtype
    names: list[str]  # of the entries
    site: Site

    @property
    def fields(self) -> dict[str, Any]:
        """Those of a finding about it."""
        return {
            "module": self.path, "op": "Module.load_state_dict", "from_dtype": self.was, "to_dtype": self.dtype,
            "bytes": sum(size_of(self.own[name]) for name in self.names), "parameters": self.names,
        }  # fmt: skip


def tensors_in(value: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, Tensor]]:
    """The tensors in nested containers, with their paths as Python writes them; not all of many."""
    if isinstance(value, Tensor):
        yield path, value
        return
    parts: Iterable[tuple[str, Any]] = ()
    fields_of: Any = getattr(value, "_fields", ())  # of a NamedTuple
    if depth >= _DEEP:
        return
    if isinstance(value, dict):
        parts = ((f"{path}[{key!r}]", part) for key, part in value.items())
    elif isinstance(value, tuple) and fields_of:
        parts = ((f"{path}.{name}", getattr(value, name)) for name in fields_of)
    elif isinstance(value, (list, tuple)):
        parts = ((f"{path}[{number}]", part) for number, part in enumerate(value))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = ((f"{path}.{field.name}", getattr(value, field.name, None)) for field in dataclasses.fields(value))
    for name, part in itertools.islice(parts, _LEAVES):
        yield from tensors_in(part, name, depth + 1)
