"""DG802 dtype-baked-in."""

import re
import weakref
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..._core.base import private
from ..._engine.watch.sites import sites_in
from .._kit import Recorder, Rule, Severity, Site, around, name_of, on

RULE = Rule(
    "DG802",
    "dtype-baked-in",
    Severity.INFO,
    summary="A traced dtype is a constant that conversion leaves behind.",
    says="the trace holds {baked} as {dtype}{effect}",
    fix=(
        "trace the model in the dtype in which it will run, or derive dtypes in the graph: "
        "`torch.zeros_like`, `.type_as`"
    ),
    why=(
        "Tracing records the dtypes that it sees as constants. A traced module that is converted "
        "afterwards still casts to them."
    ),
    sources=("https://docs.pytorch.org/docs/stable/generated/torch.jit.trace.html",),
)

_SHOWN = 3
_CODES = {5: torch.float16, 6: torch.float32, 7: torch.float64, 15: torch.bfloat16}  # ScalarType, as graphs have it
_WORDS = {
    torch.float16: r"\.half\(|float16|torch\.half",
    torch.float32: r"\.float\(|float32|torch\.float\b",
    torch.float64: r"\.double\(|float64|torch\.double",
    torch.bfloat16: r"\.bfloat16\(|bfloat16",
}
_RANGE = re.compile(r"^(.*)\((\d+)\): (.+)$", re.MULTILINE)


@dataclass
class _Baked:
    """One traced module and the constants in it."""

    module: weakref.ref[Any]
    path: str
    site: Site
    dtypes: set[torch.dtype]  # of its parameters when it was traced
    constants: dict[torch.dtype, dict[str, None]]  # where they are, in order
    given: set[torch.dtype | None]  # what it was traced with
    told: set[torch.dtype] = field(default_factory=set)


class _Traced(dict[int, _Baked]):
    """By the ids of modules."""


@on("exported", RULE)
def bake(source: Any, traced: Any, site: Site, audit: Recorder) -> None:
    module = traced if isinstance(traced, torch.jit.ScriptModule) else None
    if module is None and not isinstance(traced, torch.jit.ScriptFunction):
        return  # of torch.export; or scripting is off, and nothing was traced
    graph: Any = traced.inlined_graph
    constants: dict[torch.dtype, dict[str, None]] = {}
    for node, dtype in _constants(graph):
        if where := _cast_site(node, dtype):
            constants.setdefault(dtype, {})[where] = None
    if not constants:
        return
    if module is None:
        row = _Baked(weakref.ref(traced), "", site, set(), constants, set())
    else:
        types = [value.type() for value in graph.inputs()]
        given = {kind.dtype() for kind in types if isinstance(kind, private.TensorType)}
        row = _Baked(weakref.ref(module), audit.path_of(module), site, _dtypes(module), constants, given)
        audit.state(_Traced)[id(module)] = row
    for dtype in constants:
        _say(audit, row, dtype, "")


def _dtypes(module: nn.Module) -> set[torch.dtype]:
    return {parameter.dtype for parameter in module.parameters() if parameter.is_floating_point()}


def _constants(block: Any) -> Iterator[tuple[Any, torch.dtype]]:
    """The operations that have a floating dtype as a constant."""
    for node in block.nodes():
        for inner in node.blocks():
            yield from _constants(inner)
        schema = node.schema()
        if "dtype" not in schema or schema == "(no schema)":
            continue
        arguments = [argument.name for argument in private.parse_schema(schema).arguments]
        inputs = list(node.inputs())
        if "dtype" not in arguments or arguments.index("dtype") >= len(inputs):
            continue
        value = inputs[arguments.index("dtype")].toIValue()
        if isinstance(value, int) and value in _CODES and inputs[0].node().kind() != "prim::Constant":
            yield node, _CODES[value]


def _cast_site(node: Any, dtype: torch.dtype) -> str | None:
    """`to at model.py:12`; nothing where the line itself names the dtype, so that it is no work of the trace."""
    users = sites_in(node.sourceRange(), _RANGE)
    name = f"`{node.kind().removeprefix('aten::')}`"
    if not users:
        return name
    site = users[0]
    return None if re.search(_WORDS[dtype], site.source) else f"{name} at {str(site).partition(', in ')[0]}"


def _say(audit: Recorder, row: _Baked, dtype: torch.dtype, effect: str) -> None:
    places = list(row.constants[dtype])
    more = f" and {len(places) - _SHOWN} more" * (len(places) > _SHOWN)
    audit.find(
        RULE,
        row.site,
        facts={"baked": ", ".join(places[:_SHOWN]) + more, "dtype": name_of(dtype), "effect": effect},
        severity=Severity.WARNING if effect else None,
        module=row.path or None,
        again=bool(effect),
        to_dtype=dtype,
    )


@around(torch.jit.ScriptModule, "__call__", rule=RULE, always=True)
def _traced_is_called(audit: Recorder, _inherited: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    row = audit.state(_Traced).get(id(self))
    if row is not None and row.module() is self and audit.records_here and not audit.local.paused:
        audit.guarded(_check_values, audit, row, [*args, *kwargs.values()])
    return nn.Module.__call__(self, *args, **kwargs)


def _check_values(audit: Recorder, row: _Baked, values: list[Any]) -> None:
    """Whether a traced module is given what it was not traced with."""
    _was_converted(audit, row)
    given = {value.dtype for value in values if isinstance(value, Tensor) and value.is_floating_point()}
    if other := given - row.given:
        _say_once(audit, row, row.given - given, f", and it was given {_names(other)} since")


@on("end", RULE)
def ends(audit: Recorder) -> None:
    for row in audit.state(_Traced).values():
        _was_converted(audit, row)


def _was_converted(audit: Recorder, row: _Baked) -> None:
    """Whether a traced module has other dtypes now."""
    module = row.module()
    if module is None or not row.dtypes:
        return
    dtypes = _dtypes(module)
    if dtypes and dtypes != row.dtypes:
        now = _names(dtypes - row.dtypes)
        _say_once(audit, row, row.dtypes - dtypes, f", and the module was converted to {now} since")


def _say_once(audit: Recorder, row: _Baked, gone: Collection[torch.dtype | None], effect: str) -> None:
    for dtype in row.constants:
        if dtype in gone and dtype not in row.told:
            row.told.add(dtype)
            _say(audit, row, dtype, effect)


def _names(dtypes: set[torch.dtype]) -> str:
    return " and ".join(sorted(map(name_of, dtypes)))
