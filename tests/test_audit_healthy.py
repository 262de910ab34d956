"""No false alarms: an audit of a program that is right changes no bit of it and finds nothing to warn of."""

import contextlib
import copy
import functools
import inspect
import io
import math
import threading

import amp_programs
import numpy as np
import pytest
import test_amp_rules_autocast
import test_amp_rules_clipping
import test_amp_rules_optimizer
import test_amp_rules_scaler
import test_amp_rules_updates
import test_amp_rules_zoo
import test_amp_silent
import torch
from sklearn.datasets import load_digits
from test_amp_silent import plain, same
from torch import nn
from torch.amp import GradScaler
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_, parametrizations, rnn
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

import dtypeguard

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
STEPS = 6
PROGRAMS = {}
slow = pytest.mark.slow


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


@program
def a_perceptron_in_float32():
    return trained(mlp(), batches())


@program(dtype=[BF16, F16])
def a_perceptron_under_autocast(dtype):
    return trained(mlp(), batches(), dtype=dtype)


@program
def a_bfloat16_model_with_its_loss_in_float32():
    return trained(mlp(BF16), batches(BF16), criterion=lambda out, y: F.cross_entropy(out.float(), y))


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


@program
def an_average_by_torch():
    model = mlp()
    average, optimizer = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9)), adam(model)
    for x, y in batches():
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        average.update_parameters(model)
    return model, average


@program
def stochastic_weight_averaging():
    model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
    average, optimizer, data = AveragedModel(model), adam(model), list(batches())
    schedule = SWALR(optimizer, swa_lr=0.01, anneal_epochs=2)
    for epoch in range(3):
        for x, y in data:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        schedule.step()
        if epoch:
            average.update_parameters(model)
    update_bn(data, average)
    return model, average, optimizer


def gan(iteration):
    maker, judge = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 6)), nn.Linear(6, 1)
    making, judging, scaler, losses = adam(maker), adam(judge), GradScaler("cpu"), []
    for x, _ in batches():
        losses += iteration(maker, judge, making, judging, scaler, x)
    return maker, judge, making, judging, scaler, losses


def judged(out, real):
    target = torch.ones_like(out) if real else torch.zeros_like(out)
    return F.binary_cross_entropy_with_logits(out, target)


@program
def a_gan():
    def iteration(maker, judge, making, judging, scaler, x):
        fake = maker(torch.randn(8, 4))
        judging.zero_grad()
        critic = judged(judge(x), True) + judged(judge(fake.detach()), False)
        critic.backward()
        judging.step()
        making.zero_grad()
        loss = judged(judge(fake), True)
        loss.backward()
        making.step()
        return critic.item(), loss.item()

    return gan(iteration)


@program
def a_gan_with_one_scaler():
    def iteration(maker, judge, making, judging, scaler, x):
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
        return critic.item(), loss.item()

    return gan(iteration)


@program
def a_critic_with_a_gradient_penalty():
    def iteration(maker, judge, making, judging, scaler, x):
        between = x.lerp(maker(torch.randn(8, 4)).detach(), torch.rand(8, 1)).requires_grad_()
        (slope,) = torch.autograd.grad(judge(between).tanh().sum(), between, create_graph=True)
        judging.zero_grad()
        loss = (slope.norm(dim=1) - 1).square().mean()
        loss.backward()
        judging.step()
        return (loss.item(),)

    return gan(iteration)


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


