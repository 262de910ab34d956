"""`guard` holds a model to its parameters' dtype and device, and changes nothing else about it."""

import abc
import contextlib
import copy
import functools
import gc
import inspect
import io
import linecache
import pickle
import re
import subprocess
import sys
import types
import typing
import weakref
from typing import Generic, TypeVar

import numpy as np
import pytest
import torch
from jaxtyping import Float, Float32, Int64
from support import BF16, F16, F32, F64, same
from torch import Tensor, nn
from torch.nn.utils import parametrize

import dtypeguard
from dtypeguard import (
    CastError,
    CastWarning,
    DeviceError,
    DtypeError,
    DtypeGuardError,
    DtypeGuardWarning,
    GuardedModule,
    HintError,
    ShapeError,
    enforce,
    guard,
    is_guarded,
    unguard,
)
from dtypeguard._core.doors.guarded import GuardOptions
from dtypeguard.integrations._run import WatchOptions

T = TypeVar("T")


jit = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")  # torch's own


class Net(nn.Module):
    """A net."""

    def __init__(self, width: int = 3, out: int = 2) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(width, 4), nn.ReLU())
        self.head = nn.Linear(4, out)

    def forward(self, x, scale=1.0, *, bias=None):
        y = self.head(self.body(x)) * scale
        return y if bias is None else y + bias


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 2)


class Annotated(Layer):
    def forward(self, x: Float[Tensor, "b 3"], other=None) -> Float[Tensor, "b 2"]:
        return self.fc(x)


class Counting(Layer):
    """Counts how often its argument is checked: the size of the axis is asked for at every check."""

    checks = 0

    def size(self) -> int:
        self.checks += 1
        return 3

    def forward(self, x: Float[Tensor, "b {self.size()}"]):
        return self.fc(x)


class EnforcedCounting(Counting):
    forward = enforce(Counting.forward)


class Mixed(nn.Module):
    """A float32 scale on a bfloat16 body."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.Linear(4, 2))).to(BF16)
        self.logit_scale = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return self.body(x) * self.logit_scale


class BornInside(Layer):
    """Makes a tensor of another dtype inside, where no boundary sees it."""

    def forward(self, x):
        return self.fc(x.double())


def ones(dtype=F32, *shape):
    return torch.ones(shape or (2, 3), dtype=dtype)


def refusal(model, *args, error=DtypeError, **kwargs):
    with pytest.raises(error) as caught:
        model(*args, **kwargs)
    return caught.value


def holds(model, *args):
    """Whether a strictly guarded model refuses float64."""
    with contextlib.suppress(RuntimeError):
        try:
            model(*(args or (ones(F64),)))
        except DtypeError:
            return True
    return False


# ---------------------------------------------------------------- what stays as it was


def test_what_the_first_module_of_a_sequential_gets_is_named_as_its_caller_wrote_it():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.time, self.image = nn.Sequential(nn.Linear(8, 16), nn.SiLU()), nn.Linear(3, 16)

        def forward(self, x, t):
            waves = (t[:, None] * torch.arange(8)).sin()
            return self.image(x) + self.time(waves)

    model = guard(Net().bfloat16(), mode="strict")
    with pytest.raises(dtypeguard.DtypeError) as error:
        model(torch.ones(2, 3).bfloat16(), torch.tensor([999.0, 3.0]))
    assert error.value.fix.startswith("waves.to(torch.bfloat16)")


def test_a_guarded_model_is_itself_and_looks_as_before():
    model, bare = Net(), Net()
    text, keys, parameters = repr(model), list(model.state_dict()), list(model.parameters())
    assert not is_guarded(model)
    assert guard(model, depth="all") is model
    assert is_guarded(model)
    assert repr(model) == text
    assert list(model.state_dict()) == keys
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    assert [name for name, _ in model.named_modules()] == [name for name, _ in bare.named_modules()]
    cls = type(model)
    for name in ("__name__", "__qualname__", "__module__", "__doc__"):
        assert getattr(cls, name) == getattr(Net, name)
    assert model.__class__ is cls
    assert isinstance(model, Net)
    assert isinstance(model, GuardedModule)
    for read in (inspect.getsource, inspect.getsourcelines, inspect.getfile, inspect.signature):
        assert read(cls) == read(Net)  # Lightning filters hyperparameters by the signature
    assert list(inspect.signature(cls.__init__).parameters) == ["self", "width", "out"]
    assert getattr(cls, "__static_attributes__", ()) == getattr(Net, "__static_attributes__", ())
    assert inspect.signature(cls.forward) == inspect.signature(Net.forward)
    assert inspect.signature(model.forward) == inspect.signature(bare.forward)
    assert guard(Annotated()).forward.__annotations__ == Annotated.forward.__annotations__
    assert inspect.getsource(type(unguard(model))) == inspect.getsource(Net)
    local = type("Local", (Net,), {"__qualname__": "function.<locals>.Local"})
    assert type(guard(local())).__qualname__ == local.__qualname__


def test_nothing_that_follows_wrapped_takes_the_guard_off():
    """accelerate's `unwrap_model` follows `__wrapped__` of a forward."""
    for model in (guard(Net()), guard(EnforcedCounting()), guard(NoGrad())):
        assert not hasattr(model.forward, "__wrapped__")
        assert inspect.unwrap(model.forward) == model.forward


def test_a_call_of_the_model_and_of_its_forward_are_checked():
    model = guard(Net().to(BF16), mode="strict")
    for call in (model, model.forward):
        assert call(ones(BF16), scale=2.0).shape == (2, 2)
        error = refusal(call, ones(F16), bias=ones(F32, 2, 2))
        assert (error.argument, error.actual, error.expected) == ("x", F16, BF16)
        assert (error.function, error.module_path) == ("Net.forward", "Net")
        assert len(error.violations) == 2
        assert "body.0.weight" in str(error)
        assert "test_guard.py:" in error.call_site
    with pytest.raises(TypeError, match="unexpected keyword"):
        model(ones(BF16), sacle=1.0)


# ---------------------------------------------------------------- forwards as people write them


class Abstract(abc.ABC, Layer):
    @abc.abstractmethod
    def forward(self, x): ...


class Concrete(Abstract):
    def forward(self, x):
        return self.fc(x)


class GenericFirst(Generic[T], Net):
    pass


class GenericLinear(Generic[T], nn.Linear):
    pass


class NoGrad(Net):
    @torch.no_grad()
    def forward(self, x):
        return super().forward(x)


class Variadic(Net):
    def forward(self, *inputs, **more):
        return super().forward(*inputs, **more)


class KeywordOnly(Net):
    def forward(self, *, x):
        return super().forward(x)


class OwnSetattr(Net):
    """Like modules that validate what is set on them."""

    def __setattr__(self, name, value):
        if self.__dict__.get("frozen"):
            raise AttributeError(f"{name} is frozen")
        super().__setattr__(name, value)


class OwnGetattr(Net):
    """Like PEFT's: unknown attributes are the inner module's."""

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self._modules["body"], name)


FORWARDS = {
    "abstract": Concrete,
    "generic": GenericFirst,
    "no_grad": NoGrad,
    "keyword-only": KeywordOnly,
    "variadic": Variadic,
    "positional-only": type("Made", (Net,), {"forward": lambda self, x, /, scale=1.0: Net.forward(self, x, scale)}),
    "another name": type("Made", (Net,), {"forward": lambda this, x: Net.forward(this, x)}),
    "slots": type("Made", (Net,), {"__slots__": ("extra",)}),
    "own setattr": OwnSetattr,
    "own getattr": OwnGetattr,
}


@pytest.mark.parametrize("cls", FORWARDS.values(), ids=FORWARDS)
def test_any_forward_is_guarded_and_unguarded(cls):
    model = cls()
    give = (lambda x: model(x=x)) if cls is KeywordOnly else model
    expected = give(ones())
    assert guard(model, mode="strict", depth="all") is model
    assert same(give(ones()), expected)
    assert give(ones()).requires_grad == expected.requires_grad
    with pytest.raises(DtypeError):
        give(ones(F64))
    assert type(unguard(model)) is cls
    assert same(give(ones()), expected)


POSTPONED = """
from __future__ import annotations
from jaxtyping import Float32
from support import BF16, F16, F32, F64, same
from torch import Tensor, nn

class Static(nn.Module):
    @staticmethod
    def forward(x: Float32[Tensor, "b 3"]):
        return x

def forward(x: Float32[Tensor, "b 3"]):
    return x
"""


@pytest.mark.parametrize("place", ["class", "instance"])
def test_postponed_annotations_are_those_of_the_forward_s_own_module(place):
    names = {}
    exec(POSTPONED, names)
    model = names["Static"]()
    if place == "instance":
        model = nn.Identity()
        model.forward = names["forward"]
    guard(model, mode="strict")
    assert model(ones()).shape == (2, 3)
    assert refusal(model, ones(F32, 2, 4), error=ShapeError).argument == "x"


def filled(fn):
    return functools.wraps(fn)(lambda self, x: fn(self, x, 2.0))


def renamed(fn):
    return functools.wraps(fn)(lambda self, batch: fn(self, batch, 2.0))


