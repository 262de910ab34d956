"""No false alarms: a strict guard on a program that keeps its dtypes changes nothing and says nothing."""

import copy
import dataclasses

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

import dtypeguard
from dtypeguard import DtypeGuardError, guard

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class Box(nn.Module):
    """Hands on what it gets, so that a hook on `inner` sees what the guard of the box let through."""

    def __init__(self, inner) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args, **kwargs):
        return self.inner(*args, **kwargs)


class Tied(nn.Module):
    """An encoder and decoder over one table, a padding mask, and positions as a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 8)
        self.register_buffer("positions", torch.linspace(0, 1, 5)[:, None])
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids, *, mask=None, cache=None, return_dict=True):
        x = self.layer(self.table(ids) + self.positions, src_key_padding_mask=mask)
        logits = self.head(x)
        return {"logits": logits, "cache": [x, cache]} if return_dict else (logits,)


@dataclasses.dataclass
class Batch:
    image: torch.Tensor
    label: torch.Tensor
    name: str = "batch"


class TakesBatches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 3)

    def forward(self, batch, options, *more, **extra):
        image = batch.image if isinstance(batch, Batch) else batch["image"]
        return self.conv(image * options[0]).mean((2, 3)), more, extra


def ids(*shape, high=7):
    return torch.arange(torch.Size(shape).numel()).reshape(shape) % high


def causal(n, r):
    return torch.zeros(n, n).masked_fill(torch.ones(n, n).triu(1).bool(), float("-inf")).to(r().dtype)


def padding(*shape):
    return (torch.arange(shape[-1]) >= shape[-1] - 1).expand(shape)


def packed(r):
    return pack_padded_sequence(r(4, 3, 5), torch.tensor([4, 3, 1]))


# What tests/integration/test_module_db.py has not: kinds of arguments, and models of one's own.
# name: a module, and its arguments made with r(*shape), a random tensor of the dtype under test
MODULES = {
    "Linear, a parameter as input": (lambda: nn.Linear(5, 3), lambda r: (nn.Parameter(r(2, 5)),)),
    "Linear, no rows": (lambda: nn.Linear(5, 3), lambda r: (r(0, 5),)),
    "Linear, expanded": (lambda: nn.Linear(5, 3), lambda r: (r(1, 5).expand(4, 5),)),
    "Sequential": (lambda: nn.Sequential(nn.Linear(5, 5), nn.ReLU(True), nn.Linear(5, 1)), lambda r: (r(2, 5),)),
    "Conv2d, channels last": (
        lambda: nn.Conv2d(2, 4, 3),
        lambda r: (r(1, 2, 6, 6).to(memory_format=torch.channels_last),),
    ),
    "BatchNorm1d": (lambda: nn.BatchNorm1d(5), lambda r: (r(4, 5),)),
    "LayerNorm": (lambda: nn.LayerNorm(5), lambda r: (r(4, 5),)),
    "Embedding": (lambda: nn.Embedding(7, 4), lambda r: (ids(2, 3),)),
    "EmbeddingBag, weighted": (
        lambda: nn.EmbeddingBag(7, 4, mode="sum"),
        lambda r: (ids(2, 3), None, r(2, 3)),
    ),
    "LSTM, packed, with state": (lambda: nn.LSTM(5, 4), lambda r: (packed(r), (r(1, 3, 4), r(1, 3, 4)))),
    "MultiheadAttention, masked": (
        lambda: nn.MultiheadAttention(8, 2, batch_first=True, dropout=0.1),
        lambda r: (
            (r(3, 4, 8),) * 3,
            {"key_padding_mask": padding(3, 4), "attn_mask": torch.ones(4, 4).triu(1).bool()},
        ),
    ),
    "TransformerEncoderLayer, norm first, masked": (
        lambda: nn.TransformerEncoderLayer(8, 2, 16, norm_first=True, activation="gelu"),
        lambda r: ((r(4, 3, 8),), {"src_mask": causal(4, r), "is_causal": True}),
    ),
    "TransformerEncoder, padded": (
        lambda: nn.TransformerEncoder(
            nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2, enable_nested_tensor=False
        ),
        lambda r: ((r(3, 4, 8),), {"src_key_padding_mask": padding(3, 4)}),
    ),
    "CrossEntropyLoss, class weights": (
        lambda: nn.CrossEntropyLoss(weight=torch.rand(4), label_smoothing=0.1),
        lambda r: (r(3, 4), ids(3, high=4)),
    ),
    "CTCLoss": (
        nn.CTCLoss,
        lambda r: (r(5, 1, 4).log_softmax(-1), torch.tensor([[1, 2]]), torch.tensor([5]), torch.tensor([2])),
    ),
    "a tied language model": (Tied, lambda r: ((ids(2, 5),), {"mask": padding(2, 5), "cache": (r(1), None)})),
    "a tied language model, tuples": (Tied, lambda r: ((ids(2, 5),), {"return_dict": False})),
    "a dataclass of tensors": (
        TakesBatches,
        lambda r: (Batch(r(1, 2, 4, 4), ids(1)), [2.0, None], {"a": [r(1), (r(2),)]}, "text"),
    ),
    "a dict of tensors": (
        TakesBatches,
        lambda r: (({"image": r(1, 2, 4, 4), "label": ids(1)}, [2]), {"state": (r(1), r(1)), "flag": True}),
    ),
    "complex beside": (TakesBatches, lambda r: (Batch(r(1, 2, 4, 4), ids(1)), [1], torch.ones(2, dtype=torch.cfloat))),
}

pytestmark = pytest.mark.filterwarnings(
    "ignore:Mismatch dtype between input and weight",  # torch's own, about speed
    "ignore:.*nested tensors is in prototype stage",
    "ignore:LSTM with projections",
)


def inputs(name, dtype):
    torch.manual_seed(1)
    made = MODULES[name][1](lambda *shape: torch.randn(shape).to(dtype))
    return made if len(made) == 2 and isinstance(made[1], dict) and isinstance(made[0], tuple) else (made, {})


def leaves(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, PackedSequence):
        yield from (item for item in value if item is not None)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from leaves(item)
    elif isinstance(value, dict):
        yield from leaves(list(value.values()))


def run(model, name, dtype, within=None):
    """Results, gradients and buffers after one step, or torch's own error."""
    args, kwargs = inputs(name, dtype)
    torch.manual_seed(2)
    try:
        with torch.autocast("cpu", within or torch.bfloat16, enabled=within is not None):
            result = model(*args, **kwargs)
        tensors = list(leaves(result))
        total = [t.sum() for t in tensors if t.requires_grad]
        if total:
            torch.stack([t.double() for t in total]).sum().backward()
    except DtypeGuardError:
        raise
    except (RuntimeError, ValueError) as error:
        return type(error), str(error)
    grads = [p.grad for p in model.parameters()]
    return type(result), [*tensors, *grads, *model.buffers()]


