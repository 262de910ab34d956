"""Which module of one model stands for which of another: by names, by weights, by the order of calls."""

import difflib
import fnmatch
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..._core.base.errors import CompareError
from ..._core.base.modules import inside, tensors_of, unwrapped, walk
from ..._core.base.pyproject import near
from .tape import Key, Passage

Names = Mapping[str, str] | Callable[[str], str | None] | None
_ALIKE = 0.6  # names of modules that are short
_MIXER = 0x9E3779B97F4A7C15 - (1 << 64)  # odd, so that no bit of a value is lost in the product


@dataclass(frozen=True, slots=True)
class Match:
    """A module of b, with the module or modules of a that it stands for.

    Attributes:
        b: its path.
        a: the paths in a; several where b computes in one what a computes in several.
        channels: of the last axis of b's result, where each stands in that of a's, side by side; None for as it is.
        how: what they were matched by.
    """

    b: str
    a: tuple[str, ...]
    how: str
    channels: Tensor | None = None


@dataclass
class Model:
    """The modules of one model, and their calls in order.

    Attributes:
        kinds: the class of each module, by its path.
        shapes: of the weights that each holds itself.
        held: these weights; of a capture nobody has them.
        digests: of the weights of each module, where a capture is compared.
    """

    passages: dict[Key, Passage]
    kinds: dict[str, str]
    shapes: dict[str, list[tuple[int, ...]]]
    held: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    calls: dict[str, int] = field(init=False)
    leaves: list[Key] = field(init=False)

    @classmethod
    def of(cls, model: nn.Module, passages: dict[Key, Passage]) -> "Model":
        modules = {unwrapped(path): module for path, module in walk(model)}
        held = {
            path: {name: t for _, name, t in tensors_of(module) if _is_plain(t)} for path, module in modules.items()
        }
        shapes = {path: sorted(tuple(t.shape) for t in own.values()) for path, own in held.items()}
        return cls(passages, {path: type(module).__name__ for path, module in modules.items()}, shapes, held)

    def __post_init__(self) -> None:
        self.calls = {path: number + 1 for path, number in self.passages}
        # `nn.MultiheadAttention` calls no module: it takes the weights of the one inside.
        parts = [path.split(".") for path in self.calls if path]
        inner = {".".join(part[:end]) for part in parts for end in range(len(part))}
        self.leaves = [key for key in self.passages if key[0] not in inner]

    def weights(self, path: str) -> dict[str, Tensor]:
        return self.held.get(path, {})

    def sizes(self, path: str) -> list[int]:
        """How many numbers each of its weights has."""
        return sorted(math.prod(shape) for shape in self.shapes[path])

    def results(self, key: Key) -> list[tuple[int, ...]]:
        return [tuple(t.shape) for _, t in self.passages[key].outputs]


def _is_plain(tensor: Tensor) -> bool:
    """Whether a tensor has values of its own to compare: a quantized one has others inside."""
    return type(tensor) in (Tensor, nn.Parameter) and tensor.is_floating_point() and tensor.ndim > 0


Calls = dict[Key, tuple[Match, tuple[Key, ...]]]  # of b, with those of a


def matched(a: Model, b: Model, names: Names) -> Calls:
    """The calls of modules of b that stand for calls of modules of a."""
    found: dict[str, Match] = {"": Match("", ("",), "")}
    taken = {""}

    def take(path: str, other: str, how: str) -> None:
        if other not in found and path not in taken:
            found[other] = Match(other, (path,), how)
            taken.add(path)

    if names is not None:
        for path, other in _names_mapped(a, b, names):
            take(path, other, "names")
    for path in a.kinds:
        if path in b.kinds and a.sizes(path) == b.sizes(path):
            take(path, path, "name")
    for match in _by_weights(a, b, taken, set(found)):
        found[match.b] = match
        taken.update(match.a)
    for path, other in _by_leaves(a, b, taken, found):
        take(path, other, "what is in it")
    calls: Calls = {
        (path, number): (match, tuple((one, number) for one in match.a))
        for path, match in found.items()
        if all(a.calls.get(one) == b.calls.get(path, 0) for one in match.a)
        for number in range(b.calls.get(path, 0))
    }
    for key, call in _by_order(a, b, calls):
        calls[call] = Match(call[0], (key[0],), "order"), (key,)
    return {key: calls[key] for key in b.passages if key in calls}


