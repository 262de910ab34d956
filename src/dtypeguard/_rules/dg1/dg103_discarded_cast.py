"""DG103 discarded-cast."""

import ast

import torch

from ..._engine.watch.mode import CASTING
from .._kit import Op, Recorder, Rule, Severity, Site, name_of, on

RULE = Rule(
    "DG103",
    "discarded-cast",
    Severity.WARNING,
    summary="The result of a cast is thrown away.",
    says="`{what}` gives a new {dtype} tensor, and it is thrown away: {subject} stays {was}",
    fix="keep the result: `{target} = {what}`; or delete the line",
    why=(
        "`Tensor.to`, `.type`, `.half` and the like return another tensor; only `Module.to` changes what "
        "it is called on."
    ),
    safe=("keep_result",),
    sources=("https://docs.pytorch.org/docs/stable/generated/torch.Tensor.to.html",),
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
            "subject": f"`{subject}`" if subject else "the tensor",
            "target": subject if isinstance(_parsed(subject), _TARGETS) else "result",
        }
        audit.suspect(RULE, event, source, event.site.calls, **facts).find(audit)


def _is_inside_torch(event: Op) -> bool:
    """Whether another function of torch makes the cast for itself, as `torch.where` of two dtypes does."""
    name = event.site.calls
    return event.kind == "explicit" and name not in CASTING and hasattr(torch.Tensor, name)


def _subject(site: Site) -> str:
    """`x` of `x.to(...)`."""
    call = _parsed(site.written)
    return ast.unparse(call.func.value) if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) else ""


def _parsed(code: str) -> ast.expr | None:
    try:
        return ast.parse(code, mode="eval").body
    except (SyntaxError, ValueError):
        return None
