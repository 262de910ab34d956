"""Audits on several ranks: what they bring to a collective is compared before it runs, and nothing else changes."""

import contextlib
import logging
import os
import time
import warnings

import pytest
import ranks
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from ranks import on_ranks
from support import BF16, F16, F32
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from versions import since

import dtypeguard
from dtypeguard._rules.dg7 import _meeting
from dtypeguard._rules.dg7 import dg701_ranks_disagree as _collectives


def quiet(test):
    """Without PyTorch's own deprecations, of collectives that programs use nevertheless."""
    return pytest.mark.filterwarnings("ignore:`torch.distributed.*deprecated.*:FutureWarning")(test)


def nothing_stays():
    assert _collectives._audits == []
    assert _collectives._groups == {}
    assert len(_collectives._backends) == 0
    assert dist.all_reduce is dist.distributed_c10d.all_reduce
    store = _collectives._own_room()
    assert store.get(f"sign/{dist.get_rank()}") == b""


def findings(report):
    assert report.faults == []
    return [(f.severity, f.message, f.source) for f in report.findings if f.rule == "DG701"]


def assert_nothing(report):
    found = findings(report)
    assert found == []


# ---------------------------------------------------------------- what must not be found


def all_kinds(rank):
    x, size = torch.arange(4.0) + rank, dist.get_world_size()
    out = []

    def keep(*tensors):
        out.extend(t.clone() for t in tensors)

    dist.all_reduce(x)
    keep(x)
    work = dist.all_reduce(x, op=dist.ReduceOp.MAX, async_op=True)
    work.wait()
    dist.broadcast(x, 1)
    dist.reduce(x, 0)
    keep(x)
    gathered = [torch.empty(4) for _ in range(size)]
    dist.all_gather(gathered, x)
    keep(*gathered)
    whole = torch.empty(4 * size)
    dist.all_gather_into_tensor(whole, x)
    part, parts = torch.empty(2), torch.empty(4)
    dist.reduce_scatter_tensor(part, x)
    dist.reduce_scatter(parts, [x.clone() for _ in range(size)])
    keep(whole, part, parts)
    dist.gather(x, gathered if rank == 0 else None, 0)
    dist.scatter(x, gathered if rank == 1 else None, 1)
    keep(x)
    dist.all_to_all(gathered, [x.clone() for _ in range(size)])
    dist.all_to_all_single(parts, x)
    keep(*gathered, parts)
    dist.all_reduce_coalesced([x, parts])
    dist.barrier()
    dist.monitored_barrier()
    return out


def uneven_parts(rank):
    sizes = [[1, 3], [2, 0]]  # what rank r sends to rank s
    given = torch.arange(2.0 * sum(sizes[rank])).reshape(-1, 2)
    taken = torch.empty(sizes[0][rank] + sizes[1][rank], 2)
    dist.all_to_all_single(taken, given, [row[rank] for row in sizes], sizes[rank])
    return [taken]


def objects(rank):
    every = [None, None]
    dist.all_gather_object(every, {"rank": rank, "text": "x" * 10**rank})
    some = [("x" * 500 if rank == 0 else None), rank]
    dist.broadcast_object_list(some, 0)
    one = [None]
    dist.scatter_object_list(one, ["a", "b" * 99] if rank == 0 else None, 0)
    dist.gather_object("y" * (rank + 1), [None, None] if rank == 0 else None, 0)
    return [len(str(every)), some, one]


def subgroups(rank):
    mine = [dist.new_group([r]) for r in range(2)][rank]
    both = dist.new_group([0, 1])
    x = torch.ones(rank + 1, dtype=(F16, BF16)[rank])
    dist.all_reduce(x, group=mine)  # alone in its group
    y = torch.ones(3)
    dist.all_reduce(y, group=both)
    dist.all_reduce(y)
    return [x, y]


def point_to_point(rank):
    x = torch.full((3,), float(rank))
    if rank == 0:
        dist.send(x, 1)
        dist.send(x.half(), 1)
    else:
        dist.recv(x, 0)
        dist.recv(torch.empty(3, dtype=F16), 0)
    dist.all_reduce(x)
    return [x]


