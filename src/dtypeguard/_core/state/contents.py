"""A manifest as a file: read by people, the same for the same state, its comments kept."""

import dataclasses
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from ..._show.files import named, write
from ..base.dtypes import BY_NAME
from ..base.pyproject import near
from .patterns import fewest, folded, kind_of, matcher, natural, unfolded
from .reading import SECTIONS, Held, Reading

FORMAT = 1
# One dtype, or several; of a subclass also what it keeps.
_DTYPE = re.compile(r"(?:(?:^| \+ | and )\w+(?: as \w+\(.*\))?)+")
_NEWER = re.compile(r"u?int[1-7]|b?complex\d+|float[468]_\w+|bits\w+")  # dtypes of some versions of PyTorch only
_HEAD = f"dtypeguard manifest {FORMAT}"
_SAYS = (
    "# Of the lines that match a name, the first counts; * is any text. [names] are what the model held when this",
    "# file was written: other names are new, and are not compared.",
)
_ORDER = (*SECTIONS, "tied", "names", "file names")
_END = ""  # the key of what stands at the end of a section
Key = tuple[str, str]  # section and pattern


@dataclass
class Contents:
    """What a manifest says.

    Attributes:
        title: the class of the model.
        lines: of each section, patterns and what the names that match them hold.
        tied: names of tensors that have another name already, and that name.
        names: the kinds of names that the model held; None in a file that does not say: then all are held to the lines.
        file_names: the same of the model's files, where they have other names.
        source: the file that it was read from.
        text: of that file.
    """

    title: str
    lines: dict[str, list[tuple[str, Held]]]
    tied: dict[str, str] = field(default_factory=dict)
    names: frozenset[str] | None = None
    file_names: frozenset[str] | None = None
    source: str = ""
    text: str = field(default="", repr=False)

    def facts(self) -> tuple[object, ...]:
        """What it says, wherever it comes from."""
        return self.title, self.lines, self.tied, self.names, self.file_names

    def asks(self, fact: str) -> bool:
        """Whether it holds `shape`, or `device`."""
        return any(getattr(held, fact) is not None for lines in self.lines.values() for _, held in lines)

    @property
    def anew(self) -> str:
        """The call that makes another one that holds as much."""
        holds = {
            "optimizer": "optimizer" in self.lines,
            "batch=batch": "computes" in self.lines,
            "shapes=True": self.asks("shape"),
            "devices=True": self.asks("device"),
        }
        save = f".save({self.source!r})" if self.source else ""
        return f"dtypeguard.manifest({', '.join(['model', *(name for name in holds if holds[name])])}){save}"

    def of_files(self) -> "Contents":
        """What it says of the model's files, where they have other names."""
        lines = {"tensors": self.lines.get("files", [])}
        return Contents(self.title, lines, {}, self.file_names, source=self.source)

    def line(self, section: str, name: str) -> tuple[str, Held] | None:
        """The line that a name is held to; None for a new one."""
        if section == "tensors" and self.names is not None and kind_of(name) not in self.names:
            return None
        return next((line for line in self.lines.get(section, ()) if matcher(line[0])(name)), None)


def contents_of(reading: Reading) -> Contents:
    """What a manifest says of what was read."""
    lines: dict[str, list[tuple[str, Held]]] = {}
    for section, held in reading.sections.items():
        found = fewest({name: str(what) for name, what in held.items()}, broad=section != "tensors")
        if found:
            lines[section] = [(pattern, Held.read(text)) for pattern, text in found]
    names, files = (frozenset(map(kind_of, reading.sections.get(part, ()))) for part in ("tensors", "files"))
    return Contents(reading.title, lines, dict(reading.tied), names, files or None)


# ---------------------------------------------------------------- reading


def parsed(text: str, source: str) -> Contents:
    """What a file says.

    Raises:
        ValueError: it is none, of a newer format, or a line of it cannot be read.
    """
    found = Contents("model", {}, source=source, text=text)
    names: dict[str, list[str]] = {}
    head = re.match(r"dtypeguard manifest (\d+)\s*(#.*)?$", text.partition("\n")[0])
    if head is None:
        raise ValueError(f"{source} is no manifest: its first line is not `{_HEAD}`")
    if int(head[1]) > FORMAT:
        raise ValueError(f"{source} has format {head[1]}, and this dtypeguard knows {FORMAT}: update dtypeguard")
    for number, (section, left, right) in _rows(text):
        if section in ("names", "file names"):
            names.setdefault(section, []).extend([left] if left else [])
        elif left and not right:
            raise ValueError(f"{source}, line {number}: {left!r} stands alone; write a pattern, spaces and a dtype")
        elif left and section == "":
            found.title = right if left == "model" else found.title
        elif left and section == "tied":
            found.tied[left] = right
        elif section and section not in _ORDER:
            raise ValueError(f"{source}, line {number}: there is no section [{section}], only {', '.join(_ORDER)}")
        elif left:
            held = Held.read(right)
            if (meant := _meant(held.dtype)) or not _DTYPE.fullmatch(held.dtype):
                raise ValueError(f"{source}, line {number}: {held.dtype!r} is no dtype{meant}")
            found.lines.setdefault(section, []).append((left, held))
    found.names, found.file_names = (
        frozenset(map(kind_of, unfolded(names[section]))) if section in names else None
        for section in ("names", "file names")
    )
    return found


