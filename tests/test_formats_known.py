"""What is published of formats comes out of `compare(format=)` by itself, in models that are built or trained here.

Where the published cause is of a size that a small model has not, the test plants it: powers of two move from a weight
to the norm before it, or back, so that the model computes the same and only rounding differs.
"""

import copy
import functools
import math
from pathlib import Path

import pytest
import torch
import transformers as hf
from support import LIBRARIES_WARN, same
from torch import nn
from torch.nn import functional as F

from dtypeguard import CompareError, compare
from dtypeguard._tools.compare.formatted import ROUTER
from dtypeguard._tools.compare.gradients import gradients_of
from dtypeguard._tools.formats.rounding import rounded
from dtypeguard._tools.formats.table import format_of

pytestmark = LIBRARIES_WARN
SEEDS = range(3)


def numbers(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def alone(result):
    """The error that each layer alone makes, the largest first."""
    found = {layer.name: layer.alone for layer in result.layers if layer.alone}
    return dict(sorted(found.items(), key=lambda item: -item[1]))


# ---------------------------------------------------------------- an outlier channel


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x):
        return F.gelu(self.linear(self.norm(x)))


PLANTED = "2.linear"


def chain(seed, width=128, where=None, factor=1.0):
    """Six layers of which each has as much to say; in the third, one channel of the weight or of its input is large."""
    torch.manual_seed(seed)
    model = nn.Sequential(*(Layer(width) for _ in range(6)))
    if where is not None:
        layer, scale = model[2], factor if where == "weight" else 1 / factor
        with torch.no_grad():
            layer.linear.weight[:, 3] *= scale
            layer.norm.weight[3] /= scale
            layer.norm.bias[3] /= scale
    return model, torch.randn(64, width)


# An element with an exponent of its own has room for 2**15; integers and four bits have hardly any.
OUTLIERS = [
    ("int8", "weight", 2**5),
    ("int8", "activation", 2**8),  # of which int8 sees that its channel of the weight is small
    ("int4", "weight", 2**5),
    ("nvfp4", "weight", 2**6),
    ("nvfp4", "activation", 2**6),
    ("mxfp4", "weight", 2**6),
    ("mxfp4", "activation", 2**6),
    ("mxfp6", "weight", 2**8),
    ("mxfp6", "activation", 2**8),
    ("mxfp8", "weight", 2**20),
    ("mxfp8", "activation", 2**20),
    ("fp8", "weight", 2**20),
    ("fp8", "activation", 2**20),
    ("fp8:row", "weight", 2**20),
    ("fp8:row", "activation", 2**20),
    ("fp8:block", "weight", 2**20),
    ("fp8:block", "activation", 2**20),
]


@pytest.mark.thin(4)
@pytest.mark.parametrize(("name", "where", "factor"), OUTLIERS)
def test_the_layer_with_an_outlier_channel_is_first(name, where, factor):
    for seed in SEEDS:
        model, x = chain(seed, where=where, factor=factor)
        healthy, _ = chain(seed)
        torch.testing.assert_close(model(x), healthy(x))
        result = compare(model, x, format=name)
        assert result.error > 1.05 * compare(healthy, x, format=name).error
        assert result.layers[0].name == PLANTED
        (first, most), (_, next_) = [*alone(result).items()][:2]
        assert first == PLANTED
        assert most > 1.2 * next_


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [("int8", 4.0, math.inf), ("nvfp4", 1.1, 2.0), ("mxfp8", 0.8, 1.2), ("fp8:row", 0.8, 1.2), ("fp8", 0.8, 1.2)],
)
def test_what_ruins_integers_is_nothing_to_float8(name, least, most):
    """A channel that is 64 times as large, in the error of the whole model."""
    for seed in SEEDS:
        model, x = chain(seed, where="weight", factor=64)
        ratio = compare(model, x, format=name).error / compare(chain(seed)[0], x, format=name).error
        assert least < ratio < most


