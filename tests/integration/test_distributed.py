"""Guarded models on two ranks: DDP, FSDP2, tensor parallel, FSDP1 and pipelines train as they do without a guard."""

import collections
import contextlib
import copy
import multiprocessing
import os
import pickle
import re
import subprocess
import sys
import threading
import time
import warnings

import pytest
import ranks
import torch
import torch.distributed as dist
from jaxtyping import Float
from ranks import on_ranks
from torch import Tensor, nn
from torch.distributed import checkpoint
from torch.distributed._composable.replicate import replicate
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FSDPModule,
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    fully_shard,
)
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

F32, F64, BF16 = torch.float32, torch.float64, torch.bfloat16
ORDERS = ["before", "after"]
DEPTHS = ["auto", "all"]


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


def local(tensor):
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def state(model):
    return [local(tensor).detach().clone() for tensor in model.state_dict().values()]


def same(a, b):
    return len(a) == len(b) > 0 and all(x.dtype is y.dtype and torch.equal(x, y) for x, y in zip(a, b, strict=True))


pytestmark = [
    pytest.mark.filterwarnings(text)
    for text in (  # torch's own, of FSDP1 and of its checkpoints, before 2.10
        "ignore:Deallocating Tensor that still has live PyObject references",
        "ignore:TypedStorage is deprecated",
    )
]


def refusal(call):
    with pytest.raises(DtypeError) as caught:
        call()
    return caught.value


@contextlib.contextmanager
def one_cast(expected=True):
    """One CastWarning if a cast is expected, and no other."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CastWarning)
        yield
    assert [warning.category for warning in caught] == [CastWarning] * expected


def checkpointed(model):
    apply_activation_checkpointing(model, check_fn=lambda module: isinstance(module, Block))
    return model


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


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_rank_that_waits_for_one_that_is_gone_is_ended():
    ranks.stop()
    waiting, gone = ranks.run(behaves, timeout=1, how="leaves the other alone")
    assert isinstance(waiting.error, ranks.RankHung)
    assert "rank 0 did not answer within 1 s" in waiting.text
    assert gone.ok
    assert multiprocessing.active_children() == []


# ---------------------------------------------------------------- DDP


def hooked(model):
    ddp = DistributedDataParallel(model)
    ddp.register_comm_hook(None, fp16_compress_hook)
    return ddp


DDP = {
    "plain": (Net, DistributedDataParallel),
    "buffers": (BatchNormed, DistributedDataParallel),
    "find_unused_parameters": (Forking, lambda model: DistributedDataParallel(model, find_unused_parameters=True)),
    "static_graph": (Net, lambda model: DistributedDataParallel(model, static_graph=True)),
    "gradient_as_bucket_view": (Net, lambda model: DistributedDataParallel(model, gradient_as_bucket_view=True)),
    "many buckets": (Net, lambda model: DistributedDataParallel(model, bucket_cap_mb=0.0001)),
    "comm hook": (Net, hooked),
    "composable": (Net, replicate),
    "checkpointed": (Net, lambda model: DistributedDataParallel(checkpointed(model), static_graph=True)),
}
COMPILED = {
    "compiled DDP": (Net, lambda model: torch.compile(DistributedDataParallel(model), backend="aot_eager")),
    "DDP of compiled": (Net, lambda model: DistributedDataParallel(torch.compile(model, backend="aot_eager"))),
}
WRONG = {"one rank": lambda rank: rank == 1, "all ranks": lambda rank: True}


@pytest.mark.thin(4)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("recipe", DDP)
@on_ranks
def test_ddp_trains_a_guarded_model_bit_for_bit(rank, recipe, order):
    cls, wrap = DDP[recipe]
    reference = train(build(cls, wrap), batches(rank))
    for depth in DEPTHS:
        model = build(cls, wrap, order, mode="strict", depth=depth)
        assert same(train(model, batches(rank)), reference), depth
        assert is_guarded(model)
    assert dtypeguard.casts() == []


@pytest.mark.slow
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("recipe", COMPILED)
@on_ranks
def test_compiled_ddp_trains_a_guarded_model_bit_for_bit(rank, recipe, order):
    cls, wrap = COMPILED[recipe]
    reference = train(build(cls, wrap), batches(rank))
    for depth in DEPTHS:
        model = build(cls, wrap, order, mode="strict", depth=depth)
        assert same(train(model, batches(rank)), reference), depth
        assert is_guarded(model)
    assert dtypeguard.casts() == []


# A rank that raises in forward is a buffer broadcast behind the others, whoever raised: no "buffers" here.
@pytest.mark.thin(6)
@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("recipe", [name for name in DDP if name != "buffers"])
@on_ranks
def test_a_wrong_input_of_ddp_is_named_where_it_is_and_training_goes_on(rank, recipe, order, wrong):
    cls, wrap = DDP[recipe]
    model = build(cls, wrap, order, mode="strict")
    with torch.no_grad():
        if WRONG[wrong](rank):
            error = refusal(lambda: model(batches(rank, F64)[0]))
            assert (error.argument, error.actual, error.expected) == ("x", F64, F32)
        else:
            model(batches(rank)[0])
    assert same(train(model, batches(rank)), train(build(cls, wrap), batches(rank)))


@pytest.mark.slow
@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("recipe", COMPILED)
@on_ranks
def test_a_wrong_input_of_compiled_ddp_is_named_and_training_goes_on(rank, recipe, order, wrong):
    cls, wrap = COMPILED[recipe]
    model = build(cls, wrap, order, mode="strict")
    with torch.no_grad():
        if WRONG[wrong](rank):
            error = refusal(lambda: model(batches(rank, F64)[0]))
            assert "argument `x` is float64, the module's parameters are float32" in str(error)
        else:
            model(batches(rank)[0])
    assert same(train(model, batches(rank)), train(build(cls, wrap), batches(rank)))


@pytest.mark.thin(6)
@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("recipe", DDP)
@on_ranks
def test_a_wrong_input_of_ddp_is_repaired_where_it_is(rank, recipe, order, wrong):
    cls, wrap = DDP[recipe]
    odd = WRONG[wrong](rank)
    reference = train(build(cls, wrap), batches(rank))
    model = build(cls, wrap, order)
    with one_cast(odd):
        assert same(train(model, batches(rank, F64 if odd else F32)), reference)
    assert [(c.argument, c.from_dtype, c.to_dtype, c.count) for c in dtypeguard.casts()] == [("x", F64, F32, 6)] * odd
    assert all("test_distributed.py" in c.site and c.site.endswith("in train") for c in dtypeguard.casts())


@pytest.mark.slow
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("recipe", COMPILED)
@on_ranks
def test_a_wrong_input_of_compiled_ddp_is_cast_in_the_graph(rank, recipe, order):
    cls, wrap = COMPILED[recipe]
    reference = train(build(cls, wrap), batches(rank))
    model = build(cls, wrap, order)
    with one_cast():
        assert same(train(model, batches(rank, F64)), reference)
    assert [(c.argument, c.from_dtype, c.to_dtype) for c in dtypeguard.casts()] == [("x", F64, F32)]


def accumulate(model, data, last):
    """Four micro-batches to a step; `last(model, bool)` says whether gradients are to be reduced now."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        for n, x in enumerate(data):
            with last(model, n == len(data) - 1):
                loss = model(x).float().square().mean()
                loss.backward()
            losses.append(loss.detach())
        optimizer.step()
    return [*losses, *state(model)]


@pytest.mark.parametrize("order", ORDERS)
@on_ranks
def test_ddp_accumulates_gradients_without_sync(rank, order):
    def last(model, yes):
        return contextlib.nullcontext() if yes else model.no_sync()

    data = batches(rank, count=4)
    model = build(BatchNormed, DistributedDataParallel, order, mode="strict")
    assert same(accumulate(model, data, last), accumulate(build(BatchNormed, DistributedDataParallel), data, last))
    assert dtypeguard.casts() == []


