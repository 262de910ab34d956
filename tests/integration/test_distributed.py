"""Guarded models on several ranks: DDP, FSDP2, FSDP1, tensor parallel and pipelines train as without a guard."""

import collections
import contextlib
import multiprocessing
import os
import pickle
import re
import threading
import time
import warnings
from collections.abc import Callable
from typing import NamedTuple

import pytest
import ranks
import torch
import torch.distributed as dist
from jaxtyping import Float
from ranks import on_ranks
from support import BF16, F16, F32, F64, same
from torch import Tensor, nn
from torch.distributed import checkpoint
from torch.distributed._composable.replicate import replicate
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.experimental import implicit_replication
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from versions import since

import dtypeguard
from dtypeguard import CastWarning, DtypeError, RankError, guard, is_guarded, unguard
from dtypeguard.distributed import check_ranks

ORDERS = ["before", "after"]
DEPTHS = ["auto", "all"]
NAMES = {F32: "float32", F64: "float64"}

slow = pytest.mark.slow
pytestmark = [
    pytest.mark.filterwarnings(text)
    for text in (
        "ignore:Deallocating Tensor that still has live PyObject references",  # torch's own, of FSDP1 before 2.10
        "ignore:TypedStorage is deprecated",
        "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning",  # Dynamo's own
    )
]


@pytest.fixture(scope="module", autouse=True)
def _no_process_stays():
    yield
    ranks.stop()


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 8)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(8, 8)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Annotated(Net):
    @dtypeguard.enforce
    def forward(self, x: Float[Tensor, "batch 8"]) -> Float[Tensor, "batch 4"]:
        return super().forward(x)


class BatchNormed(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 16)
        self.norm = nn.BatchNorm1d(16)
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        return self.head(torch.relu(self.norm(self.fc(x))))


class Forking(Net):
    """A parameter that no step uses, and one that only some steps use."""

    def __init__(self):
        super().__init__()
        self.never = nn.Linear(8, 4)
        self.sometimes = nn.Linear(8, 4)

    def forward(self, x):
        y = super().forward(x)
        return y + self.sometimes(x) if x[0, 0] > 0 else y


class TwoBlocks(nn.Sequential):
    def __init__(self):
        super().__init__(Block(), Block())


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x, mask=None):
        q, k, v = (f(x).unflatten(-1, (-1, 4)).transpose(1, 2) for f in (self.q, self.k, self.v))
        scores = q @ k.mT / 2
        if mask is not None:
            scores = scores + mask
        return self.o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 8)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


class AnnotatedMlp(Mlp):
    @dtypeguard.enforce
    def forward(self, x: Float[Tensor, "batch time 8"]) -> Float[Tensor, "batch time 8"]:
        return super().forward(x)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.LayerNorm(8)
        self.attention = Attention()
        self.second = nn.LayerNorm(8)
        self.mlp = Mlp()

    def forward(self, x):
        x = x + self.attention(self.first(x))
        return x + self.mlp(self.second(x))


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Layer(), Layer()])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


# ---------------------------------------------------------------- data, a training, and what is asked of both


def build(cls, wrap, order=None, **options):
    """A model with the same weights every time; wrapped, and guarded before or after that."""
    torch.manual_seed(0)
    model = cls()
    if order == "before":
        guard(model, **options)
    model = wrap(model)
    if order == "after":
        guard(model, **options)
    return model


def batches(rank, dtype=F32, count=3):
    generator = torch.Generator().manual_seed(rank + 1)
    return [torch.randn(5, 8, generator=generator, dtype=F64).to(dtype) for _ in range(count)]


def sentences(rank, dtype=F32):
    """The same on every rank, as tensor parallelism wants it."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(2, 6, 8, generator=generator, dtype=F64).to(dtype) for _ in range(3)]


def parts_of_sentences(rank, dtype=F32):
    return [x.chunk(2, 1)[rank] for x in sentences(rank, dtype)]


def placed(placement):
    return lambda rank, dtype=F32: [distribute_tensor(x, mesh(), [placement]) for x in sentences(rank, dtype)]


def local(tensor):
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def state(model):
    return [local(tensor).detach().clone() for tensor in (*model.parameters(), *model.buffers())]


def train(model, data):
    """As many steps of SGD as there are batches, and of AdamW; every loss, and the model's state after it all."""
    losses = []
    for optimizer in (
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False),
        torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False),
    ):
        for x in data:
            optimizer.zero_grad()
            loss = whole(model(x)).float().square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
    return [*losses, *state(model)]


def finish_a_step(model, x):
    """What FSDP2 wants after a forward that raised, whoever raised: until then its parameters stay unsharded."""
    whole(model.eval()(x)).sum().backward()  # which leaves buffers as they were
    model.train().zero_grad()


def refusal(call):
    with pytest.raises(DtypeError) as caught:
        call()
    return caught.value


def facts(error):
    return error.argument, error.actual, error.expected


