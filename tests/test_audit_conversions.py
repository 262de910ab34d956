"""DG103 to DG109, DG111 and DG112 of an audit: conversions that lose a result, a value or time."""

import io
import math
import operator
import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from audit_cases import Cases, audited, bad, it_is_found, nothing_is_found, run
from support import BF16, F8, F16, F32, F64
from torch import nn
from torch._subclasses import FakeTensorMode

import dtypeguard

BUGS, HEALTHY = Cases(), Cases()
U8, I8, I16, I32 = torch.uint8, torch.int8, torch.int16, torch.int32


@pytest.mark.parametrize("case", BUGS, ids=str)
def test_a_conversion_that_loses_something_is_found_at_its_line(case):
    it_is_found(case)


@pytest.mark.parametrize("case", HEALTHY, ids=str)
def test_a_healthy_conversion_gives_no_warning(case):
    nothing_is_found(case)


# ---------------------------------------------------------------- DG103: the result of a cast is thrown away


@BUGS.add("DG103", "x.half()", from_dtype=F32, to_dtype=F16, op="half", origin=["torch.ones(3)"], message=(
    "`x.half()` gives a new float16 tensor, and it is thrown away: `x` stays float32"
))  # fmt: skip
def half_is_taken_for_an_in_place_method():
    x = torch.ones(3)
    x.half()
    return x


class Casting(nn.Module):
    def forward(self, x):
        x.to(torch.bfloat16)
        return x * 2


@BUGS.add("DG103", 'x.to("meta")', from_dtype=F32, to_dtype=F32, message=(
    '`x.to("meta")` gives a new meta tensor, and it is thrown away: `x` stays on cpu'
))  # fmt: skip
def a_tensor_is_moved_and_forgotten():
    x = torch.ones(3)
    x.to("meta")
    return x


@HEALTHY.add()
def casts_within_statements():
    x, found = torch.ones(3), []
    found.append(x.half())
    found.extend([x.bfloat16(), x.double()])
    print(x.half(), end="", file=io.StringIO()) if x.int().any() else None
    assert x.half() is not None
    if x.bool().all():
        found.append(*(x.half(),))
    x.half().sum().item()
    return found


@HEALTHY.add()
def statements_that_write_in_place():
    x, half = torch.zeros(4), torch.ones(4).half()
    x.copy_(half)
    x.add_(half)
    half.mul_(torch.ones(4))
    torch.add(half, half, out=x)
    x.masked_fill_(x > 5, torch.tensor(1, dtype=torch.int32))
    torch.sum(half, 0, dtype=F32, out=torch.zeros(()))
    nn.init.ones_(half)
    torch._foreach_copy_([x], [half])
    return x, half


@HEALTHY.add()
def a_function_casts_and_its_caller_ignores_the_result():
    def as_half(x):
        return x.half()

    x = torch.ones(3)
    as_half(x)
    return x


# ---------------------------------------------------------------- DG104: the same cast again and again


@HEALTHY.add()
def a_weight_is_cast_in_each_step_of_gradient_accumulation():
    weight, x = nn.Parameter(torch.ones(256, 256)), torch.ones(1, 256).bfloat16()
    for _ in range(16):
        (F.linear(x, weight.to(x.dtype)).float().sum() / 16).backward()
    return weight.grad


@HEALTHY.add()
def a_table_is_cast_nine_times():
    table = torch.rand(256, 256, dtype=F64)
    return [table.float()[0, 0] for _ in range(9)]


@HEALTHY.add()
def float8_weights_are_widened_in_each_step():
    weight, x = torch.randn(256, 256).to(F8), torch.randn(2, 256).bfloat16()
    for _ in range(16):
        x = F.linear(x, weight.to(x.dtype)).tanh()
    return x


