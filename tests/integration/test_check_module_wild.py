"""`check_module` on modules that nobody here wrote: it finds what is wrong with them, and nothing else."""

import inspect
import warnings
from itertools import permutations

import pytest
import torch
from architectures import ARCHITECTURES, drawn
from support import BF16, F16, F32, F64
from test_module_db import OWNERS, build, cast, floats, outcome, raised, samples
from torch import nn

from dtypeguard.testing import CheckError, check_module

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:enable_nested_tensor is True"),  # torch's own, when the module is built
]
DTYPES = (F32, F64, F16, BF16)

# ---------------------------------------------------------------- PyTorch's own, with inputs from its own inventory

NARROWER = {(F32, F16), (F32, BF16)}
ALL = set(permutations(DTYPES, 2))
# What PyTorch computes in silence, parameters and input; all other modules with parameters always raise.
TRAPS = {
    **dict.fromkeys(["nn.BatchNorm1d", "nn.BatchNorm2d", "nn.BatchNorm3d", "nn.LayerNorm", "nn.GroupNorm"], NARROWER),
    **dict.fromkeys(["nn.InstanceNorm1d", "nn.InstanceNorm2d", "nn.InstanceNorm3d"], NARROWER),
    "nn.RMSNorm": ALL,
}


def sample_of(name):
    """The first sample of a module in which it has parameters, and, if it takes any, a floating input with axes."""
    for constructor, inputs in samples(name, F32, True):
        module = build(name, constructor, inputs, F32, True)
        axes = [tensor.dim() for tensor in floats([inputs.args, inputs.kwargs])]
        fits = 0 not in axes and (axes or name == "nn.Embedding")
        if fits and [*module.parameters()] and not raised(outcome(module, inputs.args, inputs.kwargs)[0]):
            return constructor, inputs
    raise LookupError(name)


def computed_in_silence(make, inputs):
    """The pairs of dtypes at which a module raises nothing, asked of PyTorch directly."""
    pairs = set()
    for dtype, other in ALL if floats([inputs.args, inputs.kwargs]) else ():
        result, _ = outcome(make().to(dtype), *cast([inputs.args, inputs.kwargs], other))
        if not raised(result):
            pairs.add((dtype, other))
    return pairs


@pytest.mark.parametrize("name", OWNERS)
def test_a_module_of_pytorch_s_keeps_every_property_and_its_traps_are_found(name):
    constructor, inputs = sample_of(name)

    def make():
        return build(name, constructor, inputs, F32, True)

    example = inspect.signature(make().forward).bind(*inputs.args, **inputs.kwargs)
    report = check_module(make, batch=example)
    traps = {(cell.parameter_dtype, cell.input_dtype) for cell in report.traps if cell.region is None}
    assert traps == TRAPS.get(name, set()) == computed_in_silence(make, inputs)
    assert len(report.cells) == (48 if floats([inputs.args, inputs.kwargs]) else 12)
    for cell in report.cells:
        if cell.region is None and (cell.parameter_dtype, cell.input_dtype) not in traps:
            same = cell.input_dtype in (None, cell.parameter_dtype)
            assert cell.status == ("same" if same else "cast"), cell


def test_a_loss_with_parameters_computes_in_silence_in_some_ways_only():
    options = nn.modules.linear_cross_entropy_options.LinearCrossEntropyOptions()
    example = (torch.ones(4, 3), torch.tensor([0, 1, 2, 1]))
    report = check_module(lambda: nn.LinearCrossEntropyLoss(3, 5), batch=example, region=(None,))
    assert report.traps == []
    report = check_module(lambda: nn.LinearCrossEntropyLoss(3, 5, options=options), batch=example, region=(None,))
    pairs = [(cell.parameter_dtype, cell.input_dtype) for cell in report.traps]
    assert pairs == [(F32, F16), (F32, BF16), (F64, F16), (F64, BF16), (F16, BF16), (BF16, F16)]
    assert {cell.guard for cell in report.traps} == {"repairs"}


