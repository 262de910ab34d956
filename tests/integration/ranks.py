"""Real ranks for tests: processes in one gloo group on the loopback device, that never outlive the tests.

`run(fn)` calls fn(rank) on every rank and returns what each made of it. `@on_ranks` makes a test of such a function.
The processes are kept for the next call, because `import torch` is what they cost; a call that fails ends them.
Warnings are errors there too, but for those that the test's own `filterwarnings` marks let pass.
"""

import atexit
import faulthandler
import functools
import importlib
import inspect
import multiprocessing
import os
import pickle
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
import warnings
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

GRACE = 4.0  # seconds that the other ranks get once one has failed
START = 60.0  # seconds that the ranks get to import torch and to meet


@dataclass
class Outcome:
    """What one rank made of a call: a value, an error with its traceback, or a death."""

    rank: int
    value: Any = None
    error: BaseException | None = None
    text: str = ""

    @property
    def ok(self) -> bool:
        return self.error is None


class RankDied(Exception):
    """The process of a rank ended during the call."""


class RankHung(Exception):
    """A rank did not answer in time; the text says where it was."""


def run(fn: Any, world_size: int = 2, timeout: float = 60, **kwargs: Any) -> list[Outcome]:
    """fn(rank, **kwargs) on every rank of a gloo group: one outcome for each, in order. Nothing can hang."""
    team = _teams.get(world_size)
    if team is None:
        team = _teams[world_size] = _Team(world_size)
    try:
        outcomes = team.call(fn, kwargs, timeout)
    finally:
        if team.failed:
            stop(world_size)
    return outcomes


def values(outcomes: list[Outcome]) -> list[Any]:
    """What the ranks returned; if one failed, an AssertionError with the tracebacks of all that did."""
    __tracebackhide__ = True
    failed = [outcome for outcome in outcomes if not outcome.ok]
    if failed:
        raise AssertionError("\n".join(f"rank {outcome.rank}: {outcome.text}" for outcome in failed))
    return [outcome.value for outcome in outcomes]


def on_ranks(fn: Any = None, *, world_size: int = 2, timeout: float = 60) -> Any:
    """A test whose body runs on every rank; its first argument is the rank, parameters must be picklable."""
    if fn is None:
        return functools.partial(on_ranks, world_size=world_size, timeout=timeout)

    def test(**kwargs: Any) -> None:
        __tracebackhide__ = True
        values(run(test, world_size, timeout, **kwargs))

    functools.update_wrapper(test, fn)
    del test.__wrapped__
    made: Any = test
    made.__signature__ = inspect.Signature(list(inspect.signature(fn).parameters.values())[1:])
    made.body = fn
    return made


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def stop(world_size: int | None = None) -> None:
    """End the kept processes, of one size of group or of all."""
    teams = [_teams.pop(size) for size in list(_teams) if world_size in (None, size)]
    for team in teams:
        team.release()
    for team in teams:
        team.close()


_teams: dict[int, "_Team"] = {}
atexit.register(stop)


class _Team:
    """The processes of one group, and the parent's ends of their pipes."""

    def __init__(self, world_size: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.folder = Path(tempfile.mkdtemp(prefix="ranks"))
        self.pipes, self.processes, self.modules, self.failed = [], [], set(), False
        port = free_port()
        for rank in range(world_size):
            ours, theirs = context.Pipe()
            arguments = (rank, world_size, port, theirs, str(self.folder / f"stack{rank}"))
            process = context.Process(target=_serve, args=arguments, daemon=True, name=f"rank {rank}")
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)
        try:
            values(self._collect(START))
        except BaseException:
            self.close()
            raise

    def call(self, fn: Any, kwargs: dict[str, Any], timeout: float) -> list[Outcome]:
        self.failed = True  # until all have answered
        if fn.__module__ not in self.modules:
            values(self._send(__name__, "_imported", {"module": fn.__module__}, START))
            self.modules.add(fn.__module__)
        return self._send(fn.__module__, fn.__qualname__, kwargs, timeout)

    def _send(self, module: str, name: str, kwargs: dict[str, Any], timeout: float) -> list[Outcome]:
        for pipe in self.pipes:
            pipe.send_bytes(pickle.dumps((module, name, kwargs)))
        return self._collect(timeout)

    def _collect(self, timeout: float) -> list[Outcome]:
        deadline = time.monotonic() + timeout
        outcomes: dict[int, Outcome] = {}
        while len(outcomes) < len(self.pipes):
            waiting = {pipe: rank for rank, pipe in enumerate(self.pipes) if rank not in outcomes}
            ready = wait(list(waiting), max(0.0, deadline - time.monotonic()))
            if not ready:
                for rank in waiting.values():
                    outcomes[rank] = self._hung(rank, timeout, outcomes)
            for pipe in ready:
                rank = waiting[pipe]
                try:
                    outcomes[rank] = pickle.loads(pipe.recv_bytes())
                except (EOFError, ConnectionResetError):
                    self.processes[rank].join(GRACE)
                    error = RankDied(f"rank {rank} ended with exit code {self.processes[rank].exitcode}")
                    outcomes[rank] = Outcome(rank, error=error, text=str(error))
                if not outcomes[rank].ok:
                    deadline = min(deadline, time.monotonic() + GRACE)
        self.failed = not all(outcome.ok for outcome in outcomes.values())
        return [outcomes[rank] for rank in range(len(self.pipes))]

    def _hung(self, rank: int, timeout: float, outcomes: dict[int, Outcome]) -> Outcome:
        failed = [str(known.rank) for known in outcomes.values() if not known.ok]
        after = f" after rank {', '.join(failed)} failed" if failed else f" within {timeout} s"
        pid, stack, where = self.processes[rank].pid, self.folder / f"stack{rank}", ""
        if stack.exists() and pid is not None:
            os.kill(pid, signal.SIGUSR1)
            time.sleep(0.5)
            where = stack.read_text()
        error = RankHung(f"rank {rank} did not answer{after}\n{where}")
        return Outcome(rank, error=error, text=str(error))

    def release(self) -> None:
        """Close the pipes: a rank that waits for a call ends by itself then."""
        for pipe in self.pipes:
            pipe.close()

    def close(self) -> None:
        """Wait for the ranks to end, or kill them."""
        self.release()
        deadline = time.monotonic() + (0.0 if self.failed else GRACE)
        for process in self.processes:
            process.join(max(0.0, deadline - time.monotonic()))
            process.kill()
            process.join()
            process.close()
        shutil.rmtree(self.folder, ignore_errors=True)


