"""What no other test saw when `mutate.py` broke it."""

import dataclasses
import functools
import inspect
import types
import warnings
from collections.abc import AsyncGenerator, Generator
from typing import TypedDict

import numpy as np
import pytest
import torch
from jaxtyping import Float, Float32, Float64, Int
from torch import Tensor, nn

import dtypeguard
from dtypeguard import (
    AnnotationError,
    CastError,
    CastWarning,
    DtypeError,
    ShapeError,
    enforce,
    guard,
    is_guarded,
    unguard,
)
from dtypeguard._check.reference import same_device
from dtypeguard._contract.anchor import facts
from dtypeguard._doors.enforce import contract_behind
from dtypeguard._repair import records as _records
from dtypeguard._repair import verify as _verify
from dtypeguard._wrap import build as _codegen

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64


def f(*shape, dtype=F32):
    return torch.ones(shape, dtype=dtype)


# ---------------------------------------------------------------- axes


@enforce
def fits(x: Float32[Tensor, "b *s"], y: Float32[Tensor, "n"] | None = None, *, item):
    return isinstance(item, Float32[Tensor, "*s"]), isinstance(item, Float32[Tensor, "n n"])


@pytest.mark.parametrize("dtype", [F32, F64], ids=["right", "repaired"])
@pytest.mark.filterwarnings("ignore::dtypeguard.CastWarning")
def test_isinstance_in_a_body_sees_the_axes_of_the_call(dtype):
    x = f(2, 3, 4, dtype=dtype)
    assert fits(x, item=f(3, 4)) == (True, False)
    assert fits(x, item=f(4, 3)) == (False, False)
    assert fits(x, item=f(3, 3)) == (False, True)  # `n` is not bound
    assert fits(x, f(4), item=f(3, 3)) == (False, False)
    assert fits(x, f(3), item=f(3, 3)) == (False, True)
    assert fits(f(2, dtype=dtype), item=f()) == (True, False)  # `*s` is bound to no axis at all
    assert fits(f(2, 1, 4, dtype=dtype), item=f(3, 4)) == (False, False)  # nor does it broadcast


@pytest.mark.parametrize("shape", [(5, 3), (2, 5), (2,), (3,), (2, 3, 1), (1, 2, 3), ()])
def test_axes_of_one_name_agree_from_the_first_to_the_last(shape):
    @enforce(mode="strict")
    def same(x: Float32[Tensor, "*s"], y: Float32[Tensor, "*s"]):
        return x

    same(f(2, 3), f(2, 3))
    with pytest.raises(ShapeError, match=r"`y` has axes \*s=.*, but \*s=\[2, 3\] in `x`"):
        same(f(2, 3), f(*shape))


@pytest.mark.parametrize("axes", ["{n}", "{n!s}", "{n:d}", "{n}-1+1", "{len(text)}"])
def test_braces_are_those_of_an_f_string(axes):
    @enforce(mode="strict")
    def sized(n, text, x: Float32[Tensor, axes]):
        return x

    sized(3, "abc", f(3))
    with pytest.raises(ShapeError, match=r"`x` has size 4 in axis 0, but .* is 3"):
        sized(3, "abc", f(4))


def test_braces_mean_the_argument_where_an_axis_has_its_name_too():
    @enforce(mode="strict")
    def grow(x: Float32[Tensor, "n {n}+1"], n: int):
        return x

    grow(f(5, 3), 2)
    with pytest.raises(ShapeError, match=r"`x` has size 6 in axis 1, but `{n}\+1` is 3"):
        grow(f(5, 6), 2)


def test_three_shapes_that_broadcast():
    @enforce(mode="strict")
    def add(x: Float32[Tensor, "*#s"], y: Float32[Tensor, "*#s"], z: Float32[Tensor, "*#s"], w: Float32[Tensor, "*s"]):
        return x + y + z + w

    assert add(f(3), f(2, 1), f(5, 1, 3), f(5, 2, 3)).shape == (5, 2, 3)
    assert add(f(5, 1, 3), f(2, 1), f(3), f(5, 2, 3)).shape == (5, 2, 3)
    with pytest.raises(ShapeError):
        add(f(3), f(2, 1), f(5, 2, 4), f(5, 2, 3))


