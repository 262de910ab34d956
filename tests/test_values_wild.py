"""Values that were spoilt in released packages, and faults of each kind at each place: found at their very line.

A line with a fault ends in a marker, `# <-- name`. The lines of packages that are not installed are written anew.
"""

import inspect
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import SGD, Optimizer

import dtypeguard

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
BAD = ("warning", "error")


def marked(name):
    """The line of a marker in this file."""
    lines = inspect.getsource(sys.modules[__name__]).splitlines()
    return lines.index(next(line for line in lines if line.endswith(f"# <-- {name}"))) + 1


def audited(program, *arguments, every=None):
    torch.manual_seed(0)
    with dtypeguard.audit(values=True, every=every) as report:
        program(*arguments)
    assert report.faults == []
    return [finding for finding in report.findings if finding.rule.startswith("DG9") and finding.severity in BAD]


def places(findings, file=__file__):
    return {(finding.rule, finding.line) for finding in findings if finding.file == file}


# ---------------------------------------------------------------- of packages


def learns_from(noisy, noise):
    F.mse_loss(nn.Conv2d(4, 4, 3, padding=1).to(noisy.dtype)(noisy).float(), noise.float()).backward()


def noise_is_added(dtype=BF16):
    """diffusers: for 51 of 64 samples it is multiplied by zero."""
    alphas_cumprod = torch.cumprod(1 - torch.linspace(0.0001, 0.02, 1000), 0)
    clean, noise = torch.randn(2, 64, 4, 8, 8).to(BF16)
    alpha = alphas_cumprod.to(dtype)[torch.randint(0, 12, (64,)), None, None, None]
    root = (1 - alpha) ** 0.5  # <-- noise_is_added
    learns_from((alpha**0.5 * clean + root * noise).to(BF16), noise)


def anchors_are_shifted(dtype=BF16):
    """torchvision: RetinaNet's anchors take the dtype of the feature maps, which autocast makes bfloat16."""
    with torch.autocast("cpu", BF16):
        features = nn.Conv2d(3, 4, 3, stride=8, padding=1)(torch.zeros(1, 3, 800, 1200))
    y, x = torch.meshgrid(*(8 * torch.arange(n) for n in features.shape[-2:]), indexing="ij")
    shifts = torch.stack([x, y, x, y], -1).reshape(-1, 1, 4)
    base = torch.tensor([[-23, -11, 23, 11], [-28, -14, 28, 14], [-35, -18, 35, 18]], dtype=dtype)
    anchors = shifts + base  # <-- anchors_are_shifted
    anchors.reshape(-1, 4).tolist()


def lengths_become_a_mask(dtype=BF16):
    """speechbrain: the longest of 2194 frames is cut, and so is the mask."""
    relative = (torch.tensor([2194.0, 2187.0, 1100.0, 317.0]) / 2194).to(dtype)
    lengths = relative * 2194
    longest = lengths.max().long().item()  # <-- lengths_become_a_mask
    (torch.arange(longest) < lengths[:, None]).sum(1).tolist()


class Rotary(nn.Module):
    """x-transformers: its buffer is converted with the model."""

    def __init__(self, size=32):
        super().__init__()
        self.register_buffer("inv_freq", 1 / 10000 ** (torch.arange(0, size, 2).float() / size))

    def forward(self, x):
        angles = torch.arange(x.shape[1]).type_as(self.inv_freq)[:, None] * self.inv_freq
        one, other = x.unflatten(-1, (-1, 2)).unbind(-1)
        cos, sin = angles.cos(), angles.sin()  # <-- positions_are_rotated
        return torch.stack([one * cos - other * sin, other * cos + one * sin], -1).flatten(-2)


def positions_are_rotated(dtype=BF16):
    Rotary().to(dtype)(torch.randn(1, 1024, 32).to(dtype))


