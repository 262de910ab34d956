"""DG501 to DG506: what a module has besides parameters, when it is converted and in forward."""

import contextlib
import copy
import dataclasses
import inspect
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dtypeguard import audit

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
BAD = {"warning", "error"}


@dataclasses.dataclass(frozen=True)
class Bad:
    """A program, and the one finding of a rule that it must give."""

    program: Callable[[], Any]
    rule: str
    severity: str
    source: str  # of the line
    module: str | None
    dtypes: tuple[Any, Any] = (None, None)
    says: tuple[str, ...] = ()
    others: tuple[str, ...] = ()  # further rules, warnings or worse
    raises: type[Exception] | None = None
    count: int | None = None


def number_of(function, text):
    lines, first = inspect.getsourcelines(function)
    return next((first + n for n, line in enumerate(lines) if line.strip() == text), None)


def run(program, raises=None):
    torch.manual_seed(0)
    with pytest.raises(raises) if raises else contextlib.nullcontext(), audit() as report:
        program()
    assert report.faults == []
    report.to_json()
    return report


def harmful(report):
    return sorted(f.rule for f in report.findings if f.severity in BAD)


def check(case):
    report = run(case.program, case.raises)
    key = case.rule, case.source, case.module, case.severity
    found = [f for f in report.findings if (f.rule, f.source, f.module_path, f.severity) == key]
    assert len(found) == 1, str(report.findings)
    (finding,) = found
    assert (finding.from_dtype, finding.to_dtype) == case.dtypes
    for text in case.says:
        assert text in finding.message
    assert finding.fix
    expected = [*case.others, *([case.rule] if case.severity in BAD else [])]
    assert set(harmful(report)) == set(expected), str(report.findings)
    assert finding.function is not None
    assert finding.line is not None
    if case.count is not None:
        assert finding.count == case.count


# ---------------------------------------------------------------- programs


class Rotary(nn.Module):
    """Angles from a buffer of frequencies."""

    def __init__(self, dim=8):
        super().__init__()
        self.register_buffer("inv_freq", 1.0 / 10000 ** (torch.arange(0, dim, 2).float() / dim), persistent=False)

    def forward(self, x):
        t = torch.arange(x.shape[-2], device=x.device).type_as(self.inv_freq)
        angles = torch.outer(t, self.inv_freq)
        cos, sin = angles.cos(), angles.sin()
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos.to(x.dtype) - b * sin.to(x.dtype), b * cos.to(x.dtype) + a * sin.to(x.dtype)], -1)


class SafeRotary(Rotary):
    """The same, with angles in float32 whatever the buffer is."""

    def forward(self, x):
        inv_freq = 1.0 / 10000 ** (torch.arange(0, 8, 2).float() / 8)
        angles = torch.outer(torch.arange(x.shape[-2]).float(), inv_freq)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Net(nn.Module):
    def __init__(self, inner=None):
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.inner = nn.Identity() if inner is None else inner

    def forward(self, x):
        return self.inner(self.fc(x))


def rope_in_bfloat16():
    net = Net(Rotary())
    net = net.to(torch.bfloat16)
    net(torch.randn(1, 600, 8).bfloat16())


def rope_in_half():
    net = Net(Rotary())
    net.half()
    net(torch.randn(1, 5000, 8).half())


def rope_with_short_sequences():
    net = Net(Rotary())
    net.to(dtype=torch.bfloat16)
    net(torch.randn(1, 6, 8).bfloat16())


class Diffusion(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("alphas_cumprod", torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000), 0))

    def forward(self, x, t):
        a = self.alphas_cumprod[t].view(-1, 1)
        return a.sqrt() * x + (1 - a).sqrt() * torch.randn_like(x)


def a_noise_schedule_in_half():
    model = Diffusion()
    model.half()
    model(torch.randn(2, 4).half(), torch.tensor([0, 999]))


