"""The anchor: which parameter says what dtype and device a module wants, and when none does."""

import copy
import pickle
import types
from typing import Any

import pytest
import torch
from jaxtyping import Bool, Float, Float32, Int, Int64
from support import BF16, F8, F16, F32, F64
from torch import Tensor, nn

import dtypeguard
from dtypeguard import CastWarning, DeviceError, DtypeError, HintError, enforce, guard, is_guarded, unguard
from dtypeguard._core.check.reference import same_device
from dtypeguard._core.contract.anchor import facts

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
    """The dtypes that strict mode lets pass, as the same objects."""
    passed = set()
    for candidate in candidates:
        x = make(candidate)
        try:
            assert model(x) is x or not isinstance(model, (Guarded, Enforced))
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
    "children that do not agree": (lambda: {"a": nn.Linear(2, 2), "b": nn.Linear(2, 2).half()}, set(FLOATS)),
    "an own scale over a narrower body": (
        lambda: {"scale": parameter(F32), "body": nn.Linear(2, 2).to(BF16)},
        set(FLOATS),
    ),
    "integer parameters beside": (lambda: {"n": parameter(torch.int64), "w": parameter(BF16)}, {BF16}),
    "integer parameters alone": (lambda: {"n": parameter(torch.int64)}, set(FLOATS)),
    "complex parameters alone": (lambda: {"w": parameter(torch.complex64)}, set(FLOATS)),
    "float8 weights beside": (lambda: {"w": parameter(F8), "b": parameter(BF16)}, {BF16}),
    "float8 weights alone": (lambda: {"w": parameter(F8)}, set(FLOATS)),
    "float8 weights, their scale and a bias": (
        lambda: {"weight": parameter(F8), "weight_scale": parameter(F32), "bias": parameter(BF16)},
        {BF16},
    ),
    "float8 weights with a scale inside": (
        lambda: {
            "a": nn.Linear(2, 2).to(BF16),
            "b": door(nn.Module, {"weight": parameter(F8), "weight_scale_inv": parameter(F32)}),
        },
        {BF16},
    ),
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
def test_the_message_names_the_parameter_that_speaks(cls):
    with pytest.raises(DtypeError, match=r"parameters are bfloat16(.|\n)*bfloat16 like body\.1\.weight \(bf16\[2,2\]"):
        door(cls, {"body": nn.Sequential(nn.ReLU(), nn.Linear(2, 2)).to(BF16)})(ones())
    with pytest.raises(DtypeError, match=r"buffers are float64(.|\n)*float64 like mean"):
        door(cls, {"mean": buffer(F64)})(ones())


INSTANCES = [ANCHORS[name] for name in (
    "a buffer", "a parameter and another buffer", "parameters that agree", "deep inside", "nothing",
    "float8 weights beside", "parameters that do not",
)]  # fmt: skip


@pytest.mark.parametrize("first", range(len(INSTANCES)))
@pytest.mark.parametrize("kind", [Guarded, Enforced])
def test_each_instance_has_its_own_anchor_whichever_was_called_first(kind, first):
    def forward(self, x: Float[Tensor, "..."]):
        return x

    fresh = type("Fresh", (nn.Module,), {"forward": enforce(forward, mode="strict") if kind is Enforced else forward})
    order = [*INSTANCES[first:], *INSTANCES[:first]]
    models = [door(fresh, things()) for things, _ in order]
    if kind is Guarded:
        models = [guard(model, mode="strict", depth="boundary") for model in models]
    assert [accepted(model) for model in models] == [expected for _, expected in order]


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

    def late(self, x: Float[Tensor, "..."]):
        return x

    Model.late = enforce(late, mode="strict")
    model = Model(2, 2).to(BF16)
    assert accepted(model.encode) == accepted(model._private) == accepted(model.late) == {BF16}


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


def test_a_mixed_root_checks_no_dtype_and_never_widens_its_input_but_its_owners_do():
    model = guard(Tower(), mode="strict")
    assert is_guarded(model)
    assert model(ones(BF16)).dtype is BF16
    with pytest.raises(DtypeError) as caught:
        model(ones())
    assert caught.value.module_path == "Tower.blocks.0.fc"
    assert (caught.value.actual, caught.value.expected) == (F32, BF16)
    guard(model, mode="lenient")
    assert model(ones(BF16)).dtype is BF16
    assert not dtypeguard.casts()
    with pytest.warns(CastWarning, match=r"Linear\.forward in Tower\.[a-z0-9.]+: `input` was cast from float32"):
        model(ones())
    assert accepted(guard(Tower(), mode="strict", dtype=BF16)) == {BF16}


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


