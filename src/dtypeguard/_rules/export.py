"""DG8, export and trace: float64 in an exported graph, dtypes that a trace holds as constants.

While torch exports or traces, the audit is out of the way: what comes out is what would have come out without it.
"""

import contextlib
import functools
import importlib
import re
import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from .._base.dtypes import name_of
from .._base.frames import internal
from .._watch.events import on
from .._watch.ledger import listed
from .._watch.recorder import Recorder
from .._watch.rule import Severity
from .._watch.sites import Site

_EXPORTER = "torch.export._trace"
_F64, _SHOWN = torch.float64, 3


@on("start")
def replace(audit: Recorder) -> None:
    """Replace, for the time of the audit, what exports and traces."""
    if _EXPORTER in sys.modules:
        _watch_exporter(audit)
    for name in ("export", "draft_export"):
        audit.patches.replace(torch.export, name, functools.partial(_opening, audit))
    audit.patches.replace(torch.export.ExportedProgram, "run_decompositions", functools.partial(_aside, audit))
    traces = sys.modules["torch.jit._trace"]
    for owner, name in ((traces, "_trace_impl"), (traces, "trace_module"), (torch.jit, "trace_module")):
        audit.patches.replace(owner, name, functools.partial(_tracing, audit))
    if "DG802" in audit.findings.wanted:
        audit.patches.replace(torch.jit.ScriptModule, "__call__", functools.partial(_called, audit))


