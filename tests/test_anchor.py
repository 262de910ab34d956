"""The anchor: which parameter says what dtype and device a module wants, and when none does."""

import types

import pytest
import torch
from jaxtyping import Bool, Float, Float32, Int, Int64
from torch import Tensor, nn

import dtypeguard
from dtypeguard import CastWarning, DeviceError, DtypeError, enforce, guard, is_guarded, unguard

F8, F16, BF16, F32, F64 = torch.float8_e4m3fn, torch.float16, torch.bfloat16, torch.float32, torch.float64
FLOATS = (F16, BF16, F32, F64)
CPU, META = torch.device("cpu"), torch.device("meta")


class Guarded(nn.Module):
    """Returns what it gets; `guard` looks at its door."""

    def forward(self, x, *more):
        return x


class Enforced(nn.Module):
    """Returns what it gets; its annotation names a family, so it follows its parameters."""

    @enforce(mode="strict")
    def forward(self, x: Float[Tensor, "..."], *more):
        return x


def door(cls, things):
    """A module of this class that holds the given parameters, buffers and modules."""
    model = cls()
    for name, thing in things.items():
        if isinstance(thing, nn.Module):
            model.add_module(name, thing)
        elif isinstance(thing, nn.Parameter):
            model.register_parameter(name, thing)
        else:
            model.register_buffer(name, thing)
    return guard(model, mode="strict", depth="boundary") if cls is Guarded else model


def parameter(dtype, device="cpu"):
    return nn.Parameter(torch.ones(2, 2, device=device).to(dtype), requires_grad=False)


def buffer(dtype):
    return torch.ones(2).to(dtype)


def ones(dtype=F32, *shape, device="cpu"):
    return torch.ones(shape or (2, 3), dtype=dtype, device=device)


def accepted(model, candidates=FLOATS, make=ones):
    """The dtypes that strict mode lets pass."""
    passed = set()
    for candidate in candidates:
        try:
            model(make(candidate))
        except DtypeError:
            continue
        passed.add(candidate)
    return passed


# ---------------------------------------------------------------- agreement


ANCHORS = {
    "nothing": (lambda: {}, set(FLOATS)),
    "a parameter": (lambda: {"w": parameter(BF16)}, {BF16}),
    "parameters that agree": (lambda: {"w": parameter(F16), "b": parameter(F16)}, {F16}),
    "parameters that do not": (lambda: {"w": parameter(F32), "b": parameter(BF16)}, set(FLOATS)),
    "deep inside": (lambda: {"a": nn.Sequential(nn.ReLU(), nn.Sequential(nn.Linear(2, 2))).double()}, {F64}),
    "children that agree": (lambda: {"a": nn.Linear(2, 2), "b": nn.Conv1d(1, 1, 1)}, {F32}),
    "children that do not": (lambda: {"a": nn.Linear(2, 2), "b": nn.Linear(2, 2).half()}, set(FLOATS)),
    "an own scale over a narrower body": (
        lambda: {"scale": parameter(F32), "body": nn.Linear(2, 2).to(BF16)},
        set(FLOATS),
    ),
    "a narrower scale over a wider body": (
        lambda: {"scale": parameter(BF16), "body": nn.Linear(2, 2)},
        set(FLOATS),
    ),
    "integer parameters beside": (lambda: {"n": parameter(torch.int64), "w": parameter(BF16)}, {BF16}),
    "integer parameters alone": (lambda: {"n": parameter(torch.int64)}, set(FLOATS)),
    "complex parameters alone": (lambda: {"w": parameter(torch.complex64)}, set(FLOATS)),
    "float8 weights beside": (lambda: {"w": parameter(F8), "b": parameter(BF16)}, {BF16}),
    "float8 weights alone": (lambda: {"w": parameter(F8)}, set(FLOATS)),
    "a parameter and another buffer": (lambda: {"table": buffer(F64), "w": parameter(F32)}, {F32}),
    "a buffer": (lambda: {"mean": buffer(F32)}, {F32}),
    "buffers that agree": (lambda: {"mean": buffer(F16), "n": buffer(torch.int64), "std": buffer(F16)}, {F16}),
    "buffers that do not": (lambda: {"mean": buffer(F32), "std": buffer(F64)}, set(FLOATS)),
    "buffers of a child": (lambda: {"norm": nn.BatchNorm1d(2, affine=False).double()}, {F64}),
    "integer buffers": (lambda: {"n": buffer(torch.int64)}, set(FLOATS)),
}


