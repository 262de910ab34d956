"""DG101 and DG102 of an audit: operands of several floating dtypes that meet."""

import itertools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from audit_cases import Cases, audited, bad, it_is_found, nothing_is_found
from support import BF16, F16, F32, F64
from torch import nn
from versions import need

BUGS, HEALTHY = Cases(), Cases()


@pytest.mark.parametrize("case", BUGS, ids=str)
def test_operands_that_promote_are_found_at_their_line(case):
    it_is_found(case)


@pytest.mark.parametrize("case", HEALTHY, ids=str)
def test_a_healthy_mixture_gives_no_warning(case):
    nothing_is_found(case)


# ---------------------------------------------------------------- DG101: float64


@BUGS.add("DG101", "return images - mean", from_dtype=F32, to_dtype=F64, origin=["torch.from_numpy"])
def images_are_normalised_with_numpy_statistics():
    images = torch.rand(2, 3, 4, 4)
    mean = torch.from_numpy(np.array([0.485, 0.456, 0.406]))
    mean = mean[:, None, None]
    return images - mean


@BUGS.add(
    "DG101", "return F.mse_loss(pred, y)", count=2, message=("`F.mse_loss(pred, y)` mixes float64 and float32, 16 B")
)
def regression_targets_come_from_a_data_frame():
    need("torch", "2.13", "mse_loss has no gradient for two dtypes")
    y = torch.as_tensor(np.random.default_rng(0).normal(size=(8, 1)))
    model = nn.Linear(3, 1)
    loss = None
    for _ in range(2):
        pred = model(torch.ones(8, 3))
        loss = _mse(pred, y)
        loss.backward()
    return loss


def _mse(pred, y):
    return F.mse_loss(pred, y)


class Positional(nn.Module):
    """A table of sines from NumPy that is no buffer."""

    def __init__(self):
        super().__init__()
        angles = np.arange(16)[:, None] / 10000 ** (np.arange(8) / 8)
        self.table = torch.from_numpy(np.sin(angles))

    def forward(self, x):
        return x + self.table[: x.shape[1]]


@BUGS.add(
    "DG101", "return x + self.table[: x.shape[1]]", module_path="Positional", from_dtype=F32, to_dtype=F64,
    origin=["torch.from_numpy(np.sin(angles))"],
)  # fmt: skip
def positional_encodings_are_computed_in_numpy():
    return Positional()(torch.randn(2, 5, 8))


@BUGS.add("DG101", "return advantages * ratio", from_dtype=F32, to_dtype=F64)
def discounted_returns_are_summed_in_numpy():
    rewards = np.ones(6)
    returns = np.cumsum(rewards[::-1] * 0.99)[::-1].copy()
    advantages = torch.tensor(returns)
    ratio = torch.rand(6)
    return advantages * ratio


@BUGS.add(
    "DG101",
    "self.fc(x)",
    severity="error",
    module_path="Head.fc",
    from_dtype=F64,
    to_dtype=F32,
    origin=["torch.from_numpy(rows)"],
)
def a_layer_refuses_numpy_rows():
    class Head(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 2)

        def forward(self, x):
            return self.fc(x)

    rows = np.ones((3, 4))
    return Head()(torch.from_numpy(rows))


@BUGS.add("DG101", "return latents + sigma", from_dtype=F16, to_dtype=F64, origin=["np.linspace"])
def sigmas_of_a_sampler_are_float64():
    sigmas = torch.from_numpy(np.linspace(1.0, 0.0, 10))
    latents = torch.randn(2, 3).half()
    sigma = sigmas[torch.tensor([1, 5])][:, None]
    return latents + sigma * 2


@BUGS.add("DG101", "return torch.cat([features, extra], 1)", to_dtype=F64, from_dtype=F32)
def handmade_features_are_concatenated():
    features = torch.randn(2, 4)
    extra = torch.from_numpy(np.array([[1.0, 2.0], [3.0, 4.0]]))
    return torch.cat([features, extra], 1)