def test_what_a_generator_yields_and_returns():
    @enforce(mode="strict")
    def stream(
        x: Float32[Tensor, "n"], last
    ) -> Generator[Float32[Tensor, "n"], Float32[Tensor, "n n"], Int[Tensor, ""]]:
        sent = yield x
        yield sent
        return last

    values = stream(f(2), ids := torch.tensor(1))
    assert next(values).shape == (2,)
    assert values.send(f(2)).shape == (2,)  # what is sent is not checked
    with pytest.raises(StopIteration) as stop:
        next(values)
    assert stop.value.value is ids
    values = stream(f(2), f(2))
    values.send(None)
    with pytest.raises(ShapeError):
        values.send(f(3))
    values = stream(f(2), f(2))
    values.send(None)
    values.send(f(2))
    with pytest.raises(DtypeError, match="result"):
        next(values)


def test_a_generator_of_two_arguments_says_nothing_of_its_result():
    @enforce(mode="strict")
    def stream(x: Float32[Tensor, "n"]) -> AsyncGenerator[Float32[Tensor, "n"], Float32[Tensor, "n n"]]:
        yield x
        return 3

    values = stream(f(2))
    next(values)
    with pytest.raises(StopIteration) as stop:
        next(values)
    assert stop.value.value == 3


# ---------------------------------------------------------------- repairs


def test_a_list_that_starts_with_a_tensor_is_looked_into_whatever_its_end():
    model = guard(nn.Identity(), dtype=F32)
    with pytest.warns(CastWarning):
        assert model.forward([f(2, dtype=F64), 1])[0].dtype is F32
    with pytest.warns(CastWarning):
        assert model.forward([1, f(2, dtype=F64)])[1].dtype is F32


def test_a_repair_in_a_graph_is_counted_once():
    @torch.compile(backend="eager", fullgraph=True)
    @enforce
    def double(x: Float32[Tensor, "n"]):
        return x * 2

    with pytest.warns(CastWarning):
        double(f(3, dtype=F64))
    double(f(3, dtype=F64))
    (record,) = dtypeguard.casts()
    assert (record.argument, record.from_dtype, record.to_dtype, record.count) == ("x", F64, F32, 1)


def test_the_anchor_of_a_function_is_what_its_argument_becomes():
    @enforce(anchor="x")
    def join(x: Float32[Tensor, "n"], y: Float[Tensor, "n"]):
        return x.dtype, y.dtype

    with pytest.raises(DtypeError) as caught, dtypeguard.mode("strict"):
        join(f(2, dtype=F64), f(2, dtype=F64))
    assert "`x` becomes float32" in str(caught.value)
    with pytest.raises(DtypeError, match="`x` is float32"), dtypeguard.mode("strict"):
        join(f(2), f(2, dtype=F64))
    with pytest.warns(CastWarning):
        assert join(f(2, dtype=F64), f(2, dtype=F64)) == (F32, F32)


class Both(TypedDict):
    a: Float32[Tensor, "n"]
    b: Float32[Tensor, "n"]


class One(TypedDict):
    a: Float32[Tensor, "n"]
    b: Float64[Tensor, "n"]


@pytest.mark.filterwarnings("ignore::dtypeguard.CastWarning")
@pytest.mark.parametrize("hints", [(Both, One), (One, Both)])
def test_one_dict_given_twice_becomes_what_each_argument_wants(hints):
    def pair(x, y):
        return x, y

    pair.__annotations__ = dict(zip("xy", hints, strict=True))
    given = {"a": f(2, dtype=F64), "b": f(2, dtype=F64)}
    made = dict(zip(hints, enforce(pair)(given, given), strict=True))
    assert [made[Both][key].dtype for key in "ab"] == [F32, F32]
    assert [made[One][key].dtype for key in "ab"] == [F32, F64]
    assert made[Both]["a"] is made[One]["a"]
    assert made[One]["b"] is given["b"]


