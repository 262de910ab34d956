"""Runs of a program under audit, for `_tools.fix.runs`: `python -m dtypeguard._tools.audit.probe FOLDER PIPE`."""

import atexit
import contextlib
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import io
import json
import os
import pickle
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
import types
from _thread import interrupt_main
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from ..fix.copies import inside
from ..fix.left import Leaving
from .audit import audit
from .command import begun, of_audit, status_of

_POLL = 0.02  # seconds
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# Events of Python with the paths that they change: https://docs.python.org/3/library/audit_events.html
_CHANGES = {
    "os.remove": (0,), "os.rmdir": (0,), "os.mkdir": (0,), "os.rename": (0, 1), "os.link": (1,), "os.symlink": (1,),
    "os.truncate": (0,), "os.chmod": (0,), "os.chown": (0,), "os.utime": (0,), "sqlite3.connect": (0,),
    "shutil.rmtree": (0,), "os.setxattr": (0,),
}  # fmt: skip
_CACHES = ("~/.cache", "~/.config", "~/.local/share", "~/.triton", "~/.nv", "~/.matplotlib", "~/.keras")
_CACHE_VARIABLES = (
    "XDG_CACHE_HOME", "HF_HOME", "TORCH_HOME", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "MPLCONFIGDIR",
)  # fmt: skip


