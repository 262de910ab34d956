"""Where a model, or a checkpoint, differs from what a manifest says."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from ..._show.result import Row
from ..._show.text import number
from ..base import errors
from ..base.errors import StateError
from .contents import Contents
from .patterns import fewest, folded, kind_of, matcher, natural
from .reading import Held, Reading

_FEW = 0.5  # of the names: with fewer it is another model
_MOST = 8  # lines that name what differs and nothing else; if there are more, `*` may stand for it
_SAVED, _ANY = "saved", "any dtype"


@dataclass(frozen=True)
class Difference(Row):
    """One line: tensors that differ alike.

    Attributes:
        section: `tensors`, `gradients`, `optimizer`, `computes` or `tied`.
        pattern: the pattern of their names.
        expected: what the manifest says.
        actual: what they are; nothing if there are none.
        names: the names of the tensors, in the model or the checkpoint.
        matched: how many tensors the pattern matches, those that do not differ too.
        line: the line of the manifest.
        origin: during an audit, the line of the program that changed the first of them.
    """

    section: str
    pattern: str
    expected: str
    actual: str
    names: tuple[str, ...]
    matched: int
    line: str
    origin: str = ""

    def __str__(self) -> str:
        return f"{self.pattern}  {self.what}"

    @property
    def what(self) -> str:
        """Both sides: `float32 -> bfloat16 (64 tensors)`."""
        share = f"{len(self.names):,} of " if len(self.names) < self.matched else ""
        several = f" ({share}{number(self.matched, 'tensor')})" if self.matched > 1 else ""
        return f"{self.expected} -> {self.actual or 'missing'}{several}"


@dataclass
class Differences:
    """What differs; empty if nothing does.

    Attributes:
        title, source: what was compared, and the file of the manifest.
        anew: the call that makes the manifest.
        rows: what differs.
        new: tensors that the manifest does not know, by pattern: no fault.
        unused: patterns of the manifest that match no name, neither here nor of those that it knows.
        stranger: why it is another model, of which nothing more is said; else nothing.
        compared: how many tensors were; of a manifest beside a manifest, how many names without their numbers.
        unit: which of both.
        beside: the same of other sections, such as the optimizer's.
        kinds: by name without numbers, what the manifest says, and what is there if that differs.
    """

    title: str
    source: str
    anew: str
    rows: list[Difference] = field(default_factory=list)
    new: list[tuple[str, str]] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)
    stranger: str = ""
    compared: int = 0
    unit: str = "tensor"
    beside: dict[str, int] = field(default_factory=dict, repr=False)
    kinds: dict[str, tuple[str, ...]] = field(default_factory=dict, repr=False)

    def __bool__(self) -> bool:
        return bool(self.rows or self.stranger)

    def head(self) -> str:
        """All of it in a line."""
        source = self.source or "the manifest"
        if self.stranger:
            return f"{self.title} is another model than that of {source}: {self.stranger}"
        if not self.rows:
            return f"{self.title} is as {source} says ({number(self.compared, self.unit)})"
        several = len({(row.section, name) for row in self.rows for name in row.names})
        beside = {row.section for row in self.rows} & self.beside.keys()
        compared = sum(self.beside[section] for section in beside)
        compared += self.compared if any(row.section not in beside for row in self.rows) else 0
        return f"{self.title} differs from {source} in {several:,} of {number(compared, self.unit)}"

    def lines(self) -> list[tuple[str, str]]:
        """Each difference: the pattern, and both sides."""
        found = []
        for row in self.rows:
            pattern = row.pattern if row.section in ("tensors", "tied") else f"[{row.section}] {row.pattern}"
            found.append((pattern, row.what + (f", {row.origin}" if row.origin else "")))
        return found


def differences(contents: Contents, reading: Reading) -> Differences:
    """Compare what was read with what a manifest says."""
    anew = contents.anew
    if reading.saved and contents.file_names:
        below = (_prefixes(reading.sections["tensors"], names) for names in (contents.names, contents.file_names))
        known, in_files = (max(map(len, names.values()), default=0) for names in below)
        contents = contents.of_files() if in_files > known else contents
    found = Differences(reading.title, contents.source, anew, unit=reading.unit)
    saved = [name for name in contents.names or () if _is_saved(contents, name)]
    whole = 0  # names in the first copy of the model; another one, such as an average, may have no buffers
    for prefix, sections in _align_names(contents, reading):
        there = set(map(kind_of, sections["tensors"]))
        gone = sorted({*saved} - there, key=natural)
        if saved and len(gone) > _FEW * len(saved):
            share = f"{len(saved) - len(gone)} of its {number(len(saved), 'name')}"
            found.stranger = f"it has {share}, and no `{gone[0]}`"
            return found
        if prefix:
            found.title += f", {prefix}*"
        for section, names in sections.items():
            _compare_section(found, contents, reading, section, names)
        ties = (set(map(kind_of, pair)) for pair in contents.tied.items())
        shared = {name for pair in ties if pair & there for name in pair}
        whole = whole or len(sections["tensors"])
        for name in (name for name in gone if name not in shared and len(sections["tensors"]) == whole):
            pattern, held = contents.line("tensors", name) or (name, Held(_ANY))
            found.rows.append(Difference("tensors", name, str(held), "", (name,), 1, pattern))
        _untied(found, contents, reading, sections["tensors"])
        for pattern, _ in contents.lines.get("tensors", ()):
            every = sections["tensors"] if any(map(str.isdecimal, pattern)) else {*there, *(contents.names or ())}
            found.unused += [] if any(map(matcher(pattern), every)) else [pattern]
    found.stranger = _other_class(found, contents, reading)
    found.rows = [] if found.stranger else found.rows
    return found


def _other_class(found: Differences, contents: Contents, reading: Reading) -> str:
    """Why it is another model though it has the names; nothing if it is not, or is a file or a wrapper."""
    if reading.saved or reading.unit != "tensor" or found.title != reading.title or not contents.title.isidentifier():
        return ""
    rows = [row for row in found.rows if row.section == "tensors"]
    gone = sum(len(row.names) for row in rows if not row.actual)
    differ, every = sum(len(row.names) for row in rows), found.compared + gone
    if contents.title == reading.title or differ <= _FEW * every:
        return ""
    return f"it is no {contents.title}, and {differ:,} of {number(every, 'tensor')} differ, as {rows[0]}"


def _is_saved(contents: Contents, name: str) -> bool:
    line = contents.line("tensors", name)
    return line is None or not line[1].mark


def _compare_section(
    found: Differences, contents: Contents, reading: Reading, section: str, names: Mapping[str, str]
) -> None:
    """The tensors of a section, by the name that the manifest has for them and their own."""
    held = reading.sections[section if section in reading.sections else "tensors"]
    sides = dict[str, tuple[str, ...]]()  # nothing for what is right
    lines, new = dict[str, str](), dict[str, str]()  # of the manifest; and what it does not know
    numbered = any(char.isdecimal() for pattern, _ in contents.lines.get(section, ()) for char in pattern)
    known = dict[tuple[str, Held], tuple[str, tuple[str, ...]] | None]()  # names alike, which are compared once
    for name, own in names.items():
        key = name if numbered else kind_of(name), held[own]
        if key not in known:
            line = contents.line(section, key[0])
            known[key] = line and (line[0], _sides(line[1], key[1], reading.saved))
            if section == "tensors" and line:
                told, kind = _sides(line[1], key[1], reading.saved) or (str(line[1]),), kind_of(name)
                found.kinds[kind] = max(told, found.kinds.get(kind, told), key=len)
        alike = known[key]
        if alike is not None:
            lines[name], sides[name] = alike
        elif contents.lines.get(section):
            new[name] = str(held[own])
    if section == "tensors":
        found.compared += len(sides)
    else:
        found.beside[section] = found.beside.get(section, 0) + len(sides)
    for pattern, members, matched in _cover({name: "\n".join(both) for name, both in sides.items()}):
        expected, actual = sides[members[0]]
        own_names, first = tuple(names[name] for name in members), lines[members[0]]
        origin = origin_of(reading.alive.get(own_names[0]))
        found.rows.append(Difference(section, pattern, expected, actual, own_names, matched, first, origin))
    found.new += _patterns(new)


def _cover(texts: dict[str, str]) -> Iterator[tuple[str, list[str], int]]:
    """Patterns for the names that have a text, with these names, and how many names each matches in all."""
    if not any(texts.values()):
        return
    exact = fewest(texts) if all(texts.values()) else fewest(texts, usual="")
    left = dict(texts)
    for pattern, text in exact if len(exact) <= _MOST else fewest(texts):
        matched = list(filter(matcher(pattern), texts))
        members = [name for name in matched if left.get(name) == text]
        for name in members:
            del left[name]
        if text and members:
            yield pattern, members, len(matched)


def _patterns(values: Mapping[str, str]) -> list[tuple[str, str]]:
    """New names with what they hold, one line for each kind."""
    kinds = {kind_of(name): value for name, value in values.items()}
    groups: dict[str, list[str]] = defaultdict(list)
    for kind, value in kinds.items():
        groups[value].append(kind)
    return sorted((line, value) for value, names in groups.items() for line in folded(names))


def _sides(expected: Held, actual: Held, saved: bool) -> tuple[str, ...]:
    """What should be and what is, as far as the manifest asks; nothing if they agree."""
    wanted = expected._replace(mark="", device=None) if saved else expected
    asked = Held(
        actual.dtype,
        "" if saved else actual.mark,
        None if wanted.shape is None else actual.shape,
        None if wanted.device is None else actual.device,
    )
    if wanted == asked:
        return ()
    if wanted.mark == asked.mark:
        return str(wanted._replace(mark="")), str(asked._replace(mark=""))
    if wanted == asked._replace(mark=wanted.mark):
        return wanted.mark or _SAVED, asked.mark or _SAVED
    return str(wanted._replace(mark=wanted.mark or _SAVED)), str(asked._replace(mark=asked.mark or _SAVED))


def _untied(found: Differences, contents: Contents, reading: Reading, names: Mapping[str, str]) -> None:
    if reading.saved:
        return
    for name, first in contents.tied.items():
        one, other = (reading.alive.get(names.get(each, "")) for each in (name, first))
        if one is not None and other is not None and one is not other:
            found.rows.append(Difference("tied", name, f"tied to {first}", "a tensor of its own", (name,), 1, name))


def origin_of(tensor: Tensor | None) -> str:
    """During an audit: the line that gave a tensor its dtype."""
    if tensor is None or not errors.origins:
        return ""
    places = [line.rpartition(":")[0] for line in errors.origins[-1](tensor) if " at " in line]
    return f"since {places[-1]}" if places else ""


# ---------------------------------------------------------------- names


def _align_names(contents: Contents, reading: Reading) -> Iterator[tuple[str, dict[str, dict[str, str]]]]:
    """By section the names that the manifest has, with those of what was read; and what stands before the latter.

    A checkpoint has the model's names below `model.`, `module.`, `state_dict.` and the like, more than once if it has
    an average too, and the optimizer's state beside them. A PEFT model has `base_model.model.` before its names.
    """
    own = reading.sections["tensors"]
    below, states = dict[str, dict[str, str]](), dict[str, dict[str, str]]()
    if not (contents.names or frozenset()) <= set(map(kind_of, own)):
        below = _prefixes(own, contents.names)
    if reading.saved and "optimizer" in contents.lines:
        states = _prefixes(own, contents.names, of_state=True)
    most = max(map(len, below.values()), default=0)
    best = sorted((prefix for prefix in below if len(below[prefix]) > _FEW * most), key=lambda p: (-len(below[p]), p))
    for prefix in best or [""]:
        sections = {
            name: {own.removeprefix(prefix): own for own in held if own.startswith(prefix)}
            for name, held in reading.sections.items()
        }
        if states:
            sections["optimizer"] = max(states.values(), key=len)
        yield prefix, sections


def _prefixes(own: Iterable[str], known: frozenset[str] | None, of_state: bool = False) -> dict[str, dict[str, str]]:
    """What stands before names that the manifest knows, with these names; of a state, its key comes after them."""
    found: dict[str, dict[str, str]] = defaultdict(dict)
    places: dict[str, list[int]] = {}  # of each kind: where the part that is known begins
    for name in own if known else ():
        parts, kind = name.split("."), kind_of(name)
        if kind not in places:
            kinds, end = kind.split("."), len(parts) - of_state
            places[kind] = [place for place in range(end) if ".".join(kinds[place:end]) in (known or ())]
        for place in places[kind]:
            found["".join(f"{part}." for part in parts[:place])][".".join(parts[place:])] = name
    return found


# ---------------------------------------------------------------- the error


def state_error(found: Differences, changes: Sequence[str] = ()) -> StateError:
    """The exception for what differs; `changes` are the lines that may have changed it."""
    width = max((len(pattern) for pattern, _ in found.lines()), default=0)
    lines = [f"  {pattern:<{width}}  {text}" for pattern, text in found.lines()]
    fix = f"load or convert the model so that it holds that; or, if the change is meant, make it anew: {found.anew}"
    rows = [f"  {'changed at':<10} {line}" for line in changes]
    if not found.stranger:
        rows.append(f"  {'fix':<10} {fix}")
    error = StateError("\n".join([found.head(), *lines, *rows]))
    error.fix = None if found.stranger else fix
    error.violations = tuple(map(str, found.rows)) or (found.stranger,)
    if found.rows:
        first = found.rows[0]
        error.argument, error.expected, error.actual = first.names[0], first.expected, first.actual
        error.origin = (first.origin,) if first.origin else ()
    return error
