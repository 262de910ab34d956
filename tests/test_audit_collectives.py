"""What ranks bring to a collective: how it is compared, and ranks that are threads of one process."""

import contextlib
import datetime
import functools
import threading

import pytest
import torch
import torch.distributed as dist
from support import BF16, F16, F32
from versions import since

import dtypeguard
from dtypeguard._engine.watch.rule import Severity
from dtypeguard._rules.dg7 import _calls, _meeting
from dtypeguard._rules.dg7 import dg701_ranks_disagree as _collectives

ERROR, WARNING = Severity.ERROR, Severity.WARNING

# ---------------------------------------------------------------- what two ranks bring


def t(*shape, dtype=F32):
    return torch.empty(shape, dtype=dtype)


def of(describe, *pairs):
    """What ranks say: each pair is (results, inputs) of one rank."""
    return {rank: describe("op", *pair, len(pairs)) for rank, pair in enumerate(pairs)}


like, gather, scatter, to_all = (functools.partial(_calls.brought, way) for way in ("like", "gather", "scatter", "all"))

AGREE = {
    "the same": of(like, (None, [t(2, 3)]), (None, [t(2, 3)])),
    "flat and in rows": of(like, (None, t(6)), (None, t(2, 3))),
    "lists": of(like, (None, [t(2), t(3, dtype=F16)]), (None, [t(2), t(3, dtype=F16)])),
    "nothing in it": of(like, (None, t(0)), (None, t(0, 5))),
    "gathered into lists": of(gather, ([[t(2), t(2)]], [t(2)]), ([[t(2), t(2)]], [t(2)])),
    "gathered into one": of(gather, (t(4), t(2)), (t(2, 2), t(2))),
    "scattered in lists": of(scatter, ([t(2)], [[t(2), t(3)]]), ([t(3)], [[t(2), t(3)]])),
    "scattered from one": of(scatter, (t(2), t(4)), (t(2), t(4))),
    "to the root": of(gather, ([[t(2), t(3)]], [t(2)]), ([], [t(3)])),
    "from the root": of(scatter, ([t(2)], []), ([t(3)], [[t(2), t(3)]])),
    "to all": of(to_all, ([t(1), t(2)], [t(1), t(3)]), ([t(3), t(4)], [t(2), t(4)])),
}
DISAGREE = {
    "dtype": (of(like, (None, t(3, dtype=BF16)), (None, t(3, dtype=F16))),
              "rank 0 has bfloat16[3], rank 1 has float16[3]", ERROR, False),
    "dtype and bytes": (of(like, (None, t(3)), (None, t(3, dtype=F16))),
                        "rank 0 has float32[3], rank 1 has float16[3]", ERROR, True),
    "elements": (of(like, (None, t(3)), (None, t(4))), "rank 0 has float32[3], rank 1 has float32[4]", ERROR, True),
    "transposed": (of(like, (None, t(3, 2)), (None, t(2, 3))),
                   "rank 0 has float32[3, 2], rank 1 has float32[2, 3]", WARNING, False),
    "one of several": (of(like, (None, [t(1), t(2)]), (None, [t(1), t(2, dtype=torch.int32)])),
                       "rank 0 has float32[1], float32[2], rank 1 has float32[1], int32[2]", ERROR, False),
    "fewer": (of(like, (None, [t(1), t(2)]), (None, [t(1)])),
              "rank 0 has float32[1], float32[2], rank 1 has float32[1]", ERROR, True),
    "the last of many": (of(like, (None, [t(2)] * 99), (None, [t(2)] * 98 + [t(3)])), None, ERROR, True),
    "three ranks": (of(like, *[(None, t(3, dtype=d)) for d in (F16, BF16, F16)]),
                    "ranks 0, 2 have float16[3], rank 1 has bfloat16[3]", ERROR, False),
    "to gather": (of(gather, (t(4), t(2)), (t(6), t(3))), "rank 0 has float32[2], rank 1 has float32[3]", ERROR, True),
    "lists to gather": (of(gather, ([[t(2), t(2)]], [t(2)]), ([[t(2), t(5)]], [t(5)])),
                        "rank 0 has float32[2], rank 1 has float32[5]", ERROR, True),
    "what is taken": (of(to_all, ([t(1), t(2)], [t(1), t(3)]), ([t(2), t(4)], [t(2), t(4)])),
                      "rank 0 sends float32[3], of which rank 1 takes float32[2]", ERROR, True),
    "to the root": (of(gather, ([[t(2), t(2)]], [t(2)]), ([], [t(2, dtype=F16)])),
                    "rank 0 has float32[2], rank 1 has float16[2]", ERROR, True),
    "from the root": (of(scatter, ([t(2)], []), ([t(2)], [[t(2, dtype=torch.int32), t(2)]])),
                      "rank 1 sends int32[2], of which rank 0 takes float32[2]", ERROR, False),
    "operations": ({0: like("all_reduce", None, t(2), 2), 1: like("broadcast", None, t(2), 2)},
                   "rank 0 calls all_reduce of float32[2], rank 1 calls broadcast of float32[2]", ERROR, True),
}  # fmt: skip


