"""DG103 discarded-cast."""

import ast
import functools
import re
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
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_CALLED = re.compile(r"\)\s*\.[a-z]\w*_\(")  # a method that writes to what a call gives
_GRADIENT = re.compile(r"\.grad$")
_NAMED = re.compile(r"(\w+)\s*(?::[^=]*)?=[^=]")


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
        keep = "" if _GRADIENT.search(target) else f"keep the result: `{kept}`; or "  # which has its parameter's dtype
        facts["advice"] = f"{keep}delete the line"
        audit.suspect(RULE, event, source, event.site.calls, **facts).find(audit)


@on("cast", RULE)
def lost(event: Op, audit: Recorder) -> None:
    """`y = x.float(); y.div_(t)`: a cast copy is written to, and nobody reads it."""
    own = event.kind == "explicit" and event.direct and not _is_inside_torch(event)
    if not own or (found := _written_only(event.site)) is None:
        return
    name, write = found
    subject = _subject(event.site)
    facts = {"what": event.site.expression, "dtype": name_of(event.out.dtype), **_lost(write, subject)}
    if name:
        facts["advice"] = f"return `{name}` and use that, or {facts['advice']}"
    audit.suspect(RULE, event, event.inputs[0], event.site.calls, **facts).find(audit)


def _lost(write: str, subject: str) -> dict[str, str]:
    """What is said of a cast copy that a function writes to."""
    return {
        "was": "as it was",
        "lost": f"`{write}` writes to that one, which is thrown away",
        "subject": f"`{subject}`" if subject else "the tensor",
        "advice": f"give `{write}` the tensor itself" + f": `{subject}`" * bool(subject),
    }


@functools.lru_cache(1000)
def _written_only(site: Site) -> tuple[str, str] | None:
    """The name that a function gives to a cast copy, and the method that writes to it, if it does nothing else with it.

    There is no name where that method is called on the cast itself.
    """
    named = _NAMED.match(site.source)
    if named is None and not _CALLED.search(site.source):
        return None
    function, cast = site.definition, _parsed(site.written)
    if function is None or cast is None:
        return None
    above = {child: node for node in ast.walk(function) for child in ast.iter_child_nodes(node)}
    code, first = ast.unparse(cast), site.line
    found = [one for one in above if isinstance(one, ast.Call) and one.lineno <= first <= (one.end_lineno or 0)]
    found = [one for one in found if ast.unparse(one) == code]
    if len(found) != 1:
        return None
    if write := _writes(found[0], above):
        return None if write in _WRITES else ("", write)  # which `written` sees
    statement = above[found[0]]
    if not isinstance(statement, ast.Assign | ast.AnnAssign):
        return None
    target, *more = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    if more or not isinstance(target, ast.Name):
        return None
    around, begin = above[statement], (statement.end_lineno, statement.end_col_offset)
    while around is not function:  # a loop comes back to what stands before
        begin = (around.lineno, 0) if isinstance(around, _LOOPS) else begin
        around = above[around]
    inner = {one for scope in above if isinstance(scope, _SCOPES) for one in ast.walk(scope)}  # which run later
    names = [one for one in above if isinstance(one, ast.Name) and one.id in (target.id, "locals")]
    later = [one for one in names if one in inner or (one.lineno, one.col_offset) > begin]
    uses = [_writes(one, above) for one in later if isinstance(one.ctx, ast.Load)]
    shared = any(isinstance(one, ast.Global | ast.Nonlocal) and target.id in one.names for one in above)
    return (target.id, uses[0]) if uses and all(uses) and not shared else None


def _writes(one: ast.expr, above: dict[ast.AST, ast.AST]) -> str:
    """The method that a statement calls on something to write to it."""
    method = above[one]
    if not isinstance(method, ast.Attribute) or not re.fullmatch(r"(?!requires_grad)[a-z]\w*_", method.attr):
        return ""
    call = above[method]
    alone = isinstance(call, ast.Call) and call.func is method and isinstance(above[call], ast.Expr)
    return method.attr if alone else ""


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
        facts = {"what": node.site.expression, "dtype": name_of(event.out.dtype), **_lost(event.site.calls, subject)}
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
