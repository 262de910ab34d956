"""`diff` on real models: kernels of attention are rounding, what a configuration changes is found in its module."""

import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import dtypeguard

transformers = pytest.importorskip("transformers")
APART = Path(sys.prefix) / "apart"  # where `make .venv` puts what would break other packages' imports
SOURCE = Path(dtypeguard.__file__).parents[1]
SIZES = {
    "vocab_size": 200, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
CONFIGURED: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama": ("LlamaForCausalLM", {**SIZES, "num_key_value_heads": 2}),
    "Qwen3": ("Qwen3ForCausalLM", {**SIZES, "num_key_value_heads": 2, "head_dim": 16}),
    "Mixtral": ("MixtralForCausalLM", {**SIZES, "num_key_value_heads": 2, "num_local_experts": 4}),
    "GPT2": ("GPT2LMHeadModel", {"vocab_size": 200, "n_embd": 64, "n_layer": 2, "n_head": 4, **SPECIAL}),
    "Bert": ("BertForSequenceClassification", SIZES),
    "T5": (
        "T5ForConditionalGeneration",
        {"vocab_size": 200, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4, **SPECIAL,
         "decoder_start_token_id": 0},
    ),
}  # fmt: skip


def build(name: str, dtype: torch.dtype, attention: str = "eager", **changed: Any) -> Any:
    cls, sizes = CONFIGURED[name]
    config = getattr(transformers, f"{name}Config")(**{**sizes, **changed})
    config._attn_implementation = attention
    torch.manual_seed(0)
    return getattr(transformers, cls)(config).to(dtype).eval()


def batch(name: str) -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    tokens = torch.randint(5, 190, (2, 24))
    mask = torch.ones_like(tokens)
    mask[0, :5] = 0
    given = {"input_ids": tokens, "attention_mask": mask}
    return given | {"decoder_input_ids": tokens} if name == "T5" else given


KERNELS = [
    *((name, "sdpa") for name in CONFIGURED),
    *((name, "flex_attention") for name in ("Llama", "Bert")),
]  # fmt: skip


@pytest.mark.parametrize(
    "dtype", [pytest.param(torch.float32, marks=pytest.mark.slow), torch.bfloat16], ids=["float32", "bfloat16"]
)
@pytest.mark.parametrize(("name", "kernel"), KERNELS)
@pytest.mark.filterwarnings("ignore:_compile flag:DeprecationWarning", "ignore:flex_attention called:UserWarning")
def test_another_kernel_is_rounding(name: str, kernel: str, dtype: torch.dtype) -> None:
    a, b = build(name, dtype), build(name, dtype, kernel)
    b.load_state_dict(a.state_dict())
    found = dtypeguard.diff(a, b, batch(name))
    assert found.verdict != "another function", str(found)
    assert found.unmatched == ([], [])


CHANGED: list[tuple[str, dict[str, Any], str]] = [
    ("Llama", {"rms_norm_eps": 1e-5}, "model.layers.0.input_layernorm"),
    ("Llama", {"hidden_act": "gelu"}, "model.layers.0.mlp.act_fn"),
    ("Llama", {"rope_theta": 500000.0}, "model.rotary_emb"),
    ("Qwen3", {"rms_norm_eps": 1e-5}, "model.layers.0.input_layernorm"),
    ("GPT2", {"activation_function": "gelu"}, "transformer.h.0.mlp.act"),
    ("GPT2", {"layer_norm_epsilon": 1e-6}, "transformer.h.0.ln_1"),
    ("GPT2", {"scale_attn_by_inverse_layer_idx": True}, "transformer.h.1.attn"),
    ("Bert", {"hidden_act": "gelu_new"}, "bert.encoder.layer.0.intermediate.intermediate_act_fn"),
    ("T5", {"relative_attention_max_distance": 40}, "encoder.block.0.layer.0.SelfAttention"),
]


@pytest.mark.parametrize(("name", "changed", "where"), CHANGED, ids=[str(c[1]) for c in CHANGED])
def test_what_a_configuration_changes(name: str, changed: dict[str, Any], where: str) -> None:
    a, b = build(name, torch.bfloat16), build(name, torch.bfloat16, "sdpa", **changed)
    b.load_state_dict(a.state_dict(), strict=False)
    found = dtypeguard.diff(a, b, batch(name))
    assert (found.verdict, found.where and found.where.name) == ("another function", where), str(found)


def test_a_layer_whose_weights_were_not_loaded() -> None:
    a = build("Llama", torch.float32)
    b = copy.deepcopy(a)
    torch.nn.init.normal_(b.model.layers[1].mlp.up_proj.weight)
    found = dtypeguard.diff(a, b, batch("Llama"))
    assert found.where is not None
    assert found.where.name == "model.layers.1.mlp.up_proj"
    assert found.where.state[0].startswith("weight differs by ")


@pytest.mark.slow
@pytest.mark.skipif(not APART.exists(), reason="torchvision is not installed apart")
def test_vision_models_of_three_libraries() -> None:
    run = subprocess.run(
        [sys.executable, Path(__file__).with_name("diff_vision.py")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (SOURCE, APART)))},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    report = json.loads(run.stdout.splitlines()[-1])
    for name, (verdict, where, _) in report.items():
        if not name.endswith("eps"):
            assert verdict in ("same", "rounding"), name
        else:
            assert (verdict, where) == ("another function", "layer2.0.bn1" if "ResNet" in name else "blocks.1.norm2")
