"""What people do to a model between its construction and its last step, done to a guarded one.

The yardstick is a twin without a guard: outputs, gradients, states and logs of hooks must be the same to the bit, in
strict mode and without a repair.
"""

import contextlib
import copy
import dataclasses
import functools
import gc
import inspect
import io
import itertools
import multiprocessing
import pickle
import subprocess
import sys
import threading
import warnings
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest
import torch
from jaxtyping import Float, Float32, Int64
from safetensors.torch import load_model, save_model
from support import BF16, F16, F32, F64, same
from torch import Tensor, nn
from torch.nn.modules import module as global_hooks
from torch.nn.utils import parametrizations, parametrize, prune
from torch.optim import swa_utils
from torch.utils.data import DataLoader, Dataset, IterableDataset

import dtypeguard
from dtypeguard import (
    CastWarning,
    DtypeError,
    DtypeGuardError,
    GuardedModule,
    ShapeError,
    enforce,
    guard,
    is_guarded,
    unguard,
)

DEPTHS = ("auto", "all", "boundary")

slow = pytest.mark.slow
said = pytest.mark.filterwarnings("ignore::dtypeguard.CastWarning")  # where another test says that it warns
old_norm = pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated:FutureWarning")  # still in use
forks = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")  # torch has threads; Python 3.12 says so


class Net(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.width = width
        self.body = nn.Sequential(nn.Linear(3, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.5))
        self.head = nn.Linear(width, 2)

    def forward(self, x, scale=None):
        y = self.head(self.body(x))
        return y if scale is None else y * scale


class Conv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.fc = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 2)

    def forward(self, x):
        return self.fc(self.norm(self.conv(x)).relu().mean((2, 3)))


class Maker(nn.Module):
    def __init__(self, width: int = 2) -> None:
        super().__init__()
        self.width = width
        self.fc = nn.Linear(3, width)

    def forward(self, x):
        return self.fc(x)


seed = torch.default_generator.manual_seed  # the CPU's alone, which is quick


def rows(dtype=F32, n=5):
    return torch.linspace(-1, 1, n * 3).reshape(n, 3).to(dtype)


def image(dtype=F32):
    return torch.linspace(-1, 1, 150).reshape(3, 2, 5, 5).to(dtype)


def twins(make, **options):
    """A bare model and its copy under a strict guard."""
    bare = make()
    return bare, guard(copy.deepcopy(bare), **{"mode": "strict", **options})