@pytest.mark.parametrize("said", AGREE.values(), ids=AGREE)
def test_what_agrees(said):
    assert _calls.disagreement(said, [0, 1]) is None


@pytest.mark.parametrize(("said", "text", "severity", "hangs"), DISAGREE.values(), ids=DISAGREE)
def test_what_does_not_agree(said, text, severity, hangs):
    verdict = _calls.disagreement(said, sorted(said))
    assert verdict[1:] == (severity, hangs)
    assert text is None or verdict[0] == text


F = ("float32",)


@pytest.mark.parametrize(
    ("out", "given", "out_sizes", "sizes", "gives", "takes"),
    [
        (t(4), t(4), (), (), [[*F, 2, 8]], [[*F, 2, 8]]),
        (t(3, 2), t(4, 2), (1, 2), (3, 1), [[*F, 6, 24], [*F, 2, 8]], [[*F, 2, 8], [*F, 4, 16]]),
        (t(0, 2), t(3, 2), (0, 0), (3, 0), [[*F, 6, 24], [*F, 0, 0]], [[*F, 0, 0]] * 2),
        (None, t(0, 2), (1, 1), (0, 0), [[*F, 0, 0]] * 2, [[*F, 2, 8]] * 2),
        (None, t(4), (), (), [[*F, 2, 8]], [[*F, 2, 8]]),
    ],
)  # fmt: skip
def test_one_tensor_to_all(out, given, out_sizes, sizes, gives, takes):
    brought = to_all("op", out, given, 2, out_sizes, sizes)
    assert (brought.gives, brought.takes) == (gives, takes)


# ---------------------------------------------------------------- threads as ranks


def ranks(store, work, size=2):
    """Run work(group, rank) in a thread for each rank of a gloo group of its own."""
    results, errors = {}, []

    def run(rank):
        try:
            group = dist.ProcessGroupGloo(store, rank, size, datetime.timedelta(seconds=20))
            results[rank] = work(group, rank)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert errors == []
    return [results[rank] for rank in range(size)]


def reduces(dtypes):
    def work(group, rank):
        x = torch.ones(4, dtype=dtypes[rank])
        group.allreduce([x]).wait()
        return x.float()

    return work


def every_method(group, rank):
    x, y = torch.arange(4.0) + rank, torch.empty(4)
    lists = [[torch.empty(4), torch.empty(4)]]
    group.broadcast([x]).wait()
    group.broadcast(x, root=1).wait()
    group.allreduce(tensors=[x]).wait()
    group.allreduce(x).wait()
    group.reduce([x]).wait()
    group.allgather(lists, [x]).wait()
    group.allgather(output_tensors=lists, input_tensors=[x]).wait()
    group.reduce_scatter([y], lists).wait()
    group.alltoall_base(y, x, [2, 2], [2, 2]).wait()
    group.alltoall(lists[0], [x, y]).wait()
    group.gather(lists if rank == 0 else [], [x], dist.GatherOptions()).wait()
    group.scatter([x], lists if rank == 0 else [], dist.ScatterOptions()).wait()
    group.barrier().wait()
    return x, y, lists


