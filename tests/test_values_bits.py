"""`audit(values=True)` runs each operation twice, and leaves what the program wrote to as the program has it."""

import itertools

import pytest
import torch
from support import BF16, F16, F32, F64, assert_same
from torch.testing._internal.common_methods_invocations import (
    foreach_binary_op_db,
    foreach_pointwise_op_db,
    foreach_unary_op_db,
    op_db,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from dtypeguard import audit

INT = torch.int64
RANDOM = ("empty", "new_empty", "rrelu")  # what they give is as memory was


def rough(*shape, dtype=BF16):
    """Numbers of a dtype that wider arithmetic would have otherwise."""
    return (torch.rand(*shape) * 8).to(dtype) * 1.01


def into(operation, *dtypes):
    """What an operation writes to tensors of its caller."""

    def program():
        out = tuple(torch.empty(0, dtype=dtype) for dtype in dtypes)
        operation(out if len(out) > 1 else out[0])
        return out

    return program


def in_lists(operation, *dtypes):
    def program():
        tensors = [torch.ones(3, dtype=dtype) for dtype in dtypes]
        tensors[0] *= 1.01
        operation(tensors)
        return tensors

    return program


def into_integers():
    """All ways in which integers and masks are written to beside half values."""
    rates, counts, mask = rough(5) / 10, torch.zeros(5, dtype=INT), rough(5) > 4
    counts.copy_(rates * 10)
    counts[rates > 0.5] = 7
    counts.index_put_((torch.tensor([0, 0]),), torch.tensor([1, 2]), accumulate=True)
    counts.masked_fill_(rates > 0.7, 3).scatter_(0, torch.tensor([1]), torch.tensor([9])).bitwise_and_(5)
    counts.scatter_reduce_(0, torch.tensor([1, 1]), torch.tensor([4, 5]), "amax")
    mask.logical_and_(rates < 0.9)
    mask ^= rates > 0.6
    torch.add(counts, 1, out=counts)
    return rates, counts, mask, torch.where(mask, counts, -counts)


def into_lists():
    tensors = [rough(3), torch.rand(3), torch.rand(3).double(), torch.arange(3)]
    torch._foreach_copy_(tensors, [torch.ones(3), torch.ones(3).half(), torch.ones(3), torch.ones(3).long()])
    torch._foreach_add_(tensors, tensors)
    torch._foreach_mul_(tensors, [2, 3, 4, 5])
    torch._foreach_lerp_(tensors[:2], [t + 1 for t in tensors[:2]], 0.1)
    torch._foreach_clamp_min_(tensors, -1)
    return tensors, torch._foreach_norm(tensors[:3])


def into_views():
    table, spectrum = torch.zeros(4, 6, dtype=BF16), torch.zeros(3, dtype=torch.complex64)
    table[::2].t()[1:3].add_(1.01)
    table.view(torch.int16)[0] += 1
    table.as_strided((2, 2), (6, 1)).mul_(1.3)
    spectrum.real.copy_(rough(3, dtype=F32))
    torch.view_as_real(spectrum).mul_(1.1)
    return table, spectrum


def into_data():
    parameter, other = torch.nn.Parameter(torch.ones(4, dtype=F16)), torch.zeros(4, dtype=F16)
    parameter.data = parameter.data * 1.01
    parameter.data.copy_(torch.rand(4))
    other.set_(parameter.data)
    other += 1
    return parameter.detach(), other


WRITES = {
    **{program.__name__: program for program in (into_integers, into_lists, into_views, into_data)},
    "argmax": into(lambda out: torch.argmax(rough(6, 40), 1, out=out), INT),
    "sort": into(lambda out: torch.sort(rough(6, 40), 1, out=out), BF16, INT),
    "topk": into(lambda out: torch.topk(rough(6, 40), 5, out=out), BF16, INT),
    "max": into(lambda out: torch.max(rough(6, 40), 1, out=out), BF16, INT),
    "kthvalue": into(lambda out: torch.kthvalue(rough(6, 40), 3, out=out), BF16, INT),
    "gt": into(lambda out: torch.gt(rough(6, 40), 4, out=out), torch.bool),
    "eq": into(lambda out: torch.eq(rough(6, 40), rough(6, 40), out=out), torch.bool),
    "clamp": into(lambda out: torch.clamp(rough(50).round(), 0, 5, out=out), BF16),
    "bucketize": into(lambda out: torch.bucketize(rough(50), torch.arange(8.0).to(BF16), out=out), INT),
    "integers in a list": in_lists(lambda tensors: torch._foreach_add_(tensors, 1), F16, torch.int32),
    "float64 in a list": in_lists(lambda tensors: torch._foreach_mul_(tensors, 3), F16, F64),
    "float32 in a list": in_lists(lambda tensors: torch._foreach_add_(tensors, [t + 1 for t in tensors]), F16, F32),
}


def seeded(program):
    torch.manual_seed(3)
    return program(), torch.get_rng_state()


@pytest.mark.parametrize("name", WRITES)
def test_what_a_program_writes_to_is_written_once(name):
    expected = seeded(WRITES[name])
    with audit(values=True) as report:
        result = seeded(WRITES[name])
    assert_same(result, expected)
    assert report.faults == []


def test_a_file_that_a_tensor_maps_is_mapped_once(tmp_path):
    with audit(values=True) as report:
        mapped = torch.from_file(str(tmp_path / "weights"), shared=True, size=12, dtype=F32)
        mapped.copy_(rough(12, dtype=F32))
        mapped *= 3
        expected = mapped.clone()
    assert_same(torch.from_file(str(tmp_path / "weights"), size=12, dtype=F32), expected)
    assert (tmp_path / "weights").stat().st_size == 48
    assert report.faults == []


class Bare(TorchDispatchMode):
    """Below any mode torch goes other ways with some operations (`svdvals`, `lstsq`), whose last bits are others."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def of_this_program(value):
    """Copies of a sample's tensors that the program has computed, so that they have shadows."""
    return tree_map_only(torch.Tensor, lambda t: t * 1.01 if t.dtype in (BF16, F32) else t.clone(), value)


def ways(op, sample):
    """An operation of torch's own inventory out of place, in place and with `out=`."""
    given = sample.input, sample.args, sample.kwargs

    def plain():
        tensor, args, kwargs = of_this_program(given)
        return op(tensor, *args, **kwargs)

    def in_place():
        tensor, args, kwargs = of_this_program(given)
        return op.inplace_variant(tensor, *args, **kwargs), tensor

    def backward():
        tensor, args, kwargs = tree_map_only(
            torch.Tensor, lambda t: t.requires_grad_() if t.is_floating_point() else t, of_this_program(given)
        )
        results = [t for t in tree_leaves(op(tensor, *args, **kwargs)) if isinstance(t, torch.Tensor)]
        torch.autograd.backward([(t * t).sum() for t in results if t.requires_grad])
        return [t.grad for t in tree_leaves((tensor, args, kwargs)) if isinstance(t, torch.Tensor)]

    def with_out():
        tensor, args, kwargs = of_this_program(given)
        out = tree_map_only(torch.Tensor, torch.zeros_like, op(tensor, *args, **kwargs))
        op(tensor, *args, **kwargs, out=out)
        return out

    yield plain
    if op.supports_autograd:
        yield backward
    if op.inplace_variant is not None:
        yield in_place
    if getattr(op, "supports_out", False):
        yield with_out


def tried(program):
    """The program's result, or its error."""
    try:
        return seeded(program)
    except Exception as error:
        return type(error), str(error)


INVENTORY = [*op_db, *foreach_unary_op_db, *foreach_binary_op_db, *foreach_pointwise_op_db]


@pytest.mark.thin(16)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("op", INVENTORY, ids=lambda op: f"{op.name}-{op.variant_test_name}")
def test_an_operation_gives_the_same_bits(op):
    if op.name in RANDOM or op.name.startswith(("empty_", "new_empty_")):
        return
    for dtype in (BF16, F32, torch.int32):
        if not op.supports_dtype(dtype, "cpu"):
            continue
        samples = itertools.islice(op.sample_inputs("cpu", dtype), 3)
        for program in (way for sample in samples for way in ways(op, sample)):
            with Bare():
                expected = tried(program)
            with audit(values=True) as report:
                result = tried(program)
            assert_same(result, expected)
            assert report.faults == []