@pytest.mark.parametrize(("decorator", "name"), [(filled, "x"), (renamed, "batch")])
@pytest.mark.parametrize("annotated", [False, True])
def test_a_decorator_may_take_other_arguments_than_the_forward_inside(decorator, name, annotated):
    def forward(self, x, scale):
        return nn.Linear.forward(self, x) * scale

    forward.__annotations__ = {"x": Float32[Tensor, "b 3"]} if annotated else {}
    bare = type("Scaled", (nn.Linear,), {"forward": decorator(forward)})(3, 2)
    expected = bare(ones())
    model = guard(bare, mode="strict")
    assert torch.equal(model(ones()), expected)
    assert torch.equal(model(**{name: ones()}), expected)
    assert refusal(model, ones(F64)).argument == name
    if annotated and name == "x":
        assert refusal(model, ones(F32, 4), error=ShapeError).argument == name


def annotated(x: Float[Tensor, "b 3"]) -> Float[Tensor, "b 2"]:
    return x[:, :2] if x[0, 0] else x


class Holder:
    forward = staticmethod(annotated)

    def method(self, x: Float[Tensor, "b 3"]) -> Float[Tensor, "b 2"]:
        return annotated(x)


class Static(nn.Linear):
    forward = staticmethod(annotated)


class OfTheClass(nn.Linear):
    @classmethod
    def forward(cls, x: Float[Tensor, "b 3"]) -> Float[Tensor, "b 2"]:
        return annotated(x)


class OfItsOwn(nn.Linear):
    """One that somebody put on the instance."""

    def __init__(self, forward):
        super().__init__(3, 2)
        self.forward = forward


ANNOTATED = {
    "of the class, static": lambda: Static(3, 2),
    "of the class, a class method": lambda: OfTheClass(3, 2),
    "of the instance, a function": lambda: OfItsOwn(annotated),
    "of the instance, a decorated function": lambda: OfItsOwn(functools.wraps(annotated)(lambda *x: annotated(*x))),
    "of the instance, another object's": lambda: OfItsOwn(Holder().method),
    "of the instance, decorated like the class's": lambda: OfItsOwn(
        functools.wraps(OfTheClass(3, 2).forward)(lambda *x, **y: annotated(*x, **y))
    ),
    "of the instance, decorated as if it took the model": lambda: OfItsOwn(
        functools.wraps(Holder.method)(lambda *x, **y: annotated(*x, **y))
    ),
}


@pytest.mark.parametrize("what", ANNOTATED)
def test_a_forward_that_takes_no_module_is_held_to_its_annotations(what):
    model = guard(ANNOTATED[what]().to(BF16), mode="strict")
    assert model(ones(BF16)).shape == (2, 2)
    assert refusal(model, ones()).expected is BF16
    assert refusal(model, x=ones(BF16, 2, 4), error=ShapeError).argument == "x"
    assert "the result" in str(refusal(model, torch.zeros(2, 3, dtype=BF16), error=ShapeError))
    assert "self" not in inspect.signature(model.forward).parameters


def test_subclass_registries_do_not_see_the_generated_class():
    seen = []

    class Registered(Net):
        def __init_subclass__(cls, *, key, **kwargs):
            super().__init_subclass__(**kwargs)
            seen.append(key)

    class Child(Registered, key="child"):
        pass

    guard(Child(), mode="strict")
    assert seen == ["child"]


class Registry(type):
    """Knows the class of each name, and wants to be told more than `guard` could."""

    seen: typing.ClassVar[dict[str, type]] = {}

    def __new__(cls, name, bases, members, *, key):
        return super().__new__(cls, name, bases, members)

    def __init__(cls, name, bases, members, *, key):
        super().__init__(name, bases, members)
        cls.seen[name] = cls


class AbstractRegistry(abc.ABCMeta):
    def __init__(cls, name, bases, members):
        super().__init__(name, bases, members)
        Registry.seen[name] = cls


class OfRegistry(Net, metaclass=Registry, key="a"):
    pass


class OfAbstractRegistry(Net, metaclass=AbstractRegistry):
    pass


@pytest.mark.parametrize("cls", [OfRegistry, OfAbstractRegistry])
def test_metaclasses_are_not_told_of_the_generated_class(cls):
    model = guard(cls(), depth="all")
    twin = pickle.loads(pickle.dumps(model))
    assert [isinstance(one, type(model)) for one in (twin, model, cls())] == [True, True, False]
    assert type(unguard(model)) is cls
    assert Registry.seen[cls.__name__] is cls


NAMES = ["it's", "{self}", "%s", "a\\b", "a\nb", "é", "class", "__import__('os')", "0"]


@pytest.mark.parametrize("name", NAMES)
def test_names_of_modules_and_parameters_may_be_anything(name):
    model = nn.Sequential(nn.ModuleDict({name: nn.ModuleDict({name: nn.Module()})}))
    model[0][name][name].register_parameter(name, nn.Parameter(torch.ones(1, dtype=BF16)))
    model[0].forward = lambda x: x
    error = refusal(guard(model, mode="strict"), ones())
    assert error.expected is BF16
    assert name in str(error)

    class Enforced(nn.Module):
        @enforce(mode="strict")
        def forward(self, x: Float[Tensor, "..."]):
            return x

    enforced = Enforced()
    enforced.register_parameter(name, nn.Parameter(torch.ones(1, dtype=BF16)))
    for _ in range(2):
        assert refusal(enforced, ones()).expected is BF16
        assert enforced(ones(BF16)).dtype is BF16


# ---------------------------------------------------------------- memory


def test_a_class_that_is_no_longer_used_can_be_forgotten():
    def used():
        class Local(nn.Linear):
            pass

        guard(Local(3, 2), mode="strict")(ones())
        return weakref.ref(Local)

    local = used()
    gc.collect()
    assert local() is None


# ---------------------------------------------------------------- copies


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_a_copy_has_its_own_guard_and_a_deep_one_its_own_weights(copied):
    model = guard(Net(), mode="strict")
    twin = copied(model)
    assert type(twin) is type(model)
    assert twin is not model
    assert torch.equal(twin(ones()), model(ones()))
    deep = copied is copy.deepcopy
    assert (twin.head is model.head) != deep
    twin.half()
    assert refusal(twin, ones()).expected is F16
    assert model.head.weight.dtype is (F32 if deep else F16)
    unguard(twin)
    assert is_guarded(model)
    assert type(model) is not Net is type(twin)


@pytest.mark.parametrize("depth", ["auto", "all", "boundary"])
@pytest.mark.parametrize("make", [Net, Annotated, Mixed])
def test_pickles_come_back_guarded(make, depth):
    skip = (nn.ReLU, "head*", "*") if make is Net else ("*",)
    options = {"device": "cpu", "autocast": "ignore", "output_dtype": BF16 if make is Mixed else F32}
    model = guard(make(), mode="strict", depth=depth, skip_modules=skip, **options)
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    x = ones(options["output_dtype"])
    for twin in (pickle.loads(pickle.dumps(model)), torch.load(buffer, weights_only=False)):
        assert type(twin) is type(model)
        assert is_guarded(twin)
        assert torch.equal(twin(x), model(x))
        assert type(unguard(twin)) is make


class Named(Net):
    """Says itself how it is pickled, by the name of its class."""

    def __reduce__(self):
        return Named, (3, 2), self.__dict__


class Made(Net):
    """Or by a function that makes it, with weights of its own."""

    def __reduce__(self):
        return made, (self.head.out_features,)


def made(width):
    return Made(out=width)


class Partly(Net):
    """Or by half a call."""

    def __reduce__(self):
        return functools.partial(type(self), 3, out=2), (), self.__dict__


AGAIN = [copy.copy, copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))]


@pytest.mark.parametrize("make", [Named, Made, Partly])
@pytest.mark.parametrize("again", AGAIN)
def test_a_model_that_is_pickled_in_its_own_way_comes_back_guarded(make, again):
    model = guard(make(), mode="strict")
    twin = again(model)
    assert twin is not model
    assert type(twin) is type(model)
    assert holds(twin)
    assert type(unguard(twin)) is make
    assert type(again(unguard(model))) is make
    single = guard(type("Single", (Net,), {"__reduce__": lambda self: "single"})())
    assert copy.deepcopy(single) is copy.copy(single) is single


