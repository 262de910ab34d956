"""What `autocast=` makes of a tensor's dtype inside an enabled `torch.autocast` region.

The verdicts come from one small function that restates the rule, over every combination of input dtype, region,
annotation, parameters' dtype and option, for the three doors there are.
"""

import contextlib
import copy
import itertools

import pytest
import torch
from jaxtyping import Float, Float16, Float32, Float64
from torch import Tensor, nn

import dtypeguard
from dtypeguard import CastWarning, DtypeError, enforce, guard

pytestmark = pytest.mark.filterwarnings("ignore:enforce reads annotations:dtypeguard.DtypeGuardWarning")
F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
INPUTS = (F16, BF16, F32, F64)
REGIONS = (None, BF16, F16)
CONCRETE = {"Float32": F32, "Float16": F16, "Float64": F64}
HINTS = {"Float32": Float32[Tensor, "n"], "Float16": Float16[Tensor, "n"], "Float64": Float64[Tensor, "n"]}
HINTS |= {"Float": Float[Tensor, "n"], "unannotated": None}


def region(dtype, device="cpu"):
    return contextlib.nullcontext() if dtype is None else torch.autocast(device, dtype)


def ones(dtype=F32, *shape):
    return torch.ones(shape or (3,), dtype=dtype)


# ---------------------------------------------------------------- the rule


def wanted(door, annotation, anchor):
    """The dtype that is expected; None if any will do."""
    if annotation in CONCRETE:
        return CONCRETE[annotation]
    follows = door == "guard" or (door == "method" and annotation == "Float")
    return anchor if follows else None


def accepts(door, annotation, anchor, option, within, given):
    target = wanted(door, annotation, anchor)
    if target is None or given is target:
        return True
    casts = {F16, BF16, F32}  # autocast never casts float64
    speaks_for = {F32} if door == "function" else {F32, anchor}
    return option == "follow" and within is not None and given in casts and target in casts and target in speaks_for


def body(*args):
    """What each door runs: it hands back what it was given, and whether autocast is on."""
    return args[-1], torch.is_autocast_enabled("cpu")


def open_door(door, annotation, anchor, option, mode):
    hint = HINTS[annotation]

    def forward(self, x):
        return body(self, x)

    def function(x):
        return body(x)

    fn = function if door == "function" else forward
    if hint is not None:
        fn.__annotations__ = {"x": hint}
    if door == "function":
        return enforce(mode=mode, autocast=option)(fn)
    if door == "method":
        fn = enforce(mode=mode, autocast=option)(fn)
    model = type("Model", (nn.Module,), {"forward": fn})()
    model.weight = nn.Parameter(torch.ones(1, dtype=anchor))
    return guard(model, mode=mode, autocast=option) if door == "guard" else model


DOORS = [
    *itertools.product(["guard"], HINTS, INPUTS),
    *itertools.product(["method"], HINTS, INPUTS),
    *itertools.product(["function"], HINTS, [None]),
]


@pytest.mark.parametrize("option", ["follow", "ignore", "disable"])
@pytest.mark.parametrize(("door", "annotation", "anchor"), DOORS)
def test_strict_verdicts_are_the_rules(door, annotation, anchor, option):
    call = open_door(door, annotation, anchor, option, "strict")
    expected, got = {}, {}
    for within, given in itertools.product(REGIONS, INPUTS):
        right = accepts(door, annotation, anchor, option, within, given)
        expected[within, given] = "same object" if right else wanted(door, annotation, anchor)
        x = ones(given)
        with region(within):
            try:
                got[within, given] = "same object" if call(x)[0] is x else "a copy"
            except DtypeError as error:
                got[within, given] = error.expected
    assert got == expected


@pytest.mark.filterwarnings("ignore::dtypeguard.CastWarning")
@pytest.mark.parametrize("option", ["follow", "ignore", "disable"])
@pytest.mark.parametrize(("door", "annotation", "anchor"), DOORS)
def test_lenient_casts_what_strict_refuses_and_nothing_else(door, annotation, anchor, option):
    call = open_door(door, annotation, anchor, option, "lenient")
    expected, got = {}, {}
    for within, given, _ in itertools.product(REGIONS, INPUTS, range(2)):
        right = accepts(door, annotation, anchor, option, within, given)
        expected[within, given] = "same object" if right else wanted(door, annotation, anchor)
        x = ones(given)
        with region(within):
            y = call(x)[0]
        got[within, given] = "same object" if y is x else y.dtype
    assert got == expected


@pytest.mark.filterwarnings("ignore::dtypeguard.CastWarning")
@pytest.mark.parametrize("given", [F32, F64])
@pytest.mark.parametrize("option", ["follow", "ignore", "disable"])
@pytest.mark.parametrize("door", ["guard", "method", "function"])
def test_only_disable_runs_the_body_with_autocast_off(door, option, given):
    call = open_door(door, "Float32", F32, option, "lenient")
    with region(BF16):
        assert call(ones(given))[1] is (option != "disable")
        assert torch.is_autocast_enabled("cpu")
    assert call(ones(given))[1] is False


