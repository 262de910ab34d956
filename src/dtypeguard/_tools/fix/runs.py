"""Runs of the program with other source files, each in a process and in a copy of the working tree of its own."""

import contextlib
import importlib
import json
import multiprocessing
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from ..._core.base.frames import is_own
from ..._engine.watch.rule import Finding
from ..._engine.watch.spots import Spot
from .copies import Tree, inside, root_of
from .program import Run, Texts
from .source import decode

_PROBE = "dtypeguard._tools.audit.probe"  # a room above this one
_GRACE = 30.0  # seconds that a run may take longer than the one before it


class Failed(Exception):
    """A run that came to nothing; says why."""


def real(file: str) -> str:
    """A file's path without links in it; the name of what is no file as it is."""
    return os.path.realpath(file) if os.path.isfile(file) else file


def moved(finding: Finding, home: Callable[[str], str]) -> Finding:
    """A finding with the names of other files."""

    def spot(one: Spot) -> Spot:
        return replace(one, file=home(one.file))

    edit = finding.edit and spot(finding.edit)
    spots = tuple(edit if one is finding.edit and edit is not None else spot(one) for one in finding.spots)
    return replace(finding, file=finding.file and home(finding.file), spots=spots, edit=edit)


def _loads_nothing_else() -> bool:
    """Whether this process is the command's, before it has run a program."""
    main = str(getattr(sys.modules["__main__"], "__file__", ""))
    return is_own(main) and threading.active_count() == 1


class _Forked:
    """The process that runs programs as a fork of the command's, which has loaded torch already.

    It has what is used of a `subprocess.Popen`.
    """

    def __init__(self, folder: str, environment: Mapping[str, str], ours: Connection, theirs: Connection) -> None:
        serve = importlib.import_module(_PROBE).serve
        for stream in (sys.stdout, sys.stderr):
            stream.flush()  # or the fork would write it once more
        self.pid = os.fork()
        if self.pid:
            return
        try:
            os.setsid()
            os.chdir(folder)
            os.environ.update(environment)
            sys.dont_write_bytecode = True
            for number in range(3):
                os.dup2(os.open(os.devnull, os.O_RDWR), number)
            ours.close()
            serve(folder, theirs)
        finally:
            os._exit(0)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> None:
        with contextlib.suppress(ChildProcessError):  # the program has waited for any child
            os.waitpid(self.pid, 0)