def steps(model, make_input=rows, count=3):
    """The outputs of a few training steps."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    outputs = []
    for step in range(count):
        seed(step)
        y = model(make_input())
        optimizer.zero_grad()
        y.float().square().mean().backward()
        optimizer.step()
        outputs.append(y.detach())
    return outputs


def same_training(model, bare, make_input=rows):
    assert same(steps(model, make_input), steps(bare, make_input))
    assert same(dict(model.state_dict()), dict(bare.state_dict()))
    assert dtypeguard.casts() == []


def refuses(model, *inputs):
    with dtypeguard.mode("strict"), pytest.raises(DtypeError) as caught:
        model(*(inputs or (rows(F64),)))
    return caught.value


def silent(model, *inputs):
    """Whether float64 reaches torch itself: nothing stands before the model."""
    with dtypeguard.mode("strict"), pytest.raises(RuntimeError, match="dtype"):
        model(*(inputs or (rows(F64),)))
    return True


# ---------------------------------------------------------------- what is done to a model


class Deed(NamedTuple):
    """Something done to a model, the dtype that it has afterwards, and what takes it back."""

    do: Callable[[Any], Any]
    dtype: torch.dtype = F32
    undo: Callable[[Any], Any] | None = None


class Doubled(nn.Module):
    def forward(self, weight):
        return weight * 2

    def right_inverse(self, weight):
        return weight / 2


def of_layer(change):
    def do(model):
        change(model.body[0])

    return do


def reparametrized(change):
    remove = of_layer(lambda layer: parametrize.remove_parametrizations(layer, "weight"))
    return Deed(of_layer(change), F32, remove)


def pruned(*changes):
    def do(layer):
        for change, amount in changes:
            change(layer, "weight", amount)

    return Deed(of_layer(do), F32, of_layer(lambda layer: prune.remove(layer, "weight")))


def ones_in_linear(module):
    if isinstance(module, nn.Linear):
        nn.init.ones_(module.weight)


def by_hand(model):
    for tensor in itertools.chain(model.parameters(), model.buffers()):
        if tensor.is_floating_point():
            tensor.data = tensor.data.double()


def parametrized_on_the_way(model):
    parametrize.register_parametrization(model.head, "weight", Doubled())
    model.double()
    parametrize.remove_parametrizations(model.head, "weight")


def assigned(dtype):
    def load(model):
        model.load_state_dict(
            {n: t.to(dtype) if t.is_floating_point() else t for n, t in model.state_dict().items()}, assign=True
        )

    return load


def by_way_of_meta(model):
    state = copy.deepcopy(model.state_dict())
    model.to("meta").to_empty(device="cpu")
    model.load_state_dict(state)


def with_other_parts(model):
    model.head = nn.Linear(4, 2)
    model.body[0] = nn.Linear(3, 4)
    model.body.insert(2, nn.Identity())
    model.body.append(nn.Tanh())
    del model.body[4]
    model.register_module("extra", nn.Linear(2, 2))
    model.add_module("more", nn.Linear(2, 2))
    del model.more
    model.set_submodule("extra", nn.Linear(2, 3))
    model.head.bias = None
    model.register_buffer("steps", torch.zeros(1, dtype=torch.int64), persistent=False)


DEEDS = {
    "parametrize": reparametrized(lambda layer: parametrize.register_parametrization(layer, "weight", Doubled())),
    "weight_norm": reparametrized(parametrizations.weight_norm),
    "spectral_norm": reparametrized(parametrizations.spectral_norm),
    "orthogonal": reparametrized(parametrizations.orthogonal),
    "old weight_norm": Deed(of_layer(nn.utils.weight_norm), F32, of_layer(nn.utils.remove_weight_norm)),
    "old spectral_norm": Deed(of_layer(nn.utils.spectral_norm), F32, of_layer(nn.utils.remove_spectral_norm)),
    "prune": pruned((prune.l1_unstructured, 0.5)),
    "prune, twice": pruned((prune.l1_unstructured, 0.3), (prune.random_unstructured, 0.3)),
    "half": Deed(lambda model: model.half(), F16, lambda model: model.float()),
    "double": Deed(lambda model: model.double(), F64, lambda model: model.float()),
    "type": Deed(lambda model: model.type(F64), F64),
    "to dtype": Deed(lambda model: model.to(BF16), BF16),
    "to device and dtype": Deed(lambda model: model.to("cpu", F64, non_blocking=True), F64),
    "to the like of a tensor": Deed(lambda model: model.to(torch.ones((), dtype=F64)), F64),
    "share_memory": Deed(lambda model: model.share_memory()),
    "requires_grad_": Deed(lambda model: model.requires_grad_(False).requires_grad_(True)),
    "apply": Deed(lambda model: model.apply(ones_in_linear)),
    "train and eval": Deed(lambda model: model.eval().train()),
    "by hand": Deed(by_hand, F64),
    "parametrized on the way": Deed(parametrized_on_the_way, F64),
    "assigned": Deed(assigned(BF16), BF16, assigned(F32)),
    "by way of meta": Deed(by_way_of_meta),
    "other parts": Deed(with_other_parts),
    "deepcopy": Deed(copy.deepcopy),
    "copy": Deed(copy.copy),
}


@old_norm
@pytest.mark.thin(4)
@pytest.mark.parametrize("order", ["guard first", "guard last"])
@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("name", DEEDS)
def test_a_guarded_model_lives_as_the_bare_one(name, depth, order):
    do, dtype, undo = DEEDS[name]
    bare = Net()
    models = [copy.deepcopy(bare), bare]

    def both(deed):
        for number, each in enumerate(models):
            seed(0)
            models[number] = deed(each) or each

    if order == "guard first":
        guard(models[0], mode="strict", depth=depth)
        same_training(*models)
    both(do)
    if order == "guard last":
        guard(models[0], mode="strict", depth=depth)
    same_training(*models, functools.partial(rows, dtype))
    error = refuses(models[0], rows(F32 if dtype is F64 else F64))
    assert (error.argument, error.expected) == ("x", dtype)
    if undo is not None:
        both(undo)
        same_training(*models)
        assert refuses(models[0]).argument == "x"
    model, bare = models
    assert is_guarded(model)
    assert repr(model) == repr(bare)
    assert [name for name, _ in model.named_modules()] == [name for name, _ in bare.named_modules()]
    assert [name for name, _ in model.named_parameters()] == [name for name, _ in bare.named_parameters()]
    unguard(model)
    assert type(model) is Net
    same_training(model, bare, rows if undo else functools.partial(rows, dtype))


def test_a_weight_computed_from_another_dtype_is_what_torch_makes_of_it():
    """The guard follows the parameters that are stored, and says so where the computed weight differs."""
    layer = nn.Linear(3, 4)

    class Half(nn.Module):
        def forward(self, weight):
            return weight.to(BF16)

    parametrize.register_parametrization(layer, "weight", Half(), unsafe=True)
    bare = copy.deepcopy(layer)
    guard(layer, mode="strict")
    with pytest.raises(RuntimeError, match="dtype") as expected:
        bare(rows())
    with pytest.raises(RuntimeError, match="dtype") as got:
        layer(rows())
    assert str(got.value) == str(expected.value)


# ---------------------------------------------------------------- copies


class OwnState(Maker):
    def __getstate__(self):
        return {"width": self.width, "tensors": self.state_dict()}

    def __setstate__(self, state):
        self.__init__(state["width"])
        self.load_state_dict(state["tensors"])


class PartState(Maker):
    """Leaves out what cannot be pickled."""

    def __init__(self, width: int = 2) -> None:
        super().__init__(width)
        self.lock = threading.Lock()

    def __getstate__(self):
        return {name: value for name, value in self.__dict__.items() if name != "lock"}

    def __setstate__(self, state):
        self.__dict__.update(state)
        self.lock = threading.Lock()


class OwnDeepcopy(Maker):
    def __deepcopy__(self, memo):
        new = type(self)(self.width)
        new.load_state_dict(self.state_dict())
        return new


class OwnCopy(Maker):
    def __copy__(self):
        new = self.__class__.__new__(self.__class__)
        new.__dict__.update(self.__dict__)
        return new


class NewArgs(Maker):
    def __new__(cls, width=2):
        return super().__new__(cls)

    def __getnewargs__(self):
        return (self.width,)


def saved_and_loaded(model):
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


AGAIN = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "pickle, first protocol": lambda model: pickle.loads(pickle.dumps(model, 0)),
    "pickle, by Python": lambda model: pickle._loads(pickle._dumps(model)),
    "torch.save": saved_and_loaded,
}
MAKERS = [
    Maker,
    OwnState,
    PartState,
    OwnDeepcopy,
    OwnCopy,
    NewArgs,
]


@pytest.mark.thin(4)
@pytest.mark.parametrize("how", AGAIN)
@pytest.mark.parametrize("make", MAKERS)
def test_a_class_with_its_own_way_of_copying_is_copied_guarded(make, how):
    assert type(AGAIN[how](make())) is make
    model = guard(make(), mode="strict")
    twin = AGAIN[how](model)
    assert isinstance(twin, make)
    assert torch.equal(twin(rows()), model(rows()))
    assert refuses(twin).argument == "x"
    assert is_guarded(twin)
    unguard(twin)
    assert type(twin) is make
    assert not is_guarded(twin)
    assert silent(twin)
    assert refuses(model).argument == "x"


@pytest.mark.parametrize("depth", DEPTHS)
def test_a_copy_of_a_part_is_guarded_as_the_part_is(depth):
    model = guard(Net(), mode="strict", depth=depth).eval()
    for again in (copy.deepcopy, saved_and_loaded, copy.copy):
        part = again(model.head)
        x = rows(F64, 4)[:, [0, 1, 2, 0]]
        if depth == "all":
            assert refuses(part, x).argument == "input"
        else:
            assert silent(part, x)
        assert is_guarded(part) == (depth == "all")


class Config(NamedTuple):
    model: nn.Module
    name: str


@dataclasses.dataclass
class Experiment:
    student: nn.Module
    teacher: nn.Module
    history: list


def test_containers_of_guarded_models_are_copied_with_their_sharing():
    model = guard(Net(), mode="strict")
    experiment = Experiment(model, model, [Config(model, "a"), {"optimizer": torch.optim.SGD(model.parameters(), 0.1)}])
    for twin in (copy.deepcopy(experiment), pickle.loads(pickle.dumps(experiment)), saved_and_loaded(experiment)):
        assert twin.student is twin.teacher is twin.history[0].model is not model
        assert refuses(twin.student).argument == "x"
        optimizer = twin.history[1]["optimizer"]
        assert optimizer.param_groups[0]["params"][0] is twin.student.body[0].weight
    with pytest.raises(TypeError, match="dataclass"):
        dataclasses.replace(model)


def test_a_subclass_of_a_guarded_models_class_is_guarded_like_its_base():
    class More(type(guard(Maker(), mode="strict"))):
        def __init__(self, width, bias):
            super().__init__(width)
            self.bias = bias

        def forward(self, x):
            return super().forward(x) + self.bias

    model = More(4, 1.0)
    assert torch.equal(model(rows()), model.fc(rows()) + 1)
    assert refuses(model).argument == "x"
    twin = copy.deepcopy(model)
    assert torch.equal(twin(rows()), model(rows()))
    assert refuses(twin).argument == "x"
    guard(model, mode="lenient", depth="boundary")
    with pytest.warns(CastWarning):
        assert model(rows(F64)).dtype is F32


# ---------------------------------------------------------------- states


def test_whole_state_goes_between_guarded_and_bare(tmp_path):
    bare, model = twins(Net, depth="all")
    steps(model)
    torch.save(model.state_dict(), tmp_path / "state.pt")
    bare.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    same_training(model, bare)
    other = guard(Net(), mode="strict", depth="all")
    assert str(other.load_state_dict(bare.state_dict())) == "<All keys matched successfully>"
    with pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "head.bias"'):
        other.load_state_dict({name: value for name, value in bare.state_dict().items() if name != "head.bias"})


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated:UserWarning")  # safetensors' own
def test_safetensors_save_and_load_a_guarded_model_with_a_tied_weight(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)
            self.b.weight = self.a.weight

        def forward(self, x):
            return self.b(self.a(x))

    bare, model = twins(Tied, depth="all")
    save_model(model, tmp_path / "guarded.safetensors")
    save_model(bare, tmp_path / "bare.safetensors")
    assert (tmp_path / "guarded.safetensors").read_bytes() == (tmp_path / "bare.safetensors").read_bytes()
    other = guard(Tied(), mode="strict", depth="all")
    assert load_model(other, tmp_path / "bare.safetensors") == (set(), [])
    assert torch.equal(other(rows()), bare(rows()))


CHANGES = {
    "nothing": lambda model: None,
    "all double": lambda model: model.double(),
    "all half": lambda model: model.half(),
    "the last layer bfloat16": lambda model: setattr(model, "fc", nn.Linear(4, 2, dtype=BF16)),
    "the first layer double": lambda model: setattr(model, "conv", nn.Conv2d(2, 4, 3, dtype=F64)),
    "data of one parameter": lambda model: setattr(model.fc.weight, "data", model.fc.weight.data.half()),
    "frozen": lambda model: model.requires_grad_(False),
    "pruned": lambda model: prune.l1_unstructured(model.fc, "weight", 0.5),
    "parametrized": lambda model: parametrizations.weight_norm(model.fc),
    "another parameter": lambda model: setattr(model, "extra", nn.Parameter(torch.ones(1, dtype=F64))),
    "another layer": lambda model: setattr(model.conv, "extra", nn.Linear(2, 2, dtype=BF16)),
    "another forward": lambda model: setattr(model, "forward", lambda x: x * 1),
    "guarded anew": lambda model: guard(model, mode="lenient", dtype=F64),
    "without its guard": unguard,
}


@said
@pytest.mark.parametrize("depth", ["auto", "all"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_repair_made_before_is_judged_anew_after_a_change(change, depth):
    """The model that repaired often and its copy that never did answer alike."""

    def answer(model, dtype):
        try:
            return model(image(dtype)).dtype
        except Exception as error:
            return type(error), str(error)

    cold = Conv().eval()
    warm = guard(copy.deepcopy(cold), mode="lenient", depth=depth)
    guard(cold, mode="lenient", depth=depth)
    for _ in range(3):
        warm(image(F64))
    for model in (warm, cold):
        seed(0)
        CHANGES[change](model)
    for dtype in (F64, F16, BF16, F32):
        assert answer(warm, dtype) == answer(cold, dtype)


# ---------------------------------------------------------------- hooks


@contextlib.contextmanager
def hooked(model, log):
    """Hooks of every kind, of the model, of its parts and of all modules, that write down what they see."""

    def facts(value):
        if isinstance(value, Tensor):
            return f"{value.dtype}{list(value.shape)}"
        if isinstance(value, (tuple, list)):
            return [facts(item) for item in value]
        if isinstance(value, dict):
            return {name: facts(item) for name, item in value.items()}
        return type(value).__name__

    def write(kind, place):
        def hook(*seen):
            log.append((kind, place, type(seen[0]).__name__, facts(seen[1:])))

        return hook

    handles = []
    for place, module in [("root", model), ("body", model.body), ("layer", model.body[0]), ("head", model.head)]:
        handles += [
            module.register_forward_pre_hook(write("pre", place)),
            module.register_forward_pre_hook(write("pre, keywords", place), with_kwargs=True, prepend=True),
            module.register_forward_hook(write("post", place)),
            module.register_forward_hook(write("post, keywords", place), with_kwargs=True, always_call=True),
            module.register_full_backward_pre_hook(write("backward pre", place)),
            module.register_full_backward_hook(write("backward", place), prepend=True),
            module.register_state_dict_pre_hook(write("state pre", place)),
            module.register_state_dict_post_hook(write("state post", place)),
            module.register_load_state_dict_pre_hook(write("load pre", place)),
            module.register_load_state_dict_post_hook(write("load post", place)),
        ]
        for name, parameter in module.named_parameters(recurse=False):
            handles.append(parameter.register_hook(write("gradient", f"{place}.{name}")))
            handles.append(parameter.register_post_accumulate_grad_hook(write("accumulated", f"{place}.{name}")))
    handles += [
        global_hooks.register_module_forward_pre_hook(write("all, pre", "")),
        global_hooks.register_module_forward_hook(write("all, post", ""), with_kwargs=True, always_call=True),
        global_hooks.register_module_full_backward_pre_hook(write("all, backward pre", "")),
        global_hooks.register_module_full_backward_hook(write("all, backward", "")),
        global_hooks.register_module_parameter_registration_hook(write("all, parameter", "")),
        global_hooks.register_module_buffer_registration_hook(write("all, buffer", "")),
        global_hooks.register_module_module_registration_hook(write("all, module", "")),
    ]
    try:
        yield handles
    finally:
        for handle in handles:
            handle.remove()
        global_hooks._global_forward_hooks_with_kwargs.clear()  # torch leaves these, and Dynamo warns about them
        global_hooks._global_is_full_backward_hook = None


def hook_log(model, x, guard_inside=None):
    log = []
    with hooked(model, log):
        if guard_inside is not None:
            guard_inside(model)
        seed(0)
        y = model(x, scale=torch.tensor(1.0))
        y.square().sum().backward()
        state = model.state_dict()
        model.load_state_dict(state)
        model.late = nn.Linear(2, 2)
        model.register_buffer("count", torch.zeros(1))
        with pytest.raises(RuntimeError):
            model(torch.ones(2, 7))
    return log


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("first", ["guard", "hooks"])
def test_hooks_of_every_kind_see_the_same_in_the_same_order(first, depth):
    bare = Net()
    model = copy.deepcopy(bare)
    if first == "guard":
        guard(model, mode="strict", depth=depth)
    inside = None if first == "guard" else functools.partial(guard, mode="strict", depth=depth)
    got = hook_log(model, rows().requires_grad_(), inside)
    expected = hook_log(bare, rows().requires_grad_())
    assert got == expected
    kinds = {kind for kind, *_ in expected}
    assert len(kinds) == 19
    assert not [*model._forward_hooks, *model._backward_hooks, *model.head._forward_pre_hooks]
    assert dtypeguard.casts() == []


@pytest.mark.parametrize("mode", ["strict", "lenient"])
def test_always_called_hooks_are_called_when_the_guard_refuses(mode):
    model = guard(nn.Linear(3, 2), mode=mode, casting="safe")
    seen = []
    model.register_forward_hook(lambda *given: seen.append(given[-1]), always_call=True)
    model.register_forward_hook(lambda *given: seen.append("not this one"))
    with pytest.raises(DtypeGuardError, match="`input` is float64"):
        model(rows(F64))
    assert seen == [None]


def test_a_hook_that_casts_decides_what_the_guard_sees():
    model = guard(Net(), mode="strict", depth="all")
    with model.register_forward_pre_hook(lambda module, args: args[0].float()):
        assert model(rows(F64)).dtype is F32
    refuses(model)
    with model.body.register_forward_hook(lambda module, args, result: result.double()):
        error = refuses(model, rows())
    assert (error.module_path, error.argument, error.actual) == ("Net.head", "input", F64)
    assert model(rows()).dtype is F32
    with model.head.register_forward_pre_hook(
        lambda module, args, kwargs: ((args[0].double(),), kwargs), with_kwargs=True
    ):
        assert refuses(model, rows()).module_path == "Net.head"


# ---------------------------------------------------------------- decorators


def hundredfold(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs) * 100

    return wrapper


def forward(self, x: Float[Tensor, "b 3"]) -> Float[Tensor, "b 2"]:
    return self.fc(x)


class OwnClass(GuardedModule, Maker):
    forward = hundredfold(enforce(forward))


@pytest.mark.parametrize(
    "decorated", [hundredfold(forward), hundredfold(enforce(forward)), enforce(hundredfold(forward)), None]
)
def test_a_decorator_around_an_annotated_forward_stays_when_the_model_is_guarded(decorated, strict):
    model = type("Decorated", (Maker,), {"forward": decorated})() if decorated else OwnClass()
    expected = model.fc(rows()) * 100
    assert torch.equal(model(rows()), expected)
    guard(model)
    assert torch.equal(model(rows()), expected)
    assert refuses(model).argument == "x"
    with pytest.raises(ShapeError, match="argument `x` has size 2 in axis 1"):
        model(rows()[:, :2])


def test_a_function_wrapped_around_a_guarded_forward_has_its_signature():
    """As accelerate and loggers wrap it; Hugging Face's Trainer then asks for the names of the arguments."""
    bare, model = twins(Net)
    for each in (bare, model):
        each.eval().forward = hundredfold(each.forward)
    assert inspect.signature(model.forward) == inspect.signature(bare.forward)
    assert list(inspect.signature(model.forward).parameters) == ["x", "scale"]
    assert torch.equal(model(rows()), bare(rows()))
    guard(model, mode="strict")
    assert torch.equal(model(rows()), bare(rows()))
    assert refuses(model).argument == "x"


