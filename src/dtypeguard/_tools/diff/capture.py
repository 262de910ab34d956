"""`capture`: what a model's modules got and returned, as a file that another machine or version is compared with."""

import contextlib
import hashlib
import importlib
import json
import math
import os
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..._core.base.dtypes import name_of
from ..._core.base.errors import CompareError
from ..._show.files import write
from ..compare.subject import REFUSALS
from .distances import distance, roundoff
from .match import Calls, Model, Names, matched
from .measure import Found, unmatched
from .points import Point, point_of
from .side import ROOT, Side
from .tape import Key, Named, Passage, Tape, is_dense, kind_of, paired
from .wide import Wide, raw

FORMAT = 1
_WHOLE, _LEAST, _MOST, _SHARE = 256, 64, 4096, 1024  # entries of a tensor that are kept: all, or one of so many
_SIGNS = 4  # random projections, which see every entry
_EPS = torch.finfo(torch.float64).eps
_WRITES = "dtypeguard.capture(model, batch, path)"
_FLOOR = -1e4  # what masks hold


@dataclass
class Recorded:
    """What a program did on its own inputs, in samples.

    Attributes:
        model: its modules and calls; tensors are on meta.
        low: a sample of each tensor, by its call, 0 or 1 for inputs and outputs, and number.
        wide: the same in float64, or float32; empty where the program does not run in it.
        tables: what rounding has changed in each buffer of float32, by its digest.
    """

    title: str
    model: Model
    low: dict[str, Tensor]
    wide: dict[str, Tensor]
    versions: dict[str, str] = field(default_factory=dict)
    tables: dict[str, float] = field(default_factory=dict)

    @property
    def dtype(self) -> torch.dtype | None:
        """In which it computes: the coarsest that one of its modules gets or returns."""
        floats = (t.dtype for t in self.low.values() if t.is_floating_point())
        return max(floats, key=lambda dtype: torch.finfo(dtype).eps, default=None)

    @property
    def dtypes(self) -> set[torch.dtype]:
        """Of what is floating in the batch."""
        return {t.dtype for _, t in self.model.passages[ROOT].inputs if t.is_floating_point()}


def recorded(side: Side) -> Recorded:
    """Run a program as it is and in float64."""
    low, wide = Tape(), Tape()
    paths = None if side.model is not None else ()
    side.run(side.copy(), low, paths)
    for precision in (torch.float64, torch.float32):
        with contextlib.suppress(*REFUSALS):
            side.run(side.wide(precision, {}), wide, paths, wide=Wide(precision, apart=False))
            break
        wide = Tape()
    low_samples, wide_samples = (
        {f"{path} {number} {place} {n}": sample(tensor, tape is wide and tensor.is_floating_point())
         for (path, number), passage in tape.passages.items()
         for place, named in enumerate((passage.inputs, passage.outputs)) for n, (_, tensor) in enumerate(named)}
        for tape in (low, wide)
    )  # fmt: skip
    passages = {}
    for key, passage in low.passages.items():
        bounds = wide.passages[key].bounds if key in wide.passages else passage.bounds
        passages[key] = Passage(key, passage.parent, passage.site, _meta(passage.inputs), _meta(passage.outputs),
                                bounds, passage.times)  # fmt: skip
    model = Model(passages, {"": side.title}, {"": []}) if side.model is None else Model.of(side.model, passages)
    model.digests = _digests(model)
    versions = {"torch": str(torch.__version__), "dtypeguard": sys.modules["dtypeguard"].__dict__["__version__"]}
    buffers = () if side.model is None else side.model.buffers()
    tables = {
        hashlib.sha256(raw(t)).hexdigest(): roundoff(t)
        for t in buffers if t.dtype is torch.float32 and t.ndim and is_dense(t)
    }  # fmt: skip
    return Recorded(side.title, model, low_samples, wide_samples, versions, tables)


def _meta(named: Named) -> Named:
    return [(name, torch.empty(t.shape, dtype=t.dtype, device="meta")) for name, t in named]


def _digests(model: Model) -> dict[str, str]:
    """Of the weights of each module, the same in whatever dtype and order they are."""
    return {
        path: hashlib.sha256(b"".join(sorted(map(_bytes, own.values())))).hexdigest()
        for path, own in model.held.items() if own
    }  # fmt: skip


def _bytes(tensor: Tensor) -> bytes:
    return hashlib.sha256(raw(tensor.to(torch.bfloat16))).digest()


