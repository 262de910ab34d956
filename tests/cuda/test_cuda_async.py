"""The CPU never waits for the GPU because of a guard; work stays on its stream; a repair is one copy and no more."""

import contextlib
import copy
import gc

import pytest
import torch
from jaxtyping import Float, Float32, Int64
from support import BF16, F16, F32, F64
from torch import Tensor, nn

import dtypeguard
from dtypeguard import enforce, guard


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU())
        self.head = nn.Linear(32, 4)

    def forward(self, x, scale=1.0, mask=None, extra=None):
        y = self.head(self.body(x)) * scale
        y = y if mask is None else y.masked_fill(mask, 0.0)
        return y if extra is None else y + extra["bias"][0]


class Annotated(Net):
    @enforce
    def forward(self, x: Float[Tensor, "b 16"], scale: Float[Tensor, ""] | float = 1.0) -> Float[Tensor, "b 4"]:
        return super().forward(x, scale)


@enforce
def product(
    q: Float32[Tensor, "b t d"], k: Float32[Tensor, "b s d"], ids: Int64[Tensor, "b"]
) -> Float32[Tensor, "b t s"]:
    return (q @ k.mT) * ids[:, None, None]


@enforce(anchor="pred")
def loss(pred: Float[Tensor, "b c"], target: Float[Tensor, "b c"]):
    return (pred - target).square().mean()


def rows(device, dtype=F32):
    return torch.randn(8, 16, device=device, dtype=dtype)


def cube(device, dtype=F32):
    return torch.randn(2, 3, 4, device=device, dtype=dtype)


def within(model, dtype):
    def call(*args):
        with torch.autocast("cuda", dtype):
            return model(*args)

    return call


def extra(d):
    return {"bias": [torch.ones(4, device=d)], "lengths": torch.arange(8), "n": 3}


# name: makes the guarded callable, then its arguments, for a device
RIGHT = {
    "guard": (lambda d: guard(Net().to(d)), lambda d: (rows(d),)),
    "guard, every owner": (lambda d: guard(Net().to(d), depth="all"), lambda d: (rows(d),)),
    "guard, told a device without index": (lambda d: guard(Net().to(d), device=d.type), lambda d: (rows(d),)),
    "guard, output_dtype": (lambda d: guard(Net().to(d), output_dtype=F32), lambda d: (rows(d),)),
    "containers": (
        lambda d: guard(Net().to(d)),
        lambda d: (rows(d), 2.0, torch.zeros(8, 4, dtype=torch.bool, device=d), extra(d)),
    ),
    "0-dim tensor of the CPU": (lambda d: guard(Net().to(d)), lambda d: (rows(d), torch.tensor(0.5))),
    "axes": (lambda d: product, lambda d: (cube(d), cube(d), torch.arange(2, device=d))),
    "a method": (lambda d: Annotated().to(d), lambda d: (rows(d),)),
    "autocast": (lambda d: within(guard(Net().to(d), depth="all"), BF16), lambda d: (rows(d),)),
    "autocast, half": (lambda d: within(guard(Net().to(d), depth="all"), F16), lambda d: (rows(d, F16),)),
}
# the same with an argument that must be cast on the GPU
REPAIRED = {
    "guard": (lambda d: guard(Net().to(d)), lambda d: (rows(d, F64),)),
    "guard of a bare Linear": (lambda d: guard(nn.Linear(16, 4).to(d)), lambda d: (rows(d, F64),)),
    "to half": (lambda d: guard(Net().to(d, F16), depth="all"), lambda d: (rows(d),)),
    "axes": (lambda d: product, lambda d: (cube(d), cube(d, F64), torch.arange(2, device=d))),
    "an anchor": (lambda d: loss, lambda d: (rows(d), rows(d, F64))),
    "a method": (lambda d: Annotated().to(d), lambda d: (rows(d, F64),)),
    "autocast": (lambda d: within(guard(Net().to(d)), BF16), lambda d: (rows(d, F64),)),
    "a result": (lambda d: guard(Net().to(d), output_dtype=F16), lambda d: (rows(d),)),
}