# ---------------------------------------------------------------- classes and names


def test_code_that_looks_for_classes_finds_them():
    bare, model = twins(Net, depth="all")
    for cls in (nn.Linear, nn.BatchNorm1d, Net, nn.Module, (nn.Linear, nn.ReLU)):
        got = [name for name, module in model.named_modules() if isinstance(module, cls)]
        assert got == [name for name, module in bare.named_modules() if isinstance(module, cls)] != []
    names = [type(module).__name__ for module in model.modules()]
    assert names == [type(module).__name__ for module in bare.modules()]
    assert [module.__class__.__qualname__ for module in model.modules()] == [
        module.__class__.__qualname__ for module in bare.modules()
    ]
    assert all(issubclass(type(a), type(b)) for a, b in zip(model.modules(), bare.modules(), strict=True))
    assert not any(type(child) is GuardedModule for child in model.modules())


class Remote(nn.Module):
    """Every unknown attribute is a call to somewhere else."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 2)
        self.asked = []

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return functools.partial(self.asked.append, name)

    def forward(self, x):
        return self.fc(x)


@said
def test_a_check_asks_nothing_of_a_models_own_getattr():
    model = guard(Remote(), mode="lenient")
    model(rows())
    model(rows(F64))
    with contextlib.suppress(RuntimeError):
        model(torch.ones(2, 7))
    refuses(guard(model, mode="strict"))
    unguard(model)
    assert model.asked == []


def test_parameter_lists_are_an_anchor():
    class Lists(nn.Module):
        def __init__(self):
            super().__init__()
            self.weights = nn.ParameterList([torch.ones(3), torch.ones(3)])
            self.named = nn.ParameterDict({"scale": torch.ones(1)})

        def forward(self, x):
            return sum(x * weight for weight in self.weights) * self.named["scale"]

    bare, model = twins(Lists, depth="all")
    same_training(model, bare)
    assert refuses(model).argument == "x"
    model.to(BF16)
    assert model(rows(BF16)).dtype is BF16
    model.weights.append(torch.ones(3, dtype=F64))
    assert model(rows(BF16)).dtype is F64


# ---------------------------------------------------------------- torch's tools


def test_conv_and_norm_are_fused_as_without_a_guard():
    bare, model = twins(Conv, depth="all")
    steps(bare, image), steps(model, image)
    bare.eval(), model.eval()
    fused = nn.utils.fuse_conv_bn_eval(model.conv, model.norm)
    expected = nn.utils.fuse_conv_bn_eval(bare.conv, bare.norm)
    assert torch.equal(fused(image()), expected(image()))
    assert refuses(fused, image(F64)).argument == "input"
    linear = nn.utils.fuse_linear_bn_eval(guard(nn.Linear(3, 4), mode="strict").eval(), nn.BatchNorm1d(4).eval())
    assert refuses(linear).argument == "input"


# ---------------------------------------------------------------- memory


def died(reference):
    gc.collect()
    return reference() is None


UNTIL = {
    "a training step": lambda model: steps(model, count=1),
    "a refusal": lambda model: refuses(model),
    "a deep copy": copy.deepcopy,
    "a pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "a conversion": lambda model: model.double().float(),
    "hooks": lambda model: model.register_forward_hook(lambda *given: None),
    "guard anew": lambda model: guard(model, mode="warn", depth="all"),
    "unguard": unguard,
    "an average": swa_utils.AveragedModel,
    "a part": lambda model: model.body[:2],
    "no before": lambda model: None,
}


@pytest.mark.thin(4)
@said
@pytest.mark.parametrize(
    ("before", "mode"), [(before, "strict" if before == "a refusal" else "lenient") for before in UNTIL]
)
def test_a_guarded_model_dies_without_the_garbage_collector(before, mode):
    model = guard(Net(), mode=mode, depth="all")
    if mode == "lenient":
        model(rows(F64))
        model(rows(F64))
    UNTIL[before](model)
    dead = [weakref.ref(thing) for thing in (model, model.body[0], model.head.weight)]
    gc.collect()
    gc.disable()
    try:
        del model
        assert [reference() for reference in dead] == [None] * 3
    finally:
        gc.enable()


@pytest.mark.thin(2)
@said
@pytest.mark.parametrize("depth", ["auto", "all"])
def test_a_replaced_layer_is_let_go(depth):
    """As when an adapter is merged or a layer is quantized: the old weights must not stay behind a repair's back."""
    model = guard(Net(), mode="lenient", depth=depth)
    for _ in range(3):
        model(rows(F64))
    old = weakref.ref(model.head.weight)
    model.head = nn.Linear(4, 2)
    assert died(old)
    assert model(rows(F64)).dtype is F32
    old = weakref.ref(model.head.weight)
    unguard(model)
    model.head = nn.Linear(4, 2)
    assert died(old)


