"""Both programs run, as they are and in float64, and are compared wherever both have the same tensor."""

import functools
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from ..._core.base.dtypes import name_of
from ..._core.base.errors import CompareError
from ..._core.base.modules import unwrapped, walk
from ..._show.text import cut
from .distances import amplification, distance, roundings, roundoff
from .match import Calls, Match, Model, Names, matched, uncalled
from .points import Point, between, expected, farthest, of_other_sizes, points_of, units_of
from .side import ROOT, Given, Side, Values
from .tape import Key, Named, Tape, is_dense, paired
from .undone import digests, loose_of, made_up_for, named_again, outside, tables_of
from .wide import Wide, digest

WHOLE: Calls = {ROOT: (Match("", ("",), ""), (ROOT,))}  # two programs that stand for each other

_NOTES = 3
_NOISE = 3.0  # times what one draw of roundings does another one does at most


@dataclass
class Found:
    """What the runs have shown.

    Attributes:
        points: in the order in which b comes to them.
        errors: the distances of the outputs of a and b to float64; of both to that of a, where they are one function.
        distance: between the outputs.
        growth: of each module, the distance of its results on its own inputs.
        alone: modules of a, and of b, that stand for none of the other.
        states: of each module of b, what it holds that a does not.
        settings: of each module of b, the attributes that are others than a's.
        precision: of the reference.
        outputs: of a and b, as they are and in the wide dtype.
        values: for weights that one program stores rounded, the other program's value.
        output_roundings: how many roundings of each number the errors of the outputs are.
        dtypes: in which a and b compute, where these are two; each one's roundings are those to its own.
        partners: the modules whose weights are the same, so that gradients can be compared.
        tables: what rounding has changed in constants that one of the programs computes.
        unforced: whether b's modules got their own inputs, and not a's.
    """

    calls: Calls = field(default_factory=lambda: WHOLE)
    points: list[Point] = field(default_factory=list)
    errors: tuple[float, float] = (0.0, 0.0)
    distance: float = 0.0
    growth: dict[str, float] = field(default_factory=dict)
    alone: tuple[list[str], list[str]] = field(default_factory=lambda: ([], []))
    states: dict[str, list[str]] = field(default_factory=dict)
    settings: dict[str, list[str]] = field(default_factory=dict)
    precision: torch.dtype = torch.float64
    output_roundings: tuple[float, float] = (0.0, 0.0)
    outputs: list[list[Tensor]] = field(default_factory=list)
    values: tuple[Values, Values] = field(default_factory=lambda: ({}, {}))
    notes: list[str] = field(default_factory=list)
    dtypes: tuple[torch.dtype, torch.dtype] | None = None
    partners: tuple[Match, ...] = ()
    tables: float = 0.0
    unforced: bool = False