def functional_ones(rank):
    x = torch.arange(4.0) + rank
    group = dist.group.WORLD
    return [
        functional.all_reduce(x, "sum", group) + 0,
        functional.all_gather_tensor(x, 0, group) + 0,
        functional.reduce_scatter_tensor(x, "sum", 0, group) + 0,
        functional.broadcast(x, 0, group) + 0,
        functional.all_to_all_single(x, [2, 2], [2, 2], group) + 0,
        *[t + 0 for t in functional.all_reduce_coalesced([x, x], "sum", group)],
    ]


def net():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def steps(rank, model, count=3):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(rank)
    for _ in range(count):
        optimizer.zero_grad()
        model(torch.randn(5, 4)).square().sum().backward()
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


def ddp(rank):
    return steps(rank, DistributedDataParallel(net(), bucket_cap_mb=1))


def ddp_with_uneven_inputs(rank):
    model = DistributedDataParallel(net()[0])
    with model.join():
        return steps(rank, model, 2 + 2 * rank)


def fsdp(rank):
    model = net()
    for part in (model[0], model[3], model):
        fully_shard(part, mesh=init_device_mesh("cpu", (2,)))
    return [p.to_local() for p in steps(rank, model)]


def sharded_tensors(rank):
    mesh = init_device_mesh("cpu", (2,))
    x = distribute_tensor(torch.arange(10.0).reshape(5, 2), mesh, [Shard(0)])  # unevenly
    return [(x @ x.t()).full_tensor(), x.sum().full_tensor()]


def other_shapes_of_one_size(rank):
    x = torch.ones((6,) if rank else (2, 3))
    dist.all_reduce(x)
    y = torch.ones(() if rank else (1, 1))
    dist.all_reduce(y)
    return [x.reshape(-1), y.reshape(-1)]


HEALTHY = [
    pytest.param(all_kinds, marks=since("torch", "2.13", "gloo has no all_to_all"), id="all_kinds"),
    uneven_parts, objects, subgroups, point_to_point, functional_ones, ddp, ddp_with_uneven_inputs, fsdp,
    sharded_tensors, other_shapes_of_one_size,
]  # fmt: skip


@pytest.mark.parametrize("program", HEALTHY, ids=lambda p: p.__name__)
@quiet
@on_ranks
def test_a_healthy_program_is_silent_and_computes_the_same(rank, program):
    alone = program(rank)
    with dtypeguard.audit() as report:
        watched = program(rank)
    assert_nothing(report)
    assert [f for f in report.findings if f.severity != "info"] == []
    for one, other in zip(alone, watched, strict=True):
        assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other
    nothing_stays()


# ---------------------------------------------------------------- what must be found


def dtypes(rank):
    x = torch.ones(4, dtype=(BF16, F16)[rank])
    dist.all_reduce(x)


def dtypes_at_once(rank):
    x = torch.ones(4, dtype=(BF16, F16)[rank])
    work = dist.all_reduce(x, async_op=True)
    work.wait()


def dtypes_of_a_broadcast(rank):
    x = torch.ones(2, 2, dtype=(torch.int32, F32)[rank])
    dist.broadcast(x, 0)


def dtypes_to_gather(rank):
    x = torch.ones(3, dtype=(torch.int32, F32)[rank])
    dist.all_gather([torch.empty_like(x), torch.empty_like(x)], x)


def dtypes_of_one_of_two(rank):
    x, y = torch.ones(3), torch.ones(2, dtype=(torch.int32, F32)[rank])
    dist.all_reduce(x)
    dist.all_reduce(y)


def dtypes_for_all(rank):
    x = torch.ones(4, dtype=(torch.int32, F32)[rank])
    dist.all_to_all_single(torch.empty_like(x), x)


def dtypes_functional(rank):
    x = torch.ones(4, dtype=(BF16, F16)[rank])
    functional.all_reduce(x, "sum", dist.group.WORLD) + 0


def dtypes_in_a_model(rank):
    model = net().to((BF16, F16)[rank])
    DistributedDataParallel(model)