@pytest.mark.parametrize("order", ORDERS)
@on_ranks
def test_ddp_joins_ranks_with_uneven_inputs(rank, order):
    def steps(model):
        with model.join():
            return train(model, batches(rank, count=2 + 3 * rank))

    model = build(Net, DistributedDataParallel, order, mode="strict")
    assert same(steps(model), steps(build(Net, DistributedDataParallel)))
    assert dtypeguard.casts() == []


@on_ranks
def test_ddp_gives_every_rank_the_weights_and_buffers_of_the_first(rank):
    torch.manual_seed(rank)
    model = guard(BatchNormed(), mode="strict", depth="all")
    model.norm.running_mean.fill_(rank + 1.0)
    wrapped = DistributedDataParallel(model)
    for tensor in state(wrapped):
        first = tensor.clone()
        dist.broadcast(first, 0)
        assert torch.equal(first, tensor)
    wrapped(batches(rank)[0])
    assert wrapped.module.norm.num_batches_tracked == 1
    assert list(wrapped.state_dict()) == list(build(BatchNormed, DistributedDataParallel).state_dict())


@on_ranks
def test_a_state_dict_of_ddp_goes_from_unguarded_to_guarded_and_back(rank):
    plain = build(BatchNormed, DistributedDataParallel)
    train(plain, batches(rank))
    guarded = guard(DistributedDataParallel(BatchNormed()), mode="strict")
    guarded.load_state_dict(plain.state_dict())
    assert same(state(guarded), state(plain))
    assert same(train(guarded, batches(rank)), train(plain, batches(rank)))
    plain.load_state_dict(guarded.state_dict())
    assert same(state(guarded), state(plain))


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


@on_ranks
def test_ddp_under_autocast_stays_quiet(rank):
    def steps(model):
        with torch.autocast("cpu", dtype=BF16):
            return train(model, batches(rank, BF16))

    model = build(BatchNormed, DistributedDataParallel, "before", mode="strict", depth="all")
    assert same(steps(model), steps(build(BatchNormed, DistributedDataParallel)))
    assert dtypeguard.casts() == []


@pytest.mark.parametrize("depth", DEPTHS)
@on_ranks
def test_a_guarded_model_can_have_its_batch_norms_synchronised(rank, depth):
    plain = build(BatchNormed, nn.SyncBatchNorm.convert_sync_batchnorm).eval()
    model = build(BatchNormed, nn.SyncBatchNorm.convert_sync_batchnorm, "before", mode="strict", depth=depth).eval()
    assert type(model.norm) is nn.SyncBatchNorm
    assert is_guarded(model)
    assert torch.equal(model(batches(rank)[0]), plain(batches(rank)[0]))
    assert refusal(lambda: model(batches(rank, F64)[0])).argument == "x"
    assert list(model.state_dict()) == list(plain.state_dict())
    again = guard(model, mode="strict", depth=depth)
    assert torch.equal(again(batches(rank)[0]), plain(batches(rank)[0]))
    assert type(unguard(model)) is BatchNormed


# ---------------------------------------------------------------- FSDP2


def mesh():
    return init_device_mesh("cpu", (2,))


def flat(**options):
    return lambda model: fully_shard(model, mesh=mesh(), **options)


def nested(**options):
    def wrap(model):
        for block in model.blocks:
            fully_shard(block, mesh=mesh(), **options)
        return fully_shard(model, mesh=mesh(), **options)

    return wrap


def half(**options):
    return MixedPrecisionPolicy(param_dtype=BF16, reduce_dtype=F32, **options)


FULL = MixedPrecisionPolicy(param_dtype=F32)


def one_block_in_float32(model):
    fully_shard(model.blocks[0], mesh=mesh(), mp_policy=FULL)
    fully_shard(model.blocks[1], mesh=mesh(), mp_policy=half())
    return fully_shard(model, mesh=mesh(), mp_policy=half())


def inputs_not_cast_by_the_root(model):
    for block, policy in zip(model.blocks, (FULL, half()), strict=True):
        fully_shard(block, mesh=mesh(), mp_policy=policy)
    return fully_shard(model, mesh=mesh(), mp_policy=half(cast_forward_inputs=False))


def norms_in_float32(model):
    for block in model.blocks:
        fully_shard(block.norm, mesh=mesh(), mp_policy=MixedPrecisionPolicy(param_dtype=F32, output_dtype=BF16))
    return nested(mp_policy=half())(model)


def blocks_only(model):
    for block in model.blocks:
        fully_shard(block, mesh=mesh(), mp_policy=half(output_dtype=F32))
    return model


def both_blocks_in_one_group(model):
    fully_shard([*model.blocks], mesh=mesh(), mp_policy=half())
    return fully_shard(model, mesh=mesh(), mp_policy=half())


def prefetching(model):
    nested(mp_policy=half())(model)
    model.set_modules_to_forward_prefetch([*model.blocks])
    return model


def hybrid(model):
    both = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
    return fully_shard(model, mesh=both, mp_policy=half())


def compiled_blocks(model):
    for block in model.blocks:
        block.compile(backend="aot_eager")
    return nested(mp_policy=half())(model)


FSDP = {
    "no policy, flat": flat(),
    "no policy": nested(),
    "no policy, never resharded": nested(reshard_after_forward=False),
    "no policy, always resharded": nested(reshard_after_forward=True),
    "bfloat16, flat": flat(mp_policy=half()),
    "bfloat16": nested(mp_policy=half()),
    "bfloat16, output float32, flat": flat(mp_policy=half(output_dtype=F32)),
    "bfloat16, never resharded": nested(mp_policy=half(), reshard_after_forward=False),
    "bfloat16, always resharded": nested(mp_policy=half(), reshard_after_forward=True),
    "bfloat16, inputs not cast, flat": flat(mp_policy=half(cast_forward_inputs=False)),
    "bfloat16, inputs not cast": nested(mp_policy=half(cast_forward_inputs=False)),
    "bfloat16, inputs not cast by the root": inputs_not_cast_by_the_root,
    "float16": nested(mp_policy=MixedPrecisionPolicy(param_dtype=torch.float16)),
    "one block in float32": one_block_in_float32,
    "norms in float32": norms_in_float32,
    "blocks only": blocks_only,
    "both blocks in one group": both_blocks_in_one_group,
    "prefetch": prefetching,
    "hybrid": hybrid,
    "activation checkpointing": lambda model: nested(mp_policy=half())(checkpointed(model)),
}
FSDP_COMPILED = {
    "compiled blocks": compiled_blocks,
    "compiled": lambda model: torch.compile(nested(mp_policy=half())(model), backend="aot_eager"),
}


VARIANTS = [name for name in FSDP if "resharded" in name or name in ("float16", "prefetch", "both blocks in one group")]


def given(recipe):
    """The dtype of the inputs that a recipe takes."""
    return BF16 if "not cast" in recipe else F32


@pytest.mark.thin(4)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("recipe", [pytest.param(name, marks=[pytest.mark.slow] * (name in VARIANTS)) for name in FSDP])
@on_ranks
def test_fsdp2_trains_a_guarded_model_bit_for_bit(rank, recipe, order):
    data = batches(rank, given(recipe))
    reference = train(build(Net, FSDP[recipe]), data)
    for depth in DEPTHS:
        model = build(Net, FSDP[recipe], order, mode="strict", depth=depth)
        assert same(train(model, data), reference), depth
        assert is_guarded(model), depth
    assert dtypeguard.casts() == []