# ---------------------------------------------------------------- regions


@pytest.mark.parametrize("door", ["guard", "method"])
def test_regions_nest(door):
    call = open_door(door, "Float", F32, "follow", "strict")
    x = ones(BF16)

    def refuses():
        with pytest.raises(DtypeError):
            call(x)
        return True

    assert refuses()
    with torch.autocast("cpu", BF16):
        assert call(x)[0] is x
        with torch.autocast("cpu", enabled=False):
            assert refuses()
            with torch.autocast("cpu", F16):
                assert call(x)[0] is x
            assert refuses()
        assert call(x)[0] is x
    assert refuses()


@pytest.mark.parametrize("door", ["guard", "method"])
def test_a_region_of_another_device_type_does_not_count(door):
    call = open_door(door, "Float", F32, "follow", "strict")
    before = torch.is_autocast_enabled("cuda")
    torch.set_autocast_enabled("cuda", True)
    try:
        with pytest.raises(DtypeError):
            call(ones(BF16))
    finally:
        torch.set_autocast_enabled("cuda", before)


def test_a_device_that_autocast_does_not_know_has_no_region():
    model = guard(nn.Linear(3, 2, device="meta"), mode="strict")
    x = torch.ones(2, 3, device="meta")
    with region(BF16):
        assert model(x).is_meta
        with pytest.raises(DtypeError):
            model(x.double())


@pytest.mark.filterwarnings("ignore::dtypeguard.CastWarning")
def test_the_autocast_that_counts_is_that_of_the_device_where_the_body_gets_a_tensor():
    class Net(nn.Linear):
        def forward(self, x):
            return x

    for device, moved in (("cpu", ("cpu", BF16)), ("meta", ("meta", F32))):
        model, given = guard(Net(2, 2, device=device)), [ones(BF16, 1, 2), torch.tensor(1.0, dtype=BF16)]
        with region(BF16):
            x, scalar = model.forward(given)
        assert (x.device.type, x.dtype) == moved
        assert scalar is given[1]  # it stays where it is


def test_what_is_accepted_inside_a_region_is_not_remembered_outside():
    model = guard(nn.Linear(3, 2), mode="lenient")
    x = ones(BF16, 2, 3)
    with region(BF16):
        model(x)
    with pytest.warns(CastWarning):
        assert model(x).dtype is F32
    with region(BF16):
        model(x)
    assert [record.count for record in dtypeguard.casts()] == [1]


def test_containers_get_the_same_second_chance():
    class Model(nn.Linear):
        def forward(self, batch, **more):
            return batch["x"][0]

    model = guard(Model(3, 2), mode="strict")
    batch = {"x": [ones(BF16), (ones(F16), ones())], "ids": torch.arange(3)}
    with region(BF16):
        assert model(batch, extra=ones(F16)) is batch["x"][0]
        batch["x"][1] = (ones(F64),)
        with pytest.raises(DtypeError) as caught:
            model(batch)
    assert caught.value.argument == "batch['x'][1][0]"


def test_an_explicit_dtype_counts_as_the_anchors():
    class Model(nn.Module):
        def forward(self, x):
            return x

    for dtype in (F32, BF16):
        model = guard(Model(), mode="strict", dtype=dtype)
        with region(BF16):
            assert model(ones(F16)).dtype is F16
            with pytest.raises(DtypeError):
                model(ones(F64))
        with pytest.raises(DtypeError):
            model(ones(F16))


# ---------------------------------------------------------------- results


RESULTS = [
    # option, annotation, what the body returns, what comes out: of strict mode only if it is the same
    ("follow", Float32[Tensor, "..."], BF16, BF16),
    ("follow", Float32[Tensor, "..."], F64, F32),
    ("follow", Float[Tensor, "..."], F16, F16),
    ("follow", Float[Tensor, "..."], F64, F32),
    ("follow", Float16[Tensor, "..."], BF16, F16),
    ("ignore", Float32[Tensor, "..."], BF16, F32),
    ("ignore", Float[Tensor, "..."], F32, F32),
    ("disable", Float[Tensor, "..."], BF16, F32),
]


@pytest.mark.parametrize("door", ["guard", "method"])
@pytest.mark.parametrize(("option", "hint", "returned", "expected"), RESULTS)
def test_results_follow_like_arguments(door, option, hint, returned, expected):
    def forward(self, x):
        return x.to(returned)

    forward.__annotations__ = {"return": hint}
    for mode in ("strict", "lenient"):
        fn = enforce(mode=mode, autocast=option)(forward) if door == "method" else forward
        model = type("Model", (nn.Linear,), {"forward": fn})(3, 2)
        if door == "guard":
            model = guard(model, mode=mode, autocast=option)
        with region(BF16):
            if returned is expected:
                assert model(ones()).dtype is expected
            elif mode == "strict":
                with pytest.raises(DtypeError, match="result"):
                    model(ones())
            else:
                with pytest.warns(CastWarning):
                    assert model(ones()).dtype is expected


