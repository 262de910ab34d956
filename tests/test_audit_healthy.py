"""No false alarms: an audit of a program that is right changes no bit of it and finds nothing to warn of."""

import copy
import functools
import math

import numpy as np
import pytest
import torch
from audit_cases import plain, silent, twice
from sklearn.datasets import load_digits
from support import BF16, F16, F32, same
from torch import nn
from torch.amp import GradScaler
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_, rnn
from torch.utils.checkpoint import checkpoint

import dtypeguard

STEPS = 6
PROGRAMS = {}


def program(function=None, **options):
    """Enter a program in the table, once for each value of its only option."""
    if function is None:
        return functools.partial(program, **options)
    name = function.__name__.replace("_", " ")
    for key, values in options.items():
        for value in values:
            PROGRAMS[f"{name}, {str(value).removeprefix('torch.')}"] = functools.partial(function, **{key: value})
    if not options:
        PROGRAMS[name] = function
    return function


# ---------------------------------------------------------------- what the programs are made of


def batches(dtype=F32, steps=STEPS, rows=8):
    """Six numbers, and one of three classes that depends on them."""
    for _ in range(steps):
        x = torch.randn(rows, 6)
        yield x.to(dtype), x[:, :3].argmax(1)


def mlp(dtype=F32):
    return nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 3)).to(dtype)


def adam(model, **options):
    return torch.optim.AdamW(model.parameters(), **{"lr": 0.02, **options})


def trained(model, data, forward=None, dtype=None, optimizer=None, scaler=None, criterion=F.cross_entropy):
    """The usual loop, under autocast where a dtype is given."""
    optimizer, losses, scaler = optimizer or adam(model), [], scaler or GradScaler("cpu", enabled=dtype is F16)
    for x, y in data:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype or BF16, enabled=dtype is not None):
            loss = criterion((forward or model)(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return model, optimizer, scaler, losses


# ---------------------------------------------------------------- training


@program(dtype=[BF16, F16])
def a_perceptron_under_autocast(dtype):
    return trained(mlp(), batches(), dtype=dtype)


@program
def a_bfloat16_model_with_its_loss_in_bfloat16():
    return trained(mlp(BF16), batches(BF16))


@program(dtype=[F32, BF16])
def an_average_in_float32(dtype):
    model = mlp(dtype)
    average, optimizer = copy.deepcopy(model).float(), adam(model)
    for x, y in batches(dtype):
        optimizer.zero_grad()
        F.cross_entropy(model(x).float(), y).backward()
        optimizer.step()
        with torch.no_grad():
            for kept, new in zip(average.parameters(), model.parameters(), strict=True):
                kept.lerp_(new.float(), 0.1)
    return model, average


def judged(out, real):
    target = torch.ones_like(out) if real else torch.zeros_like(out)
    return F.binary_cross_entropy_with_logits(out, target)


@program
def a_gan_with_one_scaler():
    maker, judge = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 6)), nn.Linear(6, 1)
    making, judging, scaler = adam(maker), adam(judge), GradScaler("cpu")
    for x, _ in batches():
        judging.zero_grad()
        with torch.autocast("cpu", F16):
            fake = maker(torch.randn(8, 4))
            critic = judged(judge(x), True) + judged(judge(fake.detach()), False)
        scaler.scale(critic).backward()
        scaler.step(judging)
        making.zero_grad()
        with torch.autocast("cpu", F16):
            loss = judged(judge(fake), True)
        scaler.scale(loss).backward()
        scaler.step(making)
        scaler.update()
    return maker, judge, making, judging, scaler, critic.item(), loss.item()


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.body, self.head = nn.Embedding(20, 6), nn.LSTM(6, 8, 2, dropout=0.1), nn.Linear(8, 3)

    def forward(self, packed, state=None):
        words = rnn.PackedSequence(self.words(packed.data), *packed[1:])
        out, state = self.body(words, state)
        return self.head(out.data), tuple(part.detach() for part in state)