def finish_a_step(model, x):
    """What FSDP2 wants after a forward that raised, whoever raised: until then its parameters stay unsharded."""
    model(x).sum().backward()
    model.zero_grad()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")  # Dynamo's own
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("recipe", FSDP_COMPILED)
@on_ranks
def test_compiled_fsdp2_trains_a_guarded_model_bit_for_bit(rank, recipe, order):
    reference = train(build(Net, FSDP_COMPILED[recipe]), batches(rank))
    for depth in DEPTHS:
        model = build(Net, FSDP_COMPILED[recipe], order, mode="strict", depth=depth)
        assert same(train(model, batches(rank)), reference), depth
        assert is_guarded(model), depth
    assert dtypeguard.casts() == []


@pytest.mark.thin(4)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("recipe", ["no policy, flat", "no policy", "no policy, never resharded", "blocks only"])
@on_ranks
def test_a_wrong_input_of_fsdp2_is_named_and_training_goes_on(rank, recipe, order):
    model = build(Net, FSDP[recipe], order, mode="strict")
    error = refusal(lambda: model(batches(rank, F64)[0]))
    assert (error.argument, error.actual, error.expected) == ("x", F64, F32)
    finish_a_step(model, batches(rank)[0])
    assert same(train(model, batches(rank)), train(build(Net, FSDP[recipe]), batches(rank)))


@pytest.mark.parametrize("order", ORDERS)
@on_ranks
def test_one_rank_with_a_wrong_input_of_fsdp2_is_named_and_may_try_again(rank, order):
    model = build(Net, flat(), order, mode="strict")
    x = batches(rank)[0]
    if rank == 1:
        assert refusal(lambda: model(x.double())).argument == "x"
    finish_a_step(model, x)
    assert same(train(model, batches(rank)), train(build(Net, flat()), batches(rank)))


@pytest.mark.thin(6)
@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("recipe", ["no policy, flat", "no policy", "no policy, never resharded", "blocks only"])
@on_ranks
def test_a_wrong_input_of_fsdp2_is_repaired(rank, recipe, order, wrong):
    odd = WRONG[wrong](rank)
    reference = train(build(Net, FSDP[recipe]), batches(rank))
    model = build(Net, FSDP[recipe], order)
    with one_cast(odd):
        assert same(train(model, batches(rank, F64 if odd else F32)), reference)
    assert [(c.argument, c.from_dtype, c.to_dtype, c.count) for c in dtypeguard.casts()] == [("x", F64, F32, 6)] * odd


@pytest.mark.thin(4)
@pytest.mark.parametrize("wrong", [F32, F64], ids=["float32", "float64"])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("recipe", [name for name in FSDP if "not cast" in name])
@on_ranks
def test_where_the_policy_casts_no_inputs_they_are_held_to_its_dtype(rank, recipe, order, wrong):
    data = batches(rank, BF16)
    reference = train(build(Net, FSDP[recipe]), data)
    model = build(Net, FSDP[recipe], order, mode="strict")
    for _ in range(2):
        error = refusal(lambda: model(data[0].to(wrong)))
        assert (error.argument, error.actual, error.expected) == ("x", wrong, BF16)
    lenient = build(Net, FSDP[recipe], order)
    with one_cast():
        assert same(train(lenient, [x.to(wrong) for x in data]), reference)


@pytest.mark.thin(3)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("wrong", [F32, F64], ids=["float32", "float64"])
@on_ranks
def test_a_root_whose_parameters_all_lie_in_groups_of_their_own_is_held_to_the_policy(rank, order, wrong):
    def wrap(model):
        for module in (model.embed, *model.blocks, model.head):
            fully_shard(module, mesh=mesh(), mp_policy=half(cast_forward_inputs=False))
        return fully_shard(model, mesh=mesh(), mp_policy=half(cast_forward_inputs=False))

    data = batches(rank, BF16)
    model = build(Net, wrap, order, mode="strict")
    assert same(train(model, data), train(build(Net, wrap), data))
    error = refusal(lambda: model(data[0].to(wrong)))
    assert (error.argument, error.actual, error.expected) == ("x", wrong, BF16)


@pytest.mark.parametrize("order", ORDERS)
@on_ranks
def test_the_policy_of_fsdp2_casts_a_float64_input_before_a_guard_can_see_it(rank, order):
    model = build(Net, nested(mp_policy=half()), order, mode="strict")
    data = batches(rank, F64)
    assert same(train(model, data), train(build(Net, nested(mp_policy=half())), data))


class TwoBlocks(nn.Sequential):
    def __init__(self):
        super().__init__(Block(), Block())


@pytest.mark.thin(4)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dtype", [F32, BF16, F64], ids=str)
@on_ranks
def test_a_container_over_blocks_that_cast_their_own_inputs_takes_any(rank, order, dtype):
    def wrap(model):
        for block in model:
            fully_shard(block, mesh=mesh(), mp_policy=half())
        return model

    data = batches(rank, dtype)
    model = build(TwoBlocks, wrap, order, mode="strict")
    assert same(train(model, data), train(build(TwoBlocks, wrap), data))
    assert dtypeguard.casts() == []


class BornWrong(Block):
    def forward(self, x):
        return super().forward(x.double())


class Blocks(nn.Sequential):
    def __init__(self):
        super().__init__(Block(), BornWrong())


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("policy", [MixedPrecisionPolicy(), half()], ids=["no policy", "bfloat16"])
@on_ranks
def test_what_is_born_wrong_inside_fsdp2_is_named_with_its_module(rank, policy, order):
    def wrap(model):
        for block in model:
            fully_shard(block, mesh=mesh(), mp_policy=policy)
        return fully_shard(model, mesh=mesh(), mp_policy=policy)

    model = build(Blocks, wrap, order, mode="strict", depth="all")
    error = refusal(lambda: model(batches(rank)[0]))
    assert (error.actual, error.expected) == (F64, policy.param_dtype or F32)
    assert error.module_path.endswith("Blocks.1.norm")


@pytest.mark.thin(3)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("policy", [MixedPrecisionPolicy(), half()], ids=["no policy", "bfloat16"])
@on_ranks
def test_fsdp2_accumulates_gradients_without_sync(rank, policy, order):
    def last(model, yes):
        model.set_requires_gradient_sync(yes)
        model.set_is_last_backward(yes)
        return contextlib.nullcontext()

    data, wrap = batches(rank, count=4), nested(mp_policy=policy)
    model = build(Net, wrap, order, mode="strict", depth="all")
    assert same(accumulate(model, data, last), accumulate(build(Net, wrap), data, last))
    assert dtypeguard.casts() == []


@pytest.mark.thin(4)
@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("order", ["meta", "before", "after", "filled"])
@on_ranks
def test_a_model_may_be_born_on_meta_and_filled_when_sharded(rank, order, depth):
    full = build(Net, lambda model: model).state_dict()

    def filled(order):
        with torch.device("meta"):
            model = Net()
        hold = {"meta": 0, "before": 1, "after": 2, "filled": 3}.get(order)
        for n, step in enumerate(
            [
                lambda: None,
                lambda: nested(mp_policy=half())(model),
                lambda: model.to_empty(device="cpu"),
                lambda: set_model_state_dict(model, full, options=StateDictOptions(full_state_dict=True)),
            ]
        ):
            step()
            if n == hold:
                guard(model, mode="strict", depth=depth)
        return model

    model = filled(order)
    assert is_guarded(model)
    assert same(train(model, batches(rank)), train(filled(None), batches(rank)))
    assert dtypeguard.casts() == []


