"""DG104 repeated-cast."""

from ..._watch.rule import Rule, Severity

RULE = Rule(
    "DG104",
    "repeated-cast",
    Severity.WARNING,
    summary="",
    says=("the same {was} tensor of {size} was cast to {dtype} {times} times, {total} in all, and it did not change"),
    fix="cast it once, before the loop, or register it as a buffer of the module so that `.to()` reaches it",
    why="A cast reads and writes the whole tensor. Of a constant it gives the same result each time.",
    sources=("https://docs.pytorch.org/docs/stable/generated/torch.Tensor.to.html",),
)
