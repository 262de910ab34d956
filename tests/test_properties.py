"""The semantics as laws, over every pair of dtypes and every device present."""

import functools
import itertools
import warnings

import jaxtyping
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import dtypeguard
from dtypeguard import CastError, DtypeError
from dtypeguard._core.base.dtypes import BY_NAME, FLOATING, TABLE, Casting, Kind, may_cast

DEVICES = ["cpu", "meta", *(["cuda"] if torch.cuda.is_available() else [])]
FLOATS = sorted(FLOATING, key=str)
NAMES = "Bool UInt8 UInt16 UInt32 UInt64 Int8 Int16 Int32 Int64 BFloat16 Float16 Float32 Float64 Complex64 Complex128"
ANNOTATIONS = {BY_NAME[name.lower()]: getattr(jaxtyping, name) for name in NAMES.split()}
NUMBERS = sorted(ANNOTATIONS, key=str)
COMPUTED = {dtype for dtype, info in TABLE.items() if info.kind is not Kind.STORAGE}
assert {TABLE[dtype].name for dtype in COMPUTED - {*NUMBERS}} <= {"complex32", "bcomplex32"}
PAIRS = list(itertools.product(NUMBERS, NUMBERS))
relaxed = settings(deadline=None, suppress_health_check=list(HealthCheck))

dtypes, floats, devices = st.sampled_from(NUMBERS), st.sampled_from(FLOATS), st.sampled_from(DEVICES)
shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)
layouts = st.sampled_from(["plain", "transposed", "expanded", "sliced", "negative"])


def make(dtype, device, shape, layout="plain", requires_grad=False):
    """A tensor of small whole numbers, which every dtype can hold, in some memory layout."""
    values = torch.arange(1, 1 + torch.Size(shape).numel()).reshape(shape).remainder(2)
    tensor = values.to(dtype).to(device)
    if layout == "transposed" and tensor.dim() > 1:
        tensor = tensor.transpose(0, 1).contiguous().transpose(0, 1)
    elif layout == "expanded" and tensor.dim():
        tensor = tensor[:1].expand(shape)
    elif layout == "sliced" and tensor.dim():
        tensor = torch.stack([tensor, tensor], -1)[..., 0]
    if requires_grad and (dtype.is_floating_point or dtype.is_complex):
        tensor = tensor.detach().requires_grad_()
    return tensor


def fingerprint(tensor):
    """All that a caller could see of a tensor."""
    values = None if tensor.is_meta else tensor.detach().clone()
    return tensor.dtype, tensor.device, tensor.shape, tensor.stride(), tensor._version, tensor.requires_grad, values


def same(a, b):
    if a[:-1] != b[:-1]:
        return False
    return a[-1] is None or torch.equal(a[-1], b[-1])


def quietly(fn, *args, **kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dtypeguard.DtypeGuardWarning)
        warnings.filterwarnings("ignore", "Casting complex values to real")  # torch's own word on an unsafe cast
        return fn(*args, **kwargs)


@functools.cache
def echo(target, **options):
    """A function of one argument annotated with a concrete dtype; it returns what its body got."""

    def fn(x):
        return x

    fn.__annotations__ = {"x": ANNOTATIONS[target][Tensor, "..."]}
    return dtypeguard.enforce(fn, **options)


@relaxed
@given(
    st.sampled_from(list(ANNOTATIONS)), devices, shapes, layouts, st.sampled_from(["strict", "lenient", "warn", "off"])
)
def test_what_matches_arrives_as_the_same_object(dtype, device, shape, layout, mode):
    x = make(dtype, device, shape, layout)
    before = fingerprint(x)
    assert echo(dtype, mode=mode)(x) is x
    assert same(fingerprint(x), before)


@relaxed
@given(devices, st.sampled_from(list(Casting)))
def test_strict_raises_where_and_only_where_lenient_would_cast_or_refuse(device, casting):
    options = {"casting": casting.name.lower()}
    for source, target in PAIRS:
        x = make(source, device, (2,))
        try:
            repaired = quietly(echo(target, mode="lenient", **options), x)
        except CastError:
            lenient = "refuse"
        else:
            lenient = "pass" if repaired is x else "cast"
        try:
            echo(target, mode="strict", **options)(x)
        except DtypeError:
            strict = "raise"
        else:
            strict = "pass"
        assert (strict == "raise") == (lenient in ("cast", "refuse")) == (source is not target)