def measure(a: Side, b: Side, names: Names) -> Found:
    """Run both, free and with what a's modules got and returned."""
    sides, tapes, found = (a, b), (Tape(), Tape()), Found()
    modules = all(side.model is not None for side in sides)
    outs = [side.run(side.copy(), tape, None if modules else ()) for side, tape in zip(sides, tapes, strict=True)]
    found.notes += check_alike(a, b, outs)
    loose: tuple[list[str], ...] = [], []
    still: list[Match] = []
    if a.model is not None and b.model is not None:
        models = Model.of(a.model, tapes[0].passages), Model.of(b.model, tapes[1].passages)
        found.calls = _comparable(matched(*models, names), *tapes)
        found.alone, still = unmatched(*models, found.calls), list(uncalled(*models))
        others = digests(models[1]), digests(models[0])
        loose = loose_of(found.alone[0], models[0], others[0]), loose_of(found.alone[1], models[1], others[1])
        found.tables = max(tables_of(a, models[1]), tables_of(b, models[0]))
        matches = {match for match, _ in found.calls.values()}
        found.states = _compare_weights(*models, matches, found.values)
        found.settings = _compare_settings(a.model, b.model, matches)
    found.growth = dict(_growth(found.calls, *tapes))
    for key, (_, keys) in found.calls.items():
        if len(keys) == 1 and key != ROOT:
            its = tapes[0].passages[keys[0]]
            its.shared = {its.inputs[n][0] for n in paired(tapes[1].passages[key].inputs, its.inputs).values()}
    found.partners = tuple(dict.fromkeys([*(match for match, _ in found.calls.values()), *still]))
    tapes[1].passages.clear()
    free = _on_own_inputs(sides, found, found.calls if modules else {})
    if modules:
        try:
            found.points = _on_inputs_of_a(sides, found, tapes[0])
            fused = _fused_calls(found, free, b, loose)
            if fused:  # modules that compute different things but together give the same result
                found.calls = {key: call for key, call in found.calls.items() if key not in fused}
                found.points = _on_inputs_of_a(sides, found, tapes[0])
            more = _amplification(sides, outs, free)
            limits = more * torch.finfo(found.precision).eps / 2, more * found.tables
            weights = {path for path, told in found.states.items() if told}
            run = _runner(b, found)
            noise = _noise(b, run, weights, free[1])
            several, hidden = made_up_for(found.points, found.calls, free, limits, weights, noise, run)
            if several:  # inside, they run on b's own tensors
                found.notes += [_told_of(keys) for keys in several.values() if keys][:_NOTES]
                found.partners = tuple(match for match in found.partners if not found.states.get(match.b))
                whole, before = found.calls, found.points
                found.calls = outside(whole, several, free[1])
                found.points = _on_inputs_of_a(sides, found, tapes[0])
                loosely = {
                    path for path, _ in several if any(one.startswith(f"{path}." * bool(path)) for one in weights)
                }
                for point in found.points:
                    if point.key[0] in loosely and not point.before:
                        point.bound = max(point.bound, noise(point.key))
                again = named_again(several, before, found.points, free[1])
                if again := again + [p for p in before if p.differs and p.key in hidden and p not in again]:
                    found.calls |= {key: whole[key] for key in whole if key not in found.calls}
                    found.points = again + found.points
            around = {found.calls[parent][0].b for parent in fused.values()} | _around_unmatched(found.calls, loose)
            for point in found.points:
                if point.match.b in around:  # fused weights carry one extra rounding: smaller differences say nothing
                    point.bound = max(point.bound, b.spacing)
        except Exception as error:  # of what is matched, and is not alike
            told = f"{type(error).__name__}: {error}".partition("\n")[0]
            found.notes.append(f"only the outputs are compared: with what a's modules return, b does not run ({told})")
    if not found.points:
        found.calls = {ROOT: found.calls.get(ROOT, WHOLE[ROOT])}
        low = Tape({ROOT: a.whole(outs[0])}), Tape({ROOT: b.whole(outs[1])})
        found.points = list(points_of(found.calls, *low, *free, torch.finfo(found.precision).eps))
    ends = [[t for _, t in tape.passages[ROOT].outputs] for tape in free]
    reference = ends[any(point.differs for point in found.points)]
    found.outputs, found.distance = [*outs, *ends], between(outs[1], outs[0])
    found.errors = between(outs[0], ends[0]), between(outs[1], reference)
    unit = units_of(outs, ends[0])
    found.output_roundings = roundings(found.errors[0], unit[0]), roundings(found.errors[1], unit[1])
    return found


def _amplification(sides: tuple[Side, Side], outs: list[list[Tensor]], free: tuple[Tape, Tape]) -> float:
    """What the programs make of one rounding, as a whole."""
    found = [1.0]
    for side, out, tape in zip(sides, outs, free, strict=True):
        for low, (_, wide) in zip(out, tape.passages[ROOT].outputs, strict=False):
            floor = max(roundoff(low), side.spacing / 2)
            if floor and low.is_floating_point():
                found.append(amplification((distance(low, wide), 0.0), (floor, 0.0)))
    return max(found)


def _comparable(calls: Calls, a: Tape, b: Tape) -> Calls:
    """Without those that get or return the same numbers with their axes in another order."""

    def turned(match: Match, mine: Named, its: Named) -> bool:
        return bool(mine and its) and not paired(mine, its) and not of_other_sizes(match, mine, its)

    found = {}
    for key, call in calls.items():
        passage, (inputs, outputs) = b.passages[key], expected(call, a)
        if key == ROOT or not (turned(call[0], passage.inputs, inputs) or turned(call[0], passage.outputs, outputs)):
            found[key] = call
    return found


def _told_of(keys: set[Key]) -> str:
    names = sorted({path for path, _ in keys})
    told = ", ".join(names[:3]) + ", ..." * (len(names) > 3)
    one = len(names) == 1
    return f"{told} compute{'s' * one} something else, and what is around {'it' if one else 'them'} makes up for it"


