"""DG501 to DG506: what a module has besides parameters, when it is converted and in forward."""

import copy

import pytest
import torch
from audit_cases import Cases, audited, bad, it_is_found
from support import BF16, F16, F32
from torch import nn

from dtypeguard import audit

BUGS = Cases()


@pytest.mark.parametrize("case", BUGS, ids=str)
def test_a_bug_is_found_at_its_line(case):
    it_is_found(case)


def run(program):
    report = audited(program)
    report.to_json()
    return report


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


class Net(nn.Module):
    def __init__(self, inner=None):
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.inner = nn.Identity() if inner is None else inner

    def forward(self, x):
        return self.inner(self.fc(x))


@BUGS.add(
    "DG501", "net = net.to(torch.bfloat16)", module_path="Net.inner", from_dtype=F32, to_dtype=BF16, count=1,
    also=["DG108"],
)  # fmt: skip
def rope_in_bfloat16():
    net = Net(Rotary())
    net = net.to(torch.bfloat16)
    net(torch.randn(1, 600, 8).bfloat16())


class Diffusion(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("alphas_cumprod", torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000), 0))

    def forward(self, x, t):
        a = self.alphas_cumprod[t].view(-1, 1)
        return a.sqrt() * x + (1 - a).sqrt() * torch.randn_like(x)