@program(dtype=[None, BF16, F16])
def a_recurrent_net_with_packed_sequences_and_a_state_that_is_carried(dtype):
    model, state, losses = Tagger(), None, []
    optimizer, scaler = adam(model), GradScaler("cpu", enabled=dtype is F16)
    for _ in range(STEPS):
        sequences = [torch.randint(20, (length,)) for length in (5, 4, 2)]
        packed = rnn.pack_sequence(sequences)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype or BF16, enabled=dtype is not None):
            out, state = model(packed, state)
            loss = F.cross_entropy(out, packed.data % 3)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return model, optimizer, state, losses


class Block(nn.Module):
    def __init__(self, width=16, heads=2):
        super().__init__()
        self.first, self.second, self.heads = nn.LayerNorm(width), nn.LayerNorm(width), heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 32), nn.GELU(), nn.Linear(32, width))

    def forward(self, x, mask=None):
        q, k, v = self.qkv(self.first(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(self.second(x))


@functools.cache
def digits():
    images, labels = load_digits(return_X_y=True)
    return torch.from_numpy(images).float().div(16).view(-1, 1, 8, 8), torch.from_numpy(labels).long()


def digit_batches(dtype=F32, steps=STEPS):
    images, labels = digits()
    for step in range(steps):
        rows = slice(step * 16, step * 16 + 16)
        yield images[rows].to(dtype), labels[rows]


def convolutions():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(16, 10),
    )  # fmt: skip


@program(dtype=[None, BF16, F16])
def convolutions_with_batch_norms(dtype):
    made = trained(convolutions(), digit_batches(), dtype=dtype)
    with torch.inference_mode(), torch.autocast("cpu", dtype or BF16, enabled=dtype is not None):
        right = sum(int((made[0].eval()(x).argmax(1) == y).sum()) for x, y in digit_batches())
    return *made, right


@program
def a_bfloat16_net_whose_norms_stay_in_float32():
    model = convolutions().to(BF16)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.float()
    return trained(model, digit_batches(BF16), criterion=lambda out, y: F.cross_entropy(out.float(), y))


@program(reentrant=[False, True])
def checkpointed_blocks(reentrant):
    blocks, head = nn.ModuleList([Block(), Block()]), nn.Linear(16, 3)
    model = nn.ModuleList([blocks, head])

    def forward(x):
        x = x.repeat(1, 1, 4)[..., :16].requires_grad_()
        for block in blocks:
            x = checkpoint(block, x, use_reentrant=reentrant)
        return head(x.mean(1))

    return trained(model, ((x.unsqueeze(1).expand(-1, 4, -1), y) for x, y in batches()), forward, BF16)


@program
def master_weights_by_hand():
    model = mlp(BF16)
    masters = [parameter.detach().float().requires_grad_() for parameter in model.parameters()]
    optimizer = torch.optim.AdamW(masters, lr=1e-3)
    for x, y in batches(BF16):
        F.cross_entropy(model(x).float(), y).backward()
        for master, parameter in zip(masters, model.parameters(), strict=True):
            master.grad, parameter.grad = parameter.grad.float(), None
        optimizer.step()
        with torch.no_grad():
            for master, parameter in zip(masters, model.parameters(), strict=True):
                parameter.copy_(master.to(BF16))
    return model, masters, optimizer


@program
def a_q_function_from_rewards_of_numpy():
    policy = nn.Linear(4, 2)
    target, optimizer, losses = copy.deepcopy(policy), adam(policy), []
    random = np.random.default_rng(0)
    for _ in range(STEPS):
        states = torch.from_numpy(random.standard_normal((8, 4)).astype(np.float32))
        actions = torch.from_numpy(random.integers(2, size=8))
        rewards = torch.as_tensor(random.standard_normal(8), dtype=torch.float32)
        done = torch.tensor(random.random(8) < 0.1)
        with torch.no_grad():
            wanted = rewards + 0.99 * target(states).amax(1) * (~done)
        loss = F.smooth_l1_loss(policy(states).gather(1, actions.unsqueeze(1)).squeeze(1), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return policy, losses


# ---------------------------------------------------------------- masks, positions, tables, time


def encoder(dtype=F32):
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).to(dtype)


def sentences(dtype=F32, steps=STEPS):
    for step in range(steps):
        mask = torch.arange(7) < torch.tensor([[7], [4], [2]])
        yield torch.randn(3, 7, 16).to(dtype), mask.roll(step, 0)


def pooled(hidden, mask):
    share = mask.unsqueeze(-1).to(hidden.dtype)
    return (hidden * share).sum(1) / share.sum(1).clamp(min=1e-9)


@program(dtype=[F32, BF16, F16])
def sentences_are_masked_and_pooled(dtype):
    model, head = encoder(dtype), nn.Linear(16, 3).to(dtype)
    optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.3)
    for x, mask in sentences(dtype):
        optimizer.zero_grad()
        out = pooled(model(x, src_key_padding_mask=~mask), mask)
        F.cross_entropy(head(out).float(), mask.sum(1) % 3).backward()
        optimizer.step()
    return model, head


