"""Ports of vision models beside their originals, from timm, torchvision and transformers; prints verdicts as JSON.

It is a program of its own: the torchvision of the package index is built for CUDA, and where CUDA's libraries are
missing its operators are too.
"""

import json
import warnings
from typing import Any

import torch

import dtypeguard

_LIBRARY = torch.library.Library("torchvision", "FRAGMENT")
for _name in ("nms", "qnms"):
    _LIBRARY.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torchvision's own, at import
    import timm
    import torchvision
    from transformers import ViTConfig, ViTForImageClassification


def told(found: Any) -> list[Any]:
    where = None if found.where is None else found.where.name
    return [found.verdict, where, sorted({row.how for row in found.rows if row.name})]


def resnets() -> tuple[Any, Any]:
    torch.manual_seed(0)
    a = torchvision.models.resnet18(weights=None).eval()
    for name, value in a.state_dict().items():
        if value.is_floating_point():
            value.copy_(torch.rand_like(value) + 0.5 if "running_var" in name else torch.randn_like(value) * 0.05)
    b = timm.create_model("resnet18", pretrained=False).eval()
    b.load_state_dict(a.state_dict())
    return a, b


def transformers() -> tuple[Any, Any]:
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 256}
    a = ViTForImageClassification(ViTConfig(**sizes, image_size=32, patch_size=8, num_labels=10, layer_norm_eps=1e-6))
    for parameter in a.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    b = timm.models.VisionTransformer(32, 8, embed_dim=64, depth=3, num_heads=4, num_classes=10)
    state, names = a.state_dict(), {"vit.embeddings.cls_token": "cls_token"}
    names |= {"vit.embeddings.position_embeddings": "pos_embed"}
    pairs = {
        "vit.embeddings.patch_embeddings.projection": "patch_embed.proj", "vit.layernorm": "norm", "classifier": "head",
        **{f"vit.layers.{n}.{one}": f"blocks.{n}.{other}" for n in range(3) for one, other in (
            ("layernorm_before", "norm1"), ("layernorm_after", "norm2"), ("attention.o_proj", "attn.proj"),
            ("mlp.fc1", "mlp.fc1"), ("mlp.fc2", "mlp.fc2"))},
    }  # fmt: skip
    names |= {f"{one}.{kind}": f"{other}.{kind}" for one, other in pairs.items() for kind in ("weight", "bias")}
    new = {other: state[one] for one, other in names.items()}
    for n in range(3):
        for kind in ("weight", "bias"):
            parts = [state[f"vit.layers.{n}.attention.{name}_proj.{kind}"] for name in "qkv"]
            new[f"blocks.{n}.attn.qkv.{kind}"] = torch.cat(parts)
    b.load_state_dict(new)
    return a.eval(), b.eval()


found = {}
for dtype in (torch.float32, torch.bfloat16):
    image = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1)).to(dtype)
    for name, make in (("ResNet", resnets), ("ViT", transformers)):
        a, b = (model.to(dtype) for model in make())
        found[f"{name} {dtype}"] = told(dtypeguard.diff(a, b, image))
        norm = b.layer2[0].bn1 if name == "ResNet" else b.blocks[1].norm2
        norm.eps = 1e-3
        found[f"{name} {dtype} eps"] = told(dtypeguard.diff(a, b, image))
print(json.dumps(found))