# ---------------------------------------------------------------- T5


class Logits(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model.eval()

    def forward(self, **given):
        return self.model(**given).logits


def ids(*shape):
    return torch.randint(3, 64, shape)


def t5(seed, factor=1.0):
    """T5 in which what is multiplied with the gate is large, and `wo` takes that back."""
    torch.manual_seed(seed)
    config = hf.T5Config(
        vocab_size=64, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, feed_forward_proj="gated-gelu",
        use_cache=False, decoder_start_token_id=1,
    )  # fmt: skip
    model = Logits(hf.T5ForConditionalGeneration(config))
    with torch.no_grad():
        for name, module in model.named_modules():
            if name.endswith(("wi_1", "wo")):
                module.weight *= factor if name.endswith("wi_1") else 1 / factor
    return model, {"input_ids": ids(4, 16), "decoder_input_ids": ids(4, 12)}


def test_t5s_wo_is_first_to_leave_the_range_of_float16():
    for seed in SEEDS:
        model, batch = t5(seed, 2.0**16)
        result = compare(model, batch, format="fp16")
        assert math.isinf(result.error)
        assert result.layers[0].name.endswith("DenseReluDense.wo")
        assert compare(t5(seed)[0], batch, format="fp16").error < 2e-3


@pytest.mark.thin(7)
@pytest.mark.parametrize("name", ["bf16", "int8", "fp8", "fp8:row", "mxfp8", "mxfp4", "nvfp4"])
def test_t5s_wo_is_no_matter_of_formats_with_scales(name):
    """With a scale, or a wide exponent, its range is nothing: the error is that of the model with small values."""
    model, batch = t5(0, 2.0**16)
    large, small = compare(model, batch, format=name), compare(t5(0)[0], batch, format=name)
    assert large.error == pytest.approx(small.error, rel=1e-3)
    assert not large.layers[0].name.endswith("wo")


# ---------------------------------------------------------------- routers


_TEXT = {
    "vocab_size": 64, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "use_cache": False,
}  # fmt: skip
_GROUPED = _TEXT | {"num_key_value_heads": 2}
_ENDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "use_cache": False}
_GROUPS = {
    "moe_intermediate_size": 64, "n_routed_experts": 16, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1,
    "n_shared_experts": 1, "first_k_dense_replace": 1,
}  # fmt: skip
_LATENT = {"kv_lora_rank": 32, "q_lora_rank": 32, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 16}
_LOCAL = {"num_local_experts": 16, "num_experts_per_tok": 2}
_BART = {
    "vocab_size": 64, "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "forced_eos_token_id": None,
}  # fmt: skip


def _text(model, config):
    return Logits(model(config)), {"input_ids": ids(2, 16)}


def _both(model, config):
    return Logits(model(config)), {"input_ids": ids(2, 16), "decoder_input_ids": ids(2, 12)}


def _picture(model, config):
    return Logits(model(config)), {"pixel_values": torch.randn(2, 3, 32, 32)}


