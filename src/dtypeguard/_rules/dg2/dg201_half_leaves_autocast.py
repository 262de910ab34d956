"""DG201 half-leaves-autocast."""

from ..._watch.rule import Rule, Severity

RULE = Rule(
    "DG201",
    "half-leaves-autocast",
    Severity.ERROR,
    summary="",
    says="`{what}` gets {dtype}, which left an autocast region{born}, and {other}: it was refused",
    fix="`.float()` on what leaves the region, or let the region reach this line",
    why="What autocast computes stays in half when the region ends. Outside, nothing is cast any more.",
    sources=(
        "https://docs.pytorch.org/docs/stable/amp.html#autocasting",
        "https://github.com/shawntan/scattermoe/issues/17",
    ),
)