@contextlib.contextmanager
def one_cast(expected=True):
    """One CastWarning if a cast is expected, and no other."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CastWarning)
        yield
    assert [warning.category for warning in caught] == [CastWarning] * expected


def mesh():
    return init_device_mesh("cpu", (2,))


def checkpointed(model):
    apply_activation_checkpointing(model, check_fn=lambda module: isinstance(module, Block))
    return model


# ---------------------------------------------------------------- the ways to spread a model


def ddp(**options):
    return lambda model: DistributedDataParallel(model, **options)


def half(**options):
    return {"mp_policy": MixedPrecisionPolicy(param_dtype=BF16, reduce_dtype=F32, **options)}


FULL = {"mp_policy": MixedPrecisionPolicy(param_dtype=F32)}


def flat(**options):
    return lambda model: fully_shard(model, mesh=mesh(), **options)


def nested(root=True, **options):
    def wrap(model):
        for block in getattr(model, "blocks", model):
            fully_shard(block, mesh=mesh(), **options)
        return fully_shard(model, mesh=mesh(), **options) if root else model

    return wrap


def each_in_a_group(model):
    """All parameters lie in groups of the children."""
    fully_shard(model.embed, mesh=mesh(), **half(cast_forward_inputs=False))
    fully_shard(model.head, mesh=mesh(), **half(cast_forward_inputs=False))
    return nested(**half(cast_forward_inputs=False))(model)


def one_block_in_float32(**root):
    def wrap(model):
        fully_shard(model.blocks[0], mesh=mesh(), **FULL)
        fully_shard(model.blocks[1], mesh=mesh(), **half())
        return fully_shard(model, mesh=mesh(), **half(**root))

    return wrap


def norms_in_float32(model):
    for block in model.blocks:
        fully_shard(block.norm, mesh=mesh(), mp_policy=MixedPrecisionPolicy(param_dtype=F32, output_dtype=BF16))
    return nested(**half())(model)


def compiled(wrap=lambda model: model):
    return lambda model: torch.compile(wrap(model), backend="aot_eager")


def fsdp1(**options):
    return lambda model: FullyShardedDataParallel(model, device_id=torch.device("cpu"), **options)


EACH_BLOCK = {"auto_wrap_policy": ModuleWrapPolicy({Block})}
HALF = {"mixed_precision": MixedPrecision(param_dtype=BF16, reduce_dtype=F32)}
NOT_CAST = {
    "mixed_precision": MixedPrecision(param_dtype=BF16, cast_forward_inputs=False, cast_root_forward_inputs=False)
}


def plan(prefix="", out=None):
    """Tensor parallel attention and MLP; `out` is the layout of what they give back."""
    given = {} if out is None else {"output_layouts": out}
    attention = {f"{prefix}attention.{name}": ColwiseParallel() for name in "qkv"}
    mlp = {f"{prefix}mlp.up": ColwiseParallel(), f"{prefix}mlp.down": RowwiseParallel(**given)}
    return {**attention, f"{prefix}attention.o": RowwiseParallel(**given), **mlp}


def sequence():
    gather = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
    norms = {"first": SequenceParallel(), "second": SequenceParallel()}
    return {**norms, "attention": gather, "mlp": gather, **plan(out=Shard(1))}


MLP = {"up": ColwiseParallel(), "down": RowwiseParallel()}


def parallel(styles):
    return lambda model: parallelize_module(model, mesh(), styles)


def replicated(model):
    return distribute_module(model, mesh())


def both_ways(sizes):
    """Tensor parallel inside FSDP2."""

    def wrap(model):
        grid = init_device_mesh("cpu", sizes, mesh_dim_names=("data", "tensor"))
        for layer in model.layers:
            parallelize_module(layer, grid["tensor"], plan())
            fully_shard(layer, mesh=grid["data"], **half())
        return fully_shard(model, mesh=grid["data"], **half())

    return wrap


class Recipe(NamedTuple):
    """A model, how it is spread, its inputs, and what a guard sees to be wrong with others."""

    model: type[nn.Module]
    wrap: Callable
    data: Callable = batches
    right: torch.dtype = F32
    wrong: tuple[torch.dtype, ...] = (F64,)  # none where the wrapper casts its inputs, or another module has to refuse
    alone: bool = True  # one rank may be refused without the other
    compiled: bool = False  # refuses and repairs in its graph


DDPS = {
    "DDP": Recipe(Net, DistributedDataParallel),
    # A rank that raises in forward is a buffer broadcast behind the others, whoever raised.
    "DDP, buffers": Recipe(BatchNormed, DistributedDataParallel, alone=False),
    "DDP, find_unused_parameters": Recipe(Forking, ddp(find_unused_parameters=True)),
    "DDP, static_graph": Recipe(Net, ddp(static_graph=True)),
    "DDP, composable": Recipe(Net, replicate),
    "DDP, checkpointed": Recipe(Net, lambda model: DistributedDataParallel(checkpointed(model), static_graph=True)),
    "DDP, compiled": Recipe(Net, compiled(DistributedDataParallel), compiled=True),
    "DDP of compiled": Recipe(Net, lambda model: DistributedDataParallel(compiled()(model)), compiled=True),
}
CAST = {"wrong": (), "alone": False}
HELD = {"right": BF16, "wrong": (F32, F64), "alone": False}
FSDP2S = {
    "FSDP2, flat": Recipe(Net, flat()),
    "FSDP2": Recipe(Net, nested(), alone=False),
    "FSDP2, never resharded": Recipe(Net, nested(reshard_after_forward=False), alone=False),
    "FSDP2, bfloat16, flat": Recipe(Net, flat(**half()), **CAST),
    "FSDP2, bfloat16": Recipe(Net, nested(**half()), **CAST),
    "FSDP2, bfloat16 of float64": Recipe(Net, nested(**half()), right=F64, **CAST),
    "FSDP2, float16": Recipe(Net, nested(mp_policy=MixedPrecisionPolicy(param_dtype=F16)), **CAST),
    "FSDP2, one block in float32": Recipe(Net, one_block_in_float32(), **CAST),
    "FSDP2, norms in float32": Recipe(Net, norms_in_float32, **CAST),
    "FSDP2, activation checkpointing": Recipe(Net, lambda model: nested(**half())(checkpointed(model)), **CAST),
    "FSDP2, blocks only": Recipe(Net, nested(root=False, **half(output_dtype=F32)), alone=False),
    "FSDP2, a container of blocks": Recipe(TwoBlocks, nested(root=False, **half()), **CAST),
    "FSDP2, not cast, flat": Recipe(Net, flat(**half(cast_forward_inputs=False)), **HELD),
    "FSDP2, not cast": Recipe(Net, nested(**half(cast_forward_inputs=False)), **HELD),
    "FSDP2, not cast by the root": Recipe(Net, one_block_in_float32(cast_forward_inputs=False), **HELD),
    "FSDP2, not cast, each in a group": Recipe(Net, each_in_a_group, **HELD),
    "FSDP2, compiled": Recipe(Net, compiled(nested(**half())), compiled=True, **CAST),
}
FSDP1S = {
    "FSDP1": Recipe(Net, fsdp1(), alone=False),
    "FSDP1, original parameters": Recipe(Net, fsdp1(use_orig_params=True), alone=False),
    "FSDP1, nested": Recipe(Net, fsdp1(**EACH_BLOCK), alone=False),
    "FSDP1, bfloat16, nested, original": Recipe(Net, fsdp1(use_orig_params=True, **HALF, **EACH_BLOCK), **CAST),
    "FSDP1, not cast": Recipe(Net, fsdp1(**NOT_CAST), **HELD),
    "FSDP1, not cast, original": Recipe(Net, fsdp1(use_orig_params=True, **NOT_CAST), **HELD),
    "FSDP1, not cast, nested": Recipe(Net, fsdp1(**NOT_CAST, **EACH_BLOCK), right=BF16, **CAST),
}
TENSORS = {
    "tensor parallel": Recipe(Mlp, parallel(MLP), sentences),
    "tensor parallel, DTensors inside": Recipe(
        Mlp, parallel(MLP | {"up": ColwiseParallel(use_local_output=False)}), sentences
    ),
    "tensor parallel, DTensors out": Recipe(
        Mlp, parallel(MLP | {"down": RowwiseParallel(use_local_output=False)}), sentences
    ),
    "tensor parallel layer": Recipe(Layer, parallel(plan()), sentences),
    "sequence parallel layer": Recipe(Layer, parallel(sequence()), parts_of_sentences),
    "tensor parallel, compiled": Recipe(Layer, compiled(parallel(plan())), sentences, compiled=True),
    "tensor parallel of DTensors": Recipe(Mlp, parallel(MLP), placed(Shard(0)), alone=False),
    "replicas of DTensors": Recipe(Mlp, replicated, placed(Replicate()), alone=False),
    "replicas of sharded DTensors": Recipe(Mlp, replicated, placed(Shard(0)), alone=False),
    "tensor parallel inside FSDP2": Recipe(Layers, both_ways((1, 2)), sentences, **CAST),
    "FSDP2 of tensor parallel": Recipe(Layers, both_ways((2, 1)), sentences, **CAST),
}
RECIPES = DDPS | FSDP2S | FSDP1S | TENSORS
QUICK = (
    "DDP, find_unused_parameters",
    "FSDP2, bfloat16",
    "FSDP1, original parameters",
    "sequence parallel layer",
    "replicas of sharded DTensors",
)


@pytest.mark.parametrize("name", [pytest.param(name, marks=[slow] * (name not in QUICK)) for name in RECIPES])
@on_ranks(timeout=300)
def test_a_guarded_model_trains_bit_for_bit(rank, name):
    """In any order, at any depth, and when the guard is gone again; what is wrong is named where it is, or repaired."""
    recipe = RECIPES[name]
    model, wrap = recipe.model, recipe.wrap
    right = recipe.data(rank, recipe.right)
    bare = build(model, wrap)
    expected, expected_after = train(bare, right), train(bare, right)
    for order in ORDERS:
        for depth in DEPTHS if not recipe.compiled else ("all",):  # which is slow
            guarded = build(model, wrap, order, mode="strict", depth=depth)
            assert same(train(guarded, right), expected), (order, depth)
            assert is_guarded(guarded)
            unguard(guarded)
            assert not any(isinstance(module, dtypeguard.GuardedModule) for module in guarded.modules())
            assert same(train(guarded, right), expected_after), (order, depth)
        assert dtypeguard.casts() == []
        for wrong in recipe.wrong:
            is_refused(rank, recipe, order, wrong, right, expected)
            for odd in (rank == 1, True) if recipe.alone and not recipe.compiled else (True,):
                is_repaired(rank, recipe, order, wrong, odd, expected)


def is_refused(rank, recipe, order, wrong, right, expected):
    if recipe.compiled:
        torch._dynamo.reset()  # else it compiles one code too often
    guarded = build(recipe.model, recipe.wrap, order, mode="strict")
    if rank == 1 or not recipe.alone:
        with torch.no_grad():
            error = refusal(lambda: guarded(recipe.data(rank, wrong)[0]))
        assert f"argument `x` is {NAMES[wrong]}, " in str(error)
        assert recipe.compiled or facts(error) == ("x", wrong, recipe.right)
    finish_a_step(guarded, right[0])
    assert same(train(guarded, right), expected)


def is_repaired(rank, recipe, order, wrong, odd, expected):
    guarded = build(recipe.model, recipe.wrap, order)
    with one_cast(odd):
        assert same(train(guarded, recipe.data(rank, wrong if odd else recipe.right)), expected)
    assert [(c.argument, c.from_dtype, c.to_dtype) for c in dtypeguard.casts()] == [("x", wrong, recipe.right)] * odd
    for record in dtypeguard.casts() if not recipe.compiled else ():  # a graph is counted when it is traced
        assert record.count == 6
        assert "test_distributed.py" in record.site
        assert record.site.endswith("in train")
    dtypeguard.reset_casts()


def no_sync(model, last):
    return contextlib.nullcontext() if last else model.no_sync()


def set_sync(model, last):
    model.set_requires_gradient_sync(last)
    model.set_is_last_backward(last)
    return contextlib.nullcontext()


def accumulate(model, data, sync):
    """Four micro-batches to a step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        for n, x in enumerate(data):
            with sync(model, n == len(data) - 1):
                model(x).float().square().mean().backward()
        optimizer.step()
    return state(model)