def _on_own_inputs(sides: tuple[Side, Side], found: Found, calls: Calls) -> tuple[Tape, Tape]:
    """Both in the widest dtype in which both run, on their own inputs."""
    for precision in (torch.float64, torch.float32):
        found.precision = precision
        try:
            return _wide(sides, found, calls, None)
        except Exception as error:  # an operation that refuses it, or the program, where it asks for a dtype
            why = error
    titles = " or ".join(side.title for side in sides)
    raise CompareError(
        f"diff needs a reference, and {titles} does not run in float64 or float32: {type(why).__name__}: {why}"
    ) from why


def _wide(sides: tuple[Side, Side], found: Found, calls: Calls, tape: Tape | None) -> tuple[Tape, Tape]:
    """What both programs do in a wide dtype, on their own inputs or on those of a tape of a's."""
    made, seen, functions = (Tape(), Tape()), [], any(side.model is None for side in sides)
    each = zip(sides, made, found.values, paths_of(calls), _overrides(calls, tape), strict=True)
    for side, one, held, paths, given in each:
        mode = Wide(found.precision, apart=tape is not None, digests=side.model is None)
        side.run(side.wide(found.precision, held), one, paths, given, mode)
        own = () if side.model is None else (*side.model.parameters(), *side.model.buffers())
        seen.append(mode.seen | {digest(t): 0.0 for t in own if is_dense(t)} if functions else {})
    for side, one, mine, others in zip(sides, made, seen, reversed(seen), strict=True):
        if side.model is None:  # what both functions read has lost the same in both
            passage = one.passages[ROOT]
            narrow = sum((changed for key, changed in mine.items() if key not in others), 0.0)
            bound = passage.bounds[1][0], narrow
            passage.bounds = bound, bound
    return made


def _runner(side: Side, found: Found) -> Callable[..., Tape]:
    """Runs b in a wide dtype with what some of its calls are to return, or with its weights changed."""
    paths = paths_of(found.calls)[1]

    def run(given: Given = lambda key: None, change: Callable[[nn.Module], None] = lambda model: None) -> Tape:
        tape, model = Tape(), side.wide(found.precision, found.values[1])
        change(model)
        side.run(model, tape, paths, given, Wide(found.precision, apart=False))
        return tape

    return run


def _noise(side: Side, run: Callable[..., Tape], weights: set[str], free: Tape) -> Callable[[Key], float]:
    """How far the results of calls are moved when these modules' weights are rounded, as a run shows."""
    generator = torch.Generator().manual_seed(0)

    def rounded(model: nn.Module) -> None:
        for path, module in walk(model):
            for weight in module._parameters.values() if unwrapped(path) in weights else ():
                if weight is not None and weight.is_floating_point():
                    factors = torch.rand(weight.shape, generator=generator, dtype=torch.float64)
                    weight.data *= 1 + ((factors - 0.5) * side.spacing).to(weight.device, weight.dtype)

    @functools.cache
    def tape() -> Tape:
        return run(change=rounded)

    def noise(key: Key) -> float:
        return _NOISE * (farthest(tape().passages[key].outputs, free.passages[key].outputs) or 0.0)

    return noise


def paths_of(calls: Calls) -> tuple[set[str], set[str]]:
    """The modules to listen to, of a and of b."""
    return {key[0] for _, keys in calls.values() for key in keys}, {key[0] for key in calls}


def _overrides(calls: Calls, tape: Tape | None) -> tuple[Given, Given]:
    """What the calls of a and of b are to get and to return, as a has it."""
    kept = {key for _, keys in calls.values() for key in keys}

    def of_a(key: Key) -> tuple[Named, Named] | None:
        if tape is None or key not in kept:
            return None
        passage = tape.passages[key]
        # What only a's module gets, b's computes or reads elsewhere: then a's has its own in the wide dtype too.
        return [one for one in passage.inputs if passage.shared is None or one[0] in passage.shared], passage.outputs

    def of_b(key: Key) -> tuple[Named, Named] | None:
        return expected(calls[key], tape) if tape is not None and key in calls else None

    return of_a, of_b