@pytest.mark.parametrize("cls", [Guarded, Enforced])
@pytest.mark.parametrize("what", ANCHORS)
def test_an_anchor_is_what_all_floating_parameters_agree_on(what, cls):
    things, expected = ANCHORS[what]
    assert accepted(door(cls, things())) == expected


@pytest.mark.parametrize("cls", [Guarded, Enforced])
def test_an_accepted_argument_is_the_same_object(cls):
    x = ones(BF16)
    assert door(cls, {"w": parameter(BF16)})(x) is x
    assert door(cls, {"w": parameter(BF16), "b": parameter(F32)})(x) is x


@pytest.mark.parametrize("cls", [Guarded, Enforced])
def test_the_message_names_the_parameter_that_speaks(cls):
    with pytest.raises(DtypeError, match=r"parameters are bfloat16(.|\n)*bfloat16 like body\.1\.weight \(bf16\[2,2\]"):
        door(cls, {"body": nn.Sequential(nn.ReLU(), nn.Linear(2, 2)).to(BF16)})(ones())
    with pytest.raises(DtypeError, match=r"buffers are float64(.|\n)*float64 like mean"):
        door(cls, {"mean": buffer(F64)})(ones())


INSTANCES = [
    (lambda: {"table": buffer(F32)}, {F32}),
    (lambda: {"table": buffer(F32), "w": parameter(BF16)}, {BF16}),
    (lambda: {"w": parameter(F16)}, {F16}),
    (lambda: {"body": nn.Linear(2, 2).double()}, {F64}),
    (lambda: {}, set(FLOATS)),
    (lambda: {"w": parameter(F8), "b": parameter(F32)}, {F32}),
    (lambda: {"w": parameter(F32), "b": parameter(BF16)}, set(FLOATS)),
]


@pytest.mark.parametrize("first", range(len(INSTANCES)))
@pytest.mark.parametrize("kind", [Guarded, Enforced])
def test_each_instance_has_its_own_anchor_whichever_was_called_first(kind, first):
    class Fresh(kind):
        @enforce(mode="strict")
        def forward(self, x: Float[Tensor, "..."]):
            return x

    class Bare(kind):
        def forward(self, x):
            return x

    cls = Fresh if kind is Enforced else Bare
    order = [*range(first, len(INSTANCES)), *range(first)]
    models = {i: door(cls, INSTANCES[i][0]()) for i in order}
    if cls is Bare:
        models = {i: guard(model, mode="strict", depth="boundary") for i, model in models.items()}
    assert {i: accepted(model) for i, model in models.items()} == {i: INSTANCES[i][1] for i in order}