def test_waiting_would_be_noticed(gpu, unsynchronised):
    x = rows(gpu)
    with pytest.raises(RuntimeError, match="synchronizing"), unsynchronised():
        bool((x > 0).any())


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", RIGHT)
def test_a_right_call_never_waits(name, grad, gpu, unsynchronised, strict):
    make, arguments = RIGHT[name]
    call, args = make(gpu), arguments(gpu)
    with torch.set_grad_enabled(grad):
        for n in range(3):
            with unsynchronised() if n else contextlib.nullcontext():
                result = call(*args)
                if grad and result.requires_grad:
                    result.float().sum().backward()
    assert dtypeguard.casts() == []


@pytest.mark.filterwarnings("ignore::dtypeguard.CastWarning")
@pytest.mark.parametrize("name", REPAIRED)
def test_a_repair_waits_at_the_first_calls_and_then_ever_more_seldom(name, gpu, unsynchronised):
    make, arguments = REPAIRED[name]
    call, args = make(gpu), arguments(gpu)
    for n in range(9):
        with contextlib.nullcontext() if n in (0, 1, 3, 7) else unsynchronised():
            call(*args)
    (record,) = dtypeguard.casts()
    assert record.count == 9
    assert record.error is not None


# ---------------------------------------------------------------- streams


LONG = 100_000_000  # GPU clocks, some 50 ms: whoever runs on another stream is early


@pytest.mark.filterwarnings("ignore::dtypeguard.CastWarning")
@pytest.mark.parametrize("given", [F32, F64])
@pytest.mark.parametrize("verify", ["first", "never"])
@torch.no_grad()
def test_a_guarded_call_stays_on_the_stream_that_it_is_called_on(given, verify, gpu):
    plain = Net().to(gpu)
    model = guard(copy.deepcopy(plain), mode="strict" if given is F32 else "lenient", verify=verify)
    x, later = torch.zeros(8, 16, device=gpu, dtype=given), rows(gpu, given)
    expected = plain(later.float())
    side = torch.cuda.Stream()
    for _ in range(3):
        x.zero_()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(LONG)
            x.copy_(later)
            got = model(x)
        torch.cuda.current_stream().wait_stream(side)
        torch.testing.assert_close(got, expected)
        torch.cuda.synchronize()
    assert [record.count for record in dtypeguard.casts()] == [3] * (given is F64)


# ---------------------------------------------------------------- memory


@pytest.fixture
def settled(gpu):
    """Nothing of an earlier test is freed meanwhile."""
    gc.collect()
    torch.cuda.synchronize()


SIZE = 1 << 17  # elements: half a MiB of float32, which torch's allocator hands out to the byte


class Gauge(nn.Module):
    """Allocates nothing, and reads what is allocated while it runs."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, x, again=None):
        self.during = torch.cuda.memory_allocated()
        return x.shape


@pytest.mark.filterwarnings("ignore::dtypeguard.CastWarning")
@pytest.mark.parametrize("origin", ["gpu", "cpu"])
@pytest.mark.parametrize("verify", ["first", "never"])
def test_a_repair_is_one_copy_and_is_not_kept(origin, verify, gpu, settled):
    model = guard(Gauge().to(gpu), mode="lenient", verify=verify)
    x = torch.ones(SIZE, dtype=F64, device=gpu if origin == "gpu" else "cpu")
    for n, args in enumerate([(x,), (x,), (x,), (x,), (x, x)]):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        model(*args)
        assert model.during - before == SIZE * 4
        assert torch.cuda.memory_allocated() == before
        if n > 3 or verify == "never":  # to look for lost values takes memory for a moment
            assert torch.cuda.max_memory_allocated() - before == SIZE * 4
    assert sum(record.count for record in dtypeguard.casts()) == 5


def test_a_right_call_allocates_nothing(gpu, settled, strict):
    model, x = guard(Gauge().to(gpu)), torch.ones(SIZE, device=gpu)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    model(x, [x, {"again": x}])
    assert model.during == torch.cuda.max_memory_allocated() == before