def sample(tensor: Tensor, projected: bool) -> Tensor:
    """Some entries of a tensor, the same of each of its size; of a large one also random projections."""
    flat = tensor.detach().reshape(-1).cpu()
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(-1)
    size = flat.numel()
    if size <= _WHOLE:
        return flat.clone()
    count = min(max(size // _SHARE, _LEAST), _MOST)
    entries = flat[_mixed(torch.arange(count)) % size]
    if not projected:
        return entries.clone()
    full = flat.double().nan_to_num(0, 0, 0).masked_fill(flat <= _FLOOR, 0.0)
    bits = _mixed(torch.arange(size))
    sums = [(full * (1 - 2 * ((bits >> 7 * n) & 1))).sum() * math.sqrt(count / size) / 2 for n in range(_SIGNS)]
    return torch.cat([entries, torch.stack(sums)])


def _mixed(numbers: Tensor) -> Tensor:
    """Whole numbers that look random, the same in every version."""
    for _ in range(3):
        numbers = (numbers * 0x2545F491 + 0x9E3779B9) & 0x7FFFFFFF
        numbers = numbers ^ (numbers >> 15)
    return numbers


# ---------------------------------------------------------------- the file


def save(record: Recorded, path: str | os.PathLike[str]) -> None:
    """Write a capture, all or nothing."""
    packed = _library("safetensors.torch").save
    passages = [
        {"key": key, "parent": p.parent, "site": p.site, "bounds": p.bounds, "times": p.times,
         **{place: [[name, list(t.shape), name_of(t.dtype)] for name, t in named]
            for place, named in (("inputs", p.inputs), ("outputs", p.outputs))}}
        for key, p in record.model.passages.items()
    ]  # fmt: skip
    about = {
        "format": FORMAT, "title": record.title, "digests": record.model.digests, "versions": record.versions,
        "passages": passages, "tables": record.tables, "kinds": record.model.kinds, "shapes": record.model.shapes,
    }  # fmt: skip
    kinds = {"low": record.low, "wide": record.wide}
    tensors = {f"{kind}:{name}": t for kind, own in kinds.items() for name, t in own.items()}
    write(path, packed(tensors, {"dtypeguard": json.dumps(about | {"sum": _sum(tensors)})}))


def _sum(tensors: Mapping[str, Tensor]) -> str:
    """Of all that a file holds, so that a byte that was lost on the way is noticed."""
    found = hashlib.sha256()
    for name in sorted(tensors):
        found.update(name.encode() + raw(tensors[name]))
    return found.hexdigest()


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise CompareError('a capture is a file of safetensors: pip install "dtypeguard[capture]"') from error


def load(path: str | os.PathLike[str]) -> Recorded:
    """Read a capture; no code in it is run."""
    library = _library("safetensors")
    with open(path, "rb"):
        pass  # what is not there is said by Python
    try:
        with library.safe_open(path, "pt") as file:
            about = json.loads((file.metadata() or {}).get("dtypeguard", "null"))
            if not isinstance(about, dict) or "passages" not in about:
                raise ValueError(f"{path}, is no capture: write one with {_WRITES}")
            if about["format"] > FORMAT:
                raise ValueError(
                    f"{path}, is of format {about['format']}, and this version reads up to {FORMAT}: update dtypeguard"
                )
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  it is no dict
    except library.SafetensorError as error:
        known = "a checkpoint of torch.save, and no capture" if zipfile.is_zipfile(path) else "cut, or no capture"
        raise ValueError(f"{path}, is {known}: write one with {_WRITES}") from error
    if about.get("sum", _sum(tensors)) != _sum(tensors):
        raise ValueError(f"{path}, is damaged: its values are not those that were written")
    try:
        passages = dict(map(_passage, about["passages"]))
        model = Model(
            passages,
            about["kinds"],
            {p: [tuple(s) for s in own] for p, own in about["shapes"].items()},
            digests=about["digests"],
        )
        kinds: dict[str, dict[str, Tensor]] = {"low": {}, "wide": {}}
        for name, tensor in tensors.items():
            kind, _, rest = name.partition(":")
            kinds[kind][rest] = tensor
        return Recorded(about["title"], model, kinds["low"], kinds["wide"], about["versions"], about.get("tables", {}))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{path}, is damaged: {type(error).__name__}: {error}") from error


def _passage(row: dict[str, Any]) -> tuple[Key, Passage]:
    def named(place: str) -> Named:
        return [(n, torch.empty(shape, dtype=getattr(torch, dtype), device="meta")) for n, shape, dtype in row[place]]

    key = (row["key"][0], row["key"][1])
    parent = None if row["parent"] is None else (row["parent"][0], row["parent"][1])
    (ulps, narrow), (ulps_out, narrow_out) = row["bounds"]
    bounds = (ulps, narrow), (ulps_out, narrow_out)
    return key, Passage(key, parent, row["site"], named("inputs"), named("outputs"), bounds, tuple(row["times"]))


# ---------------------------------------------------------------- compared


def part(a: Recorded, b: Recorded, names: Names) -> Found:
    """Where two programs part that ran apart: the first place that differs, as all later ones do."""
    _check_batch(a, b)
    calls = matched(a.model, b.model, names)
    points = _points(a, b, calls)
    growth: dict[str, float] = {}
    for point in points:
        if not point.before:
            growth.setdefault(point.match.b, point.distance)
    ends = [point for point in points if point.match.b == "" and not point.before]
    if not ends:
        raise CompareError(f"diff: the outputs of a, {a.title}, and of b, {b.title}, have nothing in common")
    notes: list[str] = []
    states: dict[str, list[str]] = {}
    for match, _ in calls.values():
        pair = a.model.digests.get(match.a[0]), b.model.digests.get(match.b)
        if None not in pair and pair[0] != pair[1]:
            states[match.b] = ["its weights differ"]
    if not any(point.differs for point in ends):  # where only something inside differs, it may not stand for the other
        inside = list(dict.fromkeys(point.before or point.match.b for point in points if point.differs))
        points = [point for point in points if not point.differs]
        if inside:
            these = ", ".join(inside[:3]) + ", ..." * (len(inside) > 3)
            notes.append(
                f"inside, {these} differ and the outputs do not: either these are no partners, or nothing is computed "
                "from what differs"
            )
    if not (a.wide and b.wide):
        notes.append("one of them did not run in float64: another function looks like rounding that is worse")
    errors = max(p.errors[0] for p in ends), max(p.errors[1] for p in ends)
    felt = max(p.roundings[0] for p in ends), max(p.roundings[1] for p in ends)
    alone, apart = unmatched(a.model, b.model, calls), max(p.distance for p in ends)
    return Found(calls, points, errors, apart, growth, alone, states, output_roundings=felt, notes=notes, unforced=True)


def _check_batch(a: Recorded, b: Recorded) -> None:
    named = [record.model.passages[ROOT].inputs for record in (a, b)]
    shapes = [[(name, list(t.shape)) for name, t in own] for own in named]
    if shapes[0] != shapes[1] and [name for name, _ in shapes[0]] == [name for name, _ in shapes[1]]:
        name, shape, other = next((n, one, two) for (n, one), (_, two) in zip(*shapes, strict=True) if one != two)
        raise CompareError(f"diff: {name} of the batch is {other}, and the capture was made with {shape}")
    for name, number in paired(named[1], named[0]).items():
        place = next(n for n, (its, _) in enumerate(named[1]) if its == name)
        mine, other = a.low.get(f" 0 0 {number}"), b.low.get(f" 0 0 {place}")
        if mine is None or other is None:
            continue
        spacing = max(torch.finfo(t.dtype).eps for t in (mine, other)) if kind_of(mine) == "float" else 0.0
        if mine.shape != other.shape or not torch.allclose(mine.double(), other.double(), spacing, 0, equal_nan=True):
            raise CompareError(f"diff: {name} of the batch is not what the capture was made with")


def _points(a: Recorded, b: Recorded, calls: Calls) -> list[Point]:
    found: list[tuple[int, Point]] = []
    tables = max(((a.tables | b.tables)[one] for one in a.tables.keys() ^ b.tables.keys()), default=0.0)
    for key, (match, keys) in calls.items():
        mine, its = b.model.passages[key], a.model.passages[keys[0]]
        for place, (own, theirs) in enumerate(((mine.inputs, its.inputs), (mine.outputs, its.outputs))):
            if match.channels is not None or (place == 0 and mine.parent not in calls):
                continue
            numbers = {name: n for n, (name, _) in enumerate(own)}
            for name, number in paired(own, theirs).items():
                at = f"{keys[0][0]} {keys[0][1]} {place} {number}", f"{key[0]} {key[1]} {place} {numbers[name]}"
                low, wide = (a.low[at[0]], b.low[at[1]]), (a.wide.get(at[0]), b.wide.get(at[1]))
                truth = next((t for t in wide if t is not None), low[0].double())
                whole = truth if wide[0] is None else wide[0], truth if wide[1] is None else wide[1]
                count = len(low[0])
                ulps, narrow = map(max, zip(its.bounds[place], mine.bounds[place], strict=True))
                narrow += tables
                if low[0].dtype is not low[1].dtype:  # weights of one are rounded, and nobody has the others
                    narrow += max(map(roundoff, low))
                point = point_of(
                    low, (whole[0][:count], whole[1][:count]), ulps, _EPS, narrow, key=key, site=mine.site,
                    match=calls[mine.parent][0] if place == 0 and mine.parent is not None else match,
                    before=f"{key[0]}({name})" if place == 0 else "",
                )  # fmt: skip
                point.apart = distance(whole[1], whole[0])  # with the projections
                found.append((mine.times[place], point))
    return [point for _, point in sorted(found, key=lambda one: one[0])]