@pytest.mark.parametrize("cls", [Guarded, Enforced])
def test_the_anchor_is_read_live(cls):
    model = door(cls, {"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)})
    assert accepted(model) == {F32}
    assert accepted(model.half()) == {F16}
    model.b.float()
    assert accepted(model) == set(FLOATS)
    model.a = nn.ReLU()
    assert accepted(model) == {F32}
    model.a, model.b = nn.Linear(2, 2, dtype=F64), None
    assert accepted(model) == {F64}


def test_any_method_of_a_module_follows_it():
    class Model(nn.Linear):
        @enforce(mode="strict")
        def encode(self, x: Float[Tensor, "..."]):
            return x

        @enforce(mode="strict")
        def _private(this, x: Float[Tensor, "..."]):  # noqa: N805
            return x

    model = Model(2, 2).to(BF16)
    assert accepted(model.encode) == accepted(model._private) == {BF16}


def test_a_function_that_takes_self_may_become_a_method():
    class Model(nn.Linear):
        pass

    def encode(self, x: Float[Tensor, "..."]):
        return x

    Model.encode = enforce(encode, mode="strict")
    assert accepted(Model(2, 2).to(BF16).encode) == {BF16}


def test_a_constructor_does_not_follow_what_it_is_about_to_make():
    class Model(nn.Module):
        @enforce(mode="strict")
        def __init__(self, scale: Float[Tensor, "n"], shift: Float32[Tensor, "n"]):
            super().__init__()
            self.scale = nn.Parameter(scale + shift)

    model = Model(ones(BF16, 2), ones(F32, 2))
    model.__init__(ones(F64, 2), ones(F32, 2))
    with torch.autocast("cpu", dtype=BF16), pytest.raises(DtypeError, match="`shift` is bfloat16"):
        model.__init__(ones(F64, 2), ones(BF16, 2))


def test_a_family_without_the_anchors_dtype_is_the_families_own():
    class Model(nn.Linear):
        @enforce(mode="strict")
        def forward(self, ids: Int[Tensor, "n"], mask: Bool[Tensor, "n"] | None = None):
            return ids

    model = Model(2, 2).to(BF16)
    integers = (torch.int8, torch.int32, torch.int64)
    assert accepted(model, (*integers, *FLOATS), lambda d: torch.ones(2).to(d)) == set(integers)
    assert model(torch.ones(2, dtype=torch.int64), torch.ones(2, dtype=torch.bool)).shape == (2,)


# ---------------------------------------------------------------- mixed models


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3).to(BF16)
        self.gain = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return (self.fc(x) * self.gain).to(x.dtype)


class Tower(nn.Module):
    """bfloat16 blocks with float32 gains, under a float32 logit scale, as CLIP has it."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block())
        self.neck = nn.Sequential(nn.Linear(3, 3), nn.ReLU()).to(BF16)
        self.logit_scale = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return self.neck(self.blocks(x)) * self.logit_scale


def test_a_mixed_root_checks_no_dtype_but_its_owners_do():
    model = guard(Tower(), mode="strict")
    assert is_guarded(model)
    assert model(ones(BF16)).dtype is BF16
    with pytest.raises(DtypeError) as caught:
        model(ones())
    assert caught.value.module_path == "Tower.blocks.0.fc"
    assert (caught.value.actual, caught.value.expected) == (F32, BF16)


def test_a_mixed_root_never_widens_its_input():
    model = guard(Tower(), mode="lenient")
    assert model(ones(BF16)).dtype is BF16
    assert not dtypeguard.casts()
    with pytest.warns(CastWarning, match=r"Linear\.forward: `input` was cast from float32 to bfloat16"):
        model(ones())


def test_owners_with_descendants_of_another_dtype_have_no_anchor():
    block = guard(Block(), mode="strict")
    assert accepted(block) == {BF16}  # its own gain is float32; `fc` is who refuses
    with pytest.raises(DtypeError) as caught:
        block(ones())
    assert caught.value.module_path == "Block.fc"


OWNERS = {"", "blocks.0.fc", "blocks.1.fc", "neck.0"}


@pytest.mark.parametrize(("depth", "guarded"), [("auto", OWNERS), ("all", OWNERS | {"blocks.0", "blocks.1"})])
def test_inside_a_mixed_root_auto_leaves_the_authors_own_borders_alone(depth, guarded):
    """A block of the authors' own may cast at its border; a Linear would refuse what the guard refuses."""
    model = guard(Tower(), depth=depth)
    assert {name for name, module in model.named_modules() if is_guarded(module)} == guarded


@pytest.mark.filterwarnings("ignore::dtypeguard.CastWarning")
def test_a_habit_of_repair_ends_when_the_root_becomes_mixed():
    model = guard(door(Guarded, {"a": parameter(F32), "b": nn.Linear(2, 2)}), mode="lenient")
    results = []
    for n in range(5):
        if n == 3:
            model.b.to(BF16)
        results.append(model(ones(F64)).dtype)
    assert results == [F32, F32, F32, F64, F64]


def test_an_overriding_dtype_makes_a_mixed_root_agree():
    model = guard(Tower(), mode="strict", dtype=BF16)
    assert accepted(model) == {BF16}
    assert not is_guarded(model.blocks)


# ---------------------------------------------------------------- losses


@pytest.mark.parametrize(
    "make",
    [
        lambda weight: nn.CrossEntropyLoss(weight=weight),
        lambda weight: nn.NLLLoss(weight=weight),
        lambda weight: nn.MultiMarginLoss(weight=weight),
    ],
)
def test_a_loss_does_not_follow_its_class_weights(make):
    """A float64 class weight must not widen the logits; it is the weight that is wrong, and named."""
    loss = make(torch.ones(3, dtype=F64))
    target = torch.tensor([0, 1])
    with pytest.raises((RuntimeError, DtypeError)) as caught:
        guard(loss, mode="strict")(ones(), target)
    told = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    assert "weight" in told
    assert "float64" in told
    assert "argument `input` is float32" not in told
    assert guard(loss, mode="strict")(ones(F64), target).dtype is F64


def test_no_loss_ever_widens_its_input():
    loss = guard(nn.CrossEntropyLoss(weight=torch.ones(3, dtype=F64)), mode="lenient")
    with pytest.raises((RuntimeError, DtypeError)):
        loss(ones(), torch.tensor([0, 1]))
    assert not dtypeguard.casts()


def test_a_loss_with_matching_weights_raises_no_alarm():
    loss = guard(nn.BCEWithLogitsLoss(pos_weight=torch.ones(3)), mode="strict")
    assert loss(ones(), ones()).dtype is F32


# ---------------------------------------------------------------- norms


NORMS = {
    "batch": (lambda: nn.BatchNorm1d(4), (3, 4)),
    "batch 2d": (lambda: nn.BatchNorm2d(4), (3, 4, 2, 2)),
    "batch without affine": (lambda: nn.BatchNorm1d(4, affine=False), (3, 4)),
    "sync batch": (lambda: nn.SyncBatchNorm(4).eval(), (3, 4)),
    "layer": (lambda: nn.LayerNorm(4), (2, 4)),
    "group": (lambda: nn.GroupNorm(2, 4), (2, 4, 3)),
    "instance": (lambda: nn.InstanceNorm1d(4, affine=True), (2, 4, 3)),
    "instance with statistics": (lambda: nn.InstanceNorm1d(4, affine=True, track_running_stats=True), (2, 4, 3)),
    "rms": (lambda: nn.RMSNorm(4), (2, 4)),
}
fused = pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")  # torch's own, about speed


@fused
@pytest.mark.parametrize("dtype", [F32, BF16, F16])
@pytest.mark.parametrize("name", NORMS)
def test_a_norm_takes_narrower_input_as_its_kernel_does_but_not_wider(name, dtype):
    make, shape = NORMS[name]
    model = guard(make().to(dtype), mode="strict")
    expected = {F32, BF16, F16} if dtype is F32 else {dtype}
    assert accepted(model, make=lambda d: torch.ones(shape, dtype=d)) == expected
    for narrow in expected:
        assert model(torch.ones(shape, dtype=narrow)).dtype is narrow


@fused
@pytest.mark.parametrize("name", NORMS)
def test_lenient_casts_a_wider_input_of_a_norm_and_leaves_a_narrower_alone(name):
    make, shape = NORMS[name]
    norm = guard(make().to(BF16), mode="lenient")
    with pytest.warns(CastWarning, match="from float32 to bfloat16"):
        assert norm(torch.ones(shape)).dtype is BF16
    dtypeguard.reset_casts()
    assert guard(make(), mode="lenient")(torch.ones(shape, dtype=BF16)).dtype is BF16
    assert not dtypeguard.casts()


def test_a_norm_inside_a_mixed_model_accepts_narrower_input():
    """A bfloat16 model with its norms kept in float32."""
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 4)).to(BF16)
    model[1].float()
    expected = model(ones(BF16, 2, 4))
    assert torch.equal(guard(model, mode="strict")(ones(BF16, 2, 4)), expected)


