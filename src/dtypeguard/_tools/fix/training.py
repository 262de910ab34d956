"""What may be written in a training loop: scalers, optimizers, losses, and the order of their calls."""

from collections.abc import Iterator

import libcst as cst
import torch

from .casts import Source
from .code import At, Place, joined, move
from .source import Candidate, Change, Node, Unfit, argument, arguments

_CLIPS = ("clip_grad_norm_", "clip_grad_value_")


def _calls(source: Source, *names: str, near: Node | None = None) -> list[cst.Call]:
    """Calls of methods, those of the function that a node is in first."""
    found = [call for call in source.of(cst.Call) if source.called(call) in names]
    return found if near is None else sorted(found, key=lambda call: source.scope(call) is not source.scope(near))


def _has(source: Source, node: Node, *names: str) -> bool:
    return any(source.called(call) in names for call in source.below(node, cst.Call))


def _scaler_steps(at: At) -> list[tuple[str, str, cst.Call]]:
    """The calls `scaler.step(optimizer)`: both names, and the call."""
    source = at.source
    calls = [(source.on(call), call) for call in _calls(source, "step", near=at.node)]
    return [
        (source.code(on), source.code(call.args[0].value), call) for on, call in calls if on is not None and call.args
    ]


def _scalers(at: At) -> list[str]:
    """What the file calls its scalers."""
    calls = [at.source.on(call) for call in _calls(at.source, "scale", "unscale_", "update", near=at.node)]
    return list(dict.fromkeys(at.source.code(on) for on in calls if on is not None))


def _optimizers(at: At) -> Iterator[tuple[cst.BaseExpression, cst.Call]]:
    """The optimizer that the call at fault steps, unscales or is called on, and the call that made it; or nothing."""
    source, given = at.source, arguments(at.node)
    node = given[0].value if given and source.called(at.node) != "load_state_dict" else source.on(at.node)
    made = None if node is None else source.call_behind(node)
    if node is not None and made is not None:
        yield node, made


def _moved(source: Source, statements: list[Node], before: Node) -> Candidate:
    """Statements of one line each, taken away and written before another one."""
    if any(source.range(one).start.line != source.range(one).end.line for one in statements):
        raise Unfit
    lines = [source.text[slice(*source.lines(one))].strip() for one in statements]
    return [*(source.without(one) for one in statements), source.before_line(before, *lines)]


@move
def unscale_before_clip(place: Place, at: At) -> Iterator[Candidate]:
    """Unscales the gradients before they are clipped."""
    source, statement = at.source, at.source.statement(at.node)
    loops = [one for one in source.up(statement) if isinstance(one, cst.For)]
    for scaler, optimizer, _ in _scaler_steps(at)[:2]:
        code = f"{scaler}.unscale_({optimizer})"
        calls = [call for call in _calls(source, "unscale_", near=at.node) if source.code(call) == code]
        for before in [_behind_backward(source, statement), *loops[:1]]:
            there = [source.statement(call) for call in calls]
            beside = [one for one in there if one in source.block(before)]
            yield _moved(source, beside[:1], before) if beside else [source.before_line(before, code)]


def _behind_backward(source: Source, statement: Node) -> Node:
    """What stands behind the last backward beside a statement and before it, as it may read gradients, or itself."""
    block = list(source.block(statement))
    before = block[: block.index(statement) + 1]
    losses = [number for number, one in enumerate(before[:-1]) if _has(source, one, "backward")]
    return before[losses[-1] + 1] if losses else statement


@move
def step_by_scaler(place: Place, at: At) -> Iterator[Candidate]:
    """Steps the optimizer by the scaler."""
    source = at.source
    optimizer = source.on(at.node)
    if optimizer is None:
        return
    for scaler in _scalers(at):
        step = source.replace(at.node, f"{scaler}.step({source.code(optimizer)})")
        updates = [source.code(call) for call in _calls(source, "update")]
        if f"{scaler}.update()" not in updates:
            yield [step, source.after_line(source.line_of(at.node), f"{scaler}.update()")]
        yield [step]