def buffers_of_a_double_model():
    net = nn.BatchNorm1d(4).double().eval()
    net.float()
    net(torch.randn(3, 4))


# --- DG502


def trains_norms_in_half():
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).to(torch.bfloat16)
    for _ in range(3):
        net(torch.randn(6, 4).bfloat16()).sum().backward()


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 1)
        self.norm = nn.BatchNorm2d(4, momentum=0.01)

    def forward(self, x):
        return self.norm(self.stem(x))


def trains_images_in_half():
    model = Images().half()
    model(torch.randn(2, 3, 4, 4).half())


def trains_with_running_instance_norms():
    norm = nn.InstanceNorm1d(4, track_running_stats=True).bfloat16()
    norm(torch.randn(2, 4, 6).bfloat16())


def trains_with_cumulative_averages():
    norm = nn.BatchNorm1d(4, momentum=None).bfloat16()
    norm(torch.randn(6, 4).bfloat16())


# --- DG503


class Scaled(nn.Module):
    """A table that is only an attribute."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.scale = torch.linspace(0.5, 1.0, 4)

    def forward(self, x):
        return self.fc(x) * self.scale


def an_attribute_promotes():
    net = Scaled().to(torch.bfloat16)
    net(torch.randn(2, 4).bfloat16())


class Headed(Scaled):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(super().forward(x))


def an_attribute_is_refused():
    net = Headed()
    net.half()
    net(torch.randn(2, 4).half())


class Anchors(nn.Module):
    """Tables in a list, as detectors have them."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.anchors = [torch.ones(4), torch.zeros(4)]

    def forward(self, x):
        return self.fc(x) + self.anchors[0]


def a_list_of_attributes_promotes():
    net = Anchors()
    net = net.bfloat16()
    net(torch.randn(2, 4).bfloat16())


def an_attribute_stays_on_the_cpu():
    net = Scaled()
    net.to("meta")
    net(torch.randn(2, 4, device="meta"))


class Window(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = {"hann": torch.hann_window(8)}
        self.fc = nn.Linear(8, 8)

    def forward(self, x):
        return self.fc(x * self.tables["hann"])


def a_dict_of_attributes_stays_on_the_cpu():
    net = Window()
    net.to(device="meta", dtype=torch.float16)
    net(torch.randn(2, 8, device="meta", dtype=torch.float16))


def an_attribute_that_harms_nobody():
    net = Net(SafeRotary())
    net.inner.cache = torch.zeros(3)
    net.bfloat16()
    net(torch.randn(1, 5, 8).bfloat16())


# --- DG504


class Grows(nn.Module):
    def __init__(self, keeps=False):
        super().__init__()
        self.keeps = keeps
        self.register_buffer("table", torch.randn(2, 4))
        self.norm = nn.LayerNorm(4)

    def forward(self, x):
        if x.shape[0] > len(self.table):
            table = torch.randn(x.shape[0], 4)
            self.table = table.to(self.table) if self.keeps else table
        return x + self.table[: x.shape[0]]


def a_table_grows_in_float32():
    net = Grows()
    net.half()
    net(torch.randn(5, 4).half())


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.positions = Grows()
        self.norm = nn.Linear(4, 4)

    def forward(self, x):
        return self.norm(self.positions(x))


def a_grown_table_is_refused():
    net = Normed().half()
    net(torch.randn(5, 4).half())


class Counts(nn.Module):
    """A buffer that is replaced and cast back before it is used."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x):
        self.mean = x.detach().float().mean(0)
        return x - self.mean.to(x.dtype)


def a_buffer_widens_and_harms_nobody():
    net = Counts()
    net.half()
    net(torch.randn(5, 4).half())


# --- DG505


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(3, 4)

    def forward(self, x):
        state = torch.zeros(1, x.shape[1], 4), torch.zeros(1, x.shape[1], 4)
        return self.rnn(x, state)[0]


def a_state_on_the_cpu():
    net = Tagger().to("meta")
    net(torch.zeros(2, 1, 3, device="meta"))


class Positions(nn.Module):
    def forward(self, x):
        return x + torch.linspace(0, 1, x.shape[1])[:, None]


def positions_on_the_cpu():
    net = nn.Sequential(nn.Linear(4, 4), Positions()).to("meta")
    net(torch.zeros(2, 5, 4, device="meta"))


def a_batch_on_the_cpu():
    net = nn.Linear(4, 4, device="meta")
    x = torch.ones(2, 4)
    net(x)


def a_loss_over_two_devices():
    pred = torch.ones(3, device="meta")
    target = torch.ones(3)
    F.mse_loss(pred, target)


# --- DG506


class Adapted(nn.Module):
    """LoRA beside a frozen layer."""

    def __init__(self, cast):
        super().__init__()
        self.base = nn.Linear(16, 16).bfloat16()
        self.a = nn.Linear(16, 2, bias=False)
        self.b = nn.Linear(2, 16, bias=False)
        self.cast = cast

    def forward(self, x):
        y = self.base(x)
        z = x.float() if self.cast else x
        update = self.b(self.a(z))
        return y + (update.to(y.dtype) if self.cast else update)


def an_adapter_casts_itself():
    model = Adapted(True)
    for _ in range(2):
        model(torch.randn(2, 16).bfloat16()).float().sum().backward()


def an_adapter_is_refused():
    model = Adapted(False)
    model(torch.randn(2, 16).bfloat16())


class Similar(nn.Module):
    """A logit_scale that stays float32, as in CLIP."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 8).bfloat16()
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, x):
        y = F.normalize(self.body(x), dim=-1)
        return (self.logit_scale.exp() * (y @ y.t())).float()