@on_ranks
def test_gradients_are_accumulated_without_sync(rank):
    data = batches(rank, count=4)
    for order in ORDERS:
        for cls, wrap, sync in (
            (BatchNormed, DistributedDataParallel, no_sync),
            (Net, nested(), set_sync),
            (Net, nested(**half()), set_sync),
        ):
            model = build(cls, wrap, order, mode="strict", depth="all")
            assert same(accumulate(model, data, sync), accumulate(build(cls, wrap), data, sync))
    assert dtypeguard.casts() == []


@on_ranks
def test_ddp_joins_ranks_with_uneven_inputs(rank):
    def steps(model):
        with model.join():
            return train(model, batches(rank, count=2 + 3 * rank))

    expected = steps(build(Net, DistributedDataParallel))
    for order in ORDERS:
        assert same(steps(build(Net, DistributedDataParallel, order, mode="strict")), expected)


@on_ranks
def test_a_state_dict_of_ddp_goes_from_unguarded_to_guarded_and_back(rank):
    plain = build(BatchNormed, DistributedDataParallel)
    train(plain, batches(rank))
    guarded = guard(DistributedDataParallel(BatchNormed()), mode="strict")
    guarded.load_state_dict(plain.state_dict())
    assert same(train(guarded, batches(rank)), train(plain, batches(rank)))
    plain.load_state_dict(guarded.state_dict())
    assert same(state(guarded), state(plain))