@HEALTHY.add()
def a_program_is_wholly_float64():
    torch.set_default_dtype(F64)
    try:
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
        x, y = torch.from_numpy(np.ones((5, 3))), torch.from_numpy(np.ones((5, 1)))
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

        def closure():
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            return loss

        optimizer.step(closure)
        return model(x)
    finally:
        torch.set_default_dtype(F32)


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


@BUGS.add("DG101", "loss = F.mse_loss(student(x), teacher(x.double()))", to_dtype=F64)
def a_float64_teacher_meets_a_float32_student():
    need("torch", "2.13", "mse_loss has no gradient for two dtypes")
    student, teacher = nn.Linear(3, 2), nn.Linear(3, 2).double().requires_grad_(False)
    x = torch.rand(2, 3)
    loss = F.mse_loss(student(x), teacher(x.double()))
    loss.backward()
    return loss


@HEALTHY.add()
def a_module_is_wholly_float64():
    model = nn.Linear(3, 2).double()
    x = torch.from_numpy(np.ones((4, 3)))
    loss = (model(x) - torch.ones(4, 2, dtype=F64)).square().mean()
    loss.backward()
    return model.weight.grad


@HEALTHY.add()
def numpy_scalars_are_python_numbers():
    x = torch.randn(4)
    return x * np.float64(0.5), np.float64(2.0) * x, x / np.sqrt(8.0), x.clamp(max=np.float64(1.0))


@HEALTHY.add()
def tensors_without_axes_promote_nothing():
    x = torch.randn(4)
    sigma = torch.tensor(0.5, dtype=F64)
    scale = torch.from_numpy(np.array(2.0))
    return x * sigma + scale, x.half() * sigma, torch.where(x > 0, x, sigma)


@HEALTHY.add()
def the_mean_of_a_dataset_is_float32_when_it_is_used():
    mean = torch.from_numpy(np.array([0.485, 0.456, 0.406])).float().view(3, 1, 1)
    std = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)
    return (torch.rand(2, 3, 4, 4) - mean) / std


@HEALTHY.add()
def numpy_statistics_are_cast_back():
    images = torch.rand(2, 3, 4, 4)
    mean = torch.from_numpy(np.array([0.485, 0.456, 0.406])).view(3, 1, 1)
    return (images - mean).float()


@HEALTHY.add()
def a_metric_is_computed_in_float64():
    pred, y = torch.randn(8), torch.randn(8)
    return ((pred.double() - y.double()) ** 2).mean().item()


@HEALTHY.add()
def a_metric_is_computed_in_float64_for_which_one_side_was_widened():
    pred, y = torch.randn(8), torch.randn(8)
    return ((pred.double() - y) ** 2).mean().item()


@HEALTHY.add()
def a_running_total_is_kept_in_float64_in_place():
    total, count = torch.zeros((), dtype=F64), torch.zeros((), dtype=torch.int64)
    for _ in range(4):
        loss = torch.randn(8).square()
        total += loss.sum()
        count += loss.numel()
    return (total / count).item()


@HEALTHY.add()
def a_running_total_is_kept_in_float64():
    total = torch.zeros((), dtype=F64)
    for _ in range(4):
        total = total + torch.randn(8).square().sum()
    return total.item()


@HEALTHY.add()
def per_class_totals_are_kept_in_float64():
    totals = torch.zeros(3, dtype=F64)
    for _ in range(4):
        totals += torch.randn(8, 3).square().sum(0)
    return (totals / 32).tolist()


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
def statistics_are_gathered_with_welford_in_float64():
    mean, m2 = torch.zeros(3, dtype=F64), torch.zeros(3, dtype=F64)
    for n in range(1, 6):
        x = torch.randn(3).double()
        delta = x - mean
        mean = mean + delta / n
        m2 = m2 + delta * (x - mean)
    return mean.float(), (m2 / 4).sqrt().float()