def decibels(dtype=F16):
    """torchaudio: half has no 1e-10, so silence has -inf decibels."""
    power = torch.zeros(2, 100, dtype=dtype)
    power[:, 50:] = 0.5
    level = 10 * torch.clamp(power, min=1e-10).log10()  # <-- decibels
    return level.tolist()


def dice_loss(dtype=F16):
    """MONAI: a sum over 262,144 voxels is infinite in half, and inf / inf is NaN."""
    logits, labels = torch.randn(1, 2, 64, 64, 64, requires_grad=True), torch.randint(0, 2, (1, 64, 64, 64))
    p, target = logits.to(dtype).softmax(1), F.one_hot(labels, 2).movedim(-1, 1).to(dtype)
    both = (target * p).sum((2, 3, 4))  # <-- dice_loss
    all_of = target.sum((2, 3, 4)) + p.sum((2, 3, 4))
    (1 - (2 * both + 1e-5) / (all_of + 1e-5)).mean().backward()


def expected_place(dtype=BF16):
    """kornia: coordinates take the dtype of the heat map, so 517 is 516."""
    heat = torch.zeros(1, 1, 480, 640)
    heat[..., 100, 517] = 12
    heat = heat.to(dtype).flatten(2).softmax(-1)
    y, x = torch.meshgrid(torch.linspace(0, 479, 480), torch.linspace(0, 639, 640), indexing="ij")
    grid = torch.stack([x, y], -1).to(dtype)  # <-- expected_place
    x, y = grid.reshape(-1, 2).unbind(-1)
    torch.stack([(x * heat).sum(-1), (y * heat).sum(-1)], -1).tolist()


def cross_entropy_of_pixels(dtype=F16):
    """torch: on a CPU the sum of 90,000 losses is infinite before it is divided."""
    x, y = torch.randn(1, 2, 300, 300).to(dtype), torch.randint(0, 2, (1, 300, 300))
    return F.cross_entropy(x, y).item()  # <-- cross_entropy_of_pixels


def what_is_left_of_one(dtype=BF16):
    rest = 1 - torch.tensor(0.9999).to(dtype)  # <-- what_is_left_of_one
    return rest.item()


def its_logarithm(dtype=BF16):
    rest = 1 - torch.tensor([0.9999, 0.99]).to(dtype)
    return rest.log().sum().item()  # <-- its_logarithm


def ids_in_features(dtype=F32):
    ids = torch.tensor([16_777_219, 3, 16_777_217, 20_000_001])
    features = torch.stack([ids.to(dtype), torch.rand(4, dtype=dtype)], 1)
    return features[:, 0].long().tolist()  # <-- ids_in_features


def ids_in_a_table(dtype=F32):
    table = torch.arange(2**24, 2**24 + 64).to(dtype)
    return torch.searchsorted(table, torch.tensor([16_777_217.0], dtype=dtype)).item()  # <-- ids_in_a_table


def gradients_of_micro_batches(dtype=BF16):
    model = nn.Linear(16, 4).to(dtype)
    optimizer = SGD(model.parameters(), lr=1e-3)
    for _ in range(512):
        (model(torch.rand(8, 16).to(dtype)).sum() / 512).backward()  # <-- gradients_of_micro_batches
    optimizer.step()


class Standardized(nn.Conv2d):
    def forward(self, x, dtype):
        weight = self.weight.to(dtype)
        mean = weight.mean((1, 2, 3), keepdim=True)
        variance = (weight - mean).square().mean((1, 2, 3), keepdim=True)  # <-- weights_are_standardized
        return F.conv2d(x, ((weight - mean) / (variance + 1e-10).sqrt()).to(x.dtype))


def weights_are_standardized(dtype=BF16):
    """A parameter is narrowed in forward: all weights near 1 are 1 then, and their deviation is 0."""
    layer = Standardized(4, 4, 3, bias=False)
    layer.weight.data.mul_(0.01).add_(1.0)
    layer(torch.randn(2, 4, 8, 8).to(BF16), dtype)