@on_ranks
def test_a_guarded_model_can_have_its_batch_norms_synchronised(rank):
    for depth in DEPTHS:
        plain = build(BatchNormed, nn.SyncBatchNorm.convert_sync_batchnorm).eval()
        model = build(BatchNormed, nn.SyncBatchNorm.convert_sync_batchnorm, "before", mode="strict", depth=depth).eval()
        assert type(model.norm) is nn.SyncBatchNorm
        assert is_guarded(model)
        assert torch.equal(model(batches(rank)[0]), plain(batches(rank)[0]))
        assert refusal(lambda model=model: model(batches(rank, F64)[0])).argument == "x"
        assert list(model.state_dict()) == list(plain.state_dict())
        again = guard(model, mode="strict", depth=depth)
        assert torch.equal(again(batches(rank)[0]), plain(batches(rank)[0]))
        assert type(unguard(model)) is BatchNormed


# ---------------------------------------------------------------- sharded models


class BornWrong(Block):
    def forward(self, x):
        return super().forward(x.double())


class Blocks(nn.Sequential):
    def __init__(self):
        super().__init__(Block(), BornWrong())


@on_ranks
def test_what_is_born_wrong_inside_a_sharded_model_is_named_with_its_module(rank):
    wraps = ((nested(), F32), (nested(**half()), BF16), (fsdp1(use_orig_params=True), F32))
    for order in ORDERS:
        for wrap, dtype in wraps:
            model = build(Blocks, wrap, order, mode="strict", depth="all")
            error = refusal(lambda model=model: model(batches(rank)[0]))
            assert (error.actual, error.expected) == (F64, dtype)
            assert error.module_path.endswith("Blocks.1.norm")


def torch_says(call, text, note):
    """torch's own error, with a note on the module that it left: what is promised where no guard can see."""
    with pytest.raises(RuntimeError, match=text) as caught:
        call()
    assert not isinstance(caught.value, dtypeguard.DtypeGuardError)
    assert any(note in line for line in caught.value.__notes__)


@on_ranks
def test_among_flat_parameters_of_fsdp1_torch_says_what_is_wrong(rank):
    for order, note in (("before", "raised inside Blocks.1.norm"), ("after", "raised inside Blocks")):
        model = build(Blocks, fsdp1(use_orig_params=False), order, mode="strict", depth="all")
        torch_says(lambda model=model: model(batches(rank)[0]), "must share same datatype", note)
        model = build(Net, fsdp1(**NOT_CAST, **EACH_BLOCK), order, mode="strict")
        torch_says(lambda model=model: model(batches(rank)[0]), "must have the same dtype", "raised inside Net")


@pytest.mark.thin(4)
@pytest.mark.parametrize("hold", range(4), ids=["on meta", "before", "after", "filled"])
@on_ranks
def test_a_model_may_be_born_on_meta_and_filled_when_sharded(rank, hold):
    full = build(Net, lambda model: model).state_dict()

    def filled(depth=None):
        with torch.device("meta"):
            model = Net()
        for n, step in enumerate(
            [
                lambda: None,
                lambda: nested(**half())(model),
                lambda: model.to_empty(device="cpu"),
                lambda: set_model_state_dict(model, full, options=StateDictOptions(full_state_dict=True)),
            ]
        ):
            step()
            if depth and n == hold:
                guard(model, mode="strict", depth=depth)
        return model

    expected = train(filled(), batches(rank))
    for depth in DEPTHS:
        model = filled(depth)
        assert is_guarded(model)
        assert same(train(model, batches(rank)), expected)
    assert dtypeguard.casts() == []


@on_ranks
def test_a_full_state_dict_of_fsdp2_is_that_of_the_unguarded_model(rank):
    wrap, options = nested(**half()), StateDictOptions(full_state_dict=True, cpu_offload=True)
    plain = build(Net, wrap)
    train(plain, batches(rank))
    wanted = get_model_state_dict(plain, options=options)
    for order in ORDERS:
        model = build(Net, wrap, order, mode="strict", depth="all")
        train(model, batches(rank))
        found = get_model_state_dict(model, options=options)
        assert list(found) == list(wanted) == (list(Net().state_dict()) if rank == 0 else [])
        assert same([*found.values()], [*wanted.values()])
        fresh = guard(wrap(Net()), mode="strict")
        set_model_state_dict(fresh, found, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))
        assert same(state(fresh), state(plain))