@pytest.mark.filterwarnings("ignore::dtypeguard.CastWarning")
def test_one_list_given_twice_and_two_that_share_a_tensor():
    @enforce
    def pair(x: list[Float32[Tensor, "n"]], y: list[Float64[Tensor, "n"]], z: list[Float32[Tensor, "n"]]):
        return x, y, z

    half, left, right = f(2, dtype=BF16), f(3), f(3)
    x, y, z = pair([half], [half], [half])
    assert [t.dtype for (t,) in (x, y, z)] == [F32, F64, F32]
    given = [half]
    x, y, z = pair(given, given, given)
    assert x is z is not y
    assert [t.dtype for (t,) in (x, y, z)] == [F32, F64, F32]

    @enforce
    def two(x: list[Float32[Tensor, "_"]], y: list[Float32[Tensor, "_"]]):
        return x, y

    x, y = two([half, left], [half, right])
    assert x[0] is y[0]
    assert x[1] is left
    assert y[1] is right


@pytest.mark.filterwarnings("ignore::dtypeguard.CastWarning")
def test_what_makes_a_repair_another_record():
    def one(x: Float32[Tensor, "n"], y: Float32[Tensor, "n"]):
        return x

    def other(x: Float32[Tensor, "n"], y: Float32[Tensor, "n"]):
        return y

    one, other, wide, half, right = enforce(one), enforce(other), f(2, dtype=F64), f(2, dtype=F16), f(2)
    for function, *args in ((one, wide, right), (one, right, wide), (one, half, right), (other, wide, right)):
        for _ in range(2):
            function(*args)
    one(wide, right)
    assert [(r.function, r.argument, r.from_dtype, r.count) for r in dtypeguard.casts()] == [
        ("one", "x", F64, 2),
        ("one", "y", F64, 2),
        ("one", "x", F16, 2),
        ("other", "x", F64, 2),
        ("one", "x", F64, 1),
    ]


@pytest.mark.filterwarnings("ignore::dtypeguard.CastWarning")
def test_a_repair_to_another_dtype_or_device_is_another_record():
    model = nn.Identity()
    model.weight = nn.Parameter(f(1))
    guard(model)
    for dtype, device in ((F32, "cpu"), (F16, "cpu"), (F16, "meta"), (F32, "cpu")):
        model.weight = nn.Parameter(f(1, dtype=dtype).to(device))
        model.forward([f(2, dtype=F64)])
    records = [(str(r.to_dtype), str(r.to_device), r.count) for r in dtypeguard.casts()]
    assert records == [("torch.float32", "cpu", 2), ("torch.float16", "cpu", 1), ("torch.float16", "meta", 1)]


@pytest.mark.filterwarnings("ignore::dtypeguard.CastWarning")
def test_repairs_since_a_mark():
    model = guard(nn.Identity(), dtype=F32)

    def repaired(times):
        for _ in range(times):
            model.forward(f(2, dtype=F64))

    def fresh(begin):
        return [(r.argument, r.count, r.bytes) for r in _records.since(begin)]

    repaired(3)
    begin = _records.mark()
    assert fresh(begin) == []
    repaired(2)
    assert fresh(begin) == [("input", 2, 16)]
    assert fresh(None) == [("input", 5, 40)]
    dtypeguard.reset_casts()
    repaired(1)
    assert fresh(begin) == [("input", 1, 8)]


# ---------------------------------------------------------------- contracts that are read