class Decay(nn.Module):
    def __init__(self):
        super().__init__()
        self.decay = nn.Parameter(torch.linspace(0.99, 0.9999, 16))

    def forward(self, x, dtype):
        decay, state = self.decay.to(dtype), torch.zeros_like(x[0], dtype=dtype)
        fresh = 1 - decay  # <-- a_state_decays
        for one in x:
            state = decay * state + fresh * one
        return state


def a_state_decays(dtype=BF16):
    """Another one: a decay of 0.9999 is 1, and nothing new comes into the state."""
    Decay()(1 + torch.rand(200, 8, 16).to(BF16), dtype)


WILD = [  # program, rule, a dtype in which it is right
    (noise_is_added, "DG902", F32),
    (anchors_are_shifted, "DG905", F32),
    (lengths_become_a_mask, "DG904", torch.float64),
    (positions_are_rotated, "DG902", F32),
    (decibels, "DG901", F32),
    (dice_loss, "DG901", F32),
    (expected_place, "DG905", F32),
    (cross_entropy_of_pixels, "DG901", F32),
    (what_is_left_of_one, "DG902", F32),
    (its_logarithm, "DG901", F32),
    (ids_in_features, "DG904", torch.float64),
    (ids_in_a_table, "DG904", torch.float64),
    (gradients_of_micro_batches, "DG903", F32),
    (weights_are_standardized, "DG902", F32),
    (a_state_decays, "DG902", F32),
]
NAMES = [program.__name__ for program, _, _ in WILD]


@pytest.mark.parametrize(("program", "rule", "wide"), WILD, ids=NAMES)
def test_a_fault_of_a_package(program, rule, wide):
    assert (rule, marked(program.__name__)) in places(audited(program))


@pytest.mark.parametrize(("program", "rule", "wide"), WILD, ids=NAMES)
def test_it_is_silent_where_it_is_repaired(program, rule, wide):
    assert audited(program, wide) == []


def test_decibels_with_a_floor_are_right():
    """With `top_db` the -inf of silence becomes what a wider dtype has too."""

    def floored():
        power = torch.zeros(2, 100, dtype=F16)
        power[:, 50:] = 0.5
        level = 10 * torch.clamp(power, min=1e-10).log10()
        return torch.maximum(level, level.amax(-1, keepdim=True) - 80).tolist()

    assert audited(floored) == []


def test_noise_of_diffusers():
    diffusers = pytest.importorskip("diffusers")

    def program():
        scheduler = diffusers.DDPMScheduler()
        clean, noise = torch.randn(2, 64, 4, 8, 8).to(BF16)
        noisy = scheduler.add_noise(clean, noise, torch.randint(0, 12, (64,)))
        assert (noisy == clean).flatten(1).all(1).sum() == 51
        learns_from(noisy, noise)

    (finding,) = audited(program)
    assert finding.rule == "DG902"
    assert finding.function == "add_noise"
    assert "(1 - alphas_cumprod[timesteps]) ** 0.5" in finding.source


METRICS = [
    ("SumMetric", lambda: (torch.ones((), dtype=F16),), 5000, "DG903", "self.sum_value += "),
    ("MeanMetric", lambda: (torch.full((256,), 12.5, dtype=F16),), 30, "DG901", "self.mean_value += "),
    ("MeanSquaredError", lambda: torch.randn(2, 256).half() * 12, 4, "DG901", "torch.sum(diff * diff"),
]


@pytest.mark.parametrize(("name", "batch", "count", "rule", "source"), METRICS, ids=[row[0] for row in METRICS])
def test_metrics_of_torchmetrics_in_half(name, batch, count, rule, source):
    torchmetrics = pytest.importorskip("torchmetrics")

    def program(dtype):
        metric = getattr(torchmetrics, name)().set_dtype(dtype)
        for _ in range(count):
            metric.update(*(one.to(dtype) for one in batch()))
        metric.compute().item()

    (finding,) = audited(program, F16)
    assert finding.rule == rule
    assert source in finding.source
    assert audited(program, F32) == []