class Runs:
    """Runs of a program, one after the other, until they are closed.

    Args:
        options: those of `audit`, the program and its arguments.
        folder: the working directory.
        limit: the seconds after which a run may be stopped.

    Raises:
        TooLarge: the working tree cannot be copied.
    """

    def __init__(self, options: Mapping[str, Any], folder: str, limit: float) -> None:
        self._options, self._there, self._limit = options, folder, limit
        self.wanted: list[tuple[str, int]] = []
        self.operations = 0  # of the run without edits, where that was stopped
        self.count, self.seconds = 0, 0.0
        self.whole = 0  # runs that were not cut short to try an edit
        script = None if options["module"] else os.path.realpath(options["program"])
        root = root_of(os.path.realpath(folder), script)
        self._folder = os.path.realpath(tempfile.mkdtemp(prefix="dtypeguard-"))
        try:
            self.tree = Tree(root, self._folder)
            self._server = self._begun()
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise

    def _begun(self) -> "subprocess.Popen[bytes] | _Forked":
        """The process that runs programs. It ends with this one, and takes the folder with it."""
        environment = {"PYTHONHASHSEED": "0", **os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        paths = environment.get("PYTHONPATH", "").split(os.pathsep)
        if any(paths):
            environment["PYTHONPATH"] = os.pathsep.join(os.path.join(self._there, path) for path in paths if path)
        self._pipe, theirs = multiprocessing.Pipe()
        with theirs:
            if _loads_nothing_else():
                return _Forked(self._folder, environment, self._pipe, theirs)
            flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # as multiprocessing does
            command = ["-m", _PROBE, self._folder, str(theirs.fileno())]
            return subprocess.Popen(
                [sys.executable, *flags, *command], cwd=self._folder, env=environment, pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip

    def close(self) -> None:
        """End what runs, and leave nothing."""
        self._server.kill()
        self._server.wait()
        self._pipe.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __call__(self, texts: Texts, values: bool | None = None, operations: int = 0) -> Run:
        """Run the program with these texts in place of its files.

        Args:
            texts: those of some files.
            values: whether to follow values; None: as the audit was asked to.
            operations: after how many to stop; 0: as the run without edits.

        Raises:
            Failed: it does not end, or ends without a result.
        """
        self.count += 1
        self.whole += not operations
        folder = os.path.join(self._folder, str(self.count))
        os.makedirs(os.path.join(folder, "tmp"))
        data = {file: text.encode(decode(self.data(file))[1]) for file, text in texts.items()}
        around = os.path.join(folder, "tree")  # of its own: what stands beside the tree may have any name
        with self.tree.copied(around, {file: one for file, one in data.items() if self.tree.mine(file)}) as copy:
            run = self._run(folder, copy, data, values, operations)
        shutil.rmtree(folder, ignore_errors=True)
        return run

    def _run(
        self, folder: str, copy: str, data: Mapping[str, bytes], values: bool | None, operations: int
    ) -> Run:  # fmt: skip
        """Run what is in a copy of the tree; `data` are the files that are not as they were."""
        apart = {}
        for number, file in enumerate(file for file in data if not self.tree.mine(file)):
            apart[file] = os.path.join(folder, "site-packages", str(number), os.path.basename(file))
            os.makedirs(os.path.dirname(apart[file]))
            Path(apart[file]).write_bytes(data[file])
        spec = {
            "options": dict(self._options, values=self._options["values"] if values is None else values),
            "root": self.tree.root, "copy": copy, "apart": apart, "own": folder,
            "limit": self._limit, "wanted": self.wanted,
            "operations": operations or self.operations,
            "folder": os.path.join(copy, os.path.relpath(os.path.realpath(self._there), self.tree.root)),
        }  # fmt: skip
        Path(folder, "spec").write_text(json.dumps(spec), encoding="utf-8")
        Path(folder, "out").touch()
        died = self._started(folder)
        result = Path(folder, "result")
        try:
            told = pickle.loads(result.read_bytes())  # of our own process, in a folder that only we can read
        except (OSError, EOFError, pickle.UnpicklingError):  # it was killed before all was written
            raise Failed(f"it ended without a result when it was run again{died}") from None
        out = Path(folder, "out").read_text(encoding="utf-8", errors="replace").replace(copy, self.tree.root)
        back = {made: file for file, made in apart.items()}

        def home(file: str) -> str:
            file = back.get(file, file)
            return real(os.path.join(self.tree.root, os.path.relpath(file, copy)) if inside(file, copy) else file)

        told["findings"] = [moved(finding, home) for finding in told["findings"]]
        told["files"] = tuple(map(home, told["files"]))
        for name in ("raised", "merged"):
            told[name] = tuple((home(file), line) for file, line in told[name])
        told["casts"] = tuple(one._replace(file=home(one.file)) for one in told["casts"])
        for name in ("results", "errors", "leaving"):
            told[name] = told[name] and {(home(file), line): one for (file, line), one in told[name].items()}
        return Run(**told, lines=out.splitlines())

    def data(self, file: str) -> bytes:
        """The bytes of a source file: of the tree, as they were before the first run."""
        return self.tree.data(file) if self.tree.mine(file) else Path(file).read_bytes()

    # ------------------------------------------------------------ the process

    def _started(self, folder: str) -> str:
        """Run what is described in a folder; how it died, if it did."""
        longest = max(4 * self._limit, 4 * self.seconds) + _GRACE
        with contextlib.suppress(ConnectionError):
            self._pipe.send(folder)
        pid, began = self._told(_GRACE), time.monotonic()
        try:
            code = self._told(longest)
        finally:
            with contextlib.suppress(OSError):
                os.killpg(pid, signal.SIGKILL)  # and what it has started
        self.seconds = max(self.seconds, time.monotonic() - began)
        return f" (killed by signal {-code})" if code < 0 else f" (exit status {code})"

    def _told(self, seconds: float) -> int:
        """The number that the process says next."""
        if not self._pipe.poll(seconds):
            raise Failed(f"it did not end when it was run again (--prove-limit {self._limit:g})")
        try:
            return int(self._pipe.recv())
        except (EOFError, ConnectionError):
            raise Failed("the process that runs it has ended") from None