@HEALTHY.add()
def the_weight_of_a_norm_is_widened_for_each_token():
    weight, x = nn.Parameter(torch.zeros(2048).bfloat16()), torch.randn(2048).bfloat16()
    with torch.no_grad():
        for _ in range(140):
            x = (F.rms_norm(x.float(), (2048,)) * (1.0 + weight.float())).type_as(x)
    return x


# ---------------------------------------------------------------- DG105: overflow


@BUGS.add("DG105", "y = y * 2", count=2)
def a_loss_scale_grows_until_it_overflows():
    y = torch.full((2,), 8192.0).half()
    for _ in range(5):
        y = y * 2
        if y.isinf().any():
            y = torch.full((2,), 40000.0).half()
    return y


@BUGS.add("DG105", "out = fc(x)", severity="warning")
def a_layer_under_autocast_in_float16():
    fc, x = nn.Linear(64, 4, bias=False), torch.full((2, 64), 300.0)
    nn.init.constant_(fc.weight, 300.0)
    with torch.no_grad(), torch.autocast("cpu", dtype=F16):
        out = fc(x)
    return out


@HEALTHY.add()
def autocast_narrows_a_mask_of_the_least_float32():
    q, least = torch.randn(1, 2, 4, 8), torch.finfo(F32).min
    mask = torch.full((4, 4), least).triu(1)
    with torch.autocast("cpu", dtype=BF16):
        return F.scaled_dot_product_attention(q, q, q, attn_mask=mask)


@HEALTHY.add()
def divisions_by_zero_and_logarithms_of_zero():
    x = torch.tensor([0.0, 1.0]).half()
    return 1 / x, x.log(), torch.full((2,), -math.inf, dtype=F16), x.new_full((2,), math.inf), x + math.inf


@HEALTHY.add()
def uninitialised_memory_is_filled():
    found = []
    for n in range(64, 3000, 61):
        garbage = torch.full((n,), math.inf).half()
        del garbage
        buffer = torch.empty(n, dtype=F16)
        found.append(buffer.fill_(1))
        again = torch.empty_like(buffer)
        found.append(again.copy_(buffer))
    return found


# ---------------------------------------------------------------- DG106: fractions, DG107: narrowing writes


@HEALTHY.add()
def floats_are_written_into_bools():
    mask = torch.zeros(3, dtype=torch.bool)
    mask.copy_(torch.tensor([0.0, 0.5, 1.0]))
    mask[0] = 1.0
    return mask


@HEALTHY.add()
def integers_are_written_into_floats():
    x = torch.zeros(3)
    x[:2] = torch.tensor([1, 2])
    x[torch.tensor([0])] = torch.tensor([True]).float()
    x.scatter_(0, torch.tensor([1]), 1.0)
    return x


@HEALTHY.add()
def real_values_are_written_into_complex_ones():
    out = torch.zeros(4, dtype=torch.complex64)
    out[:2] = torch.randn(2)
    out.real = torch.randn(4)
    out *= torch.rand(4)
    return out


@HEALTHY.add()
def weights_are_copied_into_a_half_model():
    model, half = nn.Linear(4, 4), nn.Linear(4, 4).bfloat16()
    with torch.no_grad():
        for p, q in zip(half.parameters(), model.parameters(), strict=True):
            p.copy_(q)
    return half.weight


# ---------------------------------------------------------------- DG108: positions


def positions(n, dtype):
    t = torch.arange(n, dtype=dtype)
    return (t / 10).sin()


@BUGS.add("DG108", "angles = positions[:, None] * frequencies", from_dtype=torch.int64, to_dtype=BF16)
def integer_positions_meet_half_frequencies():
    positions, frequencies = torch.arange(1024), torch.rand(4).bfloat16() / 1e3
    angles = positions[:, None] * frequencies
    return angles.cos(), angles.sin()