def test_a_pickle_loads_where_nothing_was_imported(tmp_path):
    path = tmp_path / "model.pickle"
    path.write_bytes(pickle.dumps(guard(nn.Sequential(nn.Linear(3, 2)), mode="strict")))
    program = (
        f"import pickle, pathlib; model = pickle.loads(pathlib.Path({str(path)!r}).read_bytes())\n"
        "import torch\n"
        "try: model(torch.ones(1, 3, dtype=torch.float64))\n"
        "except TypeError as error: print(type(error).__name__)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "DtypeError"


class Counted(nn.Linear):
    """Says what it was made from before `__init__` runs."""

    def __new__(cls, *args, **kwargs):
        made = super().__new__(cls)
        made.__dict__["given"] = (args, kwargs)
        return made


class OfMixin(GuardedModule, Counted):
    pass


def test_classes_that_make_their_instances_themselves_go_on_doing_so():
    model = guard(Counted(3, 2), mode="strict")
    other = type(model)(5, out_features=7)
    assert other.given == ((5,), {"out_features": 7})
    assert holds(other, ones(F64, 2, 5))
    assert OfMixin(3, out_features=2).given == ((3,), {"out_features": 2})
    assert Own(nn.ReLU(), inplace=True)(ones()).shape == (2, 2)


# ---------------------------------------------------------------- generated code


def test_models_of_one_class_and_guard_share_a_class_and_others_no_code():
    """Dynamo counts recompiles per code object."""
    models = [Net(), type("Other", (Net,), {})(), nn.Linear(3, 2), nn.Bilinear(3, 3, 2)]
    assert len({id(type(guard(model)).forward.__code__) for model in models}) == 4
    assert type(guard(Net())) is type(guard(Net()))
    assert type(guard(Net())) is not type(guard(Net(), mode="strict"))
    forward = type(guard(Net())).forward
    assert linecache.getline(forward.__code__.co_filename, 1)
    assert forward.__globals__ is Net.forward.__globals__
    assert forward.__name__ == forward.__code__.co_name == "forward"


# ---------------------------------------------------------------- a forward on the instance


def with_own_forward(model):
    """What accelerate and hooks do."""

    def forward(self, x):
        return type(self).forward(self, x) + 1

    model.forward = types.MethodType(forward, model)
    return model


def test_a_forward_on_the_instance_is_guarded_and_comes_back():
    model = with_own_forward(Net())
    own, expected = vars(model)["forward"], model(ones())
    guard(model, mode="strict")
    assert torch.equal(model(ones()), expected)
    assert refusal(model, ones(F64)).argument == "x"
    unguard(model)
    assert vars(model)["forward"] is own
    assert type(model) is Net
    assert torch.equal(model(ones()), expected)


def test_a_forward_put_on_the_instance_runs_the_weights_of_a_copy_and_is_checked_once():
    model = guard(with_own_forward(Net()), mode="strict")
    twin = copy.deepcopy(model)
    for parameter in twin.parameters():
        nn.init.zeros_(parameter)
    assert torch.equal(twin(ones()), ones(F32, 2, 2))
    assert holds(with_own_forward(guard(Net(), mode="strict")))
    model = Counting()
    model.forward = types.MethodType(Counting.forward, model)
    guard(model, mode="strict")(ones())
    assert model.checks == 1


@pytest.mark.parametrize(
    "own", [lambda x, y=1: x, lambda x, /, y=1: x, lambda *, x: x, lambda *x, **y: x, functools.partial(lambda x: x),
            nn.Identity().forward],
)  # fmt: skip
def test_a_forward_of_the_instance_is_called_forward_and_keeps_its_signature(own):
    model = nn.Identity()
    model.weight, model.forward = nn.Parameter(ones()), own
    guard(model, mode="strict")
    assert inspect.signature(model.forward).parameters == inspect.signature(own).parameters
    assert model.forward.__name__ == "forward"
    assert model.forward.__qualname__.endswith("Identity.forward")
    args, kwargs = ((), {"x": ones(F64)}) if "*, x" in str(inspect.signature(own)) else ((ones(F64),), {})
    assert refusal(model.forward, *args, **kwargs).function == "Identity.forward"


def test_two_guards_that_are_equal_both_hold_an_instance_s_own_forward():
    for _ in range(2):
        model = nn.Identity()
        model.weight, model.forward = nn.Parameter(ones()), types.MethodType(lambda self, x: x, model)
        assert holds(guard(model, mode="strict"))


# ---------------------------------------------------------------- twice, and off again


def test_the_last_guard_wins():
    model = guard(guard(Net(), mode="lenient", depth="all"), mode="strict")
    assert holds(model)
    assert not is_guarded(model.head)
    guard(model, mode="lenient", dtype=BF16)
    unguard(model)
    assert type(model) is Net


def test_unguard_restores_everything():
    model = Mixed()
    classes = {name: type(module) for name, module in model.named_modules()}
    attributes = {name: dict(vars(module)) for name, module in model.named_modules()}
    assert unguard(model) is model
    outer = nn.Sequential(guard(guard(model, depth="all", mode="lenient"), depth="all"))
    unguard(outer)
    assert {name: type(module) for name, module in model.named_modules()} == classes
    assert {name: vars(module) for name, module in model.named_modules()} == attributes
    assert not is_guarded(model)


def test_a_wrapper_that_somebody_kept_does_nothing_once_the_guard_is_gone():
    model = guard(nn.Identity(), dtype=F32)
    kept = type(model).forward
    for step in (unguard, functools.partial(guard, dtype=F16)):
        assert kept(step(model), ones(F64)).dtype is F64


# ---------------------------------------------------------------- options


GUARDED = {
    ("auto", Net): {""},
    ("all", Net): {"", "body.0", "head"},
    ("boundary", Net): {""},
    ("auto", Mixed): {"", "body.0", "body.1.0"},
    ("all", Mixed): {"", "body.0", "body.1.0"},
    ("boundary", Mixed): {""},
}


@pytest.mark.parametrize(("depth", "make"), list(GUARDED))
def test_depth_says_which_modules_are_guarded(depth, make):
    model = guard(make(), depth=depth)
    assert {name for name, module in model.named_modules() if is_guarded(module)} == GUARDED[depth, make]


@pytest.mark.parametrize(
    ("skip", "guarded"),
    [
        ((), {"", "0", "1", "2.0"}),
        (("2.*",), {"", "0", "1"}),
        (("?",), {"", "2.0"}),
        ((nn.Bilinear, "0"), {"", "2.0"}),
        ((nn.Linear,), {"", "1"}),
        ((nn.Sequential,), {"", "0", "1", "2.0"}),
        ([nn.Module], {""}),
    ],
)
def test_skip_modules_takes_patterns_and_classes(skip, guarded):
    model = nn.Sequential(nn.Linear(2, 2), nn.Bilinear(2, 2, 2), nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
    guard(model, depth="all", skip_modules=skip)
    assert {name for name, module in model.named_modules() if is_guarded(module)} == guarded


def test_what_holds_parameters_but_has_no_forward_is_not_guarded():
    model = nn.Module()
    model.forward = lambda x: x
    model.held, model.layer = nn.ParameterList([ones()]), nn.Linear(2, 2)
    guard(model, depth="all")
    assert [is_guarded(module) for module in (model, model.held, model.layer)] == [True, False, True]
    assert type(model.held) is nn.ParameterList


@pytest.mark.parametrize(
    ("skip", "error", "text"),
    [
        (
            "heads",
            ValueError,
            "Net has no submodule called 'heads' (did you mean 'head'?), only body, body.0, body.1, head",
        ),
        (
            "head.*",
            ValueError,
            "Net has no submodule that 'head.*' matches (did you mean 'head'?), only body, body.*, head",
        ),
        (nn.Conv2d, ValueError, "Net has no submodule of the class Conv2d, only Linear, ReLU, Sequential"),
        (nn.Linear(1, 1), TypeError, "takes names, patterns of names, and classes of submodules, not a Linear"),
    ],
)
@pytest.mark.parametrize("depth", ["auto", "all", "boundary"])
def test_skip_modules_that_mean_none_are_refused(skip, error, text, depth):
    model = Net()
    with pytest.raises(error, match="^skip_modules:? .*" + re.escape(text) + "$"):
        guard(model, depth=depth, skip_modules=("body", skip))
    assert type(model) is Net
    many = nn.Sequential(*(nn.Linear(1, 1) for _ in range(30)))
    with pytest.raises(ValueError, match=r"called '2\.0' \(did you mean '20'\?\), only (\d+, ){8}\.\.\.$"):
        guard(many, skip_modules=["2.0"])


def test_skip_args_are_left_alone_by_name_and_inside_keyword_arguments():
    model = guard(Variadic(), mode="strict", skip_args=("bias",))
    assert model(ones(), bias=ones(F64, 2, 2)).dtype is F64
    error = refusal(model, ones(F64), scale=ones(F64, 2, 2))
    assert error.argument == "inputs[0]"
    assert error.violations[1].startswith("argument `more['scale']` is float64")
    with pytest.raises(RuntimeError, match="dtype"):  # torch's own: the annotation is skipped too
        guard(Annotated(), mode="strict", skip_args=("x",))(ones(F64))


def test_dtype_and_device_override_the_parameters():
    error = refusal(guard(Net(), mode="strict", dtype=F64), ones())
    assert (error.actual, error.expected) == (F32, F64)
    assert guard(Net().double(), mode="strict", dtype=F64)(ones(F64)).dtype is F64
    assert refusal(guard(nn.ReLU(), mode="strict", dtype=BF16), ones()).expected is BF16
    error = refusal(guard(Net(), mode="strict", device="meta"), ones(), error=DeviceError)
    assert (error.actual, error.expected) == (torch.device("cpu"), torch.device("meta"))
    assert guard(nn.ReLU(), mode="strict", device="meta")(ones().to("meta")).is_meta


class Many(Layer):
    def forward(self, x):
        y = self.fc(x)
        return {"y": y, "parts": [y, (y, None)], "ids": y.argmax(-1), "name": "y"}


def test_output_dtype_is_what_floating_results_of_the_root_become():
    model = guard(Many().to(BF16), mode="lenient", output_dtype=F32, depth="all")
    with pytest.warns(CastWarning):
        out = model(ones(BF16))
    assert out["y"].dtype is out["parts"][0].dtype is out["parts"][1][0].dtype is F32
    assert out["ids"].dtype is torch.int64
    assert (out["parts"][1][1], out["name"]) == (None, "y")
    error = refusal(guard(model, mode="strict", output_dtype=F32, depth="all"), ones(BF16))
    assert (error.actual, error.expected, error.function) == (BF16, F32, "Many.forward")
    assert "result" in str(error)


class Ids(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 3)

    def forward(self, ids, batch=None):
        return self.table(ids)


def test_move_args_moves_integers_too_and_reaches_into_containers():
    ids = torch.tensor([1, 2])
    model = guard(Ids().to("meta"), mode="lenient", move_args=("ids",))
    with pytest.warns(CastWarning, match="moved from cpu to meta"):
        assert model(ids).is_meta
    model = guard(model, mode="strict", move_args=("ids", "batch"))
    assert refusal(model, ids, error=DeviceError).argument == "ids"
    assert refusal(model, ids.to("meta"), {"mask": [ids]}, error=DeviceError).argument == "batch['mask'][0]"


BAD_OPTIONS = [  # the words are in tests/golden/errors.txt
    ({"mode": "strictly"}, ValueError, "lenient"),
    ({"skip_args": ("y",)}, ValueError, "no argument 'y'.*x, scale, bias"),
    ({"dtype": torch.int8}, ValueError, "int8"),
    ({"dtype": "bfloat"}, ValueError, "did you mean 'bfloat16'"),
    ({"output_dtype": torch.bool}, ValueError, "bool"),
    ({"device": "abacus"}, ValueError, "abacus"),
]


@pytest.mark.parametrize(("options", "error", "match"), BAD_OPTIONS)
def test_bad_options_are_refused_before_anything_changes(options, error, match):
    model = Net()
    with pytest.raises(error, match=match):
        guard(model, **options)
    assert type(model) is Net
    guard(model, mode="strict")
    with pytest.raises(error, match=match):
        guard(model, **options)
    assert holds(model)


def logged(function):
    return functools.wraps(function)(lambda *args, **kwargs: function(*args, **kwargs))


class Keys(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 1)

    def forward(self, input_ids, labels=None, pos_q=None, **more):
        return self.fc(input_ids)


class LoggedKeys(Keys):
    forward = logged(Keys.forward)


@pytest.mark.parametrize("option", ["skip_args", "move_args"])
@pytest.mark.parametrize("make", [Keys, LoggedKeys])
def test_a_slip_in_a_name_is_told_where_other_names_may_be_keys(make, option):
    for slip, meant in {
        "label": "labels",
        "lables": "labels",
        "input_idz": "input_ids",
        "input_id": "input_ids",
    }.items():
        with pytest.raises(ValueError, match=rf"{option}: .* has no argument '{slip}' .did you mean '{meant}'"):
            guard(make(), **{option: slip})
    for key in ("mask", "task", "labels2", "pos_k", "label_weights", "decoder_input_ids"):
        guard(make(), **{option: (key, "labels")})


# ---------------------------------------------------------------- refused models


REFUSED = {  # beside those of tests/golden/errors.txt
    "bound method": (lambda: Net().forward, "enforce"),
    "trace": (lambda: torch.jit.trace(nn.Linear(3, 2), ones()), r"guard the model\b.*trace"),
    "no forward": (lambda: nn.Module(), "no forward"),
    "dict": (lambda: Net().state_dict(), "nn.Module"),
}


@jit
@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_guarded_is_refused_with_advice(what):
    make, advice = REFUSED[what]
    with pytest.raises(TypeError, match=advice) as caught:
        guard(make())
    assert not isinstance(caught.value, DtypeGuardError)
    with pytest.raises(TypeError):
        GuardedModule(make())


def test_is_guarded_answers_for_anything():
    assert not any(is_guarded(thing) for thing in (None, Net, "model", nn.ModuleList()))


class FrozenLinear(nn.Linear):
    def __setattr__(self, name, value):
        if "frozen" in self.__dict__:
            raise AttributeError(f"{name} is frozen")
        super().__setattr__(name, value)


class Final(nn.Linear):
    def __init_subclass__(cls, **kwargs):
        raise TypeError("Final is final")


class Immovable(nn.Linear):
    """As classes that are written in C."""

    @property
    def __class__(self):
        return Immovable

    @__class__.setter
    def __class__(self, cls):
        if cls is not Immovable:
            raise TypeError("it is final")


def frozen():
    layer = FrozenLinear(3, 2)
    layer.frozen = True
    return layer


@pytest.mark.parametrize(
    "last", [frozen, lambda: Final(3, 2), lambda: Immovable(3, 2), Concrete, lambda: GenericLinear(3, 2)]
)
@pytest.mark.parametrize("before", [False, True])
def test_a_failed_guard_leaves_the_model_as_it_was(last, before):
    """One module of many refuses: then none is guarded anew, or all are."""
    model = nn.Sequential(nn.Linear(3, 3), last())
    if isinstance(model[1], Concrete):
        model[1].own = nn.Parameter(torch.ones(1))
    if before:
        guard(model, mode="strict", depth="boundary")
    try:
        guard(model, mode="strict", depth="all")
    except Exception:
        assert is_guarded(model) == holds(model) == before
        assert not is_guarded(model[0])
        assert type(model[0]) is nn.Linear
    else:
        assert all(is_guarded(module) for module in (model, *model))
        assert holds(model)
    assert model(ones()).shape == (2, 2)


@pytest.mark.parametrize("last", [nn.Linear, Immovable])
def test_a_guard_of_a_graph_module_outlives_one_that_failed(graph, last):
    guard(graph, mode="strict")
    model = nn.Sequential(graph, last(2, 2))
    with contextlib.suppress(TypeError):
        guard(model, mode="strict", depth="all")
    assert is_guarded(graph) == (last is Immovable)
    assert holds(graph)
    unguard(model)
    assert not holds(graph)
    assert not graph._forward_pre_hooks


# ---------------------------------------------------------------- annotations


def test_an_annotated_forward_is_held_to_its_annotations():
    class Fixed(Annotated):
        def forward(self, x: 'Float32[Tensor, "b 3"]', n: int = 1, ids: "Int64[Tensor, 'b'] | None" = None, other=None):
            return self.fc(x.to(self.fc.weight.dtype))

    model = guard(Fixed().to(BF16), mode="strict")
    assert model(ones(), n="guard looks at tensors alone").dtype is BF16
    assert refusal(model, ones(BF16)).expected is F32
    assert refusal(model, ones(), other=ones()).expected is BF16
    assert refusal(model, ones(), ids=torch.ones(2, dtype=torch.int32)).argument == "ids"
    assert refusal(model, ones(F32, 2, 4), error=ShapeError).argument == "x"
    model = guard(Annotated().to(BF16), mode="strict")
    assert refusal(model, ones()).expected is BF16
    assert refusal(model, ones(BF16, 2, 4), error=ShapeError).argument == "x"


def test_annotations_that_mean_nothing_here_are_no_annotations():
    class Odd(Annotated):
        def forward(self, x: "Missing", mask: "Float[Tensor" = None, n: int = 1):
            return self.fc(x)

    model = guard(Odd(), mode="strict")
    assert model(ones(), n="not an int").shape == (2, 2)
    assert refusal(model, ones(F64)).argument == "x"


# ---------------------------------------------------------------- enforced already


@pytest.mark.parametrize("make", [Counting, EnforcedCounting])
@pytest.mark.parametrize("mode", ["strict", "lenient"])
def test_a_guarded_forward_is_checked_once(make, mode):
    model = guard(make(), mode=mode)
    model(ones())
    assert model.checks == 1


def test_a_repair_of_an_enforced_forward_is_made_and_told_once():
    model = guard(EnforcedCounting(), mode="lenient")
    with pytest.warns(CastWarning) as told:
        model(ones(F64))
    assert len(told) == 1
    assert [record.count for record in dtypeguard.casts()] == [1]


class Told(Layer):
    """An enforced forward with options of its own."""

    @enforce(mode="strict", casting="safe", autocast="ignore", mutates=("out",))
    def forward(self, x: Float[Tensor, "b 3"], n: int = 1, out: Float[Tensor, "b 2"] | None = None):
        return x


@pytest.mark.filterwarnings("ignore::dtypeguard.CastWarning")
def test_a_guard_of_an_enforced_forward_keeps_what_it_was_told():
    refusal(guard(Told()), ones(F64))
    refusal(guard(Told()), ones(), n="one", error=HintError)
    with torch.autocast("cpu", BF16):
        refusal(guard(Told()), ones(BF16))
        assert guard(Told(), autocast="follow")(ones(BF16)).dtype is BF16
    assert "casting='safe'" in str(refusal(guard(Told(), mode="lenient"), ones(F64), error=CastError))
    model = guard(Told(), mode="lenient", casting="precision")
    assert model(ones(F64)).dtype is F32
    assert "`out` is written to" in str(refusal(model, ones(), out=ones(F64, 2, 2), error=CastError))


class EnforcedPair(nn.Linear):
    @enforce
    def forward(self, x: Float[Tensor, "b n"], y: Float[Tensor, "b n"] | None = None):
        return x if y is None else y


@pytest.mark.filterwarnings("ignore::dtypeguard.CastWarning")
def test_a_guard_and_the_enforced_forward_below_it_have_repairs_of_their_own():
    models, wide = [EnforcedPair(2, 2), guard(EnforcedPair(2, 2), dtype=BF16), EnforcedPair(2, 2).to(F16)], ones(F64)
    assert [model.forward(wide).dtype for _ in range(3) for model in models] == [F32, BF16, F16] * 3
    model, dtypes = models[0], []
    for step in range(4):
        if step == 2:
            guard(model, skip_args=("y",))
        dtypes.append(model.forward(wide, wide + 1).dtype)
    assert dtypes == [F32, F32, F64, F64]
    assert EnforcedPair(2, 2).forward(ones(), wide).dtype is F32, "what a guard skips is enforced without it"


@pytest.mark.filterwarnings("ignore::dtypeguard.CastWarning")
def test_a_class_derived_from_a_guarded_one_is_guarded_anew():
    strict = type(guard(nn.Identity(), mode="strict", casting="safe", autocast="ignore", dtype=F32))
    model = guard(type("Derived", (strict,), {})(), dtype=F32)
    assert model.forward(ones(F64)).dtype is F32
    with torch.autocast("cpu", dtype=BF16):
        assert model.forward(ones(BF16)).dtype is BF16


def test_guard_adds_to_an_enforced_forward_what_it_does_not_annotate():
    class Partly(Annotated):
        forward = enforce(Annotated.forward)

    bare = Partly()
    with dtypeguard.mode("strict"):
        bare(ones(), ones(F64))
    assert refusal(guard(bare, mode="strict"), ones(F64), ones(F64)).violations[1].startswith("argument `other`")


# ---------------------------------------------------------------- GuardedModule


@pytest.mark.parametrize("make", [lambda: Net(), lambda: Own(), lambda: Derived()])
def test_guarded_module_of_a_model_is_guard(make):
    """And constructs no other one."""
    model = make()
    before = list(model.parameters())
    assert GuardedModule(model, mode="strict", depth="all") is model
    assert is_guarded(model)
    assert all(a is b for a, b in zip(model.parameters(), before, strict=True))
    assert holds(model)


class Own(GuardedModule):
    def __init__(self, inner: nn.Module | None = None, **options) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 2)

    def forward(self, x: Float[Tensor, "b 3"]) -> Float[Tensor, "b 2"]:
        return self.fc(x)


class Derived(Own):
    def __init__(self) -> None:
        super().__init__()
        self.after = nn.Linear(2, 2)

    def forward(self, x: Float[Tensor, "b 3"]) -> Float[Tensor, "b 2"]:
        return self.after(super().forward(x))


class Inheriting(Own):
    pass


class MixedIn(GuardedModule, Annotated):
    """The mixin in front of a class that exists."""


@pytest.mark.parametrize("make", [Own, Derived, Inheriting, MixedIn])
def test_the_forward_of_a_guarded_module_class_is_enforced(make):
    model = make()
    with dtypeguard.mode("strict"):
        assert model(ones()).shape == (2, 2)
        assert refusal(model, ones(F64)).argument == "x"
        refusal(model, ones(F32, 2, 4), error=ShapeError)
    with dtypeguard.mode("lenient"), pytest.warns(CastWarning):
        assert model(ones(F64)).dtype is F32


@pytest.mark.parametrize("make", [Own, Derived, Inheriting])
def test_such_a_model_copies_pickles_converts_and_is_guarded_and_back(make):
    model = make()
    assert is_guarded(model)
    for step in (lambda: model, lambda: guard(model, mode="strict")):
        for again in AGAIN:
            twin = again(step())
            assert type(twin) is type(model)
            assert torch.equal(twin(ones()), model(ones()))
    assert holds(model)
    assert type(unguard(model)) is make
    assert is_guarded(model)
    with dtypeguard.mode("strict"):
        assert refusal(model.to(BF16), ones()).expected is BF16


def test_a_guarded_module_class_may_leave_its_forward_to_others():
    class Base(GuardedModule):
        pass

    class Whole(Base):
        def forward(self, x: Float32[Tensor, "b 3"]):
            return x

    with pytest.raises(TypeError, match="Base has no forward"):
        guard(Base())
    with pytest.raises(NotImplementedError):
        Base()(ones())
    assert holds(guard(Whole(), mode="strict"))


def test_a_guarded_module_class_cooperates():
    class Named:
        def __init__(self, *args, name, **kwargs):
            super().__init__(*args, **kwargs)
            self.name = name

    class Cooperating(Named, GuardedModule, nn.Linear):
        pass

    model = Cooperating(3, 2, bias=False, name="fc")
    assert (model.name, model.bias, model(ones()).shape) == ("fc", None, (2, 2))


# ---------------------------------------------------------------- live parameters


def test_what_happens_to_parameters_after_the_guard_needs_no_refresh():
    model = guard(Net(), mode="strict")
    for convert, dtype in ((model.half, F16), (model.bfloat16, BF16), (model.double, F64), (model.float, F32)):
        convert()
        assert model(ones(dtype)).dtype is dtype
        assert refusal(model, ones(F64 if dtype is F32 else F32)).expected is dtype
    model.load_state_dict(Net().to(BF16).state_dict(), assign=True)
    assert refusal(model, ones()).expected is BF16
    model.to("meta")
    assert refusal(model, ones(BF16), error=DeviceError).expected == torch.device("meta")


# ---------------------------------------------------------------- parametrize, weight_norm, prune


class Doubled(nn.Module):
    def forward(self, weight):
        return weight * 2

    def right_inverse(self, weight):
        return weight / 2


def test_a_class_that_was_changed_on_top_of_the_guard_survives_unguard():
    """FSDP2 and parametrize make a subclass of whatever class they find."""
    model = guard(Net(), mode="strict")
    model.__class__ = type("Sharded", (type(model),), {"extra": lambda self: "kept"})
    assert holds(model)
    unguard(model)
    assert model.extra() == "kept"
    assert not holds(model)


def test_a_guard_slips_under_what_parametrize_put_on_top():
    model = nn.Linear(3, 2)
    parametrize.register_parametrization(model, "weight", Doubled())
    before = dict(vars(type(model)))
    for step in (lambda model: guard(model, depth="all"), unguard):
        assert vars(type(step(model))).items() >= before.items()
        assert not is_guarded(model.parametrizations.weight)  # machinery that nobody calls


# ---------------------------------------------------------------- DataParallel


def replicate(module):
    """What `torch.nn.parallel.replicate` does, on one device."""
    replica = module._replicate_for_data_parallel()
    replica._former_parameters = {}
    for name, child in module._modules.items():
        replica._modules[name] = replicate(child)
    for name, parameter in module._parameters.items():
        value = None if parameter is None else parameter.view_as(parameter)
        setattr(replica, name, value)
        replica._former_parameters[name] = value
    return replica


@pytest.mark.parametrize("depth", ["auto", "all"])
def test_replicas_of_data_parallel_are_held_to_their_own_parameters(depth):
    model = guard(Net(), mode="strict", depth=depth)
    replica = replicate(model)
    assert not list(replica.parameters())
    assert torch.equal(replica(ones()), model(ones()))
    assert refusal(replica, ones(F64)).argument == "x"
    half = replicate(model.half())
    assert half(ones(F16)).dtype is F16


class OwnParallel(nn.DataParallel):
    pass


@pytest.mark.parametrize("wrapper", [nn.DataParallel, OwnParallel])
def test_a_data_parallel_wrapper_passes_the_guard_on(wrapper, monkeypatch):
    module = sys.modules["torch.nn.parallel.data_parallel"]  # `torch.nn.parallel.data_parallel` is a function
    monkeypatch.setattr(module, "_get_available_device_type", lambda: None)  # as without a GPU
    wrapped = wrapper(Net())
    assert guard(wrapped, mode="strict") is wrapped
    assert type(wrapped) is wrapper
    assert is_guarded(wrapped)
    assert is_guarded(wrapped.module)
    assert refusal(wrapped, ones(F64)).argument == "x"
    assert type(unguard(wrapped).module) is Net


# ---------------------------------------------------------------- jit, fx, compile, export


@jit
@pytest.mark.parametrize("depth", ["auto", "all"])
def test_scripting_takes_the_model_without_its_guard_and_says_so(depth):
    class Scriptable(Layer):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(x)

    model = guard(Scriptable(), mode="strict", depth=depth)
    with pytest.warns(DtypeGuardWarning, match="without its guard") as told:
        scripted = torch.jit.script(model)
    assert {w.filename for w in told if w.category is DtypeGuardWarning} == {__file__}
    assert torch.equal(scripted(ones()), model(ones()))
    assert holds(model)
    assert is_guarded(model.fc) == (depth == "all")


@jit
@pytest.mark.parametrize("make", [Net, Annotated])
def test_a_trace_bakes_the_cast_in(make):
    model = guard(make(), mode="lenient")
    with pytest.warns() as told:
        traced = torch.jit.trace(model, ones(F64), check_trace=False)
    ignored = {DeprecationWarning, FutureWarning} | (
        {torch.jit.TracerWarning} if make is Annotated else set()
    )  # axes become constants
    assert {warning.category for warning in told} - ignored == {CastWarning}
    assert torch.equal(traced(ones(F64)), model(ones()))


@pytest.mark.parametrize("make", [lambda: nn.Sequential(nn.Linear(3, 2), nn.ReLU()), Annotated, EnforcedCounting])
def test_symbolic_tracing_goes_through_the_guard(make):
    model = guard(make(), mode="strict")
    traced = torch.fx.symbolic_trace(model)
    assert torch.equal(traced(ones()), model(ones()))
    assert not is_guarded(traced)


@pytest.fixture
def graph():
    return torch.fx.symbolic_trace(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))


