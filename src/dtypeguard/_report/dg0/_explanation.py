"""What a page about contracts has, and what several of them share."""

from dataclasses import dataclass

from ..._base.codes import Mistake
from ..._watch.rule import Program


@dataclass(frozen=True, slots=True)
class Explanation:
    """What the page of a mistake has beside its summary.

    Attributes:
        mistake: that is explained.
        what: when it is reported.
        why: why that matters.
        bad: a program with the mistake; `prints` is the text of its exception or warning, `fix` what to write.
        good: a program without it.
        ignore: when the program is right all the same, and what to write then.
        also: links to the parts of the documentation that it belongs to.
    """

    mistake: Mistake
    what: str
    why: str
    bad: Program
    good: Program
    ignore: str
    also: tuple[str, ...]


SEMANTICS = "[What is checked, and what happens then](../semantics.md)"
MODES = (
    '`mode="lenient"` (the default) repairs with a cast, `mode="warn"` only warns, `mode="off"` checks nothing: '
    'on the decorator or the guard, in a `with dtypeguard.mode("warn"):` block, or for the whole program with '
    "`dtypeguard.set_mode`."
)
SKIP = 'A guarded model leaves an argument alone that `guard(model, skip_args=["name"])` names.'
IMPORTS = """\
import torch
from jaxtyping import Float32
from torch import Tensor

import dtypeguard

"""
LOSS = f"""\
{IMPORTS}dtypeguard.set_mode("strict")


@dtypeguard.enforce
def mse(pred: Float32[Tensor, "batch"], target: Float32[Tensor, "batch"]) -> Float32[Tensor, ""]:
    return (pred - target).square().mean()


"""
MODULES = """\
import torch
from torch import nn

import dtypeguard

"""