@HEALTHY.add()
def a_diffusion_table_is_float64_and_cast_where_it_is_read():
    betas = torch.linspace(1e-4, 0.02, 100, dtype=F64)
    bars = torch.cumprod(1 - betas, 0)
    t = torch.tensor([3, 50])
    x, noise = torch.randn(2, 4), torch.randn(2, 4)
    a = bars[t].to(x.dtype)[:, None]
    return a.sqrt() * x + (1 - a).sqrt() * noise


@HEALTHY.add()
def guided_diffusion_extracts_into_float32():
    bars = np.cumprod(1 - np.linspace(1e-4, 0.02, 100))

    def extract(table, t, shape):
        values = torch.from_numpy(table)[t].float()
        while values.ndim < len(shape):
            values = values[..., None]
        return values.expand(shape)

    x, t = torch.randn(2, 4), torch.tensor([3, 50])
    return extract(np.sqrt(bars), t, x.shape) * x


@HEALTHY.add()
def an_edm_sampler_steps_in_float64():
    net = nn.Linear(4, 4)
    steps = torch.linspace(10, 0.1, 5, dtype=F64)
    x = torch.randn(2, 4).to(F64) * steps[0]
    with torch.no_grad():
        for now, then in itertools.pairwise(steps):
            denoised = net((x / (now**2 + 1).sqrt()).to(F32)).to(F64)
            x = x + (then - now) * (x - denoised) / now
    return x.to(F32)


@HEALTHY.add()
def an_inverse_is_computed_in_float64_for_its_digits():
    h = torch.randn(4, 4)
    h = h @ h.T + torch.eye(4)
    inverse = torch.linalg.inv(h.double()).to(h.dtype)
    return inverse @ h


@HEALTHY.add()
def float_power_and_numpy_results_are_read_as_numbers():
    x = torch.rand(4)
    return torch.float_power(x, 2).sum().item(), float(np.mean(x.numpy(), dtype=np.float64))


@HEALTHY.add()
def complex_times_real():
    spectrum = torch.fft.rfft(torch.randn(16))
    window, gain = torch.rand(9), torch.tensor(2.0, dtype=F64)
    return torch.fft.irfft(spectrum * window * gain)


@HEALTHY.add()
def comparisons_of_float64_and_float32_are_bool():
    x, limits = torch.randn(4), torch.from_numpy(np.zeros(4))
    return (x > limits).sum(), torch.searchsorted(torch.tensor([0.0, 1.0]), x)


@HEALTHY.add()
def gradcheck_in_float64():
    linear = nn.Linear(2, 2).double()
    return torch.autograd.gradcheck(linear, (torch.randn(3, 2, dtype=F64, requires_grad=True),))


# ---------------------------------------------------------------- DG102: half and float32


class Rotary(nn.Module):
    def __init__(self, persistent=False):
        super().__init__()
        frequencies = 1.0 / 10000 ** (torch.arange(0, 4, 2).float() / 4)
        angles = torch.outer(torch.arange(8).float(), frequencies)
        self.cos, self.sin = torch.cat([angles, angles], -1).cos(), torch.cat([angles, angles], -1).sin()

    def forward(self, q):
        return q * self.cos[: q.shape[-2]] + rotate_half(q) * self.sin[: q.shape[-2]]


def rotate_half(x):
    a, b = x.chunk(2, -1)
    return torch.cat([-b, a], -1)


@BUGS.add(
    "DG102",
    "return q * self.cos",
    module_path="Rotary",
    from_dtype=BF16,
    to_dtype=F32,
    origin=["torch.arange(0, 4, 2).float()", "torch.cat([angles, angles], -1)"],
    also=["DG503"],
)
def rotary_tables_stay_float32():
    return Rotary().bfloat16()(torch.randn(2, 5, 4).bfloat16())