@pytest.mark.parametrize("order", ORDERS)
@on_ranks
def test_a_full_state_dict_of_fsdp2_is_that_of_the_unguarded_model(rank, order):
    wrap, options = nested(mp_policy=half()), StateDictOptions(full_state_dict=True, cpu_offload=True)
    plain, model = build(Net, wrap), build(Net, wrap, order, mode="strict", depth="all")
    train(plain, batches(rank))
    train(model, batches(rank))
    wanted, found = (get_model_state_dict(m, options=options) for m in (plain, model))
    assert list(found) == list(wanted) == (list(Net().state_dict()) if rank == 0 else [])
    assert rank == 1 or same([*found.values()], [*wanted.values()])
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

    wrap = nested(mp_policy=half())
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


@pytest.mark.thin(4)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("depth", [*DEPTHS, "boundary"])
@on_ranks
def test_a_guard_taken_off_leaves_fsdp2_at_work(rank, order, depth):
    wrap = nested(mp_policy=half())
    plain, model = build(Net, wrap), build(Net, wrap, order, mode="strict", depth=depth)
    assert same(train(model, batches(rank)), train(plain, batches(rank)))
    unguard(model)
    assert isinstance(model, FSDPModule)
    assert isinstance(model, Net)
    assert not any(isinstance(module, dtypeguard.GuardedModule) for module in model.modules())
    assert type(model).__name__ == type(plain).__name__
    assert same(train(model, batches(rank)), train(plain, batches(rank)))


@pytest.mark.thin(3)
@pytest.mark.parametrize("recipe", ["no policy", "bfloat16", "bfloat16, never resharded", "bfloat16, inputs not cast"])
@on_ranks
def test_a_guard_may_come_and_be_replaced_between_steps(rank, recipe):
    data = batches(rank, given(recipe), count=1)
    plain, model = build(Net, FSDP[recipe]), build(Net, FSDP[recipe])
    assert same(train(model, data), train(plain, data))
    for depth in ("all", "auto", "boundary"):
        with torch.no_grad():
            plain(data[0])
            model(data[0])
        guard(model, mode="strict", depth=depth)
        assert same(train(model, data), train(plain, data))
    assert dtypeguard.casts() == []


@pytest.mark.thin(4)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("recipe", ["no policy", "bfloat16", "bfloat16, inputs not cast"])
@on_ranks
def test_fsdp2_evaluates_a_guarded_model(rank, recipe, order):
    data = batches(rank, given(recipe))
    plain, model = build(Net, FSDP[recipe]).eval(), build(Net, FSDP[recipe], order, mode="strict", depth="all").eval()
    for context in (torch.no_grad, torch.inference_mode):
        with context():
            assert torch.equal(model(data[0]), plain(data[0]))
    plain.unshard(), model.unshard()
    with torch.no_grad():
        assert torch.equal(model(data[1]), plain(data[1]))
    plain.reshard(), model.reshard()
    with torch.no_grad():
        assert torch.equal(model(data[1]), plain(data[1]))


class Annotated(Net):
    @dtypeguard.enforce
    def forward(self, x: Float[Tensor, "batch 8"]) -> Float[Tensor, "batch 4"]:
        return super().forward(x)


@pytest.mark.thin(3)
@pytest.mark.parametrize("order", [None, "before", "after"])
@pytest.mark.parametrize("recipe", ["no policy", "bfloat16, flat", "bfloat16", "bfloat16, inputs not cast", "prefetch"])
@on_ranks
def test_an_annotated_model_trains_in_fsdp2(rank, recipe, order):
    dtypeguard.set_mode("strict")
    data = batches(rank, given(recipe))
    assert same(train(build(Annotated, FSDP[recipe], order), data), train(build(Net, FSDP[recipe]), data))
    assert dtypeguard.casts() == []


class Stack(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))


@pytest.mark.parametrize("order", ORDERS)
@on_ranks
def test_a_sharded_guarded_container_can_be_sliced(rank, order):
    model = build(Stack, lambda model: fully_shard(nn.Sequential(*model), mesh=mesh()), order, mode="strict")
    assert isinstance(model, FSDPModule)
    assert [*model[:2]] == [model[0], model[1]]


@on_ranks
def test_fsdp2_refuses_to_be_copied_guarded_or_not(rank):
    model = build(Net, flat(), "before", mode="strict")
    with pytest.raises(AssertionError, match="does not support deepcopy"):
        copy.deepcopy(model)
    assert same(train(model, batches(rank)), train(build(Net, flat()), batches(rank)))


# ---------------------------------------------------------------- DTensor


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


def plan(prefix="", out=None):
    """Tensor parallel attention and MLP; `out` is the layout of what they give back."""
    given = {} if out is None else {"output_layouts": out}
    attention = {f"{prefix}attention.{name}": ColwiseParallel() for name in "qkv"}
    mlp = {f"{prefix}mlp.up": ColwiseParallel(), f"{prefix}mlp.down": RowwiseParallel(**given)}
    return {**attention, f"{prefix}attention.o": RowwiseParallel(**given), **mlp}


def sequence(_):
    gather = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
    norms = {"first": SequenceParallel(), "second": SequenceParallel()}
    return {**norms, "attention": gather, "mlp": gather, **plan(out=Shard(1))}


MLP = {"up": ColwiseParallel(), "down": RowwiseParallel()}
TENSOR_PARALLEL = {
    "mlp": (Mlp, MLP),
    "mlp, DTensors inside": (Mlp, {"up": ColwiseParallel(use_local_output=False), "down": RowwiseParallel()}),
    "mlp, DTensors out": (Mlp, {"up": ColwiseParallel(), "down": RowwiseParallel(use_local_output=False)}),
    "layer": (Layer, plan()),
    "layer, sequence parallel": (Layer, sequence(None)),
}


def parallel(styles):
    return lambda model: parallelize_module(model, mesh(), styles)


def sentences(rank, recipe="", dtype=F32, seed=1):
    """The same on every rank, as tensor parallelism wants it; sequence parallel ranks have a part of the time axis."""
    generator = torch.Generator().manual_seed(seed)
    data = [torch.randn(2, 6, 8, generator=generator, dtype=F64).to(dtype) for _ in range(3)]
    return [x.chunk(2, 1)[rank] for x in data] if "sequence" in recipe else data


@pytest.mark.thin(4)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("recipe", TENSOR_PARALLEL)
@on_ranks
def test_tensor_parallel_trains_a_guarded_model_bit_for_bit(rank, recipe, order):
    cls, styles = TENSOR_PARALLEL[recipe]
    data = sentences(rank, recipe)
    reference = train(build(cls, parallel(styles)), data)
    for depth in DEPTHS:
        model = build(cls, parallel(styles), order, mode="strict", depth=depth)
        assert same(train(model, data), reference), depth
        assert is_guarded(model)
    assert dtypeguard.casts() == []


@pytest.mark.thin(6)
@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("recipe", TENSOR_PARALLEL)
@on_ranks
def test_a_wrong_input_of_tensor_parallel_is_named_or_repaired(rank, recipe, order, wrong):
    cls, styles = TENSOR_PARALLEL[recipe]
    odd = WRONG[wrong](rank)
    data = sentences(rank, recipe, F64 if odd else F32)
    reference = train(build(cls, parallel(styles)), sentences(rank, recipe))
    model = build(cls, parallel(styles), order)
    if odd:
        with dtypeguard.mode("strict"):
            error = refusal(lambda: model(data[0]))
        assert (error.argument, error.actual, error.expected) == ("x", F64, F32)
    with one_cast(odd):
        assert same(train(model, data), reference)
    assert [(c.argument, c.count) for c in dtypeguard.casts()] == [("x", 6)] * odd


PLACED = {"replicated": Replicate(), "sharded": Shard(0)}


