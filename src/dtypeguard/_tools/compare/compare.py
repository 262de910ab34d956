"""`compare`: what a lower precision costs a model, and which layers pay."""

import contextlib
import inspect
import math
from collections.abc import Collection, Sequence
from typing import Any, overload

import torch
from torch import nn

from ..._core.base.dtypes import FLOATING, HALF, HalfName, LowName, dtype_of, name_of
from ..._core.base.errors import CompareError, DeviceError
from ..._core.base.modules import root_of
from ..._core.base.options import explained, kind_of, refuse_no_module
from ..._core.base.progress import task
from ..._engine.watch.unrecorded import unrecorded
from ..audit.audit import audit
from ..calls import check_call
from ..formats.emulation import emulated
from ..formats.table import FORMATS
from .batches import Batch, batches_of
from .by_format import FormatComparison, in_formats
from .formatted import Formatted, formatted
from .measure import measure
from .result import Comparison
from .subject import REFUSALS, Loss, Subject, compiling, widest

_BORN = ("DG901", "DG902")  # what makes values that are not finite, or loses their digits
_LOW = (torch.bfloat16, torch.float16, torch.float32)


@overload
def compare(
    model: nn.Module, /, batch: Any, *, format: str | Sequence[str], loss: Loss | None = None, attention: bool = False
) -> FormatComparison: ...


@overload
def compare(
    model: nn.Module, /, batch: Any, *, dtype: torch.dtype | LowName, loss: Loss | None = None
) -> Comparison: ...


@overload
def compare(
    model: nn.Module, /, batch: Any, *, region: torch.dtype | HalfName, loss: Loss | None = None
) -> Comparison: ...


@explained
@unrecorded
def compare(
    model: nn.Module,
    /,
    batch: Any,
    *,
    dtype: torch.dtype | LowName | None = None,
    region: torch.dtype | HalfName | None = None,
    format: str | Sequence[str] | None = None,
    loss: Loss | None = None,
    attention: bool = False,
) -> Comparison:
    """Measure what a lower precision changes in a model's outputs, and which layers and lines that comes from.

    A format of 8 or 4 bits is emulated: the operands of matrix products are rounded to it, and multiplied in float32.
    Layers that no kernel takes, and routers, stay as they are. See `results.FormatComparison`.

    The model runs in the low dtype, without gradients, as it will be used, and in float64. The backward is that of a
    float32 copy of its operations. Copies of the model run: the model, the batch and the random numbers of the program
    stay as they are. A model in training mode drops out the same values in each run.

    Args:
        model: a model in float32 or float64; with `format`, in half precision too.
        batch: a tensor, a tuple of arguments, a dict of keyword arguments, `(value,)` for one argument that is a dict
            or a tuple itself; or a list of such batches, whose errors are taken together. Floating tensors are
            converted as the model is.
        dtype: the dtype to convert a copy of the model to, or its name: "bfloat16", "bf16".
        region: instead of `dtype`, the dtype of a `torch.autocast` region, in which the model keeps its weights.
        format: instead of both, the name of a format, or several of which each layer may get one, as a tuple or with
            commas: "fp8", "fp8:row", "fp8:block", "mxfp8", "mxfp6", "mxfp4", "nvfp4", "int8", "int4", "tf32", "bf16",
            "fp16". Options follow: "int4:64" (groups of 64), "mxfp8:rceil" (scales are rounded up), "mxfp8:e5m2"
            (gradients), "mxfp6:e3m2", "nvfp4:sr" (stochastic rounding), "nvfp4:hadamard" (a random Hadamard transform
            of operands). "int8" and "int4" round weights alone, "int4" in groups of 128.
        loss: a function of the model's output, or of the output and the batch as it was passed. What it returns is
            compared: one number, or the tensors that matter. Without it all tensors of the outputs are, as one vector.
            With `format`, outputs are compared in any case, and the gradients of this loss too.
        attention: with `format`, whether the products of attention are rounded too.

    Returns:
        The error of the outputs, and the share of each layer and line in it; a `FormatComparison` with `format`.

    Raises:
        CompareError: if the model cannot run in the dtype, is in a narrower one, or returns no tensors; if no layer
            goes to a format.
        DeviceError: if a tensor of the batch is on another device than the model, or one of both is on meta.
        TypeError, ValueError: if an argument is of the wrong type, or no dtype to compare.

    >>> import torch, dtypeguard
    >>> model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    >>> result = dtypeguard.compare(model, torch.randn(4, 8), dtype=torch.bfloat16)
    >>> result.error < 0.02
    True
    >>> sorted(layer.name for layer in result.layers)
    ['', '(inputs)', '0', '1', '2']
    """
    title = f"compare({type(model).__name__})"
    with torch.inference_mode(False), task(title):  # in inference mode nothing has a gradient
        subject = _subject(model, batch, dtype, region, format, loss, attention)
        try:
            subject.prepare()
            found = measure(subject, subject.lowered)
        except CompareError:
            raise
        except REFUSALS as error:
            refusal, cause = _refusal(subject, error)
            raise refusal from cause
        if isinstance(subject, Formatted):
            return in_formats(subject, found)
        return Comparison(subject, found, _births(subject) if found.spoilt or found.overflown else ())


