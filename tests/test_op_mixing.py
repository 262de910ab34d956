"""Which of torch's operations mix floating dtypes in silence: a table, and the audit's rule of promotion held to it.

Every op of torch's own inventory (`op_db`) whose samples have two floating tensors or more is run with one of them in
another dtype. `op_mixing.json` has the answers, and is written by `python tests/test_op_mixing.py`:

- `ops`: an op raises, mixes, or does one or the other, depending on something; and the dtype of what it gives;
- `operations`: the same of what these ops dispatch to, which is what an audit sees. In inference mode composite
  operations come whole, so there each op runs in both modes.
"""

import functools
import json
import warnings
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from support import BF16, F16, F32, F64
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten
from versions import need

import dtypeguard
from dtypeguard._engine.ops import _PROMOTING, operator_of

FILE = Path(__file__).with_name("op_mixing.json")
TABLE = json.loads(FILE.read_text()) if FILE.exists() else {"ops": {}, "operations": {}}
CHANGES = [(F32, F64), (F32, F16), (F32, BF16), (F16, F32), (BF16, F32)]  # of all floating tensors, and of one


class Operand(NamedTuple):
    dtype: torch.dtype
    ndim: int
    empty: bool


class Case(NamedTuple):
    operands: tuple[Operand, ...]
    odd: int  # which of them has the other dtype
    raised: bool
    result: torch.dtype | None  # the first floating one's


def widest(operands):
    return functools.reduce(torch.promote_types, (operand.dtype for operand in operands))


# What the dtype of the result follows: the first that is right in every case.
RESULTS = {
    "none": lambda operands: None,  # no floating result
    "result_type": lambda operands: widest([operand for operand in operands if operand.ndim] or operands),
    "widest": widest,  # whether they have axes or not
    "first": lambda operands: operands[0].dtype,
    "second": lambda operands: operands[1].dtype,
}
# What tells the cases that raise from those that do not: likewise.
DEPENDS = {
    "argument": lambda case: case.odd,
    "empty": lambda case: any(operand.empty for operand in case.operands),
    "axes": lambda case: [operand.ndim > 0 for operand in case.operands],
    "dtypes": lambda case: {operand.dtype for operand in case.operands},
    "argument and axes": lambda case: (case.odd, case.operands[case.odd].ndim > 0),
    "argument and dtypes": lambda case: (case.odd, [operand.dtype for operand in case.operands]),
}


# ---------------------------------------------------------------- measuring


