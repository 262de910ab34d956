"""`diff`: planted differences are found where they are, and another order is never another function."""

import copy
from collections.abc import Callable
from typing import Any

import diff_models as models
import pytest
import torch
from torch import nn

import dtypeguard

ANOTHER, WORSE = "another function", "b rounds worse"
DTYPES = [torch.float32, torch.bfloat16]


def ids() -> Any:
    torch.manual_seed(1)
    return torch.randint(0, 50, (2, 48))


def image() -> Any:
    torch.manual_seed(1)
    return torch.randn(2, 3, 16, 16)


def cross() -> Any:
    torch.manual_seed(1)
    pad = torch.zeros(2, 9, dtype=torch.bool)
    pad[0, 6:] = True
    return {"source": torch.randn(2, 9, 8), "target": torch.randn(2, 5, 8), "pad": pad}


def series() -> Any:
    torch.manual_seed(1)
    return torch.randn(3, 60, 6)


BATCHES = {models.Llama: ids, models.GPT: ids, models.ResNet: image, models.Cross: cross, models.Recurrent: series}


def made(cls: Any, dtype: torch.dtype = torch.float32, **options: Any) -> Any:
    torch.manual_seed(0)
    model = cls(**options)
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            if "running" in name:
                buffer.uniform_(0.5, 1.5)
        for module in model.modules():
            if isinstance(module, nn.LayerNorm | nn.BatchNorm2d):
                module.weight.uniform_(0.5, 1.5)
                module.bias.normal_()
    return model.to(dtype).eval()


def cast(batch: Any, dtype: torch.dtype) -> Any:
    if isinstance(batch, dict):
        return {name: cast(value, dtype) for name, value in batch.items()}
    return batch.to(dtype) if batch.is_floating_point() else batch


def change(path: str, how: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[nn.Module], None]:
    def apply(model: nn.Module) -> None:
        with torch.no_grad():
            parameter = model.get_parameter(path)
            parameter.copy_(how(parameter.clone()))

    return apply