def a_logit_scale_in_float32():
    model = Similar()
    model(torch.randn(3, 8).bfloat16()).sum().backward()


class Cached(nn.Module):
    """A cache in the default dtype beside a half model."""

    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(8, 8)
        self.keys = torch.zeros(1, 0, 8)

    def forward(self, x):
        self.keys = torch.cat([self.keys, self.proj(x)], 1)
        return x @ self.keys.transpose(1, 2)


def a_cache_in_float32():
    model = Cached()
    model.half()
    model(torch.randn(1, 2, 8).half())


BUGS = [
    Bad(
        rope_in_bfloat16,
        "DG501",
        "warning",
        "net = net.to(torch.bfloat16)",
        "Net.inner",
        (F32, BF16),
        ("inv_freq", "float32", "bfloat16"),
        ("DG108",),
    ),
    Bad(rope_in_half, "DG501", "warning", "net.half()", "Net.inner", (F32, F16), ("inv_freq",), ("DG108",)),
    Bad(
        rope_with_short_sequences,
        "DG501",
        "info",
        "net.to(dtype=torch.bfloat16)",
        "Net.inner",
        (F32, BF16),
        ("inv_freq",),
    ),
    Bad(a_noise_schedule_in_half, "DG501", "info", "model.half()", "Diffusion", (F32, F16), ("alphas_cumprod",)),
    Bad(
        trains_norms_in_half,
        "DG502",
        "warning",
        "net(torch.randn(6, 4).bfloat16()).sum().backward()",
        "Sequential.1",
        (BF16, F32),
        ("running_mean", "0.1"),
        count=3,
    ),
    Bad(
        trains_images_in_half,
        "DG502",
        "warning",
        "return self.norm(self.stem(x))",
        "Images.norm",
        (F16, F32),
        ("0.01", "float16"),
    ),
    Bad(
        trains_with_running_instance_norms,
        "DG502",
        "warning",
        "norm(torch.randn(2, 4, 6).bfloat16())",
        "InstanceNorm1d",
        (BF16, F32),
    ),
    Bad(
        an_attribute_promotes,
        "DG503",
        "warning",
        "net = Scaled().to(torch.bfloat16)",
        "Scaled",
        (F32, BF16),
        ("`scale`", "float32"),
        ("DG102",),
    ),
    Bad(
        an_attribute_is_refused,
        "DG503",
        "warning",
        "net.half()",
        "Headed",
        (F32, F16),
        ("`scale`",),
        ("DG102", "DG110"),
        RuntimeError,
    ),
    Bad(
        a_list_of_attributes_promotes,
        "DG503",
        "warning",
        "net = net.bfloat16()",
        "Anchors",
        (F32, BF16),
        ("anchors[0]",),
        ("DG102",),
    ),
    Bad(
        an_attribute_stays_on_the_cpu,
        "DG503",
        "warning",
        'net.to("meta")',
        "Scaled",
        (F32, None),
        ("on cpu", "`scale`"),
        ("DG505",),
        RuntimeError,
    ),
    Bad(
        a_dict_of_attributes_stays_on_the_cpu,
        "DG503",
        "warning",
        'net.to(device="meta", dtype=torch.float16)',
        "Window",
        (F32, F16),
        ("tables['hann']",),
        ("DG505",),
        RuntimeError,
    ),
    Bad(an_attribute_that_harms_nobody, "DG503", "info", "net.bfloat16()", "Net.inner", (F32, BF16), ("`cache`",)),
    Bad(
        a_table_grows_in_float32,
        "DG504",
        "warning",
        "self.table = table.to(self.table) if self.keeps else table",
        "Grows",
        (F16, F32),
        ("`table`",),
        ("DG102",),
    ),
    Bad(
        a_grown_table_is_refused,
        "DG504",
        "warning",
        "self.table = table.to(self.table) if self.keeps else table",
        "Normed.positions",
        (F16, F32),
        ("`table`",),
        ("DG102", "DG110"),
        RuntimeError,
    ),
    Bad(
        a_buffer_widens_and_harms_nobody,
        "DG504",
        "info",
        "self.mean = x.detach().float().mean(0)",
        "Counts",
        (F16, F32),
        ("`mean`",),
    ),
    Bad(
        a_state_on_the_cpu,
        "DG505",
        "error",
        "return self.rnn(x, state)[0]",
        "Tagger.rnn",
        (F32, None),
        (),
        (),
        RuntimeError,
    ),
    Bad(
        positions_on_the_cpu,
        "DG505",
        "error",
        "return x + torch.linspace(0, 1, x.shape[1])[:, None]",
        "Sequential.1",
        (F32, None),
        (),
        (),
        RuntimeError,
    ),
    Bad(a_loss_over_two_devices, "DG505", "error", "F.mse_loss(pred, target)", None, (F32, None), (), (), RuntimeError),
    Bad(a_batch_on_the_cpu, "DG505", "error", "net(x)", "Linear", (F32, None), (), (), RuntimeError),
    Bad(
        an_adapter_casts_itself,
        "DG506",
        "info",
        "model(torch.randn(2, 16).bfloat16()).float().sum().backward()",
        "Adapted",
        (F32, BF16),
        ("`a.weight`", "`b.weight`", "bfloat16"),
    ),
    Bad(
        an_adapter_is_refused,
        "DG506",
        "info",
        "model(torch.randn(2, 16).bfloat16())",
        "Adapted",
        (F32, BF16),
        ("`a.weight`",),
        ("DG110",),
        RuntimeError,
    ),
    Bad(
        a_logit_scale_in_float32,
        "DG506",
        "info",
        "model(torch.randn(3, 8).bfloat16()).sum().backward()",
        "Similar",
        (F32, BF16),
        ("`logit_scale`",),
    ),
]