# ---------------------------------------------------------------- losses


@pytest.mark.parametrize("mode", ["strict", "lenient"])
@pytest.mark.parametrize("make", [nn.CrossEntropyLoss, nn.MultiMarginLoss])
def test_a_loss_does_not_follow_its_class_weights(make, mode):
    """A float64 class weight must not widen the logits; it is the weight that is wrong, and named."""
    loss = guard(make(weight=torch.ones(3, dtype=F64)), mode=mode)
    target = torch.tensor([0, 1])
    with pytest.raises((RuntimeError, DtypeError)) as caught:
        loss(ones(), target)
    told = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    assert "weight" in told
    assert "float64" in told
    assert "argument `input` is float32" not in told
    assert not dtypeguard.casts()
    assert loss(ones(F64), target).dtype is F64


# ---------------------------------------------------------------- norms


NORMS = {
    "batch": (lambda: nn.BatchNorm1d(4), (3, 4)),
    "batch without affine": (lambda: nn.BatchNorm1d(4, affine=False), (3, 4)),
    "sync batch": (lambda: nn.SyncBatchNorm(4).eval(), (3, 4)),
    "layer": (lambda: nn.LayerNorm(4), (2, 4)),
    "group": (lambda: nn.GroupNorm(2, 4), (2, 4, 3)),
    "instance with statistics": (lambda: nn.InstanceNorm1d(4, affine=True, track_running_stats=True), (2, 4, 3)),
    "rms": (lambda: nn.RMSNorm(4), (2, 4)),
}
fused = pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")  # torch's own, about speed


@fused
@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("name", NORMS)
def test_a_norm_takes_narrower_input_as_its_kernel_does_but_not_wider(name, dtype):
    make, shape = NORMS[name]
    model = guard(make().to(dtype), mode="strict")
    expected = {F32, BF16, F16} if dtype is F32 else {dtype}
    assert accepted(model, make=lambda d: torch.ones(shape, dtype=d)) == expected
    guard(model, mode="lenient")
    for narrow in expected:
        assert model(torch.ones(shape, dtype=narrow)).dtype is narrow
    assert not dtypeguard.casts()
    with pytest.warns(CastWarning, match=f"from float64 to {str(dtype)[6:]}"):
        assert model(torch.ones(shape, dtype=F64)).dtype is dtype


def test_what_only_contains_a_norm_is_none():
    model = guard(nn.Sequential(nn.LayerNorm(3), nn.Linear(3, 3)), mode="strict")
    assert accepted(model) == {F32}


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
    """But for numbers on the CPU, which every device takes."""
    model, home = meta(cls), door(cls, {"w": parameter(F32)})
    for x in (ones(device="meta"), torch.tensor(1.0)):
        assert model(x) is x
    for wrong in (ones(), torch.ones(1)):
        with pytest.raises(DeviceError) as caught:
            model(wrong)
        assert (caught.value.argument, caught.value.actual, caught.value.expected) == ("x", CPU, META)
    for wrong in (ones(device="meta"), torch.ones((), device="meta")):
        with pytest.raises(DeviceError):
            home(wrong)
    with pytest.raises(DtypeError):
        model(torch.tensor(1.0, dtype=F64))
    with pytest.raises((DtypeError, DeviceError)) as caught:
        model(ones(F64))
    for word in ("float64", "cpu", "meta"):
        assert word in str(caught.value)


def test_a_device_without_a_number_is_any_of_its_kind():
    cuda, first, second, cpu = (torch.device(name) for name in ("cuda", "cuda:0", "cuda:1", "cpu"))
    same = [(a, b) for a in (cuda, first, second, cpu) for b in (cuda, first, second, cpu) if same_device(a, b)]
    assert same == [
        *((cuda, other) for other in (cuda, first, second)),
        *((first, other) for other in (cuda, first)),
        *((second, other) for other in (cuda, second)),
        (cpu, cpu),
    ]


