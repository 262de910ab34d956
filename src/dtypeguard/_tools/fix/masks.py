"""What may be written for numbers that stand for infinity, and for masks."""

import ast
import re
from collections.abc import Iterator

import libcst as cst
import torch

from ..._core.base.dtypes import FLOATING, HALF, name_of
from .casts import Source
from .code import At, Place, move
from .source import Candidate, Node, argument


@move
def fill_of_dtype(place: Place, at: At) -> Iterator[Candidate]:
    """Fills with the dtype's own limit."""
    source, call = at.source, at.node
    if not isinstance(call, cst.Call) or not source.torch():
        return
    owners = [f"{source.code(on)}.dtype" for on in [source.on(call)] if on is not None]
    if (said := argument(call, "dtype")) is not None:
        owners.append(source.code(said.value))
    kind = "finfo" if place.finding.from_dtype in FLOATING else "iinfo"
    for arg in call.args if owners else ():
        code = source.code(arg.value)
        if code.lstrip("-")[:1].isdigit() or "finfo" in code:
            limit = "min" if code.startswith("-") or code.endswith("min") else "max"
            yield [source.replace(arg.value, f"{source.torch()}.{kind}({owners[-1]}).{limit}")]


@move
def limit_of_dtype(place: Place, at: At) -> Iterator[Candidate]:
    """Takes the limits of the dtype, where a wider one has larger ones."""
    source = at.source
    for one in source.below(at.node, cst.Float, cst.Integer) if place.finding.from_dtype in HALF else ():
        negative, number = source.parents[one], ast.literal_eval(source.code(one))
        if number > torch.finfo(place.narrow).max and isinstance(negative, cst.UnaryOperation):
            yield from _filled(at) if source.torch() else ()
            for owner in [f"{name}.dtype" for name in source.like(at.node)] if source.torch() else ():
                yield [source.replace(negative, f"{source.torch()}.finfo({owner}).min")]
    for call in source.below(at.node, cst.Call) if place.finding.from_dtype in HALF else ():
        code = source.code(call.func)
        if code == f"{source.torch()}.finfo" and len(call.args) == 1 and _says_wide(source, call.args[0].value):
            said = [one for one in source.below(at.node, cst.Attribute) if source.code(one).endswith(".dtype")]
            given = dict.fromkeys([*map(source.code, said), *(f"{name}.dtype" for name in source.like(at.node))])
            for owner in [*given, source.dtype_code(place.narrow)]:
                yield [source.replace(call.args[0].value, owner)]


def _filled(at: At) -> Iterator[Candidate]:
    """`scores.masked_fill(mask == 0, torch.finfo(scores.dtype).min)` for `scores + (1 - mask) * -1e9`."""
    source, outer = at.source, at.source.parents[at.node]
    if not isinstance(outer, cst.BinaryOperation) or not isinstance(at.node, cst.BinaryOperation):
        return
    scores = outer.right if outer.left is at.node else outer.left
    for one in (at.node.left, at.node.right) if isinstance(scores, cst.Name) else ():
        if isinstance(one, cst.BinaryOperation) and re.fullmatch(r"1(\.0?)?", source.code(one.left)):
            filled = f"{source.closed(one.right)} == 0, {source.torch()}.finfo({source.code(scores)}.dtype).min"
            yield [source.replace(outer, f"{source.code(scores)}.masked_fill({filled})")]


def _says_wide(source: Source, node: Node) -> bool:
    return source.code(node) in [f"{source.torch()}.{name_of(dtype)}" for dtype in (torch.float32, torch.float64)]


@move
def bool_mask(place: Place, at: At) -> Iterator[Candidate]:
    """Gives a bool mask."""
    source, node = at.source, at.node
    if isinstance(node, cst.Call):
        masks = [arg for arg in node.args if arg.keyword and "mask" in arg.keyword.value] or list(node.args[3:])
        hides = source.called(node) != "scaled_dot_product_attention"  # to which True means: look at it
        for arg in masks:
            known = _hides(At(source, arg.value), place)
            text = "~" if known is not None and known is not hides else ""
            yield [source.replace(arg.value, f"{text}{source.closed(arg.value)}.bool()")]
    if isinstance(node, cst.BinaryOperation):
        for mask, scores in ((node.right, node.left), (node.left, node.right)):
            if (hidden := _hides(At(source, mask), place)) is not None:
                text = f"{'' if hidden else '~'}{source.closed(mask)}.bool()"
                yield [source.replace(node, f"{source.closed(scores)}.masked_fill({text}, float('-inf'))")]
                return


_INVERTED = re.compile(r"\(*(~|1(\.0?)?\s*-|\w+\.logical_not\()|.*\.logical_not\(\)")


def _hides(mask: At, place: Place) -> bool | None:
    """Whether a 1 in a mask hides a place, as its name or what it is made of says; None where nothing does."""
    code = mask.source.code(mask.node)
    written = [one.source.code(one.node) for one in mask.origins()]
    ran = [step.rpartition(" at ")[0] for step in reversed(place.finding.origin)]  # nothing, if lines were left out
    for texts in [code, *written], ran if all(ran) else []:
        inverted = False
        for text in texts:
            inverted ^= bool(_INVERTED.match(text))
            for hides, words in (False, ("tril", "!=")), (True, ("triu", "==")):
                if any(word in text for word in words):
                    return hides is not inverted
    inverted = bool(_INVERTED.match(code))
    for hides, names in (False, r"attention_mask|valid|keep"), (True, r"pad|causal|hid"):
        if re.search(names, code):
            return hides is not inverted
    return None