def uncalled(a: Model, b: Model) -> Iterator[Match]:
    """Modules of one name that nobody calls, as those whose weights `nn.MultiheadAttention` takes."""
    for path in b.kinds:
        if path in a.kinds and path not in a.calls and path not in b.calls and a.sizes(path) == b.sizes(path):
            yield Match(path, (path,), "name")


def _names_mapped(a: Model, b: Model, names: Any) -> Iterator[tuple[str, str]]:
    """What the caller says: a function of names, or patterns with stars."""
    patterns = isinstance(names, Mapping) and all(isinstance(one, str) for pair in names.items() for one in pair)
    if not callable(names) and not patterns:
        raise TypeError(f"diff: names is a dict of patterns, {{'encoder.*': 'blocks.*'}}, or a function, not {names!r}")
    used: set[str] = set()
    for path in a.kinds:
        if not path:
            continue
        chosen: Any = names(path) if callable(names) else None
        if not isinstance(chosen, str | None):
            raise TypeError(f"diff: names gives {chosen!r} for a's module {path!r}: return a name of b's, or None")
        other: str | None = chosen
        inner = False
        if not callable(names):
            for pattern, target in names.items():
                parts = _stars(pattern, path)
                if parts is not None:
                    used.add(pattern)
                    other, inner = _filled(target, parts), bool(parts[-1])
        if other is None or (inner and other not in b.kinds):  # below what a pattern names, names may differ
            continue
        if other not in b.kinds:
            meant = near(other, b.kinds, _ALIKE)
            raise CompareError(f"diff: names gives {other!r} for a's module {path!r}, and b has no such module{meant}")
        yield path, other
    if not callable(names) and (wrong := [pattern for pattern in names if pattern not in used]):
        raise CompareError(f"diff: names has {wrong[0]!r}, and a has no such module{near(wrong[0], a.kinds, _ALIKE)}")


def _stars(pattern: str, path: str) -> list[str] | None:
    """What the stars of a pattern stand for in a path, and what is below the module that it names."""
    wanted, parts = pattern.split("."), path.split(".")
    if len(parts) < len(wanted) or not all(map(fnmatch.fnmatchcase, parts, wanted)):
        return None
    stars = [part for part, want in zip(parts, wanted, strict=False) if "*" in want]
    return [*stars, ".".join(parts[len(wanted) :])]


def _filled(target: str, parts: list[str]) -> str:
    for star in parts[:-1]:
        target = target.replace("*", star, 1)
    return inside(target, parts[-1])


# ------------------------------------------------------------------ by weights


def _by_weights(a: Model, b: Model, taken: set[str], done: set[str]) -> Iterator[Match]:
    """Modules with the same weights: in rows, so that fused, split, transposed and reordered ones are found too."""
    mine = {path: w for path, n in a.leaves if not n and path not in taken and (w := _matrix(a, path)) is not None}
    other = {path: w for path, n in b.leaves if not n and path not in done and (w := _matrix(b, path)) is not None}
    if not mine or not other:
        return
    dtype = min((w.dtype for w in (*mine.values(), *other.values())), key=lambda dtype: -torch.finfo(dtype).eps)
    table: dict[int, list[tuple[str, int]]] = defaultdict(list)
    for path, weight in mine.items():
        for turned in (False, True)[: weight.ndim]:
            for row, key in enumerate(_keys(weight, turned, dtype)):
                table[key].append((path, -row - 1 if turned else row))
    used: set[str] = set()
    for path, weight in other.items():
        for turned in (False, True)[: weight.ndim]:
            parts = _find_rows(_keys(weight, turned, dtype), table, used)
            if parts is None:
                continue
            paths = list(dict.fromkeys(part for part, _ in parts))
            counts = [len(_keys(mine[p], _turned(parts, p), dtype)) for p in paths]
            starts = dict(zip(paths, itertools.accumulate(counts, initial=0), strict=False))
            places = [starts[p] + (row if row >= 0 else -row - 1) for p, row in parts]
            same = places == list(range(sum(counts)))
            whole = sum(counts) == len(places)
            channels = [_last(a, p) for p in paths] == counts and _last(b, path) == len(places)
            if not ((same and len(paths) == 1) or channels):
                continue  # its rows are no channels of the result
            if whole or len(paths) > 1:
                used.update(paths)
            kind = "weights" if len(paths) == 1 and whole else "rows of weights"
            yield Match(path, tuple(paths), kind, None if same and len(paths) == 1 else torch.tensor(places))
            break