def test_a_plain_tensor_is_its_own_facts():
    for tensor in (ones(), nn.Parameter(ones()), nn.Buffer(ones())):
        assert facts(tensor) is tensor
    known = facts(ones().as_subclass(type("Sub", (Tensor,), {})))
    assert (known.dtype, known.shape, known.ndim, known.is_cpu) == (F32, (2, 3), 2, True)
    with pytest.raises(TypeError):
        facts([1])


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
def test_unannotated_integers_on_the_cpu_are_accepted_anywhere(dtype):
    """`pack_padded_sequence` wants its lengths on the CPU."""
    lengths = torch.ones(2).to(dtype)
    assert meta()(lengths) is lengths
    assert meta()(ones(device="meta"), [lengths, {"mask": lengths}]).is_meta
    with pytest.raises(DeviceError):
        door(Guarded, {"w": parameter(F32)})(lengths.to("meta"))


def test_annotated_integers_must_be_on_the_modules_device():
    def forward(self, ids: Int64[Tensor, "n"], mask: Bool[Tensor, "n"] | None = None, free=None):
        return ids

    guarded = guard(type("Model", (nn.Linear,), {"forward": forward})(2, 2, device="meta"), mode="strict")
    enforced = type("Model", (nn.Linear,), {"forward": enforce(forward, mode="strict")})(2, 2, device="meta")
    ids = torch.ones(2, dtype=torch.int64)
    for model in (guarded, enforced):
        with pytest.raises(DeviceError) as caught:
            model(ids, free=ids)
        assert caught.value.argument == "ids"
        assert len(caught.value.violations) == 1
        with pytest.raises(DeviceError) as caught:
            model(ids.to("meta"), ids.bool())
        assert caught.value.argument == "mask"


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


# ---------------------------------------------------------------- plain functions


def test_a_plain_function_has_no_anchor_and_checks_no_device():
    @enforce(mode="strict")
    def loss(pred: Float[Tensor, "n"], target: Float[Tensor, "n"]):
        return pred, target

    x, y = ones(BF16, 2), ones(F64, 2, device="meta")
    assert all(a is b for a, b in zip(loss(x, y), (x, y), strict=True))


@enforce(mode="strict", anchor="pred")
def follow(
    target: Float[Tensor, "n"],
    pred: Float[Tensor, "n"] | None = None,
    weight: Float[Tensor, "n"] | None = None,
    fixed: Float32[Tensor, "n"] | None = None,
    free=None,
):
    return target


def test_the_named_argument_is_what_the_others_follow():
    for dtype in FLOATS:
        assert accepted(lambda x, dtype=dtype: follow(x, ones(dtype, 2)), make=lambda d: ones(d, 2)) == {dtype}
    assert accepted(follow, make=lambda d: ones(d, 2)) == set(FLOATS), "an anchor that was not given is none"
    with pytest.raises(DtypeError, match=r"`weight` is float32, `pred` is bfloat16") as caught:
        follow(ones(BF16, 2), pred=ones(BF16, 2), weight=ones(F32, 2), fixed=ones(F32, 2), free=ones(F64, 2))
    assert (caught.value.argument, caught.value.expected) == ("weight", BF16)
    with pytest.raises(DtypeError, match="`fixed` is bfloat16, the annotation wants float32"):
        follow(ones(BF16, 2), ones(BF16, 2), fixed=ones(BF16, 2))
    with pytest.raises(DeviceError) as caught:
        follow(ones(F32, 2), ones(F32, 2, device="meta"))
    assert (caught.value.argument, caught.value.expected) == ("target", META)
    follow(ones(F32, 2, device="meta"), ones(F32, 2, device="meta"))


def test_the_others_follow_what_the_named_argument_is_repaired_to():
    @enforce(mode="lenient", anchor="pred")
    def loss(pred: Float32[Tensor, "n"], target: Float[Tensor, "n"]):
        return pred, target

    with pytest.warns(CastWarning) as told:
        pred, target = loss(ones(BF16, 2), ones(F32, 2))
    assert pred.dtype is target.dtype is F32
    assert len(told) == 1


def test_a_module_that_is_named_stands_for_its_parameters():
    @enforce(mode="strict", anchor="model")
    def step(model, x: Float[Tensor, "..."]):
        return x

    step(nn.Linear(2, 2).to(BF16), ones(BF16, 2))
    step(None, ones(BF16, 2))
    with pytest.raises(DtypeError, match=r"`x` is float32, the module's parameters are bfloat16") as caught:
        step(nn.Linear(2, 2).to(BF16), ones(F32, 2))
    assert "like model.weight" in str(caught.value)


