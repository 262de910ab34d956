"""PyTorch's own inventory of modules and of inputs for them: a guard changes none, and sees every wrong dtype."""

import copy
import importlib
import inspect
import random
import warnings
from itertools import permutations

import pytest
import torch
from support import BF16, F16, F32, F64
from torch import nn
from torch.nn.utils.rnn import PackedSequence
from torch.testing._internal.common_modules import module_db
from versions import since

import dtypeguard
from dtypeguard import CastWarning, DtypeError, DtypeGuardError, guard, is_guarded

DTYPES = F16, BF16, F32, F64
INFOS = {info.name: info for info in module_db}
LARGE = ("nn.LinearCrossEntropyLoss", "nn.Transformer")  # half of all samples; half of the time of the others
slow = pytest.mark.slow
pytestmark = pytest.mark.filterwarnings(
    "ignore:enable_nested_tensor is True",  # torch's own, when the module is built
)


# ---------------------------------------------------------------- samples, and what a call comes to


def seed(n):
    torch.manual_seed(n)
    random.seed(n)


def samples(name, dtype, training, requires_grad=False):
    seed(1)
    made = INFOS[name].module_inputs_func(INFOS[name], "cpu", dtype, requires_grad, training)
    return [(sample.constructor_input, sample.forward_input) for sample in made]


def build(name, constructor, inputs, dtype, training):
    seed(2)
    module = INFOS[name].module_cls(*constructor.args, **constructor.kwargs).to(dtype).train(training)
    if INFOS[name].is_lazy:
        with pytest.raises(TypeError, match="call the model once, then guard it"):
            guard(module)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "lazy modules are a new feature"
            module(*fresh(inputs.args), **fresh(inputs.kwargs))
    return module


def mapped(change, value):
    """The value with `change` made to every tensor in it."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, PackedSequence):
        return value._replace(data=change(value.data))
    if isinstance(value, (list, tuple)):
        return type(value)([mapped(change, item) for item in value])
    if isinstance(value, dict):
        return {key: mapped(change, item) for key, item in value.items()}
    return value


def fresh(value):
    return mapped(lambda tensor: tensor.detach().clone().requires_grad_(tensor.requires_grad), value)


def cast(value, dtype):
    return mapped(lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor, value)


def leaves(value):
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in leaves(item)]
    return leaves(list(value.values())) if isinstance(value, dict) else [value]


def floats(value):
    return [leaf for leaf in leaves(value) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]


def outcome(module, args, kwargs, backward=False):
    """What a call returns, or torch's own error; the gradients; and what was said meanwhile."""
    args, kwargs = fresh(args), fresh(kwargs)
    seed(3)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            result = module(*args, **kwargs)
            if backward:
                summed = [leaf.sum() for leaf in floats(result) if leaf.requires_grad]
                torch.stack(summed or [torch.zeros((), requires_grad=True)]).sum().backward()
        except DtypeGuardError:
            raise
        except Exception as error:
            return [type(error), str(error)], {(w.category, str(w.message)) for w in said}
    grads = [leaf.grad for leaf in (*floats([args, kwargs]), *module.parameters())] if backward else []
    state = [*module.buffers()]
    return [type(result), *leaves(result), *grads, *state], {(w.category, str(w.message)) for w in said}


def equal(a, b):
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return a is b or a == b
    facts = [(type(t), t.dtype, t.shape, t.stride(), t.requires_grad) for t in (a, b)]
    return facts[0] == facts[1] and torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(), b.nan_to_num())


def identical(a, b):
    return len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b, strict=True))


def raised(what):
    return isinstance(what[0], type) and issubclass(what[0], BaseException)


def anchored(module):
    """Whether the module says of which dtype its input must be: by parameters, else by buffers that are no loss's."""
    buffers = [] if isinstance(module, nn.modules.loss._Loss) else [*module.buffers()]
    return bool(floats([*module.parameters()]) or floats(buffers))


# The modules that have parameters in some sample.
OWNERS = """
    nn.BatchNorm1d nn.BatchNorm2d nn.BatchNorm3d nn.Bilinear nn.Conv1d nn.Conv2d nn.Conv3d
    nn.ConvTranspose1d nn.ConvTranspose2d nn.ConvTranspose3d nn.Embedding nn.GRU nn.GRUCell nn.GroupNorm
    nn.InstanceNorm1d nn.InstanceNorm2d nn.InstanceNorm3d nn.LSTM nn.LSTMCell nn.LayerNorm
    nn.LazyConv1d nn.LazyConv2d nn.LazyConv3d nn.LazyConvTranspose1d nn.LazyConvTranspose2d nn.LazyConvTranspose3d
    nn.Linear nn.LinearCrossEntropyLoss nn.MultiheadAttention nn.PReLU nn.RMSNorm nn.RNN nn.RNNCell nn.Transformer
    nn.TransformerDecoderLayer nn.TransformerEncoder nn.TransformerEncoderLayer
""".split()