@BUGS.add("DG108", "angles = positions.float() @ frequencies", from_dtype=F32, to_dtype=BF16)
def autocast_narrows_positions_in_a_matmul():
    positions, frequencies = torch.arange(1024)[:, None], 1.0 / 10000 ** (torch.arange(4)[None] / 4)
    with torch.autocast("cpu", dtype=BF16):
        angles = positions.float() @ frequencies
        return angles.float().sin()


@HEALTHY.add()
def drop_path_rates_of_zero_under_a_half_default():
    torch.set_default_dtype(BF16)
    try:
        return [x.item() for x in torch.linspace(0, 0.0, 12)], [x.item() for x in torch.linspace(0, 0.1, 24)]
    finally:
        torch.set_default_dtype(F32)


@HEALTHY.add()
def images_and_logits_are_cast_to_half():
    image = torch.arange(256).repeat(4).view(32, 32).to(U8)
    return image.half() / 255, image.bfloat16(), (torch.randn(100) * 1000).bfloat16()


@HEALTHY.add()
def lengths_divide_half_sums():
    hidden, mask = torch.randn(2, 301, 4).bfloat16(), torch.ones(2, 301, dtype=torch.int64)
    mask[0, 300:] = 0
    return (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)


@HEALTHY.add()
def sines_of_small_angles_in_half():
    x = torch.linspace(-3.0, 3.0, 50).half()
    return x.sin(), x.cos(), (x.bfloat16() * 2).sin()


# ---------------------------------------------------------------- DG109: integers that wrap


@BUGS.add("DG109", "image = image + 100", count=2)
def an_image_is_made_brighter():
    image = torch.tensor([[100, 200]], dtype=U8)
    for _ in range(2):
        image = image + 100
    return image


@HEALTHY.add()
def masks_in_uint8_are_combined():
    a, b = torch.tensor([0, 1, 1], dtype=U8), torch.tensor([1, 1, 0], dtype=U8)
    return a & b, a | b, a ^ b, a * b, 1 - a, a + b, a == b, ~a.bool(), a.sum()


@HEALTHY.add()
def a_mask_of_0_and_255_is_inverted():
    full, none = torch.tensor([0, 255, 255], dtype=U8), torch.zeros(3, dtype=U8)
    return ~full, ~none


@HEALTHY.add()
def four_bit_weights_are_packed():
    q = torch.randint(-8, 8, (8,), dtype=torch.int8)
    packed = (q[::2].to(U8) & 15) | (q[1::2].to(U8) << 4)
    return packed, (packed << 4).view(torch.int8) >> 4


@HEALTHY.add()
def integers_are_hashed_and_cut():
    ids = torch.randint(0, 2**40, (16,))
    hashed = (ids * 6364136223846793005) >> 33
    return hashed.to(torch.int32), (ids * 2654435761).to(torch.int32) % 1000, (ids & 255).to(torch.int8)


@HEALTHY.add()
def bytes_are_summed_into_checksums():
    data = torch.randint(128, 256, (4, 100), dtype=U8)
    check = torch.zeros((), dtype=U8)
    for chunk in data:
        check += chunk.sum().to(U8)
    return check, data.sum(1).to(U8)


@BUGS.add("DG109", "frames.sum(0).to(U8)")
def pictures_are_summed():
    frames = torch.full((4, 8, 8), 200, dtype=U8)
    return frames.sum(0).to(U8)


@BUGS.add("DG109", "mask.sum().to(U8)")
def a_mask_of_bytes_is_counted():
    mask = (torch.arange(600) > 2).to(U8)
    return mask.sum().to(U8)


@pytest.mark.parametrize(("dtype", "size", "ends"), [(I8, 100, "-128 to 127"), (I16, 300, "-32768 to 32767"),
                                                     (I32, 100_000, "-2147483648 to 2147483647")])  # fmt: skip
@pytest.mark.parametrize("in_place", [False, True])
def test_a_product_that_wraps_is_found_in_every_narrow_dtype(dtype, size, ends, in_place):
    def program():
        a = torch.full((4,), size, dtype=dtype)
        return a.mul_(a.clone()) if in_place else a * a

    (finding,) = bad(audited(program))
    assert finding.rule == "DG109"
    assert f"4 of 4 results are outside of {ends} and wrap around" in finding.message