@pytest.mark.parametrize("case", BUGS, ids=lambda case: f"{case.program.__name__}-{case.rule}")
def test_a_bug_is_found_at_its_line(case):
    check(case)


def test_a_cache_in_another_dtype_is_found():
    report = run(a_cache_in_float32, RuntimeError)
    found = {f.rule: f for f in report.findings if f.severity in BAD}
    assert "DG110" in found
    assert {"DG503", "DG102"} & set(found)


# ---------------------------------------------------------------- healthy programs


def a_model_for_inference_in_half():
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2)).eval()
    net.half()
    with torch.inference_mode():
        net(torch.randn(2, 3, 4, 4).half())


def norms_in_half_that_are_frozen():
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).bfloat16()
    net[1].eval()
    net(torch.randn(5, 4).bfloat16()).sum().backward()


def norms_in_half_without_statistics():
    net = nn.Sequential(
        nn.BatchNorm1d(4, track_running_stats=False), nn.InstanceNorm1d(4), nn.GroupNorm(2, 4), nn.LayerNorm(4)
    )
    net.bfloat16()
    net[0](torch.randn(5, 4).bfloat16()).sum().backward()
    net[2](torch.randn(5, 4).bfloat16()).sum().backward()


def norms_that_stay_float32():
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).half()
    net[1].float()
    y = net[1](net[0](torch.randn(5, 4).half()))
    net[2](y.half()).sum().backward()