@said
def test_no_tensor_outlives_its_call():
    """Inputs, cast copies and activations go when their last user goes; on a GPU this is memory."""
    strict, lenient = guard(Net(), mode="strict"), guard(Net(), mode="lenient")
    seen = []
    lenient.body[0].register_forward_pre_hook(lambda module, args: seen.append(weakref.ref(args[0])))
    gc.disable()
    try:
        for _ in range(3):
            x, wide = rows(), rows(F64)
            y, z = strict(x), lenient(wide)
            loss = y.sum() + z.sum()
            loss.backward()
            alive = [weakref.ref(thing) for thing in (x, wide, y, z, loss)]
            del x, wide, y, z, loss
            assert [reference() for reference in alive + seen] == [None] * (len(alive) + len(seen))
    finally:
        gc.enable()


@said
def test_errors_and_records_hold_no_model_and_no_tensor():
    model, x, wide = guard(Net(), mode="lenient"), rows(F64), rows(F64)
    model(wide)
    with dtypeguard.mode("strict"):
        try:
            guard(model, mode="strict")(x)
        except DtypeError as caught:
            error = caught.with_traceback(None)
    references = [weakref.ref(thing) for thing in (x, wide, model)]
    del x, wide, model
    assert all(died(reference) for reference in references)
    (record,) = dtypeguard.casts()
    assert error.argument == record.argument == "x"