def _refusal(subject: Subject, error: Exception) -> tuple[CompareError, Exception]:
    """The refusal of an operation as an audit names it, and its cause."""
    name, told = type(subject.model).__name__, f"{type(error).__name__}: {error}".partition("\n")[0]
    for number, batch in enumerate(subject.batches):
        try:
            with torch.no_grad():
                subject.run(subject.copy(), number, batch.to(None), low=False)
        except Exception as own:
            own.__context__ = None  # the same of another dtype
            given = "the batch" if len(subject.batches) == 1 else f"batch[{number}]"
            if subject.at_loss:
                says = f"the loss does not take what {name} returns for {given}"
            else:
                says = f"{name} does not run on {given} as it is, before any conversion"
            if (held := widest(subject.model)) in HALF:
                says += f", and is in {name_of(held)}: pass it as it was in float32"
            return CompareError._of(f"compare: {says}: {type(own).__name__}: {own}"), own
    for finding in _findings_of(subject, None):
        if finding.severity == "error":
            told = f"{finding.site}: {finding.message}" + (f"\n  {finding.fix}" if finding.fix else "")
            break
    return CompareError(f"compare: {name} does not run in {subject.title}\n  {told}"), error


def _births(subject: Subject) -> tuple[str, ...]:
    """Where values that are not finite are born."""
    found = [finding for finding in _findings_of(subject, True) if finding.rule in _BORN and finding.severity != "info"]
    return tuple(f"{finding.site}: {finding.message}" for finding in found)


def _findings_of(subject: Subject, values: Any) -> list[Any]:
    model = subject.lowered()
    with contextlib.suppress(Exception), audit(values=values) as report, torch.no_grad():
        subject.run(model, 0, subject.batches[0].to(subject.dtype))
    return list(report.findings)


def _subject(
    model: Any, batch: Any, dtype: Any, region: Any, formats: Any, loss: Any, attention: bool
) -> Subject:  # fmt: skip
    refuse_no_module("compare", model, "write a module that calls it")
    given = {"dtype": dtype, "region": region, "format": formats}
    named = [name for name, value in given.items() if value is not None]
    if len(named) != 1:
        raise TypeError(
            "compare takes one of dtype= (the model is converted), region= (an autocast region: it is not) and format= "
            f"(operands of its matrix products are rounded), and got {' and '.join(named) or 'none'}: for example "
            "compare(model, batch, dtype=torch.bfloat16)"
        )
    if attention and formats is None:
        raise TypeError("compare: attention= is for format=: in a dtype or a region all of attention is compared")
    dtype = None if dtype is None else _as_dtype("dtype", dtype, _LOW)
    region = None if region is None else _as_dtype("region", region, HALF)
    if loss is not None and not callable(loss):
        raise TypeError(f"compare: `loss` is {kind_of(loss)}: pass a function of the output")
    compiled, model = compiling(model), root_of(model)
    batches = batches_of(batch)
    for number, one in enumerate(batches):
        check_call("compare", model, one.given, "this batch" if len(batches) == 1 else f"batch[{number}]")
    device = _check_devices(model, batches)
    if formats is None and emulated(model):
        raise CompareError(
            f"compare: {type(model).__name__} rounds to a format, so it is no reference: take that off with "
            "kept.remove(model)"
        )
    if formats is not None:
        return formatted(model, batches, formats, device, with_batch(loss, "compare"), compiled, attention)
    subject = Subject(model, batches, dtype, region, device, with_batch(loss, "compare"), compiled)
    _check_width(subject)
    return subject