def norms_in_half_whose_statistics_never_move():
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, momentum=0.0)).bfloat16()
    net(torch.randn(5, 4).bfloat16()).sum().backward()


def a_cached_activation():
    class Keeps(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)
            self.last = None

        def forward(self, x):
            self.last = self.fc(x).detach()
            return self.last * 2

    net = Keeps()
    net(torch.randn(2, 4))
    net.half()
    net(torch.randn(2, 4).half())


def a_teacher_in_half():
    student, teacher = nn.Linear(4, 4), nn.Linear(4, 4).half().eval()
    x = torch.randn(3, 4)
    with torch.no_grad():
        target = teacher(x.half()).float()
    F.mse_loss(student(x), target).backward()


def an_offloaded_model():
    net = Net(Rotary())
    for _ in range(3):
        net.to("meta")
        net.to_empty(device="cpu")
    net.float()


def a_move_to_a_device():
    net = Net(Rotary())
    net.to("cpu")
    net.cpu()
    net.to(torch.device("cpu"))
    net(torch.randn(1, 5, 8))


def integer_buffers():
    net = nn.BatchNorm1d(4)
    net.register_buffer("ids", torch.arange(4))
    net.register_buffer("mask", torch.ones(4, dtype=torch.bool))
    net.eval().half()
    net(torch.randn(3, 4).half())[:, net.ids]


def a_module_that_is_converted_twice():
    net = nn.Linear(4, 4)
    net.half()
    net.half()
    net.float()
    net.float()
    net(torch.randn(2, 4))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x):
        return self.head(self.embed(x))


def tied_weights():
    net = Tied()
    net.bfloat16()
    assert net.head.weight is net.embed.weight
    net(torch.tensor([[1, 2]])).float().sum().backward()


def made_on_meta():
    with torch.device("meta"):
        net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    net.to_empty(device="cpu")
    for module in net:
        module.reset_parameters()
    net.eval()(torch.randn(3, 4))