# ---------------------------------------------------------------- loaders


class Items(Dataset):
    def __init__(self, dtype=F32, wrong=None) -> None:
        self.dtype, self.wrong = dtype, wrong

    def __len__(self):
        return 8

    def __getitem__(self, i):
        return torch.full((3,), float(i), dtype=F64 if i == self.wrong else self.dtype), torch.tensor(i)


@enforce
def collate(
    items: list[tuple[Float32[Tensor, "d"], Int64[Tensor, ""]]],
) -> tuple[Float32[Tensor, "b d"], Int64[Tensor, "b"]]:
    xs, labels = zip(*items, strict=True)
    return torch.stack(xs), torch.stack(labels)


@enforce(mode="strict")
def strict_collate(
    items: list[tuple[Float32[Tensor, "d"], Int64[Tensor, ""]]],
) -> tuple[Float32[Tensor, "b d"], Int64[Tensor, "b"]]:
    xs, labels = zip(*items, strict=True)
    return torch.stack(xs), torch.stack(labels)


class Stream(IterableDataset):
    @enforce
    def make(self, i: int) -> Float32[Tensor, "3"]:
        return torch.full((3,), i, dtype=F32)

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        return (self.make(i) for i in range(info.id, 4, info.num_workers))


def quiet(worker: int) -> None:
    warnings.simplefilter("ignore", CastWarning)