@BUGS.add("DG109", "total += chunk", from_dtype=I16)
def sound_is_mixed_in_int16():
    total = torch.zeros(4, dtype=I16)
    for _ in range(3):
        chunk = torch.full((4,), 12_000, dtype=I16) * 2
        total += chunk
    return total.float().mean()


@BUGS.add("DG109", "return a * b % prime", from_dtype=I32)
def a_product_is_reduced_too_late():
    a, b, prime = torch.tensor([70_000], dtype=I32), torch.tensor([80_000], dtype=I32), 1_000_003
    return a * b % prime


@HEALTHY.add()
def integers_that_fit_are_computed_with():
    a, b = torch.arange(-8, 8, dtype=I8), torch.arange(16, dtype=I16)
    return a * 15, a - 100, b * b, b.int() * 100_000, a.int() * a, a.sum(), -a, a * 0.5, a * b, (b * 300).int()


@HEALTHY.add()
def a_linear_congruential_generator():
    state, made = torch.tensor([42, 7], dtype=I32), []
    for _ in range(6):
        state = state * 1103515245 + 12345
        made.append(state.float() / 2**31)
    short = torch.tensor([42, 7], dtype=I16)
    for _ in range(6):
        short = short * 25173 + 13849
    return made, short


@HEALTHY.add()
def strings_are_hashed():
    h, j = torch.zeros(1, dtype=I32), torch.zeros(1, dtype=I32)
    for character in b"integers that wrap on purpose":
        h = h * 31 + character
        j.mul_(33).add_(character)
    return h, j


@HEALTHY.add()
def ids_are_hashed():
    x = torch.randint(0, 2**31 - 1, (16,), dtype=I32)
    h = x * -2048144789
    h = (h ^ (h >> 13)) * -1028477379
    h = h ^ (h >> 16)
    primes = torch.tensor([73856093, 19349663, 83492791], dtype=I32)
    cells = (torch.randint(0, 1000, (5, 3), dtype=I32) * primes).sum(-1) % 4096
    even = (x * 65536 + 3) ^ x
    crc = (torch.full((4,), 200, dtype=U8) * 2) & 255
    return h, cells, even, crc


USES = {
    "bool": lambda x, kept: x.masked_fill(kept[:, None].bool(), 0.0),
    "float": lambda x, kept: x * kept.float(),
    "product": lambda x, kept: x * kept,
    "score": lambda x, kept: x + kept * -1e9,
    "index": lambda x, kept: x[kept],
    "written by index": lambda x, kept: x.index_put((kept,), torch.zeros(())),
    "set by index": lambda x, kept: operator.setitem(x, kept, 0.0),
    "all": lambda x, kept: (x, bool(kept.any())),
    "logical": lambda x, kept: torch.logical_and(kept, x > 0),
    "sum": lambda x, kept: x.sum() / kept.sum(),
    "not equal": lambda x, kept: torch.where(kept != 0, x, 0.0),
    "stacked": lambda x, kept: x * torch.cat([kept, kept])[:2],
}


@pytest.mark.thin(4)
@pytest.mark.parametrize("dtype", [torch.int64, I32, I8])
@pytest.mark.parametrize("use", USES)
def test_an_integer_mask_that_is_inverted_is_found_where_it_is_used_as_one(use, dtype):
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]], dtype=dtype)
    if "index" in use:
        mask = mask.long()
    (finding,) = bad(audited(lambda: USES[use](torch.ones(2, 3), ~mask)))
    assert finding.rule == "DG109"
    assert "which both are true" in finding.message