def a_module_that_is_wrapped():
    class Wrapper(nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

        def forward(self, *args, **kwargs):
            return self.module(*args, **kwargs)

    net = Net()
    net(torch.randn(2, 8))
    wrapped = Wrapper(net)
    wrapped(torch.randn(2, 8)).sum().backward()
    wrapped.double()
    wrapped(torch.randn(2, 8, dtype=F64))


def data_parallel():
    net = nn.DataParallel(Net())
    net(torch.randn(2, 8)).sum().backward()


def under_autocast():
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    with torch.autocast("cpu", dtype=BF16):
        loss = net(torch.randn(5, 4)).float().sum()
    loss.backward()


def a_rotary_that_computes_in_float32():
    net = Net(SafeRotary())
    net.bfloat16()
    net(torch.randn(1, 600, 8).bfloat16())


def an_inv_freq_that_stays_float32():
    class Kept(Rotary):
        def _apply(self, fn, recurse=True):
            kept = self.inv_freq
            super()._apply(fn, recurse)
            self.inv_freq = kept.to(self.inv_freq.device)
            return self

        def forward(self, x):
            return super().forward(x)

    net = Net(Kept())
    net.bfloat16()
    net(torch.randn(1, 600, 8).bfloat16())


def a_cast_of_a_table_where_it_is_used():
    class Careful(Scaled):
        def forward(self, x):
            return self.fc(x) * self.scale.to(x)

    net = Careful()
    net.bfloat16()
    net(torch.randn(2, 4).bfloat16())


def a_growing_table_that_keeps_its_dtype():
    net = Grows(keeps=True)
    net.half()
    net(torch.randn(5, 4).half())


def integer_attributes():
    net = Net()
    net.ids, net.names = torch.arange(3), [torch.ones(2, dtype=torch.bool)]
    net.half()
    net(torch.randn(2, 8).half())


def buffers_that_are_replaced_by_their_like():
    class Average(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(4))
            self.register_buffer("steps", torch.tensor(0))

        def forward(self, x):
            self.mean = self.mean * 0.9 + x.detach().mean(0) * 0.1
            self.steps = self.steps + 1
            return x - self.mean

    net = Average()
    for _ in range(3):
        net(torch.randn(5, 4))


def a_buffer_that_comes_and_goes():
    class Lazy(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("cache", None)

        def forward(self, x):
            self.cache = x.detach() if self.cache is None else None
            return x

    net = Lazy()
    for _ in range(4):
        net(torch.randn(5, 4))
    net.half()


def zero_dim_tensors_on_the_cpu():
    net = nn.Linear(4, 4, device="meta")
    net(torch.ones(2, 4, device="meta")) * torch.tensor(2.0) + torch.tensor(1.0)


def a_state_on_the_right_device():
    net = nn.LSTM(3, 4).to("meta")
    x = torch.zeros(2, 1, 3, device="meta")
    net(x, (x.new_zeros(1, 1, 4), x.new_zeros(1, 1, 4)))


def experts_of_one_dtype():
    net = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 4)}).bfloat16()
    x = torch.randn(3, 4).bfloat16()
    (net["a"](x) + net["b"](x)).float().mean().backward()


def a_copy_in_half_for_inference():
    net = Net()
    net(torch.randn(2, 8)).sum().backward()
    twin = copy.deepcopy(net).half().eval()
    with torch.no_grad():
        twin(torch.randn(2, 8).half())


def spectral_and_weight_norm_in_bfloat16():
    net = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)).bfloat16()
    net(torch.randn(2, 4).bfloat16()).float().mean().backward()


def mixed_by_design():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(8, 8).bfloat16()
            self.norm = nn.LayerNorm(8)
            self.head = nn.Linear(8, 2)

        def forward(self, x):
            return self.head(self.norm(self.body(x.bfloat16()).float()))

    Mixed()(torch.randn(2, 8)).mean().backward()


def a_loss_with_weights():
    loss = nn.CrossEntropyLoss(weight=torch.rand(3))
    loss(torch.randn(4, 3, requires_grad=True), torch.tensor([0, 1, 2, 0])).backward()


HEALTHY = [
    a_model_for_inference_in_half, norms_in_half_that_are_frozen, norms_in_half_without_statistics,
    norms_that_stay_float32, a_move_to_a_device, integer_buffers, a_module_that_is_converted_twice, tied_weights,
    made_on_meta, a_module_that_is_wrapped, data_parallel, under_autocast, a_rotary_that_computes_in_float32,
    an_inv_freq_that_stays_float32, a_cast_of_a_table_where_it_is_used, a_growing_table_that_keeps_its_dtype,
    integer_attributes, buffers_that_are_replaced_by_their_like, a_buffer_that_comes_and_goes,
    zero_dim_tensors_on_the_cpu, a_state_on_the_right_device, experts_of_one_dtype, a_copy_in_half_for_inference,
    spectral_and_weight_norm_in_bfloat16, mixed_by_design, a_loss_with_weights, rope_with_short_sequences,
    an_attribute_that_harms_nobody, an_adapter_casts_itself, a_noise_schedule_in_half, buffers_of_a_double_model,
    a_logit_scale_in_float32, a_buffer_widens_and_harms_nobody, norms_in_half_whose_statistics_never_move,
    a_cached_activation, a_teacher_in_half, an_offloaded_model,
]  # fmt: skip