# Sixteen experts: no format refuses a router for its sizes.
ROUTED = {
    "Mixtral": lambda: _text(hf.MixtralForCausalLM, hf.MixtralConfig(**_GROUPED, **_LOCAL)),
    "Qwen3-MoE": lambda: _text(
        hf.Qwen3MoeForCausalLM,
        hf.Qwen3MoeConfig(**_GROUPED, head_dim=16, num_experts=16, num_experts_per_tok=2, moe_intermediate_size=64),
    ),
    "DeepSeek-V3": lambda: _text(
        hf.DeepseekV3ForCausalLM, hf.DeepseekV3Config(**_TEXT, num_key_value_heads=4, **_GROUPS, **_LATENT)
    ),
    "OLMoE": lambda: _text(
        hf.OlmoeForCausalLM, hf.OlmoeConfig(**_GROUPED, num_experts=16, num_experts_per_tok=2)
    ),
    "GPT-OSS": lambda: _text(
        hf.GptOssForCausalLM, hf.GptOssConfig(**_GROUPED, **_LOCAL, head_dim=16, sliding_window=8)
    ),
    "GLM-4-MoE": lambda: _text(hf.Glm4MoeForCausalLM, hf.Glm4MoeConfig(**_GROUPED, head_dim=16, **_GROUPS)),
    "Granite-MoE": lambda: _text(hf.GraniteMoeForCausalLM, hf.GraniteMoeConfig(**_GROUPED, **_LOCAL)),
    "MiniMax": lambda: _text(
        hf.MiniMaxForCausalLM, hf.MiniMaxConfig(**_GROUPED, **_LOCAL, head_dim=16, block_size=8)
    ),
    "Switch": lambda: _both(
        hf.SwitchTransformersForConditionalGeneration,
        hf.SwitchTransformersConfig(
            vocab_size=64, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, num_experts=16,
            num_sparse_encoder_layers=1, num_sparse_decoder_layers=1, **_ENDS,
        ),
    ),
}  # fmt: skip
_MANY = {"Switch"}  # each expert of these is a module of its own


@pytest.mark.thin(3)
@pytest.mark.parametrize("name", ["int8", "fp8"])
@pytest.mark.parametrize("kind", [pytest.param(kind, marks=[pytest.mark.slow] * (kind in _MANY)) for kind in ROUTED])
def test_exactly_the_routers_stay(kind, name):
    torch.manual_seed(0)
    model, batch = ROUTED[kind]()
    routers = {
        path for path, module in model.named_modules()
        if path.endswith((".gate", ".router", ".router.classifier")) and not any(module.children())
    }  # fmt: skip
    assert routers
    assert compare(model, batch, format=name).stays == dict.fromkeys(routers, ROUTER)


DENSE = {
    "Llama": lambda: _text(hf.LlamaForCausalLM, hf.LlamaConfig(**_GROUPED)),
    "Qwen3": lambda: _text(hf.Qwen3ForCausalLM, hf.Qwen3Config(**_GROUPED, head_dim=16)),
    "Gemma2": lambda: _text(hf.Gemma2ForCausalLM, hf.Gemma2Config(**_GROUPED, head_dim=16)),
    "GPT-2": lambda: _text(
        hf.GPT2LMHeadModel,
        hf.GPT2Config(vocab_size=64, n_embd=64, n_layer=2, n_head=4, n_positions=64, bos_token_id=1, eos_token_id=2),
    ),
    "Mamba": lambda: _text(
        hf.MambaForCausalLM, hf.MambaConfig(vocab_size=64, hidden_size=64, num_hidden_layers=2, state_size=8)
    ),
    "BERT": lambda: _text(hf.BertForMaskedLM, hf.BertConfig(**_TEXT)),
    "T5": lambda: t5(0),
    "BART": lambda: _both(hf.BartForConditionalGeneration, hf.BartConfig(**_BART, **_ENDS)),
    "Whisper": lambda: (
        Logits(
            hf.WhisperForConditionalGeneration(
                hf.WhisperConfig(
                    **{key: value for key, value in _BART.items() if key != "forced_eos_token_id"}, **_ENDS,
                    num_mel_bins=16, max_source_positions=24, max_target_positions=48, suppress_tokens=None,
                    begin_suppress_tokens=None,
                )
            )
        ),
        {"input_features": torch.randn(2, 16, 48), "decoder_input_ids": ids(2, 12)},
    ),
    "ViT": lambda: _picture(
        hf.ViTForImageClassification,
        hf.ViTConfig(
            hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, image_size=32,
            patch_size=8,
        ),
    ),
    "Swin": lambda: _picture(
        hf.SwinForImageClassification,
        hf.SwinConfig(image_size=32, patch_size=4, embed_dim=32, depths=[2, 2], num_heads=[2, 4], window_size=4),
    ),
    "ConvNeXt": lambda: _picture(
        hf.ConvNextForImageClassification,
        hf.ConvNextConfig(hidden_sizes=[32, 64], depths=[1, 1], num_stages=2, patch_size=4),
    ),
    "Wav2Vec2": lambda: (
        Logits(
            hf.Wav2Vec2ForCTC(
                hf.Wav2Vec2Config(
                    vocab_size=64, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
                    conv_dim=(64, 64), conv_stride=(5, 4), conv_kernel=(10, 4), num_feat_extract_layers=2,
                    num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4,
                )
            )
        ),
        {"input_values": torch.randn(2, 1600)},
    ),
}  # fmt: skip