@HEALTHY.add()
def flags_are_cleared():
    flags, bit = torch.tensor([5, 4, 1, 0]), torch.tensor([1, 0, 1, 1])
    kept = flags & ~bit
    x, i = torch.arange(8.0), torch.tensor([0, 1])
    return kept, kept.bool(), (flags & ~1) * 2, (~flags).bool(), ~bit + 1, -(~bit), x[~i], ~bit.bool(), bit & ~bit


@HEALTHY.add()
def a_mask_of_integers_is_inverted_as_it_should_be():
    mask, x = torch.tensor([[1, 1, 0], [1, 0, 0]]), torch.randn(2, 3)
    return x[~mask.bool()], x * (1 - mask), (~mask & 1).bool(), x * (mask ^ 1), (~mask + 2) * x, ~(mask == 1)


# ---------------------------------------------------------------- DG111: masks that are added


@BUGS.add("DG111", "return layer(x, src_mask=mask)", from_dtype=F32, count=2)
def an_encoder_layer_takes_a_float_mask():
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

    def step(x, mask):
        return layer(x, src_mask=mask)

    return [step(torch.randn(2, 4, 8), torch.ones(4, 4).triu(1)) for _ in range(2)][-1]


def _attend(mask):
    q = torch.randn(1, 2, 4, 8)
    return F.scaled_dot_product_attention(q, q, q, attn_mask=mask)


@HEALTHY.add()
def an_additive_mask():
    hidden = torch.ones(4, 4).triu(1).bool()
    return _attend(torch.zeros(4, 4).masked_fill(hidden, -math.inf)), _attend(-1e4 * hidden.float())


@HEALTHY.add()
def a_mask_that_hides_nothing():
    return _attend(torch.zeros(4, 4)), _attend(torch.ones(4, 4)), _attend(None)


# ---------------------------------------------------------------- DG112: float64 by inference


@BUGS.add("DG112", "torch.tensor([[1.0, 2.0], [np.float64(3), 4.0]])", severity="info")
def a_numpy_scalar_in_a_nested_list():
    return torch.tensor([[1.0, 2.0], [np.float64(3), 4.0]])


MEANT = (
    lambda: torch.tensor([1.0, 2.0]),
    lambda: torch.tensor([np.float64(1.0)], dtype=F32),
    lambda: torch.tensor([np.float64(1.0)], dtype=F64),
    lambda: torch.tensor([np.float32(1.0), 2.0]),
    lambda: torch.tensor([np.int64(1)]),
    lambda: torch.tensor(np.array([1.0, 2.0])),
    lambda: torch.tensor([1.0], dtype=F64),
    lambda: torch.tensor([]),
)


@pytest.mark.parametrize("program", MEANT)
def test_a_tensor_whose_dtype_is_meant_is_not_even_an_info(program):
    assert not audited(program).findings


THROWN_AWAY = {
    "x.half()": "x = x.half()",
    "batch['x'].half()": "batch['x'] = batch['x'].half()",
    "net.weight.data.half()": "net.weight.data = net.weight.data.half()",
    "x.sum(0).half()": "= x.sum(0).half()",
    "(x * 2).half()": "= (x * 2).half()",
}


@pytest.mark.parametrize("statement", THROWN_AWAY)
def test_the_fix_of_a_discarded_cast_is_python(statement, tmp_path):
    file = tmp_path / "program.py"
    file.write_text(f"def program(x, batch, net):\n    {statement}\n    return x\n")
    scope = {}
    exec(compile(file.read_text(), file, "exec"), scope)
    (finding,) = bad(audited(lambda: scope["program"](torch.ones(2), {"x": torch.ones(2)}, nn.Linear(2, 2))))
    code = finding.fix.removeprefix("keep the result: ").removesuffix("; or delete the line").strip("`")
    assert code.endswith(THROWN_AWAY[statement])
    compile(code, "fix", "exec")


# ---------------------------------------------------------------- counts, samples, switches