class ViT(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches, self.cls = nn.Conv2d(1, 16, 4, 4), nn.Parameter(torch.zeros(1, 1, 16))
        self.places = nn.Parameter(torch.randn(1, 5, 16) * 0.02)
        self.blocks, self.norm, self.head = nn.Sequential(Block(), Block()), nn.LayerNorm(16), nn.Linear(16, 10)

    def forward(self, x):
        x = self.patches(x).flatten(2).mT
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.places
        return self.head(self.norm(self.blocks(x))[:, 0])


@functools.cache
def digits():
    images, labels = load_digits(return_X_y=True)
    return torch.from_numpy(images).float().div(16).view(-1, 1, 8, 8), torch.from_numpy(labels).long()


def digit_batches(dtype=F32, steps=STEPS):
    images, labels = digits()
    for step in range(steps):
        rows = slice(step * 16, step * 16 + 16)
        yield images[rows].to(dtype), labels[rows]


@program(dtype=[F32, BF16])
def a_vision_transformer(dtype):
    return trained(ViT().to(dtype), digit_batches(dtype), criterion=lambda out, y: F.cross_entropy(out.float(), y))


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


@program
def convolutions_in_channels_last():
    model = convolutions().to(memory_format=torch.channels_last)
    return trained(model, ((x.to(memory_format=torch.channels_last), y) for x, y in digit_batches()), dtype=BF16)


class Raw(torch.utils.data.Dataset):
    """Images as they come from a file: bytes, scaled by whoever loads them."""

    def __len__(self):
        return 48

    def __getitem__(self, index):
        images, labels = digits()
        image = (images[index] * 255).round().to(torch.uint8).numpy()
        return torch.from_numpy(image.astype(np.float32) / 255), labels[index]


@program(workers=[0, 2])
def a_loader_with_workers(workers):
    generator = torch.Generator().manual_seed(3)
    loader = DataLoader(Raw(), batch_size=8, shuffle=True, num_workers=workers, generator=generator)
    return trained(convolutions(), loader)


@program
def accumulated_gradients_and_a_schedule():
    model, losses = mlp(), []
    optimizer, scaler = adam(model), GradScaler("cpu")
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=STEPS)
    for number, (x, y) in enumerate(batches(steps=3 * STEPS)):
        with torch.autocast("cpu", F16):
            loss = F.cross_entropy(model(x), y) / 3
        scaler.scale(loss).backward()
        losses.append(loss.item() * 3)
        if number % 3 == 2:
            scaler.unscale_(optimizer)
            clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
            schedule.step()
    return model, optimizer, scaler, schedule.state_dict(), losses


@program(dtype=[F32, BF16])
def a_plateau_is_waited_for(dtype):
    model = mlp(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)
    for x, y in batches(dtype):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x).float(), y)
        loss.backward()
        optimizer.step()
        schedule.step(loss.item())
    return model, optimizer


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
def a_second_order_method_with_a_closure():
    model = nn.Linear(6, 3)
    optimizer, (x, y) = torch.optim.LBFGS(model.parameters(), max_iter=4), next(batches())

    def closure():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    return model, [optimizer.step(closure) for _ in range(STEPS)]


@program
def parametrized_weights():
    model = nn.Sequential(
        parametrizations.weight_norm(nn.Linear(6, 16)), nn.Tanh(), parametrizations.spectral_norm(nn.Linear(16, 3))
    )
    return trained(model, batches())


@program(dtype=[None, BF16, F16])
def a_variational_autoencoder(dtype):
    encoder, decoder = nn.Linear(64, 8), nn.Linear(4, 64)
    model = nn.ModuleList([encoder, decoder])

    def loss(_, __):
        mean, spread = encoder(x).chunk(2, -1)
        out = decoder(mean + torch.randn_like(mean) * (0.5 * spread).exp())
        divergence = -0.5 * (1 + spread - mean.square() - spread.exp()).sum(-1).mean()
        return F.binary_cross_entropy_with_logits(out.float(), x, reduction="sum") / len(x) + divergence.float()

    x = digits()[0][:16].flatten(1)
    return trained(model, [(x, None)] * STEPS, lambda x: x, dtype, criterion=loss)


