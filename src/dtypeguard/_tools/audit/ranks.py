"""One report from all ranks of a program: `torchrun --nproc-per-node 4 -m dtypeguard audit train.py`.

Each process is audited by itself. At the end every rank writes what it found into the store that the launcher's ranks
meet in, and rank 0 prints all of it. Nothing of that is a collective, so a rank that is gone holds nobody up for long.
"""

import datetime
import os
import time
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from ..._core.base.ranks import rank_names, room, wait
from ..._show.report.merged import Merged
from ..._show.report.report import AuditReport

_PATIENCE, _BRIEFLY = 60.0, 5.0  # seconds that rank 0 waits for the others; once its own program has failed
_LAUNCHED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class Ranks:
    """This process among those that a launcher (torchrun, accelerate, deepspeed) has started."""

    rank: int
    size: int

    @classmethod
    def here(cls) -> "Ranks | None":
        """None for a program of one process."""
        told = {name: os.environ.get(name, "") for name in _LAUNCHED}
        if not all(told.values()) or not dist.is_available():
            return None
        try:
            rank, size = int(told["RANK"]), int(told["WORLD_SIZE"])
        except ValueError:
            return None
        return cls(rank, size) if size > 1 else None

    def gather(self, report: AuditReport, status: int) -> list[str]:
        """Hand a report over to rank 0; there, make the report that of all ranks. What is to be said of it."""
        own = Merged()
        own.add(f"rank {self.rank}", report, report.findings)
        try:
            store = self._store()
            store.set(f"rank {self.rank}", own.packed())
            if self.rank:
                return []
            limit = _BRIEFLY if status else _PATIENCE
            missing = set(range(1, self.size))

            def all_came() -> bool:
                for rank in sorted(missing):
                    if store.check([f"rank {rank}"]):
                        own.unpack(store.get(f"rank {rank}"))
                        missing.discard(rank)
                return not missing

            wait(all_came, time.monotonic() + limit)
        except (RuntimeError, OSError, ValueError) as error:  # of the store, whose errors are RuntimeErrors
            said = f"this is the report of rank {self.rank} alone: the ranks did not meet ({error})"
            return [said.partition("\n")[0]]
        report._become(own.report(every=[f"rank {rank}" for rank in range(self.size)]))
        if missing:
            silent = rank_names(sorted(missing))
            return [f"the report of {self.size} ranks; nothing came from {silent} within {limit:.0f} s"]
        return [f"the report of all {self.size} ranks"]

    def _store(self) -> Any:
        """Torchrun keeps a store for its ranks; for other launchers rank 0 does, where the program's own one was."""
        kept = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True)
        c10d: Any = dist  # which torch leaves untyped
        store = c10d.TCPStore(
            os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=not self.rank and not kept,
            timeout=datetime.timedelta(seconds=_PATIENCE), multi_tenant=True, wait_for_workers=False,
        )  # fmt: skip
        return room(f"dtypeguard.report/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
