"""A working tree as it was before a program ran, and copies of it in which the program runs again.

Copies hold files, not links to the user's. But folders of packages, folders with thousands of files, and large files
are links, through which nothing may be written: `audit.probe` stands on guard.
"""

import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

_MOST, _MANY = 50_000, 2_000  # entries: of a tree, and of a folder that is data
_LARGE, _ALL = 16 << 20, 512 << 20  # bytes: of a file that is a link, and of all others together
_LEFT_OUT = frozenset(
    ["__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis", ".ipynb_checkpoints"]
)
_PACKAGES = frozenset(["node_modules", ".tox", ".nox", ".hg"])


class TooLarge(Exception):
    """A tree that cannot be copied; says why."""


def root_of(folder: str, script: str | None) -> str:
    """The working tree of a program: the repository of the working directory, or that; the script's folder with it."""
    parents = [Path(folder), *Path(folder).parents]
    root = str(next((one for one in parents if (one / ".git").exists()), folder))
    if script is not None:
        root = os.path.commonpath([root, os.path.dirname(script)])
    if root == os.sep:
        raise TooLarge(f"{folder} and the program have only {root} in common, which is too much to copy")
    return root


class Tree:
    """A working tree. Of the home folder and that for temporary files, whose folders are of others, it is the files.

    Attributes:
        linked: the files and folders that are links in copies.
    """

    def __init__(self, root: str, store: str) -> None:
        self.root, self._base, self._store = root, os.path.join(store, "base"), store
        self._around, self._beside = os.path.join(store, "around"), frozenset(_beside(root))
        self._shared = root in map(os.path.realpath, (os.path.expanduser("~"), tempfile.gettempdir()))
        self.linked: set[str] = set()
        self._entries = self._bytes = 0
        self._fill(root, self._base)
        os.mkdir(self._around)
        self._link_beside(self._beside)

    def _fill(self, folder: str, target: str) -> None:
        os.mkdir(target)
        for entry in self._in(folder):
            self._entries += 1
            if self._entries > _MOST:
                raise TooLarge(f"{self.root} has more than {_MOST:,} files")
            there = os.path.join(target, entry.name)
            if entry.is_symlink():
                self._link_like(entry, there)
            elif entry.is_dir():
                self._folder(entry, there)
            elif stat.S_ISREG(entry.stat().st_mode):
                self._file(entry, there)

    def _in(self, folder: str) -> list[os.DirEntry[str]]:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if entry.name not in _LEFT_OUT and entry.path != self._store]

    def _folder(self, entry: os.DirEntry[str], there: str) -> None:
        if entry.name == ".git":
            self._repository(entry.path, there)
        elif self._shared or entry.name in _PACKAGES or self._is_data(entry.path):
            self._link(entry.path, there)
        else:
            self._fill(entry.path, there)

    def _is_data(self, folder: str) -> bool:
        """Whether a folder has packages or thousands of files, or may not be read."""
        try:
            return os.path.exists(os.path.join(folder, "pyvenv.cfg")) or len(self._in(folder)) > _MANY
        except OSError:
            return True

    def _file(self, entry: os.DirEntry[str], there: str) -> None:
        size = entry.stat().st_size
        if size > _LARGE:
            return self._link(entry.path, there)
        self._bytes += size
        if self._bytes > _ALL:
            raise TooLarge(f"{self.root} has more than {_ALL >> 20} MB of files")
        try:
            shutil.copy2(entry.path, there)
        except OSError:  # it may not be read
            self._link(entry.path, there)

    def _link(self, path: str, there: str) -> None:
        self.linked.add(path)
        os.symlink(path, there)

    def _link_like(self, entry: os.DirEntry[str], there: str) -> None:
        """A link of the tree: to the copy, where it leads into the tree."""
        real = os.path.realpath(entry.path)
        if inside(real, self.root):
            real = os.path.relpath(real, os.path.realpath(os.path.dirname(entry.path)))
        os.symlink(real, there)

    def _repository(self, path: str, there: str) -> None:
        """A repository of its own, which reads the objects of the other."""
        shutil.copytree(
            path, there, symlinks=True, ignore=lambda folder, names: {"objects"} if folder == path else set()
        )
        info = Path(there, "objects", "info")
        info.mkdir(parents=True)
        (info / "alternates").write_text(f"{path}/objects\n", encoding="utf-8")

    # ------------------------------------------------------------ what was there

    def mine(self, file: str) -> bool:
        """Whether a file, by its real path, is of the tree and may be edited."""
        parts = [file, *map(str, Path(file).parents)]
        return inside(file, self.root) and not self.linked.intersection(parts)

    def data(self, file: str) -> bytes:
        """The bytes that a file of the tree had before the program ran."""
        return Path(self._base, os.path.relpath(file, self.root)).read_bytes()

    @contextlib.contextmanager
    def copied(self, around: str, files: Mapping[str, bytes]) -> Iterator[str]:
        """A copy of the tree in the folder `around`, with these files; beside it links to what stands beside the tree.

        The links, of which there may be thousands, are made once: one copy after the other has them.
        """
        os.rename(self._around, around)
        target = os.path.join(around, os.path.basename(self.root))
        try:
            shutil.copytree(self._base, target, symlinks=True)
            for file, data in files.items():
                Path(target, os.path.relpath(file, self.root)).write_bytes(data)
            yield target
        finally:
            os.rename(around, self._around)
            self._clear()

    def _clear(self) -> None:
        """Nothing stays of a copy, nor of what a program wrote beside it."""
        left = set()
        for entry in os.scandir(self._around):
            if entry.is_symlink() and entry.name in self._beside:
                left.add(entry.name)
            elif entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            else:
                os.remove(entry.path)
        self._link_beside(self._beside - left)

    def _link_beside(self, names: Iterable[str]) -> None:
        for name in names:
            os.symlink(os.path.join(os.path.dirname(self.root), name), os.path.join(self._around, name))


def _beside(root: str) -> Iterator[str]:
    with contextlib.suppress(OSError):
        names = os.listdir(os.path.dirname(root))
        yield from (name for name in names[:_MANY] if name != os.path.basename(root))


def inside(path: str, folder: str) -> bool:
    """Whether a path is in a folder, or is the folder."""
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)
