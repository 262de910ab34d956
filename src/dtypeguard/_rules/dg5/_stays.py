"""Facts of a module's tensors, which harm only where these are used: DG501, DG503, DG504."""

import ast
import linecache
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..._core.base.modules import inside
from ..._engine.watch.lineage import Cause
from .._kit import Conversion, Finding, Node, Recorder, Rule, Severity, Site, listed, name_of

_IN_LIST = re.compile(r"(?:(.*)\.|)\d+\.(.+)")
_KEEPS = re.compile(r"([\w.]+)\s*=(?!=)\s*")  # a statement that keeps what it makes
_PLAIN = re.compile(r"[\w.]+\.\w+\(")  # a conversion of what has a name
_FEW = 4  # tensors whose names all stand in one line of code


@dataclass(eq=False)
class Stays(Cause):
    """A fact of one tensor of a module."""

    rule: Rule
    kind: str  # "buffer" or "attribute"
    site: Site
    module: str
    name: str  # in the module
    op: str
    was: torch.dtype
    dtype: torch.dtype | None
    bytes: int
    facts: dict[str, str] = field(default_factory=dict)
    said: bool = False
    path: str = ""  # from the module that was converted
    device: torch.device | None = None  # to which that was moved
    rounded: tuple[Tensor, Tensor] | None = None  # what it was, and how far each value was rounded, as a share of it
    whole: str = ""  # the class of PyTorch's that its module is of, where that wants one dtype in all of it
    told_with: Finding | None = None  # what tells it of several tensors
    twins: tuple[str, str] | None = None  # a list of modules, and the path of such a tensor in each of them

    def blame(self, audit: Recorder, effect: str) -> None:
        if not self.said:
            self.said = True
            if self.told_with is not None:
                audit.findings.drop(self.told_with)
            _enter(audit, [self], self.module, [self.name], f": {effect}", Severity.WARNING)

    def begin(self, audit: Recorder, tensor: Tensor) -> None:
        """What comes of the tensor will be told of it."""
        known = audit.lineage.get(tensor)
        title, parents = f"{self.kind} {self.module}.{self.name}", () if known is None else (known,)
        audit.lineage.set(tensor, Node(title, self.site, tensor.dtype, parents, cause=self, named=True))


def enter(audit: Recorder, stays: Stays) -> None:
    """It happened to one tensor."""
    _enter(audit, [stays], stays.module, [stays.name])


def enter_all(audit: Recorder, event: Conversion, found: Iterable[tuple[str, Tensor, Stays]]) -> None:
    """One finding for tensors, each with the path of its module, to which the same happened."""
    groups: dict[tuple[Any, ...], list[tuple[str, Stays]]] = {}
    found = list(found)
    for path, tensor, stays in found:
        stays.begin(audit, tensor)
        stays.path, stays.device = inside(path, stays.name), event.device
        key = stays.was, stays.dtype, *stays.facts.values()
        groups.setdefault(key, []).append((inside(path, stays.name), stays))
    alike = Counter(_in_list(stays.path) for _, _, stays in found)
    for _, _, stays in found:
        which = _in_list(stays.path)
        if which is not None and alike[which] == len(list(event.model.get_submodule(which[0]).children())) > 1:
            stays.twins = which
    for group in groups.values():
        if len(group) == 1:
            enter(audit, group[0][1])
        else:
            told = _enter(audit, [stays for _, stays in group], event.root, [name for name, _ in group])
            for _, stays in group:
                stays.told_with = told


def _in_list(path: str) -> tuple[str, str] | None:
    """The path of the innermost list of modules, and what comes behind the number."""
    parts = _IN_LIST.fullmatch(path)
    return None if parts is None else (parts[1] or "", parts[2])