@move
def update_at_end(place: Place, at: At) -> Iterator[Candidate]:
    """Updates the scaler after the step."""
    source = at.source
    for scaler, _, call in _scaler_steps(at)[-1:]:
        line = source.after_line(source.statement(call), f"{scaler}.update()")
        updates = [source.statement(one) for one in _calls(source, "update", near=at.node)]
        holders = [source.parents.get(source.parents[one]) for one in updates if len(source.block(one)) == 1]
        yield from ([source.without(one), line] for one in holders if isinstance(one, cst.If))
        yield [line]


@move
def update_always(place: Place, at: At) -> Iterator[Candidate]:
    """Updates the scaler also where the step is skipped."""
    source = at.source
    for call in _calls(source, "update", near=at.node):
        statement = source.line_of(call)
        skipping = [one for one in source.up(statement) if isinstance(one, cst.If) and _has(source, one, "step")]
        for holder in skipping[:1]:
            yield [source.without(statement), source.after_line(holder, source.code(call))]


@move
def scale_losses(place: Place, at: At) -> Iterator[Candidate]:
    """Scales the loss whose backward was not scaled."""
    source = at.source
    for scaler in _scalers(at)[:1]:
        for call in _calls(source, "backward", near=at.node):
            loss = source.on(call)
            if loss is not None and not any(
                _has(source, one.node, "scale") for one in [At(source, loss), *At(source, loss).origins(1)]
            ):
                yield source.around(loss, f"{scaler}.scale(", ")")


@move
def unscale_once(place: Place, at: At) -> Iterator[Candidate]:
    """Unscales once, after the last loss."""
    source, calls = at.source, _calls(at.source, "unscale_", near=at.node)
    for call in calls:
        statement = source.statement(call)
        group = _with_clips(source, statement)
        if not source.inside(at.node, call):
            if not any(source.inside(at.node, other) for other in calls):  # a step; losses were scaled after the call
                yield _late(source, statement, group, source.statement(at.node))
            continue
        if len([one for one in calls if source.code(one) == source.code(call)]) > 1:
            yield [source.without(statement)]
        loop = next((one for one in source.up(statement) if isinstance(one, cst.For)), None)
        block = [] if loop is None else list(source.block(loop))
        for behind in block[block.index(loop) + 1 :][:1] if loop is not None else ():
            yield _moved(source, group, behind)


def _late(source: Source, statement: Node, group: list[Node], before: Node) -> Candidate:
    """Calls written before a step; without the `if` that held nothing else."""
    holder = source.parents.get(source.parents[statement])
    if isinstance(holder, cst.If) and len(source.block(statement)) == len(group):
        return [source.without(holder), _moved(source, group, before)[-1]]
    return _moved(source, group, before)


def _with_clips(source: Source, statement: Node) -> list[Node]:
    """A statement, and the clips behind it."""
    block = list(source.block(statement))
    found = [statement]
    for one in block[block.index(statement) + 1 :]:
        if not _has(source, one, *_CLIPS):
            break
        found.append(one)
    return found


@move
def attached_loss(place: Place, at: At) -> Iterator[Candidate]:
    """Leaves out the `.detach()` on the way to the loss."""
    losses = [At(at.source, call) for call in _calls(at.source, "scale", near=at.node)]
    for one in [other for loss in [at, *losses] for other in [loss, *loss.origins()]]:
        for call in one.source.below(one.node, cst.Call):
            inner = one.source.on(call)
            if inner is not None and one.source.called(call) == "detach":
                yield [Change(one.source.file, one.source.extent(inner)[1], one.source.extent(call)[1], "")]


@move
def zero_grad_first(place: Place, at: At) -> Iterator[Candidate]:
    """Zeroes gradients before the backward, not after it."""
    source = at.source
    block = list(source.block(source.statement(at.node)))
    backward = [one for one in block if _has(source, one, "backward")]
    zeroed = [one for one in block if _has(source, one, "zero_grad")]
    if backward and zeroed and block.index(zeroed[0]) > block.index(backward[0]):
        yield _moved(source, zeroed[:1], backward[0])


