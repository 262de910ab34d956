"""What a dry run is held to: the cells of a model, each beside what eager PyTorch does with real tensors."""

import contextlib
import copy
import inspect
import warnings
from collections import Counter
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.utils import _pytree

import dtypeguard
from dtypeguard._tools.calls import autocast, converted, flat, seed

CPU = torch.device("cpu")


class Verdict(NamedTuple):
    """Whether it runs, and the dtypes of what comes out."""

    runs: bool
    outputs: tuple[torch.dtype, ...] = ()


def is_floating(leaf):
    return isinstance(leaf, Tensor) and leaf.is_floating_point()


def mapped(change, value):
    return _pytree.tree_map(lambda leaf: change(leaf) if isinstance(leaf, Tensor) else leaf, value)


def fresh(value, dtype):
    """Copies, floating ones in a dtype."""
    return mapped(
        lambda t: t.detach().clone().to(dtype if dtype is not None and t.is_floating_point() else t.dtype), value
    )


def eager(model, args, kwargs, cell):
    """What PyTorch does in a cell."""
    seed(0)
    try:
        made = converted(copy.deepcopy(model), cell.parameters, CPU)
        with warnings.catch_warnings(action="ignore"), region(cell):
            result = made(*fresh(args, cell.inputs), **fresh(kwargs, cell.inputs))
    except Exception:
        return Verdict(False)
    return Verdict(True, tuple(leaf.dtype for _, leaf in flat(result) if isinstance(leaf, Tensor)))


def region(cell):
    return autocast(None if cell.region is None else ("cpu", cell.region))


def without_values(model, args, kwargs):
    """The same with no value of a weight or floating input: all of them on meta."""
    model, known = copy.deepcopy(model), {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if type(parameter) is nn.Parameter:
                meta = nn.Parameter(parameter.detach().to("meta"), parameter.requires_grad)
                module._parameters[name] = known.setdefault(id(parameter), meta)
    moved = mapped(lambda t: t.detach().to("meta") if t.is_floating_point() else t, (args, kwargs))
    return model, *moved


def compared(model, args=(), kwargs=None, *, values=True, **options):
    """Of each cell how the dry run compares with eager: 'agree', 'missed', 'false', 'dtype' or 'unknown'."""
    kwargs = kwargs or {}
    given = (model, args, kwargs) if values else without_values(model, args, kwargs)
    table = dtypeguard.dryrun(given[0], bound(*given), device="cpu", **options)
    return {cell.title: judged(cell, eager(model, args, kwargs, cell)) for cell in table}


def bound(model, args, kwargs):
    return inspect.signature(model.forward).bind(*args, **kwargs)


def judged(cell, truth):
    known = None if cell.status == "unknown" else Verdict(cell.status == "runs", cell.outputs)
    return likeness(known, truth)


def likeness(verdict, truth):
    """How a verdict, None for none, compares with what is true."""
    if verdict is None:
        return "unknown"
    if verdict.runs != truth.runs:
        return "missed" if verdict.runs else "false"
    return "agree" if not truth.runs or verdict.outputs == truth.outputs else "dtype"


def tally(*compared):
    return Counter(verdict for one in compared for verdict in one.values())


# ---------------------------------------------------------------- PyTorch's own operations


class Operation(nn.Module):
    """An operation with its first floating tensor as a parameter, and the others as inputs: cells mix their dtypes."""

    def __init__(self, op, sample):
        super().__init__()
        leaves, spec = _pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
        places = [n for n, leaf in enumerate(leaves) if is_floating(leaf)]
        self.example = [leaves[n].detach() for n in places]
        if len(places) > 1:
            self.first = nn.Parameter(self.example.pop(0), requires_grad=False)

        def call(floats):
            given = dict(zip(places, floats, strict=True))
            first, args, kwargs = _pytree.tree_unflatten([given.get(n, leaf) for n, leaf in enumerate(leaves)], spec)
            return op.op(first, *args, **kwargs)

        self.call = call

    def forward(self, *inputs):
        return self.call((*self.parameters(), *inputs))


def operations(op, count):
    """Models of an operation, for its first samples that compute in float32."""
    torch.manual_seed(0)
    made = []
    for sample in op.sample_inputs("cpu", torch.float32):
        leaves = _pytree.tree_leaves((sample.input, sample.args, sample.kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        if not any(map(is_floating, tensors)) or any(t.layout is not torch.strided for t in tensors):
            continue
        model = Operation(op, sample)
        inputs = tuple(vars(model).pop("example"))
        with contextlib.suppress(Exception), warnings.catch_warnings(action="ignore"):
            copy.deepcopy(model)(*fresh(inputs, torch.float32))
            made.append((model, inputs))
        if len(made) == count:
            break
    return made


def fake(model, args, cell):
    """The verdict of FakeTensor alone; None where it depends on values."""
    try:
        made = converted(copy.deepcopy(model), cell.parameters, CPU)
        given = [*made.parameters(), *fresh(args, cell.inputs)]
        with FakeTensorMode(allow_non_fake_inputs=True) as mode, warnings.catch_warnings(action="ignore"), region(cell):
            result = made.call([mode.from_tensor(tensor.detach()) for tensor in given])
    except (DataDependentOutputException, DynamicOutputShapeException):
        return None
    except Exception:
        return Verdict(False)
    return Verdict(True, tuple(leaf.dtype for _, leaf in flat(result) if isinstance(leaf, Tensor)))