def test_what_only_contains_a_norm_is_none():
    model = guard(nn.Sequential(nn.LayerNorm(3), nn.Linear(3, 3)), mode="strict")
    assert accepted(model) == {F32}


# ---------------------------------------------------------------- float8


def test_a_float8_layer_is_not_judged_by_its_scale():
    """float8 weights with a float32 scale compute in the input's dtype."""

    class Float8Linear(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = parameter(F8)
            self.weight_scale_inv = nn.Parameter(torch.ones(()))

        def forward(self, x):
            return x @ (self.weight.float() * self.weight_scale_inv).to(x.dtype)

    model = guard(nn.Sequential(nn.Linear(2, 2).to(BF16), Float8Linear()), mode="strict")
    assert model(ones(BF16, 2, 2)).dtype is BF16


def test_float8_inputs_are_never_cast():
    @enforce(mode="lenient")
    def function(x: Float32[Tensor, "..."]):
        return x

    with pytest.raises(dtypeguard.CastError, match="float8_e4m3fn"):
        function(ones().to(F8))


# ---------------------------------------------------------------- integers, bools, complex


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.uint8, torch.bool, torch.complex64])
@pytest.mark.parametrize("mode", ["strict", "lenient"])
def test_unannotated_integers_bools_and_complex_keep_their_dtype(dtype, mode):
    model = guard(door(Guarded, {"w": parameter(BF16)}), mode=mode)
    x = torch.ones(2).to(dtype)
    assert model(x) is x