@pytest.mark.thin(6)
@pytest.mark.parametrize("placement", PLACED)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("depth", DEPTHS)
@on_ranks
def test_a_replicated_model_trains_on_dtensors(rank, depth, order, placement):
    def wrap(model):
        return distribute_module(model, mesh())

    data = [distribute_tensor(x, mesh(), [PLACED[placement]]) for x in sentences(rank)]
    model = build(Mlp, wrap, order, mode="strict", depth=depth)
    assert same(train(model, data), train(build(Mlp, wrap), data))
    assert dtypeguard.casts() == []


@pytest.mark.thin(6)
@pytest.mark.parametrize("styles", [None, MLP], ids=["replicated model", "tensor parallel"])
@pytest.mark.parametrize("placement", PLACED)
@pytest.mark.parametrize("order", ORDERS)
@on_ranks
def test_a_wrong_dtensor_is_named_or_repaired_where_it_lies(rank, order, placement, styles):
    def wrap(model):
        return parallelize_module(model, mesh(), styles) if styles else distribute_module(model, mesh())

    placements = [PLACED[placement]]
    data = [distribute_tensor(x.double(), mesh(), placements) for x in sentences(rank)]
    reference = train(build(Mlp, wrap), [distribute_tensor(x, mesh(), placements) for x in sentences(rank)])
    model = build(Mlp, wrap, order, depth="boundary")
    with dtypeguard.mode("strict"):
        error = refusal(lambda: model(data[0]))
    assert (error.argument, error.actual, error.expected) == ("x", F64, F32)
    assert "x = f64[2,6,8]" in str(error)
    with one_cast():
        assert same(train(model, data), reference)
    assert [(c.argument, c.count) for c in dtypeguard.casts()] == [("x", 6)]


@pytest.mark.parametrize("placement", PLACED)
@on_ranks
def test_bytes_of_a_repaired_dtensor_are_those_of_its_local_part(rank, placement):
    model = guard(distribute_module(Mlp(), mesh()))
    x = distribute_tensor(sentences(rank, dtype=F64)[0], mesh(), [PLACED[placement]])
    with one_cast():
        model(x)
    assert [c.bytes for c in dtypeguard.casts()] == [x.to_local().float().nbytes]


@on_ranks
def test_a_partial_dtensor_is_repaired_as_it_is(rank):
    model = guard(distribute_module(Mlp(), mesh()))
    x = sentences(rank)[0]
    with CommDebugMode() as bare:
        unguard(model)(DTensor.from_local(x / 2, mesh(), [Partial()]))
    model = guard(model)
    with one_cast(), CommDebugMode() as traffic:
        y = model(DTensor.from_local(x.double() / 2, mesh(), [Partial()]))
    assert traffic.get_total_counts() == bare.get_total_counts()
    torch.testing.assert_close(y.full_tensor(), model(distribute_tensor(x, mesh(), [Replicate()])).full_tensor())


@on_ranks
def test_what_a_tensor_parallel_model_gives_goes_into_the_next_guarded_model(rank):
    model = build(Mlp, parallel(MLP), "after", mode="strict")
    plain = build(Mlp, parallel(MLP))
    x = sentences(rank)[0]
    assert isinstance(model(x), AsyncCollectiveTensor)
    follower = guard(nn.Linear(8, 8), mode="strict")
    assert torch.equal(follower(model(x)), unguard(follower)(plain(x)))
    assert dtypeguard.casts() == []
    narrow = guard(nn.Linear(8, 8).to(BF16))
    with one_cast():
        y = narrow(model(x))
    assert torch.equal(y, narrow(plain(x).to(BF16)))


@pytest.mark.slow
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("fullgraph", [False, True])
@on_ranks
def test_a_compiled_tensor_parallel_model_stays_one_graph(rank, order, fullgraph):
    def wrap(model):
        return torch.compile(parallelize_module(model, mesh(), plan()), backend="aot_eager", fullgraph=fullgraph)

    reference = train(build(Layer, wrap), sentences(rank))
    assert same(train(build(Layer, wrap, order, mode="strict"), sentences(rank)), reference)
    with one_cast():
        assert same(train(build(Layer, wrap, order), sentences(rank, dtype=F64)), reference)


@pytest.mark.parametrize("placement", PLACED)
@on_ranks
def test_a_repair_of_a_dtensor_makes_no_collective_and_brings_gradients_home(rank, placement):
    model = build(Mlp, lambda model: distribute_module(model, mesh()), "after")
    x = distribute_tensor(sentences(rank)[0], mesh(), [PLACED[placement]])
    wrong = distribute_tensor(sentences(rank)[0].double(), mesh(), [PLACED[placement]]).requires_grad_()
    with CommDebugMode() as right_traffic:
        model(x)
    with CommDebugMode() as traffic, one_cast():
        y = model(wrong)
    assert traffic.get_total_counts() == right_traffic.get_total_counts()
    y.full_tensor().sum().backward()
    assert isinstance(wrong.grad, DTensor)
    assert wrong.grad.dtype is F64
    assert wrong.grad.placements == wrong.placements


@pytest.mark.parametrize("placement", PLACED)
@on_ranks
def test_a_dtensor_that_half_precision_cannot_hold_is_refused_like_a_tensor(rank, placement):
    model = guard(distribute_module(nn.Linear(8, 2).to(torch.float16), mesh()))
    x = torch.zeros(2, 8)
    x[rank, 0] = x[1 - rank, 0] = torch.finfo(F32).min
    with pytest.raises(dtypeguard.CastError, match="finite values of it become infinite in float16"):
        guard(nn.Linear(8, 2).to(torch.float16))(x)
    with pytest.raises(dtypeguard.CastError, match="finite values of it become infinite in float16"):
        model(distribute_tensor(x, mesh(), [PLACED[placement]]))


@on_ranks
def test_what_torch_says_of_plain_tensors_among_dtensors_goes_through(rank):
    model = guard(distribute_module(Mlp(), mesh()), mode="strict")
    x = sentences(rank)[0]
    with pytest.raises(RuntimeError, match=r"got mixed torch\.Tensor and DTensor"):
        model(x)
    with pytest.raises(DtypeError, match="argument `x` is float64"):
        model(x.double())
    with implicit_replication():
        assert torch.equal(model(x).to_local(), model(distribute_tensor(x, mesh(), [Replicate()])).to_local())
        with pytest.raises(DtypeError, match="argument `x` is float64"):
            model(x.double())


@pytest.mark.parametrize("order", [None, "before", "after"])
@on_ranks
def test_axes_of_dtensors_are_those_of_the_whole_tensor(rank, order):
    dtypeguard.set_mode("strict")
    model = build(AnnotatedMlp, parallel(MLP), order)
    assert same(train(model, sentences(rank)), train(build(Mlp, parallel(MLP)), sentences(rank)))
    x = distribute_tensor(sentences(rank)[0], mesh(), [Shard(2)])
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


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Layer(), Layer()])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def both_ways(sizes):
    """Tensor parallel inside FSDP2."""

    def wrap(model):
        grid = init_device_mesh("cpu", sizes, mesh_dim_names=("data", "tensor"))
        for layer in model.layers:
            parallelize_module(layer, grid["tensor"], plan())
            fully_shard(layer, mesh=grid["data"], mp_policy=half())
        return fully_shard(model, mesh=grid["data"], mp_policy=half())

    return wrap


@pytest.mark.slow
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("sizes", [(1, 2), (2, 1)])
@on_ranks
def test_tensor_parallel_inside_fsdp2_trains_a_guarded_model_bit_for_bit(rank, sizes, order):
    data = sentences(rank, seed=1 + rank * (sizes[0] > 1))
    model = build(Layers, both_ways(sizes), order, mode="strict", depth="all")
    assert same(train(model, data), train(build(Layers, both_ways(sizes)), data))
    assert dtypeguard.casts() == []