@program(dtype=[F32, BF16, F16])
@torch.no_grad()
def additive_masks_of_the_least_number(dtype):
    block, made = Block().to(dtype), []
    for x, mask in sentences(dtype):
        extended = (1.0 - mask[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        causal = torch.full((7, 7), torch.finfo(x.dtype).min, dtype=x.dtype).triu(1)
        made.append(block(x, extended) + block(x, causal))
    return made


class UNet(nn.Module):
    """Of diffusion: it is told the time by sines of it, computed in float32."""

    def __init__(self, width=8):
        super().__init__()
        self.down, self.up, self.out = (
            nn.Conv2d(1, width, 3, 2, 1), nn.ConvTranspose2d(width, width, 4, 2, 1), nn.Conv2d(width + 1, 1, 3, 1, 1)
        )  # fmt: skip
        self.norm, self.width = nn.GroupNorm(2, width), width
        self.time = nn.Sequential(nn.Linear(width, 16), nn.SiLU(), nn.Linear(16, width))

    def forward(self, x, times):
        half = self.width // 2
        frequencies = torch.exp(-math.log(10000) * torch.arange(half, dtype=torch.float32) / half)
        angles = times[:, None].float() * frequencies
        told = self.time(torch.cat([angles.sin(), angles.cos()], -1).to(x.dtype))
        hidden = F.silu(self.norm(self.down(x)) + told[:, :, None, None])
        return self.out(torch.cat([x, F.silu(self.up(hidden))], 1))


@program(dtype=[F32, BF16])
def a_diffusion_model(dtype):
    model, losses = UNet().to(dtype), []
    optimizer = adam(model)
    betas = torch.linspace(1e-4, 0.02, 1000, dtype=torch.float64)  # the schedule in float64, as it is usual
    kept = (1 - betas).cumprod(0)
    signal, noise_share = kept.sqrt().float(), (1 - kept).sqrt().float()
    for image, _ in digit_batches():
        times, noise = torch.randint(1000, (16,)), torch.randn(16, 1, 8, 8)
        noisy = signal[times].view(-1, 1, 1, 1) * image + noise_share[times].view(-1, 1, 1, 1) * noise
        loss = F.mse_loss(model(noisy.to(dtype), times).float(), noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    with torch.no_grad():
        x = torch.randn(2, 1, 8, 8)
        for time in range(900, 0, -150):
            guess = model(x.to(dtype), torch.full((2,), time)).float()
            x = (x - noise_share[time] * guess) / signal[time].clamp(min=0.1)
    return model, losses, x


@program
def quantization_is_learned_with_straight_through_gradients():
    layer = nn.Linear(6, 3)

    def forward(x):
        scale = layer.weight.detach().abs().amax() / 7
        rounded = (layer.weight / scale).round().clamp(-8, 7) * scale
        return F.linear(x, layer.weight + (rounded - layer.weight).detach(), layer.bias)

    return trained(layer, batches(), forward)


@program
def a_float32_bias_on_bfloat16_scores():
    q, bias = torch.randn(2, 5, 8, dtype=BF16), torch.randn(5, 5)
    scores = q @ q.mT / math.sqrt(8) + bias
    return scores.softmax(-1, dtype=F32).to(BF16) @ q


@program
@torch.no_grad()
def a_codebook_that_follows_in_float32():
    sums, counts = torch.zeros(7, 4), torch.zeros(7)
    for _ in range(STEPS):
        x = torch.randn(9, 4, dtype=BF16)
        chosen = F.one_hot(torch.cdist(x.float(), sums / counts.clamp(min=1e-5)[:, None]).argmin(1), 7).to(BF16)
        sums.mul_(0.9).add_(chosen.T @ x, alpha=0.1)
        counts.mul_(0.9).add_(chosen.sum(0), alpha=0.1)
    return sums, counts


@program
def experts_behind_a_float32_router():
    router, experts = nn.Linear(6, 3), nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)]).to(BF16)
    model = nn.ModuleList([router, experts])

    def forward(x):
        weights, chosen = router(x.float()).softmax(-1).topk(2, -1)
        weights, out = weights / weights.sum(-1, keepdim=True), torch.zeros_like(x)
        for number, expert in enumerate(experts):
            rows, places = (chosen == number).nonzero(as_tuple=True)
            out = out.index_add(0, rows, (expert(x[rows]) * weights[rows, places, None]).to(x.dtype))
        return out.float()

    return trained(model, batches(BF16), forward)


