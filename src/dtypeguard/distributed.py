"""Disagreements between ranks, named before a collective hangs on them or mixes what does not belong together.

Ranks tell each other what they hold through the process group's store, so nothing here is a collective, and a
rank that is missing is known by its silence.
"""

import contextlib
import hashlib
import itertools
import json
import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

import torch.distributed as dist
from torch import Tensor, nn

from ._core.base.errors import RankError, plain, summary
from ._core.base.frames import hide_frames
from ._core.base.options import explained, kind_of
from ._core.base.ranks import rank_names, room, there, wait
from ._core.contract.containers import children, leaves
from ._core.contract.model import written

_Facts = list[tuple[str, str, bool]]  # a name, what stands there, whether that is a tensor
_rounds: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # how often each group has compared
_lock = threading.Lock()
_SHOWN = 8


@explained
def check_ranks(
    model_or_batch: Any, /, *, group: dist.ProcessGroup | None = None, timeout: float = 60.0, shapes: bool = True
) -> None:
    """Check that all ranks hold tensors of the same names, order, dtypes, shapes and device types.

    DistributedDataParallel and FSDP match parameters by position only, and collectives do not compare tensors at all.
    If ranks differ, they hang or reduce wrong data (https://github.com/pytorch/pytorch/issues/150248). Call
    `check_ranks` on every rank: with a model before it is wrapped, or with a batch before it is reduced. Nothing runs
    on the device. In a program of one process it does nothing.

    Args:
        model_or_batch: an nn.Module (its parameters and buffers), or tensors in any containers. Values that are not
            tensors may differ.
        group: the ranks to compare; default: all.
        timeout: seconds to wait for the other ranks.
        shapes: whether to compare shapes too; False for batches whose sizes may differ.

    Raises:
        RankError: on every rank, if any two differ. The message says which ranks hold what.
        TimeoutError: if some ranks did not call it in time. The message names them.
        RuntimeError: if there are several ranks, but `torch.distributed` has no process group yet.
        TypeError: for what is neither a model nor a batch.
        ValueError: if this rank is not in the group.

    >>> import torch, dtypeguard
    >>> dtypeguard.distributed.check_ranks(torch.nn.Linear(3, 1))
    """
    if not isinstance(model_or_batch, nn.Module | Tensor | None) and _inside(model_or_batch) is None:
        raise TypeError(f"check_ranks takes a model, or a batch of tensors, not {kind_of(model_or_batch)}")
    if not (dist.is_available() and dist.is_initialized()):
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise RuntimeError("check_ranks: there are several ranks (WORLD_SIZE): call init_process_group first")
        return
    rank = dist.get_rank()
    member = isinstance(group, dist.ProcessGroup | None)  # else it is `GroupMember.NON_GROUP_MEMBER`
    ranks = dist.get_process_group_ranks(group) if member else []
    if rank not in ranks:
        raise ValueError(f"check_ranks: rank {rank} is not in the group, so it has nothing to compare")
    what = f"check_ranks({type(model_or_batch).__name__})"
    facts = list(_facts_of(model_or_batch, shapes))
    said = _compare_ranks(facts, rank, ranks, group or dist.group.WORLD, what, timeout)
    if len(said) > 1:
        try:
            raise _disagreement(what, said, rank, isinstance(model_or_batch, nn.Module))
        except RankError:
            hide_frames()
            raise


def _facts_of(value: Any, shapes: bool) -> Iterator[tuple[str, str, bool]]:
    if not isinstance(value, nn.Module):
        return _leaves(value, ("batch",), shapes, [])
    tensors = itertools.chain(value.named_parameters(), value.named_buffers())
    return ((name, _tensor_text(tensor, shapes), True) for name, tensor in tensors)


def _inside(value: Any) -> list[tuple[Any, Any]] | None:
    """What a container holds; None for what is none."""
    found = children(value)
    return [*leaves(value)] or None if found is None else found


def _leaves(value: Any, path: tuple[Any, ...], shapes: bool, around: list[Any]) -> Iterator[tuple[str, str, bool]]:
    """Every leaf of a batch with its path; of what is no tensor, its type."""
    if isinstance(value, Tensor):
        yield written(path), _tensor_text(value, shapes), True
        return
    again = any(value is outer for outer in around)
    inside = [] if again else (_inside(value) or [])
    if not inside:
        yield written(path), type(value).__name__, False
    for step, child in inside:
        yield from _leaves(child, (*path, step), shapes, [*around, value])


def _tensor_text(tensor: Tensor, shapes: bool) -> str:
    array = summary(tensor).rpartition(" on ")[0] if shapes else plain(tensor.dtype)
    return f"{array} on {tensor.device.type}"