def test_a_graph_module_is_guarded_by_a_hook_and_unguarded(graph):
    expected, kind = graph(ones()), type(graph)
    assert guard(graph, mode="strict") is graph
    assert type(graph) is kind
    assert is_guarded(graph)
    assert torch.equal(graph(ones()), expected)
    for args, kwargs in (((ones(F64),), {}), ((), {"input": ones(F64)})):
        assert refusal(graph, *args, **kwargs).argument == "input"
    graph.recompile()
    assert torch.equal(graph(ones()), expected)
    assert holds(graph)
    guard(graph, mode="off", output_dtype=F64)
    assert graph(ones()).dtype is F32
    guard(graph.half(), mode="lenient", output_dtype=F32)
    with pytest.warns(CastWarning):
        assert graph(ones(F64)).dtype is F32
    unguard(graph)
    assert not graph._forward_pre_hooks
    assert not is_guarded(graph)


class Summed(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, x, y=None, **more):
        return x + self.weight + more["z"]


@pytest.mark.filterwarnings("ignore::dtypeguard.CastWarning")
def test_a_traced_module_gets_all_keywords_and_its_result_is_checked():
    traced, z = guard(torch.fx.symbolic_trace(Summed(), concrete_args={"y": None}), output_dtype=F16), ones(F32, 2)
    assert traced(ones(F64, 2), z=z).dtype is F16
    assert traced(x=ones(F64, 2), z=z).dtype is F16
    assert guard(traced)(ones(F64, 2), z=z).dtype is F32