def test_the_contract_behind_a_function():
    def bare(x: Float32[Tensor, "n"], y=None) -> Float32[Tensor, "n"]:
        return x

    namespace = {"enforce": enforce, "Float32": Float32, "Tensor": Tensor}
    exec("@enforce\ndef later(x: 'Later') -> 'Later':\n    return x\n", namespace)
    later, enforced = namespace["later"], enforce(bare)
    with pytest.raises(AnnotationError, match="Later"):
        contract_behind(later)
    namespace["Later"] = Float32[Tensor, "n"]
    for function, named in ((bare, "bare"), (enforced, "bare"), (later, "later")):
        contract = contract_behind(function)
        assert contract.function.endswith(named)
        assert contract.params[0].spec.hint == 'Float32[Tensor, "n"]'
        assert contract.returns is None or function is not bare
    assert later(f(2)).shape == (2,)


# ---------------------------------------------------------------- wrappers


def test_a_class_inside_a_function_may_hold_its_own_kind():
    @enforce(mode="strict")
    @dataclasses.dataclass
    class Node:
        value: Float32[Tensor, "n"]
        next: "Node | None" = None

    node = Node(f(2), Node(f(2)))
    with pytest.raises(DtypeError, match="`value` is float64"):
        Node(f(2, dtype=F64))
    node.next.value = f(2, dtype=F64)
    with pytest.raises(DtypeError, match=r"`next\.value` is float64"):
        Node(f(2), node.next)


def test_a_wrapper_that_somebody_kept_does_nothing_once_the_guard_is_gone():
    model = guard(nn.Identity(), dtype=F32)
    kept = type(model).forward
    unguard(model)
    assert kept(model, f(2, dtype=F64)).dtype is F64
    guard(model, dtype=F16)
    assert kept(model, f(2, dtype=F64)).dtype is F64


def test_an_enforced_method_looks_for_its_anchor_once(monkeypatch):
    class Net(nn.Linear):
        @enforce(mode="strict")
        def forward(self, x: Float[Tensor, "b n"]):
            return x

    looks, find = [], _codegen.find
    monkeypatch.setattr(_codegen, "find", lambda module: looks.append(module) or find(module))
    for model in (Net(2, 2), Net(2, 2).to(BF16)):
        for _ in range(3):
            model.forward(f(1, 2, dtype=model.weight.dtype))
    assert len(looks) == 1


class Special(nn.Parameter):
    pass


def follows():
    class Follows(nn.Module):  # anew, since it remembers where it found its anchor
        @enforce(mode="strict")
        def forward(self, x: Float[Tensor, "n"]):
            return x

    return Follows()


def fresh():
    return type("Fresh", (nn.Identity,), {})()  # a class that no guard met before


@pytest.mark.parametrize(("make", "wrap"), [(fresh, guard), (follows, nn.Module.eval)], ids=["guard", "enforce"])
@pytest.mark.parametrize(("kind", "calls"), [(nn.Parameter, 0), (Special, 2)])
def test_a_plain_parameter_is_read_without_a_call(make, wrap, kind, calls, monkeypatch):
    looks, asked = [], _codegen.asked
    monkeypatch.setattr(_codegen, "asked", lambda module, tensor: looks.append(tensor) or asked(module, tensor))
    model = make()
    model.weight = kind(f(2))
    model = wrap(model)
    for _ in range(3):
        model.forward(f(2))
    assert len(looks) == calls + (calls and wrap is guard)  # the first call of an enforced method looks itself


@pytest.mark.filterwarnings("ignore::dtypeguard.CastWarning")
def test_two_guards_that_are_equal_both_hold_an_instance_s_own_forward():
    models = [nn.Identity(), nn.Identity()]
    for model in models:
        model.weight = nn.Parameter(f(2))
        model.forward = types.MethodType(lambda self, x: x, model)
        guard(model)
        assert model.forward(f(2, dtype=F64)).dtype is F32


# ---------------------------------------------------------------- modules that write their class themselves


