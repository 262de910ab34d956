"""`dryrun` of real models and of PyTorch's own modules: cell by cell what eager does, with values and without any."""

import pytest
import torch
from architectures import ARCHITECTURES, drawn
from dryrun_cases import CPU, compared, eager, tally
from support import LIBRARIES_WARN
from test_module_db import INFOS, LARGE, build, samples

import dtypeguard

pytestmark = [*LIBRARIES_WARN, pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")]
values = pytest.mark.parametrize("values", [True, False], ids=["values", "no values"])
FEW = 3  # samples of a module


@pytest.mark.thin(24)
@values
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_an_architecture(name, values):
    torch.manual_seed(1)
    model, inputs = ARCHITECTURES[name].build().eval(), ARCHITECTURES[name].inputs(drawn(torch.float32))
    assert set(tally(compared(model, (), inputs, values=values))) == {"agree"}


@pytest.mark.thin(48)
@values
@pytest.mark.parametrize("training", [False, True], ids=["eval", "training"])
@pytest.mark.parametrize("name", [name for name in INFOS if name not in LARGE])
def test_a_module(name, training, values):
    whole = dtypeguard.results.DryrunCell(None, None, None)
    made = samples(name, torch.float32, training)
    for constructor, inputs in made[:: max(1, len(made) // FEW)]:
        model = build(name, constructor, inputs, torch.float32, training)
        if eager(model, inputs.args, inputs.kwargs, whole).runs:
            found = set(tally(compared(model, inputs.args, inputs.kwargs, values=values)))
            # oneDNN's LSTM has no float16 for some sizes, which a kernel with size 1 does not tell.
            assert found <= {"agree"} | ({"missed"} if name == "nn.LSTM" and not values else set())


def test_weights_that_are_only_promised():
    accelerate, transformers = pytest.importorskip("accelerate"), pytest.importorskip("transformers")
    sizes = {"hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32, "num_hidden_layers": 1}
    with accelerate.init_empty_weights():
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, vocab_size=32000))
    table = dtypeguard.dryrun(model, {"input_ids": torch.arange(6).reshape(2, 3)}, device=CPU)
    assert {cell.status for cell in table} == {"runs"}
    assert table["bfloat16", None, None].outputs[0] is torch.bfloat16
    assert all(parameter.is_meta for parameter in model.parameters())