# ---------------------------------------------------------------- planted
# Each takes the dtype of the line that has the fault: in a half dtype it is there, in float32 it is repaired.


def overflow_in_a_forward(self, x, dtype):
    energy = (100 * x.to(dtype)).square()  # <-- overflow_in_a_forward
    return energy.float().log1p()


def flush_in_a_forward(self, x, dtype):
    power = (2e-5 * x.to(dtype)).square()  # <-- flush_in_a_forward
    return (power.float() + 1e-15).log()


def cancellation_in_a_forward(self, x, dtype):
    x = (x + 100).to(dtype)
    variance = x.square().mean(-1) - x.mean(-1).square()  # <-- cancellation_in_a_forward
    return variance.float().clamp(min=1e-6).sqrt()


def stall_in_a_forward(self, x, dtype):
    state = torch.zeros(x.shape[-1], dtype=dtype)
    for row in x.abs().repeat(16, 1):
        state = state + row.to(dtype)  # <-- stall_in_a_forward
    return state.float()


def flip_in_a_forward(self, x, dtype):
    scores = (0.01 * x + 8).to(dtype)
    expert = scores.argmax(-1)  # <-- flip_in_a_forward
    return x * expert[:, None]


def whole_in_a_forward(self, x, dtype):
    position = torch.arange(4096).to(dtype)  # <-- whole_in_a_forward
    return x.mean() * position.float()


def overflow_in_a_loss(out, target, dtype):
    total = (100 * (out - target).to(dtype)).square().sum()  # <-- overflow_in_a_loss
    return total / out.numel()


def flush_in_a_loss(out, target, dtype):
    small = (2e-5 * (out - target).to(dtype)).square()  # <-- flush_in_a_loss
    return 1e9 * small.float().mean()


def cancellation_in_a_loss(out, target, dtype):
    p = torch.sigmoid(out.abs() + 7).to(dtype)
    rest = 1 - p  # <-- cancellation_in_a_loss
    return -(rest.float() + 1e-8).log().mean()


def stall_in_a_loss(out, target, dtype):
    total = torch.zeros((), dtype=dtype)
    for one in (out - target).abs().flatten()[:1024]:
        total = total + one.to(dtype)  # <-- stall_in_a_loss
    return total / out.numel()


