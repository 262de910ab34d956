"""How ranks hear what the others bring to a collective.

Every rank writes what it brings into a store that all of them see, and reads what the others brought. Nothing waits
long: ranks that do not audit are known by their silence, and a rank that comes late finds what the others wrote. What
could not be compared in time is compared at the next occasion.
"""

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ..._core.base.ranks import there, wait
from .._kit import Site
from ._calls import Brought, disagreement

SYNC, ASYNC = 10.0, 1.0  # seconds to wait at a collective that blocks, at one that does not
GRACE = 2.0  # seconds, once in an audit, for ranks that show no sign of an audit
SIGN = "sign"  # the key that says so
_PATIENCE = 30.0  # seconds of waiting in vain, in one group
_SLOTS, _PENDING = 64, 16  # of each rank in the store, written again and again; calls to compare later


@dataclass(slots=True)
class Call:
    """A collective of this rank that was not yet compared with all others."""

    number: int
    brought: Brought
    site: Site
    module: str | None


class Meeting:
    """The ranks of one group, as this one hears of them through a store.

    A rank writes to its own keys only: `sign/<rank>` while it audits at all, `<group>/at/<rank>` with the number of
    collectives that the group had seen when this rank's audit met it, and its slots. Ranks whose audits met the group
    at different times have no common numbers, and are not compared.
    """

    def __init__(self, store: Callable[[], Any], name: str, rank: int, ranks: list[int], base: int) -> None:
        self._store, self._name, self._rank, self._ranks, self._base = store, name, rank, ranks, base
        self._count, self._lock, self._patience = 0, threading.Lock(), _PATIENCE
        self._known: set[str] = set()  # keys that exist
        self._pending: deque[Call] = deque(maxlen=_PENDING)
        self._kept: set[int] = set()  # slots that ranks may come to read which did not hear of it yet
        self._alone = False  # some ranks show no sign of an audit
        self.dead = False  # nothing can be compared here
        store().set(f"{SIGN}/{rank}", "1")
        store().set(f"{name}/at/{rank}", str(base))

    def bring(self, brought: Brought, site: Site, module: str | None, limit: float) -> Iterator[tuple[Call, Any]]:
        """Tell what this rank brings; gives the calls, this one or earlier ones, on which ranks disagree."""
        with self._lock:
            call = Call(self._count, brought, site, module)
            self._count += 1
            self._store().set(self._slot(self._rank, call.number), json.dumps([call.number, *brought]))
        if self._alone and self._count & call.number:  # not a power of two
            return
        yield from self.catch_up()
        yield from self._find_disagreement(call, *self._wait_for_ranks(call, min(limit, self._patience)))

    def _wait_for_ranks(self, call: Call, limit: float) -> tuple[dict[int, Brought], bool]:
        """What ranks bring, once they have had time to."""
        began, said, lost, whole = time.monotonic(), {self._rank: call.brought}, False, False

        def over() -> bool:
            nonlocal said, lost, whole
            said, lost = self._read_ranks(call)
            whole = lost or len(said) == len(self._ranks)
            return whole or not self._may_come(said, time.monotonic() - began)

        wait(over, began + limit)
        if whole:
            self._alone = False
        else:
            waited = time.monotonic() - began
            self._patience -= waited
            if self._alone:
                grace.seconds -= waited
        return said, lost

    def catch_up(self) -> Iterator[tuple[Call, Any]]:
        """Compare what could not be compared before."""
        for _ in range(len(self._pending)):
            call = self._pending.popleft()
            yield from self._find_disagreement(call, *self._read_ranks(call))

    def _find_disagreement(self, call: Call, said: dict[int, Brought], lost: bool) -> Iterator[tuple[Call, Any]]:
        verdict = disagreement(said, self._ranks) if len(said) > 1 else None
        if verdict is not None:
            self._kept.add(call.number % _SLOTS)
            yield call, verdict
        elif not lost and len(said) < len(self._ranks):
            self._pending.append(call)

    def close(self) -> None:
        """Leave nothing in the store that a later audit could read."""
        store, slots = self._store(), {*range(min(self._count, _SLOTS))} - self._kept
        keys = f"{SIGN}/{self._rank}", f"{self._name}/at/{self._rank}", *(self._slot(self._rank, n) for n in slots)
        for key in keys:
            store.set(key, "")

    def _slot(self, rank: int, number: int) -> str:
        return f"{self._name}/{self._base}/{number % _SLOTS}/{rank}"

    def _read_ranks(self, call: Call) -> tuple[dict[int, Brought], bool]:
        """What ranks bring, and whether some wrote over it since."""
        said, lost = {self._rank: call.brought}, False
        others = {self._slot(rank, call.number): rank for rank in self._ranks if rank != self._rank}
        for key, value in self._values_there(others).items():
            number, *row = json.loads(value)
            if number == call.number:
                said[others[key]] = Brought(*row)
            lost = lost or number > call.number
        return said, lost

    def _may_come(self, said: dict[int, Brought], waited: float) -> bool:
        """Whether the ranks that said nothing yet will speak, as far as can be known."""
        silent = [rank for rank in self._ranks if rank not in said]
        at = [int(base) for base in self._values_there(f"{self._name}/at/{rank}" for rank in silent).values()]
        if any(base > self._base for base in at):
            self.dead = True
            return False
        earlier = any(base < self._base for base in at)  # an audit that began before this one, or is just ending
        self._alone = earlier or len(self._values_there(f"{SIGN}/{rank}" for rank in silent)) < len(silent)
        return not self._alone or waited < grace.seconds

    def _values_there(self, keys: Iterable[str]) -> dict[str, str]:
        return there(self._store(), keys, self._known)


@dataclass
class Grace:
    """Seconds left, in this audit, to wait for ranks that may not audit at all."""

    seconds: float = GRACE


grace = Grace()
