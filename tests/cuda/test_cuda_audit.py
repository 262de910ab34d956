"""An audit of what a GPU computes: the same bits, the lines of backward, and kernels that no other device has."""

import copy
import warnings

import pytest
import torch
from support import BF16, F16, F32, same
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import dtypeguard
from dtypeguard import audit, compare, diff

VALUES = (None, "range", True)


class Net(nn.Module):
    """Convolutions with batch norms, and an encoder."""

    def __init__(self):
        super().__init__()
        self.images = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.GELU()
        )
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0), 2)
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        return self.head(self.encoder(self.images(x).flatten(2).transpose(1, 2)).mean(1))


def images(device):
    return torch.randn(8, 3, 16, 16, device=device), torch.randint(10, (8,), device=device)


def trained(device, dtype, values, steps=3):
    """The state of a model after some steps in an audit, or without one; and the report."""
    torch.manual_seed(0)
    model = Net().to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler(device.type, enabled=dtype is F16)
    x, labels = images(device)

    def step():
        with torch.autocast(device.type, dtype, enabled=dtype is not F32):
            loss = nn.functional.cross_entropy(model(x), labels)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    if values == "without":
        for _ in range(steps):
            step()
        return copy.deepcopy((model.state_dict(), optimizer.state_dict())), None
    with audit(model, optimizer, scaler, values=values) as report:
        for _ in range(steps):
            step()
    return copy.deepcopy((model.state_dict(), optimizer.state_dict())), report


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("dtype", [F32, BF16, F16])
def test_a_training_computes_the_same_bits(dtype, values, device, deterministic):
    expected, _ = trained(device, dtype, "without")
    state, report = trained(device, dtype, values)
    assert same(state, expected)
    assert report.faults == []
    assert [finding for finding in report.findings if finding.severity != "info"] == []
    if values is True:
        assert report.values["not_shadowed"] == {}


@pytest.mark.parametrize("values", ["range", True])
def test_backward_runs_in_a_thread_of_autograd_and_is_seen(values, device):
    with audit(values=values) as report:
        weight = torch.zeros(3, device=device, requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=0.1)
        length = weight.square().sum().sqrt()  # <--
        length.backward()
        optimizer.step()
    sources = [finding.source for finding in report.findings if finding.rule == "DG901"]
    assert sources == ["length = weight.square().sum().sqrt()  # <--"]


@pytest.mark.parametrize("values", ["range", True])
def test_what_an_operation_loses_on_the_way_to_the_cpu_is_looked_for_once(values, device):
    with audit(values=values) as report, torch.inference_mode():
        (torch.ones(3, device=device) * 1e6).to(F16).reshape(3, 1).tolist()  # <--
    assert [finding.rule for finding in report.findings] == ["DG901"]
    assert report.faults == []


@pytest.mark.parametrize("values", ["range", True])
@pytest.mark.parametrize("dtype", [F32, F16])
def test_what_a_kernel_of_attention_keeps_for_itself_is_nobody_s_value(dtype, values, device):
    """The sums of a memory-efficient kernel are filled up with infinities to a multiple of 32 rows."""
    with audit(values=values) as report:
        query = torch.randn(2, 6, 255, 64, device=device, dtype=dtype, requires_grad=True)
        nn.functional.scaled_dot_product_attention(query, query, query, is_causal=True).sum().backward()
        assert bool(query.grad.isfinite().all())
    assert report.findings == []


RECURRENT = [
    (nn.LSTM, {}),
    (nn.LSTM, {"bidirectional": True, "num_layers": 2, "batch_first": True}),
    (nn.LSTM, {"proj_size": 3}),
    (nn.GRU, {"bias": False}),
    (nn.RNN, {"nonlinearity": "relu"}),
    (nn.LSTMCell, {}),
    (nn.GRUCell, {}),
]


