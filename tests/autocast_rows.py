"""Operations under autocast as data, and the one law that a contract around each of them keeps.

What is right is what PyTorch does: in every cell of the table the operation first runs without a contract.
"""

import contextlib
import copy
import dataclasses
import inspect
import itertools
import types
import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import dtypeguard
from dtypeguard import CastWarning, ContractWarning, DtypeError, DtypeGuardWarning, enforce, guard

F16, BF16, F32, F64 = FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
REGIONS = (None, BF16, F16)
MODES = ("strict", "lenient", "warn", "off")
UNCAST = (nn.LayerNorm, nn.GroupNorm, nn.modules.batchnorm._NormBase, nn.Bilinear)
NORMS = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


# ---------------------------------------------------------------- inputs and modules


def normal(*shape):
    return lambda: torch.randn(shape, dtype=F64)


def unit(*shape):
    """Between 0 and 1, for logarithms and probabilities."""
    return lambda: torch.rand(shape, dtype=F64) * 0.9 + 0.05


def ints(high, *shape):
    return lambda: torch.randint(1, high, shape)


def at(x, *index):
    return torch.tensor(index, device=x.device)


class Unary(nn.Module):
    """A parameter, and one operation on it and the input."""

    def __init__(self, op, shape):
        super().__init__()
        self.op, self.weight = op, nn.Parameter(torch.rand(shape))

    def forward(self, x):
        return self.op(self.weight, x)


class Binary(Unary):
    def forward(self, x, y):
        return self.op(self.weight, x, y)


class OwnRegion(nn.Module):
    """A model that does not leave autocast to the training loop."""

    def __init__(self):
        super().__init__()
        self.fc, self.norm, self.out = nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x):
        with torch.autocast(x.device.type, BF16):
            return self.out(self.norm(self.fc(x)))