def test_only_positional_parameters_of_a_traced_module_take_positions():
    model = guard(torch.fx.symbolic_trace(nn.Bilinear(3, 3, 2)), mode="strict", skip_args=("input2",))
    assert list(inspect.signature(model.forward).parameters) == ["input1", "input2"]
    assert refusal(model, ones(F64), ones()).argument == "input1"
    assert refusal(model, input2=ones(), input1=ones(F64)).argument == "input1"
    with pytest.raises(RuntimeError):  # torch's own
        model(ones(), ones(F64))
    assert model(ones(), input2=ones()).shape == (2, 2)


def test_a_graph_module_is_held_to_the_annotations_that_it_was_traced_with():
    class Wide(Annotated):
        def forward(self, x: Float[Tensor, "b 3"], other=None) -> Float[Tensor, "b 5"]:
            return super().forward(x)

    right, wrong = (guard(torch.fx.symbolic_trace(make()), mode="strict") for make in (Annotated, Wide))
    assert right(ones()).shape == (2, 2)
    assert refusal(right, ones(F32, 2, 4), error=ShapeError).argument == "x"
    assert "the result has size 2 in axis 1" in str(refusal(wrong, ones(), error=ShapeError))
    assert unguard(wrong)(ones()).shape == (2, 2)


class Doubles(Annotated):
    def forward(self, x: Float[Tensor, "b 3"], other=None) -> Float[Tensor, "b+b 2"]:
        y = super().forward(x)
        return torch.cat([y, y])


