"""Audits that look at values, on models of transformers and PyTorch's own modules: exact and silent."""

import copy

import numpy as np
import pytest
import torch
from architectures import ARCHITECTURES
from ranks import on_ranks
from support import BF16, F16, F32, F64, LIBRARIES_WARN, same
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.common_modules import module_db
from torch.utils import _pytree as pytree

import dtypeguard

pytestmark = LIBRARIES_WARN
# These cast to float32 by themselves, so their float64 program is no float64 program all the way.
CAST = frozenset(
    """
    Llama Mistral Qwen3 Gemma2 Mamba Mamba2 FalconMamba RWKV T5 LLaVA Bamba Qwen2-VL
    """.split()
) | {"Llama, no head", "T5 encoder"}
# The first two refuse float64; the third draws random numbers in eval too, and others in float64.
OTHER = {"Mixtral", "Qwen3-MoE", "SpeechT5"}
BAD = ("warning", "error")


def floats(value):
    leaves = pytree.tree_leaves(dict(value) if hasattr(value, "keys") else value)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]


def widened(value):
    def wide(leaf):
        return leaf.double() if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf

    return pytree.tree_map(wide, value)


def made(name):
    torch.manual_seed(0)
    np.random.seed(0)  # of masks that are drawn in training
    architecture = ARCHITECTURES[name]
    model = architecture.build()
    labels = architecture.labels() if architecture.labels else {}
    return model, architecture.inputs(lambda *shape: torch.randn(*shape)), labels


@pytest.mark.thin(5)
@pytest.mark.parametrize("name", sorted(set(ARCHITECTURES) - OTHER))
def test_the_shadow_of_a_model_is_its_float64_program(name):
    """To the bit, where the model casts nothing itself."""
    model, inputs, _ = made(name)
    twin = copy.deepcopy(model).eval().double()
    audit = dtypeguard.audit(values=True)
    with audit as report:
        outputs = [tensor for tensor in floats(model.eval()(**inputs)) if tensor.dtype is F32]
        memory = audit._recorder.values.shadow.memory
        shadows = [memory.read(tensor, F64).detach().clone() for tensor in outputs]
    expected = [tensor.double() for tensor in floats(twin(**widened(inputs)))]
    assert report.faults == []
    for shadow, wide in zip(shadows, expected, strict=True):
        assert torch.equal(shadow, wide) if name not in CAST else torch.dist(shadow, wide) <= 2e-7 * wide.norm()


WAYS = {"float32": (F32, None), "bfloat16": (BF16, None), "bf16 autocast": (F32, BF16), "fp16 autocast": (F32, F16)}


def trained(name, dtype, half):
    model, inputs, labels = made(name)
    model.to(dtype).train()
    inputs = {key: value.to(dtype) if value.is_floating_point() else value for key, value in inputs.items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", enabled=half is F16)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=half, enabled=half is not None):
            output = model(**inputs, **labels)
            loss = getattr(output, "loss", None)
            loss = loss if loss is not None else next(t for t in floats(output) if t.requires_grad).float().var()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses, model.state_dict(), torch.get_rng_state()


@pytest.mark.thin(9)
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_training_of_a_model_is_silent_and_as_without_an_audit(name, way):
    if way[0] is BF16 and not ARCHITECTURES[name].half:
        pytest.skip("it does not run in bfloat16 on a CPU")
    if (name, way) == ("BLIP-2", WAYS["fp16 autocast"]):
        pytest.skip("as it is initialized, activations of its vision model are about 1e-10, which float16 has not")
    alone = trained(name, *way)
    audit = dtypeguard.audit(values=True)
    with audit as report:
        result = trained(name, *way)
    assert report.faults == []
    assert same(alone, result)
    assert [f for f in report.findings if f.rule.startswith("DG9") and f.severity in BAD] == []


# Their float64 program is another one: random numbers, an eps that depends on the dtype, kernels of float32 alone,
# parameters that are made in the first call; of the losses, targets for which they are not finite.
ELSEWHERE = frozenset(
    """
    AlphaDropout CrossEntropyLoss Dropout Dropout1d Dropout2d Dropout3d FeatureAlphaDropout FractionalMaxPool2d
    FractionalMaxPool3d KLDivLoss LinearCrossEntropyLoss LPPool1d LPPool2d LPPool3d LSTM RMSNorm RReLU
    """.split()
)
MODULES = [i for i in module_db if i.module_cls.__name__ not in ELSEWHERE and not i.name.startswith("nn.Lazy")]


@pytest.mark.thin(4)
@pytest.mark.parametrize("info", MODULES, ids=lambda info: info.name)
@pytest.mark.filterwarnings("ignore")  # of some modules about their arguments, and of PyTorch about its own samples
def test_the_shadow_of_a_module_is_its_float64_program_to_the_bit(info):
    for training in (True, False):
        for sample in info.module_inputs_func(info, "cpu", F32, requires_grad=False, training=training):
            if sample.forward_input is None:
                continue
            torch.manual_seed(0)
            module = info.module_cls(*sample.constructor_input.args, **sample.constructor_input.kwargs).train(training)
            twin = copy.deepcopy(module).double()
            args, kwargs = sample.forward_input.args, sample.forward_input.kwargs
            wide = widened((args, kwargs))
            audit = dtypeguard.audit(values=True)
            with audit as report:
                torch.manual_seed(1)
                outputs = [tensor for tensor in floats(module(*args, **kwargs)) if tensor.dtype is F32]
                memory = audit._recorder.values.shadow.memory
                shadows = [memory.read(tensor, F64).detach().clone() for tensor in outputs]
            torch.manual_seed(1)
            expected = [tensor for tensor in floats(twin(*wide[0], **wide[1])) if tensor.dtype is F64]
            assert report.faults == []
            assert all(map(torch.equal, shadows, expected)), (training, sample.desc)


# ---------------------------------------------------------------- ranks


def of_ranks(rank, bf16):
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.GELU(), torch.nn.Linear(8, 3)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(1 + rank)
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=BF16, enabled=bf16):
            loss = model(torch.randn(5, 6)).float().square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model.state_dict()


@pytest.mark.thin(2)
@pytest.mark.parametrize("values", [True, "range"])
@pytest.mark.parametrize("bf16", [False, True], ids=["float32", "bf16 autocast"])
@on_ranks
def test_ddp_on_two_processes_is_silent_and_as_without_an_audit(rank, bf16, values):
    alone = of_ranks(rank, bf16)
    audit = dtypeguard.audit(values=values)
    with audit as report:
        result = of_ranks(rank, bf16)
    assert report.faults == []
    assert same(alone, result)
    assert [f for f in report.findings if f.rule.startswith("DG9") and f.severity in BAD] == []