def _code_to_keep(group: list[Stays]) -> str:
    """Code that takes buffers out for the time of a conversion; whole modules, where these want one dtype."""
    first = group[0]
    wide, them = name_of(first.was), "it" if len(group) == 1 else "them"
    paths = list(dict.fromkeys(stays.path.rpartition(".")[0] if stays.whole else stays.path for stays in group))
    if "" in paths:
        return f"leave the module in {wide}"
    model, line = _conversion(first.site)
    moved, rest = "" if first.device is None else f".to({str(first.device)!r})", ""
    twins = {stays.twins for stays in group}
    if first.twins is not None and len(twins) == 1 and not first.whole:
        every, own = _code(model, first.twins[0]), first.twins[1]
        out = [f"kept = [one.{own} for one in {every}]", f"for one in {every}: one.{own} = None"]
        back = f"for one, value in zip({every}, kept): one.{own} = value{moved}"
    elif all(stays.whole for stays in group) and len(paths) > 1:
        classes = ", ".join(dict.fromkeys(f"torch.nn.{stays.whole}" for stays in group))
        of = f"({classes})" if "," in classes else classes
        out = [
            f"kept = {{name: one for name, one in {model}.named_modules() if isinstance(one, {of})}}",
            f"for name in kept: {model}.set_submodule(name, torch.nn.Identity())",
        ]
        back = f"for name, one in kept.items(): {model}.set_submodule(name, one{moved})"
    elif len(paths) == 1:
        code = _code(model, paths[0])
        out, back = [f"kept, {code} = {code}, None"], f"{code} = kept{moved}"
    else:
        codes, rest = [_code(model, path) for path in paths[:_FEW]], ", and so for the others" * (len(paths) > _FEW)
        out = [f"kept = {', '.join(codes)}", f"{' = '.join(codes)} = None"]
        back = f"{', '.join(codes)} = {'kept' if not moved else f'(one{moved} for one in kept)'}"
    if line is None:
        apart = "" if _PLAIN.match(first.site.written) else ", in a line of its own"
        code = f"`{'` and `'.join(out)}` before the conversion{apart}, and `{back}` after it"
    else:
        made, convert, uses = line
        lines = [*made, *out, convert, back, *uses]
        code = f"in place of the line, `{'`, `'.join(lines[:-1])}` and `{lines[-1]}`"
    if first.whole:
        return f"keep the module{'s' * (len(paths) > 1)} in {wide}: {code}{rest}"
    return f"keep {them} in {wide}, and cast only what is made from {them}: {code}{rest}; or compute {them} in forward"


def _conversion(site: Site) -> tuple[str, tuple[list[str], str, list[str]] | None]:
    """What a program calls the model that a line converts, and what to write for a line that does more than that.

    Those are the statements that make the model, the one that converts it, and those that use it.
    """
    lines = [linecache.getline(site.file, line) for line in range(site.line, (site.span or (0, site.line))[1] + 1)]
    keeps = _KEEPS.match(lines[0].strip())
    nothing = keeps[1] if keeps else "model", None
    try:
        call = ast.parse(site.written, mode="eval").body
        line = [ast.unparse(statement) for statement in ast.parse("".join(lines).strip()).body]
    except (SyntaxError, ValueError):
        return nothing
    written = ast.unparse(call)
    has = [place for place, statement in enumerate(line) if written in statement]
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or len(has) != 1:
        return nothing
    statement, made = line[has[0]], ast.unparse(call.func.value)
    if statement.count(written) > 1 or any("\n" in one for one in line):
        return nothing
    named, keeps = re.fullmatch(r"[\w.]+", made), _KEEPS.match(statement)
    model = made if named else keeps[1] if keeps else "model"
    used = statement.replace(written, model)
    uses = [used] if used not in (model, f"{model} = {model}") else []
    if named and not uses and len(line) == 1:
        return model, None
    first = [] if named else [f"{model} = {made}"]
    return model, (
        [*line[: has[0]], *first], model + written.removeprefix(made), [*uses, *line[has[0] + 1 :]],
    )  # fmt: skip


def _code(model: str | None, path: str) -> str:
    """What a program writes for a part of its model."""
    return (model or "model") + re.sub(r"[.](\d+)", r"[\1]", f".{path}" if path else "")


def _enter(
    audit: Recorder, group: list[Stays], module: str, names: list[str], effect: str = "",
    severity: Severity | None = None,
) -> Finding | None:  # fmt: skip
    first = group[0]
    facts = {
        "which": f"{first.kind}{'s' * (len(names) > 1)} {listed(names)}", "module": module, "effect": effect,
        "was": name_of(first.was), "dtype": first.dtype and name_of(first.dtype),
        "name": re.sub(r"\W+", "_", first.name).strip("_"), "kept": _code_to_keep(group), **first.facts,
    }  # fmt: skip
    return audit.find(
        first.rule, first.site, module=module, facts=facts, severity=severity, again=severity is not None,
        about=f"{first.module}.{first.name}" if len(group) == 1 else None, parameters=names, op=first.op,
        from_dtype=first.was, to_dtype=first.dtype, bytes=sum(stays.bytes for stays in group),
    )  # fmt: skip
