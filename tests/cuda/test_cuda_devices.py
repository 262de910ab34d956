"""dtype and device at once: parameters and inputs on the CPU and the GPU, in every pair of dtypes."""

import copy
import itertools
import warnings

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jaxtyping import Float, Int64
from support import BF16, F16, F32, F64
from torch import Tensor, nn

import dtypeguard
from dtypeguard import CastError, CastWarning, DeviceError, DtypeError, DtypeGuardError, enforce, guard

FLOATS = F16, BF16, F32, F64
CPU = torch.device("cpu")
each_way = pytest.mark.parametrize(("origin", "home"), list(itertools.product(["cpu", "gpu"], repeat=2)))
relaxed = settings(deadline=None, suppress_health_check=list(HealthCheck))
floats, places = st.sampled_from(FLOATS), st.sampled_from(["cpu", "gpu"])
shapes = st.lists(st.integers(0, 3), min_size=1, max_size=3).map(tuple)
layouts = st.sampled_from(["plain", "transposed", "expanded", "sliced"])


class Recorder(nn.Module):
    """Computes something and remembers what it got."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 2)

    def forward(self, x, other=None, ids=None, extra=None):
        self.got = (x, other, ids, extra)
        self.made = self.fc(x)
        return self.made


class Pass(nn.Linear):
    """Hands back its arguments."""

    def forward(self, *args):
        return args


def recorder(dtype=F32, device=CPU):
    return Recorder().to(device=device, dtype=dtype)


def random(dtype, device, *shape):
    return torch.randn(shape or (2, 3), dtype=F64).to(device=device, dtype=dtype)


def refusal(model, *args, error=DtypeGuardError, **kwargs):
    with pytest.raises(error) as caught:
        model(*args, **kwargs)
    return caught.value


def quietly(fn, *args, **kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CastWarning)
        return fn(*args, **kwargs)


def where(place, device):
    return CPU if place == "cpu" else device


def name(dtype):
    return str(dtype).removeprefix("torch.")


# ---------------------------------------------------------------- every pair


@each_way
@pytest.mark.parametrize("wanted", FLOATS)
def test_strict_names_dtype_and_device_in_one_error(origin, home, wanted, device):
    origin, home = where(origin, device), where(home, device)
    model = guard(recorder(wanted, home), mode="strict")
    for source in FLOATS:
        x, said = random(source, origin), ()
        if source is not wanted:
            said += (f"argument `x` is {name(source)}, the module's parameters are {name(wanted)}",)
        if origin != home:
            said += (f"argument `x` is on {origin}, the module's parameters are on {home}",)
        if not said:
            model(x)
            assert model.got[0] is x
            continue
        error = refusal(model, x)
        assert type(error) is (DeviceError if source is wanted else DtypeError)
        assert (error.argument, error.violations) == ("x", said)
        assert (f"x.to({wanted})" in str(error)) is (source is not wanted)
        assert (f".to('{home}')" in str(error)) is (origin != home)
    assert dtypeguard.casts() == []


@each_way
@pytest.mark.parametrize("wanted", FLOATS)
def test_lenient_is_the_call_with_cast_and_move_written_out(origin, home, wanted, device):
    origin, home = where(origin, device), where(home, device)
    plain = recorder(wanted, home)
    model = guard(copy.deepcopy(plain), mode="lenient")
    for source, _ in itertools.product(FLOATS, range(2)):  # the second time by the plan of the first
        model.zero_grad(), plain.zero_grad()
        x = random(source, origin).requires_grad_()
        y = x.detach().clone().requires_grad_()
        got, expected = quietly(model, x), plain(y.to(device=home, dtype=wanted))
        assert (got.dtype, got.device) == (wanted, home)
        assert torch.equal(got, expected)
        got.sum().backward(), expected.sum().backward()
        assert (x.grad.dtype, x.grad.device) == (source, origin)
        assert torch.equal(x.grad, y.grad)
        assert torch.equal(model.fc.weight.grad, plain.fc.weight.grad)
    records = [(r.argument, r.from_dtype, r.from_device, r.to_dtype, r.to_device, r.count) for r in dtypeguard.casts()]
    wrong = [source for source in FLOATS if source is not wanted or origin != home]
    assert records == [("x", source, origin, wanted, home, 2) for source in wrong]
    assert all(record.bytes == 12 * wanted.itemsize for record in dtypeguard.casts())


@relaxed
@given(floats, floats, places, places, shapes, layouts)
def test_what_arrives_is_what_to_makes_and_the_original_stays(device, given, wanted, origin, home, shape, layout):
    x = random(given, where(origin, device), *shape)
    if layout == "transposed" and x.dim() > 1:
        x = x.transpose(0, 1)
    elif layout == "expanded":
        x = x[:1].expand(5 * min(shape[0], 1), *shape[1:])
    elif layout == "sliced":
        x = torch.stack([x, x], -1)[..., 0]
    before, values = (x.dtype, x.device, x.stride(), x._version), x.clone()
    got, again = quietly(guard(Pass(1, 1).to(device=where(home, device), dtype=wanted), mode="lenient"), x, x)
    assert got is again
    assert (got.dtype, got.device) == (wanted, where(home, device))
    assert torch.equal(got.cpu(), x.cpu().to(wanted))
    assert layout != "expanded" or not x.numel() or got.stride(0) == 0
    assert (x.dtype, x.device, x.stride(), x._version) == before
    assert torch.equal(x, values)


def test_values_lost_on_the_way_to_the_gpu_are_refused(device):
    model = guard(recorder(F16, device), mode="lenient")
    for origin in (CPU, device):
        x = torch.full((1, 3), torch.finfo(F32).min, device=origin)
        assert "finite values of it become infinite in float16" in str(refusal(model, x, error=CastError))
    assert dtypeguard.casts() == []


# ---------------------------------------------------------------- what may stay on the CPU


@pytest.mark.parametrize("ids", [torch.arange(3), torch.ones(3, dtype=torch.bool), torch.ones(3, dtype=torch.uint8)])
def test_integer_and_bool_cpu_tensors_stay_unless_named_in_move_args(ids, device):
    x, model = random(F32, device), guard(recorder(F32, device), mode="strict")
    model(x, ids, ids, extra={"lengths": [ids]})
    assert model.got[1] is model.got[2] is model.got[3]["lengths"][0] is ids
    guard(model, mode="lenient", move_args=("ids",))
    quietly(model, x, ids, ids)
    assert model.got[1] is ids
    assert model.got[2].device == device
    assert torch.equal(model.got[2].cpu(), ids)
    guard(model, mode="strict", move_args=("ids",))
    if device != CPU:
        error = refusal(model, x, ids=ids, error=DeviceError)
        assert (error.argument, error.actual, error.expected) == ("ids", CPU, device)


class Annotated(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(5, 3)

    @enforce
    def forward(self, ids: Int64[Tensor, "n"], bias: Float[Tensor, "n 3"]) -> Float[Tensor, "n 3"]:
        return self.table(ids) + bias


def test_annotated_integers_follow_the_module(device):
    model, ids, bias = Annotated().to(device), torch.arange(3), random(F64, CPU, 3, 3)
    assert torch.equal(quietly(model, ids, bias), model(ids.to(device), bias.to(device, F32)))
    error = refusal(dtypeguard.mode("strict")(model.__call__), ids, bias)
    culprits = ["bias"] if device == CPU else ["ids", "bias", "bias"]
    assert [text.split("`")[1] for text in error.violations] == culprits


@pytest.mark.parametrize("scalar", [0.5, 2, True])
def test_a_0_dim_cpu_tensor_is_accepted_anywhere(scalar, device, strict):
    scalar, model = torch.tensor(scalar), guard(recorder(F32, device), move_args=("ids",))
    model(random(F32, device), scalar, ids=scalar, extra=[scalar])
    assert model.got[1] is model.got[2] is model.got[3][0] is scalar


# ---------------------------------------------------------------- which device


def test_the_device_is_read_at_the_call(device):
    model, x = guard(recorder(), mode="strict", depth="all"), random(F32, CPU)
    model(x)
    assert model.to(device)(x.to(device)).device == device
    assert device == CPU or refusal(model, x, error=DeviceError).expected == device
    assert model.cpu()(x).device == CPU


def test_a_device_without_an_index_is_any_of_its_type(device):
    for told in (device.type, device):
        model = guard(recorder(F32, device), mode="strict", device=told)
        assert model(random(F32, device)).device == device
        guard(model, mode="lenient", device=told)
        assert quietly(model, random(F64, CPU)).device == device
    assert {record.argument for record in dtypeguard.casts()} == {"x"}


def test_only_what_is_wrong_in_a_container_moves(device):
    model, right, ids = guard(recorder(F32, device), mode="lenient"), random(F32, device), torch.arange(3)
    extra = {"right": right, "wrong": [random(BF16, CPU), ids], "text": "as it was"}
    quietly(model, random(F32, device), extra=extra)
    got = model.got[3]
    assert got["right"] is right
    assert got["wrong"][1] is ids
    assert (got["wrong"][0].dtype, got["wrong"][0].device) == (BF16, device)  # beside float32 it is a side input
    assert extra["wrong"][0].device == CPU
    moved = [] if device == CPU else ["extra['wrong'][0]"]
    assert [record.argument for record in dtypeguard.casts()] == moved


def test_whole_numbers_are_looked_at_without_waiting_at_each_call(device):
    model = guard(Pass(1, 1).to(device, BF16))
    fine, changes = (torch.tensor([number], device=device) for number in (256.0, 999.0))
    refused = {}
    for n in range(1, 9):
        try:
            quietly(model, changes if n > 2 else fine)
        except CastError as error:
            refused[n] = "999 becomes 1000" in str(error)
    # What was refused is not counted, so it is looked at again.
    assert refused == dict.fromkeys(range(3 if device == CPU else 4, 9), True)


class Spread(nn.Module):
    """Over two devices, as a device_map leaves a model; it moves what it hands on."""

    def __init__(self, first, last):
        super().__init__()
        self.first, self.last = nn.Linear(3, 4, device=first), nn.Linear(4, 2, device=last)

    def forward(self, x):
        return self.last(self.first(x.to(self.first.weight.device)).to(self.last.weight.device))


@pytest.mark.parametrize("first", ["cpu", "gpu"])
def test_a_model_over_two_devices_has_a_device_part_by_part(first, gpu, request):
    first, last = (CPU, gpu) if first == "cpu" else (gpu, request.getfixturevalue("second"))
    plain, x = Spread(first, last), random(F32, CPU)
    model = guard(copy.deepcopy(plain), mode="strict", depth="all")
    for place in (CPU, first, last):  # as a whole it has no device
        assert torch.equal(model(x.to(place)), plain(x.to(place)))
    assert refusal(model, x.double(), error=DtypeError).function == "Spread.forward"
    assert refusal(model.last, random(F32, first, 2, 4), error=DeviceError).expected == last
    assert dtypeguard.casts() == []


def test_the_index_of_a_gpu_counts(gpu, second):
    model, x = guard(nn.Linear(3, 2).to(gpu)), random(F32, second)
    with dtypeguard.mode("strict"):
        error = refusal(model, x, error=DeviceError)
        assert (error.actual, error.expected) == (second, gpu)
        assert f"input.to('{gpu}')" in str(error)
    with torch.cuda.device(second), pytest.warns(CastWarning, match=f"moved from {second} to {gpu}"):
        assert torch.equal(model(x), model(x.to(gpu)))
    dtypeguard.reset_casts()
    for origin in (second, gpu, CPU) * 2:  # one line, a repair of its own for each
        quietly(model, x.to(device=origin, dtype=F64))
    assert [(record.from_device, record.count) for record in dtypeguard.casts()] == [(second, 2), (gpu, 2), (CPU, 2)]


# ---------------------------------------------------------------- how it moves


def test_a_move_is_over_before_the_body_runs(gpu):
    """A loader may write to its pinned buffer again as soon as the call returns."""
    model, buffer = guard(recorder(F32, gpu), mode="lenient"), torch.empty(2, 3).pin_memory()
    for value in (1.0, 2.0, 3.0):
        expected = model(torch.full((2, 3), value, device=gpu))
        buffer.fill_(value)
        torch.cuda._sleep(50_000_000)  # some 30 ms, in which a move without waiting would not begin
        got = quietly(model, buffer)
        buffer.fill_(-1.0)
        assert torch.equal(got, expected)


def test_a_move_does_not_wait_if_told_so(gpu, unsynchronised):
    model, x = guard(recorder(F32, gpu), mode="lenient", non_blocking=True), random(F32, CPU).pin_memory()
    expected = model(x.to(gpu))
    for _ in range(3):
        with unsynchronised():
            got = quietly(model, x)
        torch.cuda.synchronize()
        assert torch.equal(got, expected)
    guard(model, mode="lenient")
    with pytest.raises(RuntimeError, match="synchronizing"), unsynchronised():
        quietly(model, x)


# ---------------------------------------------------------------- wrappers that move inputs themselves


def step(model, x):
    model.zero_grad()
    result = model(x)
    result.square().sum().backward()
    return [result.detach(), *(p.grad for p in model.parameters())]


def same(mine, theirs):
    return len(mine) == len(theirs) and all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


def wrapped(wrap, order, device):
    """A model that was guarded before or after it was wrapped, and its unguarded twin."""
    plain = recorder(F32, device)
    model = copy.deepcopy(plain)
    if order == "before":
        guard(model, mode="strict", depth="all")
    outer = wrap(model)
    if order == "after":
        guard(outer, mode="strict", depth="all")
    return outer, wrap(plain)


@pytest.mark.parametrize("order", ["before", "after"])
@pytest.mark.parametrize("count", [1, 2])
def test_data_parallel(count, order, gpu, request):
    if count == 2:
        request.getfixturevalue("second")
    model, twin = wrapped(lambda m: nn.DataParallel(m, list(range(count))), order, gpu)
    for origin in (CPU, gpu):  # it moves its inputs before the guard sees them
        x = random(F32, origin, 8, 3)
        assert same(step(model, x), step(twin, x))
    with pytest.raises(DtypeError, match="argument `x` is float64, the module's parameters are float32"):
        model(random(F64, gpu, 8, 3))
    assert dtypeguard.casts() == []


@pytest.fixture
def single_process(device, tmp_path):
    backend = "nccl" if device.type == "cuda" else "gloo"
    if not torch.distributed.is_backend_available(backend):
        pytest.skip(f"needs {backend}")
    torch.distributed.init_process_group(backend, init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("order", ["before", "after"])
def test_ddp_in_one_process(order, device, single_process):
    ids = [device] if device.type == "cuda" else None
    model, twin = wrapped(lambda m: nn.parallel.DistributedDataParallel(m, device_ids=ids), order, device)
    x = random(F32, device)
    assert same(step(model, x), step(twin, x))
    assert refusal(model, x.double(), error=DtypeError).argument == "x"
    assert dtypeguard.casts() == []
    guard(model, mode="lenient")
    assert same(quietly(step, model, x.double()), step(twin, x))


PUT = {
    "dispatched": lambda accelerate, model, device: accelerate.dispatch_model(
        model, {"fc": device.index}, main_device=device, force_hooks=True
    ),
    "offloaded": lambda accelerate, model, device: accelerate.cpu_offload(model, execution_device=device),
}


@pytest.mark.parametrize("put", PUT)
@pytest.mark.parametrize("order", ["before", "after"])
@pytest.mark.parametrize("depth", ["auto", "all"])
@torch.no_grad()
def test_accelerate_moves_weights_and_inputs(put, order, depth, gpu):
    accelerate = pytest.importorskip("accelerate")
    plain = recorder()
    model = copy.deepcopy(plain)
    if order == "before":
        guard(model, mode="strict", depth=depth)
    PUT[put](accelerate, model, gpu)
    if order == "after":
        guard(model, mode="strict", depth=depth)
    x, plain = random(F32, CPU), plain.to(gpu)
    for _ in range(2):
        got = model(x)
        assert (model.made.device, got.device) == (gpu, CPU)
        assert torch.equal(got, plain(x.to(gpu)).cpu())
    assert refusal(model, x.double(), error=DtypeError).argument == "x"
    assert dtypeguard.casts() == []
