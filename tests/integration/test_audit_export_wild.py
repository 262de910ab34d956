"""ONNX and transformers: what is exported in an audit is the same, and said once."""

import io

import pytest
import torch
from support import BF16, F32, F64
from torch import nn
from transformers import BertConfig, BertModel, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

import dtypeguard

SERIOUS = ("warning", "error")

# Torch's and onnxscript's own.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore:Converting a tensor to a Python"),
    pytest.mark.filterwarnings("ignore:torch.tensor results are registered as constants"),
]


class Normalised(nn.Module):
    def __init__(self, dtype):
        super().__init__()
        torch.manual_seed(0)
        self.register_buffer("mean", torch.tensor([0.1, 0.2, 0.3], dtype=dtype))
        self.fc = nn.Linear(3, 2)

    def forward(self, x):
        return self.fc((x - self.mean).to(self.fc.weight.dtype))


def onnx(dtype):
    program = torch.onnx.export(Normalised(dtype), (torch.ones(2, 3),), dynamo=True, verbose=False)
    return program.model_proto.graph.SerializeToString()


@pytest.mark.thin(2)
@pytest.mark.parametrize(("dtype", "count"), [(F64, 1), (F32, 0)])
def test_onnx(dtype, count):
    alone = onnx(dtype)
    with dtypeguard.audit() as report:
        watched = onnx(dtype)
    assert report.faults == []
    assert len(watched) == len(alone)
    bad = [f for f in report.findings if f.severity in SERIOUS]
    assert [(f.rule, f.count) for f in bad] == [("DG801", 1)] * count
    assert all(f.source.startswith("return self.fc((x - self.mean)") for f in bad)
    assert all(f.origin[0].startswith("torch.tensor([0.1, 0.2, 0.3]") for f in bad)


def test_onnx_by_torchscript():
    def export():
        file = io.BytesIO()
        torch.onnx.export(Normalised(F32), (torch.ones(2, 3),), file, dynamo=False)
        return file.getvalue()

    alone = export()
    with dtypeguard.audit() as report:
        watched = export()
    assert report.faults == []
    assert watched == alone
    assert [f for f in report.findings if f.severity in SERIOUS] == []


SMALL = {"num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 2, "vocab_size": 40}
MODELS = {
    "bert": lambda: BertModel(BertConfig(**SMALL, intermediate_size=32, max_position_embeddings=32)),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=16, n_head=2, vocab_size=40, n_positions=32)),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SMALL, intermediate_size=32, max_position_embeddings=32)),
}


@pytest.mark.thin(4)
@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_a_transformer_is_exported_silently(make, dtype):
    torch.manual_seed(0)
    model = make().eval().to(dtype)
    model.config.use_cache = False
    inputs = {"input_ids": torch.arange(8)[None]}
    alone = torch.export.export(model, (), inputs)
    with dtypeguard.audit() as report:
        watched = torch.export.export(model, (), inputs)
    assert report.faults == []
    assert watched.graph_module.code == alone.graph_module.code
    assert [f for f in report.findings if f.severity in SERIOUS] == []


class First(nn.Module):
    """The first of what a model gives: TorchScript knows no outputs of transformers."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids):
        return self.model(ids)[0]


@pytest.mark.thin(3)
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_a_transformer_is_traced_silently(make):
    torch.manual_seed(0)
    model = First(make().eval())
    model.model.config.use_cache = False
    ids = torch.arange(8)[None]
    alone = torch.jit.trace(model, ids)(ids)
    with dtypeguard.audit() as report:
        watched = torch.jit.trace(model, ids)(ids)
    assert report.faults == []
    assert torch.equal(alone, watched)
    assert [f for f in report.findings if f.severity in SERIOUS] == []