class Summed(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(f(2))

    def forward(self, x, y=None, **more):
        return x + self.weight + more["z"]


@pytest.mark.filterwarnings("ignore::dtypeguard.CastWarning")
def test_a_traced_module_gets_all_keywords_and_its_result_is_checked():
    traced = guard(torch.fx.symbolic_trace(Summed(), concrete_args={"y": None}), output_dtype=F16)
    assert traced(f(2, dtype=F64), z=f(2)).dtype is F16
    assert traced(x=f(2, dtype=F64), z=f(2)).dtype is F16
    unguard(traced)
    assert traced(f(2, dtype=F64), z=f(2)).dtype is F64
    assert guard(traced)(f(2, dtype=F64), z=f(2)).dtype is F32


# ---------------------------------------------------------------- arrays


@pytest.mark.filterwarnings("ignore::dtypeguard.CastWarning")
def test_an_array_goes_where_the_parameters_are():
    class Net(nn.Linear):
        def forward(self, x: Float[Tensor, "b n"]):
            return x

    moved = guard(Net(2, 2, device="meta")).forward(np.ones((1, 2)))
    assert (moved.device.type, moved.dtype) == ("meta", F32)


class DTensor:
    """What stands for a part of a tensor; the real one needs other processes."""

    def __init__(self, part):
        self._local_tensor = part


class AsyncCollectiveTensor:
    def __init__(self, elem):
        self.elem = elem


@pytest.mark.parametrize("whole", [lambda x: x, DTensor, AsyncCollectiveTensor, lambda x: DTensor(DTensor(x))])
def test_of_a_tensor_across_processes_its_own_part_is_looked_at(whole):
    big, small = f(3, dtype=F64) * 1e300, f(3, dtype=F64)
    assert _verify.narrowing(whole(big), whole(big.float())) == (None, True)
    assert _verify.narrowing(whole(small), whole(small.float())) == (0.0, False)
    assert _verify.narrowing(whole(small.float()), whole(small)) == (None, False)
    assert _verify.size(whole(small)) == 24


@pytest.mark.filterwarnings("ignore::dtypeguard.CastWarning")
def test_the_autocast_that_counts_is_that_of_the_device_where_the_body_gets_a_tensor():
    class Net(nn.Linear):
        def forward(self, x):
            return x

    with torch.autocast("cpu", dtype=BF16):
        for device, moved in (("cpu", ("cpu", BF16)), ("meta", ("meta", F32))):
            model, given = guard(Net(2, 2, device=device)), [f(1, 2, dtype=BF16), f(dtype=BF16)]
            x, scalar = model.forward(given)
            assert (x.device.type, x.dtype) == moved
            assert scalar is given[1]  # it stays where it is


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
    for tensor in (f(2), nn.Parameter(f(2)), nn.Buffer(f(2))):
        assert facts(tensor) is tensor
    known = facts(f(2, 3).as_subclass(type("Sub", (Tensor,), {})))
    assert (known.dtype, known.shape, known.ndim, known.is_cpu) == (F32, (2, 3), 2, True)
    with pytest.raises(TypeError):
        facts([1])


# ---------------------------------------------------------------- behind a decorator


def logged(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


class Decorated(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(f(2))

    @logged
    def forward(self, x, y=None, *more, **named):
        return [value.dtype for value in (x, y, *more, *named.values()) if value is not None]


def test_arguments_behind_a_decorator_have_the_names_inside():
    model, wide = guard(Decorated(), mode="strict"), f(2, dtype=F64)
    for name, args, kwargs in (
        ("x", [wide], {}),
        ("y", [1, wide], {}),
        ("args[2]", [1, 2, wide], {}),
        ("args[3]", [1, 2, 3, wide], {}),
        ("z", [1], {"z": wide}),
        ("y[0]", [1, [wide]], {}),
    ):
        with pytest.raises(DtypeError) as caught:
            model(*args, **kwargs)
        assert caught.value.argument == name


@pytest.mark.filterwarnings("ignore::dtypeguard.CastWarning")
def test_arguments_behind_a_decorator_are_skipped_by_the_names_inside():
    model, wide = guard(Decorated(), skip_args=("y", "z")), f(2, dtype=F64)
    assert model(wide, wide, wide, z=wide) == [F32, F64, F32, F64]


def test_an_instance_s_own_forward_keeps_its_signature():
    for forward in (lambda x, y=1: x, lambda x, /, y=1: x, lambda *, x: x, lambda *x, **y: x):
        model = nn.Identity()
        model.forward = forward
        assert inspect.signature(guard(model).forward) == inspect.signature(forward)


def test_the_forward_of_an_instance_is_called_forward():
    for own in (lambda x: x, functools.partial(lambda x: x), nn.Identity().forward):
        model = nn.Identity()
        model.weight, model.forward = nn.Parameter(f(2)), own
        guard(model, mode="strict")
        assert model.forward.__name__ == "forward"
        assert model.forward.__qualname__.endswith("Identity.forward")
        with pytest.raises(DtypeError, match=r"^Identity\.forward: argument `(x|input)` is float64") as caught:
            model.forward(f(2, dtype=F64))
        assert caught.value.function == "Identity.forward"


# ---------------------------------------------------------------- depth


def test_what_holds_parameters_but_has_no_forward_is_not_guarded():
    model = nn.Module()
    model.forward = lambda x: x
    model.held, model.layer = nn.ParameterList([f(2)]), nn.Linear(2, 2)
    guard(model, depth="all")
    assert [is_guarded(module) for module in (model, model.held, model.layer)] == [True, False, True]
    assert type(model.held) is nn.ParameterList


def test_modules_are_skipped_by_pattern_and_by_class():
    def made():
        return nn.Sequential(nn.Linear(2, 2), nn.Bilinear(2, 2, 2), nn.Sequential(nn.Linear(2, 2), nn.ReLU()))

    def guarded(**options):
        model = guard(made(), depth="all", **options)
        return [name for name, module in model.named_modules() if name and is_guarded(module)]

    assert guarded() == ["0", "1", "2.0"]
    assert guarded(skip_modules=("2.*",)) == ["0", "1"]
    assert guarded(skip_modules=("?",)) == ["2.0"]
    assert guarded(skip_modules=(nn.Bilinear, "0")) == ["2.0"]
    assert guarded(skip_modules=(nn.Linear,)) == ["1"]


# ---------------------------------------------------------------- an enforced forward, guarded


@pytest.mark.filterwarnings("ignore::dtypeguard.CastWarning")
def test_a_guard_of_an_enforced_forward_keeps_what_it_was_told():
    class Net(nn.Linear):
        @enforce(mode="strict", casting="safe", autocast="ignore", mutates=("y",))
        def forward(self, x: Float[Tensor, "b n"], y: Float[Tensor, "b n"] | None = None):
            return x

    x = f(1, 2, dtype=F64)
    with pytest.raises(DtypeError):
        guard(Net(2, 2)).forward(x)
    with pytest.raises(CastError, match="casting='safe'"):
        guard(Net(2, 2), mode="lenient").forward(x)
    with torch.autocast("cpu", dtype=BF16), pytest.raises(DtypeError):
        guard(Net(2, 2)).forward(x.to(BF16))
    model = guard(Net(2, 2), mode="lenient", casting="precision", autocast="follow")
    assert model.forward(x).dtype is F32
    with torch.autocast("cpu", dtype=BF16):
        assert model.forward(x.to(BF16)).dtype is BF16
    with pytest.raises(CastError, match="`y` is written to"):
        model.forward(x, x)


def test_a_guard_and_the_enforced_forward_below_it_have_repairs_of_their_own():
    class Net(nn.Linear):
        @enforce
        def forward(self, x: Float[Tensor, "b n"]):
            return x

    plain, other = Net(2, 2), Net(2, 2).to(F16)
    guarded = guard(Net(2, 2), dtype=BF16)
    dtypes = []
    for _ in range(3):
        for model in (plain, guarded, other):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", CastWarning)
                dtypes.append(model.forward(f(1, 2, dtype=F64)).dtype)
    assert dtypes == [F32, BF16, F16] * 3


@pytest.mark.filterwarnings("ignore::dtypeguard.CastWarning")
def test_a_guard_repairs_nothing_out_of_the_habit_of_the_enforced_forward_below_it():
    class Net(nn.Linear):
        @enforce
        def forward(self, x: Float[Tensor, "b n"], y: Float[Tensor, "b n"]):
            return y

    model, wide, dtypes = Net(2, 2), f(1, 2, dtype=F64), []
    for step in range(4):
        if step == 2:
            guard(model, skip_args=("y",))
        dtypes.append(model.forward(wide, wide + 1).dtype)
    assert dtypes == [F32, F32, F64, F64]


def test_what_a_guard_skips_is_still_enforced_without_it():
    class Net(nn.Linear):
        @enforce(mode="strict")
        def forward(self, x: Float[Tensor, "b n"], y: Float[Tensor, "b n"]):
            return x

    bare, x, wide = Net(2, 2), f(1, 2), f(1, 2, dtype=F64)
    assert guard(Net(2, 2), skip_args=("y",)).forward(x, wide) is x
    with pytest.raises(DtypeError, match="`y`"):
        bare.forward(x, wide)


@pytest.mark.filterwarnings("ignore::dtypeguard.CastWarning")
def test_a_class_derived_from_a_guarded_one_is_guarded_anew():
    class Net(nn.Linear):
        def forward(self, x):
            return x

    class Derived(type(guard(Net(2, 2), mode="strict", casting="safe", autocast="ignore"))):
        pass

    model = guard(Derived(2, 2))
    assert model.forward(f(1, 2, dtype=F64)).dtype is F32
    with torch.autocast("cpu", dtype=BF16):
        assert model.forward(f(1, 2, dtype=BF16)).dtype is BF16


def test_only_positional_parameters_of_a_traced_module_take_positions():
    model = guard(torch.fx.symbolic_trace(nn.Bilinear(2, 2, 2)), mode="strict", skip_args=("input2",))
    assert [param.name for param in inspect.signature(model.forward).parameters.values()] == ["input1", "input2"]
    with pytest.raises(DtypeError, match="`input1`"):
        model(f(1, 2, dtype=F64), f(1, 2))
    with pytest.raises(DtypeError, match="`input1`"):
        model(input2=f(1, 2), input1=f(1, 2, dtype=F64))
    with pytest.raises(RuntimeError):  # torch's own
        model(f(1, 2), f(1, 2, dtype=F64))
    assert model(f(1, 2), input2=f(1, 2)).shape == (1, 2)


@pytest.mark.parametrize(
    ("hint", "value"), [(list[float], [1]), (dict[str, float], {"a": 1}), (tuple[complex, ...], (1, 2.0))]
)
def test_an_integer_is_a_float_and_a_float_is_complex_inside_containers_too(hint, value):
    """https://peps.python.org/pep-0484/#the-numeric-tower"""

    def scale(x: Float32[Tensor, "n"], by):
        return x

    scale.__annotations__["by"] = hint
    assert enforce(scale, mode="strict")(torch.ones(2), value).shape == (2,)


def test_the_scale_beside_a_float8_weight_is_no_parameter_that_anything_computes_in():
    class Quantized(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2, 2).to(torch.float8_e4m3fn), requires_grad=False)
            self.weight_scale = nn.Parameter(torch.ones(2), requires_grad=False)
            self.bias = nn.Parameter(torch.ones(2, dtype=torch.bfloat16))

        def forward(self, x):
            return x + self.bias

    model = guard(Quantized(), mode="strict")
    assert model(torch.ones(2, dtype=torch.bfloat16)).dtype is torch.bfloat16
    with pytest.raises(DtypeError):
        model(torch.ones(2))