@pytest.mark.thin(2)
@pytest.mark.parametrize("kind", DENSE)
def test_no_layer_of_a_model_without_experts_stays(kind):
    torch.manual_seed(0)
    model, batch = DENSE[kind]()
    assert compare(model, batch, format="int8").stays == {}


# ---------------------------------------------------------------- a language model that is trained here


class Block(nn.Module):
    def __init__(self, width, heads=4):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Speaker(nn.Module):
    """A causal transformer over characters."""

    def __init__(self, blocks, width=64, length=48):
        super().__init__()
        self.letters, self.places = nn.Embedding(128, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 128)
        with torch.no_grad():
            for block in self.blocks:
                block.out.weight /= math.sqrt(2 * blocks)
                block.down.weight /= math.sqrt(2 * blocks)

    def forward(self, x):
        x = self.letters(x) + self.places(torch.arange(x.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


@functools.cache
def spoken(seed, blocks=2, steps=100, length=48):
    """A speaker that has read the README, some text, and the loss of what comes next in it."""
    text = (Path(__file__).parents[1] / "README.md").read_text("utf-8").encode("ascii", "ignore")
    data = torch.tensor(list(text))
    torch.manual_seed(seed)
    model = Speaker(blocks, length=length)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)

    def read(rows):
        some = torch.stack([data[at : at + length + 1] for at in torch.randint(len(data) - length, (rows,)).tolist()])
        return some[:, :-1], some[:, 1:]

    for _ in range(steps):
        x, y = read(16)
        found = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        found.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    assert found.item() < 3.2
    x, y = read(32)
    return model, x, lambda out: F.cross_entropy(out.flatten(0, 1), y.flatten())


@pytest.mark.thin(7)
@pytest.mark.parametrize("name", ["fp8", "fp8:row", "mxfp8", "mxfp4", "nvfp4", "int8", "int4:64"])
def test_the_head_of_a_language_model_is_first(name):
    """What torchtitan, MiniMax-M1 and ScaleRL leave wide: in the error, in what to keep, and in the gradients."""
    for seed in SEEDS:
        model, x, loss = spoken(seed)
        result = compare(model, x, format=name, loss=loss)
        assert result.layers[0].name == "head"
        assert result.layers[0].saves > 0.5
        (first, most), (_, next_) = [*alone(result).items()][:2]
        assert first == "head"
        assert most > 2 * next_
        kept = result.keep(error=0.8 * result.error)
        assert kept.names == ("head",)
        assert kept.gradient < 0.7 * result.gradient


def weighted(seed):
    """A loss whose gradient does not depend on the outputs, so that their errors have no part in it."""
    return lambda out: (out * numbers(seed, *out.shape)).mean()


@pytest.mark.thin(4)
@pytest.mark.parametrize(
    ("name", "of", "least"),
    [
        ("mxfp8", "text", 1.01), ("fp8", "text", 1.01), ("mxfp8", "outputs", 1.25), ("fp8", "outputs", 1.25),
        ("fp8:row", "outputs", 1.25),
    ],
)  # fmt: skip
def test_gradients_in_e4m3_are_nearer_than_in_e5m2(name, of, least):
    """Of MXFP8 arXiv 2506.08027 says so."""
    for seed in SEEDS:
        model, x, loss = spoken(seed)
        loss = loss if of == "text" else weighted(seed)
        e4m3, e5m2 = (compare(model, x, format=f"{name}{option}", loss=loss) for option in ("", ":e5m2"))
        assert e4m3.error == e5m2.error
        assert least * e4m3.gradient < e5m2.gradient


def test_mxfp8_is_better_with_scales_that_are_rounded_up():
    """The same paper: a scale that is rounded down cuts off the largest of its block."""
    for seed in SEEDS:
        model, x, _ = spoken(seed)
        assert 1.03 * compare(model, x, format="mxfp8:rceil").error < compare(model, x, format="mxfp8").error


def test_nvfp4_is_better_than_mxfp4():
    """Blocks of 16 whose scales have digits, for 0.25 bits more."""
    for seed in SEEDS:
        model, x, _ = spoken(seed)
        assert 1.15 * compare(model, x, format="nvfp4").error < compare(model, x, format="mxfp4").error


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nvfp4", "mxfp8"])
def test_in_a_small_model_the_first_blocks_cost_more_than_the_last(name):
    """Training in NVFP4 keeps the last blocks (arXiv 2509.25149); in a small model they are not the ones to keep.

    Errors of the first blocks reach all gradients, those of the last few.
    """
    for seed in SEEDS:
        model, x, loss = spoken(seed, blocks=6, steps=200)
        result = compare(model, x, format=name, loss=loss)
        subject = result._subject
        everything = subject.assigned(subject.formats[0])

        def only(*blocks, subject=subject, everything=everything):
            chosen = {name: to for name, to in everything.items() if name.startswith(blocks)}
            return gradients_of(subject, chosen).error

        assert only("blocks.0.", "blocks.1.") > 1.3 * only("blocks.4.", "blocks.5.")
        errors = alone(result)
        assert errors["blocks.0.up"] > 1.2 * errors["blocks.5.up"]


# ---------------------------------------------------------------- what no format touches


class Heads(nn.Module):
    """Attention without weights."""

    def forward(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v)


class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.norm, self.heads = nn.Embedding(64, 64), nn.RMSNorm(64), Heads()
        self.qkv, self.act, self.out = nn.Linear(64, 192), nn.Softmax(-1), nn.Linear(64, 64)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(self.words(x))).chunk(3, -1)
        return self.act(self.out(self.heads(q, k, v)))