def x(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


# What the inventory has not, or not so.
OTHERS = {
    "Embedding, then Linear": (lambda: nn.Sequential(nn.Embedding(7, 3), nn.Linear(3, 2)), torch.arange(7)),
    "EmbeddingBag": (lambda: nn.EmbeddingBag(7, 3, mode="sum"), (torch.ones(2, 3).long(), None, x(2, 3))),
    "AdaptiveLogSoftmaxWithLoss": (
        lambda: nn.AdaptiveLogSoftmaxWithLoss(16, 12, [4, 8]),
        (x(4, 16), torch.tensor([0, 5, 9, 11])),
    ),
    "LSTM with dropout and states": (
        lambda: nn.LSTM(3, 4, 2, dropout=0.5),
        (x(5, 2, 3), (x(2, 2, 4), x(2, 2, 4))),
    ),
    "TransformerEncoder, in evaluation": (
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2).eval(),
        {"src": x(2, 5, 8), "mask": torch.zeros(5, 5)},
    ),
    "spectral norm": (lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(3, 2)), x(4, 3)),
    "ReLU in place": (lambda: nn.ReLU(inplace=True), x(4, 3)),
    "CrossEntropyLoss with weights": (
        lambda: nn.CrossEntropyLoss(weight=torch.ones(3)),
        (x(4, 3), torch.tensor([0, 1, 2, 1])),
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_modules_of_pytorch_s_keep_every_property_and_have_no_trap(name):
    factory, example = OTHERS[name]
    report = check_module(factory, batch=example)
    assert report.traps == []
    assert {cell.status for cell in report.cells if cell.region is None} >= {"same"}


# ---------------------------------------------------------------- Hugging Face

SOUND = """
    GPT-2|Llama|BERT|T5 encoder|Whisper|Wav2Vec2|ViT|CLIP|ConvNeXt|Mixtral|BART|Qwen3|Gemma2|Swin|Decision Transformer
""".strip().split("|")

UNSUPPORTED = {"Mixtral": {F64: "unsupported"}}  # grouped matrix multiplication has no float64

# What is wrong with a model: the property that finds it, and where; above it the code that does it.
FAULTY = {
    # A = -torch.exp(self.A_log.float()): the state is float32 beside half parameters, float64 beside float64 ones.
    "Mamba": ("output dtype is stable", "result.cache_params.layers[0].recurrent_states[0]"),
    "FalconMamba": ("output dtype is stable", "result.cache_params.layers[0].recurrent_states[0]"),
    # torch.eye without a dtype, in the loss.
    "SigLIP": ("default dtype", "result.loss"),
    # Sums of a bool mask, divided: of the default dtype, which makes the scaled data float32 beside half parameters.
    "PatchTST": ("one dtype", "denominator.clamp_min(1.0) at "),
}


def checked(name):
    model = ARCHITECTURES[name]
    example = model.inputs(drawn(F32)) | (model.labels() if model.labels else {})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return check_module(lambda: model.build().eval(), batch=example)


@pytest.mark.parametrize("name", SOUND)
def test_a_model_of_hugging_face_s_keeps_every_property(name):
    report = checked(name)
    matched = {
        cell.parameter_dtype: cell.status
        for cell in report.cells
        if cell.region is None and cell.input_dtype in (None, cell.parameter_dtype)
    }
    assert matched == dict.fromkeys(DTYPES, "same") | UNSUPPORTED.get(name, {})
    assert {cell.status for cell in report.cells} <= {"same", "cast", "trap", "unsupported"}


@pytest.mark.parametrize("name", FAULTY)
def test_a_fault_of_a_model_of_hugging_face_s_is_found(name):
    with pytest.raises(CheckError) as caught:
        checked(name)
    first = caught.value.report.failures[0]
    said, where = FAULTY[name]
    assert first.property == said
    assert where in f"{first.message} {first.got} {first.fix}"
    properties = {failure.property for failure in caught.value.report.failures}
    assert properties <= {"output dtype is stable", "one dtype", "default dtype"}
