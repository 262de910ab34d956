"""What may be written in a module's or a Function's class, and where modules are made, converted, moved."""

from collections.abc import Iterator

import libcst as cst
import torch

from ..._core.base.dtypes import FLOATING
from .casts import Source
from .code import At, Place, move
from .source import Candidate, Change

_STEP = "    "


@move
def floating_buffer(place: Place, at: At) -> Iterator[Candidate]:
    """Registers the buffer with a floating dtype."""
    for source in place.sources:
        for name in place.finding.parameters:
            for value, _ in source.registered(name.rpartition(".")[2]):
                yield from At(source, value).retyped(torch.float32)


@move
def whole_count(place: Place, at: At) -> Iterator[Candidate]:
    """Counts in int64, which conversions leave alone."""
    for added in at.source.below(at.source.statement(at.node), cst.AugAssign):
        if isinstance(added.value, cst.Integer):
            for value, _ in at.source.registered(at.source.code(added.target).rpartition(".")[2]):
                yield from At(at.source, value).retyped(torch.int64)


@move
def as_buffer(place: Place, at: At) -> Iterator[Candidate]:
    """Registers the tensor as a buffer, so that `.to()` reaches it."""
    for source in place.sources:
        for name in place.finding.parameters:
            for assign in source.of(cst.Assign):
                if source.code(assign.targets[0].target) == f"self.{name}":
                    value = source.code(assign.value)
                    yield [source.replace(assign, f'self.register_buffer("{name}", {value}, persistent=False)')]


@move
def buffers_stay(place: Place, at: At) -> Iterator[Candidate]:
    """Keeps the buffer in its dtype, whatever the module is converted to."""
    for source in place.sources:
        owners: dict[cst.ClassDef, list[str]] = {}
        for name in dict.fromkeys(path.rpartition(".")[2] for path in place.names):
            around = [source.up(value) for value in source.buffers(name)]
            found = [next((one for one in nodes if isinstance(one, cst.ClassDef)), None) for nodes in around]
            for owner in dict.fromkeys(filter(None, found)):
                owners.setdefault(owner, []).append(f"self.{name}")
        for owner, buffers in owners.items():
            methods = [one for one in owner.body.body if isinstance(one, cst.FunctionDef)]
            if methods and not any(one.name.value == "_apply" for one in methods):
                every = ", ".join(buffers)
                lines = [f"kept, {every} = {every}, None"]
                back = "kept.to(fn(kept.new_empty(0)).device)"
                if len(buffers) > 1:
                    lines = [f"kept = {every}", f"{' = '.join(buffers)} = None"]
                    back = "(one.to(fn(one.new_empty(0)).device) for one in kept)"
                lines += ["super()._apply(fn, recurse)", f"{every} = {back}", "return self"]
                lines = [_STEP + line for line in lines]
                names = " and ".join(one.removeprefix("self.") for one in buffers)
                keep = "keeps its dtype" if len(buffers) == 1 else "keep their dtypes"
                head = f"def _apply(self, fn, recurse=True):  # {names} {keep} in .to(), .half(), .double()"
                change = source.after_line(methods[0], "", head, *lines)
                empty = f"{source.indent(methods[0])}{source.newline}"
                yield [Change(change.file, change.begin, change.end, change.text.replace(empty, source.newline, 1))]


@move
def like_replaced(place: Place, at: At) -> Iterator[Candidate]:
    """Leaves the buffer its dtype."""
    yield from at.kept_as_it_is()
    for assign in at.source.below(at.source.statement(at.node), cst.Assign):
        yield at.source.after(assign.value, f".to({at.source.code(assign.targets[0].target)}.dtype)")


@move
def norms_in_float32(place: Place, at: At) -> Iterator[Candidate]:
    """Keeps norms in float32 after the model was converted."""
    root, _, path = (place.finding.module_path or "").partition(".")
    inner = "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in path.split(".") if part)
    for source in place.sources:
        for assign in source.of(cst.Assign):
            if any(source.called(call) == root for call in source.below(assign.value, cst.Call)):
                name = source.code(assign.targets[0].target)
                yield [source.after_line(source.statement(assign), f"{name}{inner}.float()")]


@move
def layer_in_float32(place: Place, at: At) -> Iterator[Candidate]:
    """Computes a linear layer in float32, and leaves its parameters as they are."""
    source, call = at.source, at.node
    made = source.call_behind(call.func) if isinstance(call, cst.Call) and len(call.args) == 1 else None
    if made is None or source.called(made) != "Linear" or not isinstance(call, cst.Call):
        return
    function = next((name for name, module in source.modules.items() if module == "torch.nn.functional"), None)
    layer, value = source.code(call.func), source.closed(call.args[0].value)
    said = [arg for arg in made.args[2:] if arg.keyword is None or arg.keyword.value == "bias"]
    biased = source.code(said[0].value) if said else "True"
    parts = [value, f"{layer}.weight", *([f"{layer}.bias"] if biased == "True" else [])]
    written = ", ".join(f"{part}.float()" for part in parts)
    if biased in ("True", "False"):
        yield [source.replace(call, f"{function or f'{source.torch()}.nn.functional'}.linear({written})")]