class DoublesUnawares(Annotated):
    def forward(self, x: Float[Tensor, "b 3"], other=None) -> Float[Tensor, "b 2"]:
        y = super().forward(x)
        return torch.cat([y, y])


class CountsByArgument(Annotated):
    def forward(self, x: Float[Tensor, "b 3"], other=None) -> Float[Tensor, "{x.shape[0]} 2"]:
        return super().forward(x)


@pytest.mark.parametrize("traced", [False, True])
def test_the_result_of_a_graph_module_has_the_axes_of_its_arguments(traced):
    def held(kind):
        model = kind()
        return guard(torch.fx.symbolic_trace(model) if traced else model, mode="strict")

    assert held(Doubles)(ones()).shape == (4, 2)
    assert held(Doubles)(x=ones()).shape == (4, 2)
    assert held(CountsByArgument)(ones()).shape == (2, 2)
    wrong = held(DoublesUnawares)
    assert "the result has axis b=4, but b=2 in `x`" in str(refusal(wrong, ones(), error=ShapeError))


@pytest.mark.parametrize("again", AGAIN[1:])
def test_a_copy_of_a_guarded_graph_module_is_guarded_and_can_be_unguarded(graph, again):
    guard(graph, mode="strict")
    twin = again(graph)
    assert torch.equal(twin(ones()), graph(ones()))
    assert holds(twin) == is_guarded(twin)
    unguard(twin)
    assert not holds(twin)
    assert holds(graph)


# ---------------------------------------------------------------- torch's own errors


class Raising(nn.Module):
    def __init__(self, body) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 2)
        self.body = body

    def forward(self, x):
        return self.body(self, x)


TORCH_ERRORS = {
    "matmul": lambda self, x: self.fc(x.double()),
    "conv": lambda self, x: nn.functional.conv1d(x[None], torch.ones(1, 2, 1, dtype=F64)),
    "index": lambda self, x: nn.functional.embedding(x, self.fc.weight),
    "class labels": lambda self, x: nn.functional.cross_entropy(x, torch.zeros(2, dtype=torch.int32)),
    "no kernel": lambda self, x: torch.arange(3).softmax(0),
    "in place": lambda self, x: torch.zeros(2, 3, dtype=torch.int64).add_(x),
    "mask fill": lambda self, x: x.half().masked_fill(x > 0, -1e9),
    "norm": lambda self, x: nn.functional.layer_norm(x.half(), (3,), torch.ones(3, dtype=BF16)),
    "scatter": lambda self, x: x.scatter_add(0, torch.zeros(2, 3, dtype=torch.int16), x),
    "index dtype": lambda self, x: x[torch.zeros(1)],
    "device": lambda self, x: x.to("meta") + x,
    "integers": lambda self, x: self.fc(x.to(torch.uint8)),
}


@pytest.mark.parametrize("what", TORCH_ERRORS)
def test_torchs_own_error_is_unchanged_but_has_a_note(what):
    def error(model):
        with pytest.raises((RuntimeError, IndexError, DtypeError)) as caught:
            model(ones())
        return caught.value

    bare = error(Raising(TORCH_ERRORS[what]))
    guarded = error(guard(Raising(TORCH_ERRORS[what]), mode="strict"))
    assert type(guarded) is type(bare)
    assert str(guarded) == str(bare)
    assert guarded.args == bare.args
    (note,) = guarded.__notes__
    assert "Raising" in note
    deeper = type(error(guard(Raising(TORCH_ERRORS[what]), mode="strict", depth="all")))
    assert ('depth="all"' in note) is (deeper is DtypeError)
    assert (deeper is DtypeError) is (what == "matmul")


def test_a_note_names_the_innermost_guarded_module_once():
    model = nn.Sequential(Raising(TORCH_ERRORS["matmul"]))
    model[0].own = nn.Parameter(torch.ones(1))
    guard(model, mode="strict", depth="all", skip_modules=(nn.Linear,))
    with pytest.raises(RuntimeError) as caught:
        model(ones())
    (note,) = caught.value.__notes__
    assert "Sequential.0" in note
    assert "depth=" not in note


@pytest.mark.parametrize("mode", ["strict", "lenient"])
def test_a_model_that_fails_on_a_numpy_array_is_noted_with_what_to_pass(mode):
    model = guard(nn.Sequential(nn.Linear(2, 2)).half(), mode=mode)
    image = np.ones((3, 2), np.float32)
    with pytest.raises(TypeError, match="ndarray") as caught:
        model(image)
    (note,) = caught.value.__notes__
    assert note.endswith("Sequential, `input` is a NumPy array: pass `torch.from_numpy(image).to(torch.float16)`")
    model(torch.from_numpy(image).to(torch.float16))


def test_a_model_that_takes_numpy_arrays_gets_them():
    class Reads(nn.Linear):
        def forward(self, x):
            return super().forward(torch.from_numpy(x))

    assert guard(Reads(2, 2), mode="lenient")(np.ones(2, np.float32)).shape == (2,)


@pytest.mark.parametrize("error", [RuntimeError("shapes cannot be multiplied"), ValueError("dtype"), StopIteration()])
def test_other_errors_get_no_note(error):
    def body(self, x):
        raise error

    with pytest.raises(type(error)) as caught:
        guard(Raising(body), mode="strict")(ones())
    assert caught.value is error
    assert not getattr(error, "__notes__", [])


@pytest.mark.filterwarnings("ignore::dtypeguard.ContractWarning")
@pytest.mark.parametrize("mode", ["warn", "off"])
def test_no_note_claims_that_wrong_arguments_were_right(mode):
    with pytest.raises(RuntimeError, match="dtype") as caught:
        guard(Net(), mode=mode)(ones(F64))
    assert not any("were right" in note for note in getattr(caught.value, "__notes__", []))


def test_a_guards_own_error_comes_through_outer_guards_unchanged():
    model = guard(nn.Sequential(BornInside()), mode="strict", depth="all")
    error = refusal(model, ones())
    assert error.module_path == "Sequential.0.fc"
    assert not getattr(error, "__notes__", [])


# ---------------------------------------------------------------- behind a decorator