@program(dtype=[BF16, F16])
def float32_targets_of_a_half_model(dtype):
    model, teacher = mlp(dtype).eval(), mlp().eval()
    losses = []
    for x, _ in batches():
        with torch.no_grad():
            target = teacher(x)
        out, hot = model(x.to(dtype)), (target > 0).float()
        soft = F.kl_div((out.float() / 2).log_softmax(-1), (target / 2).softmax(-1), reduction="batchmean")
        sharp = F.binary_cross_entropy_with_logits(out.float(), hot, reduction="none")
        chance = out.sigmoid()
        hard = (sharp * (1 - chance * hot - (1 - chance) * (1 - hot)).square()).mean()
        (soft + hard + F.mse_loss(out.float(), target)).backward()
        losses.append((soft.item(), hard.item()))
    return model, losses


@program
@torch.no_grad()
def sentences_are_pooled_as_sentence_transformers_do_it():
    hidden, mask = torch.randn(2, 5, 8, dtype=BF16), torch.ones(2, 5, dtype=torch.int64)
    mask[0, 3:] = 0
    wide = mask.unsqueeze(-1).expand(hidden.size()).float()
    first = torch.sum(hidden * wide, 1) / torch.clamp(wide.sum(1), min=1e-9)
    second = (hidden * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True)
    return F.normalize(first, dim=1).tolist(), second


# ---------------------------------------------------------------- each runs bare and in an audit


@pytest.mark.thin(3)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_that_is_right_is_left_alone(name):
    twice(PROGRAMS[name])


@pytest.mark.thin(2)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("before", [False, True], ids=["compiled in the audit", "compiled before"])
@pytest.mark.parametrize("dtype", [None, BF16], ids=["float32", "bfloat16 autocast"])
def test_a_compiled_model_computes_what_is_written(backend, before, dtype):
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, twin, data = mlp(), mlp(), list(batches())
    twin.load_state_dict(model.state_dict())
    compiled = torch.compile(model, backend=backend)
    if before:
        compiled(data[0][0])
    torch.manual_seed(1)
    bare = trained(twin, data, dtype=dtype)
    torch.manual_seed(1)
    with dtypeguard.audit() as report:
        made = trained(model, data, compiled, dtype)
    assert same(plain(bare), plain(made))
    silent(report)