def _compare_ranks(
    facts: _Facts, rank: int, ranks: list[int], group: Any, what: str, timeout: float
) -> dict[tuple[int, ...], _Facts]:
    """What the ranks hold, by the ranks that hold the same. Only where they differ is more than a digest sent."""
    with _lock:
        number = _rounds.get(group, 0)
        _rounds[group] = number + 1
    store = room(f"dtypeguard/{group.group_name}/{number}")
    end = time.monotonic() + timeout
    digest = hashlib.sha256(json.dumps([fact for fact in facts if fact[2]]).encode()).hexdigest()
    alike: defaultdict[str, list[int]] = defaultdict(list)
    try:
        if _all_say(store, digest, rank, ranks, what, end):
            alike[digest] = ranks
            said = {tuple(ranks): facts}
        else:
            for other in ranks:
                alike[store.get(f"digest/{other}").decode()].append(other)
            if rank in (same[0] for same in alike.values()):
                store.set("facts/" + digest, json.dumps(facts))
            if not wait(lambda: all(store.check(["facts/" + theirs]) for theirs in alike), end):
                silent = [same[0] for theirs, same in alike.items() if not store.check(["facts/" + theirs])]
                raise TimeoutError(f"{what}: ranks differ, and {rank_names(silent)} ended before saying how")
            said = {tuple(same): json.loads(store.get("facts/" + theirs)) for theirs, same in alike.items()}
    except dist.DistError as error:
        gone = "the process group's store does not answer; the rank that keeps it has ended"
        raise TimeoutError(f"{what}: {gone}") from error
    except TimeoutError:
        with _lock:  # the next call is this round again, so a late rank and this one still meet
            if _rounds.get(group) == number + 1:
                _rounds[group] = number
        raise
    with contextlib.suppress(RuntimeError):  # the rank that keeps the store may be gone by now
        if store.add("read", 1) == len(ranks):
            keys = [f"{kind}/{theirs}" for kind in ("as", "facts") for theirs in alike]
            for key in ("here", "read", *keys, *(f"digest/{other}" for other in ranks)):
                store.delete_key(key)
    return said


def _all_say(store: Any, digest: str, rank: int, ranks: list[int], what: str, end: float) -> bool:
    """Whether all ranks say the same digest; a few requests of each rank, however many there are."""
    counts = ("as/" + digest, "here")  # in this order: who sees all here sees what they say
    store.set(f"digest/{rank}", digest)
    for count in counts:
        store.add(count, 1)
    if wait(lambda: store.add("here", 0) == len(ranks), end):
        return bool(store.add("as/" + digest, 0) == len(ranks))
    store.set(f"digest/{rank}", "")  # taken back
    for count in counts:
        store.add(count, -1)
    digests = there(store, (f"digest/{other}" for other in ranks if other != rank), set())
    silent = [other for other in ranks if other != rank and f"digest/{other}" not in digests]
    raise TimeoutError(
        f"{what}: {rank_names(silent)} said nothing in time: ended, still busy, or never called check_ranks; "
        f"{rank_names(r for r in ranks if r not in silent)} did"
    )


def _disagreement(what: str, said: dict[tuple[int, ...], _Facts], rank: int, model: bool) -> RankError:
    tables = {ranks: {name: fact for name, fact, _ in facts} for ranks, facts in said.items()}
    names = list(dict.fromkeys(name for facts in said.values() for name, _, tensor in facts if tensor))
    rows: dict[str, str] = {}
    for name in names:
        held: defaultdict[str, list[int]] = defaultdict(list)
        for ranks, table in tables.items():
            held[table.get(name, "missing")] += ranks
        if len(held) > 1:
            rows[name] = "; ".join(f"{fact} ({rank_names(sorted(holders))})" for fact, holders in held.items())
    if not rows:  # the same, in another order
        orders = {ranks: [name for name, _, tensor in facts if tensor] for ranks, facts in said.items()}
        place = next(n for n, here in enumerate(zip(*orders.values(), strict=True)) if len(set(here)) > 1)
        text = "; ".join(f"`{order[place]}` ({rank_names(ranks)})" for ranks, order in orders.items())
        rows[f"position {place}"] = f"{text}: the same names in another order"
    width = max(map(len, list(rows)[:_SHOWN]))
    shown = [f"  {name:<{width}}  {text}" for name, text in list(rows.items())[:_SHOWN]]
    more = [f"  ... and {len(rows) - _SHOWN} more"] if len(rows) > _SHOWN else []
    advice = "build and convert the model alike on every rank, in the same order"
    if not model:
        advice = "give every rank a batch of the same structure and dtypes; shapes=False lets sizes differ"
    head = f"{what}: ranks differ in {len(rows)} of {len(names)} entries (this is rank {rank})"
    error = RankError("\n".join([head, *shown, *more, f"  {'fix':<10} {advice}"]))
    error.fix = advice
    error.function, error.argument = "check_ranks", next(iter(rows))
    error.actual, error.violations = rows[error.argument], tuple(f"{name}: {text}" for name, text in rows.items())
    return error