@move
def no_scaler(place: Place, at: At) -> Iterator[Candidate]:
    """Turns the scaler off, which bfloat16 does not need."""
    scaler = at.source.on(at.node)
    made = None if scaler is None else at.source.call_behind(scaler)
    if made is not None:
        yield at.source.keyword(made, "enabled", "False")


@move
def scaler_on(place: Place, at: At) -> Iterator[Candidate]:
    """Scales the loss, as float16 needs it."""
    source = at.source
    for scaler in _scalers(at):
        for call in _calls(source, "GradScaler"):
            if source.code(at.node).startswith(f"{scaler}.") and argument(call, "enabled") is not None:
                yield source.keyword(call, "enabled", "True")
        return
    losses = [source.on(call) for call in _calls(source, "backward", near=at.node)][:1]
    for loss, (optimizer, call) in zip(losses, _optimizers(at), strict=False):
        if loss is not None and source.torch():
            name = source.code(optimizer)
            scaler = f"{name.rpartition('.')[0]}.scaler".removeprefix(".")
            made = f"{scaler} = {source.torch()}.amp.GradScaler({source.device()})"
            yield [
                source.after_line(source.statement(call), made),
                *source.around(loss, f"{scaler}.scale(", ")"),
                source.replace(at.node, f"{scaler}.step({name})"),
                source.after_line(source.statement(at.node), f"{scaler}.update()"),
            ]  # fmt: skip


@move
def float32_loss(place: Place, at: At) -> Iterator[Candidate]:
    """Computes the loss in float32."""
    source = at.source
    for loss in [At(source, arg.value) for arg in arguments(at.node)]:
        yield from (_uncast(one) for one in [loss, *loss.origins(1)] if source.is_cast(one.node))
        for one in [*loss.origins(1), loss]:
            calls = [call for call in source.below(one.node, cst.Call) if not source.is_cast(call)]
            criteria = [call for call in calls if len(call.args) > 1]
            given = [arg.value for call in [*criteria[:1], *calls[:1]] for arg in call.args[:1]]
            models = [
                call for call in calls if isinstance(call.func, cst.Name) and call.func.value not in source.modules
            ]
            reduced = [source.on(call) for call in calls if source.called(call) in ("mean", "sum")]
            models += [on for on in reduced if isinstance(on, cst.Call)]  # `self.critic(x).mean()`
            alike = [call for call in criteria if source.called(call) == source.called(criteria[0])]
            if len(alike) > 1:  # a sum of losses is float32 if one of them is
                yield joined([At(source, call.args[0].value).cast(torch.float32) for call in alike])
            # What the criterion gets, what the model gives, and what the loss is made of.
            for node in [*(given if criteria else ()), *models, *given, *(name.node for name in one.names())]:
                whole = node is loss.node or (isinstance(loss.node, cst.Name) and node is one.node)
                if not whole:  # which was computed in half before
                    yield At(source, node).cast(torch.float32)


def _uncast(at: At) -> Candidate:
    """An expression without its cast; without the statement, where that would assign a variable to itself."""
    source, call = at.source, at.node
    inner = source.on(call) if isinstance(call, cst.Call) else None
    if inner is None or not isinstance(call, cst.Call):
        return []
    parent = source.parents[call]
    targets = [source.code(one.target) for one in parent.targets] if isinstance(parent, cst.Assign) else []
    if targets == [source.code(inner)]:
        return [source.without(source.line_of(call))]
    said = source.dtype_argument(call)
    if said is not None and len(call.args) > 1:  # it moves to a device, too
        return [source.without_argument(call, said)]
    return [source.uncast(inner, call)]