def make_strict(worker: int) -> None:
    dtypeguard.set_mode("strict")


def loaded(dataset, collate_fn, context="fork", epochs=1, **options):
    """All batches of all epochs; the workers are gone afterwards, also after an error."""
    options = {"num_workers": 2, "batch_size": 4, "worker_init_fn": quiet, **options}
    loader = DataLoader(dataset, collate_fn=collate_fn, multiprocessing_context=context, **options)
    batches = []
    for _ in range(epochs):
        iterator = iter(loader)
        try:
            batches += iterator
        except Exception:
            iterator._shutdown_workers()
            raise
    iterator._shutdown_workers()
    return batches


@forks
@pytest.mark.parametrize("context", ["fork", *(pytest.param(name, marks=slow) for name in ("spawn", "forkserver"))])
def test_workers_check_repair_and_refuse_as_they_are_told(context):
    """By the decorator, by `worker_init_fn`, or by the environment; `fork` also inherits `set_mode`."""
    loader = loaded(Items(), strict_collate, context, persistent_workers=True)
    bare = list(DataLoader(Items(), 4, collate_fn=strict_collate.__wrapped__))
    for _ in range(2):
        assert same(list(loader), bare)
    batches = loaded(Items(F64), collate, context)
    assert all(x.dtype is F32 for x, _ in batches)
    assert dtypeguard.casts() == []  # the workers' own
    with pytest.raises(DtypeError) as caught:
        loaded(Items(wrong=6), strict_collate, context)
    text = str(caught.value)
    assert "in DataLoader worker process 1" in text
    assert "strict_collate: argument `items[2][0]` is float64, the annotation wants float32" in text
    assert "items[2][0].to(torch.float32)" in text
    assert sorted(torch.cat(loaded(Stream(), None, context, batch_size=2))[:, 0].tolist()) == [0, 1, 2, 3]
    with pytest.raises(DtypeError, match=r"collate: argument `items\[0\]\[0\]` is float64"):
        loaded(Items(F64), collate, context, worker_init_fn=make_strict)