@pytest.mark.parametrize("program", HEALTHY, ids=lambda p: p.__name__)
def test_a_healthy_program_is_not_blamed(program):
    report = run(program)
    assert harmful(report) == [], str(report.findings)


SILENT = {
    "DG501": [
        a_move_to_a_device,
        a_module_that_is_converted_twice,
        an_inv_freq_that_stays_float32,
        made_on_meta,
        tied_weights,
        a_module_that_is_wrapped,
    ],
    "DG502": [
        a_model_for_inference_in_half,
        norms_in_half_that_are_frozen,
        norms_in_half_without_statistics,
        norms_in_half_whose_statistics_never_move,
        norms_that_stay_float32,
        under_autocast,
    ],
    "DG503": [
        a_move_to_a_device,
        integer_attributes,
        tied_weights,
        made_on_meta,
        under_autocast,
        a_module_that_is_converted_twice,
    ],
    "DG504": [
        a_growing_table_that_keeps_its_dtype,
        buffers_that_are_replaced_by_their_like,
        a_buffer_that_comes_and_goes,
        under_autocast,
        norms_that_stay_float32,
    ],
    "DG505": [zero_dim_tensors_on_the_cpu, a_state_on_the_right_device, a_move_to_a_device, made_on_meta],
    "DG506": [experts_of_one_dtype, tied_weights, under_autocast, a_module_that_is_wrapped, integer_buffers],
}


@pytest.mark.parametrize(
    ("rule", "program"),
    [(rule, p) for rule, programs in SILENT.items() for p in programs],
    ids=lambda v: getattr(v, "__name__", v),
)
def test_a_rule_says_nothing_of_a_program_that_is_not_its(rule, program):
    report = run(program)
    assert [f.message for f in report.findings if f.rule == rule] == []


@pytest.mark.parametrize("rule", ["DG501", "DG502", "DG503", "DG504", "DG505", "DG506"])
def test_a_rule_that_is_left_out_says_nothing(rule):
    case = next(case for case in BUGS if case.rule == rule)
    with pytest.raises(case.raises) if case.raises else contextlib.nullcontext(), audit(ignore=[rule]) as report:
        case.program()
    assert rule not in {f.rule for f in report.findings}
    assert report.faults == []


@pytest.mark.parametrize("rule", ["DG501", "DG502", "DG503", "DG504", "DG505", "DG506"])
def test_a_rule_that_is_chosen_works_without_the_others(rule):
    case = next(case for case in BUGS if case.rule == rule)
    with pytest.raises(case.raises) if case.raises else contextlib.nullcontext(), audit(rules=[rule]) as report:
        case.program()
    assert {f.rule for f in report.findings} == {rule}
    assert report.faults == []


def test_what_is_blamed_later_is_counted_once():
    report = run(an_attribute_promotes)
    (stayed,) = [f for f in report.findings if f.rule == "DG503"]
    assert (stayed.count, stayed.bytes) == (1, 16)
    report = run(rope_in_bfloat16)
    (narrowed,) = [f for f in report.findings if f.rule == "DG501"]
    assert (narrowed.count, narrowed.bytes) == (1, 8)
    report = run(a_table_grows_in_float32)
    (grown,) = [f for f in report.findings if f.rule == "DG504"]
    assert grown.count == 1