@move
def float32_parameters(place: Place, at: At) -> Iterator[Candidate]:
    """Keeps the parameters in float32."""
    source = at.source
    for made in [At(source, call) for _, call in _optimizers(at)]:
        for one in [made, *made.origins()]:
            for call in one.casts(torch.float32):
                inner = source.on(call.node)
                converts = inner is not None and source.is_module(inner)
                yield from [_uncast(call)] if converts else call.retyped(torch.float32)
        for statement in _conversions(at):
            yield [source.without(statement)]
        for name in made.names():
            line = f"{source.code(name.node)}{source.spelt(torch.float32)}"
            yield [source.before_line(source.statement(made.node), line)]


@move
def larger_eps(place: Place, at: At) -> Iterator[Candidate]:
    """Gives the optimizer an eps that the dtype has."""
    for _, made in _optimizers(at):
        yield at.source.keyword(made, "eps", "1e-4")


@move
def optimizer_last(place: Place, at: At) -> Iterator[Candidate]:
    """Builds the optimizer after the last change of the model."""
    source = at.source
    for optimizer, made in _optimizers(at):
        statement, name = source.statement(made), source.code(optimizer)
        block = list(source.block(statement))
        later = block[block.index(statement) + 1 :]
        names = [[source.code(part) for part in source.below(one, cst.Name, cst.Attribute)] for one in later]
        uses = [one for one, read in zip(later, names, strict=True) if name in read]
        if uses and uses[0] is not later[0]:
            yield _moved(source, [statement], uses[0])


@move
def freeze_the_rest(place: Place, at: At) -> Iterator[Candidate]:
    """Freezes the modules that no optimizer holds, and parameters of the model itself."""
    source = at.source
    names = [name.split(".")[1:] for name in place.finding.parameters]
    paths = dict.fromkeys(tuple(parts[:-1] or parts) for parts in names)
    for _, made in _optimizers(at):
        models = [source.on(call) for call in source.below(made, cst.Call) if source.called(call) == "parameters"]
        if models and models[0] is not None and all(paths):
            inner = ["".join(f"[{part}]" if part.isdigit() else f".{part}" for part in path) for path in paths]
            lines = [f"{source.root(models[0])}{path}.requires_grad_(False)" for path in inner]
            yield [source.before_line(source.statement(made), *lines)]


@move
def state_like_parameters(place: Place, at: At) -> Iterator[Candidate]:
    """Casts the optimizer's state where the model was converted."""
    for optimizer, _ in _optimizers(at):
        name = at.source.code(optimizer)
        for statement in _conversions(at):
            yield [at.source.after_line(statement, f"{name}.load_state_dict({name}.state_dict())")]


def _conversions(at: At) -> list[Node]:
    """The statements beside a line that convert something in place, as `model.half()` does."""
    source = at.source
    beside = [one for one in source.block(source.statement(at.node)) if isinstance(one, cst.SimpleStatementLine)]
    return [one for one in beside if _converts(source, one.body[0])]


def _converts(source: Source, statement: cst.BaseSmallStatement) -> bool:
    """Whether it is `model.half()`, or `model = model.half()`."""
    call = statement.value if isinstance(statement, cst.Expr | cst.Assign) else None
    converted = None if call is None or not source.is_cast(call) else source.on(call)
    if converted is None:
        return False
    targets = statement.targets if isinstance(statement, cst.Assign) else ()
    return all(source.code(one.target) == source.code(converted) for one in targets)


@move
def divided_by_scale(place: Place, at: At) -> Iterator[Candidate]:
    """Divides gradients of a scaled output by the scale."""
    source, call = at.source, at.node
    first = call.args[0].value if isinstance(call, cst.Call) and call.args else None
    scaler = source.on(first) if isinstance(first, cst.Call) and source.called(first) == "scale" else None
    if scaler is None:
        return
    above = next((one for one in source.up(call) if one is not call), None)
    scale = f"{source.code(scaler)}.get_scale()"
    if isinstance(above, cst.Subscript):
        yield [source.replace(above, f"{source.code(above)} / {scale}")]
    yield [source.replace(call, f"tuple(one / {scale} for one in {source.code(call)})")]