class Decorated(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    @logged
    def forward(self, x, y=None, *more, **named):
        return [value.dtype for value in (x, y, *more, *named.values()) if value is not None]


@pytest.mark.filterwarnings("ignore::dtypeguard.CastWarning")
def test_arguments_behind_a_decorator_have_the_names_inside():
    model, wide = guard(Decorated(), mode="strict"), ones(F64)
    for name, args, kwargs in (
        ("x", [wide], {}),
        ("y", [1, wide], {}),
        ("args[2]", [1, 2, wide], {}),
        ("z", [1], {"z": wide}),
        ("y[0]", [1, [wide]], {}),
    ):
        assert refusal(model, *args, **kwargs).argument == name
    assert guard(Decorated(), skip_args=("y", "z"))(wide, wide, wide, z=wide) == [F32, F64, F32, F64]


@pytest.mark.parametrize(
    ("option", "one"),
    [("skip_args", "mask"), ("move_args", "mask"), ("skip_modules", "0"), ("skip_modules", nn.Linear)],
)
def test_one_name_means_a_list_of_one(option, one):
    class Masked(nn.Sequential):
        def forward(self, x, mask):
            return super().forward(x) + mask

    guards = [
        dtypeguard.guard(Masked(nn.Linear(3, 3)), depth="all", **{option: given})
        for given in (one, [one], (one, one), iter([one]))
    ]
    assert len({type(guard)._dtypeguard_key.options for guard in guards}) == 1
    assert len({dtypeguard.is_guarded(guard[0]) for guard in guards}) == 1
    assert dtypeguard.is_guarded(guards[0][0]) is (option != "skip_modules")


# ---------------------------------------------------------------- for a while


def _guards(model):
    return [(name, vars(module).get("_dtypeguard")) for name, module in model.named_modules()]


def test_guarded_guards_for_the_length_of_a_block():
    model, wrong = nn.Linear(3, 1), torch.ones(2, 3, dtype=torch.float64)
    cls, state = type(model), model.state_dict()
    with dtypeguard.guarded(model, mode="strict") as inside:
        assert inside is model
        with pytest.raises(dtypeguard.DtypeError):
            model(wrong)
    assert type(model) is cls
    assert not dtypeguard.is_guarded(model)
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in state.items())
    with pytest.raises(RuntimeError, match="dtype"):
        model(wrong)


@pytest.mark.parametrize("depth", ["auto", "all"])
def test_guarded_gives_the_guards_back_that_there_were(depth):
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    wrong = torch.ones(2, 3, dtype=torch.float64)
    dtypeguard.guard(model, mode="strict", skip_modules="1", depth=depth)
    before = [(name, card and (card.path, card.key.options, card.skip, card.follows)) for name, card in _guards(model)]
    with dtypeguard.guarded(model, mode="off"):
        with pytest.raises(RuntimeError):
            model(wrong)
        with contextlib.suppress(KeyError), dtypeguard.guarded(model, mode="lenient"):
            with pytest.warns(dtypeguard.CastWarning):
                assert model(wrong).dtype is torch.float32
            dtypeguard.unguard(model)
            raise KeyError
        with pytest.raises(RuntimeError):
            model(wrong)
    after = [(name, card and (card.path, card.key.options, card.skip, card.follows)) for name, card in _guards(model)]
    assert after == before
    with pytest.raises(dtypeguard.DtypeError):
        model(wrong)


def test_guarded_with_wrong_options_leaves_the_model_as_it_is():
    model = dtypeguard.guard(nn.Linear(3, 1), mode="strict")
    before = type(model)
    with (
        pytest.raises(ValueError, match=r"skip_args: Linear\.forward has no argument 'x'"),
        dtypeguard.guarded(model, skip_args="x"),
    ):
        pass
    with pytest.raises(TypeError, match=r"guarded takes an nn\.Module, not an int"), dtypeguard.guarded(3):
        pass
    assert type(model) is before


def test_guarded_gives_back_what_kept_modules_have():
    torch.manual_seed(0)
    model = nn.Sequential(nn.TransformerEncoderLayer(8, 2, batch_first=True), nn.Linear(8, 2)).eval()
    kept = dtypeguard.compare(model, torch.randn(4, 3, 8), dtype=torch.bfloat16).keep(error=1e-6)
    kept.apply(model)
    x = torch.randn(4, 3, 8)
    with torch.no_grad():
        expected = model(x)
        with dtypeguard.guarded(model):
            pass
        assert torch.equal(model(x), expected)


def test_options_of_guard_have_one_list():
    for function, options in ((dtypeguard.guard, GuardOptions), (dtypeguard.amp.watch, WatchOptions)):
        params = inspect.signature(function).parameters.values()
        given = {param.name: param.annotation for param in params if param.kind is inspect.Parameter.KEYWORD_ONLY}
        assert given == options.__annotations__


# ---------------------------------------------------------------- ids and labels


class Speaks(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(10, 4), nn.Linear(4, 1)

    def forward(self, input_ids=None, labels=None, batch=None):
        out = self.head(self.table(batch["input_ids"] if input_ids is None else input_ids)).squeeze(-1)
        return out if labels is None else torch.nn.functional.mse_loss(out.float(), labels.float())


IDS = torch.tensor([1, 2])


@pytest.mark.parametrize("mode", ["strict", "lenient"])
@pytest.mark.parametrize("given", [{"input_ids": IDS.float()}, {"batch": {"input_ids": IDS.float()}}], ids=list)
def test_ids_are_integers(given, mode):
    model = guard(Speaks().half(), mode=mode)
    with pytest.raises(dtypeguard.DtypeGuardError, match="are integers") as told:
        model(**given)
    assert told.value.fix.endswith("['input_ids'].long()") or told.value.fix == "input_ids.long()"
    assert model(IDS).dtype is torch.float16


class Scales(Speaks):
    def forward(self, ids, scale):
        return self.head(self.table(ids)) * scale


class Tokens(Speaks):
    def forward(self, tokens, scale):
        return self.head(self.table(tokens.view(-1, 2))) * scale


BESIDE = {  # a model, what else is given, the mode, and what to write
    "named, beside what is right": (Scales, torch.float16, "strict", "given.long()"),
    "named, beside what is wrong": (Scales, torch.float32, "strict", "given.long(); scale.to(torch.float16)"),
    "named, with a repair": (Scales, torch.float32, "lenient", "given.long()"),
    "named, where it is needed": (Scales, torch.float16, "lenient", "ids.long()"),
    "of another name": (Tokens, torch.float16, "strict", "given.long()"),
    "of another name, where it is needed": (Tokens, torch.float16, "lenient", "tokens.view(-1, 2).long()"),
}


@pytest.mark.parametrize("numbers", [[1.0, 2.0], [0.2, 1.5]], ids=["whole", "fractions"])
@pytest.mark.parametrize(("make", "beside", "mode", "fix"), BESIDE.values(), ids=BESIDE)
def test_ids_are_integers_whatever_is_given_beside_them(make, beside, mode, fix, numbers):
    model, given, scale = guard(make().half(), mode=mode), torch.tensor(numbers), torch.ones(1, dtype=beside)
    with pytest.raises(dtypeguard.DtypeGuardError, match="ids of an embedding are integers") as told:
        model(given, scale)
    assert told.value.fix == fix


def test_positions_between_tokens_are_no_ids():
    class Rotates(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.head = nn.Embedding(10, 4), nn.Linear(1, 4)

        def forward(self, tokens, position_ids):
            return self.table(tokens) + self.head(position_ids[:, None])

    model, positions = Rotates().half(), torch.tensor([0.0, 0.5])
    with pytest.warns(dtypeguard.CastWarning, match="position_ids"):
        assert torch.equal(guard(model, mode="lenient")(IDS, positions), model(IDS, positions.half()))
    with pytest.raises(dtypeguard.DtypeError) as told:
        guard(model, mode="strict")(IDS, positions)
    assert told.value.fix == "positions.to(torch.float16)"


class HandsOn(Speaks):
    def forward(self, tokens):
        return self.head(self.table(tokens))


EMBEDS = {
    "the forward of a model": lambda: HandsOn(),
    "an embedding": lambda: nn.Embedding(10, 4),
    "a bag": lambda: nn.EmbeddingBag(10, 4, mode="sum"),
    "first": lambda: nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 1)),
    "first of the first": lambda: nn.Sequential(nn.Sequential(nn.Embedding(10, 4)), nn.Linear(4, 1)),
}


@pytest.mark.parametrize("mode", ["strict", "lenient"])
@pytest.mark.parametrize("make", EMBEDS.values(), ids=list(EMBEDS))
def test_what_an_embedding_of_pytorch_gets_are_integers(make, mode):
    model, ids = guard(make().half(), mode=mode), torch.tensor([[1.0, 2.0]])
    with pytest.raises(dtypeguard.DtypeGuardError, match="ids of an embedding are integers") as told:
        model(ids)
    assert told.value.fix == "ids.long()"
    assert model(ids.long()).dtype is torch.float16


def test_the_weights_of_a_bag_are_no_ids():
    bag, weights = nn.EmbeddingBag(10, 4, mode="sum").half(), torch.ones(1, 2)
    with pytest.warns(dtypeguard.CastWarning, match="per_sample_weights"):
        guard(bag, mode="lenient")(IDS[None], per_sample_weights=weights)