def _meant(text: str) -> str:
    """Which dtype was meant by one that there is not; nothing for what another version of PyTorch may have."""
    word = text.partition(" ")[0]
    if isinstance(getattr(torch, word, None), torch.dtype) or _NEWER.fullmatch(word):
        return ""
    return near(word.rpartition(".")[2], BY_NAME)


def _rows(text: str) -> Iterator[tuple[int, tuple[str, str, str]]]:
    """The number of each line after the first, its section, and its two columns."""
    section = ""
    for number, line in enumerate(text.splitlines()[1:], 2):
        line = line.partition("#")[0].strip()
        header = re.fullmatch(r"\[([\w ]+)\]", line)
        section = header[1] if header else section
        left, _, right = ("", "", "") if header else (line + " ").partition(" ")
        yield number, (section, left, right.strip())


def is_manifest(path: str | os.PathLike[str]) -> bool:
    """Whether a file begins as a manifest does."""
    if os.path.isdir(path):
        return False
    with open(path, "rb") as file:
        return file.read(19) == b"dtypeguard manifest"


def load(path: str | os.PathLike[str]) -> Contents:
    """What a file says.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no manifest.
    """
    try:
        text = Path(named(path, "dtypes.lock")).read_text("utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{os.fspath(path)} is no manifest: it is no text") from None
    return parsed(text, os.fspath(path))


# ---------------------------------------------------------------- writing


def save(contents: Contents, reading: Reading | None, path: str | os.PathLike[str]) -> None:
    """Write a file. What is there keeps its comments, and the sections that are right as they are.

    Raises:
        OSError: it cannot be written.
        ValueError: what is there is no manifest.
    """
    old = load(path) if os.path.exists(path) else None
    if old is not None and reading is not None:
        lines = {name: _as_written(name, rows, old, reading) for name, rows in contents.lines.items()}
        contents = dataclasses.replace(contents, lines=lines)
    if old is None or old.facts() != contents.facts():
        write(path, written(contents, "" if old is None else old.text), "dtypes.lock")


def _as_written(section: str, lines: list[tuple[str, Held]], old: Contents, reading: Reading) -> list[tuple[str, Held]]:
    """The lines of a section as somebody wrote them, if they say the same."""
    known = old.lines.get(section, [])
    for name, held in reading.sections[section].items():
        if next((what for pattern, what in known if matcher(pattern)(name)), None) != held:
            return lines
    return known


def written(contents: Contents, old: str = "") -> str:
    """The text of a file, with the comments of an old one."""
    notes = _notes(old)
    if not old:
        notes[_END, "model"] = [*_SAYS], ""
    sections: dict[str, Mapping[str, str]] = {"": {"model": contents.title}}
    for name in SECTIONS:
        sections[name] = {pattern: str(held) for pattern, held in contents.lines.get(name, ())}
    sections["tied"] = dict(sorted(contents.tied.items(), key=lambda pair: natural(pair[0])))
    sections["names"] = dict.fromkeys(folded(contents.names or ()), "")
    sections["file names"] = dict.fromkeys(folded(contents.file_names or ()), "")
    out = [old.partition("\n")[0].rstrip() or _HEAD]
    for name, rows in sections.items():
        there = [key for key in notes if key[0] == name]
        if rows:
            out += ["", f"[{name}]"] if name else []
        width = max(map(len, rows), default=0)
        gone = [key for key in there if key[1] not in rows]
        for left, right in rows.items():
            while gone and there.index(gone[0]) < _position(there, (name, left)):
                out += _all_notes(notes[gone.pop(0)])
            above, beside = notes.get((name, left), ([], ""))
            line = f"{left:<{width}}  {right}".rstrip()
            out += [*above, f"{line}  {beside}" if beside else line]
        out += [text for key in gone for text in _all_notes(notes[key])]
    return "\n".join(out) + "\n"


def _position(keys: list[Key], key: Key) -> int:
    return keys.index(key) if key in keys else -1


def _all_notes(notes: tuple[list[str], str]) -> list[str]:
    above, beside = notes
    return [*above, beside] if beside else above


def _notes(text: str) -> dict[Key, tuple[list[str], str]]:
    """The comments of a file: those above each line, and the one beside it."""
    found: dict[Key, tuple[list[str], str]] = {}
    above: list[str] = []
    before = ""
    rows = dict(_rows(text))
    for number, line in enumerate(text.splitlines()[1:], 2):
        section, left, _ = rows[number]
        code, sign, rest = line.partition("#")
        if section != before and above:
            found[before, _END] = above, ""
            above = []
        before = section
        if sign and not code.strip():
            above.append(line.rstrip())
        elif left:
            found[section, left] = above, sign + rest.rstrip()
            above = []
    if above:
        found[before, _END] = above, ""
    return found