def parametrize(names, values):
    """Each module with each value; `slow` unless the value is quick and the module is not large."""
    return [
        pytest.param(name, *value, id="-".join([name, *map(plain, value)]), marks=[slow] * (name in LARGE or not quick))
        for name in names
        for value, quick in values.items()
    ]


def plain(dtype):
    return str(dtype).removeprefix("torch.")


# ---------------------------------------------------------------- healthy


@pytest.mark.thin(10)
@pytest.mark.parametrize(
    ("name", "dtype"), parametrize(INFOS, {(F16,): False, (BF16,): True, (F32,): True, (F64,): False})
)
def test_a_strict_guard_changes_nothing_and_says_nothing(name, dtype):
    """Neither results nor gradients, in training and in evaluation, nor under autocast."""
    for training in (True, False):
        for constructor, inputs in samples(name, dtype, training, requires_grad=training):
            bare = build(name, constructor, inputs, dtype, training)
            for region in (False, True) if dtype is F32 else (False,):
                for depth in ("auto", "all") if [*bare.children()] else ("auto",):  # the same where nothing is inside
                    plain = copy.deepcopy(bare)
                    model = guard(copy.deepcopy(bare), mode="strict", depth=depth)
                    with torch.autocast("cpu", BF16, enabled=region):
                        expected, said = outcome(plain, inputs.args, inputs.kwargs, backward=training)
                        got, more = outcome(model, inputs.args, inputs.kwargs, backward=training)
                    assert identical(got, expected), (training, constructor, inputs, got, expected)
                    assert more <= said
    assert dtypeguard.casts() == []


# ---------------------------------------------------------------- a wrong dtype

NARROWER = dict.fromkeys([(F32, F16), (F32, BF16)], "the kernel takes float16 and bfloat16 beside float32 parameters")
INTEGERS = dict.fromkeys(permutations(DTYPES, 2), "every input is an integer")
# (dtype of the parameters, of the input): why a guard has nothing to say
EXEMPT = {
    "nn.BatchNorm1d": NARROWER,
    "nn.BatchNorm2d": NARROWER,
    "nn.BatchNorm3d": NARROWER,
    "nn.InstanceNorm1d": NARROWER,
    "nn.InstanceNorm2d": NARROWER,
    "nn.InstanceNorm3d": NARROWER,
    "nn.LayerNorm": NARROWER,
    "nn.GroupNorm": NARROWER,
    "nn.RMSNorm": NARROWER,
    "nn.Embedding": INTEGERS,
}
PAIRS = {pair: pair in [(F32, F64), (BF16, F32)] for pair in permutations(DTYPES, 2)}


def followers(value, dtype):
    """The floating tensors that must be of the parameters' dtype; a float32 number beside half parameters may stay."""
    half = dtype in (F16, BF16)
    return [leaf for leaf in floats(value) if leaf.dim() or leaf.dtype is not F32 or not half]


def first_follower(module, args, kwargs, dtype):
    """The parameter of `forward` that holds the first of them."""
    given = inspect.signature(module.forward).bind(*args, **kwargs).arguments
    return next(name for name, value in given.items() if followers(value, dtype))


@pytest.mark.thin(8)
@pytest.mark.parametrize(("name", "dtype", "other"), parametrize(OWNERS, PAIRS))
def test_a_wrong_dtype_is_named_and_repaired(name, dtype, other):
    held = 0
    for constructor, inputs in samples(name, dtype, False):
        bare = build(name, constructor, inputs, dtype, False)
        model = guard(copy.deepcopy(bare))
        args, kwargs = cast(fresh([inputs.args, inputs.kwargs]), other)
        count = len(followers([args, kwargs], dtype))
        if not count or not anchored(bare) or (dtype, other) in EXEMPT.get(name, ()):
            with dtypeguard.mode("strict"):
                assert identical(outcome(model, args, kwargs)[0], outcome(bare, args, kwargs)[0])
            continue
        held += 1
        with dtypeguard.mode("strict"), pytest.raises(DtypeError) as caught:
            model(*args, **kwargs)
        error = caught.value
        assert (error.argument or "").partition(".")[0].partition("[")[0] == first_follower(bare, args, kwargs, dtype)
        assert (error.actual, error.expected, len(error.violations)) == (other, dtype, count)
        expected, said = outcome(bare, *cast([args, kwargs], dtype))
        dtypeguard.reset_casts()
        got, more = outcome(model, args, kwargs)
        assert identical(got, expected), (constructor, inputs, got, expected)
        assert [category for category, _ in more - said] == [CastWarning] * count
        assert len(dtypeguard.casts()) == count
        assert {(cast.from_dtype, cast.to_dtype) for cast in dtypeguard.casts()} == {(other, dtype)}
    assert bool(held) is ((dtype, other) not in EXEMPT.get(name, ()))


