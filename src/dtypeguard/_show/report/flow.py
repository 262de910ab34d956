"""The dtypes of a program as a picture: what each module returned, how large it was, and where its dtype changed."""

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from ..svg import Axis, Bars, Row
from ..text import human

_MOST = 60  # rows
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")
_COLOURS = {"float64": "above", "float32": "f0", "bfloat16": "f6", "float16": "f3"}


@dataclass
class _Like:
    """Modules that differ in a number of their names only."""

    path: str
    names: list[str] = field(default_factory=list)
    took: tuple[str, ...] = ()
    gave: tuple[str, ...] = ()
    size: int = 0  # bytes of what one call returned
    casts: list[dict[str, Any]] = field(default_factory=list)


def flow_of(data: dict[str, Any]) -> Bars:
    """A report's data as a picture: a row for each module that ran, or for all like it: `layers.* x 24`."""
    rows = _folded(data["modules"], data["casts"])
    more = [Row(f"... and {len(rows) - _MOST} more", (), "in the tree below")] * (len(rows) > _MOST)
    colours = {dtype: _colour(dtype) for like in rows for dtype in like.gave}
    return Bars(
        "dtypes from module to module",
        [*map(_row, rows[:_MOST]), *more],
        Axis("bytes returned by a call", log=2, low=1.0, said=human),
        keys=[(colour, dtype) for dtype, colour in colours.items()],
    )


def _folded(modules: list[dict[str, Any]], casts: list[dict[str, Any]]) -> list[_Like]:
    likes: dict[object, _Like] = {}
    for module in modules:
        if not module["calls"] or not module["outputs"]:
            continue
        path = _NUMBER.sub("*", module["path"])
        took, gave = (_dtypes(module[side]) for side in ("inputs", "outputs"))
        like = likes.setdefault((path, module["class"], took, gave), _Like(path, took=took, gave=gave))
        like.names.append(module["path"])
        like.size = max(like.size, sum(_bytes(row) for row in module["outputs"]))
        like.casts += [cast for cast in casts if cast["module_path"] == module["path"] and cast["kind"] != "backward"]
    paths = Counter(like.path for like in likes.values())
    for like in likes.values():
        if len(like.names) == 1:  # the odd one of many is the one that somebody looks for
            like.path = like.names[0]
        elif paths[like.path] > 1:  # others of these names do something else
            places = zip(*(name.split(".") for name in like.names), strict=True)
            like.path = ".".join(
                one[0] if len({*one}) == 1 else f"{{{','.join(dict.fromkeys(one))}}}" for one in places
            )
    return list(likes.values())


def _bytes(row: dict[str, Any]) -> int:
    dtype: torch.dtype = getattr(torch, row["dtype"])
    size: int = math.prod(row["shape"], start=dtype.itemsize)
    return size


def _dtypes(rows: list[dict[str, Any]]) -> tuple[str, ...]:
    """The floating dtypes among tensors; all of them where there is none."""
    every = dict.fromkeys(row["dtype"] for row in rows)
    return tuple(dtype for dtype in every if "float" in dtype) or tuple(every)


def _row(like: _Like) -> Row:
    head, _, last = like.path.rpartition(".")
    if last[:1] in "*{" or last.isdecimal():  # `layers.*`
        last = f"{head.rpartition('.')[2]}.{last}"
    many = f" x {len(like.names)}" if "*" in like.path else ""
    return Row(
        f"{last}{many}" if head else like.path,
        [(1.0, float(max(like.size, 2)), _colour(like.gave[0]))],
        _says(like),
        min(like.path.count("."), 6),
        told=f"{like.path}{many}: {', '.join(_cast_lines(like))}",
    )


def _says(like: _Like) -> str:
    """`float32 → bfloat16`, or one dtype where a module keeps it; `bfloat16, in float32` where it converts inside."""
    took, gave = ", ".join(like.took), ", ".join(like.gave)
    between = {cast["to_dtype"] for cast in like.casts} & {cast["from_dtype"] for cast in like.casts}
    inside = "".join(f", in {dtype}" for dtype in sorted(between.difference(like.took, like.gave))[:1])
    return (f"{took} → {gave}" if took and took != gave else gave) + inside


def _cast_lines(like: _Like) -> Iterator[str]:
    yield f"{_says(like)}, {human(like.size)}"
    for cast in like.casts[:4]:
        yield f"{cast['kind']} {cast['from_dtype']} → {cast['to_dtype']} at {cast['site'].partition(', in ')[0]}"


def _colour(dtype: str) -> str:
    return _COLOURS.get(dtype, "f4" if dtype.startswith("float8") else "f7")