def test_an_overflow_is_looked_at_four_times_and_then_at_powers_of_two():
    def program():
        for step in range(1, 41):
            x = torch.full((2,), 1e5 if step in (3, 7, 16, 17, 33) else 1.0)
            y = x.half()
        return y

    (finding,) = bad(audited(program))
    assert (finding.rule, finding.count, finding.source) == ("DG105", 2, "y = x.half()")


def test_modules_are_counted_each_for_itself():
    def program():
        model = nn.Sequential(Casting(), Casting())
        return [model(torch.ones(2)) for _ in range(3)]

    found = {f.module_path: f.count for f in bad(audited(program))}
    assert found == {"Sequential.0": 3, "Sequential.1": 3}


def three_faults():
    x = torch.tensor([1.0, 1e5])
    x.half()
    x.bfloat16()  # dtypeguard: ignore[DG103]
    a = torch.tensor([3], dtype=U8) - 5
    return x, a


SWITCHES = [
    ({}, {"DG103": 1, "DG105": 1, "DG109": 1}),
    ({"ignore": ["DG103"]}, {"DG105": 1, "DG109": 1}),
    ({"ignore": "value-overflow"}, {"DG103": 1, "DG109": 1}),
    ({"ignore": ["DG1"]}, {}),
    ({"select": ["DG105"]}, {"DG105": 1}),
    ({"select": ["DG103", "integer-wraps"]}, {"DG103": 1, "DG109": 1}),
    ({"select": ["DG1"], "ignore": ["DG105", "DG109"]}, {"DG103": 1}),
    ({"select": ["DG5"]}, {}),
]


@pytest.mark.parametrize(("options", "expected"), SWITCHES)
def test_rules_are_chosen(options, expected):
    found = bad(audited(three_faults, **options))
    assert {f.rule: sum(g.rule == f.rule for g in found) for f in found} == expected


def test_a_comment_on_the_line_names_rules_or_none():
    def program():
        x = torch.tensor([1.0, 1e5])
        x.half()  # dtypeguard: ignore
        x.half()  # dtypeguard: ignore[DG103]
        x.half()  # dtypeguard: ignore[DG105]
        x.half()  # dtypeguard: ignore[discarded-cast, value-overflow]
        return x

    found = {(f.rule, f.source[-6:]) for f in bad(audited(program))}
    assert found == {("DG105", "DG103]"), ("DG103", "DG105]")}


# ---------------------------------------------------------------- the program's own operators


@pytest.fixture
def library():
    calls = []
    with torch.library._scoped_library("audit_conversions", "DEF") as library:
        library.define("grow(Tensor x, Tensor(a!) counter) -> Tensor")
        library.define("sub(Tensor x, Tensor y) -> Tensor")

        def grow(x, counter):
            calls.append("grow")
            counter.add_(1)
            return x * x

        def sub(x, y):
            calls.append("sub")
            return x - y

        library.impl("grow", grow, "CompositeExplicitAutograd")
        library.impl("sub", sub, "CompositeExplicitAutograd")
        yield torch.ops.audit_conversions, calls


def test_an_operator_of_the_program_runs_once_where_it_overflows(library):
    ops, calls = library
    counter = torch.zeros((), dtype=torch.int64)

    def program():
        return ops.grow(torch.full((3,), 300.0).half(), counter)

    audited(program)
    assert calls == ["grow", "grow"]  # alone, and audited
    assert counter == 2


def test_indices_are_not_counted_as_written():
    def program():
        x, index = torch.zeros(4), torch.tensor([0, 1])
        x.scatter_(0, index, torch.ones(2))
        x.index_add_(0, index, torch.ones(2))
        x.index_copy_(0, index, torch.ones(2))
        x.index_fill_(0, index, 2.0)
        x[index] = torch.ones(2)
        return x

    assert audited(program).casts == []


# ---------------------------------------------------------------- tensors that are not plain


class Subclass(torch.Tensor):
    pass


def fake():
    with FakeTensorMode():
        return torch.ones(3)