class Record(TorchDispatchMode):
    """Of each operation that is given several floating dtypes: the operands, and the dtype of the result."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        operands = tuple(map(operand, floating([args, kwargs])))
        out = func(*args, **kwargs or {})
        single = isinstance(out, Tensor) and not func._schema.is_mutable  # what is written to keeps its dtype
        if single and func.namespace == "aten" and len({operand.dtype for operand in operands}) > 1:
            self.calls.append((str(func), operands, dtype_of(out)))
        return out


def floating(tree):
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor) and leaf.is_floating_point()]


def operand(tensor):
    return Operand(tensor.dtype, tensor.ndim, tensor.numel() == 0)


def dtype_of(tree):
    dtypes = [leaf.dtype for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
    return next((d.to_real() if d.is_complex else d for d in dtypes if d.is_floating_point or d.is_complex), None)


def variants(op):
    """Each sample with one of its floating tensors in another dtype: a call, its operands, and which of them."""
    for sample in op.sample_inputs("cpu", F32):
        leaves, spec = tree_flatten((sample.input, sample.args, sample.kwargs))
        at = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and leaf.is_floating_point()]

        def call(values, spec=spec):
            first, args, kwargs = tree_unflatten(values, spec)
            return op(first, *args, **kwargs)

        for dtype, other in CHANGES if len(at) > 1 else ():
            same = [leaf.to(dtype) if place in at else leaf for place, leaf in enumerate(leaves)]
            if succeeds(call, same):
                for odd, place in enumerate(at):
                    mixed = [*same[:place], same[place].to(other), *same[place + 1 :]]
                    yield functools.partial(call, mixed), tuple(operand(mixed[place]) for place in at), odd


def succeeds(call, values):
    try:
        call(list(values))
    except Exception:
        return False
    return True


def measure(op):
    """Its cases, and the calls of operations with mixed dtypes in them."""
    cases, calls = [], []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for call, operands, odd in variants(op):
            with Record() as record:
                try:
                    case = Case(operands, odd, False, dtype_of(call()))
                except NotImplementedError:  # a kernel that one dtype does not have at all says nothing of mixing
                    continue
                except Exception:
                    case = Case(operands, odd, True, None)
                else:
                    with torch.inference_mode():
                        call()
            cases.append(case)
            calls += record.calls
    return cases, calls


def summary(cases):
    """The row of an op."""
    passed, raised = [[case for case in cases if case.raised is which] for which in (False, True)]
    if not passed:
        return "raises"
    result = follows((case.operands, case.result) for case in passed)
    if not raised:
        return f"mixes: {result}"
    reasons = (name for name, key in DEPENDS.items() if not any(key(a) == key(b) for a in passed for b in raised))
    return f"depends on {next(reasons, 'several')}: {result}"


def follows(results):
    results = set(results)
    right = (name for name, rule in RESULTS.items() if all(rule(operands) is result for operands, result in results))
    return next(right, "several")


@functools.cache
def inventory():
    from torch.testing._internal.common_methods_invocations import op_db  # 4 s

    return {op.full_name: op for op in op_db if F32 in op.dtypes}


def write():
    ops, results = {}, defaultdict(set)
    for name, op in inventory().items():
        cases, calls = measure(op)
        if cases:
            ops[name] = summary(cases)
        for operation, operands, result in calls:
            results[operation].add((operands, result))
    operations = {name: follows(results[name]) for name in sorted(results)}
    FILE.write_text(json.dumps({"torch": torch.__version__, "ops": ops, "operations": operations}, indent=1) + "\n")


# ---------------------------------------------------------------- the table

# Where a processor has no kernel that takes the mix, PyTorch refuses it.
BY_PROCESSOR = {"nn.functional.conv1d": "raises"}
QUICK = """add addcmul addr atan2 cat cdist einsum index_put lerp matmul mul select_scatter stack where
nn.functional.binary_cross_entropy_with_logits nn.functional.cross_entropy nn.functional.huber_loss nn.functional.linear
nn.functional.layer_norm nn.functional.mse_loss""".split()


@pytest.mark.thin(4)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in TABLE["ops"]]
)
def test_an_op_does_with_two_dtypes_what_the_table_says(name):
    cases, calls = measure(inventory()[name])
    assert summary(cases) in (TABLE["ops"][name], BY_PROCESSOR.get(name))
    for operation, operands, result in calls:
        rule = TABLE["operations"][operation]
        assert rule == "several" or RESULTS[rule](operands) is result, (operation, operands, result)


@pytest.mark.slow
def test_the_table_has_every_op_with_two_floating_tensors():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert {name for name, op in inventory().items() if any(True for _ in variants(op))} == set(TABLE["ops"])


# ---------------------------------------------------------------- the audit

PROMOTE = {"result_type", "widest", "second", "several"}
MARKED = {
    "huber_loss": True,  # it gives the dtype of its input, but backward refuses
    "bmm": False,  # it mixes only where there is nothing to multiply
    "matmul": False,
    "linalg_pinv": False,  # of its tolerances, which have no axes
    "logspace": False,  # of its ends, which have none; the result has the default dtype
}


@pytest.mark.parametrize("name", [name for name, rule in TABLE["operations"].items() if rule != "none"])
def test_the_audit_marks_what_promotes(name):
    library, operation, overload = name.split(".")
    if operation == "ldexp":
        need("torch", "2.13", "it is known as an operation of one dtype")
    trait = operator_of(getattr(getattr(getattr(torch.ops, library), operation), overload))
    assert trait.promotes is MARKED.get(operation, TABLE["operations"][name] in PROMOTE)


def test_what_never_mixes_is_not_marked():
    mixing = {name.split(".")[1] for name, rule in TABLE["operations"].items() if rule != "none"}
    assert mixing >= _PROMOTING


def x(*shape, dtype=F32):
    return torch.full(shape, 0.5, dtype=dtype)


def d(*shape):
    return x(*shape, dtype=F64)


PROGRAMS = {  # composite ones, which come whole in inference mode, and others; whether a promotion is found
    "addr": (lambda: torch.addr(x(3, 2), d(3), x(2)), True),
    "column_stack": (lambda: torch.column_stack([x(3), d(3)]), True),
    "cosine_embedding_loss": (lambda: F.cosine_embedding_loss(x(2, 3), d(2, 3), torch.ones(2)), True),
    "cross_entropy_loss": (lambda: F.cross_entropy(x(2, 3), d(2, 3)), True),
    "einsum": (lambda: torch.einsum("i,j->ij", x(2), d(3)), True),
    "floor_divide": (lambda: x(3) // d(3), True),
    "stft": (lambda: torch.stft(x(16), 4, window=d(4), return_complex=True), True),
    "binary_cross_entropy": (lambda: F.binary_cross_entropy(x(3), x(3), weight=d(3)), False),
    "masked_fill": (lambda: x(3).masked_fill(x(3) > 1, d()), False),
    "select_scatter": (lambda: torch.select_scatter(x(3, 2), d(2), 0, 1), False),
    "view_as": (lambda: x(3).view_as(d(3)), False),
}


@pytest.mark.parametrize("inference", [False, True], ids=["eager", "inference"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_promotion_is_found_whatever_the_operation(name, inference):
    program, promotes = PROGRAMS[name]
    with dtypeguard.audit() as report, torch.inference_mode(inference):
        result = program()
    assert report.faults == []
    assert ("DG101" in {finding.rule for finding in report.findings}) is promotes
    assert promotes or (result.dtype is F32 and report.findings == [])


if __name__ == "__main__":
    write()