def identical(a, b):
    if a[0] is not b[0] or isinstance(a[1], str) or isinstance(b[1], str):
        return a == b
    return len(a[1]) == len(b[1]) and all(
        x is y is None or (x.dtype is y.dtype and torch.equal(x.nan_to_num(7), y.nan_to_num(7)))
        for x, y in zip(a[1], b[1], strict=True)
    )


def make(name, dtype, training):
    torch.manual_seed(0)
    return Box(MODULES[name][0]()).to(dtype).train(training)


@pytest.mark.thin(4)
@pytest.mark.parametrize("depth", ["auto", "all"])
@pytest.mark.parametrize("name", MODULES)
def test_a_guard_changes_nothing(name, depth):
    outcomes = []
    for dtype in DTYPES:
        for training in (True, False):
            bare = make(name, dtype, training)
            model = guard(copy.deepcopy(bare), mode="strict", depth=depth)
            expected, got = run(bare, name, dtype), run(model, name, dtype)
            assert identical(expected, got), (dtype, training, expected, got)
            outcomes.append(isinstance(got[1], list))
    assert any(outcomes)
    bare = make(name, torch.float32, True)
    model = guard(copy.deepcopy(bare), mode="lenient", depth=depth)
    assert identical(run(bare, name, torch.float32), run(model, name, torch.float32))
    assert not dtypeguard.casts()


@pytest.mark.thin(4)
@pytest.mark.parametrize("within", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", MODULES)
def test_a_strict_guard_changes_nothing_under_autocast(name, within):
    """Inside, every module meets what autocast made of the layer before it."""
    for training in (True, False):
        bare = make(name, torch.float32, training)
        model = guard(copy.deepcopy(bare), mode="strict", depth="all")
        expected, got = run(bare, name, torch.float32, within), run(model, name, torch.float32, within)
        assert identical(expected, got), (training, expected, got)
    assert not dtypeguard.casts()


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_argument_arrives_as_the_same_object(name, dtype):
    model = guard(make(name, dtype, False), mode="strict", depth="boundary")
    arrived = []

    def record(module, args, kwargs):
        arrived.append((args, kwargs))
        raise KeyboardInterrupt

    model.inner.register_forward_pre_hook(record, with_kwargs=True)
    args, kwargs = inputs(name, dtype)
    with pytest.raises(KeyboardInterrupt):
        model(*args, **kwargs)
    ((got, more),) = arrived
    assert [id(item) for item in got] == [id(item) for item in args]
    assert {key: id(item) for key, item in more.items()} == {key: id(item) for key, item in kwargs.items()}


@pytest.mark.filterwarnings("ignore:.*enable_nested_tensor")
def test_the_nested_tensor_path_of_an_encoder_is_left_alone():
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2).eval()
    x, mask = torch.randn(2, 4, 8), torch.tensor([[False] * 4, [False, False, True, True]])
    with torch.inference_mode():
        expected = encoder(x, src_key_padding_mask=mask)
        got = guard(encoder, mode="strict", depth="all")(x, src_key_padding_mask=mask)
    assert torch.equal(expected, got)