class Reads(nn.Module):
    def __init__(self, functional=False):
        super().__init__()
        self.table, self.head, self.functional = nn.Embedding(10, 4), nn.Linear(4, 1), functional

    def forward(self, tokens):
        tokens = tokens.view(-1, 2)
        return self.head(nn.functional.embedding(tokens, self.table.weight) if self.functional else self.table(tokens))


@pytest.mark.filterwarnings("ignore::dtypeguard.CastWarning")
@pytest.mark.parametrize("functional", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_ids_of_another_name_are_told_where_the_embedding_refuses_them(dtype, functional):
    """Only then is it known; whether the guard has cast them or not."""
    model = guard(Reads(functional).to(dtype), mode="lenient")
    with pytest.raises(RuntimeError, match="indices") as told:
        model(IDS.float())
    assert [note.partition("; ")[2] for note in told.value.__notes__] == [
        "`tokens` goes into an embedding, which takes int64 and int32: pass tokens.long()"
    ]
    assert model(IDS.float().long()).dtype is dtype


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8, torch.bool])
def test_ids_that_an_embedding_refuses_are_told_whatever_a_class_calls_its_instances(dtype):
    class Short(nn.Module):
        def __init__(my):  # noqa: N805
            super().__init__()
            my.table = nn.Embedding(10, 4)

        def forward(my, ids):  # noqa: N805
            return my.table(ids)

    with pytest.raises(RuntimeError, match="indices") as told:
        guard(Short(), mode="strict")(IDS.to(dtype))
    assert told.value.__notes__[0].endswith(
        "; `ids` goes into an embedding, which takes int64 and int32: pass ids.long()"
    )


@pytest.mark.parametrize(("dtype", "cast"), [(torch.int64, ""), (torch.bool, ""), (torch.complex64, "real.")], ids=str)
@pytest.mark.parametrize(
    "model", [nn.Linear(4, 2), nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)), nn.Conv1d(4, 4, 1)]
)
def test_what_a_module_that_takes_floats_refuses_is_told(model, dtype, cast):
    with pytest.raises(RuntimeError) as told:
        guard(model, mode="strict")(torch.ones(3, 4, 4, dtype=dtype))
    kind = "Conv1d" if isinstance(model, nn.Conv1d) else "Linear"
    name = str(dtype).removeprefix("torch.")
    assert told.value.__notes__[0].endswith(
        f"; `input` is {name}, and {kind} takes float32: pass input.{cast}to(torch.float32)"
    )


def test_values_are_looked_at_without_a_trace_in_the_graph():
    """A checkpointed block saves what is computed in it, and runs again."""

    class Holds(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.head = nn.Embedding(10, 4), nn.Linear(2, 1)

        def forward(self, x):
            return self.head(x)

    saved = []
    model, x = guard(Holds().half(), mode="lenient"), torch.tensor([[2.0, 3.0]], requires_grad=True)
    with pytest.warns(dtypeguard.CastWarning), torch.autograd.graph.saved_tensors_hooks(saved.append, lambda x: x):
        model(x)
    assert {tensor.dtype for tensor in saved} == {torch.float16}


FIXES = [
    ([1.0, 2.0], "x.to(torch.float16), or, if an embedding gets it, x.long()"),
    ([0.0, 1.0], "x.to(torch.float16)"),  # a mask as well
    ([1.0, 2.5], "x.to(torch.float16)"),
    ([-1.0, 2.0], "x.to(torch.float16)"),
    ([1.0, 10.0], "x.to(torch.float16)"),  # the table has ten rows
    ([1.0, float("nan")], "x.to(torch.float16)"),
]


@pytest.mark.parametrize(("numbers", "fix"), FIXES)
def test_numbers_that_may_be_ids_have_two_fixes(numbers, fix):
    x = torch.tensor(numbers)
    with pytest.raises(dtypeguard.DtypeError) as told:
        guard(Reads().half(), mode="strict")(x)
    assert told.value.fix == fix


def test_labels_keep_their_digits():
    """But for those that lose none, which are cast as ever; at each call."""
    for _ in range(2):
        model = guard(Speaks().half(), mode="lenient")
        with pytest.warns(dtypeguard.CastWarning):
            model(IDS, torch.tensor([0.5, 0.25]))
        with pytest.raises(dtypeguard.CastError, match=r"keep it out with skip_args='labels'"):
            model(IDS, torch.tensor([0.5, 0.1]))
        dtypeguard.reset_casts()
    assert guard(Speaks().half(), mode="lenient", skip_args="labels")(IDS, torch.tensor([0.5, 0.1])) > 0
    labels = torch.tensor([0.5, 0.1])
    with pytest.warns(dtypeguard.CastWarning):  # what comes from NumPy has more digits than a loss can use
        guard(Speaks(), mode="lenient")(IDS, labels.double())
    with pytest.raises(dtypeguard.DtypeError) as told:
        guard(Speaks().half(), mode="strict")(IDS, labels)
    lost = "digits of it are lost in float16, and a loss compares with them, so keep it out with skip_args='labels'"
    assert told.value.fix == f"{lost}, or, where that is meant, write labels.to(torch.float16) before the call"


@pytest.mark.parametrize("mode", ["strict", "lenient"])
@pytest.mark.parametrize(
    ("values", "loses"),
    [
        (torch.arange(990.0, 1000.0), "99[0-9] becomes [0-9]+ in bfloat16"),
        (torch.full((10,), 3.4e38), "finite values of it become infinite in bfloat16"),
    ],
)
def test_no_message_advises_a_cast_that_loses_what_nobody_meant_to_lose(values, loses, mode):
    with pytest.raises(dtypeguard.DtypeGuardError, match=loses) as told:
        guard(nn.Linear(10, 2).bfloat16(), mode=mode)(values)
    assert not told.value.fix.startswith("values.to")
    assert "lenient" not in told.value.fix


@pytest.mark.parametrize("values", [torch.linspace(0, 1, 10), torch.arange(10.0)])
def test_a_cast_that_only_rounds_is_advised(values):
    with pytest.raises(dtypeguard.DtypeError) as told:
        guard(nn.Linear(10, 2).bfloat16(), mode="strict")(values)
    assert told.value.fix == "values.to(torch.bfloat16)"
    assert 'guard(model, mode="lenient")' in str(told.value)


# ---------------------------------------------------------------- decorators that change a call


def supplies(forward):
    @functools.wraps(forward)
    def supplied(self, *args, **kwargs):
        return forward(self, *args, scale=torch.ones((), dtype=F32), **kwargs)

    return supplied


def counts(forward):
    @functools.wraps(forward)
    def counted(self, *args, **kwargs):
        self.given = len(args), sorted(kwargs)
        return forward(self, *args, **kwargs)

    return counted


class Supplied(Net):
    @supplies
    def forward(self, x: Float32[Tensor, "b 3"], scale: Float32[Tensor, ""]):
        return super().forward(x) * scale


class SuppliedWithDefault(Net):
    @supplies
    def forward(self, x: Float32[Tensor, "b 3"], scale: Float32[Tensor, ""] | None = None):
        return super().forward(x) * scale


class CountsGiven(Net):
    @counts
    def forward(self, x: Float32[Tensor, "b 3"], y=None, z: Float32[Tensor, "b 3"] | None = None):
        return super().forward(x)


@pytest.mark.parametrize("cls", [Supplied, SuppliedWithDefault])
def test_a_decorator_may_supply_an_argument_that_the_caller_does_not_give(cls):
    model = guard(cls(), mode="strict")
    assert torch.equal(model(ones(F32)), unguard(model)(ones(F32)))
    guard(model, mode="strict")
    with pytest.raises(DtypeError, match="argument `x` is float64"):
        model(ones(F64))
    with pytest.raises(ShapeError):
        model(ones(F32, 2, 4))


@pytest.mark.filterwarnings("ignore::dtypeguard.CastWarning")
@pytest.mark.parametrize("dtype", [F32, F64])
def test_a_decorator_gets_a_call_as_it_was_given(dtype):
    model, x = guard(CountsGiven()), ones(dtype)
    for args, kwargs in [((x,), {}), ((x,), {"z": x}), ((), {"x": x}), ((), {"x": x, "z": x}), ((x, None), {})]:
        for _ in range(3):
            model(*args, **kwargs)
            assert sum(model.given[0:1]) + len(model.given[1]) == len(args) + len(kwargs)


def test_help_names_what_the_user_can_name():
    assert "dtypeguard._" not in str(inspect.signature(guard))


class Embeds(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, pixels):
        return self.layer(pixels.to(dtype=self.layer.weight.dtype))


class Sees(nn.Module):
    def __init__(self):
        super().__init__()
        self.embeds = Embeds()

    def forward(self, pixels, other=None):
        return self.embeds(pixels if other is None else other)


def test_an_argument_that_the_model_casts_itself_may_be_skipped():
    advice = "or skip_args='pixels', as Embeds casts it itself"
    assert advice in str(refusal(guard(Sees().to(BF16), mode="strict"), ones(F32, 2, 3)))
    assert "skip_args" not in str(refusal(guard(Sees().to(BF16), mode="strict"), None, other=ones(F32, 2, 3)))
    guard(Sees().to(BF16), mode="strict", skip_args=["pixels"])(ones(F32, 2, 3))