# ---------------------------------------------------------------- devices


def meta(cls=Guarded):
    return door(cls, {"w": parameter(F32, "meta")})


@pytest.mark.parametrize("cls", [Guarded, Enforced])
def test_floating_tensors_must_be_on_the_modules_device(cls):
    model = meta(cls)
    x = ones(device="meta")
    assert model(x) is x
    with pytest.raises(DeviceError) as caught:
        model(ones())
    assert (caught.value.argument, caught.value.actual, caught.value.expected) == ("x", CPU, META)
    with pytest.raises(DeviceError):
        door(cls, {"w": parameter(F32)})(ones(device="meta"))


@pytest.mark.parametrize("cls", [Guarded, Enforced])
def test_a_wrong_dtype_and_a_wrong_device_are_both_named(cls):
    with pytest.raises((DtypeError, DeviceError)) as caught:
        meta(cls)(ones(F64))
    assert "float64" in str(caught.value)
    assert "cpu" in str(caught.value)
    assert "meta" in str(caught.value)


@pytest.mark.parametrize("cls", [Guarded, Enforced])
def test_cpu_scalars_are_accepted_anywhere(cls):
    scalar = torch.tensor(1.0)
    assert meta(cls)(scalar) is scalar
    with pytest.raises(DtypeError):
        meta(cls)(scalar.double())
    with pytest.raises(DeviceError):
        meta(cls)(torch.ones(1))


def test_scalars_of_other_devices_are_not():
    with pytest.raises(DeviceError):
        door(Guarded, {"w": parameter(F32)})(torch.ones((), device="meta"))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.bool, torch.uint8])
def test_unannotated_integers_on_the_cpu_are_accepted_anywhere(dtype):
    """`pack_padded_sequence` wants its lengths on the CPU."""
    lengths = torch.ones(2).to(dtype)
    assert meta()(lengths) is lengths
    assert meta()(ones(device="meta"), [lengths, {"mask": lengths}]).is_meta


def test_integers_of_other_devices_are_not():
    with pytest.raises(DeviceError) as caught:
        door(Guarded, {"w": parameter(F32)})(torch.ones(2, dtype=torch.int64, device="meta"))
    assert caught.value.argument == "x"


def test_annotated_integers_must_be_on_the_modules_device():
    class Model(nn.Linear):
        def forward(self, ids: Int64[Tensor, "n"], mask: Bool[Tensor, "n"] | None = None, free=None):
            return ids

    model = guard(Model(2, 2).to("meta"), mode="strict")
    ids = torch.ones(2, dtype=torch.int64)
    with pytest.raises(DeviceError) as caught:
        model(ids, free=ids)
    assert caught.value.argument == "ids"
    assert len(caught.value.violations) == 1
    with pytest.raises(DeviceError) as caught:
        model(ids.to("meta"), ids.bool())
    assert caught.value.argument == "mask"
    assert enforced_is_equally_strict(Model, ids)


