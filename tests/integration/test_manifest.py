"""Manifests of real models: what is done to a model without changing its state is no difference."""

import copy
import pickle
import warnings

import pytest
import torch
from architectures import ARCHITECTURES, drawn
from torch import nn

import dtypeguard


def train(model, call, steps=3):
    """Train a model on the sum of what it returns; the optimizer."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    for _ in range(steps):
        found = call()
        outputs = found.values() if isinstance(found, dict) else [found]
        total = sum(out.float().sum() for out in outputs if isinstance(out, torch.Tensor) and out.requires_grad)
        total.backward()
        optimizer.step()
        optimizer.zero_grad()
    return optimizer


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_what_leaves_the_state_alone_is_no_difference(name, tmp_path):
    architecture = ARCHITECTURES[name]
    model = architecture.build()
    lock = dtypeguard.manifest(model)
    lock.save(tmp_path / "dtypes.lock")
    lock = dtypeguard.manifest.load(tmp_path / "dtypes.lock")
    assert str(dtypeguard.manifest(architecture.build())) == str(lock)
    model.save_pretrained(tmp_path / "saved")
    inputs = architecture.inputs(drawn(torch.float32))
    forms = {
        "loaded": type(model).from_pretrained(tmp_path / "saved", dtype=torch.float32),
        "a file": tmp_path / "saved",
        "a copy": copy.deepcopy(model),
        "a pickle": pickle.loads(pickle.dumps(model)),
        "compiled": torch.compile(model),
        "there and back": copy.deepcopy(model).to(torch.bfloat16).to(torch.float32),
        "its state": model.state_dict(),
    }
    for form, other in forms.items():
        found = lock.diff(other)
        assert not found, f"{form}: {found}"
        assert not found.new, f"{form}: {found}"
    train(model.train(), lambda: model(**inputs))
    lock.check(model)