@pytest.mark.slow
@pytest.mark.parametrize("order", ORDERS)
@on_ranks(world_size=4)
def test_four_ranks_shard_both_ways(rank, order):
    data = sentences(rank, seed=1 + rank // 2)
    model = build(Layers, both_ways((2, 2)), order, mode="strict", depth="all")
    assert same(train(model, data), train(build(Layers, both_ways((2, 2))), data))
    assert dtypeguard.casts() == []


# ---------------------------------------------------------------- FSDP1


def fsdp1(**options):
    return lambda model: FullyShardedDataParallel(model, device_id=torch.device("cpu"), **options)


EACH_BLOCK = {"auto_wrap_policy": ModuleWrapPolicy({Block})}
HALF = {"mixed_precision": MixedPrecision(param_dtype=BF16, reduce_dtype=F32)}
NOT_CAST = {
    "mixed_precision": MixedPrecision(param_dtype=BF16, cast_forward_inputs=False, cast_root_forward_inputs=False)
}
FSDP1 = {
    "flat": fsdp1(),
    "flat, original parameters": fsdp1(use_orig_params=True),
    "nested": fsdp1(**EACH_BLOCK),
    "nested, original parameters": fsdp1(use_orig_params=True, **EACH_BLOCK),
    "bfloat16, nested": fsdp1(**HALF, **EACH_BLOCK),
    "bfloat16, nested, original parameters": fsdp1(use_orig_params=True, **HALF, **EACH_BLOCK),
    "bfloat16, inputs not cast, flat": fsdp1(**NOT_CAST),
    "bfloat16, inputs not cast, flat, original parameters": fsdp1(use_orig_params=True, **NOT_CAST),
    "bfloat16, inputs not cast, nested": fsdp1(**NOT_CAST, **EACH_BLOCK),
    "bfloat16, inputs not cast, nested, original parameters": fsdp1(use_orig_params=True, **NOT_CAST, **EACH_BLOCK),
}


def flat_state(model):
    return [parameter.detach().clone() for parameter in model.parameters()]


def train_flat(model, data):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for x in data:
        optimizer.zero_grad()
        loss = model(x).float().square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [*losses, *flat_state(model)]


@pytest.mark.thin(6)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("recipe", FSDP1)
@on_ranks
def test_fsdp1_trains_a_guarded_model_bit_for_bit(rank, recipe, order):
    data = batches(rank, given(recipe))
    reference = train_flat(build(Net, FSDP1[recipe]), data)
    for depth in DEPTHS:
        model = build(Net, FSDP1[recipe], order, mode="strict", depth=depth)
        assert same(train_flat(model, data), reference), depth
        assert is_guarded(model), depth
    assert dtypeguard.casts() == []


@pytest.mark.thin(6)
@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("recipe", [name for name in FSDP1 if "bfloat16" not in name])
@on_ranks
def test_a_wrong_input_of_fsdp1_is_named_or_repaired(rank, recipe, order, wrong):
    odd = WRONG[wrong](rank)
    data = batches(rank, F64 if odd else F32)
    reference = train_flat(build(Net, FSDP1[recipe]), batches(rank))
    model = build(Net, FSDP1[recipe], order)
    with one_cast(odd):
        assert same(train_flat(model, data), reference)
    assert [(c.argument, c.count) for c in dtypeguard.casts()] == [("x", 3)] * odd
    if wrong == "all ranks":
        with dtypeguard.mode("strict"):
            error = refusal(lambda: model(data[0]))
        assert (error.argument, error.actual, error.expected) == ("x", F64, F32)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("recipe", [name for name in FSDP1 if "not cast, flat" in name])
@pytest.mark.parametrize("wrong", [F32, F64], ids=["float32", "float64"])
@on_ranks
def test_where_fsdp1_casts_no_inputs_they_are_held_to_its_dtype(rank, recipe, order, wrong):
    model = build(Net, FSDP1[recipe], order, mode="strict")
    error = refusal(lambda: model(batches(rank, wrong)[0]))
    assert (error.argument, error.actual, error.expected) == ("x", wrong, BF16)


def torch_says(call, text, note):
    """torch's own error, with a note on the module that it left: what is promised where no guard can see."""
    with pytest.raises(RuntimeError, match=text) as caught:
        call()
    assert not isinstance(caught.value, dtypeguard.DtypeGuardError)
    assert any(note in line for line in caught.value.__notes__)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("recipe", [name for name in FSDP1 if "not cast, nested" in name])
@pytest.mark.parametrize("wrong", [F32, F64], ids=["float32", "float64"])
@on_ranks
def test_where_nested_fsdp1_casts_no_inputs_torch_says_so_itself(rank, recipe, order, wrong):
    model = build(Net, FSDP1[recipe], order, mode="strict")
    torch_says(lambda: model(batches(rank, wrong)[0]), "must have the same dtype", "raised inside Net")


@pytest.mark.parametrize("order", ORDERS)
@on_ranks
def test_what_is_born_wrong_inside_fsdp1_is_named_with_its_module(rank, order):
    model = build(Blocks, fsdp1(use_orig_params=True), order, mode="strict", depth="all")
    error = refusal(lambda: model(batches(rank)[0]))
    assert (error.actual, error.expected) == (F64, F32)
    assert error.module_path.endswith("Blocks.1.norm")


@pytest.mark.parametrize(
    ("order", "note"), [("before", "raised inside Blocks.1.norm"), ("after", "raised inside Blocks")]
)
@on_ranks
def test_what_is_born_wrong_among_flat_parameters_of_fsdp1_torch_says_itself(rank, order, note):
    model = build(Blocks, fsdp1(use_orig_params=False), order, mode="strict", depth="all")
    torch_says(lambda: model(batches(rank)[0]), "must share same datatype", note)


@on_ranks
def test_a_guard_taken_off_leaves_fsdp1_at_work(rank):
    for keep in (False, True):
        plain = build(Net, fsdp1(use_orig_params=keep))
        model = build(Net, fsdp1(use_orig_params=keep), "before", mode="strict", depth="all")
        assert same(train_flat(model, batches(rank)), train_flat(plain, batches(rank)))
        assert not is_guarded(unguard(model))
        assert same(train_flat(model, batches(rank)), train_flat(plain, batches(rank)))


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


def pipeline(rank, schedule, data, order=None, **options):
    """Three steps of a two-stage pipeline with a stage on each rank: losses on the last, the stage's parameters."""

    def wrap(part):
        stage = PipelineStage(part, rank, 2, torch.device("cpu"))
        made.append(schedule(stage, n_microbatches=2, loss_fn=nn.functional.mse_loss))
        return part

    made = []
    part = build(BackHalf if rank else FrontHalf, wrap, order, **options)
    optimizer = torch.optim.AdamW(part.parameters(), lr=0.01)
    losses = []
    for x in data:
        optimizer.zero_grad()
        made[0].step(*([] if rank else [x]), **({"target": torch.zeros(6, 4), "losses": losses} if rank else {}))
        optimizer.step()
    return [*(loss.detach() for loss in losses), *state(part)]


def wide_batches(dtype=F32):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(6, 8, generator=generator, dtype=F64).to(dtype) for _ in range(3)]


stages_agree = since("torch", "2.10", "two stages on gloo disagree about what they tell each other")


@stages_agree
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("schedule", [ScheduleGPipe, Schedule1F1B])
@on_ranks
def test_a_pipeline_of_guarded_stages_trains_bit_for_bit(rank, schedule, order):
    reference = pipeline(rank, schedule, wide_batches())
    for depth in DEPTHS:
        assert same(pipeline(rank, schedule, wide_batches(), order, mode="strict", depth=depth), reference), depth
    assert dtypeguard.casts() == []


