"""DG901 value-born."""

import ast
import contextlib
import itertools
import math

import torch

from ..._core.base.dtypes import HALF, name_of
from ..._engine.values.engine import Harm
from ..._engine.values.leaving import GRADIENT, PARAMETER
from ..._engine.values.rows import Cause, Row
from ..._engine.watch.events import Op, on, readable
from ..._engine.watch.recorder import Recorder
from ..._engine.watch.rule import Rule, Severity
from ..._engine.watch.text import limit, size_of
from ..dg1.dg113_epsilon_vanishes import SMALLEST
from ._forms import instead
from ._harm import compute, enter, found_at, keep, lost_before, number, wide_of

RULE = Rule(
    "DG901",
    "value-born",
    Severity.ERROR,
    summary="Finite values become infinite, NaN or zero.",
    says="`{what}`{back}: {count} values {become}{wider}{reached}{lost}",
    fix="{advice}",
    why=(
        "float16 ends at 65504 and has nothing below 6e-8; a quotient, a root or a logarithm of zero is not finite in "
        "any dtype. One such value makes everything that is computed from it NaN, the loss and all parameters after "
        "the next step included. This rule looks at values, so an audit needs `values=\"range\"` or `values=True`; the"
        " second also says what a wider dtype has in the value's place. Values that nothing is computed from any more "
        "(masked scores, gradients that a GradScaler throws away) are an info."
    ),
    at_birth=True,
    unsafe=(
        "limit_of_dtype", "stable_form", "called_in_wider", "buffers_stay", "layer_in_float32", "widen_behind",
        "widen_operands", "widen_rounding", "retype_inside", "widen_origins",
    ),
    converts=False,
    sources=(
        "https://docs.pytorch.org/docs/stable/notes/numerical_accuracy.html#extremal-values",
        "https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling",
    ),
)  # fmt: skip

_LARGEST = torch.finfo(torch.float16).max
_BEFORE = 4  # lines at which an epsilon may stand
_MIDDLE, _TOP = -4, 14  # powers of two: of the range of float16, and below its end
_INSTEAD = {  # functions that overflow in every dtype
    "exp": "softmax, log_softmax and logsumexp subtract the largest value before they call exp: use the one that this "
    "is a part of, or clamp what goes in"
}
_CASTS = frozenset(["_to_copy", "copy_"])
_DETERMINANT = "compute its logarithm: `torch.linalg.slogdet(matrix).logabsdet`"
_DIVISOR = "keep the divisor from zero: an epsilon, or float64 for large numbers of which it is the difference"
_ROOT, _LOG = "an epsilon below the root, or a clamp", "an epsilon below the logarithm, or a clamp"
_NOTHING = "no value is left to average: ask how many there are first, or divide a sum by that number, clamped to 1"
_MASKED = (
    "where all scores of a row are -inf, as where all of it is masked, there is no result: mask with a finite number, "
    "`torch.finfo(scores.dtype).min`, or leave such rows out"
)
_FINITE = {  # what to do about arguments for which there is no finite result
    **dict.fromkeys(["mean", "nll_loss_forward", "nll_loss2d_forward"], _NOTHING),
    **dict.fromkeys(["softmax", "_softmax", "log_softmax", "_log_softmax"], _MASKED),
    **dict.fromkeys(["var", "std", "var_mean", "std_mean"], "of one value it is NaN: `correction=0`, or more values"),
    **dict.fromkeys(["acos", "asin", "atanh", "acosh"], "clamp its argument, a little inside of where it is defined"),
    **dict.fromkeys(["div", "reciprocal", "true_divide"], _DIVISOR), **dict.fromkeys(["sqrt", "rsqrt"], _ROOT),
    **dict.fromkeys(["log", "log2", "log10", "log1p"], _LOG),
}  # fmt: skip