def _on_inputs_of_a(sides: tuple[Side, Side], found: Found, tape: Tape) -> list[Point]:
    """Both programs with a's tensors."""
    low, calls, states = Tape(), found.calls, found.states
    sides[1].run(sides[1].copy(), low, paths_of(calls)[1], _overrides(calls, tape)[1])
    wide = _wide(sides, found, calls, tape)
    for key, (match, keys) in calls.items():
        if len(keys) == 1 and key in low.passages and not key[1]:
            theirs, mine = tape.passages[keys[0]].inputs, low.passages[key].inputs
            known = set(paired(mine, theirs).values()) | {n for n, (name, _) in enumerate(theirs) if name in dict(mine)}
            told = [f"gets no {name}, as a's does" for n, (name, _) in enumerate(theirs) if n not in known]
            made, whole = low.passages[key].outputs, tape.passages[keys[0]].outputs
            if (others := of_other_sizes(match, made, whole)) and not of_other_sizes(match, mine, theirs):
                told.append(f"returns {list(others[0][0].shape)}, and a's {list(others[0][1].shape)}")
            states.setdefault(match.b, []).extend(line for line in told if line not in states.get(match.b, ()))
    return list(points_of(calls, tape, low, *wide, torch.finfo(found.precision).eps, found.tables))


def _around_unmatched(calls: Calls, loose: tuple[list[str], ...]) -> set[str]:
    """The innermost modules of b around weights that have no partner."""
    pairs = {match.b: match for match, _ in calls.values()}
    found = set()
    for side, paths in enumerate(loose):
        own = {(match.a[0] if side == 0 else match.b): match.b for match in pairs.values()}
        for path in paths:
            while path and path not in own:
                path = path.rpartition(".")[0]
            found.add(own.get(path, ""))
    return found


def _fused_calls(found: Found, free: tuple[Tape, Tape], b: Side, loose: tuple[list[str], ...]) -> dict[Key, Key]:
    """The calls that differ inside of a module whose results, on its own inputs, do not; with the call of that module.

    So it is where weights of several modules are one: a norm in a convolution. Fused weights carry one extra rounding,
    and so much of what differs inside may differ in the result. `loose` has weights and stands for none of the other.
    """
    fused, calls, spacing = {}, found.calls, b.spacing
    for point in found.points:
        parent = free[1].passages[point.key].parent if point.differs and point.key in free[1].passages else None
        if parent is None or parent not in calls or any(one not in free[0].passages for one in calls[parent][1]):
            continue
        paths = calls[parent][1][0][0], parent[0]
        if not any(not path or one.startswith(f"{path}.") for path, own in zip(paths, loose, strict=True)
                   for one in own):  # fmt: skip
            continue
        apart = farthest(free[1].passages[parent].outputs, expected(calls[parent], free[0])[1])
        if apart is not None and apart <= min(point.apart, 1e3) * spacing:
            fused[point.key] = parent
    return fused


def check_alike(a: Side, b: Side, outs: list[list[Tensor]]) -> list[str]:
    """Raise where the outputs cannot be compared; what of them is not."""
    told = [", ".join(f"{name_of(t.dtype)}{list(t.shape)}" for t in out) or "no tensors" for out in outs]
    pairs = paired(*([(str(n), t) for n, t in enumerate(out)] for out in outs))
    if not pairs:
        raise CompareError(
            "diff: the outputs have nothing in common\n"
            f"  a, {a.title}, returns {told[0]}\n  b, {b.title}, returns {told[1]}"
        )
    notes = []
    if [t.shape for t in outs[0]] != [t.shape for t in outs[1]]:
        notes.append(f"the outputs are of another structure: a returns {told[0]}, and b {told[1]}")
    if nans := sum(int(t.isnan().sum()) for t in outs[0]):
        notes.append(f"{nans:,} numbers of a's outputs are NaN: where b's are too, they count as equal")
    return notes


def unmatched(a: Model, b: Model, calls: Calls) -> tuple[list[str], list[str]]:
    """The modules of a, and of b, that were called and stand for none of the other."""
    stand = {match for match, _ in calls.values()}
    return (
        sorted(set(a.calls) - {path for match in stand for path in match.a}),
        sorted(set(b.calls) - {match.b for match in stand}),
    )


def _growth(calls: Calls, a: Tape, b: Tape) -> Iterator[tuple[str, float]]:
    for key, call in calls.items():
        apart = farthest(b.passages[key].outputs, expected(call, a)[1])
        if apart is not None:
            yield key[0], apart


def _are_rounded(x: Tensor, y: Tensor) -> bool:
    """Whether two weights are the same, but for the rounding to the narrower dtype."""
    narrow = max((torch.finfo(t.dtype) for t in (x, y)), key=lambda info: info.eps)
    first, second = (t.detach().to("cpu", torch.float64) for t in (x, y))
    return bool(((first - second).abs() <= narrow.eps * (second.abs() + narrow.tiny)).all())