@stages_agree
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("schedule", [ScheduleGPipe, Schedule1F1B])
@on_ranks
def test_a_wrong_input_of_a_pipeline_is_repaired_by_its_first_stage(rank, schedule, order):
    reference = pipeline(rank, schedule, wide_batches())
    with one_cast(rank == 0):
        assert same(pipeline(rank, schedule, wide_batches(F64), order), reference)
    assert [(c.argument, c.from_dtype, c.to_dtype) for c in dtypeguard.casts()] == [("x", F64, F32)] * (rank == 0)


@on_ranks
def test_a_wrong_input_of_a_pipeline_is_named_by_its_first_stage(rank):
    stage = PipelineStage(guard(FrontHalf(), mode="strict"), 0, 1, torch.device("cpu"), group=dist.new_group([0]))
    if rank == 0:
        error = refusal(lambda: ScheduleGPipe(stage, n_microbatches=2).step(wide_batches(F64)[0]))
        assert (error.argument, error.actual, error.expected) == ("x", F64, F32)


@since("torch", "2.13", "what fills torch's probe cannot be replaced at one place")
@on_ranks
def test_a_later_stage_of_a_pipeline_may_compute_in_half_precision(rank):
    """torch probes a stage with uninitialised tensors, in which any number may stand."""

    def probe(meta, device):
        return torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype, device=device).fill_(1e30)

    part = guard(BackHalf().to(torch.float16) if rank else FrontHalf())
    stage = PipelineStage(part, rank, 2, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=lambda y, target: y.float().square().mean())
    with one_cast(rank == 1), pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch.distributed.pipelining._utils._make_tensor_from_meta", probe)
        if rank == 0:
            schedule.step(wide_batches()[0])
        else:
            losses = []
            schedule.step(target=torch.zeros(6, 4), losses=losses)
            assert all(loss.isfinite() for loss in losses)


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
    "dtype of every parameter": (lambda: Counted().bfloat16(), ["a.weight", "f32[4,3]", "bf16[4,3]"]),
    "dtype of a buffer": (lambda: edited(lambda m: m._buffers.update(mean=m.mean.double())), ["mean", "f64[5]"]),
    "dtype of an unsaved buffer": (
        lambda: edited(lambda m: m._buffers.update(cache=m.cache.int())),
        ["cache", "i64[2,2]", "i32[2,2]"],
    ),
    "shape": (lambda: Counted(6), ["a.weight", "f32[4,3]", "f32[6,3]", "a.bias"]),
    "number of axes": (lambda: edited(lambda m: m._buffers.update(mean=torch.zeros(5, 1))), ["mean", "f32[5,1]"]),
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
    "dtype": (lambda: batch(image=torch.zeros(2, 3, dtype=F64)), ["image", "f32[2,3]", "f64[2,3]"]),
    "shape": (lambda: batch(image=torch.zeros(1, 3)), ["image", "f32[2,3]", "f32[1,3]"]),
    "device": (lambda: batch(image=torch.zeros(2, 3, device="meta")), ["image", "cpu", "meta"]),
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
    "empty": (dict, ["image", "missing"]),
    "a tensor for a dict": (lambda: torch.zeros(2, 3), ["f32[2,3]"]),
    "a named tuple": (lambda: Point(torch.zeros(2), torch.zeros(2)), ["x", "f32[2]"]),
    "a model": (Counted, ["a.weight"]),
}


def disagreement(value, **options):
    with pytest.raises(RankError) as caught:
        check_ranks(value, **options)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), str(again)) == (RankError, str(caught.value))
    return str(caught.value)


@pytest.mark.parametrize("case", ODD_MODELS)
@on_ranks
def test_models_that_differ_are_told_on_every_rank(rank, case):
    make, says = ODD_MODELS[case]
    text = disagreement(make() if rank == 1 else Counted(), timeout=10)
    assert all(word in text for word in [*says, "rank 0", "rank 1"])
    check_ranks(Counted(), timeout=10)


@pytest.mark.parametrize("case", ODD_BATCHES)
@on_ranks
def test_batches_that_differ_are_told_on_every_rank(rank, case):
    make, says = ODD_BATCHES[case]
    text = disagreement(make() if rank == 1 else batch(), timeout=10)
    assert all(word in text for word in [*says, "rank 0", "rank 1"])
    check_ranks(batch(), timeout=10)


@on_ranks
def test_the_text_says_which_rank_has_what(rank):
    text = disagreement(Counted(dtype=F64 if rank else F32))
    assert re.search(r"a\.weight +f32\[4,3\] on cpu \(rank 0\).*f64\[4,3\] on cpu \(rank 1\)", text)
    assert "b.weight" not in text
    assert "2 of 6" in text


ALIKE = {
    "model": Counted,
    "guarded model": lambda: guard(Counted(), depth="all"),
    "lazy model": lambda: nn.LazyLinear(3),
    "model on meta": lambda: Counted().to("meta"),
    "module without tensors": nn.ReLU,
    "batch": batch,
    "tensor": lambda: torch.zeros(3),
    "scalar tensor": lambda: torch.tensor(1.0),
    "empty batch": dict,
    "nothing": lambda: None,
    "named tuple": lambda: Point(torch.zeros(2), [None, "text"]),
    "packed sequence": lambda: nn.utils.rnn.pack_sequence([torch.zeros(3), torch.zeros(2)]),
    "keys of all kinds": lambda: {1: torch.zeros(1), ("a", 2): torch.zeros(1), None: torch.zeros(1), "ü": 0},
    "sparse tensor": lambda: torch.eye(3).to_sparse(),
    "nested tensor": lambda: torch.nested.as_nested_tensor([torch.zeros(2), torch.zeros(3)], layout=torch.jagged),
    "quantized and float8": lambda: [torch.zeros(2).to(torch.float8_e4m3fn), torch.zeros(2, dtype=torch.complex64)],
    "the same tensor twice": lambda: [torch.zeros(2)] * 2,
    "a list in itself": lambda: (lambda cycle: cycle.append(cycle) or cycle)([torch.zeros(2)]),
}


@pytest.mark.parametrize("what", ALIKE)
@on_ranks
def test_what_is_alike_on_all_ranks_passes(rank, what):
    assert check_ranks(ALIKE[what](), timeout=10) is None


@on_ranks
def test_values_strides_and_gradients_are_nobodys_business(rank):
    check_ranks(nn.Linear(3, 3, dtype=F64))
    x = torch.randn(4, 4)
    check_ranks([x.T if rank else x.clone(), x.requires_grad_(rank == 1), nn.Parameter(x) if rank else x.detach()])


@on_ranks
def test_sizes_may_differ_where_shapes_do_not_count(rank):
    check_ranks({"x": torch.zeros(2 + rank, 3), "y": [torch.zeros(rank)]}, shapes=False)
    text = disagreement({"x": torch.zeros(2 + rank, 3, dtype=F64 if rank else F32)}, shapes=False)
    assert all(word in text for word in ["x", "float32", "float64", "rank 0", "rank 1"])


@on_ranks
def test_a_ragged_list_of_texts_is_no_tensor_and_may_differ(rank):
    check_ranks({"x": torch.zeros(2 + rank), "captions": ["a"] * (2 + rank)}, shapes=False, timeout=10)


@on_ranks
def test_a_lazy_model_differs_from_one_that_has_been_called(rank):
    model = nn.LazyLinear(3)
    if rank == 1:
        model(torch.zeros(1, 2))
    assert "weight" in disagreement(model)


