"""Results as files."""

import contextlib
import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any


def as_json(data: dict[str, Any], path: str | os.PathLike[str] | None) -> str:
    """Plain data as JSON, which is written to a file too if a path is given."""
    text = json.dumps(data, indent=1, allow_nan=False)
    if path is not None:
        write(path, text + "\n", "report.json")
    return text


def named(path: Any, example: str, option: str = "path") -> str | os.PathLike[str]:
    """The name of a file, as an option has it."""
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"{option} must be the name of a file, {example!r} for example, not {type(path).__name__}")
    return path


def write(path: str | os.PathLike[str], content: str | bytes, example: str = "report.txt") -> None:
    """Write a text or bytes, all or nothing: an old file stays as it is until the new one is complete.

    `example` is the name of a file, for the error where the path is a folder.
    """
    file = Path(os.path.realpath(named(path, example)))  # a link stays one
    data = content.encode("utf-8") if isinstance(content, str) else content
    if file.is_dir():
        inside = os.path.join(path, example)
        raise IsADirectoryError(f"path={os.fspath(path)!r} is a folder: name a file in it, {inside!r} for example")
    try:
        _replace(file, data)
    except OSError as error:
        refused = type(error)(f"cannot write path={os.fspath(path)!r}: {_reason(file, error)}")
        refused.errno = error.errno
        raise refused from None


def _replace(file: Path, data: bytes) -> None:
    if not file.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "no such folder")
    if not _replaceable(file):
        file.write_bytes(data)
        return
    draft = _draft(file)
    try:
        draft.write_bytes(data)
        if file.exists():
            shutil.copymode(file, draft)
            with contextlib.suppress(AttributeError, OSError):  # not everybody may give files away
                os.chown(draft, file.stat().st_uid, file.stat().st_gid)
        os.replace(draft, file)
    finally:
        draft.unlink(missing_ok=True)


def writable(path: str) -> str:
    """The path, absolute, if a file can be written there; else a ValueError. Nothing is left of the attempt."""
    file = os.path.abspath(path)
    if os.path.isdir(file):
        raise ValueError(f"cannot write {path}: it is a folder")
    real = Path(os.path.realpath(file))
    try:
        if not real.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, "no such folder")
        if _replaceable(real):
            _draft(real).touch()
            _draft(real).unlink()
        elif real.is_file():
            real.open("a").close()
        elif not real.exists() or not os.access(real, os.W_OK):
            raise PermissionError(0, "Permission denied")
    except OSError as error:
        raise ValueError(f"cannot write {path}: {_reason(Path(file), error)}") from error
    return file


def _reason(file: Path, error: OSError) -> str:
    """Why a file cannot be written."""
    if not file.parent.is_dir():
        return f"there is no folder {file.parent}"
    return (error.strerror or "failed").lower()


def _draft(file: Path) -> Path:
    return file.with_name(f".{file.name[:100]}.{os.getpid()}.tmp")


def _replaceable(file: Path) -> bool:
    """Whether a draft can take the file's place: it is no device or pipe, and its folder takes new files."""
    if file.exists():  # a file with several names keeps them
        alone = file.is_file() and file.stat().st_nlink == 1
        return alone and os.access(file, os.W_OK) and os.access(file.parent, os.W_OK)
    return os.access(file.parent, os.W_OK)