def test_output_dtype_is_exact_inside_a_region():
    model = guard(nn.Linear(3, 2), mode="lenient", output_dtype=F32)
    with region(BF16), pytest.warns(CastWarning):
        assert model(ones(F32, 2, 3)).dtype is F32


def test_disable_computes_in_the_parameters_dtype():
    plain = nn.Linear(3, 2)
    expected = plain(ones(F32, 2, 3))
    model = guard(copy.deepcopy(plain), mode="lenient", autocast="disable")
    with region(BF16):
        assert torch.equal(model(ones(F32, 2, 3)), expected)
        with pytest.warns(CastWarning):
            assert torch.equal(model(ones(BF16, 2, 3)), expected)
        assert plain(ones(F32, 2, 3)).dtype is BF16


def test_disable_ends_with_the_body_even_if_it_raises():
    @enforce(mode="strict", autocast="disable")
    def fails(x: Float32[Tensor, "n"]):
        raise KeyError("x")

    with region(BF16):
        with pytest.raises(KeyError):
            fails(ones())
        assert torch.is_autocast_enabled("cpu")


# ---------------------------------------------------------------- training


@pytest.mark.parametrize("given", [F32, BF16])
def test_a_compiled_model_follows_too(given):
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    compiled = torch.compile(guard(model, mode="strict", depth="all"), backend="eager", fullgraph=True)
    with region(BF16):
        assert compiled(ones(given, 2, 3)).dtype is BF16
    if given is BF16:
        with pytest.raises(Exception, match="is bfloat16, the module's parameters are float32"):
            compiled(ones(BF16, 2, 3))
    torch._dynamo.reset()


# ---------------------------------------------------------------- what autocast leaves alone


class Around(nn.Module):
    """A layer in a model: it gets what the model gets, or what a linear layer makes of it."""

    def __init__(self, layer, before=None):
        super().__init__()
        self.before, self.layer = before or nn.Identity(), layer

    def forward(self, x):
        return self.layer(self.before(x["x"] if isinstance(x, dict) else x))


LAYERS = {
    "Linear": nn.Linear(4, 4), "Conv1d": nn.Conv1d(4, 4, 1), "PReLU": nn.PReLU(), "RMSNorm": nn.RMSNorm(4),
    "LayerNorm": nn.LayerNorm(4), "GroupNorm": nn.GroupNorm(2, 4), "BatchNorm1d": nn.BatchNorm1d(4),
    "RNNCell": nn.RNNCell(4, 4), "InstanceNorm1d": nn.InstanceNorm1d(4, affine=True),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::dtypeguard.CastWarning", "ignore:Mismatch dtype between input and weight")
@pytest.mark.parametrize("within", [BF16, F16])
@pytest.mark.parametrize("given", [F32, F16, BF16])
@pytest.mark.parametrize("own", [BF16, F16, F32])
@pytest.mark.parametrize("name", LAYERS)
def test_what_pytorch_refuses_in_a_region_a_guard_repairs_and_nothing_else(name, own, given, within):
    """Where the bare model computes, a guard changes nothing; else it says so, or casts."""
    layer = copy.deepcopy(LAYERS[name]).eval()
    x = ones(given, *((4, 4, 4) if name in ("Conv1d", "GroupNorm", "InstanceNorm1d") else (4, 4))).cumsum(-1)
    for model in (layer, Around(layer), Around(layer, nn.Linear(4, 4))):
        model.to(own)
        strict, lenient = (guard(copy.deepcopy(model), mode=mode) for mode in ("strict", "lenient"))
        for told in (x, {"x": x}) if model is not layer else (x,):
            with region(within):
                try:
                    bare = model(told)
                except RuntimeError:
                    if given is own:  # what autocast makes inside is looked at where the model got another dtype
                        continue
                    with pytest.raises(DtypeError, match=f"the module's parameters are {str(own)[6:]}"):
                        strict(told)
                    inner = x if model is layer else model.before(x)
                    assert torch.equal(lenient(told), layer(inner.to(own)))
                else:
                    for guarded in (strict, lenient):
                        assert torch.equal(guarded(told), bare)


def test_a_compiled_model_is_repaired_where_autocast_leaves_a_layer_alone():
    model = Around(nn.LayerNorm(4)).bfloat16()
    compiled = torch.compile(guard(copy.deepcopy(model), mode="lenient"), backend="eager", fullgraph=True)
    x = ones(F32, 2, 4).cumsum(-1)
    with region(BF16), pytest.warns(CastWarning):
        assert torch.equal(compiled(x), model(x.bfloat16()))
    torch._dynamo.reset()
