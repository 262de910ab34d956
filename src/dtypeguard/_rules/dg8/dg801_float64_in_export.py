"""DG801 float64-in-export."""

import re
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from ..._engine.watch.sites import sites_in
from .._kit import Recorder, Rule, Severity, Site, listed, name_of, on

RULE = Rule(
    "DG801",
    "float64-in-export",
    Severity.WARNING,
    summary="An exported graph computes in float64.",
    says="{nodes} of the exported graph {are} float64, the parameters are {expected}: {source} (exported at {called})",
    fix="keep float64 out of the graph: {advice}",
    why=(
        "A float64 constant makes all that it meets float64. Runtimes that have only float32 kernels "
        "reject the graph, or run it slowly."
    ),
    unsafe=("narrow_origins", "narrow_operands"),
    sources=("https://github.com/Megvii-BaseDetection/YOLOX/issues/1674",),
)

_F64 = torch.float64
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')


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
    "cast": ("`{name}` casts to float64", "leave out the cast, unless it is meant", False),
    "made": ("`{name}` makes float64", "`dtype=torch.float32` where it is made", True),
}


@on("exported", RULE)
def look(model: Any, program: Any, called: Site, audit: Recorder) -> None:
    if not isinstance(program, ExportedProgram):
        return
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
    stack = sites_in(node.meta.get("stack_trace"), _FRAME)
    tensor = _held_tensor(model, graph.program, name) if kind in ("parameter", "buffer", "constant") else None
    audit.find(
        RULE,
        stack[-1] if stack else called,
        facts=facts,
        severity=Severity.WARNING if bad else Severity.INFO,
        module=_path(audit, model, node),
        op=str(node.target),
        from_dtype=getattr(torch, expected[0]),
        to_dtype=_F64,
        origin=() if tensor is None else audit.origin_of(tensor),
    )


def _held_tensor(model: Any, program: Any, name: str) -> Tensor | None:
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