def _share_rows(a: Model, b: Model, match: Match, channels: Tensor, values: tuple[Values, Values]) -> None:
    """The same for weights whose rows are those of other modules: fused, split, in another order."""
    for name, y in b.weights(match.b).items():
        parts = [(path, x) for path in match.a if (x := a.weights(path).get(name)) is not None]
        if len(parts) < len(match.a) or any(x.shape[1:] != y.shape[1:] for _, x in parts):
            continue  # transposed
        whole = torch.cat([x.detach() for _, x in parts])
        if len(channels) != len(y) or len(whole) <= int(channels.max()) or not _are_rounded(whole[channels], y):
            continue
        if torch.finfo(whole.dtype).eps <= torch.finfo(y.dtype).eps:
            values[1][match.b, name] = whole[channels]
            continue
        starts = itertools.accumulate((len(x) for _, x in parts), initial=0)
        for (path, x), start in zip(parts, starts, strict=False):
            own = (channels >= start) & (channels < start + len(x))
            held = values[0].setdefault((path, name), x.detach().to(y.dtype, copy=True))
            held[channels[own] - start] = y.detach()[own].to(held.device)


def _by_owner(model: Model, taken: set[str]) -> dict[str, list[str]]:
    """By each of these modules: its path, and those of modules in it that are never called."""
    found: dict[str, list[str]] = {}
    for path in model.held:
        owner = path
        while owner and owner not in taken:
            owner = owner.rpartition(".")[0]
        found.setdefault(owner, []).append(path)
    return found


def _compare_weights(a: Model, b: Model, matches: set[Match], values: tuple[Values, Values]) -> dict[str, list[str]]:
    """What differs in what modules hold. Values that one program has rounded are given to both in float64."""
    found: dict[str, list[str]] = {}
    parts = _by_owner(a, {path for match in matches for path in match.a})
    for match in matches:
        if match.channels is not None:
            _share_rows(a, b, match, match.channels, values)
            continue
        own = match.a[0]
        for path, name in [(part, name) for part in parts.get(own, ()) for name in a.weights(part)]:
            inner = path[len(own) :].lstrip(".")
            other = ".".join(filter(None, (match.b, inner)))
            x, y = a.weights(path)[name], b.weights(other).get(name)
            if y is None or x.numel() != y.numel():
                continue
            first, second = (t.detach().to("cpu", torch.float64) for t in (x, y))
            if x.shape == y.shape and _are_rounded(x, y):
                if torch.finfo(x.dtype).eps <= torch.finfo(y.dtype).eps:
                    values[1][other, name] = x
                else:
                    values[0][path, name] = y
            elif x.shape == y.shape or not torch.equal(first.mT, second):
                transposed = first.ndim == 2 and torch.equal(first, second.mT)
                apart = distance(y, x)
                told = "is transposed" if transposed else f"differs by {apart:.1e} of its norm"
                if not math.isfinite(apart):
                    zero = bool(first.isfinite().all() and second.isfinite().all())
                    told = "is not 0, and a's is" if zero else "is not finite in one of the two"
                found.setdefault(match.b, []).append(f"{'.'.join(filter(None, (inner, name)))} {told}")
    return found


_LONGEST = 40  # letters of a value
_SETTINGS = (bool, int, float, str, tuple, torch.dtype, type(None))


def _compare_settings(a: nn.Module, b: nn.Module, matches: set[Match]) -> dict[str, list[str]]:
    """The attributes, as `eps` or `approximate`, in which modules of one class differ."""
    found: dict[str, list[str]] = {}
    every = [{unwrapped(path): module for path, module in walk(model)} for model in (a, b)]
    for match in matches:
        one, other = every[0].get(match.a[0]), every[1].get(match.b)
        if one is None or type(one) is not type(other) or len(match.a) > 1:
            continue
        first, second = vars(one), vars(other)
        for name in sorted(first.keys() & second.keys()):
            values = second[name], first[name]
            if name.startswith("_") or not all(isinstance(value, _SETTINGS) for value in values):
                continue
            if name == "training" and not _reads(type(one), name):  # as an activation, which does the same in both
                continue
            mine, theirs = (cut(repr(value), _LONGEST) for value in values)
            if mine != theirs:
                found.setdefault(match.b, []).append(f"{name} is {mine}, and a's is {theirs}")
    return found


def _reads(kind: type[nn.Module], name: str) -> bool:
    """Whether code of a class of modules reads an attribute."""
    kinds = kind.__mro__[: kind.__mro__.index(nn.Module)]
    codes = (getattr(one, "__code__", None) for each in kinds for one in vars(each).values())
    return any(code is not None and name in code.co_names for code in codes)