@forks
def test_a_forked_worker_inherits_the_mode():
    dtypeguard.set_mode("strict")
    with pytest.raises(DtypeError, match=r"collate: argument `items\[0\]\[0\]` is float64"):
        loaded(Items(F64), collate)
    dtypeguard.set_mode(None)
    with dtypeguard.mode("strict"), pytest.raises(DtypeError, match=r"items\[0\]\[0\]"):
        loaded(Items(F64), collate)


@said
def test_a_long_list_is_repaired_in_linear_time():
    @enforce
    def stack(items: list[Float32[Tensor, "d"]]):
        return items

    def calls(n):
        """How many Python functions a repair of n items calls."""
        count = 0

        def seen(frame, event, argument):
            nonlocal count
            count += event == "call"

        items = [torch.ones(2, dtype=F64) for _ in range(n)]
        stack(items)
        sys.setprofile(seen)
        try:
            stack(items)
        finally:
            sys.setprofile(None)
        return count

    assert calls(200) < 6 * calls(50)


# ---------------------------------------------------------------- processes


def train_in_child(rank, model, queue):
    torch.set_num_threads(1)
    try:
        model(rows(F64))
    except DtypeError as error:
        queue.put((rank, error.argument, str(error).splitlines()[0]))
    with torch.no_grad():
        model.head.bias.fill_(rank + 1.0)
    queue.put((rank, torch.equal(model(rows()), model.forward(rows())), is_guarded(model)))


@slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_guarded_model_is_passed_to_processes_that_share_its_memory(method):
    model = guard(Net().eval(), mode="strict").share_memory()
    queue = torch.multiprocessing.get_context(method).SimpleQueue()
    torch.multiprocessing.start_processes(train_in_child, (model, queue), nprocs=1, start_method=method)
    assert queue.get() == (0, "x", "Net.forward: argument `x` is float64, the module's parameters are float32")
    assert queue.get() == (0, True, True)
    assert model.head.bias.tolist() == [1.0, 1.0]


