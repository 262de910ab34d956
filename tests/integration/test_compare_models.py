"""`compare` on models of transformers: shares explain the error, and what is kept in float32 runs and reaches it."""

import copy
import io

import numpy as np
import pytest
import torch
from architectures import ARCHITECTURES
from support import BF16, F16, F32, LIBRARIES_WARN, same

import dtypeguard
from dtypeguard import CompareError, compare

pytestmark = LIBRARIES_WARN
LOW = {"bfloat16": {"dtype": BF16}, "float16": {"dtype": F16}, "bf16 autocast": {"region": BF16}}
REFUSED = {("PatchTST", "bfloat16"), ("PatchTST", "float16")}  # a second dtype of its own
NOT_LINEAR = {("BLIP-2", "float16")}  # a norm of values of 1e-10, which float16 has not
RANDOM = {"SpeechT5"}  # it draws random numbers in eval, at places that depend on the dtype
LOWERED = {"Mixtral", "Qwen3-MoE"}  # an operation refuses float64


def made(name):
    torch.manual_seed(0)
    np.random.seed(0)
    architecture = ARCHITECTURES[name]
    return architecture.build().eval(), architecture.inputs(lambda *shape: torch.randn(*shape))


@pytest.mark.thin(3)
@pytest.mark.parametrize("low", LOW)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_model_of_transformers(name, low):
    model, inputs = made(name)
    if (name, low) in REFUSED:
        with pytest.raises(CompareError, match="was refused: mat1 and mat2 must have the same dtype"):
            compare(model, inputs, **LOW[low])
        return
    state = copy.deepcopy(model.state_dict())
    result = compare(model, inputs, **LOW[low])
    assert same(model.state_dict(), state)
    assert (result.reference is F32) == (name in LOWERED)
    if (name, low) in NOT_LINEAR:
        assert not result.linear
    else:
        assert result.explained == pytest.approx(1, abs=0.1 if name in RANDOM else 0.03)
    kept = result.keep(error=result.error / 2)
    assert kept.error <= result.error / 2
    assert kept.runs <= 16


@pytest.mark.thin(8)
@pytest.mark.parametrize("low", LOW)
@pytest.mark.parametrize("name", ["Llama", "T5", "Mixtral", "BERT", "Whisper", "Mamba2", "Swin", "CLIP"])
def test_what_is_kept_is_a_model_like_any_other(name, low):
    model, inputs = made(name)
    kept = (result := compare(model, inputs, **LOW[low])).keep(error=result.error / 2)
    applied = kept.apply(copy.deepcopy(model))
    assert list(applied.state_dict()) == list(model.state_dict())

    def call(model):
        with torch.no_grad(), torch.autocast("cpu", LOW[low].get("region"), "autocast" in low):
            return model(**inputs)[0]

    out = call(applied)
    file = io.BytesIO()
    torch.save(applied.state_dict(), file)
    file.seek(0)
    again = kept.apply(copy.deepcopy(model))
    again.load_state_dict(torch.load(file))
    assert same(call(again), out)
    torch.compiler.reset()
    compiled = call(torch.compile(applied, backend="eager"))
    assert torch.allclose(compiled.float(), out.float(), rtol=1e-2, atol=1e-2)
    assert type(dtypeguard.unguard(applied, borders=True)) is type(model)


def t5():
    """T5 with the values that trained checkpoints have: what `wo` gives is beyond float16, and nothing else is."""
    model, inputs = made("T5")
    for name, module in model.named_modules():
        if name.endswith("wo"):
            seen = []
            handle = module.register_forward_hook(lambda module, args, out, seen=seen: seen.append(out.abs().max()))
            with torch.no_grad():
                model(**inputs)
                module.weight *= 1e5 / max(seen)
            handle.remove()
    return model, inputs


def test_the_wo_of_t5_stays_in_float32():
    """As transformers' `_keep_in_fp32_modules` has it (https://github.com/huggingface/transformers/pull/20683)."""
    model, inputs = t5()
    result = compare(model, inputs, dtype=F16)
    assert "self.wo(hidden_states)" in " ".join(result.born)
    kept = result.keep(error=0.25)
    assert kept.names == tuple(name for name in dict(model.named_modules()) if name.endswith(".wo"))
    assert model._keep_in_fp32_modules == {"wo"}
