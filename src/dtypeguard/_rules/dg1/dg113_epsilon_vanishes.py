"""DG113 epsilon-vanishes."""

from dataclasses import dataclass, field
from typing import Any

import torch

from .._kit import Node, Op, Recorder, Rule, Severity, Site, on, size_of

RULE = Rule(
    "DG113",
    "epsilon-vanishes",
    Severity.WARNING,
    summary="An epsilon underflows to zero in float16.",
    says="`{what}`: {value:g} is 0 in float16{harm}",
    fix="use an eps that float16 has, 1e-4 and up, or compute it in float32",
    why=(
        "The smallest float16 is 6e-8, so the 1e-8 or 1e-12 that keeps a division or a logarithm from zero "
        "is zero itself."
    ),
    unsafe=("widen_operands", "eps_of_dtype"),
    sampled=True,
    sources=(
        "https://github.com/pytorch/pytorch/issues/8860",
        "https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.normalize.html",
    ),
    guesses=True,
)

_ADDED = frozenset(["add", "clamp", "clamp_min", "maximum"])
_DIVISIONS = frozenset(["div", "log", "reciprocal", "rsqrt", "pow"])
_MOST = 4096  # lines
SMALLEST = 2.0**-25  # what is smaller is 0 in float16


@dataclass(eq=False)
class Vanished:
    """A number that is 0 in the dtype it was added in."""

    site: Site
    value: float
    module: str | None


@dataclass
class Uses:
    """Divisions and logarithms that such a number was put there for, by its line.

    Attributes:
        found: lines at which it did harm.
        idle: what is known of those at which nothing was 0 so far.
    """

    found: set[Site] = field(default_factory=set)
    idle: dict[Site, dict[str, Any]] = field(default_factory=dict)


@on("half", RULE)
def vanishes(event: Op, audit: Recorder) -> None:
    """A number that is 0 in float16, and a division or logarithm for which it was put there."""
    if not event.readable:
        return
    name = event.name.rstrip("_")
    if name in _ADDED:
        small = [a for a in event.args if isinstance(a, float) and 0 < abs(a) < SMALLEST]
        node = audit.lineage.get(event.out)
        if small and node is not None and not node.named:
            if name != event.name:  # in place: what the tensor was before has its own node
                node = Node(event.name, event.site, torch.float16, (node,), event.module)
                audit.lineage.set(event.out, node)
            node.cause = Vanished(event.site, small[0], event.module)
    elif name in _DIVISIONS and audit.due("DG113", event.site, event.name):
        zero = event.inputs[-1] if name == "div" else event.inputs[0]
        causes = audit.lineage.causes([zero], 8)
        cause = next((one for one in causes if isinstance(one, Vanished)), None)  # the nearest was put there for it
        if cause is not None:
            _used(cause, event, _from_zero(event, zero), audit)


def _used(cause: Vanished, event: Op, wrong: int, audit: Recorder) -> None:
    harm = f", and `{event.what}` gives {wrong} infinite or NaN values"
    if not wrong:
        harm = f"; in this run `{event.what}` did not need it, as nothing was 0"
    facts = {"what": cause.site.expression, "value": cause.value, "use": event.what, "count": wrong, "harm": harm}
    fields = {
        "module": cause.module, "op": event.name, "facts": facts, "from_dtype": torch.float16,
        "bytes": size_of(event.out),
    }  # fmt: skip
    uses = audit.state(Uses)
    if wrong:
        uses.found.add(cause.site)
        audit.find(RULE, cause.site, **fields)
    elif len(uses.idle) < _MOST:
        uses.idle.setdefault(cause.site, fields)


@on("end", RULE)
def harmless(audit: Recorder) -> None:
    uses = audit.state(Uses)
    for site, fields in uses.idle.items():
        if site not in uses.found:
            audit.find(RULE, site, severity=Severity.INFO, **fields)
    uses.idle.clear()


def _from_zero(event: Op, zero: torch.Tensor) -> int:
    """How many values are not finite because the epsilon was zero: a NaN that came in is another fault."""
    if zero is event.out:  # in place, and overwritten: of zero these functions are infinite
        return int(event.out.isinf().sum())
    return int((~event.out.isfinite() & (zero == 0)).sum())