@BUGS.add(
    "DG102",
    "return x + bias",
    from_dtype=F16,
    to_dtype=F32,
    count=3,
    also=["DG102"],
    message=("`x + bias` mixes float16 and float32: the result is float32, 96 B"),
)
def alibi_bias_is_added_to_half_scores():
    x, gate = torch.randn(2, 4).half(), torch.rand(2, 1).half()

    def scores(x, bias):
        return x + bias

    slopes = torch.tensor([0.5, 0.25, 0.125, 0.0])
    return [scores(x, slopes) * gate for _ in range(3)]


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.gamma = [torch.full((4,), 0.1)]

    def forward(self, x):
        return self.fc(x) * self.gamma[0]


@BUGS.add(
    "DG102", "return self.fc(x) * self.gamma[0]", module_path="Scaled", from_dtype=BF16, to_dtype=F32, also=["DG503"]
)
def a_layer_scale_in_a_list_is_not_converted():
    return Scaled().bfloat16()(torch.randn(2, 4).bfloat16())


class Llama(nn.Module):
    """A norm that was kept in float32 and gives back what its weight makes of it, before a half projection."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.fc = nn.Linear(4, 4).bfloat16()

    def forward(self, x):
        h = x.float()
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)
        h = self.weight * h.to(x.dtype)
        return self.fc(h)


@BUGS.add(
    "DG102", "h = self.weight * h.to(x.dtype)", module_path="Llama", from_dtype=BF16, to_dtype=F32, also=["DG110"]
)
def a_float32_norm_weight_widens_what_a_half_layer_gets():
    return Llama()(torch.randn(2, 4).bfloat16())


@BUGS.add("DG102", "pair = torch.stack([image, latent])", from_dtype=F16, to_dtype=F32, also=["DG102"])
def a_float32_condition_is_stacked_with_half_latents():
    image, latent = torch.randn(4), torch.randn(4).half()
    pair = torch.stack([image, latent])
    return pair - latent


@BUGS.add(
    "DG102", "h = a + b", also=["DG102"], message="`a + b` mixes float16 and bfloat16: the result is float32, 16 B"
)
def float16_meets_bfloat16():
    a, b = torch.randn(4).half(), torch.randn(4).bfloat16()
    h = a + b
    return h * a


class Fp32Gate(nn.Module):
    """A gate that nobody converted, in a model whose other parts are half."""

    def __init__(self):
        super().__init__()
        self.fc, self.gate = nn.Linear(4, 4).bfloat16(), nn.Parameter(torch.zeros(4))

    def forward(self, x):
        return self.fc(x) * self.gate.sigmoid()


@BUGS.add(
    "DG102",
    "return self.fc(x) * self.gate.sigmoid()",
    module_path="Sequential.0",
    count=2,
    bytes=64,
    origin=["parameter Sequential.0.gate: float32", "self.gate.sigmoid()"],
)
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


class GemmaNorm(RMSNorm):
    def forward(self, hidden):
        out = hidden.float() * torch.rsqrt(hidden.float().pow(2).mean(-1, keepdim=True) + 1e-6)
        out = out * (1.0 + self.weight)
        return out.type_as(hidden)


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


def decoder_in(dtype, norm=RMSNorm):
    with torch.no_grad():
        return Decoder(norm).to(dtype)(IDS, PADDING).float()


@HEALTHY.add()
def a_decoder_as_transformers_writes_it_in_bfloat16():
    return decoder_in(BF16)


@HEALTHY.add()
def a_decoder_as_transformers_writes_it_in_float16():
    return decoder_in(F16)


@HEALTHY.add()
def a_decoder_as_transformers_writes_it_in_float32():
    return decoder_in(F32)


@HEALTHY.add()
def a_decoder_with_norms_that_are_computed_in_float32():
    return decoder_in(BF16, GemmaNorm)


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
def a_masked_loss_is_reduced_in_float32():
    logits = torch.randn(2, 4, 16, dtype=BF16, requires_grad=True)
    each = F.cross_entropy(logits.transpose(1, 2), IDS, reduction="none")
    weight = PADDING.float()
    loss = (each * weight).sum() / weight.sum()
    loss.backward()
    return loss, logits.grad


@HEALTHY.add()
def half_predictions_are_compared_with_float32_targets_by_a_loss():
    need("torch", "2.13", "mse_loss has no gradient for two dtypes")
    pred, y = torch.randn(8, dtype=BF16, requires_grad=True), torch.randn(8)
    loss = F.mse_loss(pred, y) + 0.1 * (pred - y).abs().mean() + F.smooth_l1_loss(pred, y)
    loss.backward()
    return loss, pred.grad


@HEALTHY.add()
def half_predictions_are_measured_against_float32_targets_per_sample():
    pred, y = torch.randn(8, 3).bfloat16(), torch.randn(8, 3)
    return (pred - y).abs().mean(1).tolist()


@HEALTHY.add()
def a_loss_module_gives_one_loss_per_sample():
    class PerSample(nn.Module):
        def forward(self, pred, y):
            return ((pred - y) ** 2).mean(1)

    pred, y, weights = torch.randn(8, 3, dtype=BF16, requires_grad=True), torch.randn(8, 3), torch.rand(8)
    loss = (PerSample()(pred, y) * weights).mean()
    loss.backward()
    return loss, pred.grad


@HEALTHY.add()
def half_predictions_are_measured_and_plotted():
    pred, y = torch.randn(8, 3).bfloat16(), torch.randn(8, 3)
    return (pred - y).numpy().std() > 0


@HEALTHY.add()
def logits_are_divided_by_a_temperature_for_each_request():
    logits, temperature = torch.randn(2, 16).bfloat16(), torch.tensor([[0.7], [1.0]])
    return torch.multinomial((logits / temperature).softmax(-1), 1), (logits / temperature).argmax(-1)


@HEALTHY.add()
def logits_are_widened_and_biased():
    logits, bias = torch.randn(2, 16).bfloat16(), torch.randn(16).bfloat16()
    scores = logits.float() + bias
    return scores.softmax(-1)


@HEALTHY.add()
def router_weights_are_float32_and_cast_back():
    x = torch.randn(4, 8).bfloat16()
    gate = nn.Linear(8, 4, bias=False).bfloat16()
    weights, chosen = gate(x).float().softmax(-1).topk(2)
    weights = (weights / weights.sum(-1, keepdim=True)).to(x.dtype)
    return (x[:, None] * weights[..., None]).sum(1), chosen


@HEALTHY.add()
def kl_is_computed_in_float32():
    student, teacher = torch.randn(4, 8, dtype=BF16, requires_grad=True), torch.randn(4, 8).bfloat16()
    loss = F.kl_div(student.float().log_softmax(-1), teacher.float().softmax(-1), reduction="batchmean")
    loss.backward()
    return student.grad


@HEALTHY.add()
def an_ema_is_kept_in_float32_in_place():
    model = nn.Linear(4, 4).bfloat16()
    ema = {name: p.detach().float().clone() for name, p in model.named_parameters()}
    with torch.no_grad():
        for _ in range(3):
            for name, p in model.named_parameters():
                ema[name].mul_(0.99).add_(p, alpha=0.01)
                ema[name].lerp_(p.float(), 0.01)
    return ema


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
def gradients_are_accumulated_in_float32():
    model = nn.Linear(4, 1).bfloat16()
    total = [torch.zeros(p.shape) for p in model.parameters()]
    for _ in range(3):
        model.zero_grad()
        model(torch.randn(2, 4).bfloat16()).float().sum().backward()
        for sum_, p in zip(total, model.parameters(), strict=True):
            sum_ += p.grad
    for sum_, p in zip(total, model.parameters(), strict=True):
        p.grad = sum_.to(p.dtype)
    return [p.grad for p in model.parameters()]


@HEALTHY.add()
def master_weights_are_float32():
    model = nn.Linear(4, 1).bfloat16()
    masters = [p.detach().float().requires_grad_() for p in model.parameters()]
    optimizer = torch.optim.Adam(masters, lr=1e-2)
    for _ in range(3):
        model.zero_grad()
        model(torch.randn(2, 4).bfloat16()).float().square().mean().backward()
        for master, p in zip(masters, model.parameters(), strict=True):
            master.grad = p.grad.float()
        optimizer.step()
        with torch.no_grad():
            for master, p in zip(masters, model.parameters(), strict=True):
                p.copy_(master)
    return [p.detach() for p in model.parameters()]


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.fc = nn.LayerNorm(8), nn.Linear(8, 8)
        self.gamma = nn.Parameter(torch.full((8,), 0.1))

    def forward(self, x):
        return x + self.gamma * F.gelu(self.fc(self.norm(x)))


def residual_under(dtype, after=lambda x: x):
    model = nn.Sequential(Residual(), Residual(), nn.Linear(8, 2))
    x, y = torch.randn(4, 8), torch.tensor([0, 1, 0, 1])
    with torch.autocast("cpu", dtype=dtype):
        logits = after(model(x))
        loss = F.cross_entropy(logits, y)
    loss.backward()
    return loss, [p.grad for p in model.parameters()]


@HEALTHY.add()
def a_residual_stream_under_autocast_in_bfloat16():
    return residual_under(BF16)


@HEALTHY.add()
def a_residual_stream_under_autocast_in_float16():
    return residual_under(F16)


@HEALTHY.add()
def an_island_without_autocast():
    def island(x):
        with torch.autocast("cpu", enabled=False):
            return x.float().softmax(-1)

    return residual_under(BF16, island)


@HEALTHY.add()
def what_left_autocast_meets_its_float32_input():
    x, fc = torch.randn(4, 8), nn.Linear(8, 8)
    with torch.autocast("cpu", dtype=BF16):
        h = fc(x)
    return x + h, (h * torch.ones(8)).mean(0)


@HEALTHY.add()
def a_loss_outside_of_autocast_takes_half_predictions():
    x, y, fc = torch.randn(4, 8), torch.randn(4, 8), nn.Linear(8, 8)
    with torch.autocast("cpu", dtype=BF16):
        pred = fc(x)
    loss = ((pred - y) ** 2).mean()
    loss.backward()
    return fc.weight.grad


@HEALTHY.add()
def results_are_written_to_out():
    a, b = torch.randn(4).half(), torch.randn(4).half()
    return torch.add(a, b, out=torch.zeros(4)), torch.mul(a, b, out=torch.zeros(4, dtype=F64))


@HEALTHY.add()
def bool_masks_times_floats():
    x = torch.randn(2, 4).bfloat16()
    mask = PADDING.bool()
    return x * mask, x.masked_fill(~mask, 0), torch.where(mask, x, 0.0), (x * mask).sum(1) / mask.sum(1)


@HEALTHY.add()
def integers_meet_floats():
    x = torch.randn(2, 4)
    one_hot = F.one_hot(torch.tensor([1, 3]), 4)
    return x * one_hot, x / torch.arange(1, 5), x + PADDING.cumsum(1), (x * one_hot).sum(1) / one_hot.sum(1)


@HEALTHY.add()
def integers_meet_half():
    x = torch.randn(2, 4).bfloat16()
    one_hot = F.one_hot(torch.tensor([1, 3]), 4)
    return x * one_hot, x / torch.arange(1, 5), x - PADDING.cumsum(1)


@HEALTHY.add()
def integers_divide_integers():
    hits = torch.tensor([3, 4, 0])
    return hits / torch.tensor([4, 4, 4]), hits.float().mean(), hits.sum() / 3, hits / 3


@HEALTHY.add()
def scalars_of_python_and_of_tensors():
    x = torch.randn(4).bfloat16()
    scale = nn.Parameter(torch.tensor(2.0))
    return x * scale.exp() * 0.5, torch.where(x > 0, x, 0.1), x.clamp(min=torch.tensor(0.0)), x ** torch.tensor(2.0)


@HEALTHY.add()
def special_functions():
    x = torch.rand(4)
    return torch.special.xlogy(torch.arange(4), x), torch.special.erf(torch.arange(4)), torch.special.zeta(x + 2, 2.0)


@HEALTHY.add()
def labels_are_smoothed():
    logits = torch.randn(4, 5).bfloat16()
    target = torch.full((4, 5), 0.1 / 5, dtype=logits.dtype)
    target.scatter_(1, torch.tensor([[0], [1], [2], [3]]), 0.9)
    return -(target.float() * logits.float().log_softmax(-1)).sum(-1).mean()


@HEALTHY.add()
def a_norm_takes_half_with_float32_parameters():
    norm = nn.LayerNorm(8)
    return norm(torch.randn(2, 8).bfloat16()), nn.BatchNorm1d(8).eval()(torch.randn(2, 8).bfloat16())


@HEALTHY.add()
def attention_of_torch_in_half():
    q = torch.randn(1, 2, 4, 8).half()
    mask = torch.zeros(4, 4).masked_fill(torch.ones(4, 4).triu(1).bool(), -math.inf)
    return F.scaled_dot_product_attention(q, q, q, attn_mask=mask), F.scaled_dot_product_attention(q, q, q)


@HEALTHY.add()
def recomputed_layers_under_autocast():
    from torch.utils.checkpoint import checkpoint

    model, x = Residual(), torch.randn(4, 8, requires_grad=True)
    with torch.autocast("cpu", dtype=BF16):
        out = checkpoint(model, checkpoint(model, x, use_reentrant=False), use_reentrant=False)
    out.sum().backward()
    return x.grad


@HEALTHY.add()
def recomputed_layers_in_bfloat16():
    from torch.utils.checkpoint import checkpoint

    model, x = Attention().bfloat16(), torch.randn(2, 4, 8, dtype=BF16, requires_grad=True)
    checkpoint(model, x, use_reentrant=True).float().sum().backward()
    return x.grad


@HEALTHY.add()
def transformations_of_functions():
    model = nn.Linear(4, 1)
    parameters = dict(model.named_parameters())

    def loss(parameters, x):
        return torch.func.functional_call(model, parameters, (x,)).square().sum()

    x = torch.randn(3, 4)
    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x)
    return each, torch.func.vmap(lambda row: row.bfloat16().float() * 2)(x)


@HEALTHY.add()
def float8_weights_are_stored_and_widened():
    weight = torch.randn(8, 8)
    scale = weight.abs().max() / 448
    stored = (weight / scale).to(torch.float8_e4m3fn)
    x = torch.randn(2, 8).bfloat16()
    return [F.linear(x, stored.to(BF16) * scale.to(BF16)) for _ in range(12)]


@HEALTHY.add()
def lora_is_float32_beside_a_half_base():
    base, down, up = nn.Linear(8, 8).bfloat16(), nn.Linear(8, 2), nn.Linear(2, 8)
    x = torch.randn(2, 8).bfloat16()
    out = base(x)
    return out + up(down(x.float())).to(out.dtype)


@HEALTHY.add()
def lora_as_peft_writes_it():
    base, down, up = nn.Linear(8, 8).bfloat16(), nn.Linear(8, 2), nn.Linear(2, 8)
    x = torch.randn(2, 8).bfloat16()
    result = base(x)
    dtype = result.dtype
    result = result + up(down(x.to(down.weight.dtype))) * 0.5
    return result.to(dtype)


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
def totals_over_columns_are_kept_in_float64():
    totals = torch.zeros(3, dtype=F64)
    for _ in range(4):
        totals = totals + torch.randn(8, 3).sum(0)
    return (totals / 32).tolist()


@HEALTHY.add()
def a_policy_is_trained_on_float32_returns():
    policy = nn.Linear(4, 2).bfloat16()
    states, actions, returns = torch.randn(6, 4).bfloat16(), torch.tensor([0, 1, 1, 0, 1, 0]), torch.randn(6)
    chosen = policy(states).log_softmax(-1).gather(1, actions[:, None]).squeeze(1)
    old = chosen.detach()
    ratio = (chosen - old).exp()
    loss = -torch.minimum(ratio * returns, ratio.clamp(0.8, 1.2) * returns).mean()
    loss.backward()
    return policy.weight.grad


@HEALTHY.add()
def a_margin_is_taken_from_the_right_class():
    cosine, y = torch.randn(4, 5).bfloat16(), torch.tensor([0, 1, 2, 3])
    return F.cross_entropy(30 * (cosine - 0.35 * F.one_hot(y, 5)).float(), y)


@HEALTHY.add()
def contrastive_logits_have_a_learnt_scale():
    image, text = (F.normalize(torch.randn(4, 8).bfloat16(), dim=-1) for _ in range(2))
    scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))
    logits = scale.exp() * image @ text.T
    return F.cross_entropy(logits.float(), torch.arange(4))


@HEALTHY.add()
def diffusion_weights_are_float32():
    model, x, noise = nn.Linear(4, 4).bfloat16(), torch.randn(3, 4).bfloat16(), torch.randn(3, 4).bfloat16()
    snr = torch.tensor([0.5, 1.0, 2.0])
    pred = model(x + noise)
    loss = ((pred.float() - noise.float()) ** 2).mean(1) * snr.clamp(max=5) / snr
    other = ((pred - noise) ** 2).mean(1) * snr
    (loss.mean() + other.mean()).backward()
    return model.weight.grad


@HEALTHY.add()
def beams_keep_their_scores_in_float32():
    scores, head = torch.zeros(3, 1), nn.Linear(4, 6).bfloat16()
    hidden = torch.randn(3, 4).bfloat16()
    for _ in range(3):
        total = scores + head(hidden).log_softmax(-1)
        scores, tokens = total.max(-1, keepdim=True)
    return scores.tolist(), tokens


@HEALTHY.add()
def a_nucleus_is_sampled():
    logits, top_p = torch.randn(2, 6).bfloat16(), torch.tensor([[0.9], [0.5]])
    probabilities, order = logits.float().softmax(-1).sort(descending=True)
    kept = probabilities * (probabilities.cumsum(-1) - probabilities < top_p)
    return order.gather(-1, torch.multinomial(kept, 1))


@HEALTHY.add()
def weights_are_averaged_over_checkpoints():
    checkpoints = [nn.Linear(4, 4).bfloat16().state_dict() for _ in range(3)]
    return {k: (sum(c[k].float() for c in checkpoints) / 3).bfloat16() for k in checkpoints[0]}


@HEALTHY.add()
def an_adapter_is_merged_in_float32():
    weight, a, b = torch.randn(4, 4).bfloat16(), torch.randn(2, 4), torch.randn(4, 2)
    merged = weight + 0.5 * (b @ a)
    return merged.to(weight.dtype)


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


@HEALTHY.add()
def what_is_promoted_in_a_module_leaves_torch():
    class Metric(nn.Module):
        def __init__(self):
            super().__init__()
            self.seen = []

        def forward(self, pred, y):
            error = (pred - y).abs()
            self.seen.append(error.amax(0).tolist())
            return error.mean()

    metric = Metric()
    return [metric(torch.randn(4, 2).bfloat16(), torch.randn(4, 2)) for _ in range(2)], metric.seen