class Plain:
    @enforce(mode="strict", anchor="self")
    def step(self, x: Float[Tensor, "..."]):
        return x


@pytest.mark.parametrize("model", [3, "x", [ones()], Plain()])
def test_what_turns_out_to_be_no_anchor_is_an_error(model):
    @enforce(mode="strict", anchor="model")
    def step(model, x: Float[Tensor, "..."]):
        return x

    with pytest.raises(HintError, match=r"`model` is .*, `anchor` wants a tensor or an nn.Module"):
        step(model, ones())
    with pytest.raises(HintError, match=r"`self` is a Plain, `anchor` wants a tensor or an nn.Module"):
        Plain().step(ones())


@pytest.mark.parametrize("hint", [int, str, int | None, list[Tensor], dict[str, Tensor], tuple[Tensor, Tensor]])
def test_what_its_annotation_keeps_from_being_an_anchor_is_refused(hint):
    def step(x: Float[Tensor, "..."], free, given):
        return x

    step.__annotations__["given"] = hint
    with pytest.raises(ValueError, match=r"cannot follow anchor='given': .*; use 'x' or 'free'"):
        enforce(anchor="given")(step)


def test_the_named_argument_does_not_follow_itself():
    with pytest.raises(DtypeError, match="`pred` is int64, the annotation wants Float, such as float32") as caught:
        follow(ones(F32, 2), ones(torch.int64, 2))
    assert "like" not in str(caught.value)
    assert "model" not in str(caught.value)


def test_a_method_may_follow_an_argument_instead_of_its_module():
    class Model(nn.Linear):
        @enforce(mode="strict", anchor="x")
        def forward(self, x: Float[Tensor, "..."], y: Float[Tensor, "..."]):
            return x

        @enforce(mode="strict", anchor="x")
        @classmethod
        def join(cls, x: Float[Tensor, "..."], y: Float[Tensor, "..."]):
            return x

    for call in (Model(2, 2), Model.join):
        call(ones(BF16), ones(BF16))
        with pytest.raises(DtypeError, match="`x` is bfloat16"):
            call(ones(BF16), ones())


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
    assert accepted(model) == {BF16, F32}  # FSDP casts float32 itself
    with pytest.raises(DtypeError) as caught:
        model(ones(F64))
    assert caught.value.expected is BF16
    model.policy = None
    assert accepted(model) == {F32}


class Early(nn.Module):
    """Methods that are called before the module has tables of parameters."""

    def __init__(self):
        self.look(torch.ones(2))
        super().__init__()
        self.layer = nn.Linear(2, 2)

    @enforce(mode="strict")
    def look(self, x: Float[Tensor, "n"]):
        return x

    @enforce(mode="strict")
    def __setstate__(self, state: dict[str, Float[Tensor, "..."] | Any]):
        self.look(torch.ones(2, dtype=F64))
        self.__dict__.update(state)


def test_a_module_that_is_not_initialized_has_no_anchor():
    net = Early()
    twin = copy.deepcopy(net)
    for one in (net, twin, pickle.loads(pickle.dumps(net))):
        with pytest.raises(DtypeError, match="argument `x` is float64, the module's parameters are float32"):
            one.look(torch.ones(2, dtype=F64))
    x = torch.ones(2, dtype=F64)
    assert Early.__new__(Early).look(x) is x
    with pytest.raises(TypeError, match=r"Early is not initialized: call super\(\).__init__\(\) first"):
        guard(Early.__new__(Early))


class Answers(nn.Module):
    """Has no tables yet, and answers for attributes by itself."""

    @enforce
    def __getattr__(self, name: Float[Tensor, "n"] | str):
        return super().__getattr__(name)

    @enforce
    def look(self, x: Float[Tensor, "n"]):
        return x


def test_the_getattr_of_a_module_that_is_not_initialized_is_not_asked():
    x = torch.ones(2, dtype=F64)
    assert Answers.__new__(Answers).look(x) is x


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_a_traced_module_has_an_anchor():
    class Around(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.jit.trace(nn.Linear(2, 2), torch.ones(1, 2))

        @enforce(mode="strict")
        def forward(self, x: Float[Tensor, "b 2"]):
            return self.inner(x)

    with pytest.raises(DtypeError, match="float64"):
        Around()(torch.ones(1, 2, dtype=F64))