def _aside(audit: Recorder, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        with audit.aside() if audit.live else contextlib.nullcontext():
            return original(*args, **kwargs)

    return call


# ---------------------------------------------------------------- export


def _opening(audit: Recorder, original: Callable[..., Any]) -> Callable[..., Any]:
    """Exports import torch's exporter when it is needed, which takes seconds; then it can be watched."""

    @functools.wraps(original)
    def export(*args: Any, **kwargs: Any) -> Any:
        if audit.live and not audit.state(Exporter).watched:
            with audit.paused():
                importlib.import_module(_EXPORTER)
            audit.guarded(_watch_exporter, audit)
        return original(*args, **kwargs)

    return export


@dataclass
class Exporter:
    watched: bool = False


def _watch_exporter(audit: Recorder) -> None:
    audit.state(Exporter).watched = True
    audit.patches.replace(sys.modules[_EXPORTER], "_export", functools.partial(_exporting, audit))


def _exporting(audit: Recorder, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _export(mod: Any, *args: Any, **kwargs: Any) -> Any:
        if not audit.live:
            return original(mod, *args, **kwargs)
        with audit.aside():
            program = original(mod, *args, **kwargs)
        if "DG801" in audit.findings.wanted:
            audit.guarded(_look, audit, mod, program, audit.user())
        return program

    return _export


@dataclass
class _Graph:
    """The float64 in an exported graph: nodes, each with the nodes that its float64 comes from."""

    program: Any
    sources: dict[Any, set[Any]] = field(default_factory=dict)
    computed: list[Any] = field(default_factory=list)
    meets: dict[Any, Any] = field(default_factory=dict)  # source -> the first node where it makes others float64

    def __post_init__(self) -> None:
        for node in self.program.graph.nodes:
            tensors = _tensors(node)
            if not any(tensor.dtype is _F64 for tensor in tensors):
                continue
            wide = [parent for parent in node.all_input_nodes if parent in self.sources]
            self.sources[node] = {source for parent in wide for source in self.sources[parent]} or {node}
            if node.op == "placeholder" or not any(tensor.dim() for tensor in tensors):
                continue
            self.computed.append(node)
            narrow = [tensor for parent in node.all_input_nodes for tensor in _tensors(parent) if _narrow(tensor)]
            for parent in wide:
                if narrow and any(tensor.dim() for tensor in _tensors(parent)):
                    for source in self.sources[parent]:
                        self.meets.setdefault(source, node)

    def kind(self, source: Any) -> tuple[str, str]:
        """What a source is, and its name in the program."""
        signature = self.program.graph_signature
        if source.op != "placeholder":
            cast = any(tensor.is_floating_point() for parent in source.all_input_nodes for tensor in _tensors(parent))
            return ("cast" if cast else "made"), source.name
        for kind, names in (
            ("parameter", signature.inputs_to_parameters),
            ("buffer", signature.inputs_to_buffers),
            ("constant", signature.inputs_to_lifted_tensor_constants),
        ):
            if source.name in names:
                return kind, names[source.name]
        return "input", source.name

    def expected(self) -> list[str]:
        """The dtypes of the parameters; of a module without, of what it is given."""
        signature, state = self.program.graph_signature, self.program.state_dict
        tensors = [state[name] for name in signature.parameters if name in state]
        if not any(tensor.is_floating_point() for tensor in tensors):
            nodes = [node for node in self.program.graph.nodes if node.name in signature.user_inputs]
            tensors = [tensor for node in nodes for tensor in _tensors(node)]
        return sorted({name_of(tensor.dtype) for tensor in tensors if tensor.is_floating_point()})


def _tensors(node: Any) -> list[Tensor]:
    value = node.meta.get("val")
    return [v for v in (value if isinstance(value, list | tuple) else [value]) if isinstance(v, Tensor)]


def _narrow(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and tensor.dtype is not _F64 and tensor.dim() > 0


# What to say of a float64 source, what to write, and whether it is one that somebody may not know of.
_NUMPY = "`.float()` on what comes from NumPy, `dtype=torch.float32` in factories"
_SOURCES = {
    "parameter": ("parameter `{name}` is float64", "convert the parameter where it is made", False),
    "buffer": ("buffer `{name}` is float64", f"convert the buffer where it is made: {_NUMPY}", True),
    "constant": ("constant `{name}` is float64", f"make the constant in float32: {_NUMPY}", True),
    "input": ("input `{name}` is float64", "export with `{name}.float()`, or cast it at the top of forward", True),
    "cast": ("it is cast to float64", "nothing where it is meant; else leave out the cast", False),
    "made": ("it is made in float64", "`dtype=torch.float32` where it is made", True),
}


def _look(audit: Recorder, model: Any, program: Any, called: Site) -> None:
    graph = _Graph(program)
    expected = graph.expected()
    if not graph.computed or not expected or expected == ["float64"]:
        return
    places: dict[Any, list[Any]] = {}
    for source in {source: None for node in graph.computed for source in graph.sources[node]}:
        node = graph.meets.get(source)
        if node is None and graph.kind(source)[0] != "input":
            node = next(node for node in graph.computed if source in graph.sources[node])
        if node is not None:
            places.setdefault(node, []).append(source)
    for node, sources in places.items():
        _report(audit, model, graph, node, sources, expected, called)


def _report(
    audit: Recorder, model: Any, graph: _Graph, node: Any, sources: list[Any], expected: list[str], called: Site
) -> None:
    kinds = [graph.kind(source) for source in sources]
    bad = [n for n, (kind, _) in enumerate(kinds) if _SOURCES[kind][2] and sources[n] in graph.meets]
    kind, name = kinds[(bad or [0])[0]]
    names = [n.name for n in graph.computed if graph.sources[n] & set(sources)]
    facts = {
        "nodes": listed(names),
        "are": "is" if len(names) == 1 else "are",
        "expected": " and ".join(expected),
        "source": " and ".join(dict.fromkeys(_SOURCES[k][0].format(name=n) for k, n in kinds)),
        "called": str(called),
        "advice": _SOURCES[kind][1].format(name=name),
    }
    stack = [frame for frame in _frames(node.meta.get("stack_trace")) if not internal(frame[0])]
    tensor = _held(model, graph.program, name) if kind in ("parameter", "buffer", "constant") else None
    audit.find(
        "DG801",
        _site(*stack[-1]) if stack else called,
        facts=facts,
        severity=Severity.WARNING if bad else Severity.INFO,
        module=_path(audit, model, node),
        op=str(node.target),
        from_dtype=getattr(torch, expected[0]),
        to_dtype=_F64,
        origin=() if tensor is None else audit.origin_of(tensor),
    )


def _held(model: Any, program: Any, name: str) -> Tensor | None:
    """The tensor of that name, as the program holds it."""
    value = model
    for part in name.split("."):
        value = getattr(value, part, None)
    return value if isinstance(value, Tensor) else program.constants.get(name)


def _path(audit: Recorder, model: Any, node: Any) -> str | None:
    if not isinstance(model, nn.Module):
        return None
    root = audit.path_of(model)
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    inner = stack[-1][0] if stack else ""
    return f"{root}.{inner}" if inner else root


_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')


def _frames(trace: str | None) -> list[tuple[str, int, str]]:
    return [(file, int(line), function) for file, line, function in _FRAME.findall(trace or "")]


def _site(file: str, line: int, function: str) -> Site:
    """A line that is known by its place only."""
    return Site(compile("", file, "exec").replace(co_name=function), 0, line)


# ---------------------------------------------------------------- trace


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


@dataclass
class _Traced:
    rows: dict[int, _Baked] = field(default_factory=dict)


def _tracing(audit: Recorder, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def trace(func: Any, *args: Any, **kwargs: Any) -> Any:
        if not audit.live:
            return original(func, *args, **kwargs)
        with audit.aside():
            traced = original(func, *args, **kwargs)
        if "DG802" in audit.findings.wanted and traced is not func:
            audit.guarded(_bake, audit, traced, audit.user())
        return traced

    return trace


def _bake(audit: Recorder, traced: Any, site: Site) -> None:
    module = traced if isinstance(traced, torch.jit.ScriptModule) else None
    if module is None and not isinstance(traced, torch.jit.ScriptFunction):
        return  # scripting is off, and nothing was traced
    graph: Any = traced.inlined_graph
    constants: dict[torch.dtype, dict[str, None]] = {}
    for node, dtype in _constants(graph):
        if where := _written(node, dtype):
            constants.setdefault(dtype, {})[where] = None
    if not constants:
        return
    if module is None:
        row = _Baked(weakref.ref(traced), "", site, set(), constants, set())
    else:
        types = [value.type() for value in graph.inputs()]
        given = {kind.dtype() for kind in types if isinstance(kind, torch._C.TensorType)}
        row = _Baked(weakref.ref(module), audit.path_of(module), site, _dtypes(module), constants, given)
        audit.state(_Traced).rows[id(module)] = row
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
        arguments = [argument.name for argument in torch._C.parse_schema(schema).arguments]
        inputs = list(node.inputs())
        if "dtype" not in arguments or arguments.index("dtype") >= len(inputs):
            continue
        value = inputs[arguments.index("dtype")].toIValue()
        if isinstance(value, int) and value in _CODES and inputs[0].node().kind() != "prim::Constant":
            yield node, _CODES[value]


def _written(node: Any, dtype: torch.dtype) -> str | None:
    """`to at model.py:12`; nothing where the line itself names the dtype, so that it is no work of the trace."""
    frames = [(file, int(line), function) for file, line, function in _RANGE.findall(node.sourceRange())]
    users = [frame for frame in frames if not internal(frame[0])]
    name = f"`{node.kind().removeprefix('aten::')}`"
    if not users:
        return name
    site = _site(*users[0])
    return None if re.search(_WORDS[dtype], site.source) else f"{name} at {str(site).partition(', in ')[0]}"


def _say(audit: Recorder, row: _Baked, dtype: torch.dtype, effect: str) -> None:
    places = list(row.constants[dtype])
    more = f" and {len(places) - _SHOWN} more" * (len(places) > _SHOWN)
    audit.find(
        "DG802",
        row.site,
        facts={"baked": ", ".join(places[:_SHOWN]) + more, "dtype": name_of(dtype), "effect": effect},
        severity=Severity.WARNING if effect else None,
        module=row.path or None,
        again=bool(effect),
        to_dtype=dtype,
    )


def _called(audit: Recorder, _inherited: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(nn.Module.__call__)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807  # the name of what it stands for
        if audit.live and not audit.local.paused:
            row = audit.state(_Traced).rows.get(id(self))
            if row is not None and row.module() is self:
                audit.guarded(_used, audit, row, [*args, *kwargs.values()])
        return nn.Module.__call__(self, *args, **kwargs)

    return __call__


def _used(audit: Recorder, row: _Baked, values: list[Any]) -> None:
    """Whether a traced module is given what it was not traced with."""
    _converted(audit, row)
    given = {value.dtype for value in values if isinstance(value, Tensor) and value.is_floating_point()}
    if other := given - row.given:
        for dtype in row.constants:
            if dtype in row.given - given and dtype not in row.told:
                row.told.add(dtype)
                _say(audit, row, dtype, f", and it was given {_names(other)} since")


@on("end", "DG802")
def ends(audit: Recorder) -> None:
    for row in audit.state(_Traced).rows.values():
        _converted(audit, row)


def _converted(audit: Recorder, row: _Baked) -> None:
    """Whether a traced module has other dtypes now."""
    module = row.module()
    if module is None or not row.dtypes:
        return
    dtypes = _dtypes(module)
    if dtypes and dtypes != row.dtypes:
        for dtype in row.constants:
            if dtype in row.dtypes - dtypes and dtype not in row.told:
                row.told.add(dtype)
                _say(audit, row, dtype, f", and the module was converted to {_names(dtypes - row.dtypes)} since")


def _names(dtypes: set[torch.dtype]) -> str:
    return " and ".join(sorted(map(name_of, dtypes)))
