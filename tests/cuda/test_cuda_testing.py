"""The testing kit's laws on a GPU: values made there, and values for modules that live there."""

import warnings

import jaxtyping
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jaxtyping import Float, Float32, Int64, Shaped
from torch import Tensor, nn

import dtypeguard
from dtypeguard import DeviceError, DtypeError
from dtypeguard.testing import inputs_for, tensors, violations_of
from dtypeguard.testing._elements import allocatable
from dtypeguard.testing._layouts import LAYOUTS

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
ON_CUDA = [d for d in allocatable() if not str(d).startswith(("torch.q", "torch.bits"))]
relaxed = settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(10, 3)
        self.fc = nn.Linear(3, 2)

    def forward(self, x: Float[Tensor, "b 3"], ids: Int64[Tensor, " b"]) -> Float[Tensor, "b 2"]:
        return self.fc(x + self.table(ids))


def net(dtype, device):
    return dtypeguard.guard(Net().to(device=device, dtype=dtype), mode="strict")


SMALL = {"x": st.floats(-1, 1, width=16), "ids": st.integers(0, 9)}


@pytest.mark.parametrize("dtype", ON_CUDA, ids=str)
def test_every_dtype_is_made_on_the_gpu(device, dtype):
    @relaxed
    @given(tensors(Shaped[Tensor, "a b"], device=device, dtype=dtype))
    def law(x):
        assert (x.device, x.dtype) == (device, dtype)

    law()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_is_the_same_on_the_gpu(device, layout):
    shape = {"a": 2, "b": 3, "c": 4, "d": 2}
    strides = set()

    @relaxed
    @given(
        st.sampled_from(["cpu", device]).flatmap(
            lambda d: tensors(Float32[Tensor, "a b c d"], axes=shape, device=d, layout=layout)
        )
    )
    def law(x):
        strides.add(x.stride())

    law()
    assert len(strides) == 1


@pytest.mark.parametrize("name", ["Float32", "BFloat16", "Float16", "Int32", "Bool", "Complex64", "Float", "Num"])
def test_values_on_the_gpu_keep_and_break_their_annotation(device, name):
    annotation = getattr(jaxtyping, name)[Tensor, "*batch n #m"]

    @relaxed
    @given(tensors(annotation, device=device))
    def kept(x):
        assert dtypeguard.check(x, annotation, mode="strict") is x

    @relaxed
    @given(violations_of(annotation, device=device))
    def broken(breach):
        with pytest.raises(breach.error):
            dtypeguard.check(breach.value, annotation, mode="strict")

    kept()
    broken()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_inputs_are_where_the_module_is(device, dtype):
    model = net(dtype, device)

    @relaxed
    @given(inputs_for(model, elements=SMALL))
    def law(inputs):
        assert {x.device for x in inputs.args} == {device}
        assert model(*inputs.args).dtype is dtype

    law()


@pytest.mark.parametrize("source", FLOATS, ids=str)
@pytest.mark.parametrize("target", FLOATS, ids=str)
def test_inputs_from_elsewhere_are_named_and_repaired(gpu, source, target):
    model, home = net(target, gpu), net(source, "cpu")

    @relaxed
    @given(inputs_for(home, elements=SMALL))
    def law(inputs):
        x, ids = inputs.args
        with pytest.raises(DtypeError if source is not target else DeviceError) as caught:
            model(x, ids)
        assert caught.value.argument == "x"
        with warnings.catch_warnings(action="ignore"):
            lenient = dtypeguard.guard(model, mode="lenient")(x, ids)
        dtypeguard.guard(model, mode="strict")
        assert torch.equal(lenient, model(x.to(gpu, target), ids.to(gpu)))

    law()