@relaxed
@given(devices, shapes, layouts, st.sampled_from(list(Casting)))
def test_casts_obey_the_ladder_and_never_touch_the_caller_s_tensor(device, shape, layout, casting):
    for source, target in PAIRS:
        x = make(source, device, shape, layout)
        before = fingerprint(x)
        fn = echo(target, mode="lenient", casting=casting.name.lower())
        if may_cast(source, target, casting):
            y = quietly(fn, x)
            assert (y.dtype, y.device, y.shape) == (target, x.device, x.shape)
            if not x.is_meta:
                assert torch.equal(y, x.to(target))
        else:
            with pytest.raises(CastError):
                fn(x)
        assert same(fingerprint(x), before)


@relaxed
@given(floats, st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64]), shapes, layouts)
def test_gradients_come_home_in_the_caller_s_dtype(source, target, shape, layout):
    x = make(source, "cpu", shape, "plain" if layout == "expanded" else layout, requires_grad=True)
    quietly(echo(target), x).sum().backward()
    assert x.grad is not None
    assert x.grad.dtype is source
    assert torch.equal(x.grad, torch.ones_like(x))


class Recorder(nn.Module):
    """A module that computes something and remembers the very objects its forward got."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 2)

    def forward(self, x, *rest, mask=None, extra=None):
        self.got = (x, rest, mask, extra)
        return self.fc(x)


def recorder(dtype, device):
    torch.manual_seed(0)
    return Recorder().to(device=device, dtype=dtype)


@relaxed
@given(floats, devices, st.sampled_from(["strict", "lenient", "warn"]))
def test_guard_a_matched_call_is_bit_identical_and_hands_on_the_same_objects(dtype, device, mode):
    plain, guarded = recorder(dtype, device), dtypeguard.guard(recorder(dtype, device), mode=mode)
    x = make(dtype, device, (2, 3))
    mask, ids = torch.ones(2, dtype=torch.bool, device=device), torch.arange(2)
    extra = {"a": [make(dtype, device, (2,))], "n": 3}
    result, wanted = guarded(x, ids, mask=mask, extra=extra), plain(x)
    assert guarded.got[0] is x
    assert guarded.got[1][0] is ids
    assert guarded.got[2] is mask
    assert guarded.got[3] is extra
    assert result.dtype is wanted.dtype
    assert result.device == wanted.device
    assert result.is_meta or torch.equal(result, wanted)


@relaxed
@given(floats, floats, devices, st.sampled_from(list(Casting)))
def test_guard_strict_raises_iff_lenient_casts_or_refuses(inner, outer, device, casting):
    options = {"casting": casting.name.lower()}
    x = make(outer, device, (2, 3))
    lenient = dtypeguard.guard(recorder(inner, device), mode="lenient", **options)
    strict = dtypeguard.guard(recorder(inner, device), mode="strict", **options)
    if inner is outer:
        lenient(x)
        strict(x)
        assert lenient.got[0] is x
        return
    with pytest.raises(DtypeError) as caught:
        strict(x)
    assert (caught.value.actual, caught.value.expected, caught.value.argument) == (outer, inner, "x")
    if may_cast(outer, inner, casting):
        assert quietly(lenient, x).dtype is inner
        assert lenient.got[0].dtype is inner
    else:
        with pytest.raises(CastError):
            lenient(x)


@relaxed
@given(st.lists(dtypes, min_size=1, max_size=4), floats, devices)
def test_one_tensor_in_many_places_is_cast_once_and_stays_one(kinds, target, device):
    x = make(torch.float64 if target is not torch.float64 else torch.float32, device, (2, 3))
    others = [make(kind, device, (2,)) for kind in kinds if kind not in FLOATING]
    model = dtypeguard.guard(recorder(target, device))
    quietly(model, x, x, *others, extra={"again": (x, [x])})
    got, rest, _, extra = model.got
    assert got is rest[0] is extra["again"][0] is extra["again"][1][0]
    assert got.dtype is target
    assert all(a is b for a, b in zip(rest[1:], others, strict=True))