@on("harmed", RULE)
def born(harm: Harm, audit: Recorder) -> None:
    row = harm.row
    dtype = name_of(row.dtype)
    if harm.cause is Cause.BORN:
        if row.backward and not harm.felt and not row.unread:  # torch puts zeros there, as behind a norm of 0
            return
        if row.name.endswith(".step") and "DG404" in found_at(row, audit):  # a division by the eps that it names
            return
        bad, of = (row.born, row.of) if row.of else (row.lost, row.count)
        count = f"{bad} of {of}" if bad else "some"  # on a GPU they can be gone before anybody counts them
        become = "are NaN when they come in" if row.given else f"become infinite or NaN in {dtype}"
    elif harm.cause is Cause.FLUSHED:
        count, become = f"{row.flushed} of {row.count}", f"become zero in {dtype}"
    else:
        return
    lost = lost_before(row) if harm.cause is Cause.BORN and row.lost and not _is_too_large(row) else None
    kept = keep(row) if lost is None and harm.cause is Cause.BORN and row.lost and row.dtype not in HALF else None
    past = {(found.file, found.line) for found in audit.findings.rows() if found.rule == "DG312"}
    skipped = _is_skipped(harm, audit, past)
    buffers = found_at(row, audit).get("DG501")  # those that a line converts: parameters are small
    advice = buffers or kept or _advice(harm, lost, skipped and not past)
    facts = {"count": count, "become": become, "wider": _wider(harm), "advice": advice}
    enter(RULE, audit, row, facts, harm, Severity.INFO if skipped else None, lost or (row.rounded() if kept else None))


@on("after", RULE, ops=["_linalg_det"])
def determinant(event: Op, audit: Recorder) -> None:
    """A product of many numbers in float64, for which nothing wider tells that it is too small or too large."""
    result, factors = event.out[:2]
    if audit.values is None or result.dtype is not torch.float64 or event.backward or not readable(result, factors):
        return
    diagonal = factors.detach().diagonal(dim1=-2, dim2=-1)
    regular = diagonal.isfinite().all(-1) & (diagonal != 0).all(-1)
    lost = int((regular & ((result == 0) | result.isinf())).sum())
    if lost:
        facts = dict.fromkeys(["back", "reached", "lost"], "") | {
            "count": f"{lost} of {result.numel()}", "become": "become zero or infinite in float64",
            "wider": ", as the determinant of a matrix that is not singular", "advice": _DETERMINANT,
        }  # fmt: skip
        audit.find(
            RULE, facts={"what": event.what, **facts}, site=event.site, module=event.module, op=event.name,
            from_dtype=result.dtype, bytes=size_of(event.inputs[0]),
        )  # fmt: skip


def _is_too_large(row: Row) -> bool:
    """Whether the wider dtype has a value that this one has not, whatever digits were lost before."""
    there = 0.0 if row.example is None else abs(row.example[1])
    return not row.backward and there < math.inf and there > torch.finfo(row.dtype.to_real()).max


def _is_skipped(harm: Harm, audit: Recorder, past: set[tuple[str | None, int | None]]) -> bool:
    """Whether a GradScaler sees it and skips the step: a gradient in float16, also one that a penalty is made of.

    It would see it too where a step goes past it, at the lines that DG312 tells.
    """
    steps = {
        site for what, site in harm.felt
        if what in (GRADIENT, PARAMETER) and not (site is not None and (site.file, site.line) in past)
    }  # fmt: skip
    return harm.row.backward and harm.row.dtype is torch.float16 and not steps and (audit.values.scaled or bool(past))


def _example(harm: Harm) -> float | None:
    """What the wider dtype has in place of a value; None where that was lost before this line, which lost others."""
    row = harm.row
    if row.example is None:
        return None
    here, there = row.example
    lost = row.lost or (math.isfinite(there) and not math.isfinite(here))
    return there if harm.cause is not Cause.BORN or (lost and not math.isinf(row.incoming)) else None


def _wider(harm: Harm) -> str:
    there = _example(harm)
    return "" if there is None else f", where {wide_of(harm.row)} has {number(there)}"