def _last(model: Model, path: str) -> int:
    """The length of the last axis of a module's result."""
    return next((shape[-1] for shape in model.results((path, 0)) if shape), 0)


def _turned(parts: list[tuple[str, int]], path: str) -> bool:
    return next(row for part, row in parts if part == path) < 0


def _find_rows(
    keys: list[int], table: Mapping[int, list[tuple[str, int]]], used: set[str]
) -> list[tuple[str, int]] | None:
    """Where each row is; of equal rows those of the module that has the most, in turn."""
    found, count = [], defaultdict[str, int](int)
    for key in dict.fromkeys(keys):
        for path in {path for path, _ in table.get(key, ())}:
            count[path] += 1
    taken: set[tuple[str, int]] = set()
    for key in keys:
        rows = [one for one in table.get(key, ()) if one[0] not in used and one not in taken]
        if not rows:
            return None
        best = max(rows, key=lambda one: (count[one[0]], -rows.index(one)))
        taken.add(best)
        found.append(best)
    return found


def _matrix(model: Model, path: str) -> Tensor | None:
    """The largest tensor of a module, if it has different values."""
    weights = list(model.weights(path).values())
    if not weights:
        return None
    weight = max(weights, key=Tensor.numel).detach()
    return weight if weight.numel() > 1 and bool((weight != weight.flatten()[0]).any()) else None


def _keys(weight: Tensor, turned: bool, dtype: torch.dtype) -> list[int]:
    """A number for each row, or column: the same for the same values once they are in one dtype."""
    if weight.ndim == 1:
        weight = weight[None]
    weight = weight.flatten(1)
    if turned:
        weight = weight.T
    bits = (
        weight.to("cpu", dtype)
        .contiguous()
        .view({1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize])
    )
    places = torch.arange(1, bits.shape[1] + 1) * _MIXER | 1
    mixed = (bits.long() + 0x5851F42D) * places
    return (mixed ^ (mixed >> 29)).sum(1).tolist()


# ------------------------------------------------------------------ by order, and by what is in them


def _by_order(a: Model, b: Model, calls: Calls) -> Iterator[tuple[Key, Key]]:
    """Calls of leaves between matched ones: first those of one class, then those with the same shapes."""
    partner = {keys[0]: other for other, (_, keys) in calls.items()}
    taken = {key for _, keys in calls.values() for key in keys}
    places = {key: n for n, key in enumerate(b.leaves)}
    gaps: list[tuple[list[Key], list[Key]]] = []
    start = last = 0
    for n, key in enumerate([*a.leaves, None]):
        at = len(b.leaves) if key is None else places.get(partner.get(key, ("", 0)), -1)
        if at >= last:
            ours = [k for k in a.leaves[start:n] if k not in taken]
            gaps.append((ours, [k for k in b.leaves[last:at] if k not in calls]))
            start, last = n + 1, at + 1
    for ours, theirs in gaps:
        for strict in (True, False):
            one, two = ([_likeness(model, key, strict) for key in keys] for model, keys in ((a, ours), (b, theirs)))
            blocks = difflib.SequenceMatcher(None, one, two, autojunk=False).get_matching_blocks()
            pairs = [(ours[m.a + n], theirs[m.b + n]) for m in blocks for n in range(m.size)]
            yield from pairs
            for key, other in pairs:
                ours.remove(key)
                theirs.remove(other)


def _likeness(model: Model, key: Key, strict: bool) -> str:
    name = f"{model.kinds[key[0]]} {model.digests.get(key[0], '')}" if strict else ""
    return f"{name} {model.shapes[key[0]]} {model.results(key)}"


def _by_leaves(a: Model, b: Model, taken: set[str], found: dict[str, Match]) -> Iterator[tuple[str, str]]:
    """Modules that hold the same leaves, the outer ones first."""
    held: dict[frozenset[str], list[str]] = defaultdict(list)
    leaves = {path: found[path].a for path, _ in b.leaves if path in found and b.shapes[path]}
    for path in b.calls:
        inner = frozenset(p for leaf, paths in leaves.items() if leaf.startswith(f"{path}.") for p in paths)
        if inner and path not in found:
            held[inner].append(path)
    known = {p for paths in leaves.values() for p in paths}
    for path in a.calls:
        inner = frozenset(p for p in known if p.startswith(f"{path}."))
        if inner and path not in taken and held[inner]:
            yield path, held[inner].pop(0)
