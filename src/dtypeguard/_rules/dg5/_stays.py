"""Facts of a module's tensors, which harm only where these are used: DG501, DG503, DG504."""

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

# A statement that converts a module: the name that keeps the result, and what is converted, where that has one.
_IN_LIST = re.compile(r"(?:(.*)\.|)\d+\.(.+)")
_STATEMENT = re.compile(r"\s*(?:([\w.]+)\s*=\s*)?(?:([\w.]+)\.\w+\()?")


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
    of_torch: bool = False  # whether its module is one of PyTorch's own
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
    for group in groups.values():
        if len(group) == 1:
            enter(audit, group[0][1])
        else:
            told = _enter(audit, [stays for _, stays in group], event.root, [name for name, _ in group])
            for _, stays in group:
                stays.told_with = told
    alike = Counter(_in_list(stays.path) for _, _, stays in found)
    for _, _, stays in found:
        which = _in_list(stays.path)
        if which is not None and alike[which] == len(list(event.model.get_submodule(which[0]).children())) > 1:
            stays.twins = which


def _in_list(path: str) -> tuple[str, str] | None:
    """The path of the innermost list of modules, and what comes behind the number."""
    parts = _IN_LIST.fullmatch(path)
    return None if parts is None else (parts[1] or "", parts[2])


def _code_to_keep(stays: Stays) -> str:
    """Code that takes a buffer out for the time of a conversion; a whole module of PyTorch's, which wants one dtype."""
    statement = _STATEMENT.match(stays.site.source)
    made, converted = statement.groups() if statement else (None, None)
    path = stays.path.rpartition(".")[0] if stays.of_torch else stays.path
    if not path:
        return f"leave the module in {name_of(stays.was)}"
    moved = "" if stays.device is None else f".to({str(stays.device)!r})"
    if stays.twins is None or stays.of_torch:
        kept = _code(made or converted, path)
        apart = ", in a line of its own" if made and made != converted else ""
        code = f"`kept, {kept} = {kept}, None` before the conversion{apart}, and `{kept} = kept{moved}` after it"
    else:
        every, own = _code(made or converted, stays.twins[0]), stays.twins[1]
        loop = f"for one, value in zip({every}, kept): one.{own} = value{moved}"
        code = f"`kept = [one.{own} for one in {every}]` before the conversion, and `{loop}` after it"
    if stays.of_torch:
        return f"keep the module in {name_of(stays.was)}: {code}"
    return f"keep it in {name_of(stays.was)}, and cast only what is made from it: {code}; or compute it in forward"


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
        "name": re.sub(r"\W+", "_", first.name).strip("_"), "kept": _code_to_keep(first), **first.facts,
    }  # fmt: skip
    return audit.find(
        first.rule, first.site, module=module, facts=facts, severity=severity, again=severity is not None,
        about=f"{first.module}.{first.name}" if len(group) == 1 else None, parameters=names, op=first.op,
        from_dtype=first.was, to_dtype=first.dtype, bytes=sum(stays.bytes for stays in group),
    )  # fmt: skip