def dtypes_of_gradients(rank):
    model = DistributedDataParallel(nn.Linear(4, 4, bias=False), bucket_cap_mb=1)

    def hook(state, bucket):
        buffer = bucket.buffer().to((BF16, F16)[rank])
        return dist.all_reduce(buffer, async_op=True).get_future().then(lambda f: f.value()[0].float())

    model.register_comm_hook(None, hook)
    model(torch.ones(1, 4)).sum().backward()


def transposed(rank):
    x = torch.ones((2, 3) if rank else (3, 2))
    dist.all_reduce(x)


SAME_SIZE = [
    (dtypes, "all_reduce: rank 0 has bfloat16[4], rank 1 has float16[4]", "dist.all_reduce(x)"),
    (dtypes_at_once, "all_reduce: rank 0 has bfloat16[4], rank 1 has float16[4]", "async_op=True"),
    (dtypes_of_a_broadcast, "broadcast: rank 0 has int32[2, 2], rank 1 has float32[2, 2]", "dist.broadcast"),
    (dtypes_to_gather, "all_gather: rank 0 has int32[3], rank 1 has float32[3]", "dist.all_gather("),
    (dtypes_of_one_of_two, "all_reduce: rank 0 has int32[2], rank 1 has float32[2]", "dist.all_reduce(y)"),
    (dtypes_for_all, "all_to_all_single: rank 0 has int32[4], rank 1 has float32[4]", "dist.all_to_all_single"),
    (dtypes_functional, "all_reduce: rank 0 has bfloat16[4], rank 1 has float16[4]", "functional.all_reduce"),
    (dtypes_in_a_model, "broadcast: rank 0 has bfloat16[90], rank 1 has float16[90]", "DistributedDataParallel(model)"),
    (dtypes_of_gradients, "all_reduce: rank 0 has bfloat16[16], rank 1 has float16[16]", "dist.all_reduce(buffer"),
    (transposed, "all_reduce: rank 0 has float32[3, 2], rank 1 has float32[2, 3]", "dist.all_reduce(x)"),
]


@pytest.mark.parametrize(("program", "message", "source"), SAME_SIZE, ids=[row[0].__name__ for row in SAME_SIZE])
@quiet
@on_ranks
def test_ranks_that_disagree_are_told_on_every_rank(rank, program, message, source):
    with dtypeguard.audit() as report:
        program(rank)
    severity = "warning" if program is transposed else "error"
    ((found, said, line),) = findings(report)
    assert (found, said) == (severity, message)
    assert source in line
    dist.barrier()
    nothing_stays()


@pytest.mark.slow
@on_ranks(world_size=3)
def test_a_subgroup_names_its_global_ranks(rank):
    pair, other = dist.new_group([0, 2]), dist.new_group([1, 2])
    with dtypeguard.audit() as report:
        if rank != 0:
            dist.all_reduce(torch.ones(3), group=other)
        if rank != 1:
            x = torch.ones(4, dtype=F16 if rank == 2 else BF16)
            dist.all_reduce(x, group=pair)
    expected = [
        ("error", "all_reduce: rank 0 has bfloat16[4], rank 2 has float16[4]", "dist.all_reduce(x, group=pair)")
    ]
    assert findings(report) == (expected if rank != 1 else [])


# ---------------------------------------------------------------- what hangs, aborts or raises


def sizes(rank, folder):
    """gloo ends a process, or raises; what was found is in the log before."""
    handler = logging.FileHandler(os.path.join(folder, f"log{rank}"))
    logging.getLogger("dtypeguard").addHandler(handler)
    with dtypeguard.audit() as report:
        dist.all_reduce(torch.ones(4 + 1000 * rank))
    raise AssertionError(f"it lived: {report}")


def test_of_ranks_that_do_not_survive_the_log_tells(tmp_path):
    try:
        outcomes = ranks.run(sizes, folder=str(tmp_path), timeout=20)
    finally:
        ranks.stop(2)
    assert not any("it lived" in outcome.text for outcome in outcomes)
    for rank in range(2):
        told = (tmp_path / f"log{rank}").read_text()
        assert "DG701 all_reduce: rank 0 has float32[4], rank 1 has float32[1004]" in told
        assert "in sizes" in told