ODD = {
    "empty": lambda: torch.zeros(0, 3),
    "without axes": lambda: torch.tensor(2.5),
    "meta": lambda: torch.zeros(3, device="meta"),
    "fake": fake,
    "sparse": lambda: torch.eye(3).to_sparse(),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged),
    "conj": lambda: torch.randn(3, dtype=torch.complex64).conj(),
    "negative bit": lambda: torch.randn(3, dtype=torch.complex64).conj().imag,
    "half complex": lambda: torch.randn(3).to(torch.complex32),
    "float8": lambda: torch.randn(3).to(F8),
    "float8 of exponents": lambda: torch.ones(3).to(torch.float8_e8m0fnu),
    "uint16": lambda: torch.ones(3).to(torch.uint16),
    "uint64": lambda: torch.ones(3).to(torch.uint64),
    "bool": lambda: torch.ones(3).bool(),
    "largest integers": lambda: torch.tensor([2**62, -(2**63), 5]),
    "infinite": lambda: torch.tensor([math.inf, math.nan, 1e30]),
    "subclass": lambda: torch.ones(3).as_subclass(Subclass),
    "expanded": lambda: torch.ones(1).expand(4),
    "parameter": lambda: nn.Parameter(torch.ones(3)),
    "inference": lambda: torch.inference_mode()(torch.ones)(3),
}
OPERATIONS = [
    lambda t: t.half() * 30000,
    lambda t: t.bfloat16().cos(),
    lambda t: t.double() + t,
    lambda t: t.to(U8) - 3,
    lambda t: ~t.byte(),
    lambda t: t.to(F8).half(),
    lambda t: t.long().half(),
    lambda t: t * torch.ones(1).half() + torch.ones(1, dtype=torch.int64),
    lambda t: torch.zeros(t.shape, dtype=torch.int64).copy_(t),
    lambda t: torch.zeros(t.shape, dtype=F16).copy_(t).softmax(-1),
    lambda t: torch.zeros(t.shape, dtype=torch.bool).copy_(t),
    lambda t: torch._foreach_copy_([torch.zeros(t.shape)], [t]),
    lambda t: torch._foreach_mul_([t.half()], 2.0),
    lambda t: torch.cat([t, t.double()]),
    lambda t: torch.where(t > 0, t, t.double()),
    lambda t: torch.func.vmap(lambda row: row.half() * 30000 * 30)(t),
    lambda t: torch.func.grad(lambda x: (x.half() * x.double()).sum())(t.float()),
    lambda t: F.scaled_dot_product_attention(*[torch.ones(1, 3, 3)] * 3, attn_mask=t.expand(3, 3)),
    lambda t: [t.half() for _ in range(12)][-1],
    lambda t: t.half().tolist(),
]


@pytest.mark.thin(4)
@pytest.mark.parametrize("kind", ODD)
@pytest.mark.filterwarnings("ignore")  # torch's own remarks on prototypes and lost imaginary parts
def test_an_odd_tensor_is_no_fault_of_the_audit(kind):
    def program():
        tensor = ODD[kind]()
        found = [str(run(lambda operation=operation: operation(tensor))) for operation in OPERATIONS]
        return [
            re.sub(r"j\d+|Subclass|tensor", "", text) for text in found
        ]  # names that torch changes in any dispatch mode

    alone = run(program)
    with dtypeguard.audit() as report:
        watched = run(program)
    assert watched == alone
    assert report.faults == []
    assert report.to_dict()["operations"] > 0


@pytest.mark.parametrize("operation", [lambda old: old * 2, lambda old: old * old, lambda old: old + old])
def test_integers_that_are_older_than_the_audit_wrap_too(operation):
    old = torch.full((8,), 200, dtype=torch.uint8)
    with dtypeguard.audit() as report:
        operation(old)
    assert [finding.rule for finding in report.findings] == ["DG109"]
