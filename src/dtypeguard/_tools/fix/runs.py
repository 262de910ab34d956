"""Runs of the program with other source files, in processes and in a folder of their own.

The folder looks like the working tree: sources and what the program writes are copies, all else are links, so a run
changes nothing outside of it.
"""

import contextlib
import json
import os
import pickle
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..._engine.watch.rule import Finding
from ..._engine.watch.spots import Spot
from .search import Run, Texts
from .source import decode

_MOST = 50_000  # files in a working tree that is copied
_LARGEST = 4 << 20  # bytes of a source file
_ASIDE = frozenset([".git", ".hg", "__pycache__", "node_modules", ".mypy_cache", ".ruff_cache", ".pytest_cache"])
_SOURCES = (".py", ".pyi", ".toml", ".cfg", ".ini")
_GRACE = 30.0  # seconds that a run may take longer than the one before it


class TooLarge(Exception):
    """The working tree has too many files to be copied."""


@dataclass(frozen=True)
class Program:
    """What is run, as the user gave it.

    Attributes:
        words: the options of `audit`, the program and its arguments.
        folder: the working directory.
        root: the working tree: the folder in which files may be written.
        environment: as the program found it.
        began: when the first run began, in seconds since 1970.
        there: the files that were there before.
    """

    options: Mapping[str, Any]
    folder: str
    root: str
    environment: Mapping[str, str]
    began: float
    there: frozenset[str] | None

    def mine(self, file: str) -> bool:
        """Whether a file may be edited."""
        return os.path.realpath(file).startswith(os.path.realpath(self.root) + os.sep)


def walk(root: str) -> Iterator[os.DirEntry[str]]:
    """The files and links of a working tree, but for what belongs to tools.

    Raises:
        TooLarge: where there are too many.
    """
    waiting, count = [root], 0
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                count += 1
                if count > _MOST:
                    raise TooLarge
                if entry.is_dir(follow_symlinks=False) and not _aside(entry):
                    waiting.append(entry.path)
                yield entry


def _aside(entry: os.DirEntry[str]) -> bool:
    return entry.name in _ASIDE or os.path.exists(os.path.join(entry.path, "pyvenv.cfg"))


def listed(root: str) -> frozenset[str] | None:
    """The files of a working tree; None for one that is too large, or cannot be read."""
    try:
        return frozenset(entry.path for entry in walk(root))
    except (TooLarge, OSError):
        return None