def as_they_are(model, low, batch):
    """For each kind of module in a run of `low` whether it computed what that of `model` does, to the bit."""
    calls, found = [], {}
    for name, module in (running := copy.deepcopy(low)).named_modules():
        if name and not any(module.children()):
            module.register_forward_hook(
                lambda _, args, kwargs, out, name=name: calls.append(copy.deepcopy((name, args, kwargs, out))),
                with_kwargs=True,
            )
    with torch.no_grad():
        running(**batch) if isinstance(batch, dict) else running(batch)
        for name, args, kwargs, out in calls:
            own = model.get_submodule(name)
            kind = type(own).__name__
            found[kind] = found.get(kind, True) and same(own(*args, **kwargs), out)
    return found


@pytest.mark.parametrize("name", ["mxfp8", "nvfp4", "fp8", "fp8:row"])
def test_embeddings_norms_and_softmax_stay_and_attention_does_unless_it_is_asked_for(name):
    """DeepSeek-V3's list; to the bit."""
    torch.manual_seed(0)
    model, x = Attending(), ids(4, 16)
    stay = {"Embedding": True, "RMSNorm": True, "Softmax": True, "Linear": False}
    results = {attention: compare(model, x, format=name, attention=attention) for attention in (False, True)}
    for attention, result in results.items():
        low = result.keep(error=10.0).apply(copy.deepcopy(model))
        assert as_they_are(model, low, x) == stay | {"Heads": not attention}
        assert set(alone(result)) == {"qkv", "out"} | ({"heads"} if attention else set())