PROGRAM = """
import torch, warnings, dtypeguard
from jaxtyping import Float32
from torch import Tensor, nn
warnings.simplefilter("ignore")

@dtypeguard.enforce
def double(x: Float32[Tensor, "n"]) -> Float32[Tensor, "n"]:
    "A docstring."
    return x * 2

model = dtypeguard.guard(nn.Linear(3, 2), depth="all")
for call, x in ((double, torch.ones(3, dtype=torch.float64)), (model, torch.ones(1, 3, dtype=torch.float64))):
    print(call(x.float()).dtype, call(x).dtype)
    try:
        with dtypeguard.mode("strict"):
            call(x)
    except dtypeguard.DtypeError as error:
        print(error.argument, error.actual, len(str(error).splitlines()))
try:
    double(torch.ones(2, 2))
except dtypeguard.ShapeError as error:
    print(error.argument)
print(len(dtypeguard.casts()), __debug__)
"""


@slow
@pytest.mark.parametrize("flags", ["-O", "-OO"])
def test_nothing_depends_on_asserts_or_docstrings(flags):
    done = subprocess.run([sys.executable, flags, "-c", PROGRAM], capture_output=True, text=True, check=True)
    lines = done.stdout.split("\n")
    assert lines[0] == lines[2] == "torch.float32 torch.float32"
    assert (lines[1].split()[:2], lines[3].split()[:2]) == (["x", "torch.float64"], ["input", "torch.float64"])
    assert int(lines[1].split()[2]) >= 4
    assert lines[4:6] == ["x", "2 False"]


# ---------------------------------------------------------------- threads and tasks


def test_threads_that_guard_and_call_their_own_models_at_once():
    """Generated classes are made and found while others make them."""

    def work(number):
        bare = Net().eval()
        for depth in ("auto", "all") * 5:
            model = guard(copy.deepcopy(bare), mode="strict", depth=depth)
            assert torch.equal(model(rows()), bare(rows()))
            refuses(model)
            unguard(model)
            assert type(model) is Net
        return number

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(8))) == list(range(8))


def test_threads_that_meet_an_enforced_function_for_the_first_time_together():
    """The first call finds the anchor; eight first calls find it as well."""

    class Fresh(nn.Module):
        def __init__(self, dtype):
            super().__init__()
            self.fc = nn.Linear(3, 2, dtype=dtype)

        @enforce(mode="strict")
        def forward(self, x: Float[Tensor, "b 3"]) -> "Float[Tensor, 'b 2']":
            return self.fc(x)

    models = [Fresh((F32, F64)[number % 2]) for number in range(8)]
    barrier = threading.Barrier(8)

    def work(number):
        right, wrong = ((F32, F64), (F64, F32))[number % 2]
        barrier.wait(10)
        for _ in range(20):
            assert models[number](rows(right)).dtype is right
            assert refuses(models[number], rows(wrong)).expected is right

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))


def same_state(got, expected):
    got, expected = got.state_dict(), expected.state_dict()
    assert list(got) == list(expected)
    for name in got:
        assert got[name].dtype is expected[name].dtype
        assert torch.equal(got[name], expected[name]), name


def test_an_averaged_model_is_the_average_of_the_bare_one():
    for options in ({}, {"use_buffers": True}, {"multi_avg_fn": swa_utils.get_ema_multi_avg_fn(0.9)}):
        bare, model = twins(Net)
        averages = [swa_utils.AveragedModel(each, **options) for each in (model, bare)]
        for step in range(3):
            for each, average in zip((model, bare), averages, strict=True):
                seed(step)
                steps(each, count=1)
                average.update_parameters(each)
        same_state(*averages)
        got, expected = (average.eval()(rows()) for average in averages)
        assert torch.equal(got, expected)
        assert refuses(averages[0]).argument == "x"
        assert is_guarded(averages[0].module)
    assert dtypeguard.casts() == []


@dataclasses.dataclass(eq=False)
class Fields(nn.Module):
    width: int = 2
    bias: bool = True

    def __post_init__(self):
        super().__init__()
        self.fc = nn.Linear(3, self.width, bias=self.bias)

    def forward(self, x):
        return self.fc(x)


def test_a_dataclass_that_is_a_module():
    bare, model = twins(Fields)
    assert repr(model) == repr(bare)
    assert dataclasses.fields(model) == dataclasses.fields(bare)
    assert torch.equal(model(rows()), bare(rows()))
    assert refuses(model).argument == "x"
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert (twin.width, twin.bias) == (2, True)
        assert torch.equal(twin(rows()), bare(rows()))


@said
def test_batch_norm_statistics_are_updated_through_a_repair():
    bare, model = twins(Net, mode="lenient")
    for each in (bare, model):
        seed(0)
        loader = [rows(F64 if each is model else F32) + n for n in range(3)]
        swa_utils.update_bn(loader, each)
    same_state(model, bare)
    assert len(dtypeguard.casts()) == 1


@forks
def test_a_guarded_model_in_a_forked_process_shares_its_memory():
    model = guard(Net().eval(), mode="strict").share_memory()
    queue = multiprocessing.get_context("fork").SimpleQueue()
    process = multiprocessing.get_context("fork").Process(target=train_in_child, args=(1, model, queue))
    process.start()
    assert queue.get()[:2] == (1, "x")
    assert queue.get() == (1, True, True)
    process.join()
    assert model.head.bias.tolist() == [2.0, 2.0]