def _advice(harm: Harm, lost: Row | None, skipped: bool) -> str:
    row = harm.row
    if row.given:
        return "find where the values come from: data with gaps, a state that was saved after a bad step"
    if (written := instead(row)) is not None:
        return written
    if lost is not None:
        return compute(lost, "it makes roundings large")
    overflows = row.dtype is torch.float32 or row.born > row.lost  # in the wider dtype of half precision too
    if harm.cause is Cause.BORN and overflows and row.name.rstrip("_") in _INSTEAD:
        return _INSTEAD[row.name.rstrip("_")]
    info = torch.finfo(row.dtype)
    scale = (
        f"scale what goes in: {name_of(row.dtype)} holds values from {limit(info.smallest_normal)} to {limit(info.max)}"
    )
    there = _example(harm)
    divides = row.name.rstrip("_") in _FINITE or (row.name == "pow" and harm.cause is Cause.BORN)
    size = row.largest if there is None or not row.lost else abs(there)
    if row.backward and row.dtype is torch.float16 and 0 < size < math.inf:
        power = math.ceil(math.log2(size))
        if harm.cause is Cause.FLUSHED:
            return (
                f"scale the loss: gradients of about 2**{power} are zero in float16, and 2**{_MIDDLE - power} times as "
                "large they are not. `GradScaler` begins with 2**16 and finds the scale by itself"
            )
        if skipped and (size > info.max or not divides):
            return "nothing is to be done: the `GradScaler` skips such a step, and lowers its scale"
        itself = "`GradScaler` finds the scale by itself, and skips steps until then"
        if size > info.max:
            least, far = max(1, power - _TOP), f"gradients of about 2**{power} are infinite in float16"
            return f"divide the loss by 2**{least} or more: {far}. {itself}"
        if not divides:
            far = "a gradient, or what it is the sum of, is too large for float16"
            return f"divide the loss by 2 or more: {far}. {itself}"
    if harm.cause is Cause.FLUSHED or there is not None:
        if row.dtype is torch.float16:  # a divisor that is zero by now is so in every dtype
            inputs = " and what goes into it" if divides else ""
            if inputs and (eps := _vanished(row)):
                return (
                    f"{eps} is 0 in float16: use an eps that float16 has, 1e-4 and up, or compute it in {wide_of(row)}"
                )
            if number := _beyond(row):
                end = "min" if number.startswith("-") else "max"
                return f"{number} is infinite in float16: use `torch.finfo(x.dtype).{end}`, or compute it in float32"
            return f"compute it{inputs} in {wide_of(row)}, or {scale}"
        return f"compute it in {wide_of(row)}, and what goes into it: the digits that keep it finite are lost before"
    if row.name in _CASTS:
        return f"keep in {wide_of(row)} what does not fit, or {scale}"
    finite = _FINITE.get(row.name.rstrip("_"), "keep its arguments where the result is finite")
    return f"{finite}; or {scale}" if row.dtype is torch.float16 else finite


def _beyond(row: Row) -> str | None:
    """A number in the code of a line that float16 does not have, and that values are computed with."""
    with contextlib.suppress(SyntaxError):
        code = row.site.expression
        for node in ast.walk(ast.parse(code, mode="eval")):
            parts = [node.left, node.right] if isinstance(node, ast.BinOp) else []
            for one in parts:
                value = one.operand if isinstance(one, ast.UnaryOp) else one
                if isinstance(value, ast.Constant) and isinstance(value.value, float | int) and value.value > _LARGEST:
                    return ast.get_source_segment(code, one)
    return None


def _vanished(row: Row) -> str | None:
    """A number in the code of a line, or of those before it, that is 0 in float16."""
    for one in itertools.islice(row.chain(), _BEFORE):
        with contextlib.suppress(SyntaxError):
            for node in ast.walk(ast.parse(one.site.expression, mode="eval")):
                if isinstance(node, ast.Constant) and isinstance(node.value, float) and 0 < node.value < SMALLEST:
                    return f"{node.value:g}"
    return None