# The architecture; the switch, or what is done to the weights; the module; the verdict in float32 and in bfloat16.
PLANTED: list[tuple[Any, Any, str, str, str]] = [
    (models.Llama, {"eps": 1e-5}, "layers.1.norm1", ANOTHER, ANOTHER),
    (models.Llama, {"eps": 1e-2}, "layers.1.norm1", ANOTHER, ANOTHER),
    (models.Llama, {"half": True}, "layers.1.norm1", "same", WORSE),
    (models.Llama, {"one": True}, "layers.1.norm1", ANOTHER, ANOTHER),
    (models.Llama, {"scale": 1 / 32}, "layers.1.attn", ANOTHER, ANOTHER),
    (models.Llama, {"off": 1}, "layers.1.attn", ANOTHER, ANOTHER),
    (models.Llama, {"off": -1, "fill": -1e9}, "layers.1.attn", ANOTHER, ANOTHER),
    (models.Llama, {"window": 6}, "layers.1.attn", ANOTHER, ANOTHER),
    (models.Llama, {"softcap": 50.0}, "layers.1.attn", ANOTHER, ANOTHER),
    (models.Llama, {"interleaved": True}, "layers.1.attn", ANOTHER, ANOTHER),
    (models.Llama, {"tiled": True}, "layers.1.attn", ANOTHER, ANOTHER),
    (models.Llama, {"base": 500000.0}, "rotary", ANOTHER, ANOTHER),
    (models.Llama, {"rope_half": True}, "rotary", "same", WORSE),
    (models.Llama, {"act": "gelu"}, "layers.1.mlp", ANOTHER, ANOTHER),
    (models.Llama, {"parallel": True}, "layers.1", ANOTHER, ANOTHER),
    (models.Llama, {"post": True}, "layers.1", ANOTHER, ANOTHER),
    (models.Llama, {"residual": 0.99}, "layers.1", ANOTHER, ANOTHER),
    (models.Llama, {"embed_scale": 32**0.5}, "", ANOTHER, ANOTHER),
    (models.Llama, {"untied": True}, "head", ANOTHER, ANOTHER),
    (models.Llama, change("layers.2.attn.o_proj.weight", torch.t), "layers.2.attn.o_proj", ANOTHER, ANOTHER),
    (models.Llama, change("layers.2.mlp.up.weight", lambda w: w * 1.01), "layers.2.mlp.up", ANOTHER, ANOTHER),
    (models.GPT, {"eps": 1e-6}, "h.1.ln_1", ANOTHER, ANOTHER),
    (models.GPT, {"gelu": "none"}, "h.1.act", ANOTHER, ANOTHER),
    (models.GPT, {"order": (1, 0, 2)}, "h.1.attn", ANOTHER, ANOTHER),
    (models.GPT, {"order": (2, 1, 0)}, "h.1.attn", ANOTHER, ANOTHER),
    (models.GPT, {"merged": True}, "h.1.attn", ANOTHER, ANOTHER),
    (models.GPT, {"shift": 1}, "", ANOTHER, ANOTHER),
    (models.GPT, {"bare": True}, "", ANOTHER, ANOTHER),
    (models.GPT, lambda m: m.h[1].drop.train(), "h.1.drop", ANOTHER, ANOTHER),
    (models.GPT, lambda m: m.train(), "h.0.attn.drop", ANOTHER, ANOTHER),
    (models.GPT, change("h.0.fc.bias", torch.zeros_like), "h.0.fc", ANOTHER, ANOTHER),
    (models.GPT, change("h.2.ln_2.weight", torch.ones_like), "h.2.ln_2", ANOTHER, ANOTHER),
    (models.ResNet, {"eps": 1e-3}, "blocks.1.bn2", ANOTHER, ANOTHER),
    (models.ResNet, {"leaky": True}, "blocks.1.relu", ANOTHER, ANOTHER),
    (models.ResNet, {"early": True}, "blocks.1", ANOTHER, ANOTHER),
    (models.ResNet, {"max": True}, "", ANOTHER, ANOTHER),
    (models.ResNet, {"padding": "reflect"}, "blocks.1.conv1", ANOTHER, ANOTHER),
    (models.ResNet, {"pixels": 1 / 255}, "", ANOTHER, ANOTHER),
    (models.ResNet, lambda m: m.blocks[2].bn1.train(), "blocks.2.bn1", ANOTHER, ANOTHER),
    (models.ResNet, lambda m: m.blocks[0].bn2.running_mean.zero_(), "blocks.0.bn2", ANOTHER, ANOTHER),
    (models.Cross, {"first": False}, "encoder", ANOTHER, ANOTHER),
    (models.Cross, {"left": True}, "", ANOTHER, ANOTHER),
    (models.Cross, {"unmasked": True}, "attend", ANOTHER, ANOTHER),
    (models.Cross, {"temperature": 1.01}, "", ANOTHER, ANOTHER),
    (models.Cross, change("attend.in_proj_weight", lambda w: w.roll(32, 0)), "attend", ANOTHER, ANOTHER),
    (models.Recurrent, {"decay": True}, "scan", ANOTHER, ANOTHER),
    (models.Recurrent, {"late": True}, "scan", ANOTHER, ANOTHER),
    (models.Recurrent, {"half": True}, "scan", "same", WORSE),
    (models.Recurrent, {"last": False}, "", ANOTHER, ANOTHER),
    (models.Recurrent, change("lstm.bias_hh_l0", torch.zeros_like), "lstm", ANOTHER, ANOTHER),
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "case", PLANTED, ids=lambda c: f"{c[0].__name__}-{c[2]}-{c[1] if isinstance(c[1], dict) else 'weights'}"
)
def test_planted_differences_are_found_in_their_module(case: Any, dtype: torch.dtype) -> None:
    cls, switch, where, *verdicts = case
    a = made(cls, dtype)
    b = made(cls, dtype, **switch) if isinstance(switch, dict) else copy.deepcopy(a)
    if not isinstance(switch, dict):
        switch(b)
    if "untied" not in str(switch):
        b.load_state_dict(a.state_dict()) if isinstance(switch, dict) else None
    found = dtypeguard.diff(a, b, cast(BATCHES[cls](), dtype))
    assert found.verdict == verdicts[dtype is torch.bfloat16], str(found)
    assert (found.where.name if found.where else where) == where, str(found)
