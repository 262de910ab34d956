"""What `describe` says of real models is what a guard in strict mode does, argument by argument."""

import contextlib
import inspect

import pytest
import torch
from architectures import ARCHITECTURES

from dtypeguard import DtypeError, describe, guard

FLOATS = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
SOME = """GPT-2 Llama Mixtral Mamba BERT T5 BART Whisper Wav2Vec2 ViT Swin ConvNeXt CLIP LLaVA PatchTST""".split()


def refused(module, path, name, dtype):
    """Whether the door of a module refuses an argument of a dtype; what the body says does not count."""
    signature = inspect.signature(module.forward).parameters
    others = {n: None for n, p in signature.items() if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD}
    with contextlib.suppress(Exception):
        try:
            module(**{**others, name: torch.ones(1, dtype=dtype)})
        except DtypeError as error:
            return error.module_path == path and error.argument == name
    return False


def disagreements(model, **options):
    """Guard a model, and say where its doors do otherwise than described."""
    said = describe(model, **options)
    guard(model, mode="strict", **options)
    assert [module.path for module in describe(model).modules] == [module.path for module in said.modules]
    for held in said.modules:
        module = model.get_submodule(held.path)
        path = f"{said.model}.{held.path}".removesuffix(".")
        for argument in (one for one in held.arguments if not one.name.startswith("*")):
            for region, dtypes in ((False, argument.dtypes), (True, argument.autocast)):
                with torch.autocast("cpu", enabled=region):
                    found = {dtype for dtype in FLOATS if not refused(module, path, argument.name, dtype)}
                if found != set(FLOATS if dtypes is None else dtypes):
                    yield held.path, argument.name, region, found, dtypes


@pytest.mark.parametrize("depth", ["auto", "all"])
@pytest.mark.parametrize("name", SOME)
@pytest.mark.thin(4)
@torch.no_grad()
def test_doors_do_as_described(name, depth):
    torch.manual_seed(0)
    model = ARCHITECTURES[name].build().to(torch.bfloat16).eval()
    assert list(disagreements(model, depth=depth)) == []


@torch.no_grad()
def test_t5_with_its_last_projections_in_float32():
    model = ARCHITECTURES["T5"].build().to(torch.bfloat16).eval()
    for path, module in model.named_modules():
        if path.endswith(".wo"):
            module.float()
    said = describe(model)
    dtypes = {held.path.rpartition(".")[2]: held.dtype for held in said.modules}
    assert (dtypes[""], dtypes["wi"], dtypes["wo"]) == (None, torch.bfloat16, torch.float32)
    assert list(disagreements(model)) == []