def _as_dtype(option: str, value: Any, legal: Collection[torch.dtype]) -> torch.dtype:
    try:
        low = dtype_of(value, option, legal=legal)
    except ValueError:
        if value not in FORMATS:
            raise
        told = f"compare: {option}={value!r} is a format, to which operands are rounded: write format={value!r}"
        raise ValueError(told) from None
    if low not in legal:
        *most, last = sorted(map(name_of, legal))
        weights = ", or format='int8' for weights in 8 bits" if low is torch.int8 else ""
        raise ValueError(
            f"compare: {option}={name_of(low)} is no dtype to compare: use {', '.join(most)} or {last}{weights}"
        )
    return low


def with_batch(loss: Any, tool: str) -> Any:
    """The loss as a function of the output and the batch as the caller gave it."""
    if loss is None:
        return None
    try:
        parameters = [*inspect.signature(loss).parameters.values()]
    except (TypeError, ValueError):
        parameters = []
    required = [p for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    names = ", ".join(p.name for p in required)
    if len(required) > 2 or any(p.kind is p.KEYWORD_ONLY for p in required):
        raise TypeError(f"{tool}: `loss` wants {names}: pass a function of the output, or of the output and the batch")
    if len(required) < 2:
        return lambda out, batch: loss(out)
    return lambda out, batch: loss(out, batch.given)


def _check_devices(model: nn.Module, batches: list[Batch]) -> torch.device:
    first = next((t for t in (*model.parameters(), *model.buffers())), None)
    if first is None:
        return torch.device("cpu")
    if first.is_meta:
        raise DeviceError(f"compare: {type(model).__name__} is on meta, and has no values: pass it with its weights")
    for n, batch in enumerate(batches):
        for name, tensor in batch.tensors():
            if tensor.device != first.device and tensor.ndim:
                of = f" of batch[{n}]" if len(batches) > 1 else ""
                raise DeviceError(
                    f"compare: argument {name}{of} is on {tensor.device}, the model's parameters are on "
                    f"{first.device}: move it with .to({str(first.device)!r})"
                )
    return first.device


def _check_width(subject: Subject) -> None:
    """Refuse a dtype that is no narrower than the model's, and say what it would gain."""
    narrow = [p for p in subject.model.parameters() if p.dtype in FLOATING and _eps(p.dtype) >= _eps(subject.low)]
    if not narrow:
        return
    held, model = narrow[0].dtype, type(subject.model).__name__
    if held is subject.low:
        if held is torch.float32:
            raise CompareError(
                f"compare: {model} has float32 parameters: pass a narrower dtype, torch.bfloat16 for one"
            )
        raise CompareError(
            f"compare: {model} has {name_of(held)} parameters already, so its digits are lost: pass the model in "
            "float32, as it was before it was converted"
        )
    gained = _distance_from_wide(subject)
    raise CompareError(
        f"compare: dtype={subject.low} is wider than the {name_of(held)} parameters of {model}: nothing is lost. "
        f"In {name_of(subject.low)} its outputs change by {gained:.2g} of their norm, which is the error of computing "
        f"in {name_of(held)}; the digits of the weights are lost already"
    )


def _distance_from_wide(subject: Subject) -> float:
    """How far the model's outputs are from those that it has in the wider dtype."""
    own = [p.dtype for p in subject.model.parameters() if p.dtype in FLOATING]
    distance = size = 0.0
    low, wide = subject.copy(), subject.copy().to(subject.low)
    with torch.no_grad():
        for number, batch in enumerate(subject.batches):
            pairs = zip(
                subject.run(low, number, batch.to(max(own, key=_eps)), low=False),
                subject.run(wide, number, batch.to(subject.low), low=False),
                strict=True,
            )
            for one, other in pairs:
                if one.is_floating_point():
                    distance += float((one.double() - other.double()).square().sum())
                    size += float(other.double().square().sum())
    return math.sqrt(distance / size) if size else 0.0


def _eps(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps
