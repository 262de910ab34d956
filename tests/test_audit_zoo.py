"""Bugs of public projects, each cut down to a program of a few lines that an audit runs as it is.

A comment at the end of a line names the rules that must be found there (`# DG110`), and no other line may be found
fault with. Mended by hand the program is clean. Either way it computes what it computes without an audit.
"""

import inspect
import math
import re
import threading
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import nn
from torch.utils import _pytree as pytree
from versions import need

import dtypeguard

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
MARK = re.compile(r"#((?: DG\d{3})+)( info)?$")
SERIOUS = ("warning", "error")

PROGRAMS = {}


def bug(said=None):
    """Enter a program with what torch says of its fault; None where it says nothing and computes something else."""

    def enter(program):
        PROGRAMS[program.__name__] = program, said
        return program

    return enter


# ---------------------------------------------------------------- how a program is judged


@dataclass
class Run:
    """What a program made, or how it failed, and what an audit found meanwhile."""

    made: Any = None
    error: str | None = None
    report: Any = None
    loud: set[str] = field(default_factory=set)
    quiet: set[str] = field(default_factory=set)


def run(program, fault, audited):
    torch.manual_seed(0)
    np.random.seed(0)
    ran = Run()
    try:
        if not audited:
            ran.made = program(fault)
        else:
            with dtypeguard.audit() as ran.report:
                ran.made = program(fault)
    except Exception as error:
        if audited and ran.report is None:
            raise
        ran.error = f"{type(error).__name__}: {error}"
    finally:
        torch.set_default_dtype(F32)
    for finding in ran.report.findings if audited else ():
        kind = ran.loud if finding.severity in SERIOUS else ran.quiet
        kind.add(f"{finding.rule} {Path(finding.file).name}:{finding.line} {finding.source}")
    return ran


def marked(program):
    """What must be found as a fault, and what as information."""
    loud, quiet = set(), set()
    lines, first = inspect.getsourcelines(program)
    for number, line in enumerate(lines, first):
        mark = MARK.search(line.rstrip())
        for rule in mark[1].split() if mark else ():
            (quiet if mark[2] else loud).add(f"{rule} {Path(__file__).name}:{number} {line.strip()}")
    return loud, quiet


def same(one, other):
    """Bit for bit, dtypes and devices included; NaN is like NaN."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        if one.dtype is not other.dtype or one.shape != other.shape or one.device != other.device:
            return False
        if one.is_meta:
            return True
        return torch.equal(one.isnan(), other.isnan()) and torch.equal(one.nan_to_num(), other.nan_to_num())
    flat, spec = pytree.tree_flatten(one)
    others, like = pytree.tree_flatten(other)
    if spec != like:
        return False
    if isinstance(one, (list, tuple, dict)):
        return all(same(a, b) for a, b in zip(flat, others, strict=True))
    return type(one) is type(other) and one == other


# What PyTorch says itself of two of the programs, the first only once in a process.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Casting complex values to real"),
    pytest.mark.filterwarnings("ignore:`torch.jit.trace` is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.trace_method` is deprecated:DeprecationWarning"),
]


@pytest.mark.thin(4)
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_bug_is_found_where_it_is(name):
    program, said = PROGRAMS[name]
    alone, ran = run(program, True, audited=False), run(program, True, audited=True)
    assert ran.report.faults == []
    assert ran.error == alone.error
    assert same(ran.made, alone.made)
    loud, quiet = marked(program)
    assert loud or quiet
    assert ran.loud == loud
    assert quiet <= ran.quiet
    if said is None:
        assert alone.error is None
        assert not same(alone.made, run(program, False, audited=False).made), "the bug does not show"
    else:
        assert said in (alone.error or "nothing was raised")


@pytest.mark.thin(4)
@pytest.mark.parametrize("name", PROGRAMS)
def test_once_mended_the_program_is_clean(name):
    program, _ = PROGRAMS[name]
    alone, ran = run(program, False, audited=False), run(program, False, audited=True)
    assert alone.error is None
    assert ran.report.faults == []
    assert ran.error is None
    assert ran.loud == set()
    assert same(ran.made, alone.made)


# ---------------------------------------------------------------- what goes into a module


@bug("Input type (c10::Half) and bias type (float) should be the same")
def vae_gets_half_pixels(fault):
    """huggingface/diffusers#7854: the pipeline is in half, its VAE was put back to float32."""

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Conv2d(3, 4, 3)
            self.moments = nn.Conv2d(4, 2, 1)

        def forward(self, pixels):
            hidden = F.silu(self.stem(pixels))  # DG110
            return self.moments(hidden)

    image = torch.rand(1, 3, 5, 5).half()
    return Encoder()(image if fault else image.float())


@bug("Input type (float) and bias type (c10::Half) should be the same")
def detector_in_half_gets_float_images(fault):
    """ultralytics/yolov3#1085: `--half` converts the detector, the loader yields float32."""

    class Detector(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.SiLU())
            self.head = nn.Conv2d(4, 5, 1)

        def forward(self, image):
            features = self.layers(image)  # DG110
            return self.head(features)

    detector = Detector().half().eval()
    images = torch.rand(2, 3, 6, 6)
    with torch.no_grad():
        return detector(images if fault else images.half())


@bug("mat1 and mat2 must have the same dtype, but got Float and Half")
def timestep_embedding_is_float(fault):
    """huggingface/diffusers#234: sines of the timestep are float32 whatever the model is."""

    class Denoiser(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Sequential(nn.Linear(6, 4), nn.SiLU(), nn.Linear(4, 4))
            self.mix = nn.Conv1d(4, 4, 1)

        def forward(self, latents, steps):
            waves = 10000 ** (-torch.arange(3) / 3)
            angles = steps[:, None].float() * waves
            sines = torch.cat([angles.sin(), angles.cos()], -1)
            if not fault:
                sines = sines.to(latents.dtype)
            shift = self.embed(sines)  # DG110
            return self.mix(latents) + shift[..., None]

    return Denoiser().half()(torch.randn(2, 4, 3).half(), torch.tensor([1, 900]))


@bug("mat1 and mat2 must have the same dtype, but got Double and Float")
def counts_are_double(fault):
    """theislab/scarches#195: a float64 matrix of counts goes into a float32 encoder."""

    class Cells(nn.Module):
        def __init__(self):
            super().__init__()
            self.encode = nn.Linear(4, 2)

        def forward(self, counts):
            return self.encode(counts.log1p())  # DG101

    counts = torch.from_numpy(np.random.poisson(2.0, (3, 4)) * 0.5)
    return Cells()(counts if fault else counts.float())


@bug("Expected attn_mask dtype to be bool or float or to match query dtype")
def mask_of_the_other_half_type(fault):
    """Comfy-Org/ComfyUI#8118: one node makes the mask in float16, the model runs in bfloat16."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(3))

        def forward(self, x, bias):
            q, k, v = self.query(x), self.key(x), self.value(x)
            return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)  # DG110

    bias = torch.full((3, 3), -6e4).triu(1).half()
    return Block().bfloat16()(torch.randn(1, 3, 8).bfloat16(), bias if fault else bias.bfloat16())


@bug("mixed dtype (CPU): expect parameter to have scalar type of Float")
def group_norm_in_half_gets_float(fault):
    """Mikubill/sd-webui-controlnet#2147: a hint in float32 meets a converted norm."""
    norm = nn.GroupNorm(2, 4).half()
    hint = torch.randn(1, 4, 3, 3)
    return F.silu(norm(hint if fault else hint.half()))  # DG110


@bug("mat1 and mat2 must have the same dtype, but got Float and Half")
def keywords_of_several_dtypes(fault):
    """yifan123/flow_grpo#147: some keyword arguments of a half transformer are float32, one of them in a dict."""

    class Flow(nn.Module):
        def __init__(self):
            super().__init__()
            self.latent, self.text = nn.Linear(3, 4), nn.Linear(5, 4)
            self.step = nn.Embedding(10, 4)

        def forward(self, *, latents, step, text, pooled):
            context = self.text(text) + self.text(pooled["text"])  # DG110
            return self.latent(latents) + context + self.step(step)

    pooled = {"text": torch.randn(1, 5)}
    return Flow().half()(
        latents=torch.randn(1, 3).half(),
        step=torch.tensor([3]),
        text=torch.randn(1, 5).half(),
        pooled=pooled if fault else {"text": pooled["text"].half()},
    )


@bug()
def padding_mask_is_added(fault):
    """pytorch/pytorch#92554: a padding mask of zeros and ones in float is added to the scores."""
    attention = nn.MultiheadAttention(4, 2, batch_first=True)
    x, padding = torch.randn(2, 3, 4), torch.tensor([[0.0, 0.0, 1.0], [0.0, 1.0, 1.0]])
    if not fault:
        padding = padding.bool()
    return attention(x, x, x, key_padding_mask=padding)  # DG111


@bug("mat1 and mat2 must have the same dtype, but got Double and Float")
def actions_are_double(fault):
    """DLR-RM/stable-baselines3#1145: actions of the replay buffer are float64, and turn the critic's input so."""

    class Critic(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1))

        def forward(self, observation, action):
            both = torch.cat([observation, action], 1)  # DG101
            return self.body(both)  # DG101

    actions = np.random.uniform(-1, 1, size=(4, 2))
    return Critic()(torch.randn(4, 3), torch.as_tensor(actions, dtype=None if fault else F32))


@bug("Input type (double) and bias type (float) should be the same")
def image_divided_in_numpy(fault):
    """An image of uint8 divided by 255 in NumPy is float64."""
    image = np.random.randint(0, 256, (6, 6, 3), dtype=np.uint8) / 255
    pixels = torch.from_numpy(image if fault else image.astype(np.float32)).permute(2, 0, 1)
    return nn.Conv2d(3, 2, 3)(pixels[None])  # DG101


@bug("Input type (unsigned char) and bias type (float) should be the same")
def bytes_go_into_a_convolution(fault):
    """An image is given to a network as it was read."""

    class Classifier(nn.Module):
        def __init__(self):
            super().__init__()
            self.features = nn.Conv2d(3, 4, 3)

        def forward(self, image):
            return self.features(image).relu().mean((2, 3))  # DG110

    image = torch.randint(0, 256, (1, 3, 5, 5), dtype=torch.uint8)
    return Classifier()(image if fault else image.float() / 255)


@bug("Expected tensor for argument #1 'indices' to have one of the following scalar types: Long, Int")
def timestep_in_float_looked_up(fault):
    """A timestep that went through arithmetic in float is used as an index of an embedding."""

    class Steps(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(50, 4)

        def forward(self, step):
            return self.table(step)  # DG110

    step = torch.tensor([10, 20]) / 2
    return Steps()(step if fault else step.long())


@bug("Expected attn_mask dtype to be bool or float or to match query dtype")
def tokenizer_mask_goes_into_attention(fault):
    """A tokenizer's attention mask is int64."""
    x = torch.randn(1, 2, 3, 4)
    mask = torch.tensor([[[[1, 1, 0]]]])
    return F.scaled_dot_product_attention(x, x, x, attn_mask=mask if fault else mask.bool())  # DG110


@bug()
def tokenizer_mask_is_added(fault):
    """A tokenizer's mask of zeros and ones is added to the scores, and masks nothing."""
    scores, mask = torch.randn(1, 3, 3), torch.tensor([[[1, 1, 0]]])
    if not fault:
        return scores.masked_fill(mask == 0, -math.inf).softmax(-1)
    scores = scores + mask  # DG111
    return scores.softmax(-1)


@bug("expected m1 and m2 to have the same dtype")
def adapter_in_float(fault):
    """An adapter is float32 on a bfloat16 model."""

    class Adapted(nn.Module):
        def __init__(self, base):
            super().__init__()
            self.base = base
            self.down, self.up = nn.Linear(4, 2, bias=False), nn.Linear(2, 4, bias=False)

        def forward(self, x):
            hidden = self.base(x)
            if not fault:
                return hidden + self.up(self.down(x.float())).to(hidden.dtype)
            return hidden + self.up(self.down(x))  # DG110

    return Adapted(nn.Linear(4, 4).bfloat16())(torch.randn(2, 4).bfloat16())


@bug("Expected query, key, and value to have the same dtype")
def cache_in_float(fault):
    """TransformerLensOrg/TransformerLens#1260: a cache in float32; concatenation promotes, attention refuses."""

    class Cached(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Linear(4, 12)
            self.keys = self.values = torch.zeros(1, 1, 4, dtype=F32 if fault else BF16)

        def forward(self, x):
            q, k, v = self.qkv(x).chunk(3, -1)
            self.keys = torch.cat([self.keys, k], 1)  # DG102
            self.values = torch.cat([self.values, v], 1)  # DG102
            return F.scaled_dot_product_attention(q, self.keys, self.values)  # DG110

    model = Cached()
    for layer in model.children():
        layer.bfloat16()
    return model(torch.randn(1, 2, 4).bfloat16())


@bug("index_copy_(): self and source expected to have the same dtype")
def static_cache_in_float(fault):
    """A static cache is allocated in the default dtype and filled by position."""
    keys = nn.Linear(4, 4).half()
    cache = torch.zeros(1, 6, 4, dtype=None if fault else F16)
    new = keys(torch.randn(1, 2, 4).half())
    return cache.index_copy_(1, torch.tensor([0, 1]), new)  # DG110


@bug("expected scalar type")
def softmax_in_float_times_half_values(fault):
    """Probabilities are computed in float32, as they should be, and not cast back."""

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Linear(4, 12)

        def forward(self, x):
            q, k, v = self.qkv(x).chunk(3, -1)
            weights = (q @ k.transpose(1, 2)).softmax(-1, dtype=F32)
            return (weights if fault else weights.to(v.dtype)) @ v  # DG110

    return Attention().bfloat16()(torch.randn(1, 3, 4).bfloat16())


@bug("mat1 and mat2 must have the same dtype, but got Float and Half")
def norm_that_stays_in_float(fault):
    """A norm's weight is kept in float32 on purpose, and its output is not cast back."""

    class RMSNorm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, x):
            wide = x.float()
            wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
            if not fault:
                return (self.weight * wide).to(x.dtype)
            return self.weight * wide.to(x.dtype)  # DG102

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.out = RMSNorm(), nn.Linear(4, 2).half()

        def forward(self, x):
            return self.out(self.norm(x))  # DG110

    return Block()(torch.randn(2, 4).half())


@bug("expected scalar type Half but found Float")
def sampling_grid_in_float(fault):
    """Deformable attention samples half features at float32 locations."""
    features = nn.Conv2d(3, 2, 1).half()(torch.rand(1, 3, 4, 4).half())
    grid = F.affine_grid(torch.eye(2, 3)[None], [1, 2, 2, 2], align_corners=False)
    return F.grid_sample(features, grid if fault else grid.half(), align_corners=False)  # DG110


@bug("quantile() input tensor must be either float or double dtype")
def threshold_of_half(fault):
    """ml-research/ledits_pp#3: a threshold is a quantile, and there is none of half values."""
    sample = torch.randn(2, 6).half()
    limit = torch.quantile((sample if fault else sample.float()).abs(), 0.9, dim=1)  # DG110
    return sample.float() / limit[:, None]


@bug("Low precision dtypes not supported. Got Half")
def inverse_of_half(fault):
    """A pose in half is inverted."""
    pose = torch.eye(3).half()
    return torch.linalg.inv(pose if fault else pose.float())  # DG110


@bug("view_as_complex")
def rotation_of_bfloat16(fault):
    """Rotary embeddings as complex numbers: there are none of bfloat16."""
    x = torch.randn(3, 4).bfloat16()
    pairs = (x if fault else x.float()).reshape(3, 2, 2)
    turned = torch.view_as_complex(pairs) * torch.polar(torch.ones(3, 2), torch.rand(3, 2))  # DG110
    return torch.view_as_real(turned).flatten(1).to(x.dtype)


@bug("Unsupported dtype")
def spectrum_of_bfloat16(fault):
    """A layer that mixes by Fourier transform, converted to bfloat16."""
    x = nn.Linear(4, 4).bfloat16()(torch.randn(2, 4).bfloat16())
    return torch.fft.rfft(x if fault else x.float()).abs()  # DG110


@bug("Input type (short int) and bias type (float) should be the same")
def sound_in_int16(fault):
    """A wave file's samples are int16."""
    samples = torch.from_numpy((np.sin(np.arange(16)) * 20000).astype(np.int16))[None, None]
    return nn.Conv1d(1, 2, 3)(samples if fault else samples / 32768)  # DG110


@bug("must have the same dtype")
def batch_norm_folded_in_float(fault):
    """A head that was added after the body was converted."""
    body = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).bfloat16()
    head = nn.Linear(4, 2, dtype=F32 if fault else BF16)
    model = nn.Sequential(body, head)
    return model(torch.randn(2, 4).bfloat16())  # DG110


@bug("expected m1 and m2 to have the same dtype")
def adjacency_of_scipy(fault):
    """A normalised adjacency matrix of SciPy is float64."""
    degree = np.array([1.0, 2.0, 2.0])
    adjacency = torch.from_numpy(np.eye(3) / degree[:, None])
    features = nn.Linear(2, 4)(torch.randn(3, 2))
    return (adjacency if fault else adjacency.float()) @ features  # DG101


@bug("mat1 and mat2 must have the same dtype, but got Double and Float")
def recurrent_state_of_numpy(fault):
    """The hidden state of a recurrent policy is kept in NumPy between steps."""
    memory = np.zeros((1, 2, 4))
    hidden = torch.from_numpy(memory if fault else memory.astype(np.float32))
    return nn.GRU(3, 4)(torch.randn(5, 2, 3), hidden)[0].detach()  # DG101


@bug("Expected tensor for argument #1 'indices' to have one of the following scalar types: Long, Int")
def tokens_in_int16(fault):
    """Token ids are stored in int16 to save space."""
    tokens = torch.from_numpy(np.array([[1, 3, 2]], dtype=np.int16))
    return nn.Embedding(5, 2)(tokens if fault else tokens.long()).detach()  # DG110


@bug("expected scalar type Half but found Float")
def routing_in_float(fault):
    """Weights of a router are computed in float32, and contracted with half outputs of experts."""
    experts, scores = torch.randn(2, 4, 3).half(), torch.randn(4, 2)
    weights = scores.softmax(-1)
    return torch.einsum("etd,te->td", experts, weights if fault else weights.half())  # DG110


@bug("expected m1 and m2 to have the same dtype, but got: float != signed char")
def quantised_weight_is_used_directly(fault):
    """An int8 weight goes into `F.linear` without its scale."""
    weight, scale = torch.randint(-127, 127, (2, 3), dtype=torch.int8), torch.rand(2, 1)
    return F.linear(torch.randn(4, 3), weight if fault else weight * scale)  # DG110


@bug("mat1 and mat2 must have the same dtype, but got Half and Float")
def layers_in_a_plain_list(fault):
    """Layers in a list instead of a ModuleList are not converted with their module."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(3, 4)
            layers = [nn.Linear(4, 4), nn.Linear(4, 2)]
            self.layers = layers if fault else nn.ModuleList(layers)

        def forward(self, x):
            x = self.first(x)
            for layer in self.layers:
                x = layer(x)  # DG110
            return x

    return Net().half()(torch.randn(2, 3).half()).detach()


@bug("where expected condition to be a boolean tensor")
def condition_is_float(fault):
    """A mask that was averaged and rounded is a float."""
    mask = torch.tensor([0.2, 0.9]).round()
    return torch.where(mask if fault else mask.bool(), 1.0, 2.0)  # DG110


# ---------------------------------------------------------------- losses


@bug("Found dtype Double but expected Float")
def huber_target_is_double(fault):
    """callummcdougall/ARENA_3.0#203: rewards from NumPy; the loss is computed, its backward fails."""

    def td_loss(value, target):
        return F.huber_loss(value, target)  # DG101

    rewards = torch.from_numpy(np.array([1.0, 0.0, 0.5]))
    network = nn.Linear(2, 1)
    value = network(torch.randn(3, 2)).squeeze(1)
    loss = td_loss(value, rewards if fault else rewards.float())
    loss.backward()  # DG101
    return loss.detach()


@bug()
def squared_error_of_double(fault):
    """pytorch/pytorch#36553: a float64 target makes the loss float64, and computes it so."""
    need("torch", "2.13", "mse_loss has no gradient for two dtypes")
    target = torch.from_numpy(np.random.normal(size=(5, 1)))
    prediction = nn.Linear(2, 1)(torch.randn(5, 2))
    loss = F.mse_loss(prediction, target if fault else target.float())  # DG101
    loss.backward()
    return loss.detach()


@bug()
def matching_cost_overflows(fault):
    """huggingface/transformers#25938: terms of each pixel are summed in half."""

    def cost(logits, labels):
        pixels = F.binary_cross_entropy_with_logits(logits, labels, reduction="none")
        return pixels.sum(-1)  # DG105

    logits = (torch.randn(2, 80_000) - 3).half()
    labels = torch.ones_like(logits)
    return cost(logits, labels) if fault else cost(logits.float(), labels.float())


@bug()
def smooth_target_is_double(fault):
    """A replay buffer in NumPy keeps rewards as Python floats."""
    rewards = np.array([0.5, 1.0, -1.0])
    value = nn.Linear(2, 1)(torch.randn(3, 2)).squeeze(1)
    target = torch.tensor(rewards) + 0.99 * torch.rand(3)  # DG101
    loss = F.smooth_l1_loss(value, target if fault else target.float())  # DG101
    loss.backward()
    return loss.detach()


@bug()
def advantages_are_double(fault):
    """Advantages normalised in NumPy make the whole PPO loss float64."""
    advantages = np.random.normal(size=6)
    advantages = (advantages - advantages.mean()) / advantages.std()
    advantages = torch.from_numpy(advantages if fault else advantages.astype("float32"))
    ratio = (nn.Linear(2, 1)(torch.randn(6, 2)).squeeze(1) - 0.1).exp()
    loss = -torch.min(
        ratio * advantages,  # DG101
        ratio.clamp(0.8, 1.2) * advantages,  # DG101
    ).mean()
    loss.backward()
    return loss.detach()


@bug("expected scalar type Float but found Double")
def class_weights_are_double(fault):
    """deepset-ai/FARM#758: class weights of scikit-learn are float64."""
    counts = np.array([5, 3, 2])
    weight = torch.from_numpy(counts.sum() / (len(counts) * counts))
    criterion = nn.CrossEntropyLoss(weight=weight if fault else weight.float())
    return criterion(torch.randn(4, 3), torch.tensor([0, 1, 2, 0]))  # DG101


@bug("expected target dtype to be Long or Byte, but got Int")
def labels_are_int32(fault):
    """Labels of NumPy on Windows, or of a dataframe, are int32."""
    need("torch", "2.13", "its refusal has other words")
    labels = torch.from_numpy(np.array([0, 2, 1], dtype=np.int32))
    return F.cross_entropy(torch.randn(3, 3), labels if fault else labels.long())  # DG110


@bug("expected target dtype to be Long or Byte, but got Float")
def labels_are_float(fault):
    """Class numbers that came from a table of floats."""
    need("torch", "2.13", "its refusal has other words")
    labels = torch.tensor([[0.2, 1.0], [0.1, 2.0]])[:, 1]
    return F.cross_entropy(torch.randn(2, 3), labels if fault else labels.long())  # DG110


@bug("result type Float can't be cast to the desired output type Long")
def binary_labels_are_integers(fault):
    """skorch-dev/skorch#813: binary cross entropy takes probabilities as targets, and gets class numbers."""
    logits = nn.Linear(2, 1)(torch.randn(3, 2)).squeeze(1)
    labels = torch.tensor([0, 1, 1])
    loss = F.binary_cross_entropy_with_logits(logits, labels if fault else labels.float())  # DG110
    return loss.detach()


@bug()
def labels_collated_as_double(fault):
    """pytorch/pytorch#69446: `default_collate` makes float64 of Python floats."""
    samples = [(torch.randn(2), 0.5), (torch.randn(2), 1.5)]
    loader = torch.utils.data.DataLoader(samples, batch_size=2)
    network, losses = nn.Linear(2, 1), []
    for x, y in loader:
        error = network(x).squeeze(1) - (y if fault else y.float())  # DG101
        losses.append(error.square().mean())
    return losses[0].detach()


@bug()
def targets_scaled_in_numpy(fault):
    """The scale of a StandardScaler is float64; predictions multiplied by it are too."""
    scale, mean = np.array([2.0, 3.0]), np.array([0.5, 0.1])
    if not fault:
        scale, mean = scale.astype(np.float32), mean.astype(np.float32)
    prediction = nn.Linear(3, 2)(torch.randn(4, 3))
    return (prediction * torch.from_numpy(scale) + torch.from_numpy(mean)).detach()  # DG101


@bug()
def norm_overflows(fault):
    """A squared norm of half activations is infinite from 256 on."""
    x = torch.full((4, 8), 200.0).half()
    x = x if fault else x.float()
    return x / x.square().sum(-1, keepdim=True).sqrt()  # DG105


@bug()
def variance_overflows(fault):
    """The variance of an RMS norm is computed in half."""

    class Norm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, x):
            wide = x if fault else x.float()
            variance = wide.pow(2).mean(-1, keepdim=True)  # DG105
            return self.weight * (wide * torch.rsqrt(variance + 1e-6)).to(x.dtype)

    return Norm().half()(torch.tensor([[300.0, -280.0, 10.0, 500.0]]).half()).detach()


@bug()
def feed_forward_overflows(fault):
    """huggingface/transformers#5651: the second layer of a T5 block leaves float16."""
    layer = nn.Linear(64, 2, bias=False)
    nn.init.constant_(layer.weight, 40.0)
    hidden = torch.full((1, 64), 60.0)
    if fault:
        layer, hidden = layer.half(), hidden.half()
    return layer(hidden).detach()  # DG105


@bug()
def scores_overflow(fault):
    """Queries times keys in float16, divided by the square root afterwards."""
    q = torch.full((1, 2, 64), 40.0).half()
    k = q.clone()
    if not fault:
        q = q / 8
    scores = q @ k.transpose(1, 2)  # DG105
    return (scores / 8 if fault else scores).softmax(-1)


@bug()
def running_sum_overflows(fault):
    """A cumulative sum of half values."""
    x = torch.full((100,), 1000.0).half()
    return (x if fault else x.float()).cumsum(0)[-1]  # DG105


@bug()
def exponent_overflows(fault):
    """A width predicted as a logarithm, `exp` of 12 and more is infinite in half."""
    raw = torch.tensor([1.0, 12.5]).half()
    return (raw if fault else raw.float()).exp()  # DG105


@bug()
def dice_overflows(fault):
    """A dice loss sums probabilities of all pixels in half."""
    probabilities, target = torch.full((2, 70_000), 0.97).half(), torch.ones(2, 70_000).half()
    if not fault:
        probabilities, target = probabilities.float(), target.float()
    overlap = (probabilities * target).sum(-1)  # DG105
    total = probabilities.sum(-1) + target.sum(-1)  # DG105
    return 1 - 2 * overlap / total


@bug("gather(): Expected dtype int32/int64 for index")
def actions_are_float(fault):
    """A replay buffer keeps actions beside rewards, in float."""
    actions = torch.tensor([[1.0], [0.0]])
    values = torch.randn(2, 3)
    return values.gather(1, actions if fault else actions.long())  # DG110


@bug()
def epsilon_of_scores_vanishes(fault):
    """lightonai/pylate#239: scores are normalised, equal ones divided by 1e-8, which is 0 in float16."""
    scores = torch.tensor([[0.5, 0.5, 0.5], [0.1, 0.2, 0.4]]).half()
    scores = scores if fault else scores.float()
    least, most = scores.amin(1, keepdim=True), scores.amax(1, keepdim=True)
    return (scores - least) / (most - least + 1e-8)  # DG113


@bug()
def epsilon_of_entropy_vanishes(fault):
    """An entropy in half: 1e-8 is 0 there, its logarithm is infinite, and 0 times that is NaN."""
    p = torch.tensor([0.5, 0.5, 0.0]).half()
    p = p if fault else p.float()
    return -(p * (p + 1e-8).log()).sum()  # DG113


@bug()
def epsilon_of_normalize_vanishes(fault):
    """kornia/kornia#4021: `F.normalize` divides by at least 1e-12, which is 0 in float16."""
    features = torch.zeros(2, 4).half()
    features[0] = 1
    return F.normalize(features if fault else features.float(), dim=-1)  # DG113


# ---------------------------------------------------------------- autocast


@bug("mat1 and mat2 must have the same dtype, but got BFloat16 and Float")
def half_leaves_the_region(fault):
    """shawntan/scattermoe#17: a block that runs itself under autocast gives bfloat16 to a layer outside."""

    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.expert = nn.Linear(4, 4)

        def forward(self, x):
            with torch.autocast("cpu", dtype=BF16):
                return self.expert(x)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.moe, self.out = Experts(), nn.Linear(4, 2)

        def forward(self, x):
            hidden = self.moe(x)
            return self.out(hidden if fault else hidden.float())  # DG201

    return Net()(torch.randn(3, 4)).detach()


@bug("expected m1 and m2 to have the same dtype")
def function_without_custom_fwd(fault):
    """pytorch/pytorch#47906: its backward runs outside of the region, on what forward saved inside."""

    class Project(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight):
            ctx.save_for_backward(x, weight)
            return x.mm(weight)

        @staticmethod
        def backward(ctx, gradient):
            x, weight = ctx.saved_tensors
            return gradient.mm(weight.t()), x.t().mm(gradient)

    if not fault:
        Project.forward = staticmethod(torch.amp.custom_fwd(Project.forward, device_type="cpu", cast_inputs=F32))
        Project.backward = staticmethod(torch.amp.custom_bwd(Project.backward, device_type="cpu"))
    x, weight = torch.randn(2, 3, requires_grad=True), torch.randn(3, 4, requires_grad=True)
    with torch.autocast("cpu", dtype=BF16):
        y = Project.apply(x, weight)  # DG202
    y.float().sum().backward()
    return weight.grad


@bug("Index put requires the source and destination dtypes match")
def canvas_is_float(fault):
    """open-mmlab/mmdetection3d#1842: features of pillars are scattered onto a canvas of zeros."""

    class Scatter(nn.Module):
        def __init__(self):
            super().__init__()
            self.features = nn.Linear(3, 2)

        def forward(self, pillars, cells):
            features = self.features(pillars)
            canvas = torch.zeros(5, 2, dtype=None if fault else features.dtype)
            canvas[cells] = features  # DG203
            return canvas.detach()

    with torch.autocast("cpu", dtype=BF16):
        return Scatter()(torch.randn(2, 3), torch.tensor([4, 1]))


@bug("FlashAttention only support fp16 and bf16 data type")
def kernel_gets_float_under_autocast(fault):
    """meteofrance/py4cast#38: autocast casts for its own operations, not for a kernel of an extension."""

    def flash(q, k, v):
        if q.dtype is F32:
            raise RuntimeError("FlashAttention only support fp16 and bf16 data type")
        return F.scaled_dot_product_attention(q, k, v)

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(4))

        def forward(self, x):
            q = F.normalize(x, dim=-1) * self.scale
            if not fault:
                q, x = q.bfloat16(), x.bfloat16()
            return flash(q, q, x)  # DG205

    with torch.autocast("cpu", dtype=BF16):
        return Attention()(torch.randn(1, 1, 3, 4)).detach()


@bug("scatter(): Expected self.dtype to be equal to src.dtype")
def pooling_by_scatter(fault):
    """pytorch/pytorch#51730: messages are half under autocast, what they are summed into is not."""

    class Pool(nn.Module):
        def __init__(self):
            super().__init__()
            self.message = nn.Linear(2, 2)

        def forward(self, x, index):
            message = self.message(x)
            total = torch.zeros(3, 2) if fault else message.new_zeros(3, 2)
            return total.scatter_add(0, index[:, None].expand(-1, 2), message)  # DG203

    with torch.autocast("cpu", dtype=BF16):
        return Pool()(torch.randn(4, 2), torch.tensor([0, 2, 1, 1])).detach()


@bug("masked_scatter: expected self and source to have same dtypes")
def images_among_tokens(fault):
    """huggingface/transformers#47672: features of a projector take the places of float32 embeddings."""
    tokens, project = nn.Embedding(5, 4), nn.Linear(3, 4)
    ids = torch.tensor([[1, 0, 0, 2]])
    with torch.autocast("cpu", dtype=BF16):
        embeddings, features = tokens(ids), project(torch.randn(2, 3))
        places = (ids == 0)[..., None].expand_as(embeddings)
        return embeddings.masked_scatter(places, features if fault else features.float()).detach()  # DG203


@bug("index_add_(): self (Float) and source (BFloat16) must have the same scalar type")
def experts_add_their_share(fault):
    """Tokens of each expert are added into a tensor of zeros, as Mixtral does."""
    expert, x = nn.Linear(4, 4), torch.randn(5, 4)
    with torch.autocast("cpu", dtype=BF16):
        chosen = torch.tensor([0, 3])
        part = expert(x[chosen])
        out = torch.zeros_like(x) if fault else torch.zeros_like(x, dtype=part.dtype)
        return out.index_add_(0, chosen, part).detach()  # DG203


@bug()
def backward_mixes_in_silence(fault):
    """A custom function under autocast whose backward multiplies what it saved by a half gradient."""

    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight):
            ctx.save_for_backward(x, weight)
            return F.linear(x, weight)

        @staticmethod
        def backward(ctx, gradient):
            x, weight = ctx.saved_tensors
            return (gradient[..., None] * weight).sum(1), (gradient[..., None] * x[:, None]).sum(0)

    if not fault:
        Scale.forward = staticmethod(torch.amp.custom_fwd(Scale.forward, device_type="cpu", cast_inputs=F32))
        Scale.backward = staticmethod(torch.amp.custom_bwd(Scale.backward, device_type="cpu"))
    x, weight = torch.randn(2, 3, requires_grad=True), torch.randn(4, 3, requires_grad=True)
    with torch.autocast("cpu", dtype=BF16):
        y = Scale.apply(x, weight)  # DG202 info
    y.square().sum().backward()
    return weight.grad


@bug("value cannot be converted to type")
def fill_does_not_fit(fault):
    """-1e9 hides a score in float32, and is no float16."""

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.qk = nn.Linear(4, 8)

        def forward(self, x, hidden):
            q, k = self.qk(x).chunk(2, -1)
            scores = q @ k.transpose(1, 2)
            least = -1e9 if fault else torch.finfo(scores.dtype).min
            return scores.masked_fill(hidden, least).softmax(-1)  # DG206

    return Attention().half()(torch.randn(1, 3, 4).half(), torch.ones(3, 3).triu(1).bool()).detach()


@bug("mat1 and mat2 must have the same dtype, but got BFloat16 and Float")
def frozen_encoder_under_autocast(fault):
    """Features of a frozen encoder are computed in a region, the probe is trained outside of it."""
    encoder, probe = nn.Linear(4, 4), nn.Linear(4, 2)
    x = torch.randn(3, 4)
    with torch.no_grad(), torch.autocast("cpu", dtype=BF16):
        features = encoder(x).relu()
    if not fault:
        features = features.float()
    return probe(features).detach()  # DG201


@bug("Input type (CPUBFloat16Type) and weight type (torch.FloatTensor) should be the same")
def region_ends_before_the_decoder(fault):
    """The decoder of an autoencoder was left out of the region to be exact, and gets what the region made."""

    class Autoencoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.encode, self.decode = nn.Conv2d(1, 2, 3), nn.ConvTranspose2d(2, 1, 3)

        def forward(self, x):
            with torch.autocast("cpu", dtype=BF16):
                code = self.encode(x)
            with torch.autocast("cpu", enabled=False):
                return self.decode(code if fault else code.float())  # DG201

    return Autoencoder()(torch.rand(1, 1, 4, 4)).detach()


@bug("Expected both inputs to be Half, Float or Double tensors but got BFloat16 and BFloat16")
def phase_under_autocast(fault):
    """Real and imaginary part come of a layer under autocast, and there are no complex numbers of bfloat16."""
    layer, x = nn.Linear(4, 4), torch.randn(2, 4)
    with torch.autocast("cpu", dtype=BF16):
        real, imaginary = layer(x).chunk(2, -1)
        if not fault:
            real, imaginary = real.float(), imaginary.float()
        return torch.complex(real, imaginary).abs().detach()  # DG203


@bug("expected dtype float for `end` but got dtype c10::BFloat16")
def interpolation_under_autocast(fault):
    """A codebook in float32 is moved towards half encodings: `lerp` is on none of autocast's lists."""
    layer, x, codes = nn.Linear(4, 4), torch.randn(2, 4), torch.zeros(2, 4)
    with torch.autocast("cpu", dtype=BF16), torch.no_grad():
        encoded = layer(x)
        return codes.lerp_(encoded if fault else encoded.float(), 0.1)  # DG203


@bug("Found dtype Float but expected BFloat16")
def half_leaves_for_a_loss(fault):
    """huggingface/diffusers#3713: a loss promotes what a region made, and its backward fails."""
    layer, x, target = nn.Linear(4, 1), torch.randn(3, 4), torch.randn(3, 1)
    with torch.autocast("cpu", dtype=BF16):
        prediction = layer(x)
    loss = F.huber_loss(prediction if fault else prediction.float(), target)
    loss.backward()  # DG201
    return layer.weight.grad


# ---------------------------------------------------------------- promotions, masks, overflow


@bug()
def scale_of_keys_is_float(fault):
    """lucidrains/rotary-embedding-torch#9: a scale that `.to()` does not reach makes keys float32."""

    class Rotary(nn.Module):
        def __init__(self):
            super().__init__()
            scale = torch.linspace(0.5, 1, 4)
            if fault:
                self.scale = scale
            else:
                self.register_buffer("scale", scale)

        def forward(self, q, k):
            return q * self.scale.to(q.dtype), k / self.scale  # DG102

    rotary = Rotary().to(BF16)  # DG503
    return rotary(torch.randn(3, 4).bfloat16(), torch.randn(3, 4).bfloat16())


@bug()
def sigmas_are_double(fault):
    """sgl-project/sglang#29011: a table of NumPy makes half latents float64."""

    class Scheduler:
        def __init__(self):
            sigmas = np.linspace(1, 0, 8)
            self.sigmas = torch.from_numpy(sigmas if fault else sigmas.astype(np.float32))

        def noised(self, latents, noise, step):
            sigma = self.sigmas[step][:, None]
            if not fault:
                sigma = sigma.to(latents.dtype)
            return latents + sigma * noise  # DG101

    return Scheduler().noised(torch.randn(2, 3).half(), torch.randn(2, 3).half(), torch.tensor([1, 4]))


@bug()
def masks_add_up_to_infinity(fault):
    """huggingface/transformers#17306: two masks of finfo.min leave no room, a row that both hide is NaN."""

    def attend(scores, causal, padding):
        return (scores + causal + padding).softmax(-1)  # DG105

    least = torch.finfo(F16).min
    causal = torch.full((3, 3), least).triu(1).half()
    padding = torch.zeros(3, 3).half()
    padding[:, 0] = least
    scores = torch.full((3, 3), -30.0).half()
    if fault:
        return attend(scores, causal, padding)
    return attend(scores.float(), causal.float(), padding.float()).half()


@bug()
def spectrum_into_real_array(fault):
    """MagriLab/KolSol#30: a spectrum is copied into an array of zeros that is not complex."""

    def padded(spectrum, length):
        out = torch.zeros(length, dtype=F32 if fault else torch.complex64)
        out[: len(spectrum)] = spectrum  # DG107
        return out

    return padded(torch.fft.fft(torch.randn(4)), 6)


@bug("expected m1 and m2 to have the same dtype")
def bias_of_alibi_is_float(fault):
    """ALiBi's bias is made in float32 and added to bfloat16 scores, which then do not fit to the values."""

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Linear(4, 12)

        def forward(self, x):
            q, k, v = self.qkv(x[0]).chunk(3, -1)
            distance = torch.arange(len(q)) - torch.arange(len(q))[:, None]
            bias = distance.abs() * -0.5
            scores = q @ k.t() + (bias if fault else bias.to(q.dtype))  # DG102
            return scores.softmax(-1) @ v  # DG110

    return Attention().bfloat16()(torch.randn(1, 3, 4).bfloat16()).detach()


@bug()
def temperature_is_float(fault):
    """A learned temperature is kept in float32, one for each head."""

    class Similarity(nn.Module):
        def __init__(self):
            super().__init__()
            self.temperature = nn.Parameter(torch.full((2, 1, 1), 0.7))

        def forward(self, q, k):
            temperature = self.temperature if fault else self.temperature.to(q.dtype)
            return q @ k.transpose(1, 2) * temperature  # DG102

    return Similarity()(torch.randn(2, 3, 4).half(), torch.randn(2, 3, 4).half()).detach()


@bug()
def noise_is_float(fault):
    """Noise is drawn in the default dtype and added to bfloat16 latents."""
    latents = torch.randn(2, 3).bfloat16()
    noise = torch.randn(2, 3, dtype=None if fault else latents.dtype)
    return latents + noise  # DG102


@bug()
def alphas_are_float(fault):
    """huggingface/diffusers#767: a noise schedule in float32 turns half latents into float32."""
    alphas = torch.linspace(0.9999, 0.98, 10).cumprod(0)
    latents, noise = torch.randn(2, 3).half(), torch.randn(2, 3).half()
    alpha = alphas[torch.tensor([2, 7])][:, None]
    if not fault:
        alpha = alpha.to(latents.dtype)
    clean = alpha.sqrt() * latents  # DG102
    return clean + (1 - alpha).sqrt() * noise  # DG102


@bug()
def class_token_is_float(fault):
    """A token is put before a sequence in another dtype: the whole sequence becomes float32."""
    tokens = torch.randn(2, 3, 4).bfloat16()
    first = torch.zeros(2, 1, 4, dtype=None if fault else BF16)
    return torch.cat([first, tokens], 1)  # DG102


@bug()
def where_takes_float(fault):
    """A filling tensor in float32."""
    x = torch.randn(3, 4).half()
    filling = torch.zeros(3, 4, dtype=None if fault else F16)
    return torch.where(x > 0, x, filling)  # DG102


@bug()
def where_takes_double(fault):
    """Limits from NumPy replace what is out of bounds."""
    x, limit = torch.randn(3), torch.from_numpy(np.array([0.1, 0.2, 0.3]))
    if not fault:
        limit = limit.float()
    return torch.where(x > limit, limit, x)  # DG101


@bug()
def constants_of_numpy(fault):
    """A list of NumPy scalars is float64, a list of Python floats is not."""
    deltas = [np.sqrt(2), np.float64(0.5), np.pi]
    scale = torch.tensor(deltas if fault else [float(delta) for delta in deltas])  # DG112 info
    return torch.randn(2, 3) * scale  # DG101


@bug()
def phases_are_double(fault):
    """A filter of NumPy is complex128, and makes a spectrum of float32 so."""
    phase = np.exp(1j * np.arange(4))
    phase = torch.from_numpy(phase if fault else phase.astype(np.complex64))
    return torch.fft.fft(torch.randn(4)) * phase  # DG101


@bug()
def window_is_double(fault):
    """A window of SciPy is float64, the sound float32."""
    window = torch.from_numpy(np.hanning(8))
    sound = torch.randn(2, 8)
    return torch.fft.rfft(sound * (window if fault else window.float()))  # DG101


@bug()
def mask_of_float_narrowed(fault):
    """A mask of the least float32 is infinite in half, and a row of it is NaN."""
    least = torch.finfo(F32 if fault else F16).min
    mask = torch.full((2, 2), least).half()  # DG105
    mask[1, 0] = 0
    return (torch.randn(2, 2).half() + mask / 2).softmax(-1)


@bug()
def positions_in_half_type(fault):
    """Positions are counted in the dtype of the model."""

    class Rope(nn.Module):
        def __init__(self):
            super().__init__()
            self.frequency = 10000 ** -torch.linspace(0, 1, 4)

        def forward(self, x):
            position = torch.arange(x.shape[1], dtype=x.dtype if fault else F32)  # DG108
            angle = position[:, None] * self.frequency.to(position.dtype)
            return angle.cos().to(x.dtype)  # DG108

    return Rope()(torch.zeros(1, 600, 4).bfloat16())


@bug()
def positions_summed_in_half(fault):
    """Positions are counted from a mask in half: from 2048 on they stand still."""
    mask = torch.ones(1, 3000).half()
    return ((mask if fault else mask.long()).cumsum(-1) - 1).long()  # DG108


@bug()
def tokens_travel_in_half(fault):
    """A batch is converted as a whole, token ids with it."""
    batch = {"ids": torch.tensor([[5, 30001, 30002, 11]]), "scores": torch.rand(1, 4)}
    for key, value in batch.items():
        if fault or value.is_floating_point():
            batch[key] = value.bfloat16()  # DG108
    return nn.Embedding(40000, 2)(batch["ids"].long()).detach()


@bug()
def timesteps_in_bfloat16(fault):
    """Timesteps are given to the model in its own dtype, and neighbours become one."""
    steps = torch.tensor([999, 998, 997, 996])
    frequency = torch.exp(-torch.arange(4.0))
    angles = (steps.to(BF16).float() if fault else steps.float())[:, None] * frequency  # DG108
    return angles.sin()


@bug()
def cast_is_thrown_away(fault):
    """`labels.long()` gives another tensor."""
    weights = torch.rand(3, dtype=F64)
    if fault:
        weights.float()  # DG103
    else:
        weights = weights.float()
    return weights


@bug("expected target dtype to be Long or Byte, but got Int")
def cast_of_labels_is_thrown_away(fault):
    """The conversion that would help is there, and is not kept."""
    need("torch", "2.13", "its refusal has other words")
    labels = torch.tensor([0, 1], dtype=torch.int32)
    if fault:
        labels.long()  # DG103
    else:
        labels = labels.long()
    return F.cross_entropy(torch.randn(2, 3), labels)  # DG110


@bug()
def guidance_is_float(fault):
    """One scale of guidance for each sample, in float32."""
    plain, guided = torch.randn(2, 4).half(), torch.randn(2, 4).half()
    scale = torch.tensor([[7.5], [5.0]], dtype=None if fault else F16)
    return plain + scale * (guided - plain)  # DG102


@bug()
def bound_is_float(fault):
    """`clamp` takes tensors as bounds, and their dtype."""
    x, least = torch.randn(3).bfloat16(), torch.tensor([0.1, 0.2, 0.3])
    return torch.clamp(x, min=least if fault else least.to(x.dtype))  # DG102


@bug()
def losses_are_stacked(fault):
    """One of several losses comes from NumPy; stacked with it all are float64."""
    losses = [torch.rand(2), torch.from_numpy(np.random.rand(2))]
    if not fault:
        losses = [loss.float() for loss in losses]
    return torch.stack(losses).mean(1)  # DG101


@bug()
def complex_noise_is_double(fault):
    """Real noise in float64 makes a spectrum complex128."""
    noise = torch.from_numpy(np.random.randn(4))
    return torch.fft.fft(torch.randn(4)) + (noise if fault else noise.float())  # DG101


# ---------------------------------------------------------------- buffers, attributes, norms


@bug()
def frequencies_are_narrowed(fault):
    """huggingface/transformers#25681: `.to()` converts the frequencies of rotary embeddings."""

    class Rope(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("frequency", 10000 ** (-torch.arange(0, 32, 2) / 32))

        def forward(self, position):
            angle = position[:, None].to(self.frequency.dtype) * self.frequency  # DG108
            return angle.cos()  # DG108

    rope = Rope()
    position = torch.arange(2000)
    if not fault:
        return rope(position).to(BF16)
    return rope.to(BF16)(position)  # DG501


@bug("mixed dtype (CPU): expect parameter to have scalar type of Float")
def table_is_grown_in_float(fault):
    """huggingface/transformers#13665: a table that is too short is made anew, whatever the model was converted to."""

    class Positions(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("table", self.make(2))

        def make(self, length):
            return torch.sin(torch.arange(length)[:, None] * torch.tensor([1.0, 0.1]))

        def forward(self, x):
            if len(self.table) < x.shape[1]:
                table = self.make(x.shape[1])
                self.table = table if fault else table.to(self.table.dtype)  # DG504
            return self.table[: x.shape[1]]

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.positions, self.norm = Positions(), nn.LayerNorm(2)

        def forward(self, x):
            x = x + self.positions(x)  # DG102
            return self.norm(x)  # DG110

    return Model().half()(torch.randn(1, 4, 2).half()).detach()


@bug()
def statistics_in_half(fault):
    """A model with batch norm is trained after `.half()`: its running statistics stand still."""
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).to(BF16 if fault else F32)
    for _ in range(20):
        model((torch.randn(8, 3) + 1).to(BF16 if fault else F32))  # DG502
    return model[1].running_mean.float()


@bug()
def position_buffer_is_narrowed(fault):
    """Positions are a float buffer, and `.to()` makes some of them equal."""

    class Positions(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("places", torch.arange(400, dtype=F32 if fault else torch.int64))

        def forward(self, x):
            return x * torch.cos(self.places * 0.01).to(x.dtype)

    model = Positions().to(BF16)  # DG108
    return model(torch.ones(400).bfloat16())


@bug()
def cosines_are_cached_in_float(fault):
    """A table that is kept as an attribute at the first call, before the model is converted."""

    class Rope(nn.Module):
        def __init__(self):
            super().__init__()
            self.cosines = None

        def forward(self, x):
            if self.cosines is None or (not fault and self.cosines.dtype is not x.dtype):
                self.cosines = torch.arange(x.shape[-1]).cos().to(x.dtype)
            return x * self.cosines  # DG102

    rope = Rope()
    rope(torch.randn(2, 4))
    return rope.half()(torch.randn(2, 4).half())  # DG503


@bug()
def anchors_in_a_list(fault):
    """Anchors are tensors in a list, which `.half()` does not know."""

    class Head(nn.Module):
        def __init__(self):
            super().__init__()
            self.anchors = [torch.tensor([10.0, 13.0]), torch.tensor([30.0, 61.0])]
            self.box = nn.Linear(3, 2)

        def forward(self, x):
            box = self.box(x).sigmoid()
            sizes = [anchor if fault else anchor.to(x.dtype) for anchor in self.anchors]
            return torch.stack([box * size for size in sizes]).detach()  # DG102

    return Head().half()(torch.randn(2, 3).half())  # DG503


@bug()
def codebook_average_in_half(fault):
    """The counts of a codebook are an average in bfloat16, and stop to follow."""

    class Codebook(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.ones(4))

        def forward(self, used):
            self.count.mul_(0.999).add_(used, alpha=0.001)  # DG407
            return self.count

    codebook = Codebook().to(BF16 if fault else F32)
    for _ in range(200):
        count = codebook(torch.full((4,), 1.4).to(codebook.count.dtype))
    return count.float()


@bug()
def schedule_is_narrowed(fault):
    """AUTOMATIC1111/stable-diffusion-webui#14071: cumulated alphas are converted; the first are 1, their noise 0."""

    class Diffusion(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("alphas", torch.linspace(0.9999, 0.98, 50).cumprod(0))

        def forward(self, noise):
            return (1 - self.alphas[:3]).sqrt().to(noise.dtype) * noise

    model, noise = Diffusion(), torch.ones(3).bfloat16()
    return model.to(BF16)(noise) if fault else model(noise)  # DG501 info


@bug()
def mask_buffer_overflows(fault):
    """A mask of -1e9 is a buffer, and infinite after `.half()`: what is hidden in full becomes NaN."""

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mask", torch.full((3, 3), -1e9 if fault else -1e4).triu())

        def forward(self, scores):
            return (scores + self.mask).softmax(-1)

    attention = Attention().half()  # DG105
    return attention(torch.zeros(3, 3).half())


# ---------------------------------------------------------------- devices


@bug("Input and hidden tensors are not at the same device")
def state_stays_on_the_cpu(fault):
    """pytorch/pytorch#10658: the initial state of an LSTM is made on the CPU."""

    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.LSTM(3, 4)

        def forward(self, words):
            device = None if fault else words.device
            state = torch.zeros(1, words.shape[1], 4, device=device), torch.zeros(1, words.shape[1], 4, device=device)
            return self.rnn(words, state)[0]  # DG505

    return Tagger().to("meta")(torch.zeros(2, 1, 3, device="meta"))


@bug("is not on the expected device")
def mask_is_made_on_the_cpu(fault):
    """A causal mask is made where the default is, the scores are elsewhere."""

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.qk = nn.Linear(4, 8)

        def forward(self, x):
            q, k = self.qk(x).chunk(2, -1)
            hidden = torch.ones(x.shape[1], x.shape[1], device="cpu" if fault else x.device).triu(1).bool()
            return (q @ k.transpose(1, 2)).masked_fill(hidden, -math.inf)  # DG505

    return Attention().to("meta")(torch.zeros(1, 3, 4, device="meta"))


@bug("is not on the expected device")
def attribute_stays_on_the_cpu(fault):
    """A mean that is only an attribute does not move with its module."""

    class Normalise(nn.Module):
        def __init__(self):
            super().__init__()
            mean = torch.tensor([0.485, 0.456, 0.406])
            if fault:
                self.mean = mean
            else:
                self.register_buffer("mean", mean)

        def forward(self, x):
            return x - self.mean  # DG505

    model = Normalise().to("meta")  # DG503
    return model(torch.zeros(2, 3, device="meta"))


@bug("is not on the expected device")
def input_stays_on_the_cpu(fault):
    """The model moved, the batch did not."""
    model, batch = nn.Linear(3, 2).to("meta"), torch.randn(2, 3)
    return model(batch if fault else batch.to("meta"))  # DG505


@bug("is not on the expected device")
def weight_of_loss_stays_on_the_cpu(fault):
    """Class weights were given as a tensor, and the loss was never moved."""
    logits, target = torch.zeros(2, 3, device="meta"), torch.zeros(2, 3, device="meta")
    criterion = nn.BCEWithLogitsLoss(pos_weight=torch.ones(3))
    if not fault:
        criterion = criterion.to("meta")
    return criterion(logits, target)  # DG505


@bug("'lengths' argument should be a 1D CPU int64 tensor, but got 1D meta Long tensor")
def lengths_moved_with_the_batch(fault):
    """`pack_padded_sequence` wants its lengths on the CPU."""
    batch = {"x": torch.zeros(3, 2, 4), "lengths": torch.tensor([3, 2])}
    moved = {key: value.to("meta") for key, value in batch.items() if fault or key == "x"}
    lengths = moved.get("lengths", batch["lengths"])
    return nn.utils.rnn.pack_padded_sequence(moved["x"], lengths).data  # DG505


# ---------------------------------------------------------------- integers


@bug("scatter(): Expected dtype int32/int64 for index")
def edges_in_int16(fault):
    """pyg-team/pytorch_geometric#5087: a small graph keeps its edges in int16."""

    class Sum(nn.Module):
        def forward(self, x, edges):
            source, target = edges
            messages = x[source.long()]
            return torch.zeros_like(x).scatter_add(0, target[:, None].expand_as(messages), messages)  # DG110

    edges = torch.tensor([[0, 1], [2, 0]], dtype=torch.int16)
    return Sum()(torch.randn(3, 2), edges if fault else edges.long())


@bug("result type Float can't be cast to the desired output type Long")
def average_over_counters(fault):
    """AI-secure/DBA#1: a share of an update is added to every entry of a state, a batch norm's counter too."""
    server, client = nn.BatchNorm1d(2), nn.BatchNorm1d(2)
    client(torch.randn(4, 2))
    state = server.state_dict()
    for name, value in client.state_dict().items():
        if fault or value.is_floating_point():
            state[name].add_((value - state[name]) * 0.3)  # DG110
    return state


@bug()
def mask_of_bytes_is_inverted(fault):
    """pytorch/pytorch#24180: `~` of a mask in uint8 is 254 and 255."""

    def mean_of_kept(x, hidden):
        kept = ~hidden  # DG109
        return (x * kept).sum() / kept.sum()

    hidden = torch.tensor([1, 0, 1, 0], dtype=torch.uint8)
    return mean_of_kept(torch.tensor([1.0, 2.0, 3.0, 5.0]), hidden if fault else hidden.bool())


@bug()
def images_are_subtracted_in_bytes(fault):
    """The difference of two images in uint8 wraps around."""
    one, other = torch.tensor([10, 200], dtype=torch.uint8), torch.tensor([12, 190], dtype=torch.uint8)
    if not fault:
        one, other = one.float(), other.float()
    return (one - other).float().square().mean()  # DG109


@bug()
def images_are_blended_in_bytes(fault):
    """The sum of two images in uint8 wraps around before it is halved."""
    one, other = torch.tensor([200, 100], dtype=torch.uint8), torch.tensor([100, 90], dtype=torch.uint8)
    if not fault:
        one, other = one.int(), other.int()
    return ((one + other) // 2).byte()  # DG109


@bug()
def image_is_saved_without_clamp(fault):
    """A picture that leaves 0 to 1 a little is written as bytes: white becomes black."""
    picture = torch.tensor([-0.02, 0.5, 1.01]) * 255
    return (picture if fault else picture.clamp(0, 255)).to(torch.uint8)  # DG109


@bug()
def scores_into_integers(fault):
    """`zeros_like` of token ids is an integer tensor, and scores are written into it."""
    tokens, scores = torch.tensor([[3, 5, 9]]), torch.rand(1, 3)
    kept = torch.zeros_like(tokens, dtype=None if fault else F32)
    kept[:, :3] = scores  # DG106
    return kept


@bug()
def smoothing_of_integers(fault):
    """Label smoothing writes 0.9 into an integer tensor."""
    labels = torch.zeros(3, dtype=torch.int64 if fault else F32)
    labels[1] = 0.9  # DG106
    return labels


@bug()
def integers_filled_with_a_fraction(fault):
    """`full_like` and `masked_fill` take the dtype of what they get."""
    counts = torch.tensor([0, 2, 0])
    counts = counts if fault else counts.float()
    return counts.masked_fill(counts == 0, 0.5)  # DG106


@bug("Index put requires the source and destination dtypes match")
def full_infers_integers(fault):
    """`torch.full` of 0 is int64 since 1.7."""
    out = torch.full((4,), 0 if fault else 0.0)
    out[torch.tensor([True, False, True, False])] = torch.rand(2)  # DG110
    return out


@bug("Subtraction, the `-` operator, with a bool tensor is not supported")
def mask_is_subtracted_from_one(fault):
    """`1 - mask`, from the time when masks were uint8."""
    mask = torch.tensor([1.0, -1.0]) > 0
    return 1 - (mask if fault else mask.int())  # DG110


@bug("mean(): could not infer output dtype")
def accuracy_is_a_mean_of_bools(fault):
    """The mean of a comparison."""
    right = torch.tensor([1, 2, 3]) == torch.tensor([1, 0, 3])
    return (right if fault else right.float()).mean()  # DG110


@bug("one_hot is only applicable to index tensor of type LongTensor")
def one_hot_of_int32(fault):
    """`one_hot` knows int64 alone."""
    labels = torch.tensor([0, 2], dtype=torch.int32)
    return F.one_hot(labels if fault else labels.long(), 3)  # DG110


@bug("tensors used as indices must be long, int, byte or bool tensors")
def places_are_float(fault):
    """Places computed by division are used as indices."""
    flat = torch.tensor([5, 7])
    rows = flat / 3
    return torch.arange(4)[rows if fault else flat // 3]  # DG110


@bug("masked_fill_ only supports boolean masks, but got mask with dtype long int")
def mask_is_integer(fault):
    """A tokenizer's mask, and an operation that takes bool masks only."""
    mask = torch.tensor([1, 0])
    return torch.randn(2).masked_fill(mask if fault else mask.bool(), 0)  # DG110


@bug("Only Tensors of floating point and complex dtype can require gradients")
def parameter_of_integers(fault):
    """`torch.tensor(1)` is no parameter, `torch.tensor(1.0)` is."""
    return nn.Parameter(torch.tensor([1, 2]) if fault else torch.tensor([1.0, 2.0])).detach()  # DG110


@bug("result type Float can't be cast to the desired output type Long")
def image_is_divided_in_place(fault):
    """An integer image is divided in place."""
    image = torch.tensor([10, 20])
    if not fault:
        image = image.float()
    image /= 255  # DG110
    return image


@bug("not implemented for 'Float'")
def counts_of_float_classes(fault):
    """`bincount` counts integers."""
    classes = torch.tensor([1.0, 2.0, 1.0])
    return torch.bincount(classes if fault else classes.long())  # DG110


@bug("not implemented for 'Long'")
def labels_are_resized(fault):
    """A map of labels is resized as it is."""
    labels = torch.tensor([[[[0, 1], [2, 1]]]])
    return F.interpolate(labels if fault else labels.float(), scale_factor=2.0)  # DG110


@bug("not implemented for 'UInt16'")
def depth_in_uint16(fault):
    """A depth image is uint16, for which PyTorch has few operations."""
    depth = torch.from_numpy(np.array([900, 40000], dtype=np.uint16))
    return (depth if fault else depth.int()) > 1000  # DG110


@bug()
def ignored_labels_in_bytes(fault):
    """Labels to ignore are -1, and 255 in uint8."""
    labels = torch.tensor([3, -1, 2])
    small = labels.to(torch.uint8 if fault else torch.int16)  # DG109
    return small.long() == -1


@bug()
def sound_is_saved_without_clamp(fault):
    """Sound from -1 to 1 times 32768 is written as int16: the loudest sample changes its sign."""
    sound = torch.tensor([0.5, 1.0, -1.0]) * 32768
    return (sound if fault else sound.clamp(-32768, 32767)).to(torch.int16)  # DG109


@bug()
def quantised_without_clamp(fault):
    """Weights divided by a scale that is too small leave int8."""
    levels = (torch.tensor([0.5, -1.3, 1.2]) / 0.008).round()
    return (levels if fault else levels.clamp(-128, 127)).to(torch.int8)  # DG109


@bug()
def timestamps_in_int32(fault):
    """Milliseconds since 1970 do not fit into int32."""
    milliseconds = torch.tensor([1_700_000_000_000, 1_700_000_001_000])
    return milliseconds.int() if fault else milliseconds - milliseconds[0]  # DG109 info


# ---------------------------------------------------------------- checkpoints, default dtype


@bug()
def half_checkpoint_in_float_model(fault):
    """huggingface/transformers#24976: a checkpoint in bfloat16 takes twice its size in a model of the default dtype."""
    state = nn.Linear(3, 2).bfloat16().state_dict()
    model = nn.Linear(3, 2)
    if not fault:
        model = model.to(state["weight"].dtype)
    model.load_state_dict(state)  # DG601 info
    return model.state_dict()


@bug()
def integer_buffer_truncates(fault):
    """pytorch/pytorch#126000: a buffer made of `torch.tensor(1)` is int64; what is loaded loses its fraction."""

    class Observer(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("largest", torch.tensor(1 if fault else 1.0))

    observer = Observer()
    observer.load_state_dict({"largest": torch.tensor(2.75)})  # DG603
    return observer.largest.double()


@bug("mat1 and mat2 must have the same dtype, but got Double and Float")
def library_sets_the_default(fault):
    """ACEsuit/mace#328: a library leaves the default dtype at float64, and the next model fails."""

    def calculator():
        torch.set_default_dtype(F64)  # DG602
        energy = torch.linspace(0, 1, 3).sum()
        if not fault:
            torch.set_default_dtype(F32)
        return float(energy)

    class Potential(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 1)

        def forward(self, charge):
            radius = torch.linspace(0, 1, 3)
            return self.layer(charge[:, None] * radius)  # DG101

    model = Potential()
    calculator()
    return model(torch.tensor([1.0, 2.0])).detach()


@bug("expected m1 and m2 to have the same dtype")
def half_default_is_left_behind(fault):
    """A loader that builds models in half forgets to set the default dtype back when it fails."""

    def load(name):
        before = torch.get_default_dtype()
        torch.set_default_dtype(F16)  # DG602
        try:
            raise FileNotFoundError(name)
        except FileNotFoundError:
            if not fault:
                torch.set_default_dtype(before)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3, 2))

        def forward(self, x):
            return x @ self.weight  # DG110

    data = torch.randn(2, 3)
    load("missing.bin")
    return Net()(data).detach()


@bug()
def default_leaks_into_results(fault):
    """A notebook cell set float64 for one experiment; the next one computes in it without a word."""
    x = torch.randn(2, 3)
    torch.set_default_dtype(F64)  # DG602
    reference = torch.ones(3).sum()
    if not fault:
        torch.set_default_dtype(F32)
    weight = torch.rand(3)
    return x * weight, reference.item()  # DG101


@bug()
def float_checkpoint_in_half_model(fault):
    """A checkpoint in float32 is loaded into a model that was built in bfloat16."""
    state = nn.Linear(3, 2).state_dict()
    model = nn.Linear(3, 2, dtype=BF16 if fault else F32)
    model.load_state_dict(state)  # DG601 info
    return {name: value.float() for name, value in model.state_dict().items()}


@bug("mat1 and mat2 must have the same dtype, but got BFloat16 and Float")
def part_of_a_checkpoint_is_assigned(fault):
    """`assign=True` takes the dtypes of the file, which holds a part of the model."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    state = nn.Sequential(nn.Linear(3, 3)).bfloat16().state_dict()
    model.load_state_dict(state, strict=False, assign=fault)
    x = torch.randn(2, 3)
    return model(x.bfloat16() if fault else x).dtype  # DG110


@bug()
def counter_starts_as_an_integer(fault):
    """A running loss starts as `torch.tensor(0)`, a checkpoint of it is a fraction, and so it stays whole."""

    class Meter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("total", torch.tensor([0, 0] if fault else [0.0, 0.0]))

    meter = Meter()
    with torch.no_grad():
        meter.total.copy_(torch.tensor([0.25, 3.5]))  # DG106
    return meter.total.double()


@bug()
def checkpoint_overflows(fault):
    """A checkpoint holds values that float16 does not."""
    state = {"weight": torch.tensor([[7e4, 1.0]]), "bias": torch.zeros(1)}
    model = nn.Linear(2, 1, dtype=F16 if fault else F32)
    model.load_state_dict(state)  # DG601
    return model.state_dict()


@bug()
def state_of_the_optimizer_is_narrowed(fault):
    """pytorch/pytorch#43706: `Optimizer.load_state_dict` casts the state to the dtype of the parameters."""

    def trained(dtype):
        model = nn.Linear(3, 1, dtype=dtype)
        optimizer = torch.optim.Adam(model.parameters(), eps=1e-4)
        model(torch.randn(4, 3, dtype=dtype)).sum().backward()
        optimizer.step()
        return optimizer

    state = trained(F32).state_dict()
    optimizer = trained(BF16 if fault else F32)
    optimizer.load_state_dict(state)  # DG601 info
    return [{key: value.float() for key, value in row.items()} for row in optimizer.state_dict()["state"].values()]


# ---------------------------------------------------------------- scalers


def batches(count, rows=4):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(rows, 3, generator=generator) for _ in range(count)]


@bug("Attempting to unscale FP16 gradients.")
def scaler_with_half_parameters(fault):
    """haotian-liu/LLaVA#363: a model that was loaded in float16 is trained with a scaler."""
    model = nn.Linear(3, 1, dtype=F16 if fault else F32)
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu")
    for x in batches(2):
        with torch.autocast("cpu", dtype=F16):
            loss = model(x).float().square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)  # DG301
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return model.state_dict()


@bug()
def clipped_while_scaled(fault):
    """Lightning-AI/pytorch-lightning#9330: gradients are clipped before they are unscaled; the model stands still."""
    model = nn.Linear(3, 1, bias=False)
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=1.0), torch.amp.GradScaler("cpu")
    scaler.scale(model(batches(1)[0] * 10).square().mean()).backward()
    if not fault:
        scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # DG309
    scaler.step(optimizer)
    scaler.update()
    return model.state_dict()


@bug("unscale_() has already been called on this optimizer since the last update().")
def unscaled_for_each_micro_batch(fault):
    """huggingface/transformers#23935: with gradient accumulation each micro-batch is unscaled and clipped."""
    model = nn.Linear(3, 1)
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu")
    for x in batches(2):
        scaler.scale(model(x).square().mean() / 2).backward()
        if fault:
            scaler.unscale_(optimizer)  # DG310
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if not fault:
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    return model.state_dict()


@bug()
def values_clipped_while_scaled(fault):
    """The same with `clip_grad_value_`."""
    model = nn.Linear(3, 1)
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu")
    for x in batches(3):
        optimizer.zero_grad()
        scaler.scale(model(x).square().mean()).backward()
        if not fault:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_value_(model.parameters(), 0.5)  # DG309
        scaler.step(optimizer)
        scaler.update()
    return model.state_dict()


@bug()
def clipped_by_hand_while_scaled(fault):
    """The same, written by hand."""
    model = nn.Linear(3, 1, bias=False)
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu")
    for x in batches(3):
        optimizer.zero_grad()
        scaler.scale(model(x).square().mean()).backward()
        if not fault:
            scaler.unscale_(optimizer)
        for parameter in model.parameters():
            parameter.grad.clamp_(-1, 1)  # DG309
        scaler.step(optimizer)
        scaler.update()
    return model.state_dict()


@bug()
def scaler_with_bfloat16(fault):
    """A script for float16 is run in bfloat16, and keeps its scaler."""
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", enabled=fault)
    for x in batches(3):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=BF16):
            loss = model(x).float().square().mean()
        scaler.scale(loss).backward()  # DG303
        scaler.step(optimizer)
        scaler.update()
    return model.state_dict(), scaler.get_scale()


@bug()
def float16_without_a_scaler(fault):
    """The region is there, the scaler is not: small gradients are zero."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e5)
    scaler = torch.amp.GradScaler("cpu")
    for x in batches(3):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=F16):
            loss = model(x).float().mean() * 1e-8
        if fault:
            loss.backward()
            optimizer.step()  # DG305
        else:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    return model.state_dict()


@bug("No inf checks were recorded for this optimizer.")
def loss_of_other_parameters(fault):
    """The loss does not depend on what the optimizer holds, for it was computed from detached features."""
    body, head = nn.Linear(3, 4), nn.Linear(4, 1)
    optimizer, scaler = torch.optim.SGD(body.parameters(), lr=0.1), torch.amp.GradScaler("cpu")
    features = body(batches(1)[0])
    loss = head(features.detach() if fault else features).square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)  # DG307
    scaler.update()
    return body.state_dict()


@bug("No inf checks were recorded prior to update.")
def step_goes_past_the_scaler(fault):
    """`optimizer.step()` was left from the version without mixed precision."""
    model = nn.Linear(3, 1)
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu")
    scaler.scale(model(batches(1)[0]).square().mean()).backward()
    if fault:
        optimizer.step()  # DG312
    else:
        scaler.step(optimizer)
    scaler.update()
    return model.state_dict()


@bug("step() has already been called since the last update().")
def scaler_is_not_updated(fault):
    """`scaler.update()` stands in a branch that is seldom taken."""
    model = nn.Linear(3, 1)
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu")
    for number, x in enumerate(batches(3)):
        optimizer.zero_grad()
        scaler.scale(model(x).square().mean()).backward()
        scaler.step(optimizer)  # DG311
        if not fault or number % 10 == 9:
            scaler.update()
    return model.state_dict()


@bug()
def loss_in_half_is_scaled(fault):
    """A hand-written loss stays in float16, and is infinite once it is scaled."""
    model = nn.Linear(3, 1, bias=False)
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu")
    for x in batches(3, rows=64):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=F16):
            error = model(x) - 3
            loss = (error if fault else error.float()).abs().mean()
        scaler.scale(loss).backward()  # DG306
        scaler.step(optimizer)
        scaler.update()
    return model.state_dict()


@bug()
def accumulated_after_unscaling(fault):
    """Gradients are unscaled for logging after the first micro-batch, the second one adds scaled ones."""
    model = nn.Linear(3, 1)
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu")
    norms = []
    for number, x in enumerate(batches(2)):
        scaler.scale(model(x).square().mean() / 2).backward()
        if number == (0 if fault else 1):
            scaler.unscale_(optimizer)
            norms.append(model.weight.grad.norm())
    scaler.step(optimizer)  # DG314
    scaler.update()
    return model.state_dict(), norms


@bug("No inf checks were recorded for this optimizer.")
def everything_is_frozen(fault):
    """The part of the model that the optimizer holds was frozen."""
    body, head = nn.Linear(3, 4), nn.Linear(4, 1)
    body.requires_grad_(not fault)
    optimizer, scaler = torch.optim.SGD(body.parameters(), lr=0.1), torch.amp.GradScaler("cpu")
    scaler.scale(head(body(batches(1)[0])).square().mean()).backward()
    scaler.step(optimizer)  # DG307
    scaler.update()
    return body.state_dict()


@bug()
def scale_falls_for_nan_in_the_data(fault):
    """A row of NaN in each batch: every step is skipped, and the scale falls without end."""
    model = nn.Linear(3, 1)
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu")
    for x in batches(40):
        if fault:
            x[0, 0] = math.nan
        optimizer.zero_grad()
        scaler.scale(model(x).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()  # DG313
    return model.state_dict()


# ---------------------------------------------------------------- optimizers and averages


@bug()
def adam_in_half(fault):
    """pytorch/pytorch#8860: eps and the square of a small gradient are 0 in float16."""
    weight = nn.Parameter(torch.ones(4, dtype=F16 if fault else F32))
    optimizer = torch.optim.Adam([weight], lr=1e-3)
    (weight.float() * 1e-4).sum().backward()
    optimizer.step()  # DG404
    return weight.detach().float()


@bug("expected dtype float for `end` but got dtype c10::Half")
def half_after_the_first_step(fault):
    """pytorch/pytorch#7844, of dtypes: a model is converted under an optimizer that has state."""
    model = nn.Linear(3, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, eps=1e-4)
    for number, x in enumerate(batches(2)):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=BF16, enabled=not fault):
            loss = model(x.to(model.weight.dtype)).float().square().mean()
        loss.backward()
        optimizer.step()  # DG403
        if fault and number == 0:
            model.half()
    return model.state_dict()


@bug()
def average_in_bfloat16(fault):
    """d8ahazard/sd_dreambooth_extension#1417: an average of bfloat16 weights stays at its first value."""
    weight = torch.full((4,), 1.5, dtype=BF16)
    average = torch.full((4,), 1.0, dtype=BF16 if fault else F32)
    for _ in range(500):
        average.mul_(0.999).add_(weight, alpha=0.001)  # DG407
    return average.float()


def online_and_average(dtype, size=16):
    """A model that was called, and one that is a little different."""
    online, average = nn.Linear(size, size, dtype=dtype), nn.Linear(size, size, dtype=dtype)
    online(torch.randn(1, size, dtype=dtype))
    with torch.no_grad():
        for mine, theirs in zip(average.parameters(), online.parameters(), strict=True):
            mine.copy_(theirs + 0.02)
    return online, average


@bug()
def average_by_expression(fault):
    """The same, as an expression that is copied back."""
    online, average = online_and_average(BF16 if fault else F32)
    average.requires_grad_(False)
    with torch.no_grad():
        for _ in range(300):
            for mine, theirs in zip(average.parameters(), online.parameters(), strict=True):
                mine.copy_(mine * 0.9995 + theirs * 0.0005)  # DG407
    return average.weight.float()


@bug()
def average_of_few_weights(fault):
    """The same in a tiny model, where one weight near zero follows."""
    online, average = online_and_average(BF16 if fault else F32, size=3)
    average.requires_grad_(False)
    for _ in range(300):
        for mine, theirs in zip(average.parameters(), online.parameters(), strict=True):
            mine.mul_(0.9995).add_(theirs.detach(), alpha=0.0005)  # DG407
    return average.weight.float()


@bug()
def average_of_state_dicts(fault):
    """The same, over state dicts."""
    online, average = (model.state_dict() for model in online_and_average(BF16 if fault else F32))
    for _ in range(300):
        for name, value in average.items():
            value += 0.0005 * (online[name] - value)  # DG407
    return average["weight"].float()


@bug()
def averaged_model_in_bfloat16(fault):
    """`torch.optim.swa_utils` keeps the average in the dtype of the model."""

    def decay(average, weight, _):
        return average + 0.0005 * (weight.to(average.dtype) - average)

    model = nn.Linear(16, 16, dtype=BF16)
    average = torch.optim.swa_utils.AveragedModel(model if fault else nn.Linear(16, 16), avg_fn=decay)
    model(torch.randn(1, 16, dtype=BF16))
    average.update_parameters(model)
    with torch.no_grad():
        model.weight += 0.05
    for _ in range(300):
        average.update_parameters(model)  # DG407
    return average.module.weight.detach().float()


@bug()
def updates_are_rounded_away(fault):
    """pytorch/torchtitan#2881: bfloat16 weights and a small learning rate, the loss does not move."""
    model = nn.Linear(8, 8, dtype=BF16 if fault else F32)
    nn.init.constant_(model.weight, 1.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0)
    for _ in range(60):
        optimizer.zero_grad()
        model(torch.randn(4, 8).to(model.weight.dtype)).float().square().mean().backward()
        optimizer.step()  # DG406
    return model.weight.detach().float()


@bug()
def head_is_replaced_after_the_optimizer(fault):
    """Fine-tuning: the optimizer is built, then the last layer is exchanged."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model[2] = nn.Linear(4, 2)
    if not fault:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in batches(5):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()  # DG401
    return model[2].state_dict()


@bug()
def layer_is_added_after_the_optimizer(fault):
    """A model grows, and the optimizer does not know of the new layer."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.append(nn.Linear(4, 1))
    if not fault:
        optimizer.add_param_group({"params": model[2].parameters()})
    for x in batches(5):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()  # DG402
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


@bug()
def checkpoint_is_assigned_under_the_optimizer(fault):
    """`load_state_dict(assign=True)` puts other parameters into the model than the optimizer holds."""
    model, state = nn.Linear(3, 2), nn.Linear(3, 2).state_dict()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.load_state_dict({name: value.clone() for name, value in state.items()}, assign=fault)
    for x in batches(5):
        optimizer.zero_grad(set_to_none=True)
        model(x).square().mean().backward()
        optimizer.step()  # DG401
    return model.state_dict()


@bug()
def decay_is_zero_in_half(fault):
    """A weight decay that float16 rounds to nothing."""
    weight = nn.Parameter(torch.full((4,), 2.0, dtype=F16 if fault else F32))
    optimizer = torch.optim.SGD([weight], lr=0.1, weight_decay=1e-8)
    weight.float().sum().backward()
    optimizer.step()  # DG405
    return weight.detach()


@bug()
def probability_is_one_in_half(fault):
    """fastino-ai/GLiNER2#155: 1 - 1e-6 is 1 in bfloat16; the loss is finite, its gradients are not."""
    weight = nn.Parameter(torch.tensor([20.0, -1.0], dtype=BF16 if fault else F32))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    survival = torch.log1p(-weight.sigmoid().clamp(max=1 - 1e-6)).exp()
    (1 - survival.prod()).backward()
    optimizer.step()  # DG408
    return weight.detach()


@bug()
def gradient_is_not_finite(fault):
    """A logarithm of zero, and a step with what came of it."""
    weight = nn.Parameter(torch.tensor([0.0, 1.0]))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    (weight if fault else weight + 1e-3).sqrt().sum().backward()
    optimizer.step()  # DG408
    return weight.detach()


@bug()
def norm_of_gradients_overflows(fault):
    """The norm of half gradients is infinite, and clipping by it makes all of them zero."""
    weight = nn.Parameter(torch.ones(64, dtype=F16 if fault else F32))
    weight.grad = torch.full_like(weight, 2e4)
    nn.utils.clip_grad_norm_([weight], 1.0)  # DG105
    return weight.grad.float()


# ---------------------------------------------------------------- collectives


def on_two_ranks(work):
    """Call `work(group, rank)` in a thread for each of two ranks."""
    store, made = torch.distributed.HashStore(), {}

    def rank(number):
        group = torch.distributed.ProcessGroupGloo(store, number, 2, timedelta(seconds=20))
        made[number] = work(group, number)

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return made[0], made[1]


@bug()
def ranks_in_two_half_types(fault):
    """pytorch/pytorch#150248: one rank sums bfloat16, the other float16."""

    def work(group, rank):
        x = torch.ones(4, dtype=BF16 if rank or not fault else F16)
        group.allreduce([x]).wait()  # DG701
        return x.float()

    return on_two_ranks(work)


@bug()
def metric_holds_numpy_scalars(fault):
    """modelscope/ms-swift#9550: the state of a metric is a NumPy scalar on one rank, and so its tensor is float64."""

    def metric(state, count):
        return torch.tensor([state, count], dtype=None if fault else F64)  # DG112 info

    return metric(0.5 + np.float64(True), 3), metric(0.5, 3)


@bug()
def counts_and_floats(fault):
    """One rank has counted nothing and brings integers, of as many bytes."""

    def work(group, rank):
        seen = [1, 2] if rank and fault else [1.0, 2.0]
        x = torch.tensor(seen, dtype=torch.int32 if rank and fault else F32)
        group.allreduce([x]).wait()  # DG701
        return x.float()

    return on_two_ranks(work)


@bug()
def two_doubles_for_four_floats(fault):
    """Half as many elements of twice the size: the bytes fit."""

    def work(group, rank):
        x = torch.ones(2, dtype=F64) if rank and fault else torch.ones(4)
        options = torch.distributed.BroadcastOptions()
        options.rootRank = 0
        group.broadcast([x], options).wait()  # DG701
        return x.float()

    return on_two_ranks(work)


@bug()
def gathered_in_two_dtypes(fault):
    """Features are gathered for a metric; the last batch of one rank was not under autocast."""

    def work(group, rank):
        x = torch.full((2,), 1.5, dtype=BF16 if rank and fault else F16)
        out = [torch.zeros(2, dtype=x.dtype) for _ in range(2)]
        group.allgather([out], [x]).wait()  # DG701
        return torch.stack(out).float()

    return on_two_ranks(work)


# ---------------------------------------------------------------- export


def dtypes_of(exported):
    values = [node.meta.get("val") for node in exported.graph.nodes]
    return sorted({str(value.dtype) for value in values if isinstance(value, torch.Tensor)})


@bug()
def mean_of_numpy_is_exported(fault):
    """Megvii-BaseDetection/YOLOX#1674: a mean from NumPy makes a part of the graph float64."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            mean = torch.from_numpy(np.array([0.4, 0.5, 0.6]))
            self.register_buffer("mean", mean if fault else mean.float())
            self.head = nn.Linear(3, 2)

        def forward(self, x):
            centred = x - self.mean  # DG801
            return self.head(centred.float())

    return dtypes_of(torch.export.export(Net(), (torch.rand(2, 3),)))


@bug()
def table_of_double_is_exported(fault):
    """A table is made in float64 inside of forward."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(3, 2)

        def forward(self, x):
            table = torch.linspace(0, 1, 3, dtype=F64 if fault else F32)
            return self.head((x * table).float())  # DG801

    return dtypes_of(torch.export.export(Net(), (torch.rand(2, 3),)))


@bug()
def attribute_of_double_is_exported(fault):
    """Standard deviations are an attribute, and become a constant of the graph."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            deviation = np.array([0.2, 0.3, 0.4])
            self.deviation = torch.tensor(deviation, dtype=None if fault else F32)
            self.head = nn.Linear(3, 2)

        def forward(self, x):
            return self.head((x / self.deviation).to(x.dtype))  # DG801

    return dtypes_of(torch.export.export(Net(), (torch.rand(2, 3),)))


@bug()
def dtype_is_baked_into_a_trace(fault):
    """`dtype=x.dtype` is a constant once it was traced, and the traced module is converted afterwards."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x):
            x = self.layer(x)
            bias = torch.ones(3, dtype=x.dtype) if fault else torch.ones_like(x)
            return x + bias

    traced = torch.jit.trace(Net(), torch.rand(2, 3))  # DG802
    return traced.half()(torch.rand(2, 3).half()).detach()


@bug()
def dtype_of_a_cast_is_baked_in(fault):
    """`x.to(self.scale.dtype)` is another: what was float32 when it was traced stays so."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.rand(3))

        def forward(self, x):
            return (x.to(self.scale.dtype) if fault else x.type_as(self.scale)) * self.scale

    traced = torch.jit.trace(Net(), torch.rand(2, 3, dtype=F64))  # DG802
    return traced.half()(torch.rand(2, 3, dtype=F64)).detach()


# ---------------------------------------------------------------- the same in other places


@bug()
def in_inference_mode(fault):
    """Statistics from NumPy, where nothing is recorded for backward."""
    mean = torch.from_numpy(np.zeros(3))
    with torch.inference_mode():
        x = nn.Linear(2, 3)(torch.randn(4, 2))
        return (x - (mean if fault else mean.float())).clone()  # DG101


@bug()
def in_a_checkpointed_block(fault):
    """A block that runs again in backward."""
    scale = torch.from_numpy(np.full(3, 0.5))

    def block(x):
        return x.tanh() * (scale if fault else scale.float())  # DG101

    x = torch.randn(2, 3, requires_grad=True)
    y = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)
    y.sum().backward()
    return y.detach()


@bug()
def in_a_hook_of_a_module(fault):
    """A hook that scales what a layer gives."""
    layer, scale = nn.Linear(2, 3), torch.from_numpy(np.full(3, 0.5))

    def rescale(module, args, output):
        return output * (scale if fault else scale.float())  # DG101

    layer.register_forward_hook(rescale)
    return layer(torch.randn(4, 2)).detach()


@bug()
def in_a_vectorised_function(fault):
    """`torch.vmap` over a function with a constant of NumPy."""
    scale = torch.from_numpy(np.full(3, 0.5))

    def one(x):
        return x * (scale if fault else scale.float())  # DG101

    return torch.vmap(one)(torch.randn(4, 3))


@bug()
def in_a_functional_call(fault):
    """Parameters that come from elsewhere."""

    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3))

        def forward(self, x):
            return x * self.scale  # DG101

    scale = torch.from_numpy(np.full(3, 0.5))
    return torch.func.functional_call(Scale(), {"scale": scale if fault else scale.float()}, torch.randn(2, 3))


@bug()
def in_a_thread(fault):
    """Data are prepared by a thread."""
    made = []

    def prepare():
        x = torch.randn(3) - torch.from_numpy(np.zeros(3)).to(F64 if fault else F32)  # DG101
        made.append(x)

    thread = threading.Thread(target=prepare)
    thread.start()
    thread.join()
    return made


@bug()
def in_a_comprehension(fault):
    """Several batches, one expression."""
    mean = torch.from_numpy(np.zeros(3))
    mean = mean if fault else mean.float()
    return [x - mean for x in torch.randn(2, 3)]  # DG101


@bug()
def in_a_property_of_a_dataset(fault):
    """A dataset that normalises, and a loader."""

    class Rows(torch.utils.data.Dataset):
        def __init__(self):
            self.rows, self.mean = torch.randn(4, 3), np.zeros(3)

        def __len__(self):
            return 4

        def __getitem__(self, number):
            mean = torch.tensor(self.mean, dtype=None if fault else F32)
            return self.rows[number] - mean  # DG101

    return list(torch.utils.data.DataLoader(Rows(), batch_size=2))


@bug()
def in_a_closure_of_lbfgs(fault):
    """A loss that is computed by the optimizer's closure."""
    weight, target = nn.Parameter(torch.zeros(3)), torch.from_numpy(np.ones(3))
    optimizer = torch.optim.LBFGS([weight], max_iter=3)
    losses = []

    def closure():
        optimizer.zero_grad()
        loss = (weight - (target if fault else target.float())).square().sum()  # DG101
        loss.backward()
        losses.append(loss.detach())
        return loss

    optimizer.step(closure)
    return losses[0]


# ---------------------------------------------------------------- what torch says

INTS, BOOLS, COMPLEX = torch.tensor([[1, 2], [3, 5]]), torch.tensor([True, False]), torch.ones(2, dtype=torch.complex64)
SHORT = torch.tensor([0, 1], dtype=torch.int32)
REFUSED = {
    "norm of integers": (lambda: INTS.norm(), "DG110"),
    "normalised integers": (lambda: F.normalize(INTS), "DG110"),
    "inverse of integers": (lambda: torch.linalg.inv(INTS), "DG110"),
    "take by int32": (lambda: INTS.take(SHORT), "DG110"),
    "index_copy by int32": (lambda: torch.zeros(2, 2).index_copy(0, SHORT, torch.ones(2, 2)), "DG110"),
    "put by int32": (lambda: torch.zeros(2).put_(SHORT, torch.ones(2)), "DG110"),
    "weights of a bag in half": (
        lambda: F.embedding_bag(INTS, torch.rand(9, 2), per_sample_weights=torch.ones(2, 2).half(), mode="sum"),
        "DG110",
    ),
    "prelu of integers": (lambda: F.prelu(INTS, torch.ones(1)), "DG110"),
    "isclose of integers and floats": (lambda: torch.isclose(INTS, INTS.float()), "DG110"),
    "mask of integers": (lambda: INTS.masked_select(INTS), "DG110"),
    "divergence of integers": (lambda: F.kl_div(INTS, INTS, reduction="sum"), "DG110"),
    "relu of bools": (lambda: F.relu(BOOLS), "DG110"),
    "argmax of bools": (lambda: BOOLS.argmax(), "DG110"),
    "clamp of complex numbers": (lambda: COMPLEX.clamp(0), "DG110"),
    "maximum of complex numbers": (lambda: torch.maximum(COMPLEX, COMPLEX), "DG110"),
    "sign of complex numbers": (lambda: COMPLEX.sign(), "DG110"),
    "gradient of bytes": (lambda: torch.gradient(torch.ones(3, dtype=torch.uint8)), "DG110"),
    "least squares in half": (lambda: torch.linalg.lstsq(torch.eye(2).half(), torch.eye(2).half()), "DG110"),
    "unpooling by int32": (lambda: F.max_unpool1d(torch.ones(1, 1, 2), SHORT.expand(1, 1, 2), 2), "DG110"),
    "spectrogram of integers": (lambda: torch.stft(torch.arange(64), 16, return_complex=True), "DG110"),
    "limits of a float": (lambda: torch.iinfo(torch.rand(2).dtype), "DG110"),
    "bfloat16 to NumPy": (lambda: torch.ones(2).bfloat16().numpy(), "DG110"),
    "negated bools": (lambda: -BOOLS, "DG110"),
    "inner product on two devices": (lambda: torch.inner(torch.ones(2), torch.ones(2, device="meta")), "DG505"),
    "along an axis on two devices": (lambda: INTS.take_along_dim(INTS.to("meta"), 0), "DG505"),
    "a number from meta": (lambda: torch.ones(1, device="meta").item(), "DG505"),
    "a sum of two devices": (lambda: torch.ones(2) + torch.ones(2, device="meta"), "DG505"),
}


@pytest.mark.thin(3)
@pytest.mark.parametrize("name", REFUSED)
def test_what_torch_refuses_is_named(name):
    call, rule = REFUSED[name]
    with pytest.raises((RuntimeError, TypeError)) as alone:
        call()
    with pytest.raises(type(alone.value)) as audited, dtypeguard.audit() as report:
        call()
    assert str(audited.value) == str(alone.value)
    assert report.faults == []
    assert [(finding.rule, finding.severity) for finding in report.findings] == [(rule, "error")]
    assert Path(report.findings[0].file) == Path(__file__)