def enforced_is_equally_strict(cls, ids):
    enforced = type("Model", (cls,), {"forward": enforce(mode="strict")(cls.forward)})(2, 2).to("meta")
    with pytest.raises(DeviceError):
        enforced(ids)
    return True


def test_lenient_moves_what_must_be_moved():
    model = guard(meta(), mode="lenient")
    with pytest.warns(CastWarning, match="moved from cpu to meta"):
        assert model(ones()).is_meta
    record = dtypeguard.casts()[0]
    assert (record.from_device, record.to_device) == (CPU, META)
    with pytest.warns(CastWarning, match="cast from float64 to float32 and moved from cpu to meta"):
        assert model(ones(F64)).is_meta


@pytest.mark.parametrize("cls", [Guarded, Enforced])
@pytest.mark.parametrize("order", [("cpu", "meta"), ("meta", "cpu")])
def test_a_module_spread_over_devices_has_no_device(cls, order):
    first, second = order
    model = door(cls, {"a": parameter(BF16, first), "b": parameter(BF16, second)})
    for device in order:
        x = ones(BF16, device=device)
        assert model(x) is x
    assert accepted(model) == {BF16}


def test_parts_of_a_spread_module_have_their_own():
    class Spread(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3, device="meta")

        def forward(self, x):
            return self.b(self.a(x))

    model = guard(Spread(), mode="strict", depth="all")
    with pytest.raises(DeviceError) as caught:
        model(ones())
    assert caught.value.module_path == "Spread.b"
    unguard(model)
    guard(model, mode="lenient", depth="all")
    with pytest.warns(CastWarning, match="moved from cpu to meta"):
        assert model(ones()).is_meta


def test_devices_that_come_to_agree_are_checked():
    model = door(Guarded, {"a": parameter(F32), "b": parameter(F32, "meta")})
    model(ones(device="meta"))
    model.to("meta")
    with pytest.raises(DeviceError):
        model(ones())


# ---------------------------------------------------------------- plain functions


def test_a_plain_function_has_no_anchor_and_checks_no_device():
    @enforce(mode="strict")
    def loss(pred: Float[Tensor, "n"], target: Float[Tensor, "n"]):
        return pred, target

    x, y = ones(BF16, 2), ones(F64, 2, device="meta")
    assert all(a is b for a, b in zip(loss(x, y), (x, y), strict=True))


@enforce(mode="strict", anchor="pred")
def follow(target: Float[Tensor, "n"], pred: Float[Tensor, "n"], weight: Float[Tensor, "n"] | None = None, free=None):
    return target


def test_the_named_argument_is_what_the_others_follow():
    for dtype in FLOATS:
        assert accepted(lambda x, dtype=dtype: follow(x, ones(dtype, 2)), make=lambda d: ones(d, 2)) == {dtype}
    with pytest.raises(DtypeError, match=r"`weight` is float32, `pred` is bfloat16") as caught:
        follow(ones(BF16, 2), pred=ones(BF16, 2), weight=ones(F32, 2), free=ones(F64, 2))
    assert (caught.value.argument, caught.value.expected) == ("weight", BF16)
    assert "pred" in str(caught.value)


def test_the_named_argument_is_where_the_others_must_be():
    with pytest.raises(DeviceError) as caught:
        follow(ones(F32, 2), ones(F32, 2, device="meta"))
    assert (caught.value.argument, caught.value.expected) == ("target", META)
    follow(ones(F32, 2, device="meta"), ones(F32, 2, device="meta"))


def test_concrete_dtypes_are_their_own_whatever_the_anchor():
    @enforce(mode="strict", anchor="pred")
    def loss(pred: Float[Tensor, "n"], weight: Float32[Tensor, "n"], labels: Int64[Tensor, "n"]):
        return weight

    loss(ones(BF16, 2), ones(F32, 2), ones(torch.int64, 2))
    with pytest.raises(DtypeError):
        loss(ones(BF16, 2), ones(BF16, 2), ones(torch.int64, 2))


