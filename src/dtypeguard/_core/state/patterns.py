"""Names of tensors as patterns: the fewest lines that say what each of them has.

In a pattern `*` stands for any text, dots too, and `{a,b}` for either. Of the lines that match a name, the first
counts.
"""

import functools
import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

Lines = Sequence[tuple[str, str]]  # a pattern, and what the names that match it have
_SPECIAL = re.compile(r"[\s*{},#%]")  # what has a meaning in a file
_BRACES = re.compile(r"\{([^{}]*)\}")
_NUMBERS = re.compile(r"(?<![^.])\d+(?![^.])")


@functools.lru_cache(65536)
def kind_of(name: str) -> str:
    """A name without its numbers: `layers.*.weight` for `layers.0.weight`."""
    return _NUMBERS.sub("*", name)


def quoted(name: str) -> str:
    """A name as patterns have it."""
    return _SPECIAL.sub(lambda found: f"%{ord(found[0]):02x}", name) if _SPECIAL.search(name) else name


@functools.cache
def matcher(pattern: str) -> Callable[[str], object]:
    """Whether a name matches a pattern."""
    if pattern == "*":
        return lambda name: True
    parts = ("|".join(map(_regex, p.split(","))) if n % 2 else _regex(p) for n, p in enumerate(_BRACES.split(pattern)))
    return re.compile("".join(f"(?:{part})" for part in parts), re.DOTALL).fullmatch


def _regex(text: str) -> str:
    return ".*".join(map(re.escape, text.split("*")))


def fewest(values: Mapping[str, str], broad: bool = False, usual: str | None = None) -> list[tuple[str, str]]:
    """The fewest lines that give each name its value: the exceptions in the order of their names, and `*` at the end.

    It is a greedy cover, so a shorter one may exist. The same values give the same lines, whatever their order.
    Of patterns that match as many names the longest is taken; with `broad` the shortest. `usual` is what `*` has;
    default: what most names have.

    >>> fewest({"0.weight": "bfloat16", "1.weight": "float32", "1.bias": "float32", "2.weight": "bfloat16"})
    [('1.*', 'float32'), ('*', 'bfloat16')]
    """
    if not values:
        return []
    numbers = Counter(values.values())
    usual = min(numbers, key=lambda value: (-numbers[value], value)) if usual is None else usual
    items, alone = _items(values)
    rest = {name: value for name, value in items.items() if value != usual}
    found: dict[str, str] = {}
    candidates: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name, value in items.items():
        for pattern in dict.fromkeys((*_candidates(name), *_candidates(alone.get(name, name)))):
            candidates[pattern][value].append(name)
    pure = {pattern: covered for pattern, by in candidates.items() if len(by) == 1 for covered in by.values()}
    sign = 1 if broad else -1
    doubtful = [name for name in rest if name not in pure]
    while rest:
        for kind in doubtful:  # it is no pattern for its names alone: each name is one
            names = [name for name in values if kind_of(name) == kind]
            rest |= dict.fromkeys(names, rest.pop(kind))
            pure |= {name: [name] for name in names}
        numbers_of = {pattern: sum(name in rest for name in covered) for pattern, covered in pure.items()}
        best = min(pure, key=lambda p: (-numbers_of[p], sum(map(str.isdecimal, p)), sign * len(p), p))
        value, fits = rest[next(name for name in pure[best] if name in rest)], matcher(best)
        doubtful = []
        if any(fits(name) for name, other in values.items() if other != value):
            del pure[best]
            doubtful = [best] if best in rest else []
        else:
            found[best] = value
            rest = {name: other for name, other in rest.items() if other != value or not fits(alone.get(name, name))}
    return [*sorted(found.items(), key=lambda line: natural(line[0])), ("*", usual)]


def _items(values: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """The kinds of names, each with its value; where the names of a kind differ, the names. And kinds of one name."""
    kinds: dict[str, dict[str, str]] = defaultdict(dict)
    for name, value in values.items():
        kinds[kind_of(name)][name] = value
    items: dict[str, str] = {}
    for kind, names in kinds.items():
        alike = set(names.values())
        items.update({kind: alike.pop()} if len(alike) == 1 else names)
    return dict(sorted(items.items())), {kind: next(iter(names)) for kind, names in kinds.items() if len(names) == 1}


def _candidates(name: str) -> Iterator[str]:
    """The patterns that a line may have for a name: the name, its beginnings, its ends, and the parts between."""
    yield name
    parts = name.split(".")
    for place in range(1, len(parts)):
        if parts[place - 1] != "*":  # `a.*.*` says what `a.*` says
            yield ".".join(parts[:place]) + ".*"
        if parts[place] != "*":
            yield "*." + ".".join(parts[place:])
    for part in set(parts[1:-1]):
        if part != "*" and not part.isdecimal():
            yield f"*.{part}.*"


def natural(name: str) -> list[tuple[int, str]]:
    """A key that sorts numbers by their size, and `*` before them."""
    return [(int(part) if part.isdecimal() else -1, part) for part in name.split(".")]


# ---------------------------------------------------------------- lists of names


def folded(kinds: Iterable[str]) -> list[str]:
    """Names in few lines: those of modules beside each other that hold the same are put in braces.

    >>> folded(["norm.weight", "q.bias", "q.weight", "v.bias", "v.weight"])
    ['norm.weight', '{q,v}.{bias,weight}']
    """
    leaves: dict[str, set[str]] = defaultdict(set)
    for kind in kinds:
        path, _, leaf = kind.rpartition(".")
        leaves[path].add(leaf)
    lines = [_braced(leaves.pop(""))] if "" in leaves else []
    alike: dict[tuple[str, tuple[str, ...]], set[str]] = defaultdict(set)
    for path, names in leaves.items():
        above, _, module = path.rpartition(".")
        alike[above, tuple(sorted(names))].add(module)
    for (above, inside), modules in alike.items():
        lines.append(".".join(filter(None, (above, _braced(modules), _braced(inside)))))
    return sorted(lines, key=natural)


def _braced(names: Iterable[str]) -> str:
    several = sorted(names)
    return several[0] if len(several) == 1 else f"{{{','.join(several)}}}"


def unfolded(lines: Iterable[str]) -> Iterator[str]:
    """The names again."""
    for line in lines:
        parts = (p.split(",") if n % 2 else [p] for n, p in enumerate(_BRACES.split(line)))
        yield from map("".join, itertools.product(*parts))