def test_what_is_converted_in_a_loop_is_counted():
    def program():
        for _ in range(3):
            Diffusion().half()

    report = run(program)
    assert sum(f.count for f in report.findings if f.rule == "DG501") == 3


def test_the_fix_of_a_list_of_tensors_names_no_such_buffer():
    report = run(a_list_of_attributes_promotes)
    assert all("register_buffer('anchors[0]'" not in f.fix for f in report.findings)


def test_an_exception_that_is_caught_inside_of_the_model_is_no_finding():
    class Careful(nn.Module):
        def forward(self, x, y):
            try:
                return x + y
            except RuntimeError:
                return x + y.to(x.device)

    with audit() as report:
        Careful()(torch.ones(2, device="meta"), torch.ones(2))
    assert harmful(report) == []
    assert report.faults == []


# ---------------------------------------------------------------- conversions of every form


FORMS = {
    "half()": lambda m: m.half(),
    "bfloat16()": lambda m: m.bfloat16(),
    "to(dtype)": lambda m: m.to(F16),
    "to(dtype=)": lambda m: m.to(dtype=F16),
    "to(device, dtype)": lambda m: m.to("cpu", F16),
    "to(tensor)": lambda m: m.to(torch.zeros(1, dtype=F16)),
    "to(device=, dtype=, non_blocking=)": lambda m: m.to(device="cpu", dtype=F16, non_blocking=True),
    "to(memory_format=)": lambda m: m.to(F16, memory_format=torch.preserve_format),
    "type": lambda m: m.type(F16),
    "_apply": lambda m: m._apply(lambda t: t.half()),
    "apply": lambda m: m.apply(lambda part: part.half()),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_conversion_is_seen_and_does_what_it_did(form):
    convert = FORMS[form]
    net = Scaled()
    net.register_buffer("table", torch.ones(3))
    expected = convert(copy.deepcopy(net)).state_dict()
    with audit() as report:
        result = convert(net)
    assert result is net
    assert {key: value.dtype for key, value in net.state_dict().items()} == {
        key: value.dtype for key, value in expected.items()
    }
    assert report.faults == []
    if form not in ("type", "_apply"):
        assert {f.rule for f in report.findings} == {"DG501", "DG503"}
    assert harmful(report) == []


def test_a_conversion_that_is_refused_is_refused_as_before():
    with audit() as report, pytest.raises(TypeError, match="only accepts floating point"):
        nn.Linear(2, 2).to(torch.int32)
    assert report.faults == []
    with audit() as report, pytest.raises(TypeError, match="received an invalid combination"):
        nn.Linear(2, 2).to(1, 2, 3, 4, 5, 6)
    assert report.faults == []


def test_a_model_that_is_named_has_the_paths_of_its_modules():
    net = Net(Rotary())
    with audit(net) as report:
        net.half()
    (finding,) = [f for f in report.findings if f.rule == "DG501"]
    assert finding.module_path == "Net.inner"
    assert finding.bytes == net.inner.inv_freq.nbytes
    assert "test_audit_modules.py" in finding.site


def test_two_models_of_one_class_are_told_apart():
    one, two = Scaled(), Scaled()
    with audit() as report:
        one.bfloat16()
        two.bfloat16()
    paths = [f.module_path for f in report.findings if f.rule == "DG503"]
    assert sorted(paths) == ["Scaled", "Scaled#2"]


def test_a_cumulative_average_says_by_how_much_it_moves():
    report = run(trains_with_cumulative_averages)
    (finding,) = [f for f in report.findings if f.rule == "DG502"]
    assert finding.severity == "warning"
    assert "by 0 of" not in finding.message


def test_a_conversion_inside_of_a_conversion_is_one():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("table", torch.ones(3))

        def half(self):
            return self.to(torch.float16)

    with audit() as report:
        Own().half()
    (finding,) = report.findings
    assert (finding.rule, finding.count) == ("DG501", 1)