@pytest.mark.parametrize("name", EXEMPT)
def test_the_table_of_what_is_exempt_has_no_superfluous_entry(name):
    for (dtype, other), reason in EXEMPT[name].items():
        for constructor, inputs in samples(name, dtype, False):
            module = build(name, constructor, inputs, dtype, False)
            given = cast([inputs.args, inputs.kwargs], other)
            expected, _ = outcome(module, *given)
            assert not raised(expected), expected
            assert bool(floats(given)) is (reason is not INTEGERS[dtype, other])
            got, _ = outcome(guard(copy.deepcopy(module), mode="strict"), *given)
            assert identical(got, expected)


@pytest.mark.thin(8)
@pytest.mark.parametrize("name", parametrize(OWNERS, {(): True}))
def test_gradients_come_home_through_a_repair_in_the_callers_dtype(name):
    for constructor, inputs in samples(name, F64, True, requires_grad=True):
        bare = build(name, constructor, inputs, F64, True).to(F32)
        if not anchored(bare):
            continue
        model = guard(copy.deepcopy(bare), mode="lenient")
        args, kwargs = fresh([inputs.args, inputs.kwargs])
        by_hand = mapped(lambda tensor: tensor.to(F32) if tensor.dtype is F64 else tensor, [args, kwargs])
        outcomes, wanted = [], [tensor for tensor in floats([args, kwargs]) if tensor.requires_grad]
        for module, given in ((bare, by_hand), (model, [args, kwargs])):
            seed(3)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                result = module(*given[0], **given[1])
            summed = torch.stack([leaf.sum() for leaf in floats(result)]).sum()
            outcomes.append(torch.autograd.grad(summed, [*wanted, *module.parameters()], allow_unused=True))
        assert identical(*outcomes), (constructor, inputs)
        assert all(grad is None or grad.dtype is F64 for grad in outcomes[1][: len(wanted)])


# ---------------------------------------------------------------- replicas of DataParallel


@pytest.fixture
def replicate(monkeypatch):
    """DataParallel's own `replicate`, but the copies stay on the CPU."""
    module = importlib.import_module("torch.nn.parallel.replicate")

    def copies(tensors, devices, detach=False):
        return [[tensor.clone() for tensor in tensors] for _ in devices]

    monkeypatch.setattr(module, "_broadcast_coalesced_reshape", copies)
    return lambda network: module.replicate(network, [0, 1])


@pytest.mark.thin(8)
@pytest.mark.parametrize("name", parametrize(OWNERS, {(): True}))
@pytest.mark.parametrize("depth", [pytest.param("auto", marks=slow), "all"])
def test_replicas_of_data_parallel_are_guarded_as_the_original(name, depth, replicate):
    for constructor, inputs in samples(name, F32, True):
        bare = build(name, constructor, inputs, F32, True)
        model = guard(copy.deepcopy(bare), mode="strict", depth=depth)
        expected, _ = outcome(bare, inputs.args, inputs.kwargs)
        args, kwargs = cast(fresh([inputs.args, inputs.kwargs]), F64)
        for replica in replicate(model):
            assert is_guarded(replica)
            assert not [*replica.parameters()]
            got, _ = outcome(replica, inputs.args, inputs.kwargs)
            assert identical(got[: len(expected)], expected), (constructor, inputs, got, expected)
            if floats([args, kwargs]) and anchored(bare):
                with pytest.raises(DtypeError) as caught:
                    replica(*args, **kwargs)
                assert (caught.value.actual, caught.value.expected) == (F64, F32)
    assert dtypeguard.casts() == []


inventory = since("torch", "2.13", "torch's list of modules is shorter")


@inventory
def test_the_inventory_is_as_large_as_it_was():
    assert len(INFOS) >= 114
    for dtype in DTYPES:
        for training in (True, False):
            assert sum(len(samples(name, dtype, training)) for name in INFOS) >= 1805


@inventory
def test_the_owners_are_those_with_parameters_and_most_samples_can_be_given_a_wrong_dtype():
    owners, held = set(), 0
    for name in INFOS:
        for constructor, inputs in samples(name, F32, False):
            module = build(name, constructor, inputs, F32, False)
            if [*module.parameters()]:
                owners.add(name)
            held += bool(floats([inputs.args, inputs.kwargs])) and anchored(module)
    assert owners == set(OWNERS)
    assert held >= 1308
