"""DG116 coarse-noise."""

import torch

from .._kit import HALF, Op, Recorder, Rule, Severity, name_of, on

RULE = Rule(
    "DG116",
    "coarse-noise",
    Severity.WARNING,
    summary="Half-precision uniform noise goes into a logarithm.",
    says=(
        "`{what}` takes uniform numbers that were drawn in {dtype} at {drawn}: about one in {often} of them is 0, in "
        "float32 one in 16 million"
    ),
    fix="draw them in float32: `torch.rand(..., dtype=torch.float32)`, and cast the result",
    why=(
        "A uniform number in half precision has 11 or 8 bits, so 0 comes often, and its logarithm is infinite. Gumbel "
        "and exponential noise, and samples of small probabilities, are made of the smallest numbers: their tail is "
        "cut off."
    ),
    unsafe=("retype_inside", "widen_origins"),
    sources=("https://docs.pytorch.org/docs/stable/generated/torch.rand.html",),
)

_DRAWS = frozenset(["rand", "rand_like", "uniform"])
_HAND_ON = frozenset(["neg", "rsub", "sub", "add", "clamp", "clamp_min", "clone"])  # what is done with them before
_OFTEN = {torch.float16: "some thousand", torch.bfloat16: "some hundred"}


@on("after", RULE, ops=["log", "log_", "log2", "log10", "log1p"])
def logarithm(event: Op, audit: Recorder) -> None:
    node = None if event.backward else audit.lineage.get(event.inputs[0])
    while node is not None and node.op in _HAND_ON and node.parents:
        node = node.parents[0]
    if node is not None and node.op in _DRAWS and node.dtype in HALF:
        facts = {"drawn": str(node.site), "dtype": name_of(node.dtype), "often": _OFTEN[node.dtype]}
        audit.suspect(RULE, event, event.inputs[0], **facts).find(audit)
