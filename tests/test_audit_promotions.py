"""DG101 and DG102 of an audit: operands of several floating dtypes that meet."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from audit_cases import Cases, audited, bad, it_is_found, nothing_is_found
from support import BF16, F16, F32, F64
from torch import nn

BUGS, HEALTHY = Cases(), Cases()


@pytest.mark.parametrize("case", BUGS, ids=str)
def test_operands_that_promote_are_found_at_their_line(case):
    it_is_found(case)


@pytest.mark.parametrize("case", HEALTHY, ids=str)
def test_a_healthy_mixture_gives_no_warning(case):
    nothing_is_found(case)


# ---------------------------------------------------------------- DG101: float64


@BUGS.add(
    "DG102", "return Scaled().double()(x) - torch.ones(2, 2)", severity="info", origin=["torch.ones(2, 2)"],
    fix="`.to(torch.float64)` on the float32 operand",
)  # fmt: skip
def a_module_that_is_float64_on_purpose_gets_float32():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale, self.layer = nn.Parameter(torch.ones(3)), nn.Linear(3, 2)
            self.register_buffer("table", torch.ones(3))

        def forward(self, x):
            x = x * self.table.to(x) * (torch.linspace(0, 1, 3) * self.table)
            return self.layer(x * self.scale)

    x = torch.rand(2, 3)
    return Scaled().double()(x) - torch.ones(2, 2)


OLDER = torch.zeros(3, dtype=F64)  # than the audit
ROWS = torch.ones(2, 3)


@pytest.mark.parametrize(
    ("code", "operand"),
    [
        ("(ROWS - 1) * OLDER", "OLDER"),
        ("OLDER[1:] / ROWS[:, 1:]", "OLDER[1:]"),
        ("torch.mul(ROWS, OLDER)", "OLDER"),
        ("ROWS.sub(OLDER, alpha=2)", "OLDER"),
        ("torch.where(ROWS > 0, ROWS, OLDER)", "OLDER"),
        ("ROWS.where(ROWS > 0, OLDER)", None),
        ("torch.cat([ROWS[0], OLDER])", "OLDER"),
        ("F.mse_loss(ROWS, OLDER.expand(2, 3))", None),  # torch's own line has the operator
    ],
)
def test_an_operand_that_is_older_than_the_audit_is_named(tmp_path, code, operand):
    file = tmp_path / "program.py"
    file.write_text(code)
    (found,) = audited(lambda: eval(compile(code, str(file), "eval"))).findings
    rest = " on the float64 operand, in the data set if it is data" if operand is None else ""
    assert found.fix == f"convert the float64 where it comes from, or here: `{operand or ''}.to(torch.float32)`{rest}"


@BUGS.add("DG101", "return x * self.scale", to_dtype=F64, from_dtype=F32)
def one_parameter_of_a_module_comes_from_numpy():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale, self.layer = nn.Parameter(torch.from_numpy(np.ones(4))), nn.Linear(8, 4)

        def forward(self, x):
            x = self.layer(x)
            return x * self.scale

    return Scaled()(torch.rand(2, 8))


@HEALTHY.add()
def a_mask_is_made_float_in_a_program_that_is_float64():
    x = torch.linspace(-1, 1, 8, dtype=F64)
    return x * (x <= 0).float() + (x - 1) * (x > 0).float()


@HEALTHY.add()
def numpy_statistics_are_cast_back():
    images = torch.rand(2, 3, 4, 4)
    mean = torch.from_numpy(np.array([0.485, 0.456, 0.406])).view(3, 1, 1)
    return (images - mean).float()


@HEALTHY.add()
def a_running_total_is_kept_in_float64():
    total = torch.zeros((), dtype=F64)
    for _ in range(4):
        total = total + torch.randn(8).square().sum()
    return total.item()


def _mean(mean):
    for n in range(1, 6):
        mean += (torch.randn(3) - mean) / n
    return mean


def _mean_and_spread(mean):
    m2 = torch.zeros(3, dtype=F64)
    for n in range(1, 6):
        x = torch.randn(3)
        delta = x - mean
        mean.add_(delta, alpha=1 / n)
        m2 += delta * (x - mean)
    return mean, m2


MADE_SO = {
    "zeros": lambda: torch.zeros(3, dtype=F64),
    "zeros_like": lambda: torch.zeros_like(torch.ones(3), dtype=F64),
    "a cast": lambda: torch.randn(3).double().mul(2),
    "numbers": lambda: torch.tensor([0.0, 0.0, 0.0], dtype=F64),
    "older than the audit": torch.zeros(3, dtype=F64).mul_,
}


@pytest.mark.parametrize("made", MADE_SO)
@pytest.mark.parametrize("gather", [_mean, _mean_and_spread])
def test_what_ends_in_a_float64_accumulator_that_was_made_so_is_no_finding(made, gather):
    make = MADE_SO[made]
    assert audited(lambda: gather(make(0) if made == "older than the audit" else make())).findings == []


def test_what_ends_in_an_accumulator_that_is_float64_by_chance_is_found():
    report = audited(lambda: _mean(torch.from_numpy(np.zeros(3))))
    assert {finding.rule for finding in bad(report)} == {"DG101"}


@BUGS.add("DG101", "total += (x - mean).square().sum() * (x - mean)", count=10)
def a_float32_total_takes_what_became_float64():
    mean, total = torch.zeros(3, dtype=F64), torch.zeros(3)
    for _ in range(5):
        x = torch.randn(3)
        total += (x - mean).square().sum() * (x - mean)
    return total


@HEALTHY.add()
def complex_times_real():
    spectrum = torch.fft.rfft(torch.randn(16))
    window, gain = torch.rand(9), torch.tensor(2.0, dtype=F64)
    return torch.fft.irfft(spectrum * window * gain)


# ---------------------------------------------------------------- DG102: half and float32


def rotate_half(x):
    a, b = x.chunk(2, -1)
    return torch.cat([-b, a], -1)


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.gamma = [torch.full((4,), 0.1)]

    def forward(self, x):
        return self.fc(x) * self.gamma[0]


@BUGS.add(
    "DG102", "h = a + b", also=["DG102"], message="`a + b` mixes float16 and bfloat16: the result is float32, 16 B"
)
def float16_meets_bfloat16():
    a, b = torch.randn(4).half(), torch.randn(4).bfloat16()
    h = a + b
    return h * a


@BUGS.add("DG101", "return model(x) + target", fix=".to(torch.float32)`")  # no parameter has the half dtype
def float64_meets_a_result_of_autocast():
    model, x = nn.Linear(2, 2), torch.ones(2, 2)
    target = torch.ones(2, 2, dtype=F64)
    with torch.autocast("cpu", dtype=BF16):
        return model(x) + target


class Fp32Gate(nn.Module):
    """A gate that nobody converted, in a model whose other parts are half."""

    def __init__(self):
        super().__init__()
        self.fc, self.gate = nn.Linear(4, 4).bfloat16(), nn.Parameter(torch.zeros(4))

    def forward(self, x):
        return self.fc(x) * self.gate.sigmoid()


@BUGS.add(
    "DG102", "return self.fc(x) * self.gate.sigmoid()", module_path="Sequential.0", count=2, bytes=64,
    origin=["parameter Sequential.0.gate: float32", "self.gate.sigmoid()"],
)  # fmt: skip
def a_module_gives_float32_for_half():
    model = nn.Sequential(Fp32Gate(), nn.Tanh())
    x = torch.randn(2, 4).bfloat16()
    return [model(x) for _ in range(2)]


class RMSNorm(nn.Module):
    def __init__(self, size=8):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, hidden):
        input_dtype = hidden.dtype
        hidden = hidden.to(F32)
        variance = hidden.pow(2).mean(-1, keepdim=True)
        hidden = hidden * torch.rsqrt(variance + 1e-6)
        return self.weight * hidden.to(input_dtype)


class Attention(nn.Module):
    """As transformers writes it: rotary in float32, mask of finfo.min, softmax in float32 and back."""

    def __init__(self, size=8, heads=2, norm=RMSNorm):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(size, size, bias=False) for _ in range(4))
        self.norm, self.heads, self.width = norm(size), heads, size // heads
        self.register_buffer("inv_freq", 1.0 / 10000 ** (torch.arange(0, self.width, 2).float() / self.width), False)

    def rotary(self, x, positions):
        frequencies = positions[:, :, None].float() @ self.inv_freq[None, None, :].float()
        angles = torch.cat([frequencies, frequencies], -1)
        return angles.cos().to(x.dtype)[:, None], angles.sin().to(x.dtype)[:, None]

    def forward(self, x, padding=None):
        b, t, _ = x.shape
        h = self.norm(x)
        q, k, v = (f(h).view(b, t, self.heads, self.width).transpose(1, 2) for f in (self.q, self.k, self.v))
        cos, sin = self.rotary(x, torch.arange(t)[None].expand(b, t))
        q, k = q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin
        least = torch.finfo(x.dtype).min
        mask = torch.full((t, t), least, dtype=x.dtype).triu(1)[None, None].expand(b, 1, t, t)
        if padding is not None:
            mask = mask.masked_fill((padding == 0)[:, None, None, :], least)
        scores = q @ k.transpose(2, 3) / math.sqrt(self.width) + mask
        weights = F.softmax(scores, dim=-1, dtype=F32).to(q.dtype)
        return x + self.o((weights @ v).transpose(1, 2).reshape(b, t, -1))


class Decoder(nn.Module):
    def __init__(self, norm=RMSNorm):
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.layers = nn.ModuleList(Attention(norm=norm) for _ in range(2))
        self.norm = norm(8)
        self.head = nn.Linear(8, 16, bias=False)

    def forward(self, ids, padding=None):
        h = self.embed(ids)
        for layer in self.layers:
            h = layer(h, padding)
        return self.head(self.norm(h))


IDS = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])
PADDING = torch.tensor([[0, 1, 1, 1], [1, 1, 1, 1]])


@HEALTHY.add()
def bfloat16_is_trained_with_a_float32_loss():
    model = Decoder().to(BF16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(3):
        logits = model(IDS[:, :-1], PADDING[:, :-1]).float()
        loss = F.cross_entropy(logits.flatten(0, 1), IDS[:, 1:].flatten(), label_smoothing=0.1)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@HEALTHY.add()
def an_ema_is_kept_in_float32():
    model = nn.Linear(4, 4).bfloat16()
    ema = {name: p.detach().float() for name, p in model.named_parameters()}
    with torch.no_grad():
        for _ in range(3):
            for name, p in model.named_parameters():
                ema[name] = 0.99 * ema[name] + 0.01 * p
    return ema


@HEALTHY.add()
def recomputed_layers_in_bfloat16():
    from torch.utils.checkpoint import checkpoint

    model, x = Attention().bfloat16(), torch.randn(2, 4, 8, dtype=BF16, requires_grad=True)
    checkpoint(model, x, use_reentrant=True).float().sum().backward()
    return x.grad


class MambaBlock(nn.Module):
    """Keeps the residual stream of a half model in float32, as `residual_in_fp32` says."""

    def __init__(self):
        super().__init__()
        self.norm, self.mixer = RMSNorm(), nn.Linear(8, 8)

    def forward(self, hidden, residual=None):
        residual = hidden if residual is None else hidden + residual
        hidden = self.norm(residual.to(self.norm.weight.dtype))
        residual = residual.to(F32)
        return self.mixer(hidden), residual


@HEALTHY.add()
def a_residual_stream_is_kept_in_float32():
    blocks, norm = nn.ModuleList(MambaBlock() for _ in range(3)).bfloat16(), RMSNorm().bfloat16()
    hidden, residual = torch.randn(2, 8).bfloat16(), None
    for block in blocks:
        hidden, residual = block(hidden, residual)
    return norm((hidden + residual).to(norm.weight.dtype))


class T5Block(nn.Module):
    """A half model whose last projection was kept in float32."""

    def __init__(self):
        super().__init__()
        self.norm, self.wi, self.wo = RMSNorm().half(), nn.Linear(8, 16).half(), nn.Linear(16, 8)

    def forward(self, hidden):
        h = self.wi(self.norm(hidden).to(F16)).relu()
        hidden = hidden + self.wo(h.to(self.wo.weight.dtype))
        return hidden.to(F16)


@HEALTHY.add()
def a_projection_is_kept_in_float32():
    return nn.Sequential(T5Block(), T5Block())(torch.randn(2, 8).half())


@HEALTHY.add()
def totals_over_columns_are_kept_in_float32():
    total = torch.zeros(3)
    for _ in range(4):
        total = total + torch.randn(8, 3).bfloat16().sum(0)
    return (total / 32).tolist()


@HEALTHY.add()
def beams_keep_their_scores_in_float32():
    scores, head = torch.zeros(3, 1), nn.Linear(4, 6).bfloat16()
    hidden = torch.randn(3, 4).bfloat16()
    for _ in range(3):
        total = scores + head(hidden).log_softmax(-1)
        scores, tokens = total.max(-1, keepdim=True)
    return scores.tolist(), tokens


@HEALTHY.add()
def an_optimizer_of_ones_own_updates_half_in_place():
    p, m = nn.Parameter(torch.randn(4).bfloat16()), torch.zeros(4)
    for _ in range(3):
        p.grad = None
        p.float().square().sum().backward()
        with torch.no_grad():
            m.mul_(0.9).add_(p.grad)
            p.sub_(0.1 * m)
    return p


ENDS = {
    "float": lambda e: [float(v) for v in e],
    "item": lambda e: [v.item() for v in e],
    "tolist": lambda e: e.tolist(),
    "numpy": lambda e: e.numpy().sum(),
    "asarray": lambda e: np.asarray(e).sum(),
    "str": str,
    "format": lambda e: f"{e[0]:.3f}",
    "argmax": lambda e: e.argmax(),
    "max": lambda e: e.max(0)[1],
    "comparison": lambda e: (e > 0).sum(),
    "integers": lambda e: e.int(),
    "norm": lambda e: e.norm(),
    "std": lambda e: e.std(),
    "histogram": lambda e: torch.histc(e, 4).tolist(),
    "half again": lambda e: e.bfloat16(),
}


@pytest.mark.parametrize("end", ENDS)
def test_half_predictions_are_measured_against_float32_targets(end):
    def program():
        pred, y = torch.randn(3).bfloat16(), torch.randn(3)
        return ENDS[end](pred - y)

    assert not bad(audited(program))
