"""One run of a program under audit, for `_tools.fix.runs`: `python -m dtypeguard._tools.audit.probe SPEC`."""

import importlib.abc
import importlib.machinery
import importlib.util
import io
import json
import os
import pickle
import random
import sys
import threading
import time
import traceback
import types
from _thread import interrupt_main
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from .audit import audit
from .command import begun, status_of

_POLL = 0.02  # seconds


class _Moved(importlib.abc.MetaPathFinder):
    """Finds modules of the working tree in its copy, and those that were edited where they were written."""

    def __init__(self, root: str, copy: str | None, moved: dict[str, str]) -> None:
        self._root, self._copy, self._moved = root, copy, moved

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        for finder in sys.meta_path:
            found = None if finder is self else finder.find_spec(name, path, target)
            if found is not None and found.origin and found.has_location:
                file = self._now(found.origin)
                if file == found.origin:
                    return found
                inner = found.submodule_search_locations
                folders = None if inner is None else [os.path.dirname(file), *inner]
                return importlib.util.spec_from_file_location(name, file, submodule_search_locations=folders)
        return None

    def _now(self, file: str) -> str:
        if file in self._moved:
            return self._moved[file]
        inside = os.path.relpath(file, self._root)
        if self._copy is None or inside.startswith("..") or "site-packages" in inside:
            return file
        there = os.path.join(self._copy, inside)
        return there if os.path.isfile(there) else file


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
        operations: int = self._report._recorder.operations
        if spec["operations"]:
            return bool(operations >= spec["operations"] or seconds >= 3 * spec["limit"])
        if seconds < spec["limit"]:
            return False
        found = {(f.rule, f.line) for f in self._report.findings}
        return bool(seconds >= 2 * spec["limit"]) or all((rule, line) in found for rule, _, line in spec["wanted"])


def run(spec: dict[str, Any]) -> None:
    """Run the program, and write what came of it to a file."""
    os.chdir(spec["folder"])
    options, root, copy = types.SimpleNamespace(**spec["options"]), spec["root"], spec["copy"]
    if copy is not None:
        ours = str(Path(__file__).parents[3])
        inside = [os.path.relpath(path, root) for path in sys.path]
        sys.path[:] = [
            path
            if other.startswith("..") or not path or path == ours or "site-packages" in path
            else os.path.join(copy, other)
            for path, other in zip(sys.path, inside, strict=True)
        ]
    sys.meta_path.insert(0, _Moved(root, copy, spec["moved"]))
    random.seed(0)
    torch.manual_seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)
    name = options.program
    if not options.module and os.path.isabs(name):
        name = spec["moved"].get(name, name)
        inside_root = os.path.relpath(name, root)
        name = name if copy is None or inside_root.startswith("..") else os.path.join(copy, inside_root)
    status, error, raised = 0, "", []
    recording = audit(rules=options.select, ignore=options.ignore, values=options.values, every=options.every)
    report = recording.report
    watch = _Watch(report, spec)
    try:
        with recording:
            try:
                program = begun(name, options.arguments, options.module, spec["moved"])
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
    mine = [(file, line) for file, line in raised if not file.startswith((ours, "<")) and "site-packages" not in file]
    result = {
        "findings": list(report.findings), "status": status, "error": error, "raised": mine, "stopped": watch.stopped,
        "operations": report._recorder.operations,
    }  # fmt: skip
    with open(spec["result"], "wb") as stream:
        pickle.dump(result, stream)
    sys.stdout.flush()


def main() -> None:
    """Run each program whose description is named on standard input, in a process that is forked for it.

    So all begin with the same state, and what every program imports is imported once.
    """
    for line in sys.stdin:
        pid = os.fork()
        if not pid:
            os.setsid()
            spec = json.loads(Path(line.rstrip("\n")).read_text(encoding="utf-8"))
            for number, file in enumerate((os.devnull, spec["out"], os.devnull)):
                os.dup2(os.open(file, os.O_RDWR), number)
            sys.stdin = io.TextIOWrapper(io.FileIO(0, closefd=False))
            return run(spec)
        print(pid, flush=True)
        os.waitpid(pid, 0)
        print("over", flush=True)


if __name__ == "__main__":
    main()