# ---------------------------------------------------------------- in the processes


def _serve(rank: int, world_size: int, port: int, pipe: Any, stack: str) -> None:
    """One rank: joins the group, then answers calls until the parent is gone."""
    threading.Thread(target=_die_with_the_parent, daemon=True).start()
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "TORCH_GLOO_LAZY_INIT": "0"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "LOCAL_RANK": str(rank)}
    os.environ["WORLD_SIZE"] = str(world_size)
    try:
        import torch

        import dtypeguard  # noqa: F401  (before the clock of the first test runs)

        torch.set_num_threads(1)
        torch.distributed.init_process_group("gloo", timeout=timedelta(seconds=START))
        pipe.send_bytes(pickle.dumps(Outcome(rank)))
    except BaseException as error:
        pipe.send_bytes(_packed(_failed(rank, error)))
        return
    while True:
        try:
            module, name, kwargs = pickle.loads(pipe.recv_bytes())
        except (EOFError, OSError):
            return
        with open(stack, "w") as file:
            faulthandler.register(signal.SIGUSR1, file=file)
            outcome = _answer(rank, module, name, kwargs)
            faulthandler.unregister(signal.SIGUSR1)
        pipe.send_bytes(_packed(outcome))


def _answer(rank: int, module: str, name: str, kwargs: dict[str, Any]) -> Outcome:
    import torch
    from _pytest.config import parse_warning_filter

    import dtypeguard

    try:
        home = importlib.import_module(module)
        named = getattr(home, name)
        fn = getattr(named, "body", named)
        dtypeguard.set_mode(None)
        dtypeguard.reset_casts()
        if "torch._dynamo" in sys.modules:
            torch._dynamo.reset()
        torch.manual_seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for mark in _marks(home) + _marks(named):
                if mark.name == "filterwarnings":
                    warnings.filterwarnings(*parse_warning_filter(mark.args[0], escape=False))
            return Outcome(rank, fn(rank, **kwargs))
    except BaseException as error:
        return _failed(rank, error)


def _marks(of: Any) -> list[Any]:
    """The marks of a module or a function."""
    marks = getattr(of, "pytestmark", [])
    return [getattr(mark, "mark", mark) for mark in (marks if isinstance(marks, list) else [marks])]


def _imported(rank: int, module: str) -> None:
    importlib.import_module(module)


def _failed(rank: int, error: BaseException) -> Outcome:
    said = traceback.TracebackException.from_exception(error, capture_locals=isinstance(error, AssertionError))
    return Outcome(rank, error=error, text="".join(said.format()))


def _packed(outcome: Outcome) -> bytes:
    """An outcome as bytes; what cannot be pickled is told in words."""
    try:
        packed = pickle.dumps(outcome)
        pickle.loads(packed)
        return packed
    except Exception as error:
        if outcome.ok:
            return pickle.dumps(Outcome(outcome.rank, error=error, text=f"its result cannot be sent: {error!r}"))
        text = f"{type(outcome.error).__name__}: {outcome.error}"
        return pickle.dumps(Outcome(outcome.rank, error=RuntimeError(text), text=outcome.text))


def _die_with_the_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