class _Fence:
    """Lets a program write in its own folder and in caches, and nowhere else."""

    def __init__(self, own: str) -> None:
        places = [own, "/dev", "/proc", *map(os.path.expanduser, _CACHES), *map(os.environ.get, _CACHE_VARIABLES)]
        self._places = [os.path.realpath(place) for place in places if place]
        self._compiled = os.path.join(os.path.realpath(tempfile.gettempdir()), "torchinductor_")  # and the user's name
        self.outside = ""  # the first path elsewhere that it tried to write

    def __call__(self, event: str, given: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = given
            if (isinstance(mode, str) and set(mode) & set("wax+")) or (isinstance(flags, int) and flags & _WRITES):
                self.check(path)
        elif event in _CHANGES:
            for number in _CHANGES[event]:
                self.check(given[number])

    def check(self, path: Any) -> None:
        """Raise if a path may not be written."""
        if isinstance(path, int) or path in (None, "", ":memory:"):
            return
        place = os.path.realpath(os.fsdecode(path).removeprefix("file:"))
        if not place.startswith(self._compiled) and not any(inside(place, one) for one in self._places):
            self.outside = self.outside or place
            raise PermissionError(13, "it is outside of the copy in which edits are proven", place)

    def saving(self, save: Any) -> Any:
        """`torch.save`, which writes past Python."""

        @functools.wraps(save)
        def saved(value: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(f, str | os.PathLike):
                self.check(f)
            return save(value, f, *args, **kwargs)

        return saved


class _Moved(importlib.abc.MetaPathFinder):
    """Finds modules of the working tree in its copy, and those of packages that were edited where they were written."""

    def __init__(self, root: str, copy: str, apart: dict[str, str]) -> None:
        self._root, self._copy, self._apart = root, copy, apart

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        for finder in sys.meta_path:
            found = None if finder is self else finder.find_spec(name, path, target)
            if found is not None and found.origin and found.has_location:
                file = self._text_now(found.origin)
                if file == found.origin:
                    return found
                inner = found.submodule_search_locations
                folders = None if inner is None else [os.path.dirname(file), *inner]
                return importlib.util.spec_from_file_location(name, file, submodule_search_locations=folders)
        return None

    def _text_now(self, file: str) -> str:
        real = os.path.realpath(file)
        there = os.path.join(self._copy, os.path.relpath(real, self._root)) if inside(real, self._root) else file
        return self._apart.get(real, there if os.path.isfile(there) else file)


class _Watch(threading.Thread):
    """Stops the program when it has run for long enough."""

    def __init__(self, report: Any, spec: dict[str, Any]) -> None:
        super().__init__(daemon=True)
        self._report, self._spec = report, spec
        self.stopped, self.over = False, threading.Event()

    def run(self) -> None:
        began = time.monotonic()
        while not self.over.wait(_POLL):
            if self._enough(time.monotonic() - began):
                self.stopped = True
                interrupt_main()
                return

    def _enough(self, seconds: float) -> bool:
        spec = self._spec
        if spec["operations"]:
            return bool(self._report._recorder.operations >= spec["operations"] or seconds >= 3 * spec["limit"])
        if seconds < spec["limit"]:
            return False
        found = {(f.rule, f.line) for f in self._report.findings}
        return bool(seconds >= 2 * spec["limit"]) or all(tuple(one) in found for one in spec["wanted"])


def run(folder: str) -> None:
    """Run the program that a folder describes, and write what came of it there."""
    spec = json.loads(Path(folder, "spec").read_text(encoding="utf-8"))
    options, root, copy = types.SimpleNamespace(**spec["options"]), spec["root"], spec["copy"]
    for number, file in enumerate((os.devnull, os.path.join(folder, "out"), os.devnull)):
        os.dup2(os.open(file, os.O_RDWR), number)
    sys.stdin = io.TextIOWrapper(io.FileIO(0, closefd=False))
    os.chdir(spec["folder"])
    os.environ.update(PWD=spec["folder"], TMPDIR=os.path.join(folder, "tmp"))
    tempfile.tempdir = None
    ours = str(Path(__file__).parents[3])
    real = [path if path == ours or "site-packages" in path else os.path.realpath(path) for path in sys.path[1:]]
    there = [os.path.join(copy, os.path.relpath(path, root)) if inside(path, root) else path for path in real]
    sys.path[:] = [spec["folder"], *(path if path == ours else other for path, other in zip(real, there, strict=True))]
    sys.meta_path.insert(0, _Moved(root, copy, spec["apart"]))
    fence = _Fence(spec["own"])
    torch.save = fence.saving(torch.save)
    sys.addaudithook(fence)
    random.seed(0)
    torch.manual_seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)
    name = options.program
    if not options.module and os.path.isabs(name) and inside(os.path.realpath(name), root):
        name = os.path.join(copy, os.path.relpath(os.path.realpath(name), root))
    status, error, raised = 0, "", []
    recording = audit(**of_audit(options))
    report = recording.report
    recorder: Any = report._recorder
    merged = recorder.findings.merged = set()
    results = recorder.lineage.results = {}
    watch, leaving = _Watch(report, spec), Leaving()
    try:
        with leaving, recording:
            try:
                signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's `&` has it ignored
                program = begun(name, options.arguments, options.module)
                watch.start()
                program()
            except SystemExit as stop:
                status = status_of(stop.code)
            finally:
                watch.over.set()
    except BaseException as caught:
        status, error = 1, "" if watch.stopped else f"{type(caught).__name__}: {caught}"
        raised = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(caught.__traceback__)]
    ours = str(Path(__file__).parents[2])
    mine = [(os.path.abspath(file), line) for file, line in raised if not file.startswith((ours, "<"))]
    loaded = [str(getattr(module, "__file__", "")) for module in [*sys.modules.values()]]
    result = {
        "findings": list(report.findings), "status": status, "error": error, "stopped": watch.stopped,
        "raised": [(file, line) for file, line in mine if "site-packages" not in file],
        "operations": report._recorder.operations, "outside": fence.outside,
        "files": [file for file in loaded if inside(file, copy)], "merged": list(merged),
        "casts": recorder.findings.conversions(), "results": results,
        "errors": recorder.values and recorder.values.errors(),
        "leaving": recorder.values and dict(recorder.values.leaving), "left": leaving.samples,
        "steps": leaving.steps,
    }  # fmt: skip
    with open(os.path.join(folder, "result"), "wb") as stream:
        pickle.dump(result, stream)
    sys.stdout.flush()


def serve(whole: str, pipe: Connection) -> None:
    """Run each program whose folder comes through the pipe, in a process that is forked for it.

    So all begin with the same state, and what every program imports is imported once. When the pipe ends, what runs is
    ended, and the folder around them goes, `whole`.
    """
    pid = -1
    try:
        while True:
            folder = pipe.recv()
            pid = os.fork()
            if not pid:
                os.setsid()
                break
            pipe.send(pid)
            done, status = os.waitpid(pid, os.WNOHANG)
            while not done:
                if pipe.poll(_POLL):  # nothing is asked while a program runs: this is the end
                    os.killpg(pid, signal.SIGKILL)
                    return
                done, status = os.waitpid(pid, os.WNOHANG)
            pipe.send(os.waitstatus_to_exitcode(status))
    except (EOFError, ConnectionError):
        return
    finally:
        if pid:
            shutil.rmtree(whole, ignore_errors=True)
    pipe.close()
    status = 1
    try:
        run(folder)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        _leave(status)


def _leave(status: int) -> None:
    """End as Python does, but take no module apart: with torch that takes longer than many a program."""
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads that are no daemons
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(status)


if __name__ == "__main__":
    serve(sys.argv[1], Connection(int(sys.argv[2])))