class Runs:
    """Runs of a program, one after the other, until the folder is closed."""

    def __init__(self, program: Program, limit: float) -> None:
        self.program, self._limit = program, limit
        self._folder = tempfile.mkdtemp(prefix="dtypeguard-")
        self.wanted: list[tuple[str, str, int]] = []
        self.operations = 0  # of the run without edits, where that was stopped
        self.seconds = 0.0
        self.count = 0
        self._server: subprocess.Popen[str] | None = None

    def close(self) -> None:
        """End what runs, and leave nothing."""
        if self._server is not None:
            self._server.kill()
            self._server.communicate()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def apart(self) -> bool:
        """Whether the program has a copy of the working tree."""
        return self.program.there is not None

    def __call__(self, texts: Texts) -> Run:
        """Run the program with these texts in place of its files.

        Raises:
            subprocess.TimeoutExpired: where it does not end.
        """
        self.count += 1
        folder = os.path.join(self._folder, str(self.count))
        os.mkdir(folder)
        copy = os.path.join(folder, "tree")
        moved = self._copied(copy, texts) if self.apart else {}
        for file, text in texts.items():
            if file not in moved:
                apart = os.path.join(folder, "site-packages", str(len(moved)), os.path.basename(file))
                os.makedirs(os.path.dirname(apart))
                moved[file] = apart
                self._write(file, apart, text)
        told = os.path.join(folder, "result")
        spec = {
            "options": dict(self.program.options), "root": self.program.root, "copy": copy if self.apart else None,
            "moved": moved, "result": told, "limit": self._limit, "wanted": self.wanted, "operations": self.operations,
            "folder": self._in_copy(self.program.folder, copy) if self.apart else self.program.folder,
            "out": os.path.join(folder, "out"),
        }  # fmt: skip
        lines = self._started(spec, folder)
        with open(told, "rb") as stream:
            result: dict[str, Any] = pickle.load(stream)  # of our own process, in a folder that only we can read
        back = {made: file for file, made in moved.items()}
        run = Run(
            [self._theirs(finding, copy, back) for finding in result["findings"]], result["status"], result["error"],
            tuple((self._home(file, copy, back), line) for file, line in result["raised"]),
            [line.replace(copy, self.program.root) for line in lines], result["stopped"], result["operations"],
        )  # fmt: skip
        shutil.rmtree(folder, ignore_errors=True)
        return run

    def _started(self, spec: dict[str, Any], folder: str) -> list[str]:
        """Run it, and give what it printed."""
        for name, data in (("spec", json.dumps(spec)), ("out", "")):
            Path(folder, name).write_text(data, encoding="utf-8")
        server = self._server = self._server or self._begun()
        asked, told = server.stdin, server.stdout
        assert asked is not None
        assert told is not None
        asked.write(f"{folder}/spec\n")
        asked.flush()
        pid, began = int(told.readline()), time.monotonic()
        try:
            longest = max(4 * self._limit, 4 * self.seconds) + _GRACE
            if not select.select([told], [], [], longest)[0]:
                raise subprocess.TimeoutExpired(server.args, longest)
            told.readline()
        finally:
            with contextlib.suppress(OSError):
                os.killpg(pid, signal.SIGKILL)  # and what it has started
        self.seconds = max(self.seconds, time.monotonic() - began)
        return Path(folder, "out").read_text(encoding="utf-8", errors="replace").splitlines()

    def _begun(self) -> subprocess.Popen[str]:
        """The process that runs programs."""
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # as multiprocessing does
        environment = {"PYTHONHASHSEED": "0", **self.program.environment, "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.Popen(
            [sys.executable, *flags, "-m", "dtypeguard._tools.audit.probe"], cwd=self.program.folder, env=environment,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
        )  # fmt: skip

    # ------------------------------------------------------------ the copy

    def _in_copy(self, path: str, copy: str) -> str:
        inside = os.path.relpath(path, self.program.root)
        return path if inside.startswith("..") else os.path.normpath(os.path.join(copy, inside))

    def _copied(self, copy: str, texts: Texts) -> dict[str, str]:
        """The working tree as it was before the first run, with the texts; where each of their files is."""
        program = self.program
        assert program.there is not None
        moved = {file: self._in_copy(file, copy) for file in texts if program.mine(file)}
        os.makedirs(copy)
        for entry in walk(program.root):
            target = self._in_copy(entry.path, copy)
            if entry.path in moved or not self._there(entry):
                continue
            if entry.is_dir(follow_symlinks=False) and not _aside(entry):
                os.makedirs(target, exist_ok=True)
            else:
                os.makedirs(os.path.dirname(target), exist_ok=True)
                self._take(entry, target)
        for file, target in moved.items():
            self._write(file, target, texts[file])
        return moved

    def _there(self, entry: os.DirEntry[str]) -> bool:
        return self.program.there is None or entry.path in self.program.there

    def _take(self, entry: os.DirEntry[str], target: str) -> None:
        """A copy of a source and of what the program wrote; of all else a link."""
        if entry.is_file(follow_symlinks=False):
            facts = entry.stat()
            written = facts.st_mtime >= self.program.began - 1
            if written or (entry.name.endswith(_SOURCES) and facts.st_size < _LARGEST):
                shutil.copy2(entry.path, target)
                return
        if entry.name != "__pycache__":
            os.symlink(entry.path, target)

    @staticmethod
    def _write(file: str, target: str, text: str) -> None:
        encoding = decode(Path(file).read_bytes())[1]
        Path(target).write_bytes(text.encode(encoding))

    # ------------------------------------------------------------ back

    def _home(self, file: str, copy: str, back: Mapping[str, str]) -> str:
        """The user's own file for one of a run."""
        if file in back:
            return back[file]
        inside = os.path.relpath(file, copy)
        return file if inside.startswith("..") else os.path.join(self.program.root, inside)

    def _theirs(self, finding: Finding, copy: str, back: Mapping[str, str]) -> Finding:
        def spot(one: Spot) -> Spot:
            return replace(one, file=self._home(one.file, copy, back))

        file = finding.file and self._home(finding.file, copy, back)
        edit = None if finding.edit is None else spot(finding.edit)
        spots = tuple(edit if one is finding.edit and edit is not None else spot(one) for one in finding.spots)
        return replace(finding, file=file, spots=spots, edit=edit)