@pytest.mark.parametrize("dtype", [F32, BF16, F16, torch.int64])
def test_ranks_that_agree_are_not(dtype):
    alone = ranks(dist.HashStore(), reduces((dtype, dtype)))
    with dtypeguard.audit() as report:
        watched = ranks(dist.HashStore(), reduces((dtype, dtype)))
    assert report.faults == []
    assert not report.findings
    assert all(torch.equal(one, other) for one, other in zip(alone, watched, strict=True))


@since("torch", "2.13", "gloo has no all_to_all")
def test_every_method_is_called_as_before(tmp_path):
    alone = ranks(dist.FileStore(str(tmp_path / "one"), 2), every_method)
    with dtypeguard.audit() as report:
        watched = ranks(dist.FileStore(str(tmp_path / "other"), 2), every_method)
    assert report.faults == []
    assert [f for f in report.findings if f.severity != "info"] == []
    for (x, y, lists), (x2, y2, lists2) in zip(alone, watched, strict=True):
        assert torch.equal(x, x2)
        assert torch.equal(y, y2)
        assert all(map(torch.equal, lists[0], lists2[0]))


def test_two_groups_on_one_store_are_told_apart():
    store = dist.HashStore()
    with dtypeguard.audit() as report:
        ranks(dist.PrefixStore("one", store), reduces((F32, F32)))
        ranks(dist.PrefixStore("other", store), reduces((F16, F16)))
    assert not report.findings


def test_nested_audits_find_it_both():
    with dtypeguard.audit() as outer, dtypeguard.audit() as inner:
        ranks(dist.HashStore(), reduces((BF16, F16)))
    for report in (outer, inner):
        assert report.faults == []
        assert [(f.rule, f.count) for f in report.findings] == [("DG701", 2)]


def test_a_group_that_was_made_before_is_left_alone():
    groups = {}

    def make(group, rank):
        groups[rank] = group

    ranks(dist.HashStore(), make)

    def work(rank):
        groups[rank].allreduce([torch.ones(3, dtype=(BF16, F16)[rank])]).wait()

    with dtypeguard.audit() as report:
        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert report.faults == []
    assert not report.findings


@pytest.mark.parametrize("options", [{"ignore": "DG701"}, {"select": "DG1"}])
def test_a_rule_that_is_not_wanted_asks_nothing(options):
    with dtypeguard.audit(**options) as report:
        assert _collectives._audits == []
        ranks(dist.HashStore(), reduces((BF16, F16)))
    assert not report.findings


BACKEND = torch._C._distributed_c10d.Backend


def standing():
    owners = dist, dist.distributed_c10d, BACKEND, dist.ProcessGroupGloo, dist.ProcessGroup
    return [{name: id(value) for name, value in vars(owner).items()} for owner in owners]


def test_nothing_stays():
    before = standing()
    with contextlib.suppress(ZeroDivisionError), dtypeguard.audit():
        assert standing() != before
        ranks(dist.HashStore(), reduces((F32, F32)))
        raise ZeroDivisionError
    assert standing() == before
    assert _collectives._audits == []
    assert _collectives._groups == {}
    assert len(_collectives._backends) == 0
    assert _meeting.grace.seconds == _meeting.GRACE


def test_a_store_that_fails_is_no_fault(monkeypatch):
    class Gone(dist.HashStore):
        def check(self, keys):
            raise dist.DistNetworkError("gone")

    monkeypatch.setattr(_collectives, "_own_room", lambda store=None: Gone())
    with dtypeguard.audit() as report:
        made = ranks(dist.HashStore(), reduces((F32, F32)))
    assert report.faults == []
    assert not report.findings
    assert made[0].tolist() == [2.0] * 4