@on_ranks
def test_a_sharded_checkpoint_goes_from_guarded_to_unguarded_and_back(rank, tmp_path):
    def stateful(model):
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        model(batches(rank)[0]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        return optimizer

    wrap = nested(**half())
    first, second = build(Net, wrap, "before", mode="strict", depth="all"), build(Net, wrap)
    for n, (source, target) in enumerate([(first, second), (second, first)]):
        train(source, batches(rank))
        kept = stateful(source), stateful(target)
        model_state, optimizer_state = get_state_dict(source, kept[0])
        checkpoint.save({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=tmp_path / str(n))
        model_state, optimizer_state = get_state_dict(target, kept[1])
        loaded = {"model": model_state, "optimizer": optimizer_state}
        checkpoint.load(loaded, checkpoint_id=tmp_path / str(n))
        wrong = set_state_dict(target, kept[1], model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"])
        assert not wrong.missing_keys
        assert not wrong.unexpected_keys
        assert same(state(target), state(source))
        assert same(*([local(v) for s in o.state.values() for v in s.values()] for o in kept))


@on_ranks
def test_a_guard_may_come_and_be_replaced_between_steps(rank):
    for recipe in (FSDP2S["FSDP2, never resharded"], FSDP2S["FSDP2, not cast"]):
        data = recipe.data(rank, recipe.right)[:1]
        plain, model = build(Net, recipe.wrap), build(Net, recipe.wrap)
        assert same(train(model, data), train(plain, data))
        for depth in ("all", "auto", "boundary"):
            with torch.no_grad():
                plain(data[0])
                model(data[0])
            guard(model, mode="strict", depth=depth)
            assert same(train(model, data), train(plain, data))
    assert dtypeguard.casts() == []


@on_ranks
def test_fsdp2_evaluates_a_guarded_model(rank):
    for recipe in (FSDP2S["FSDP2"], FSDP2S["FSDP2, bfloat16"], FSDP2S["FSDP2, not cast"]):
        x = recipe.data(rank, recipe.right)[0]
        plain, model = (build(Net, recipe.wrap, *how).eval() for how in ((), ("before",)))
        guard(model, mode="strict", depth="all")
        for context in (torch.no_grad, torch.inference_mode):
            with context():
                assert torch.equal(model(x), plain(x))
        for step in ("unshard", "reshard"):
            getattr(plain, step)()
            getattr(model, step)()
            with torch.no_grad():
                assert torch.equal(model(x), plain(x))


@on_ranks
def test_an_annotated_model_trains_in_fsdp2(rank):
    dtypeguard.set_mode("strict")
    for recipe in (FSDP2S["FSDP2, bfloat16, flat"], FSDP2S["FSDP2, bfloat16"], FSDP2S["FSDP2, not cast"]):
        data = recipe.data(rank, recipe.right)
        expected = train(build(Net, recipe.wrap), data)
        for order in (None, *ORDERS):
            assert same(train(build(Annotated, recipe.wrap, order), data), expected)
    assert dtypeguard.casts() == []


# ---------------------------------------------------------------- DTensor


@pytest.mark.parametrize("placement", [Replicate(), Shard(0)], ids=["replicated", "sharded"])
@on_ranks
def test_a_repair_of_a_dtensor_copies_its_part_makes_no_collective_and_brings_gradients_home(rank, placement):
    model = guard(replicated(Mlp()))
    right, wrong = (placed(placement)(rank, dtype)[0] for dtype in (F32, F64))
    wrong.requires_grad_()
    with CommDebugMode() as right_traffic:
        model(right)
    with CommDebugMode() as traffic, one_cast():
        y = model(wrong)
    assert traffic.get_total_counts() == right_traffic.get_total_counts()
    assert [c.bytes for c in dtypeguard.casts()] == [right.to_local().nbytes]
    y.full_tensor().sum().backward()
    assert isinstance(wrong.grad, DTensor)
    assert (wrong.grad.dtype, wrong.grad.placements) == (F64, wrong.placements)
    error = refusal(lambda: guard(model, mode="strict")(wrong))
    assert "x = f64[2,6,8]" in str(error)
    x = torch.zeros(2, 8)
    x[rank, 0] = x[1 - rank, 0] = torch.finfo(F32).min
    narrow = guard(replicated(nn.Linear(8, 2).to(F16)))
    with pytest.raises(dtypeguard.CastError, match="finite values of it become infinite in float16"):
        narrow(distribute_tensor(x, mesh(), [placement]))


@on_ranks
def test_a_partial_dtensor_is_repaired_as_it_is(rank):
    model, x = replicated(Mlp()), sentences(rank)[0]
    with CommDebugMode() as bare:
        model(DTensor.from_local(x / 2, mesh(), [Partial()]))
    guard(model)
    with one_cast(), CommDebugMode() as traffic:
        y = model(DTensor.from_local(x.double() / 2, mesh(), [Partial()]))
    assert traffic.get_total_counts() == bare.get_total_counts()
    torch.testing.assert_close(y.full_tensor(), model(distribute_tensor(x, mesh(), [Replicate()])).full_tensor())


@on_ranks
def test_what_a_tensor_parallel_model_gives_goes_into_the_next_guarded_model(rank):
    model = build(Mlp, parallel(MLP), "after", mode="strict")
    x, y = sentences(rank)[0], build(Mlp, parallel(MLP))(sentences(rank)[0])
    assert isinstance(model(x), AsyncCollectiveTensor)
    follower = guard(nn.Linear(8, 8), mode="strict")
    assert torch.equal(follower(model(x)), unguard(follower)(y))
    assert dtypeguard.casts() == []
    narrow = guard(nn.Linear(8, 8).to(BF16))
    with one_cast():
        assert torch.equal(narrow(model(x)), narrow(y.to(BF16)))


@on_ranks
def test_what_torch_says_of_plain_tensors_among_dtensors_goes_through(rank):
    model = guard(replicated(Mlp()), mode="strict")
    x = sentences(rank)[0]
    with pytest.raises(RuntimeError, match=r"got mixed torch\.Tensor and DTensor"):
        model(x)
    assert refusal(lambda: model(x.double())).argument == "x"
    with implicit_replication():
        assert torch.equal(model(x).to_local(), model(distribute_tensor(x, mesh(), [Replicate()])).to_local())
        assert refusal(lambda: model(x.double())).argument == "x"


@on_ranks
def test_axes_of_dtensors_are_those_of_the_whole_tensor(rank):
    dtypeguard.set_mode("strict")
    x = distribute_tensor(sentences(rank)[0], mesh(), [Shard(2)])
    for order in (None, *ORDERS):
        model = build(AnnotatedMlp, parallel(MLP), order)
        assert same(train(model, sentences(rank)), train(build(Mlp, parallel(MLP)), sentences(rank)))
        model(x)
        with pytest.raises(dtypeguard.ShapeError, match="argument `x` has size 4 in axis 2"):
            model(x.to_local())

    @dtypeguard.enforce(anchor="pred")
    def loss(pred: Float[Tensor, "b t d"], target: Float[Tensor, "b t d"]) -> Float[Tensor, ""]:
        return (pred - target).square().mean()

    assert loss(x, x).full_tensor() == 0
    assert refusal(lambda: loss(x, x.double())).argument == "target"


@on_ranks
def test_a_mask_beside_dtensors_is_a_side_input(rank):
    styles = {name.removeprefix("attention."): style for name, style in plan().items() if "attention" in name}
    plain, model = (build(Attention, parallel(styles)) for _ in range(2))
    guard(model)
    x, bias = sentences(rank)[0], torch.randn(6, 6)
    with one_cast(False):
        assert torch.equal(model(x, mask=bias), plain(x, bias))
    for mode in ["lenient", "strict"]:  # PyTorch refuses it with or without a guard
        with dtypeguard.mode(mode), pytest.raises(RuntimeError, match="Double") as caught:
            model(x, bias.double())
        assert any("mask = f64[6,6]" in note for note in caught.value.__notes__)


# ---------------------------------------------------------------- pipelines


class FrontHalf(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(8, 8)
        self.block = Block()

    def forward(self, x):
        return self.block(self.embed(x))


class BackHalf(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Block()
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        return self.head(self.block(x))


def pipeline(rank, schedule, dtype=F32, order=None, **options):
    """Three steps of a two-stage pipeline with a stage on each rank: losses on the last, the stage's parameters."""

    def wrap(part):
        stage = PipelineStage(part, rank, 2, torch.device("cpu"))
        made.append(schedule(stage, n_microbatches=2, loss_fn=nn.functional.mse_loss))
        return part

    made, losses = [], []
    part = build(BackHalf if rank else FrontHalf, wrap, order, **options)
    optimizer = torch.optim.AdamW(part.parameters(), lr=0.01)
    for x in sentences(rank, dtype):
        optimizer.zero_grad()
        given = {"target": torch.zeros(6, 4), "losses": losses} if rank else {}
        made[0].step(*([] if rank else [x[0]]), **given)
        optimizer.step()
    return [*(loss.detach() for loss in losses), *state(part)]


@since("torch", "2.10", "two stages on gloo disagree about what they tell each other")
@pytest.mark.parametrize("schedule", [ScheduleGPipe, Schedule1F1B])
@on_ranks
def test_a_pipeline_of_guarded_stages_trains_bit_for_bit_and_its_first_stage_repairs(rank, schedule):
    expected = pipeline(rank, schedule)
    for order in ORDERS:
        for depth in DEPTHS:
            assert same(pipeline(rank, schedule, F32, order, mode="strict", depth=depth), expected), depth
        assert dtypeguard.casts() == []
        with one_cast(rank == 0):
            assert same(pipeline(rank, schedule, F64, order), expected)
        assert [(c.argument, c.from_dtype, c.to_dtype) for c in dtypeguard.casts()] == [("x", F64, F32)] * (rank == 0)
        dtypeguard.reset_casts()


@on_ranks
def test_a_wrong_input_of_a_pipeline_is_named_by_its_first_stage(rank):
    group = dist.new_group([0])
    if rank == 0:
        stage = PipelineStage(guard(FrontHalf(), mode="strict"), 0, 1, torch.device("cpu"), group=group)
        error = refusal(lambda: ScheduleGPipe(stage, n_microbatches=2).step(sentences(rank, F64)[0][0]))
        assert facts(error) == ("x", F64, F32)


@since("torch", "2.13", "what fills torch's probe cannot be replaced at one place")
@on_ranks
def test_a_later_stage_of_a_pipeline_may_compute_in_half_precision(rank):
    """torch probes a stage with uninitialised tensors, in which any number may stand."""

    def probe(meta, device):
        return torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype, device=device).fill_(1e30)

    part = guard(BackHalf().to(F16) if rank else FrontHalf())
    stage = PipelineStage(part, rank, 2, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=lambda y, target: y.float().square().mean())
    with one_cast(rank == 1), pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch.distributed.pipelining._utils._make_tensor_from_meta", probe)
        if rank == 0:
            schedule.step(sentences(rank)[0][0])
        else:
            losses = []
            schedule.step(target=torch.zeros(6, 4), losses=losses)
            assert all(loss.isfinite() for loss in losses)


# ---------------------------------------------------------------- the ranks themselves


def behaves(rank, how):
    if rank == 1 and how == "raises":
        raise KeyError("on one rank")
    if rank == 1 and how == "dies":
        os._exit(3)
    if rank == 1 and how == "hangs":
        time.sleep(60)
    if rank == 1 and how == "warns":
        warnings.warn("on one rank", stacklevel=1)
    if how == "leaves the other alone" and rank == 0:
        dist.barrier()
    return how


@slow
@pytest.mark.parametrize(
    ("how", "error", "text"),
    [
        ("raises", KeyError, "on one rank"),
        ("dies", ranks.RankDied, "rank 1 ended with exit code 3"),
        ("hangs", ranks.RankHung, "in behaves"),
        ("warns", UserWarning, "on one rank"),
    ],
)
def test_what_happens_on_one_rank_is_told_and_no_process_stays(how, error, text):
    ranks.stop()
    good, bad = ranks.run(behaves, timeout=2, how=how)
    assert (good.value, good.error) == (how, None)
    assert isinstance(bad.error, error)
    assert text in bad.text
    with pytest.raises(AssertionError, match="rank 1: "):
        ranks.values([good, bad])
    assert multiprocessing.active_children() == []


@slow
def test_a_rank_that_waits_for_one_that_is_gone_is_ended():
    ranks.stop()
    waiting, gone = ranks.run(behaves, timeout=1, how="leaves the other alone")
    assert isinstance(waiting.error, ranks.RankHung)
    assert "rank 0 did not answer within 1 s" in waiting.text
    assert gone.ok
    assert multiprocessing.active_children() == []


# ---------------------------------------------------------------- check_ranks


class Counted(nn.Module):
    """Two layers, a buffer and a buffer that is not saved."""

    def __init__(self, hidden=4, dtype=F32, first="a", second="b"):
        super().__init__()
        self.add_module(first, nn.Linear(3, hidden, dtype=dtype))
        self.add_module(second, nn.Linear(3, 2))
        self.register_buffer("mean", torch.zeros(5))
        self.register_buffer("cache", torch.zeros(2, 2, dtype=torch.int64), persistent=False)

    def forward(self, x):
        return self.a(x)


def edited(edit):
    model = Counted()
    edit(model)
    return model


def tied():
    model = Counted(2)
    model.b.weight = model.a.weight
    return model


# What the last rank has where the others have a plain `Counted()`, and what the text must say of it.
ODD_MODELS = {
    "dtype of a parameter": (lambda: edited(lambda m: m.b.half()), ["b.weight", "f32[2,3]", "f16[2,3]"]),
    "dtype of an unsaved buffer": (
        lambda: edited(lambda m: m._buffers.update(cache=m.cache.int())),
        ["cache", "i64[2,2]", "i32[2,2]"],
    ),
    "shape": (lambda: Counted(6), ["a.weight", "f32[4,3]", "f32[6,3]", "a.bias"]),
    "device": (lambda: Counted().to("meta"), ["a.weight", "cpu", "meta"]),
    "a name": (lambda: Counted(second="c"), ["b.weight", "c.weight", "missing"]),
    "one more": (lambda: edited(lambda m: m.add_module("c", nn.Linear(1, 1))), ["c.weight", "missing"]),
    "one less": (lambda: edited(lambda m: m.b.register_parameter("bias", None)), ["b.bias", "missing"]),
    "order": (lambda: edited(lambda m: m._modules.update(a=m._modules.pop("a"))), ["a.weight", "b.weight", "order"]),
    "tied": (tied, ["b.weight", "missing"]),
    "nothing": (nn.Identity, ["a.weight", "missing"]),
    "a batch": (lambda: {"a.weight": torch.zeros(4, 3)}, ["a.weight"]),
}


def batch(**changes):
    x = {"image": torch.zeros(2, 3), "meta": [torch.zeros(2, dtype=torch.int64), {"mask": torch.ones(2) > 0}], "n": 3}
    return {**x, **changes}


Point = collections.namedtuple("Point", "x y")
ODD_BATCHES = {
    "deep inside": (
        lambda: batch(meta=[torch.zeros(2, dtype=torch.int64), {"mask": torch.ones(2)}]),
        ["['meta'][1]['mask']", "bool[2]", "f32[2]"],
    ),
    "a list is longer": (lambda: batch(meta=[*batch()["meta"], torch.zeros(1)]), ["['meta'][2]", "f32[1]", "missing"]),
    "a key is missing": (lambda: {"image": torch.zeros(2, 3), "n": 3}, ["['meta'][0]", "missing"]),
    "another key": (lambda: batch(extra=torch.zeros(1)), ["extra", "f32[1]", "missing"]),
    "order of keys": (lambda: dict(reversed(batch().items())), ["image", "order"]),
    "None for a tensor": (lambda: batch(image=None), ["image", "f32[2,3]", "None"]),
    "a number for a tensor": (lambda: batch(image=0.5), ["image", "f32[2,3]", "float"]),
    "a tensor for a list": (lambda: batch(meta=torch.zeros(2)), ["meta", "f32[2]"]),
    "a named tuple": (lambda: Point(torch.zeros(2), torch.zeros(2)), ["x", "f32[2]"]),
}


def disagreement(value, **options):
    with pytest.raises(RankError) as caught:
        check_ranks(value, **options)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), str(again)) == (RankError, str(caught.value))
    return str(caught.value)


@on_ranks
def test_what_differs_is_told_on_every_rank(rank):
    for common, odd in ((Counted, ODD_MODELS), (batch, ODD_BATCHES)):
        for case, (make, says) in odd.items():
            text = disagreement(make() if rank == 1 else common(), timeout=10)
            assert all(word in text for word in [*says, "rank 0", "rank 1"]), case
            check_ranks(common(), timeout=10)


@on_ranks
def test_the_text_says_which_rank_has_what(rank):
    text = disagreement(Counted(dtype=F64 if rank else F32))
    assert re.search(r"a\.weight +f32\[4,3\] on cpu \(rank 0\).*f64\[4,3\] on cpu \(rank 1\)", text)
    assert "b.weight" not in text
    assert "2 of 6" in text


ALIKE = {
    "guarded model": lambda: guard(Counted(), depth="all"),
    "lazy model": lambda: nn.LazyLinear(3),
    "model on meta": lambda: Counted().to("meta"),
    "module without tensors": nn.ReLU,
    "tensor": lambda: torch.zeros(3),
    "scalar tensor": lambda: torch.tensor(1.0),
    "empty batch": dict,
    "nothing": lambda: None,
    "named tuple": lambda: Point(torch.zeros(2), [None, "text"]),
    "packed sequence": lambda: nn.utils.rnn.pack_sequence([torch.zeros(3), torch.zeros(2)]),
    "keys of all kinds": lambda: {1: torch.zeros(1), ("a", 2): torch.zeros(1), None: torch.zeros(1), "ü": 0},
    "sparse tensor": lambda: torch.eye(3).to_sparse(),
    "nested tensor": lambda: torch.nested.as_nested_tensor([torch.zeros(2), torch.zeros(3)], layout=torch.jagged),
    "float8 and complex": lambda: [torch.zeros(2).to(torch.float8_e4m3fn), torch.zeros(2, dtype=torch.complex64)],
    "the same tensor twice": lambda: [torch.zeros(2)] * 2,
    "a list in itself": lambda: (lambda cycle: cycle.append(cycle) or cycle)([torch.zeros(2)]),
}


@on_ranks
def test_what_is_alike_on_all_ranks_passes(rank):
    for case, make in ALIKE.items():
        assert check_ranks(make(), timeout=10) is None, case
    x = torch.randn(4, 4)  # values, strides and gradients are nobody's business
    check_ranks([x.T if rank else x.clone(), x.requires_grad_(rank == 1), nn.Parameter(x) if rank else x.detach()])


@on_ranks
def test_sizes_may_differ_where_shapes_do_not_count(rank):
    check_ranks({"x": torch.zeros(2 + rank, 3), "captions": ["a"] * (2 + rank)}, shapes=False, timeout=10)
    text = disagreement({"x": torch.zeros(2 + rank, 3, dtype=F64 if rank else F32)}, shapes=False)
    assert all(word in text for word in ["x", "float32", "float64", "rank 0", "rank 1"])


@on_ranks
def test_it_is_no_collective_and_leaves_nothing_in_the_store(rank):
    store = dist.distributed_c10d._get_default_store()
    check_ranks(Counted())
    dist.barrier()
    before = store.num_keys()
    dist.barrier()
    with CommDebugMode() as traffic:
        for n in range(50):
            if n % 10 == 0:
                disagreement(Counted(hidden=3 + rank))
            check_ranks([torch.zeros(n)])
    assert traffic.get_total_counts() == 0
    dist.barrier()
    assert store.num_keys() <= before + 2


@on_ranks
def test_wrapped_models_are_compared_too(rank):
    for wrap in (DistributedDataParallel, nested(**half()), flat(), parallel({"embed": ColwiseParallel()})):
        for order in (None, "after"):
            model = build(Net, wrap, order, depth="all")
            check_ranks(model, timeout=10)
            model.extra = nn.Linear(1 + rank, 1)
            text = disagreement(model, timeout=10)
            assert all(word in text for word in ["extra.weight", "f32[1,1]", "f32[1,2]"])


@on_ranks
def test_a_rank_that_is_late_is_waited_for_and_one_that_never_calls_is_named_in_time(rank):
    if rank == 1:
        time.sleep(1)
    start = time.monotonic()
    check_ranks(Counted(), timeout=10)
    assert time.monotonic() - start < 5
    if rank == 0:
        start = time.monotonic()
        with pytest.raises(TimeoutError, match=r"rank 1\b"):
            check_ranks(batch(), timeout=0.5)
        assert 0.3 < time.monotonic() - start < 4
    dist.barrier()  # both are in step again
    check_ranks([torch.zeros(1)], timeout=10)
    disagreement([torch.zeros(1 + rank)], timeout=10)


def until_all_are_there(value, timeout):
    refused = 0
    while True:
        try:
            check_ranks(value, timeout=timeout)
            return refused
        except TimeoutError:
            refused += 1


@on_ranks
def test_a_rank_may_ask_again_until_the_other_comes(rank):
    time.sleep(rank)
    refused = until_all_are_there(Counted(), 0.2 if rank == 0 else 10)
    assert refused > 0 if rank == 0 else refused == 0
    disagreement(Counted(hidden=3 + rank), timeout=10)


@on_ranks
def test_threads_and_groups_of_the_same_ranks_do_not_hear_each_other(rank):
    groups, failed = [dist.new_group([0, 1]) for _ in range(2)], []

    def check(n):
        try:
            for _ in range(20):
                time.sleep(0.001 * ((n + rank) % 2))
                if n < 2:
                    check_ranks([torch.zeros(n + 1)], group=groups[n], timeout=10)
                else:
                    check_ranks(Counted(), timeout=10)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=check, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


@on_ranks
def test_a_rank_outside_the_group_is_told_so(rank):
    group = dist.new_group([0])
    if rank == 0:
        check_ranks(Counted(), group=group, timeout=10)
    else:
        with pytest.raises(ValueError, match="rank 1 is not in the group"):
            check_ranks(Counted(), group=group, timeout=10)


@on_ranks
def test_ten_thousand_tensors_are_compared_in_seconds_and_told_in_a_few_lines(rank):
    many = [torch.zeros(n % 7, dtype=F32) for n in range(10_000)]
    start = time.monotonic()
    check_ranks(many)
    text = disagreement([x.double() for x in many] if rank else many)
    assert time.monotonic() - start < 20
    assert "10000" in text
    assert len(text) < 2000


@slow
@on_ranks(world_size=3, timeout=120)
def test_of_three_ranks_the_odd_one_the_missing_ones_and_those_outside_a_group_are_told(rank):
    for odd in range(3):
        text = disagreement(Counted(dtype=F64 if rank == odd else F32), timeout=10)
        most = ", ".join(str(n) for n in range(3) if n != odd)
        assert re.search(rf"f32\[4,3\] on cpu \(ranks {most}\)", text)
        assert re.search(rf"f64\[4,3\] on cpu \(rank {odd}\)", text)
    text = disagreement([torch.zeros(rank)], timeout=10)
    assert all(f"f32[{n}] on cpu (rank {n})" in text for n in range(3))
    group, other = dist.new_group([0, 2]), dist.new_group([1, 2])
    if rank != 1:
        check_ranks(Counted(), group=group, timeout=10)
        text = disagreement(Counted(dtype=F64 if rank else F32), group=group, timeout=10)
        assert "rank 2" in text
        assert "rank 1" not in text
    if rank != 0:
        check_ranks(batch(), group=other, timeout=10)
    check_ranks([torch.zeros(1)], timeout=10)
    time.sleep(rank == 2)  # a rank without patience does not disturb those that have it
    refused = until_all_are_there(Counted(), 0.2 if rank == 0 else 20)
    assert refused > 0 if rank == 0 else refused == 0
    disagreement(Counted(hidden=3 + rank), timeout=10)
    if rank == 1:
        with pytest.raises(TimeoutError, match=r"ranks 0, 2\b"):
            check_ranks(Counted(), timeout=0.5)
    dist.barrier()


def outlives(rank, dead, after):
    if rank == dead:
        time.sleep(after)
        os._exit(7)
    time.sleep(1)
    start = time.monotonic()
    try:
        check_ranks(Counted(), timeout=2)
    except TimeoutError as error:
        return str(error), time.monotonic() - start


# Rank 0 keeps the store of the group, so nobody can say who is missing when it is gone.
@slow
@pytest.mark.parametrize("after", [0, 2], ids=["before the call", "meanwhile"])
@pytest.mark.parametrize(("dead", "says"), [(1, "rank 1 said nothing"), (0, "the rank that keeps it")])
def test_a_rank_that_is_dead_is_told_by_the_other_in_time(dead, says, after):
    outcomes = ranks.run(outlives, timeout=30, dead=dead, after=after)
    assert isinstance(outcomes[dead].error, ranks.RankDied)
    text, took = outcomes[1 - dead].value
    assert says in text
    assert took < 5


def test_alone_there_is_nothing_to_compare(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert check_ranks(Counted()) is None
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert check_ranks(batch()) is None
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    try:
        assert check_ranks(Counted()) is None
        assert check_ranks(batch(), group=dist.group.WORLD, timeout=1) is None
    finally:
        dist.destroy_process_group()


def test_several_ranks_without_a_process_group_are_told_to_make_one(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RuntimeError, match="init_process_group"):
        check_ranks(Counted())


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # from the import of torch.distributed.optim
@on_ranks
def test_a_sharded_optimizer_of_ddp_trains_a_guarded_model(rank):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    def steps(model):
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.01)
        for x in batches(rank):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        return state(model)

    model = build(Net, DistributedDataParallel, "before", mode="strict")
    assert same(steps(model), steps(build(Net, DistributedDataParallel)))


def move(rank, store):
    """To a new process group, in the same processes."""
    dist.barrier()
    dist.destroy_process_group()
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)


def stored(rank, path, ports):
    for make in (
        lambda: dist.TCPStore("127.0.0.1", ports[0], 2, is_master=rank == 0, use_libuv=False),
        lambda: dist.PrefixStore("mine", dist.TCPStore("127.0.0.1", ports[1], 2, is_master=rank == 0)),
        lambda: dist.FileStore(path, 2),
    ):
        move(rank, make())
        check_ranks(Counted(), timeout=5)
        disagreement([torch.zeros(rank)], timeout=5)
        if rank == 0:
            with pytest.raises(TimeoutError, match=r"rank 1\b"):
                check_ranks(Counted(), timeout=0.2)


@pytest.mark.slow
def test_it_works_with_any_store(tmp_path):
    try:
        ranks.values(ranks.run(stored, path=str(tmp_path / "store"), ports=[ranks.free_port(), ranks.free_port()]))
    finally:
        ranks.stop(2)