class Embedded(nn.Module):
    """Token ids meet a floating input."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(5, 4), nn.Linear(4, 3)

    def forward(self, ids, x):
        return self.head(self.table(ids) + x)


class Residual(nn.Module):
    """What leaves one kind of operation enters another."""

    def __init__(self):
        super().__init__()
        self.norm, self.fc, self.act, self.out = nn.LayerNorm(4), nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4)

    def forward(self, x):
        return x + self.out(self.act(self.fc(self.norm(x))))


@dataclasses.dataclass(frozen=True)
class Row:
    """One operation: its module in float32, and what it is given."""

    make: Callable[[], nn.Module]
    inputs: tuple[Callable[[], Tensor], ...]
    grad: bool = True

    @property
    def floating(self):
        """How many floating inputs there are."""
        return sum(make().is_floating_point() for make in self.inputs)


def module(make, *inputs, grad=True):
    return Row(make, inputs, grad)


def op(function, *inputs, weight=(4,)):
    kind = Unary if len(inputs) == 1 else Binary
    return Row(lambda: kind(function, weight), inputs)


# ---------------------------------------------------------------- the table

x24, x34, x234 = normal(2, 4), normal(3, 4), normal(2, 3, 4)
image = normal(2, 2, 5, 5)
p24, classes = unit(2, 4), ints(4, 2)

# By what a float32 module makes of its input inside a region on a CPU. The four letters stand for an input in the
# autocast dtype, in the other half dtype, in float32 and in float64; they say which of these dtypes the result has:
# a, o (the other half), f, d. "!" is an error.
BY_FACT: dict[str, dict[str, Row]] = {
    "aaa!": {  # computed in the autocast dtype
        "Linear": module(lambda: nn.Linear(4, 3), x24),
        "Conv2d": module(lambda: nn.Conv2d(2, 4, 3, groups=2), image),
        "matmul": op(lambda w, x: x @ w, x24, weight=(4, 3)),
        "bmm": op(lambda w, x: torch.bmm(x, w), x234, weight=(2, 4, 3)),
        "addmm": op(lambda w, x, y: torch.addmm(y, x, w), x24, normal(2, 3), weight=(4, 3)),
        "baddbmm": op(lambda w, x, y: torch.baddbmm(y, x, w), x234, normal(2, 3, 3), weight=(2, 4, 3)),
        "einsum": op(lambda w, x: torch.einsum("bte,eo->bto", x, w), x234, weight=(4, 3)),
        "sdpa with a float mask": op(
            lambda w, x, y: F.scaled_dot_product_attention(x, w, w, attn_mask=y), x234, normal(3, 5), weight=(2, 5, 4)
        ),
        "MultiheadAttention": module(lambda: nn.MultiheadAttention(4, 2), x234, x234, x234),
        "TransformerEncoderLayer, fast path": module(
            lambda: nn.TransformerEncoderLayer(4, 2, 8, batch_first=True).eval(), x234, grad=False
        ),
        "Embedding and Linear": module(Embedded, ints(5, 2, 3), x234),
        "PReLU": module(nn.PReLU, x24),
        "Conv2d, BatchNorm2d, ReLU": module(
            lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU()), image
        ),
    },
    "!!a!": {  # float32 alone: what is not lowered stands next to what is
        "tensordot": op(lambda w, x: torch.tensordot(x, w, 1), x24, weight=(4, 3)),
    },
    "a!a!": {
        "cat of two inputs": op(lambda w, x, y: torch.cat([x, y * w[:, 0]]) @ w, x24, x24, weight=(4, 3)),
    },
    "aff!": {  # computed in the autocast dtype, then joined with the input
        "TransformerEncoderLayer": module(lambda: nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), x234),
        "GRU with a state": module(lambda: nn.GRU(4, 3), x234, normal(1, 3, 3)),
        "GRUCell": module(lambda: nn.GRUCell(4, 3), x24, normal(2, 3)),
        "LSTMCell": module(lambda: nn.LSTMCell(4, 3), x24),
        "residual block": module(Residual, x24),
    },
    "differs from CPU to CPU": {
        "LSTM": module(lambda: nn.LSTM(4, 3, num_layers=2), x234),
    },
    "has a region of its own": {
        "own region": module(OwnRegion, x24),
    },
    "aofd": {  # computed in the input's dtype
        "softmax": op(lambda w, x: x.softmax(-1), x24),
        "log_softmax": op(lambda w, x: x.log_softmax(-1), x24),
        "softplus": op(lambda w, x: F.softplus(x), x24),
        "dropout": op(lambda w, x: F.dropout(x, 0.5), x24),
        "exp": op(lambda w, x: x.exp(), x24),
        "log": op(lambda w, x: x.log(), p24),
        "pow": op(lambda w, x: x**3, x24),
        "rsqrt": op(lambda w, x: x.rsqrt(), p24),
        "reciprocal": op(lambda w, x: 1 / x, p24),
        "masked_fill": op(lambda w, x: x.masked_fill(w > 0.5, torch.finfo(x.dtype).min), x24),
        "sum": op(lambda w, x: x.sum(-1), x24),
        "cumsum": op(lambda w, x: x.cumsum(-1), x24),
        "parameter of 0 dimensions": op(lambda w, x: x * w, x24, weight=()),
        "add in place": op(lambda w, x: x.clone().add_(w), x24),
        "RMSNorm": module(lambda: nn.RMSNorm(4), x24),
        "InstanceNorm1d without parameters": module(lambda: nn.InstanceNorm1d(4), normal(2, 4, 3)),
    },
    "aof!": {  # in the input's dtype, beside float32 parameters
        "LayerNorm": module(lambda: nn.LayerNorm(4), x24),
        "BatchNorm1d": module(lambda: nn.BatchNorm1d(4), x34),
        "BatchNorm2d, eval": module(lambda: nn.BatchNorm2d(2).eval(), image),
        "GroupNorm": module(lambda: nn.GroupNorm(2, 4), normal(2, 4, 3)),
        "InstanceNorm1d": module(lambda: nn.InstanceNorm1d(4, affine=True), normal(2, 4, 3)),
    },
    "fffd": {  # in the widest dtype there is, or in float32
        "add": op(lambda w, x: x + w, x24),
        "mul": op(lambda w, x: x * w, x24),
        "cosine_similarity": op(lambda w, x: F.cosine_similarity(x, w), x24),
        "prod": op(lambda w, x: x.prod(-1), x24),
        "mse_loss": op(lambda w, x, y: F.mse_loss(x * w, y), x24, x24),
        "l1_loss": op(lambda w, x, y: F.l1_loss(x * w, y), x24, x24),
        "smooth_l1_loss": op(lambda w, x, y: F.smooth_l1_loss(x, y), x24, x24),
        "cross_entropy": op(lambda w, x, y: F.cross_entropy(x, y), x24, classes),
        "nll_loss": op(lambda w, x, y: F.nll_loss(x, y), x24, classes),
        "bce_with_logits": op(lambda w, x, y: F.binary_cross_entropy_with_logits(x, y), x24, p24),
        "bce": op(lambda w, x, y: F.binary_cross_entropy(x, y), p24, p24),
        "kl_div": op(lambda w, x, y: F.kl_div(x, y, reduction="batchmean"), x24, p24),
        "cosine_embedding_loss": op(lambda w, x, y: F.cosine_embedding_loss(x, y, at(x, 1, -1)), x24, x24),
        "triplet_margin_loss": op(lambda w, x, y: F.triplet_margin_loss(x, y, w.expand_as(x)), x24, x24),
        "ctc_loss": op(
            lambda w, x, y: F.ctc_loss(x.log_softmax(-1), y, at(y, 3, 3), at(y, 2, 2)), normal(3, 2, 4), ints(4, 2, 2)
        ),
    },
    "fff!": {
        "cdist": op(lambda w, x: torch.cdist(x, w), x24, weight=(3, 4)),
    },
    "f!fd": {  # in the widest dtype, if the other half dtype is not there
        "cat": op(lambda w, x: torch.cat([x, w]), x24, weight=(1, 4)),
    },
    "f!f!": {
        "index_copy": op(lambda w, x: x.index_copy(0, at(x, 1), w), x24, weight=(1, 4)),
    },
    "!!f!": {  # autocast does not help: all must have one dtype
        "Bilinear": module(lambda: nn.Bilinear(4, 3, 2), x24, normal(2, 3)),
        "mv": op(lambda w, x: torch.mv(x, w), x24),
        "index_put": op(lambda w, x: x.index_put((at(x, 0),), w), x24),
    },
    "ffff": {  # in the parameter's dtype
        "Embedding": module(lambda: nn.Embedding(5, 4), ints(5, 2, 3)),
    },
}  # fmt: skip
ROWS = {name: row for rows in BY_FACT.values() for name, row in rows.items()}


# ---------------------------------------------------------------- regions


def region(dtype, device_type="cpu"):
    return contextlib.nullcontext() if dtype is None else torch.autocast(device_type, dtype)


@contextlib.contextmanager
def several(*contexts):
    with contextlib.ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        yield


@contextlib.contextmanager
def by_default(device_type):
    """A region that names no dtype gets the one that was set."""
    before = torch.get_autocast_dtype(device_type)
    torch.set_autocast_dtype(device_type, F16)
    try:
        with torch.autocast(device_type):
            yield
    finally:
        torch.set_autocast_dtype(device_type, before)


@contextlib.contextmanager
def by_hand(device_type):
    """No context manager, as some trainers do it."""
    before = torch.is_autocast_enabled(device_type), torch.get_autocast_dtype(device_type)
    torch.set_autocast_enabled(device_type, True)
    torch.set_autocast_dtype(device_type, BF16)
    try:
        yield
    finally:
        torch.set_autocast_enabled(device_type, before[0])
        torch.set_autocast_dtype(device_type, before[1])
        torch.clear_autocast_cache()


# Other ways into a region and out of it: the dtype that is in force there, and how it comes about.
PLACES = {
    "bfloat16 in float16": (BF16, lambda d: several(region(F16, d), region(BF16, d))),
    "float16 in bfloat16": (F16, lambda d: several(region(BF16, d), region(F16, d))),
    "off in bfloat16": (None, lambda d: several(region(BF16, d), torch.autocast(d, enabled=False))),
    "on again": (F16, lambda d: several(region(BF16, d), torch.autocast(d, enabled=False), region(F16, d))),
    "no weight cache": (BF16, lambda d: torch.autocast(d, BF16, cache_enabled=False)),
    "set_autocast_dtype": (F16, by_default),
    "set_autocast_enabled": (BF16, by_hand),
    "another device type's": (None, lambda d: by_hand("cuda" if d == "cpu" else "cpu")),
}


# ---------------------------------------------------------------- a cell


def seed(number):
    """What `torch.manual_seed` does, but for the stack that it writes down when no GPU is awake."""
    torch.default_generator.manual_seed(number)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(number)


@dataclasses.dataclass(frozen=True)
class Cell:
    """A row in one place of the table; `dtypes` are those of its floating inputs, in their order."""

    row: str
    dtypes: tuple[torch.dtype, ...]
    region: torch.dtype | None
    params: torch.dtype = F32
    device: str = "cpu"
    place: str | None = None

    def enter(self):
        kind = torch.device(self.device).type
        return region(self.region, kind) if self.place is None else PLACES[self.place][1](kind)

    def model(self):
        seed(0)
        return ROWS[self.row].make().to(self.device, self.params)

    def inputs(self):
        seed(1)
        drawn, dtypes = [make() for make in ROWS[self.row].inputs], iter(self.dtypes)
        return [x.to(self.device, next(dtypes) if x.is_floating_point() else None) for x in drawn]


def cells(row, within, pairs=False, **place):
    """The cells of a row in one region: an input dtype for all, or with `pairs` every mix of two."""
    count = ROWS[row].floating
    mixes = itertools.product(FLOATS, repeat=2) if pairs else ((dtype,) * count for dtype in FLOATS)
    return [Cell(row, dtypes, within, **place) for dtypes in dict.fromkeys(mixes)]


def anchor_of(model):
    return next((t.dtype for t in (*model.parameters(), *model.buffers()) if t.is_floating_point()), None)


def accepts(model, dtype, within):
    """The rule: whether a module whose parameters have one dtype takes a floating tensor of this one."""
    anchor = anchor_of(model)
    if anchor in (None, dtype):
        return True
    if within is not None:
        alone = isinstance(model, UNCAST) and anchor in (F16, BF16) and next(model.parameters()).is_cpu
        return F64 not in (anchor, dtype) and not alone
    return isinstance(model, NORMS) and anchor is F32 and dtype is not F64


# ---------------------------------------------------------------- what a run leaves behind


@dataclasses.dataclass(repr=False)
class Outcome:
    """Results, gradients and buffers of one step; the error that ended it."""

    tensors: dict[str, Tensor | None]
    error: Exception | None = None

    @property
    def results(self):
        return [tensor for name, tensor in self.tensors.items() if name.startswith("result")]

    def __eq__(self, other):
        errors = {f"{type(outcome.error).__name__}: {outcome.error}" for outcome in (self, other)}
        if len(errors) > 1 or self.tensors.keys() != other.tensors.keys():
            return False
        return all(identical(tensor, other.tensors[name]) for name, tensor in self.tensors.items())

    def __repr__(self):
        dtypes = {name: None if t is None else str(t.dtype).removeprefix("torch.") for name, t in self.tensors.items()}
        return f"\n  {dtypes} {self.error!r}"


def identical(a, b):
    """The same bits; a NaN is itself."""
    if a is None or b is None:
        return a is b
    if a.dtype is not b.dtype or a.shape != b.shape:
        return False
    return torch.equal(*(t.detach().contiguous().flatten().view(torch.uint8) for t in (a, b)))


def step(cell, model, target=None):
    """Forward and backward of one step; `target` says for each input what to cast it to, by hand."""
    leaves = [x.requires_grad_(x.is_floating_point()) for x in cell.inputs()]
    seed(2)
    model.zero_grad()
    outcome = Outcome({})
    try:
        with cell.enter(), torch.set_grad_enabled(ROWS[cell.row].grad):
            args = leaves if target is None else [x.to(d) for x, d in zip(leaves, target, strict=True)]
            results = [leaf for leaf in tree_leaves(model(*args)) if leaf is not None]
        outcome.tensors = {f"result {n}": result for n, result in enumerate(results)}
        terms = [(result.double().sin() * 3).sum() for result in results if result.requires_grad]
        if terms:
            sum(terms).backward()
    except (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError) as error:
        outcome.error = error
    outcome.tensors |= {f"gradient of input {n}": x.grad for n, x in enumerate(leaves)}
    outcome.tensors |= {f"gradient of {name}": p.grad for name, p in model.named_parameters()}
    outcome.tensors |= {f"buffer {name}": buffer.clone() for name, buffer in model.named_buffers()}
    return outcome


# ---------------------------------------------------------------- the law


def doors(row, model):
    """What leaves a region inside a forward is half: no annotation of the result is kept there.

    An annotation does not know what PyTorch's module is that it stands on.
    """
    return ("auto", "all") if row == "own region" or isinstance(model, UNCAST) else ("auto", "all", "enforce")


def hold(cell):
    """Assert the law in one cell, in every mode and through every door; says what became of the cell.

    What the contract accepts, and what it is not to touch, is as without a contract: the same bits, the same error.
    What it refuses raises in strict mode before anything ran, and is in lenient mode what a cast by hand makes of it.
    """
    bare, inputs = cell.model(), cell.inputs()
    anchor, names = anchor_of(bare), [*inspect.signature(bare.forward).parameters]
    given = [(name, x.dtype) for name, x in zip(names, inputs, strict=False) if x.is_floating_point()]
    strangers = [(name, dtype) for name, dtype in given if not accepts(bare, dtype, cell.region)]
    untouched = step(cell, bare)
    repaired = [untouched]
    if strangers:
        bare, odd = cell.model(), dict(strangers)
        target = [anchor if name in odd else x.dtype for name, x in zip(names, inputs, strict=False)]
        repaired = [step(cell, bare, target) for _ in range(2)]  # once more: a repair that is known goes another way
    alone = len(repaired[0].results) == 1
    odd_result = alone and any(not accepts(bare, result.dtype, cell.region) for result in untouched.results)
    for door in doors(cell.row, bare):
        model = cell.model()
        model = enforced(model, [name for name, _ in given], alone) if door == "enforce" else guard(model, depth=door)
        start = copy.deepcopy(model.state_dict())
        beside = strangers and door != "enforce" and any(dtype is anchor for _, dtype in given)
        if beside and not type(bare).__module__.startswith("torch."):
            hold_beside(cell, model, untouched)
            continue
        if door != "enforce" and any("mixed dtype (CPU)" in str(one.error) for one in (untouched, *repaired)):
            hold_inside(cell, model, (untouched, *repaired))
            continue
        for mode in MODES:
            where = f"{cell}, {mode}, {door}"
            model.load_state_dict(start)
            dtypeguard.reset_casts()
            with dtypeguard.mode(mode), warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                if strangers and mode == "strict":
                    assert refusal(cell, model) == (strangers, anchor), where
                    continue
                expected = repaired if mode == "lenient" else [untouched]
                got = [step(cell, model) for _ in expected]
            assert got == expected, f"{where}:\n{got}\nnot\n{expected}"
            said = [warning for warning in caught if issubclass(warning.category, DtypeGuardWarning)]
            kinds = [warning.category for warning in said]
            records = [(record.argument, record.from_dtype, record.to_dtype) for record in dtypeguard.casts()]
            if strangers and mode == "lenient":
                assert kinds == [CastWarning] * len(strangers), f"{where}: {kinds}"
                assert records == [(name, dtype, anchor) for name, dtype in strangers], f"{where}: {records}"
            elif strangers and mode == "warn":
                # One for the arguments; one for what they led to, at the result or at a module inside.
                most = {"auto": 1, "enforce": 1 + odd_result, "all": 9}[door]
                assert set(kinds) == {ContractWarning}, f"{where}: {kinds}"
                assert len(kinds) <= most, f"{where}: {kinds}"
                assert f"argument `{strangers[0][0]}` is {plain(strangers[0][1])}" in str(said[0].message), where
                assert records == [], where
            else:
                assert (kinds, records) == ([], []), f"{where}: {kinds} {records}"
    return "refused" if strangers else "raises" if untouched.error is not None else "accepted"


def hold_beside(cell, model, untouched):
    """The law of side inputs: what runs without a guard is the same under one, in silence."""
    start = copy.deepcopy(model.state_dict())
    for mode in MODES if untouched.error is None else ():
        model.load_state_dict(start)
        dtypeguard.reset_casts()
        with dtypeguard.mode(mode), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            got = step(cell, model)
        said = [warning.message for warning in caught if issubclass(warning.category, DtypeGuardWarning)]
        assert (got, said, dtypeguard.casts()) == (untouched, [], []), f"{cell}, {mode}"


def hold_inside(cell, model, outcomes):
    """The law of what a norm inside refuses in a region: a guard says so before, or repairs it."""
    start = copy.deepcopy(model.state_dict())
    for mode in MODES:
        model.load_state_dict(start)
        with dtypeguard.mode(mode), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            got = step(cell, model)
        told = {"strict": isinstance(got.error, DtypeError), "lenient": got.error is None}.get(mode, False)
        assert told or got in outcomes, f"{cell}, {mode}: {got}"


def plain(dtype):
    return str(dtype).removeprefix("torch.")


def enforced(model, floating, returns):
    """The module with `Float` on its floating arguments, and on its result if that is one tensor."""
    base, forward = type(model), type(model).forward
    own = (forward.__code__, forward.__globals__, "forward", forward.__defaults__, forward.__closure__)
    twin = types.FunctionType(*own)
    twin.__kwdefaults__, twin.__qualname__ = forward.__kwdefaults__, f"{base.__name__}.forward"
    twin.__annotations__ = dict.fromkeys([*floating, *["return"] * returns], Float[Tensor, "..."])
    model.__class__ = type(base.__name__, (base,), {"forward": enforce(twin)})
    return model


class Operations(TorchDispatchMode):
    """Writes down every operation that runs."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.seen.append(function)
        return function(*args, **(kwargs or {}))


def refusal(cell, model):
    """What strict mode names: the arguments with their dtypes, and the dtype that was expected."""
    inputs, operations = cell.inputs(), Operations()
    with cell.enter(), operations, pytest.raises(DtypeError) as caught:
        model(*inputs)
    error = caught.value
    assert operations.seen == []
    words = [text.split("`")[1:] for text in error.violations]
    named = [(name, getattr(torch, rest.split(",")[0].removeprefix(" is "))) for name, rest, *_ in words]
    assert (error.argument, error.actual) == named[0]
    return named, error.expected