class Scaled(nn.Module):
    """A table that is only an attribute."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.scale = torch.linspace(0.5, 1.0, 4)

    def forward(self, x):
        return self.fc(x) * self.scale


class Headed(Scaled):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(super().forward(x))


@BUGS.add("DG503", "net.half()", module_path="Headed", from_dtype=F32, to_dtype=F16, also=["DG102", "DG110"])
def an_attribute_is_refused():
    net = Headed()
    net.half()
    net(torch.randn(2, 4).half())


class Window(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = {"hann": torch.hann_window(8)}
        self.fc = nn.Linear(8, 8)

    def forward(self, x):
        return self.fc(x * self.tables["hann"])


@BUGS.add(
    "DG503", 'net.to(device="meta", dtype=torch.float16)', module_path="Window", from_dtype=F32, to_dtype=F16,
    also=["DG505"],
)  # fmt: skip
def a_dict_of_attributes_stays_on_the_cpu():
    net = Window()
    net.to(device="meta", dtype=torch.float16)
    net(torch.randn(2, 8, device="meta", dtype=torch.float16))


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


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.positions = Grows()
        self.norm = nn.Linear(4, 4)

    def forward(self, x):
        return self.norm(self.positions(x))


@BUGS.add(
    "DG504", "self.table = table.to(self.table) if self.keeps else table", module_path="Normed.positions",
    from_dtype=F16, to_dtype=F32, also=["DG102", "DG110"],
)  # fmt: skip
def a_grown_table_is_refused():
    net = Normed().half()
    net(torch.randn(5, 4).half())


class Positions(nn.Module):
    def forward(self, x):
        return x + torch.linspace(0, 1, x.shape[1])[:, None]


@BUGS.add(
    "DG505", "return x + torch.linspace(0, 1, x.shape[1])[:, None]", severity="error", module_path="Sequential.1",
    from_dtype=F32,
)  # fmt: skip
def positions_on_the_cpu():
    net = nn.Sequential(nn.Linear(4, 4), Positions()).to("meta")
    net(torch.zeros(2, 5, 4, device="meta"))


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


@BUGS.add(
    "DG506", "model(torch.randn(2, 16).bfloat16())", severity="info", module_path="Adapted", from_dtype=F32,
    to_dtype=BF16, also=["DG110"],
)  # fmt: skip
def an_adapter_is_refused():
    model = Adapted(False)
    model(torch.randn(2, 16).bfloat16())


# ---------------------------------------------------------------- healthy programs


def a_model_for_inference_in_half():
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2)).eval()
    net.half()
    with torch.inference_mode():
        net(torch.randn(2, 3, 4, 4).half())


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


def a_reference_in_float64():
    def run(dtype):
        state, sign = torch.ones(8, dtype=dtype), torch.where(torch.arange(8) % 2 == 0, 1.0, -1.0)
        for _ in range(3):
            state = state * sign + state.roll(1)
        return state

    assert (run(torch.float32) - run(torch.float64)).abs().max().item() < 1e-6


def made_on_meta():
    with torch.device("meta"):
        net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    net.to_empty(device="cpu")
    for module in net:
        module.reset_parameters()
    net.eval()(torch.randn(3, 4))


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


def frequencies_that_bfloat16_has():
    class Fourier(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("frequencies", 2.0 ** torch.arange(10))

        def forward(self, x):
            return (x.float() * self.frequencies.float()).sin().to(x.dtype)

    Fourier().bfloat16()(torch.full((16, 1), 2.0, dtype=BF16))


class Angles(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("inv_freq", 10000 ** (-torch.arange(8) / 8))

    def forward(self, length, shape):
        angles = torch.arange(length).float()[:, None] * self.inv_freq.float()
        return angles.reshape(shape).cos().sum()


def short_sequences():
    Angles().bfloat16()(100, (-1, 8))
    Angles().bfloat16()(104, (8, -1))


@pytest.mark.parametrize(
    ("values", "shape", "severity"),
    [(None, (-1, 8), "warning"), (True, (-1, 8), "warning"), (None, (-1, 7), "info"), (True, (-1, 7), "warning")],
)
def test_a_buffer_is_to_blame_for_what_becomes_of_its_digits_whatever_reads_it(values, shape, severity):
    with audit(values=values) as report:
        Angles().bfloat16()(2100, shape)
    assert [(f.rule, f.severity) for f in report.findings] == [("DG501", severity)]


HEALTHY = {  # and what is no fault in them
    frequencies_that_bfloat16_has: {"DG501"},
    short_sequences: {"DG501"},
    a_model_for_inference_in_half: {"DG501"},
    a_move_to_a_device: set(),
    tied_weights: set(),
    a_reference_in_float64: {"DG101"},
    made_on_meta: set(),
    an_inv_freq_that_stays_float32: set(),
    a_buffer_that_comes_and_goes: set(),
    mixed_by_design: {"DG506"},
    norms_in_half_whose_statistics_never_move: {"DG501"},
    a_cached_activation: {"DG503"},
    an_offloaded_model: set(),
}


@pytest.mark.parametrize(("program", "known"), HEALTHY.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_a_healthy_program_is_not_blamed(program, known):
    report = run(program)
    assert bad(report) == []
    assert {finding.rule for finding in report.findings} == known


@pytest.mark.parametrize("case", BUGS, ids=str)
def test_a_rule_works_alone_or_is_left_out(case):
    assert case.rule not in {finding.rule for finding in audited(case.program, ignore=[case.rule]).findings}
    assert {finding.rule for finding in audited(case.program, select=[case.rule]).findings} == {case.rule}


def test_what_is_converted_in_a_loop_is_counted():
    def program():
        for _ in range(3):
            Diffusion().half()

    report = run(program)
    assert sum(f.count for f in report.findings if f.rule == "DG501") == 3


def test_an_exception_that_is_caught_inside_of_the_model_is_no_finding():
    class Careful(nn.Module):
        def forward(self, x, y):
            try:
                return x + y
            except RuntimeError:
                return x + y.to(x.device)

    with audit() as report:
        Careful()(torch.ones(2, device="meta"), torch.ones(2))
    assert bad(report) == []
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
    assert bad(report) == []


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


def an_attribute_promotes():
    net = Scaled().to(torch.bfloat16)
    net(torch.randn(2, 4).bfloat16())


def a_table_grows_in_float32():
    net = Grows()
    net.half()
    net(torch.randn(5, 4).half())


def test_an_attribute_that_gave_an_operand_no_dtype_is_not_blamed_for_its_refusal():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.scale = nn.Linear(4, 4), torch.tensor(0.25)

        def forward(self, x, mask):
            scores = self.q(x) @ x.mT * self.scale + (1 - mask) * -10000.0  # integers become float32
            return scores.softmax(-1) @ x

    with pytest.raises(RuntimeError), audit() as report:
        Scaled().to(BF16)(torch.randn(2, 4, dtype=BF16), torch.ones(2, 2, dtype=torch.int64))
    (stayed,) = [f for f in report.findings if f.rule == "DG503"]
    assert stayed.severity == "info"


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


class Masked(nn.Module):
    """Its mask is float32 in a model of any dtype."""

    def __init__(self):
        super().__init__()
        self.norm, self.last = nn.BatchNorm1d(8).eval(), nn.Linear(8, 8)

    def forward(self, x):
        return self.last(self.norm(x) * torch.ones(len(x), 1))


def test_a_buffer_is_not_to_blame_for_a_wider_tensor_that_is_refused():
    """The statistics became bfloat16 with the model; what is refused is float32, and has that from the mask."""
    with pytest.raises(RuntimeError, match="same dtype"), audit() as report:
        Masked().to(BF16)(torch.rand(4, 8, dtype=BF16))
    assert {(f.rule, f.severity) for f in report.findings} == {
        ("DG501", "info"), ("DG102", "warning"), ("DG110", "error"),
    }  # fmt: skip