@program(dtype=[None, BF16])
def a_contrastive_loss(dtype):
    first, second, scale = nn.Linear(6, 8), nn.Linear(6, 8), nn.Parameter(torch.tensor(math.log(10.0)))
    model = nn.ParameterList([*first.parameters(), *second.parameters(), scale])

    def loss(_, __):
        a, b = F.normalize(first(x), dim=-1), F.normalize(second(x + 0.1), dim=-1)
        logits = scale.exp().clamp(max=100) * a @ b.T
        target = torch.arange(len(logits))
        return (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2

    x = torch.randn(8, 6)
    return trained(model, [(x, None)] * STEPS, lambda x: x, dtype, criterion=loss)


@program
def speech_with_a_ctc_loss_under_autocast():
    model = nn.LSTM(6, 8)
    head = nn.Linear(8, 5)
    both, target = nn.ModuleList([model, head]), torch.randint(1, 5, (3, 4))

    def loss(out, _):
        scores = out.float().log_softmax(-1)
        return F.ctc_loss(scores, target, torch.full((3,), 12), torch.full((3,), 4))

    data = [(torch.randn(12, 3, 6), None) for _ in range(STEPS)]
    return trained(both, data, lambda x: head(model(x)[0]), BF16, criterion=loss)


@program
def a_graph_of_nodes():
    layers, head = nn.ModuleList([nn.Linear(6, 8), nn.Linear(8, 8)]), nn.Linear(8, 3)
    model, edges = nn.ModuleList([layers, head]), torch.randint(8, (2, 20))

    def forward(x):
        degree = torch.bincount(edges[1], minlength=8).clamp(min=1).to(x.dtype)
        for layer in layers:
            hidden = layer(x)
            x = torch.zeros_like(hidden).index_add(0, edges[1], hidden[edges[0]]) / degree.sqrt().unsqueeze(1)
            x = x.relu()
        return head(x)

    return trained(model, batches(), forward)


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


@program
def discounted_returns_and_advantages():
    policy = nn.Linear(4, 2)
    optimizer = adam(policy)
    for _ in range(STEPS):
        states, rewards = torch.randn(10, 4), [float(step % 3) for step in range(10)]
        chosen = torch.distributions.Categorical(logits=policy(states))
        actions, total, returns = chosen.sample(), 0.0, []
        for reward in reversed(rewards):
            total = reward + 0.9 * total
            returns.insert(0, total)
        returns = torch.tensor(returns)
        returns = (returns - returns.mean()) / (returns.std() + 1e-8)
        loss = -(chosen.log_prob(actions) * returns).mean() - 0.01 * chosen.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return policy


@program(dtype=[None, BF16])
def a_spectral_loss(dtype):
    model, window = nn.Conv1d(1, 1, 5, padding=2), torch.hann_window(16)

    def loss(out, wave):
        parts = [torch.stft(w.float().squeeze(1), 16, window=window, return_complex=True).abs() for w in (out, wave)]
        return F.l1_loss(*parts) + F.mse_loss(parts[0].clamp(min=1e-5).log(), parts[1].clamp(min=1e-5).log())

    return trained(model, [(torch.randn(2, 1, 64), torch.randn(2, 1, 64)) for _ in range(STEPS)], None, dtype, None,
                   None, loss)  # fmt: skip


@program
def weights_of_classes_and_of_samples():
    labels = np.array([0, 0, 1, 2])
    weight = torch.tensor(len(labels) / (3 * np.bincount(labels)), dtype=torch.float32)

    def loss(out, y):
        each = F.cross_entropy(out, y, weight=weight, label_smoothing=0.1, reduction="none")
        sample = torch.linspace(0.5, 1.5, len(each))
        return (each * sample).sum() / sample.sum()

    return trained(mlp(), batches(), criterion=loss)


@program
def gradients_of_each_sample():
    model = nn.Linear(6, 3)
    weights, (x, y) = dict(model.named_parameters()), next(batches())

    def loss(weights, x, y):
        return F.cross_entropy(torch.func.functional_call(model, weights, (x,)), y)

    for _ in range(STEPS):
        each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(weights, x, y)
        norms = torch.stack([grad.flatten(1).norm(dim=1) for grad in each.values()]).norm(dim=0)
        with torch.no_grad():
            for name, grad in each.items():
                scale = (1.0 / norms).clamp(max=1.0).view(-1, *[1] * (grad.ndim - 1))
                weights[name] -= 0.1 * (grad * scale).mean(0)
    return model


@program
def a_training_that_is_saved_and_goes_on():
    model, optimizer, _, _ = trained(mlp(BF16), batches(BF16))
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    state, again = torch.load(file), mlp(BF16)
    again.load_state_dict(state["model"])
    optimizer = adam(again)
    optimizer.load_state_dict(state["optimizer"])
    return model, trained(again, batches(BF16), optimizer=optimizer)


@program
def a_thread_that_trains():
    made = []
    thread = threading.Thread(target=lambda: made.append(trained(mlp(), batches(), dtype=BF16)))
    thread.start()
    thread.join()
    return made


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


@program(dtype=[F32, BF16])
@torch.inference_mode()
def the_fast_path_of_an_encoder(dtype):
    model = encoder(dtype).eval()
    return [pooled(model(x, src_key_padding_mask=~mask), mask) for x, mask in sentences(dtype)]


@program(dtype=[F32, BF16, F16])
@torch.no_grad()
def additive_masks_of_the_least_number(dtype):
    block, made = Block().to(dtype), []
    for x, mask in sentences(dtype):
        extended = (1.0 - mask[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        causal = torch.full((7, 7), torch.finfo(x.dtype).min, dtype=x.dtype).triu(1)
        made.append(block(x, extended) + block(x, causal))
    return made


@program(dtype=[F32, BF16, F16])
def a_causal_mask_of_minus_infinity(dtype):
    layer = nn.TransformerDecoderLayer(16, 2, 32, batch_first=True, dropout=0.0).to(dtype)
    mask = nn.Transformer.generate_square_subsequent_mask(7, dtype=dtype)
    return [layer(x, x, tgt_mask=mask, tgt_is_causal=True).detach() for x, _ in sentences(dtype)]


class Rope(nn.Module):
    """Angles in float32, tables in the dtype of what is turned."""

    def __init__(self, width):
        super().__init__()
        self.register_buffer("frequencies", 10000.0 ** -(torch.arange(0, width, 2).float() / width), persistent=False)

    def forward(self, x, positions):
        angles = positions[:, None].float() * self.frequencies.float()
        angles = torch.cat([angles, angles], -1)
        a, b = x.chunk(2, -1)
        return x * angles.cos().to(x.dtype) + torch.cat([-b, a], -1) * angles.sin().to(x.dtype)


class Writer(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.q, self.kv = nn.Embedding(30, 16), nn.Linear(16, 16), nn.Linear(16, 32)
        self.rope, self.norm, self.head = Rope(16), nn.RMSNorm(16), nn.Linear(16, 30, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens, cache=None):
        x, start = self.words(tokens), 0 if cache is None else cache[0].shape[1]
        places = torch.arange(start, start + tokens.shape[1])
        k, v = self.kv(x).chunk(2, -1)
        q, k = self.rope(self.q(x), places), self.rope(k, places)
        if cache is not None:
            k, v = torch.cat([cache[0], k], 1), torch.cat([cache[1], v], 1)
        mask = torch.arange(k.shape[1]) <= places[:, None]
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.head(self.norm(x + out)), (k, v)


@program(dtype=[F32, BF16, F16])
@torch.no_grad()
def text_is_written_token_by_token_from_a_long_prompt(dtype):
    model = Writer().eval().to(dtype)
    tokens, cache = torch.randint(30, (2, 300)), None
    logits, cache = model(tokens)
    for _ in range(STEPS):
        scores = logits[:, -1].float() / 0.8
        kept = scores.topk(10).values[:, -1:]
        chances = scores.masked_fill(scores < kept, -math.inf).softmax(-1)
        tokens = torch.cat([tokens, torch.multinomial(chances, 1)], 1)
        logits, cache = model(tokens[:, -1:], cache)
    return tokens, logits


@program(dtype=[F32, BF16])
def a_language_model_learns(dtype):
    model = Writer().to(dtype)
    data = [(text[:, :-1], text[:, 1:]) for text in torch.randint(30, (STEPS, 4, 12))]

    def loss(out, y):
        y = y.masked_fill(y < 3, -100)
        return F.cross_entropy(out[0].float().flatten(0, 1), y.flatten(), ignore_index=-100)

    return trained(model, data, optimizer=torch.optim.SGD(model.parameters(), lr=0.3), criterion=loss)


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


@program(dtype=[F32, BF16, F16])
@torch.inference_mode()
def inference_in_a_model_that_was_converted(dtype):
    model = nn.Sequential(mlp(), nn.Softmax(-1)).eval().to(dtype)
    return [model(x).float().numpy().tolist() for x, _ in batches(dtype)]


@program
@torch.inference_mode()
def float16_convolutions_in_inference():
    model = convolutions().eval().half()
    return [model(x).argmax(1) for x, _ in digit_batches(F16)]


@program
@torch.no_grad()
def weights_in_eight_bits():
    weight = torch.randn(16, 6)
    scale = weight.abs().amax(1, keepdim=True) / 127
    packed = (weight / scale).round().clamp(-128, 127).to(torch.int8)
    return [F.linear(x, packed.to(x.dtype) * scale.to(x.dtype)) for x, _ in batches(BF16)]


@program
def quantization_is_learned_with_straight_through_gradients():
    layer = nn.Linear(6, 3)

    def forward(x):
        scale = layer.weight.detach().abs().amax() / 7
        rounded = (layer.weight / scale).round().clamp(-8, 7) * scale
        return F.linear(x, layer.weight + (rounded - layer.weight).detach(), layer.bias)

    return trained(layer, batches(), forward)


@program
def pictures_of_bytes_are_normalized():
    mean, spread = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.LazyLinear(3))
    raw = torch.randint(256, (4, 3, 8, 8), dtype=torch.uint8)

    def forward(x):
        return model((x.float() / 255 - mean.view(3, 1, 1)) / spread.view(3, 1, 1))

    with torch.no_grad():
        forward(raw)
    return trained(model, [(raw, torch.tensor([0, 1, 2, 0]))] * STEPS, forward)


@program(dtype=[None, BF16])
@torch.no_grad()
def metrics_of_an_evaluation(dtype):
    model, right, total, losses, table = mlp().eval(), 0, 0, [], torch.zeros(3, 3, dtype=torch.int64)
    for x, y in batches():
        with torch.autocast("cpu", dtype or BF16, enabled=dtype is not None):
            out = model(x)
        losses.append(F.cross_entropy(out.float(), y).item())
        right, total = right + int((out.argmax(1) == y).sum()), total + len(y)
        table += torch.bincount(y * 3 + out.argmax(1), minlength=9).view(3, 3)
    precision = table.diag() / table.sum(0).clamp(min=1)
    recall = table.diag().float() / table.sum(1).clamp(min=1)
    accuracy = (out.argmax(1) == y).float().mean()
    return right / total, float(np.mean(losses)), precision, recall, accuracy, float(out.double().var())


@program
@torch.no_grad()
def sums_in_float64_of_float32_values():
    values = torch.rand(1000)
    mean, spread = values.double().mean(), values.double().std()
    return ((values - float(mean)) / float(spread)).sum(dtype=torch.float64).item(), mean.item()


@program
@torch.no_grad()
def boxes_and_their_overlaps():
    boxes = torch.rand(5, 4) * 50
    boxes[:, 2:] += boxes[:, :2]
    top, low = torch.maximum(boxes[:, None, :2], boxes[:, :2]), torch.minimum(boxes[:, None, 2:], boxes[:, 2:])
    shared = (low - top).clamp(min=0).prod(-1)
    size = (boxes[:, 2:] - boxes[:, :2]).prod(-1)
    grid = torch.stack(torch.meshgrid(torch.arange(4), torch.arange(4), indexing="ij"), -1)
    return shared / (size[:, None] + size - shared), (grid + 0.5) * 8, boxes.round().int()


@program
def a_wrong_dtype_is_tried_and_caught():
    model, x = mlp(), torch.randn(2, 6, dtype=F64)
    try:
        return model(x)
    except RuntimeError:
        return model(x.float())


class Normed(torch.autograd.Function):
    """Fused by hand: it computes in float32 inside, whatever comes."""

    @staticmethod
    def forward(ctx, x, weight):
        scale = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6)
        ctx.save_for_backward(x, weight, scale)
        return (x.float() * scale).to(x.dtype) * weight.to(x.dtype)

    @staticmethod
    def backward(ctx, grad):
        x, weight, scale = ctx.saved_tensors
        normed, grad = x.float() * scale, grad.float()
        inner = grad * weight
        back = scale * (inner - normed * (inner * normed).mean(-1, keepdim=True))
        return back.to(x.dtype), (grad * normed).flatten(0, -2).sum(0).to(weight.dtype)


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return -0.5 * grad


@program(dtype=[None, BF16, F16])
def functions_that_take_any_dtype(dtype):
    first, weight, last = nn.Linear(6, 8), nn.Parameter(torch.ones(8)), nn.Linear(8, 3)
    model = nn.ParameterList([*first.parameters(), weight, *last.parameters()])
    return trained(model, batches(), lambda x: last(Reversed.apply(Normed.apply(first(x), weight))), dtype)


@program
def a_whole_program_in_float64():
    torch.set_default_dtype(F64)
    try:
        model = nn.Linear(6, 3)
        return trained(model, ((x.double(), y) for x, y in batches()))
    finally:
        torch.set_default_dtype(F32)


@program
@torch.no_grad()
def a_sampler_that_keeps_its_state_in_float32():
    model, x = nn.Linear(6, 6).to(BF16), torch.randn(4, 6)
    for _ in range(STEPS):
        x = 0.9 * x - 0.1 * model(x.to(BF16))
    return x.clamp(-1, 1).numpy().tolist()


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


@program
@torch.no_grad()
def outputs_are_summed_in_float32():
    model, total = mlp(BF16).eval(), torch.zeros(3)
    for x, _ in batches(BF16):
        total = total + model(x).mean(0)
    return total / STEPS


@program
def a_float32_checkpoint_in_a_bfloat16_model_for_inference():
    model = mlp(BF16).eval()
    model.load_state_dict(mlp().state_dict())
    return [model(x) for x, _ in batches(BF16)]


# ---------------------------------------------------------------- each runs bare and in an audit


def silent(report):
    """Nothing is worse than an information, and nothing went wrong in the audit itself."""
    __tracebackhide__ = True
    assert report.faults == []
    assert [finding for finding in report.findings if finding.severity != "info"] == []
    assert report.to_dict()["operations"] > 0


def unwatched(*models_and_so_on, **options):
    return contextlib.nullcontext()


def twice(run):
    """`run` bare, then in an audit, from the same seed: the same results and random numbers, bit for bit."""
    __tracebackhide__ = True
    torch.manual_seed(0)
    bare = plain(run()), torch.get_rng_state()
    torch.manual_seed(0)
    with dtypeguard.audit() as report:
        made = run()
        state = torch.get_rng_state()
    same(bare, (plain(made), state))
    silent(report)


@pytest.mark.thin(3)
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # loaders with workers, beside threads of torch
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
    same(plain(bare), plain(made))
    silent(report)


def test_there_are_programs_of_many_kinds():
    assert len(PROGRAMS) >= 70


# ---------------------------------------------------------------- the programs that a watch is silent about


def borrowed(module):
    """The programs of another file's tests, with their parameters; `watch` is the first one of each program."""
    for name, test in vars(module).items():
        inner = inspect.getclosurevars(test).nonlocals if inspect.isfunction(test) else {}
        if name.startswith("test_") and "program" in inner and quick(test) is not None:
            yield name, test, inner["program"]


def quick(test):
    """The marks of a test, without the parameters that are slow even by themselves; None where all are."""
    kept = []
    for mark in getattr(test, "pytestmark", ()):
        if mark.name == "slow":
            return None
        if mark.name == "parametrize":
            values = [value for value in mark.args[1] if not is_slow(value)]
            mark = pytest.mark.parametrize(mark.args[0], values, **kept_ids(mark, values)).mark
        kept.append(mark)
    return kept


def is_slow(value):
    return any(mark.name == "slow" for mark in getattr(value, "marks", ()))


def kept_ids(mark, values):
    ids = mark.kwargs.get("ids")
    if isinstance(ids, list):
        ids = [name for name, value in zip(ids, mark.args[1], strict=True) if value in values]
    return {"ids": ids}


def again(test, run, marks):
    """A test of the same parameters and marks, where they are quick."""

    def audited(**parameters):
        __tracebackhide__ = True
        run(**parameters)

    audited.pytestmark, audited.__signature__ = [*(quick(test) or ()), slow, *marks], inspect.signature(test)
    return audited


def around(program, **parameters):
    """In an audit that is told nothing, and sees the model, the optimizer and the scaler being made."""
    __tracebackhide__ = True
    twice(lambda: program(unwatched, **parameters))


def handed(program, **parameters):
    """In audits that begin where a watch would, and get what it gets."""
    __tracebackhide__ = True
    reports = []

    @contextlib.contextmanager
    def watch(model, optimizer, scaler=None, **options):
        with dtypeguard.audit(model, optimizer, scaler) as report:
            reports.append(report)
            yield

    torch.manual_seed(0)
    bare = plain(program(unwatched, **parameters)), torch.get_rng_state()
    torch.manual_seed(0)
    same(bare, (plain(program(watch, **parameters)), torch.get_rng_state()))
    assert reports
    for report in reports:
        silent(report)


def borrow(module, namespace, marks=()):
    for name, test, program in borrowed(module):
        for form in (around, handed):
            namespace[f"{name}_{form.__name__}"] = again(test, functools.partial(form, program), marks)


borrow(test_amp_silent, globals())


def right_programs():
    """Of the tables of what must and must not trigger a rule: the second kind."""
    for module in (
        test_amp_rules_autocast,
        test_amp_rules_clipping,
        test_amp_rules_optimizer,
        test_amp_rules_scaler,
        test_amp_rules_updates,
    ):
        for rule, programs in module.HEALTHY.items():
            for name, program in programs.items():
                steps = test_amp_rules_updates.LONG.get(name, 60)
                yield pytest.param(program, steps, id=f"{rule}: {name}", marks=slow)
    for name, row in test_amp_rules_zoo.ZOO.items():
        yield pytest.param(amp_programs.program(row[0], fault=False), 1, id=name)


@pytest.mark.parametrize(("program", "steps"), list(right_programs()))
def test_a_program_that_no_rule_of_training_blames(program, steps):
    alone = amp_programs.run(program, None, steps)
    assert alone.error is None
    with dtypeguard.audit() as report:
        ran = amp_programs.run(program, None, steps)
    assert ran.error is None
    assert amp_programs.same(ran.everything, alone.everything)
    silent(report)