def test_the_others_follow_what_the_named_argument_is_repaired_to():
    @enforce(mode="lenient", anchor="pred")
    def loss(pred: Float32[Tensor, "n"], target: Float[Tensor, "n"]):
        return pred, target

    with pytest.warns(CastWarning) as told:
        pred, target = loss(ones(BF16, 2), ones(F32, 2))
    assert pred.dtype is target.dtype is F32
    assert len(told) == 1


def test_lenient_casts_the_others_and_their_gradients_come_back():
    @enforce(mode="lenient", anchor="pred")
    def loss(pred: Float[Tensor, "n"], target: Float[Tensor, "n"]) -> Float[Tensor, ""]:
        return (pred - target).square().sum()

    pred = ones(F32, 2).requires_grad_()
    target = ones(F64, 2).mul(3).requires_grad_()
    with pytest.warns(CastWarning):
        value = loss(pred, target)
    value.backward()
    assert value.dtype is pred.grad.dtype is F32
    assert target.grad.dtype is F64
    assert target.grad.tolist() == [4.0, 4.0]


def test_an_anchor_that_was_not_given_is_none():
    @enforce(mode="strict", anchor="pred")
    def loss(target: Float[Tensor, "n"], pred: Float[Tensor, "n"] | None = None):
        return target

    assert accepted(loss, make=lambda d: ones(d, 2)) == set(FLOATS)


def test_an_anchor_must_be_a_parameter():
    with pytest.raises(ValueError, match=r"no parameter 'prediction'.*pred, target"):

        @enforce(anchor="prediction")
        def loss(pred: Float[Tensor, "n"], target: Float[Tensor, "n"]):
            return pred


def test_a_method_may_follow_an_argument_instead_of_its_module():
    class Model(nn.Linear):
        @enforce(mode="strict", anchor="x")
        def forward(self, x: Float[Tensor, "..."], y: Float[Tensor, "..."]):
            return x

    model = Model(2, 2)
    model(ones(BF16), ones(BF16))
    with pytest.raises(DtypeError, match="`x` is bfloat16"):
        model(ones(BF16), ones())


def test_a_class_method_may_follow_an_argument():
    class Model(nn.Linear):
        @enforce(mode="strict", anchor="x")
        @classmethod
        def join(cls, x: Float[Tensor, "..."], y: Float[Tensor, "..."]):
            return x

    Model.join(ones(BF16), ones(BF16))
    with pytest.raises(DtypeError, match="`x` is bfloat16"):
        Model.join(ones(BF16), ones())


# ---------------------------------------------------------------- FSDP2


class Sharded(nn.Linear):
    """What FSDP2 makes of a layer: parameters keep their dtype, its policy computes in another."""

    policy = BF16

    def _get_fsdp_state(self):
        return types.SimpleNamespace(_mp_policy=types.SimpleNamespace(param_dtype=self.policy))

    def forward(self, x):
        return nn.functional.linear(x, self.weight.to(x.dtype))


def test_the_policy_of_fsdp2_says_in_which_dtype_a_root_computes():
    model = guard(Sharded(3, 2), mode="strict")
    x = ones(BF16)
    assert model(x).dtype is BF16
    with pytest.raises(DtypeError) as caught:
        model(ones(F64))
    assert caught.value.expected is BF16


def test_a_policy_without_a_dtype_leaves_the_parameters_their_say():
    model = guard(Sharded(3, 2), mode="strict")
    model.policy = None
    assert accepted(model) == {F32}


@pytest.fixture
def process_group():
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=store)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("first", ["guard", "shard"])
def test_a_guard_inside_fsdp2_raises_no_alarm(process_group, first):
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
    policy = MixedPrecisionPolicy(param_dtype=BF16, output_dtype=F32)
    steps = [
        lambda: fully_shard(model, mesh=mesh, mp_policy=policy),
        lambda: guard(model, mode="strict", depth="all"),
    ]
    for step in steps if first == "shard" else reversed(steps):
        step()
    assert isinstance(model, torch.distributed.fsdp.FSDPModule)
    for _ in range(2):
        model(ones()).sum().backward()
    assert model[0].weight.grad is not None
    unguard(model)
    assert isinstance(model, torch.distributed.fsdp.FSDPModule)
    model(ones()).sum().backward()