def flip_in_a_loss(out, target, dtype):
    """The hardest quarter."""
    losses = ((out - target).square().mean(-1) / 100 + 8).to(dtype)
    hardest = losses.topk(len(losses) // 4)[1]  # <-- flip_in_a_loss
    return (out - target)[hardest].square().mean()


def whole_in_a_loss(out, target, dtype):
    labels = torch.arange(3000, 3000 + out.numel()).to(dtype)  # <-- whole_in_a_loss
    return F.l1_loss(3000 * out.flatten(), labels.float())


def overflow_in_a_metric(self, out, target, dtype):
    self.value += (100 * (out - target).to(dtype)).square().sum()  # <-- overflow_in_a_metric


def flush_in_a_metric(self, out, target, dtype):
    error = (2e-5 * (out - target).to(dtype)).square()  # <-- flush_in_a_metric
    self.value += -10 * (error.float() + 1e-15).log10().mean()


def cancellation_in_a_metric(self, out, target, dtype):
    values = (out + 100).to(dtype)
    variance = values.square().mean() - values.mean().square()  # <-- cancellation_in_a_metric
    self.value += variance.float().clamp(min=1e-6).sqrt()


def stall_in_a_metric(self, out, target, dtype):
    self.value = self.value.to(dtype)
    for one in (out - target).abs().mean(-1):
        self.value += one  # <-- stall_in_a_metric


def flip_in_a_metric(self, out, target, dtype):
    score = (0.5 + out / 1000).to(dtype)
    hits = score > 0.5002  # <-- flip_in_a_metric
    self.value += hits.float().mean()


def whole_in_a_metric(self, out, target, dtype):
    rank = torch.arange(4000, 4000 + len(out)).to(dtype)  # <-- whole_in_a_metric
    self.value += rank[out.argmax(0)].float().mean()


def overflow_in_an_optimizer(self, p, state, dtype):
    scaled = 1e6 * p.grad.to(dtype)  # <-- overflow_in_an_optimizer
    p -= self.rate * scaled.float() / 1e6


def flush_in_an_optimizer(self, p, state, dtype):
    p -= self.rate * p.grad / (1e-3 * p.grad).to(dtype).square().sqrt().float()  # <-- flush_in_an_optimizer


def cancellation_in_an_optimizer(self, p, state, dtype):
    g = (1 + 0.01 * p.grad).to(dtype)
    variance = g.square().mean() - g.mean().square()  # <-- cancellation_in_an_optimizer
    p -= self.rate * p.grad / (variance.float().abs().sqrt() + 1e-8)


def stall_in_an_optimizer(self, p, state, dtype):
    p -= self.rate * p.grad
    seen = state.setdefault("seen", torch.full_like(p, 200, dtype=dtype))
    seen += 1  # <-- stall_in_an_optimizer


def flip_in_an_optimizer(self, p, state, dtype):
    """Only the largest quarter is sent to the others."""
    size = (p.grad.abs().flatten() / 1000 + 1).to(dtype)
    largest = size.topk(size.numel() // 4)[1]  # <-- flip_in_an_optimizer
    p.view(-1)[largest] -= self.rate * p.grad.view(-1)[largest]


def whole_in_an_optimizer(self, p, state, dtype):
    age = torch.arange(1000, 1000 + p.numel()).to(dtype)  # <-- whole_in_an_optimizer
    p -= self.rate * p.grad * (age.float() - 1000).view_as(p) / p.numel()


def overflow_in_an_architecture(self, hidden, dtype):
    gate = 1e5 * self.inner(100 * hidden).to(dtype)  # <-- overflow_in_an_architecture
    return gate.float() / 1e5


def flush_in_an_architecture(self, hidden, dtype):
    power = (1e-4 * hidden.to(dtype)).square().mean(-1, keepdim=True)  # <-- flush_in_an_architecture
    return self.inner(1e-4 * hidden * (power.float() + 1e-12).rsqrt())


def cancellation_in_an_architecture(self, hidden, dtype):
    x = (hidden + 3).to(dtype)  # 30 would leave float32 too few digits
    moment, mean = x.square().mean(-1, keepdim=True), x.mean(-1, keepdim=True)
    variance = moment - mean.square()  # <-- cancellation_in_an_architecture
    return (hidden - hidden.mean(-1, keepdim=True)) * (variance.float().abs() + 1e-5).rsqrt() * self.inner.weight


def stall_in_an_architecture(self, hidden, dtype):
    state, states = torch.zeros_like(hidden[:, 0], dtype=dtype), []
    for one in self.inner(hidden).abs().repeat(1, 2, 1).unbind(1):
        state = state + one.to(dtype)  # <-- stall_in_an_architecture
        states.append(state.float())
    return torch.stack(states[hidden.shape[1] :], 1)


def flip_in_an_architecture(self, hidden, dtype):
    scores = (self.inner(hidden) + 8).to(dtype)
    chosen = scores.argmax(-1, keepdim=True)  # <-- flip_in_an_architecture
    return hidden * chosen / hidden.shape[-1]


def whole_in_an_architecture(self, hidden, dtype):
    position = torch.arange(hidden.shape[1]).to(dtype)  # <-- whole_in_an_architecture
    return self.inner(hidden) + position.float()[:, None]


class Planted(nn.Module):
    """A module that does what a function does."""

    def __init__(self, body, dtype, inner=None):
        super().__init__()
        self.body, self.dtype, self.inner = body, dtype, inner

    def forward(self, x, *args, **kwargs):
        return self.body(self, x, self.dtype)


class Planned(Optimizer):
    def __init__(self, parameters, update, dtype, rate=0.01):
        super().__init__(parameters, {})
        self.update, self.dtype, self.rate = update, dtype, rate

    @torch.no_grad()
    def step(self):
        for p in self.param_groups[0]["params"]:
            self.update(self, p, self.state[p], self.dtype)


class Metric:
    def __init__(self):
        self.value = torch.zeros(())


def a_forward(body, dtype):
    model = nn.Sequential(nn.Linear(16, 64), Planted(body, dtype))
    model(4 * torch.randn(64, 16)).square().mean().backward()


def a_loss(body, dtype):
    model = nn.Linear(16, 32)
    body(model(torch.randn(64, 16)), torch.randn(64, 32), dtype).float().backward()


def a_metric(body, dtype):
    metric, model = Metric(), nn.Linear(16, 8)
    with torch.no_grad():
        for _ in range(16):
            body(metric, model(torch.randn(64, 16)), torch.randn(64, 8), dtype)
    return metric.value.item()


def an_optimizer(body, dtype):
    model = nn.Linear(16, 32)
    optimizer = Planned(model.parameters(), body, dtype)
    x, y = torch.randn(64, 16), torch.randn(64, 32)
    for _ in range(160):
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean(0).sum()
        loss.backward()
        optimizer.step()
    return loss.item(), [tensor.sum().item() for state in optimizer.state.values() for tensor in state.values()]


HF = {  # an architecture, and the submodule in which a fault of a kind is planted
    "overflow": ("Llama", "model.layers.0.mlp"),
    "flush": ("Bert", "bert.encoder.layer.0.intermediate.dense"),
    "cancellation": ("GPT2", "transformer.ln_f"),
    "stall": ("GPTNeoX", "gpt_neox.layers.0.mlp"),
    "flip": ("Llama", "model.layers.1.mlp"),
    "whole": ("Bert", "bert.embeddings.LayerNorm"),
}
SIZES = {
    "vocab_size": 61, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
    "max_position_embeddings": 512, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


def an_architecture(body, dtype):
    hf = pytest.importorskip("transformers")
    name, place = HF[body.__name__.split("_")[0]]
    kind = "BertForMaskedLM" if name == "Bert" else "GPT2LMHeadModel" if name == "GPT2" else f"{name}ForCausalLM"
    model = getattr(hf, kind)(getattr(hf, f"{name}Config")(**SIZES)).eval()
    model.set_submodule(place, Planted(body, dtype, model.get_submodule(place)))
    tokens = 3 + torch.arange(512)[None] * 7 % 53
    model(input_ids=tokens, labels=tokens).loss.backward()


RULES = {
    "overflow": ("DG901", F16),
    "flush": ("DG901", F16),
    "cancellation": ("DG902", BF16),
    "stall": ("DG903", BF16),
    "flip": ("DG904", BF16),
    "whole": ("DG905", BF16),
}
PLACES = [a_forward, a_loss, a_metric, an_optimizer, an_architecture]
PLANTED = [(kind, where) for where in PLACES for kind in RULES]


def body_of(kind, where):
    return globals()[f"{kind}_in_{where.__name__}"]


@pytest.mark.parametrize(
    ("kind", "where"),
    PLANTED,
)
def test_a_planted_fault(kind, where):
    rule, low = RULES[kind]
    body = body_of(kind, where)
    assert (rule, marked(body.__name__)) in places(audited(where, body, low))


@pytest.mark.parametrize(("kind", "where"), [(kind, where) for kind in RULES for where in (a_metric, an_optimizer)])
def test_a_planted_fault_is_found_where_some_steps_are_looked_at(kind, where):
    rule, low = RULES[kind]
    body = body_of(kind, where)
    assert (rule, marked(body.__name__)) in places(audited(where, body, low, every="2^k"))
    assert audited(where, body, F32, every="2^k") == []


@pytest.mark.parametrize(("kind", "where"), PLANTED)
def test_a_planted_fault_that_is_repaired(kind, where):
    assert audited(where, body_of(kind, where), F32) == []