@on_ranks
def test_it_may_be_called_again_and_again_and_leaves_nothing_in_the_store(rank):
    store = dist.distributed_c10d._get_default_store()
    check_ranks(Counted())
    dist.barrier()
    before = store.num_keys()
    dist.barrier()
    for n in range(50):
        if n % 10 == 0:
            disagreement(Counted(hidden=3 + rank))
        check_ranks([torch.zeros(n)])
    dist.barrier()
    assert store.num_keys() <= before + 2


@on_ranks
def test_it_is_no_collective_and_collectives_go_on_after_it(rank):
    with CommDebugMode() as traffic:
        check_ranks(Counted())
        disagreement(Counted(hidden=3 + rank))
    assert traffic.get_total_counts() == 0
    x = torch.full((3,), float(rank))
    dist.all_reduce(x)
    assert x.tolist() == [1.0] * 3


@on_ranks
def test_contexts_do_not_matter(rank):
    for context in (torch.no_grad(), torch.inference_mode(), torch.autocast("cpu"), torch.device("meta")):
        with context:
            check_ranks(Counted(), timeout=10)
            disagreement(batch(image=torch.zeros(2 + rank)), timeout=10)


WRAPPED = {
    "DDP": DistributedDataParallel,
    "guarded DDP": lambda model: guard(DistributedDataParallel(model)),
    "FSDP2": nested(mp_policy=half()),
    "guarded FSDP2": lambda model: guard(nested()(model), depth="all"),
    "unevenly sharded": flat(),
    "tensor parallel": lambda model: parallelize_module(model, mesh(), {"embed": ColwiseParallel()}),
}


@pytest.mark.parametrize("how", WRAPPED)
@on_ranks
def test_wrapped_models_are_compared_too(rank, how):
    model = WRAPPED[how](Net())
    check_ranks(model, timeout=10)
    model.extra = nn.Linear(1 + rank, 1)
    text = disagreement(model, timeout=10)
    assert all(word in text for word in ["extra.weight", "f32[1,1]", "f32[1,2]"])


@on_ranks
def test_a_mistake_that_ddp_would_hang_on_is_named_first(rank):
    model = Net()
    if rank == 1:
        model.blocks.append(Block())
    text = disagreement(model)
    assert "blocks.2.norm.weight" in text
    check_ranks(model.blocks[:2])


@on_ranks
def test_a_rank_that_is_late_is_waited_for(rank):
    if rank == 1:
        time.sleep(1)
    start = time.monotonic()
    check_ranks(Counted(), timeout=10)
    assert time.monotonic() - start < 5


@on_ranks
def test_a_rank_that_never_calls_is_named_in_time_and_both_are_in_step_again(rank):
    if rank == 0:
        start = time.monotonic()
        with pytest.raises(TimeoutError, match=r"rank 1\b"):
            check_ranks(Counted(), timeout=0.5)
        assert 0.3 < time.monotonic() - start < 4
    dist.barrier()
    check_ranks(Counted(), timeout=10)
    disagreement(Counted(hidden=3 + rank), timeout=10)


@on_ranks
def test_a_rank_that_calls_twice_waits_for_the_second_call_of_the_other(rank):
    check_ranks(Counted(), timeout=10)
    if rank == 0:
        with pytest.raises(TimeoutError, match=r"rank 1\b"):
            check_ranks(batch(), timeout=0.5)
    dist.barrier()
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


@pytest.mark.slow
@on_ranks(world_size=3)
def test_a_rank_without_patience_does_not_disturb_those_that_have_it(rank):
    time.sleep(rank == 2)
    refused = until_all_are_there(Counted(), 0.2 if rank == 0 else 20)
    assert refused > 0 if rank == 0 else refused == 0
    disagreement(Counted(hidden=3 + rank), timeout=10)


@on_ranks
def test_a_rank_that_raises_its_own_error_before_is_named_by_the_other(rank):
    if rank == 1:
        with pytest.raises(RuntimeError, match="shape"):
            check_ranks(Counted().a(torch.zeros(1, 4)))
    else:
        with pytest.raises(TimeoutError, match=r"rank 1\b"):
            check_ranks(Counted(), timeout=0.5)
    dist.barrier()
    check_ranks(Counted(), timeout=10)


@on_ranks
def test_threads_may_check_at_the_same_time(rank):
    failed = []

    def check(n):
        try:
            for _ in range(20):
                check_ranks(Counted(), timeout=10)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=check, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


@on_ranks
def test_groups_of_the_same_ranks_do_not_hear_each_other(rank):
    groups = [dist.new_group([0, 1]) for _ in range(2)]
    failed = []

    def check(n):
        try:
            for _ in range(20):
                time.sleep(0.001 * ((n + rank) % 2))
                check_ranks([torch.zeros(n + 1)], group=groups[n], timeout=10)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=check, args=(n,)) for n in range(2)]
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
    alike = time.monotonic() - start
    start = time.monotonic()
    text = disagreement([x.double() for x in many] if rank else many)
    differ = time.monotonic() - start
    assert "10000" in text
    assert len(text) < 2000
    assert max(alike, differ) < 10
    return alike, differ


@pytest.mark.slow
@on_ranks(world_size=3)
def test_the_odd_one_of_three_ranks_is_told_on_all(rank):
    for odd in range(3):
        text = disagreement(Counted(dtype=F64 if rank == odd else F32), timeout=10)
        most = ", ".join(str(n) for n in range(3) if n != odd)
        assert re.search(rf"f32\[4,3\] on cpu \(ranks {most}\)", text)
        assert re.search(rf"f64\[4,3\] on cpu \(rank {odd}\)", text)
    text = disagreement([torch.zeros(rank)], timeout=10)
    assert all(f"f32[{n}] on cpu (rank {n})" in text for n in range(3))


@pytest.mark.slow
@on_ranks(world_size=3)
def test_a_group_compares_its_own_ranks_and_nobody_else(rank):
    group = dist.new_group([0, 2])
    other = dist.new_group([1, 2])
    if rank != 1:
        check_ranks(Counted(), group=group, timeout=10)
        text = disagreement(Counted(dtype=F64 if rank else F32), group=group, timeout=10)
        assert "rank 2" in text
        assert "rank 1" not in text
    if rank != 0:
        check_ranks(batch(), group=other, timeout=10)
    check_ranks([torch.zeros(1)], timeout=10)


@pytest.mark.slow
@on_ranks(world_size=3)
def test_all_missing_ranks_are_named(rank):
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
@pytest.mark.slow
@pytest.mark.parametrize("after", [0, 2], ids=["before the call", "meanwhile"])
@pytest.mark.parametrize(("dead", "says"), [(1, "rank 1 said nothing"), (0, "the rank that keeps it")])
def test_a_rank_that_is_dead_is_told_by_the_other_in_time(dead, says, after):
    outcomes = ranks.run(outlives, timeout=30, dead=dead, after=after)
    assert isinstance(outcomes[dead].error, ranks.RankDied)
    text, took = outcomes[1 - dead].value
    assert says in text
    assert took < 5


def move(rank, store):
    """To a new process group, in the same processes."""
    dist.barrier()
    dist.destroy_process_group()
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)


def reborn(rank, port):
    if rank == 0:
        with pytest.raises(TimeoutError):
            check_ranks(Counted(), timeout=0.2)
    move(rank, dist.TCPStore("127.0.0.1", port, 2, is_master=rank == 0))
    check_ranks(Counted(), timeout=5)
    disagreement([torch.zeros(rank)], timeout=5)


@pytest.mark.slow
def test_a_new_process_group_starts_afresh_whoever_waited_in_vain_before():
    try:
        ranks.values(ranks.run(reborn, port=ranks.free_port()))
    finally:
        ranks.stop(2)


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


@pytest.mark.slow
def test_it_is_reached_from_the_package():
    code = "import torch, dtypeguard; dtypeguard.distributed.check_ranks(torch.nn.Linear(3, 1))"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=60)
