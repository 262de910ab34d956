"""DG116 coarse-noise."""

import weakref
from dataclasses import dataclass, field
from typing import Any

import torch

from .._kit import HALF, Node, Op, Recorder, Rule, Severity, Site, Step, Suspect, name_of, on, some

RULE = Rule(
    "DG116",
    "coarse-noise",
    Severity.WARNING,
    summary="Random numbers are too coarse for where they go.",
    says="`{what}` takes {kind} numbers that were drawn in {dtype} {drawn}: {harm}",
    at_birth=True,
    fix="{advice}",
    why=(
        "A uniform number in half precision has 11 or 8 bits, so 0 comes often, and its logarithm is infinite. Gumbel"
        " and exponential noise, and samples of small probabilities, are made of the smallest numbers: their tail is "
        "cut off. `torch.multinomial` divides by exponential numbers in the dtype of the probabilities, and draws "
        "what has the probability 0 where one of them is 0 in float16. `rand_like(x) > 0` is meant to be always true,"
        " and `erfinv` of the end of a range is infinite. `torch.rand` in float32 has 24 bits: of more than 16 million "
        "ids it never draws most."
    ),
    unsafe=("retype_inside", "called_in_wider", "widen_origins"),
    sources=(
        "https://docs.pytorch.org/docs/stable/generated/torch.rand.html",
        "https://github.com/Lightning-AI/litgpt/issues/2323",
    ),
)

_DRAWS = frozenset(["rand", "rand_like"])
_IDS, _BITS, _SCALES = (torch.int32, torch.int64), 2**24, frozenset("mul floor trunc add clamp".split())
_INTEGERS = "draw integers: `torch.randint(n, size)`; or in float64: `torch.rand(..., dtype=torch.float64)`"
_FILLED = "draw them in float32: `torch.empty_like(..., dtype=torch.float32).uniform_()`"
_HAND_ON = frozenset("neg rsub sub add clamp clamp_min clone _to_copy".split())  # what is done with them before
_OFTEN = {torch.float16: "some thousand", torch.bfloat16: "some hundred"}
_UNIFORM = {
    "kind": "uniform", "else": "in float32 one in 16 million",
    "advice": "draw them in float32: `torch.rand(..., dtype=torch.float32)`, and cast the result",
}  # fmt: skip
_EXPONENTIAL = {
    "kind": "exponential", "else": "in float32 none", "often": "30 million",
    "advice": "draw them in float32: `torch.empty_like(..., dtype=torch.float32).exponential_()`, and cast the result",
}  # fmt: skip


@dataclass
class Drawn:
    """Storages that were filled with noise, and the lines of their tensors; and where."""

    at: dict[int, tuple[Any, Site]] = field(default_factory=dict)
    nodes: dict[Node | None, Site] = field(default_factory=dict)


@on("after", RULE, ops=["uniform_", "exponential_"])
def filled(event: Op, audit: Recorder) -> None:
    if event.out.dtype in HALF:
        storage = event.out.untyped_storage()
        drawn, node = audit.state(Drawn), audit.lineage.get(event.out)
        drawn.at[storage._cdata] = weakref.ref(storage), event.site
        if node is not None and event.name == "uniform_":
            drawn.nodes[node] = event.site


@on("after", RULE, ops=["div"])
def race(event: Op, audit: Recorder) -> None:
    """Of exponential numbers the smallest wins, weighed by what they divide: a zero wins always."""
    drawn, noise = audit.state(Drawn).at, event.args[1]
    if not drawn or not isinstance(noise, torch.Tensor) or noise.untyped_storage()._cdata not in drawn:
        return
    if event.readable and not bool(event.out.isfinite().all()):
        _report(event, audit, "is 0", noise, _EXPONENTIAL)


@on("after", RULE, ops=["multinomial"])
def drew(event: Op, audit: Recorder) -> None:
    """The same race, inside of PyTorch: what has the probability 0 was drawn."""
    source = event.args[0]
    if source.dtype in HALF and event.readable and bool((source.gather(-1, event.out) == 0).any()):
        facts = {"kind": "exponential", "drawn": "inside", "dtype": name_of(source.dtype)}
        harm = "about one in 30 million of them is 0, and draws what has the probability 0, in float32 none"
        advice = "draw them in float32: `.float()` on what it takes"
        audit.suspect(RULE, event, source, **facts, harm=harm, advice=advice).find(audit)


@on("after", RULE, ops=["log", "log_", "log2", "log10", "log1p"])
def logarithm(event: Op, audit: Recorder) -> None:
    _report(event, audit, "is 0")


@on("after", RULE, ops=["erfinv", "erfinv_", "logit", "logit_"])
def inverse(event: Op, audit: Recorder) -> None:
    """What is infinite at an end of the range, if a number lies there."""
    if event.readable and bool(event.out.isinf().any()):
        _report(event, audit, "lies at the end of their range")


@on("cast", RULE)
def ids(event: Op, audit: Recorder) -> None:
    """`(torch.rand(n) * items).long()`"""
    source, node = event.inputs[0], audit.lineage.get(event.inputs[0])
    if source.dtype is not torch.float32 or event.out.dtype not in _IDS or not event.readable or not source.numel():
        return
    scaled = False
    while node is not None and node.op in _SCALES and node.parents:
        scaled, node = scaled or node.op == "mul", node.parents[0]
    if not scaled or node is None or node.op not in _DRAWS or node.dtype is not torch.float32:
        return
    most = float(some(source.detach()).max()) if audit.due("DG116", event.site) else 0.0
    if most > _BITS:
        harm = f"of {most:.3g} whole numbers no more than {_BITS:,} are ever drawn"
        facts = {"kind": "uniform", "drawn": f"at {node.site}", "dtype": "float32", "harm": harm, "advice": _INTEGERS}
        _enter(audit.suspect(RULE, event, source, **facts), node.site, audit)


@on("after", RULE, ops=["gt"])
def kept(event: Op, audit: Recorder) -> None:
    """A dropout of 0 that drops some."""
    zero = isinstance(event.args[1], int | float) and event.args[1] == 0
    if zero and event.readable and not bool(event.out.all()):
        _report(event, audit, "is 0")


def _report(
    event: Op, audit: Recorder, end: str, noise: torch.Tensor | None = None, of: dict[str, str] = _UNIFORM
) -> None:
    source = event.inputs[0] if noise is None else noise
    node, drawn = None if event.backward else audit.lineage.get(source), audit.state(Drawn)
    while node is not None and node not in drawn.nodes and node.op in _HAND_ON and node.parents:
        node = node.parents[0]
    filled, site = drawn.at.get(source.untyped_storage()._cdata, (None, None))
    if filled is not None and filled() is not source.untyped_storage():
        site = None
    if node in drawn.nodes:
        site, of = drawn.nodes[node], of | {"advice": _FILLED}
    elif node is not None and node.op in _DRAWS:
        site = node.site
    if node is not None and site is not None and node.dtype in HALF:
        often = of.get("often", _OFTEN[node.dtype])
        facts = {"kind": of["kind"], "drawn": f"at {site}", "dtype": name_of(node.dtype), "advice": of["advice"]}
        harm = f"about one in {often} of them {end}, {of['else']}"
        _enter(audit.suspect(RULE, event, source, **facts, harm=harm), site, audit)


def _enter(suspect: Suspect, site: Site, audit: Recorder) -> None:
    dtype = suspect.facts["dtype"]
    suspect.fields["origin"] = (Step(f"drawn at {site}", site, f"{dtype} is drawn here"),)
    suspect.find(audit)