@pytest.mark.parametrize(("kind", "options"), RECURRENT, ids=str)
@pytest.mark.parametrize("train", [True, False])
def test_the_shadow_of_a_recurrent_kernel_is_its_module_in_float64(kind, options, train, device):
    def results(module, x):
        out = module(x)
        out = [one for part in out for one in (part if isinstance(part, tuple) else (part,))]
        if not train:
            return out
        sum(one.sin().sum() for one in out).backward()
        return [*(one.detach() for one in out), *(one.grad for one in (x, *module.parameters()))]

    def started(x):
        return x.requires_grad_() if train else x

    module = kind(5, 7, **options, device=device).train(train).requires_grad_(train)
    x = torch.randn(*((6, 3, 5) if issubclass(kind, nn.RNNBase) else (3, 5)), device=device)
    expected = results(copy.deepcopy(module).double(), started(x.double()))
    with audit(values=True) as report:
        found = [shadow_of(report, one) for one in results(module, started(x.clone()))]
    assert report.values["not_shadowed"] == {}
    for shadow, exact in zip(found, expected, strict=True):
        torch.testing.assert_close(shadow, exact, rtol=1e-8, atol=1e-10)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(50, 16)
        self.rnn = nn.LSTM(16, 32, 2, batch_first=True, bidirectional=True, dropout=0.1)
        self.head = nn.Linear(64, 9)

    def forward(self, ids):
        return self.head(self.rnn(self.words(ids))[0])


def test_weights_that_autocast_casts_for_a_recurrent_kernel_are_no_finding(device):
    model, ids = Tagger().to(device), torch.randint(50, (4, 12), device=device)
    with audit(model, values=True) as report:
        for _ in range(3):
            with torch.autocast(device.type, F16 if device.type == "cuda" else BF16):
                model(ids).float().square().mean().backward()
    assert report.findings == []


def test_what_a_recurrent_layer_costs_is_measured_in_a_model_that_does_not_train(device):
    model, ids = Tagger().to(device).eval(), torch.randint(50, (4, 12), device=device)
    result = compare(model, ids, dtype=BF16)
    assert result.notes == []
    assert result.explained == pytest.approx(1, abs=0.1)
    rounded = copy.deepcopy(model).to(BF16)(ids).double()
    exact = copy.deepcopy(model).double()(ids)
    assert result.error == pytest.approx(float((rounded - exact).norm() / exact.norm()), rel=0.05)
    assert not model.rnn.training


def test_diff_says_that_a_gpu_computes_in_tf32(device, gpu, monkeypatch):
    model, ids = Tagger().eval(), torch.randint(50, (4, 12))
    (note,) = diff(model, copy.deepcopy(model).to(device), ids).notes
    assert note == (
        'b computes float32 recurrent layers in TF32 on cuda:0: `torch.backends.cudnn.rnn.fp32_precision = "ieee"` '
        "computes them in float32"
    )
    monkeypatch.setattr(torch.backends.cudnn.rnn, "fp32_precision", "ieee")
    found = diff(model, copy.deepcopy(model).to(device), ids)
    assert not found.notes
    assert found.distance < 1e-6


def shadow_of(report, tensor):
    return report._recorder.values.shadow.memory.read(tensor, torch.float64)


def test_a_step_in_an_audit_waits_for_nothing(device, gpu, unsynchronised):
    model = nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4)).to(gpu)
    optimizer, x = torch.optim.AdamW(model.parameters(), fused=True), torch.randn(8, 16, device=gpu)
    with audit(model, optimizer):
        for n in range(4):
            with unsynchronised() if n > 1 else torch.enable_grad(), torch.autocast("cuda", BF16):
                model(x).float().square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()


@pytest.mark.parametrize("how", [{"dtype": BF16}, {"dtype": F16}, {"region": F16}, {"region": BF16}])
def test_each_layer_has_its_share_of_an_error(how, device):
    if device.type == "cpu" and "region" in how:
        pytest.skip("the fast path of an encoder refuses CPU autocast")
    torch.manual_seed(0)
    model = Net().to(device).eval()
    result = compare(model, images(device)[0], **how)
    assert [note for note in result.notes if "fast path" not in note] == []
    assert result.explained == pytest.approx(1, abs=0.05)
    assert {layer.name for layer in result.layers if layer.weights} >= {"images.3", "head"}
    assert dtypeguard.casts() == []


class Counting(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("values", "most"), [(None, 0.01), ("range", 0.1), (True, 0.35)])
def test_at_a_step_that_is_looked_at_the_cpu_seldom_waits(device, values, most):
    """In waits for the GPU an operation of the program."""
    model = Net().to(device)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    x, labels = images(device)

    def step():
        nn.functional.cross_entropy(model(x), labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    with Counting() as counting:
        step()
    with audit(model, optimizer, values=values):
        for _ in range(3):
            step()
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("warn")
        try:
            with warnings.catch_warnings(record=True) as waits:
                warnings.simplefilter("always")
                step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert len(waits) <= most * counting.count
