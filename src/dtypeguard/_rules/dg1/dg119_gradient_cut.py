"""DG119 gradient-cut."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..._engine.watch.lineage import Debt
from .._kit import Op, Recorder, Rule, Severity, Site, Suspect, around, listed, name_of, on
from ..optimizers import parameters_of
from ._writes import at_target, source_of

RULE = Rule(
    "DG119",
    "gradient-cut",
    Severity.WARNING,
    summary="A cast to integers cuts the gradient of trained parameters.",
    says="{source} values of which a gradient is wanted become {dtype}: {names} {get} no gradient in {steps}",
    fix="{advice}; or take the parameters out of the optimizer",
    why=(
        "Integers have no gradient, so `backward` stops at the cast, or at the write, without a word. Parameters that "
        "reach the loss only through it keep `grad = None`, and the optimizer leaves them as they were initialised. "
        "Quantizers that are trained through use the straight-through estimator for that."
    ),
    unsafe=("straight_through", "fitting_target"),
    sources=("https://arxiv.org/abs/1308.3432", "https://docs.pytorch.org/docs/stable/generated/torch.round.html"),
)

_NODES = 4096  # of a graph
_PAST = (
    "keep the values in a floating dtype, and hand the gradient on past the rounding: `x + (x.round() - x).detach()`"
)


@dataclass(eq=False)
class Cut(Debt):
    """Values that became integers at one line, though a gradient was wanted.

    Attributes:
        behind: the parameters that they were computed from, by id.
        starved: of them those with which an optimizer stepped, without a gradient.
        reaches: whether a loss was computed from the integers.
    """

    suspect: Suspect
    behind: set[int] = field(default_factory=set)
    starved: dict[int, int] = field(default_factory=dict)
    reaches: bool = False


@dataclass
class Cuts:
    rows: dict[Site, Cut] = field(default_factory=dict)


@on("cast", RULE)
def cast(event: Op, audit: Recorder) -> None:
    _cut(event, event.inputs[0], audit, _PAST)


@on("write", RULE)
def written(event: Op, audit: Recorder) -> None:
    source = source_of(event, audit)
    if source is not None and event.name == "copy_":
        _cut(event, source, audit, f"create the target with `dtype=torch.{name_of(source.dtype)}`")


def _cut(event: Op, source: Tensor, audit: Recorder, advice: str) -> None:
    out = event.out
    if out.is_floating_point() or out.is_complex() or not source.requires_grad or not torch.is_grad_enabled():
        return
    node, rows = audit.lineage.get(out), audit.state(Cuts).rows
    if event.backward or node is None:
        return
    cut = rows.get(event.site)
    if cut is None or audit.due("DG119", event.site):
        behind = {id(leaf) for leaf in _leaves(source)}
        if cut is None:
            facts = {"source": name_of(source.dtype), "dtype": name_of(out.dtype), "advice": advice}
            suspect = audit.suspect(RULE, event, source, **facts)
            cut = rows[event.site] = Cut(suspect if advice is _PAST else at_target(suspect, out, audit))
        cut.behind |= behind
    node.owes((cut,))


@around(torch.autograd, "backward", rule=RULE)
def _backward(audit: Recorder, original: Callable[..., Any], tensors: Any, *args: Any, **kwargs: Any) -> Any:
    audit.guarded(_reached, audit, tensors)
    return original(tensors, *args, **kwargs)


def _reached(audit: Recorder, tensors: Any) -> None:
    if audit.state(Cuts).rows:
        for tensor in (tensors,) if isinstance(tensors, Tensor) else tensors:
            node = audit.lineage.get(tensor)
            for debt in () if node is None else node.debts:
                if isinstance(debt, Cut):
                    debt.reaches = True


@around(Optimizer, "_optimizer_step_code", rule=RULE)
def _stepped(audit: Recorder, original: Callable[..., Any], self: Optimizer) -> Any:
    """Stands in for what torch calls at the end of a step."""
    audit.guarded(_look_at, audit, self)
    return original(self)


def _look_at(audit: Recorder, optimizer: Optimizer) -> None:
    cuts = [cut for cut in audit.state(Cuts).rows.values() if cut.behind]
    if not cuts:
        return
    for parameter in parameters_of(optimizer):
        for cut in cuts:
            if id(parameter) not in cut.behind:
                continue
            if parameter.grad is None:
                cut.starved[id(parameter)] = cut.starved.get(id(parameter), 0) + 1
            else:
                cut.behind.discard(id(parameter))
                cut.starved.pop(id(parameter), None)


@on("end", RULE)
def tell(audit: Recorder) -> None:
    cuts = [cut for cut in audit.state(Cuts).rows.values() if cut.reaches and cut.starved]
    modules = audit.modules() if cuts else ()
    known = {id(one): f"{path}.{name}" for path, module in modules for name, one in _own(module)}
    for cut in cuts:
        names, steps = [known[one] for one in cut.starved if one in known], max(cut.starved.values())
        more, one = len(cut.starved) - len(names), len(cut.starved) == 1
        others = [f"{more} parameter{'s' * (more > 1)}"] if more else []
        cut.suspect.find(
            audit, names=" and ".join([*([listed(names)] if names else ()), *others]), get="gets" if one else "get",
            steps="1 step" if steps == 1 else f"{steps} steps",
        )  # fmt: skip


def _own(module: torch.nn.Module) -> Iterable[tuple[str, Tensor]]:
    return module.named_parameters(recurse=False)


def _leaves(tensor: Tensor) -> Iterator[Tensor]:
    """The leaves of its graph."""
    if tensor.grad_fn is None:
        yield tensor
        return
    nodes: list[Any] = [tensor.grad_fn]
    seen = set(nodes)
    for node in nodes:
        if (leaf := getattr(node, "variable", None)) is not None:
            yield leaf
        for below, _ in node.next_functions if len(nodes) < _NODES else ():
            if below is not None and below not in seen:
                seen.add(below)
                nodes.append(below)