@on_ranks
def test_an_exception_ends_the_audit_and_the_finding_stays(rank):
    with contextlib.suppress(ZeroDivisionError), dtypeguard.audit() as report:
        dtypes(rank)
        raise ZeroDivisionError
    assert report.error.startswith("ZeroDivisionError")
    assert len(findings(report)) == 1
    nothing_stays()


# ---------------------------------------------------------------- who audits


@on_ranks
def test_an_audit_on_one_rank_only_finds_nothing_and_holds_nobody_up(rank):
    began = time.monotonic()
    if rank == 0:
        with dtypeguard.audit() as report:
            for _ in range(200):
                x = torch.ones(4)
                dist.all_reduce(x)
                assert x[0] == 2
        assert_nothing(report)
        nothing_stays()
    else:
        for _ in range(200):
            dist.all_reduce(torch.ones(4))
    assert time.monotonic() - began < _meeting.GRACE + 3


@on_ranks
def test_audits_that_begin_at_other_collectives_are_not_compared(rank):
    if rank == 0:
        dist.all_reduce(torch.ones(3))
    with dtypeguard.audit() as report:
        if rank == 1:
            dist.all_reduce(torch.ones(3))
        for n in range(5):
            dist.all_reduce(torch.ones(4 + n))
    assert_nothing(report)
    nothing_stays()


@on_ranks
def test_a_rank_that_is_late_finds_what_the_others_brought(rank):
    """The others go on without it after a while, and hear of it afterwards."""
    _meeting.SYNC = 0.2
    try:
        with dtypeguard.audit() as report:
            dist.all_reduce(torch.ones(3))
            if rank == 1:
                time.sleep(1)
            dtypes(rank)
    finally:
        _meeting.SYNC = 10.0
    assert len(findings(report)) == 1


@on_ranks
def test_collectives_of_two_groups_in_another_order(rank):
    """Legal where they are asynchronous; waiting for each other at the start would be a deadlock."""
    one, two = dist.new_group([0, 1]), dist.new_group([0, 1])
    began = time.monotonic()
    with dtypeguard.audit() as report:
        x, y = torch.ones(3), torch.ones(2)
        pairs = [(x, one), (y, two)]
        works = [dist.all_reduce(t, group=g, async_op=True) for t, g in (pairs if rank else reversed(pairs))]
        for work in works:
            work.wait()
    assert_nothing(report)
    assert (x[0], y[0]) == (2, 2)
    assert time.monotonic() - began < 2 * _meeting.ASYNC + 2


@on_ranks
def test_many_collectives_leave_few_keys_and_take_little_time(rank):
    store = _collectives._own_room()
    before = store.num_keys()
    x = torch.ones(4)
    with dtypeguard.audit() as report:
        for _ in range(100):
            dist.all_reduce(x)
        began = time.perf_counter()
        for _ in range(300):
            dist.all_reduce(x)
        took = time.perf_counter() - began
    assert_nothing(report)
    dist.barrier()
    assert store.num_keys() - before < 2 * 64 + 10
    assert took / 300 < 0.02


# ---------------------------------------------------------------- groups that come and go


def made_inside(rank, folder):
    dist.destroy_process_group()
    with dtypeguard.audit() as report:
        for life in range(2):
            dist.init_process_group("gloo", init_method=f"file://{folder}/store{life}", rank=rank, world_size=2)
            dist.all_reduce(torch.ones(3))
            if life:
                dtypes(rank)
            dist.destroy_process_group()
    assert len(findings(report)) == 1
    assert _collectives._audits == []
    with dtypeguard.audit() as report:  # no group at all
        torch.ones(3).sum()
    assert_nothing(report)


@pytest.mark.slow
def test_a_group_that_is_made_in_the_audit(tmp_path):
    try:
        ranks.values(ranks.run(made_inside, folder=str(tmp_path)))
    finally:
        ranks.stop(2)


def test_a_fake_group_of_many_ranks_is_left_alone():
    from torch.testing._internal.distributed.fake_pg import FakeStore

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=64)
    try:
        began = time.monotonic()
        with dtypeguard.audit() as report:
            for _ in range(3):
                dist.all_reduce(torch.ones(3))
        assert_nothing(report)
        assert time.monotonic() - began < 1
    finally:
        dist.destroy_process_group()