@pytest.mark.parametrize("kind", ["Llama", "T5", "Swin", "BERT"])
def test_modules_without_weights_of_products_stay_as_they_are(kind):
    torch.manual_seed(0)
    model, batch = DENSE[kind]()
    low = compare(model, batch, format="mxfp8").keep(error=10.0).apply(copy.deepcopy(model))
    found = as_they_are(model, low, batch)
    assert found.pop("Linear") is False
    found.pop("Conv2d", None)
    assert len(found) >= 3
    assert all(found.values()), found


class Unmultiplied(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.norm, self.heads = nn.Embedding(64, 64), nn.LayerNorm(64), Heads()

    def forward(self, x):
        x = self.norm(self.words(x))
        return self.heads(x, x, x).softmax(-1)


@pytest.mark.parametrize("attention", [False, True])
def test_where_no_weight_is_multiplied_there_is_nothing_to_compare(attention):
    with pytest.raises(CompareError, match="computes no matrix product with a parameter"):
        compare(Unmultiplied(), ids(4, 16), format="mxfp4", attention=attention)


# ---------------------------------------------------------------- noise, and rotations


# Others cut off the largest of a block, and have a bias there: integers, and powers of two that are rounded down.
@pytest.mark.parametrize("name", ["fp8", "fp8:row", "fp8:block", "mxfp8:rceil", "mxfp6:rceil", "mxfp4:rceil"])
def test_stochastic_rounding_is_unbiased(name):
    to, nearest, runs = format_of(f"{name}:sr"), format_of(name), 400
    for seed in SEEDS:
        x, noise = numbers(seed, 16, 64), torch.Generator().manual_seed(seed)
        drawn = torch.stack([rounded(x, to, generator=noise) for _ in range(runs)]).double()
        one = (drawn - x).square().mean().sqrt()
        left = (drawn.mean(0) - x).square().mean().sqrt()
        assert 0.8 < left / (one / math.sqrt(runs)) < 1.2
        assert 4 * left < (rounded(x, nearest) - x).square().mean().sqrt() < one


def spread(seed, of):
    """A layer, and what it is given: one of them has single outliers, 16 times as large, at random places."""
    torch.manual_seed(seed)
    layer, x = nn.Linear(256, 256, bias=False), torch.randn(256, 256)
    with torch.no_grad():
        layer.weight.copy_(torch.randn(256, 256))
        for name, tensor in (("weight", layer.weight), ("activation", x)):
            if name == of:
                tensor[torch.rand(256, 256) < 1 / 64] *= 16
    return layer, x


@pytest.mark.parametrize("of", ["weight", "activation"])
@pytest.mark.parametrize(("name", "least", "most"), [("mxfp4", 1.1, 2.0), ("mxfp6", 1.1, 2.0), ("nvfp4", 0.8, 1.0)])
def test_a_hadamard_transform_helps_where_outliers_share_a_coarse_scale(name, least, most, of):
    """Blocks of 16 with digits in their scales need none: what arXiv 2509.23202 says of MXFP4 and NVFP4."""
    for seed in SEEDS:
        layer, x = spread(seed, of)
        turned = compare(layer, x, format=f"{name}:hadamard").error
        assert least < compare(layer, x, format=name).error / turned < most


def test_a_hadamard_transform_does_not_repair_an_outlier_channel_in_nvfp4():
    """It spreads over a block what one channel had, and small ones have more error than before."""
    for seed in SEEDS:
        for where in ("weight", "activation"):
            model, x = chain(seed, where=where, factor=64)
            plain, turned = (compare(model, x, format=name) for name in ("nvfp4", "nvfp4:hadamard"))
            assert turned.error > 1.1 * plain.error
            assert turned.layers[0].name == plain.layers[0].name == PLANTED
