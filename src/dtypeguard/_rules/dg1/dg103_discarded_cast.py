"""DG103 discarded-cast."""

import ast
from typing import Any

import torch

from ..._engine.watch.lineage import Node
from ..._engine.watch.mode import CASTING
from .._kit import Op, Recorder, Rule, Severity, Site, name_of, on

RULE = Rule(
    "DG103",
    "discarded-cast",
    Severity.WARNING,
    summary="The result of a cast is thrown away.",
    says="`{what}` gives a new {dtype} tensor, and {lost}: {subject} stays {was}",
    fix="{advice}",
    why=(
        "`Tensor.to`, `.type`, `.half` and the like return another tensor; only `Module.to` changes what "
        "it is called on."
    ),
    safe=("keep_result", "without_cast"),
    unsafe=("without_copy",),
    sources=("https://docs.pytorch.org/docs/stable/generated/torch.Tensor.to.html",),
)

_WRITES = (
    "normal_ uniform_ fill_ zero_ random_ bernoulli_ exponential_ clamp_ clamp_min_ clamp_max_ masked_fill_".split()
)
_TARGETS = (ast.Name, ast.Attribute, ast.Subscript)


@on("cast", RULE)
def discarded(event: Op, audit: Recorder) -> None:
    if event.kind in ("explicit", "device") and event.site.thrown_away and event.direct and not _is_inside_torch(event):
        source = event.inputs[0]
        moved = source.dtype is event.out.dtype
        subject = _subject(event.site)
        facts = {
            "what": event.site.expression or "the cast",
            "dtype": str(event.out.device) if moved else name_of(event.out.dtype),
            "was": f"on {source.device}" if moved else name_of(source.dtype),
            "lost": "it is thrown away",
            "subject": f"`{subject}`" if subject else "the tensor",
        }
        target = subject if isinstance(_parsed(subject), _TARGETS) else "result"
        kept = _in_loop(event.site, subject, facts["what"]) or f"{target} = {facts['what']}"
        facts["advice"] = f"keep the result: `{kept}`; or delete the line"
        audit.suspect(RULE, event, source, event.site.calls, **facts).find(audit)


@on("before", RULE, ops=_WRITES)
def copied(args: Any, audit: Recorder) -> Any:
    """Where what is written to comes from."""
    return audit.lineage.get(args[0])


@on("after", RULE, ops=_WRITES)
def written(event: Op, audit: Recorder) -> None:
    """`nn.init.normal_(weight.float())`: a cast copy is written to, and nobody has it."""
    node = next((one for one in event.kept if isinstance(one, Node)), None)
    if node is None or node.op != "_to_copy" or not node.parents or not event.site.thrown_away:
        return
    if node.site.gives_to(event.site):
        subject = _subject(node.site)
        facts = {
            "what": node.site.expression,
            "dtype": name_of(event.out.dtype),
            "was": "as it was",
            "lost": f"`{event.site.calls}` writes to that one, which is thrown away",
            "subject": f"`{subject}`" if subject else "the tensor",
            "advice": f"give `{event.site.calls}` the tensor itself" + f": `{subject}`" * bool(subject),
        }
        fields = {"module": event.module, "op": event.name, "from_dtype": node.parents[0].dtype}
        audit.find(RULE, node.site, facts=facts, to_dtype=event.out.dtype, **fields)


def _is_inside_torch(event: Op) -> bool:
    """Whether another function of torch makes the cast for itself, as `torch.where` of two dtypes does."""
    name = event.site.calls
    return event.kind == "explicit" and name not in CASTING and hasattr(torch.Tensor, name)


def _subject(site: Site) -> str:
    """`x` of `x.to(...)`."""
    call = _parsed(site.written)
    return ast.unparse(call.func.value) if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) else ""


def _in_loop(site: Site, name: str, cast: str) -> str:
    """What keeps a cast of what a loop draws: another value of its name would last one round."""
    loop = site.drawn_by(name) if name.isidentifier() else None
    if loop is None:
        return ""
    over, target = loop.iter, loop.target
    if isinstance(target, ast.Tuple) and len(target.elts) == 2 and isinstance(over, ast.Call):
        key, call = ast.unparse(target.elts[0]), ast.unparse(over)
        if call.endswith(".items()"):
            return f"{call.removesuffix('.items()')}[{key}] = {cast}"
        if call.startswith("enumerate(") and len(over.args) == 1:
            return f"{ast.unparse(over.args[0])}[{key}] = {cast}"
    drawn, given = ast.unparse(over), ast.unparse(target)
    return f"{drawn} = [{cast} for {given} in {drawn}]" if isinstance(over, _TARGETS) and given == name else ""


def _parsed(code: str) -> ast.expr | None:
    try:
        return ast.parse(code, mode="eval").body
    except (SyntaxError, ValueError):
        return None