@move
def convert_model(place: Place, at: At) -> Iterator[Candidate]:
    """Converts the whole model before it is called."""
    name = at.node.func.value if isinstance(at.node, cst.Call) and isinstance(at.node.func, cst.Name) else ""
    if any(isinstance(one, cst.For | cst.While | cst.FunctionDef) for one in at.source.up(at.node)):
        return  # not once more for each call
    for dtype in (place.finding.from_dtype, place.finding.to_dtype):
        if name and dtype in FLOATING and name not in at.source.modules:
            yield [at.source.before_line(at.source.statement(at.node), f"{name}{at.source.spelt(dtype)}")]


@move
def assign_on_load(place: Place, at: At) -> Iterator[Candidate]:
    """Keeps the checkpoint's dtypes."""
    if isinstance(at.node, cst.Call):
        yield at.source.keyword(at.node, "assign", "True")


@move
def state_as_it_is(place: Place, at: At) -> Iterator[Candidate]:
    """Keeps the optimizer's state as it is."""
    source, given = at.source, [arg.value for arg in at.node.args] if isinstance(at.node, cst.Call) else []
    for value in [*given, *(one for arg in given for one in source.definitions(arg))]:
        inner = [call for call in source.below(value, cst.Call) if source.called(call) == "state_dict"]
        if len(inner) == 1 and inner[0] is not value:
            yield [source.replace(value, source.code(inner[0]))]


@move
def convert_copy(place: Place, at: At) -> Iterator[Candidate]:
    """Converts a copy of the model."""
    source, node = at.source, at.node
    model, imports = source.on(node), list(source.of(cst.Import))
    if not isinstance(model, cst.Name) or model.value not in source.parameters(node):
        return  # others would get the copy
    if imports and isinstance(source.parents[node], cst.Expr):
        name, first = model.value, source.statement(imports[0])
        made = [source.replace(node, f"{name} = copy.deepcopy({name}){source.code(node).removeprefix(name)}")]
        known = any(source.code(one).split()[1:] == ["copy"] for one in imports)
        yield made if known else [source.before_line(first, "import copy"), *made]


@move
def same_device(place: Place, at: At) -> Iterator[Candidate]:
    """Moves one operand to the others' device."""
    source, node = at.source, at.node
    params, function = source.parameters(node), source.scope(node)
    others = [source.code(name.node) for name in at.names()]
    others = list(dict.fromkeys([*others, *source.others(node)]))
    made = [*([] if place.birth is None or place.birth.source is not source else [place.birth]), *at.origins(2)]
    for other in others if params else ():
        for one in made:
            calls = [call for call in source.below(one.node, cst.Call) if source.on(call) is None and call.args]
            yield [
                source.add_argument(call, f"device={other}.device") for call in calls if source.scope(call) is function
            ]
    called = node.func if isinstance(node, cst.Call) else None
    module = called.value if isinstance(called, cst.Name) and called.value not in source.modules else ""
    for other in others if module else ():
        yield [source.before_line(source.statement(node), f"{module}.to({other}.device)")]
    texts = [f".to(next({module}.parameters()).device)"] if module else []
    for part in at.operands():
        for text in [*(f".to({other}.device)" for other in others), *texts, ".cpu()"]:
            if source.code(part.node) not in text:
                yield source.after(part.node, text)


# ---------------------------------------------------------------- autograd


@move
def custom_fwd(place: Place, at: At) -> Iterator[Candidate]:
    """Decorates the Function for autocast."""
    source, torch_name = at.source, at.source.torch()
    owners = [source.on(call) for call in source.below(at.node, cst.Call) if source.called(call) == "apply"]
    names = [source.code(owner) for owner in owners if owner is not None]
    written = [one for one in source.of(cst.ClassDef) if torch_name and _is_function(source, one)]
    named = [one for one in written if one.name.value in names]
    for function in named or written:
        changes = []
        for method in function.body.body:
            if isinstance(method, cst.FunctionDef) and method.name.value in ("forward", "backward"):
                forward = method.name.value == "forward"
                more = f", cast_inputs={torch_name}.float32" if forward else ""
                text = f"@{torch_name}.amp.custom_{'fwd' if forward else 'bwd'}(device_type={source.device()}{more})"
                begin, indent = source.offset(source.line(method.name), 0), source.indent(method)
                changes.append(Change(source.file, begin, begin, f"{indent}{text}{source.newline}"))
        yield changes


def _is_function(source: Source, node: cst.ClassDef) -> bool:
    return any(source.code(base.value).rpartition(".")[2] == "Function" for base in node.bases)


@move
def gradient_times_incoming(place: Place, at: At) -> Iterator[Candidate]:
    """Multiplies by the gradient that comes in."""
    source, statement = at.source, at.source.statement(at.node)
    params = source.parameters(statement)
    for one in source.below(statement, cst.Return) if len(params) > 1 else ():
        parts = [element.value for element in one.value.elements] if isinstance(one.value, cst.Tuple) else [one.value]
        given = [part for part in parts if part is not None and source.code(part) != "None"]
        yield [change for part in given for change in source.after(part, f" * {params[1]}")]
