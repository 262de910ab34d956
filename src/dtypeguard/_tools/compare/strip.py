"""The network as a strip from input to output: the error of each module's output, its share, and what it is in.

Across, everything stands in percent of the strip's width, so it fits any screen; down, in px.
"""

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

from ..._show.text import percent, titled
from .bars import bar, number, scale_of, share_text, short, words_of
from .measure import INPUTS
from .text import LARGE

_TOP, _ERROR, _GAP, _SHARES, _LANE = 16, 150, 24, 72, 19  # heights
_FLOOR, _BARS = _TOP + _ERROR, _TOP + _ERROR + _GAP  # where the errors stand, and where the shares begin
_DECADES = 6
_WIDE, _NARROW, _FITS = 12.0, 2.0, 1150.0  # a module, and the strip as far as modules may shrink for it
_LETTER = 7.2  # width of a letter


def strip_of(data: dict[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What is drawn, and where, from `Comparison.to_dict()` and the page's rows of layers."""
    slots, shared = _slots(data, rows), data["explained"] is not None
    count = max(len(slots), 1)
    width = max(min(_WIDE * count, _FITS), _NARROW * count, 280.0)
    lanes, place = _lanes(slots, width / count), _FLOOR + (_GAP + _SHARES if shared else 0) + 6
    for lane in lanes:
        lane["y"], place = place, place + _LANE
    named = width / count >= _WIDE
    letters = _label(slots, lanes) if named else 0
    flat = letters * _LETTER <= width / count
    low, high = scale_of(rows)
    return {
        "slots": slots,
        **_errors(slots),
        "floor": _FLOOR,
        "zero": short(_BARS + _SHARES * high / (high - low)) if shared else None,
        "ends": _shares(slots, (low, high)) if shared else [],
        "lanes": lanes,
        "lane": _LANE,
        "names": place + 6 if named else None,
        "flat": flat,
        "fine": width / count < 6,
        "width": round(width),
        "most": max(480, 96 * count),
        "height": round(place + ((20 if flat else 10 + _LETTER * letters) if named else 4)),
    }


def above(error: float | None) -> bool:
    """Whether an error is worth telling."""
    return error is not None and error > LARGE


def _slots(data: dict[str, Any], rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The modules in the order in which they return, after what they are given."""
    by_name = {row["name"]: row for row in rows}
    order = [(step["name"], float(step["error"])) for step in data["depth"]]
    errors: dict[str, float | None] = ({INPUTS: None} if INPUTS in by_name else {}) | dict(order)
    first = next((name for name, error in order if name and above(error)), None)
    around = {name[:end] for name, _ in order for end, letter in enumerate(name) if letter == "."} | {""}
    step = 100 / max(len(errors), 1)
    slots: list[dict[str, Any]] = [
        {
            "name": name,
            "title": titled(name),
            "short": name or data["model"],
            "row": by_name.get(name),
            "error": error,
            "lost": error is not None and not math.isfinite(error),
            "first": name == first,
            "kept": name in by_name and by_name[name]["kept"],
            "holds": name in around,
            "x": short(step * place),
            "width": short(step),
            "middle": short(step * (place + 0.5)),
            "pieces": [],
        }
        for place, (name, error) in enumerate(errors.items())
    ]
    for slot in slots:
        slot["above"] = above(slot["error"]) and not slot["lost"]
        slot["says"] = _says(slot, data["wide"], words_of(data))
    return slots


def _says(slot: dict[str, Any], wide: str, words: Mapping[str, str]) -> str:
    """What a module tells when pointed at."""
    row, said = slot["row"], [slot["title"]]
    if row is not None and row["kind"]:
        said[0] += f" ({row['kind']})"
    if slot["error"] is not None:
        said.append(f"error of its output: {number(slot['error'])}")
    if row is not None and row["share"] is not None:
        said.append(f"share: {share_text(row, words)}")
    if slot["kept"]:
        said.append(f"stays in {wide}")
    return "\n".join(said)


# --- the error of each module's output ----------------------------------------------------------------------------


def _errors(slots: list[dict[str, Any]]) -> dict[str, Any]:
    """The logarithmic scale. Sets the top of each bar, and where it becomes an error worth telling."""
    errors = [slot["error"] for slot in slots if slot["error"] and math.isfinite(slot["error"])]
    high = math.ceil(math.log10(max(errors))) if errors else -2
    if any(slot["lost"] for slot in slots):
        high = max(high, -1)
    low = math.floor(math.log10(min(errors))) if errors else high - 2
    low = max(min(low, high - 1), high - _DECADES)

    def down(error: float) -> float:
        place = (min(max(math.log10(error), low), high) - low) / (high - low)
        return round(_FLOOR - 2 - (_ERROR - 2) * place, 1)

    large = down(LARGE) if low <= math.log10(LARGE) <= high else None
    for slot in slots:
        slot["y"] = _TOP if slot["lost"] else down(slot["error"]) if slot["error"] else _FLOOR
        slot["turn"] = slot["y"]
        if above(slot["error"]):
            slot["turn"] = _FLOOR if slot["lost"] or large is None else large
    ticks = [{"y": down(10.0**exponent), "says": percent(10.0**exponent)} for exponent in range(low, high + 1)]
    return {"ticks": ticks, "large": large}


# --- shares -------------------------------------------------------------------------------------------------------


def _shares(slots: list[dict[str, Any]], scale: tuple[float, float]) -> list[dict[str, Any]]:
    """What the bars reach to: up, and down if that can be told from zero. Sets the bars."""
    low, high = scale
    for slot in slots:
        for piece in bar(slot["row"], scale)["pieces"] if slot["row"] else ():
            height = piece["width"] * _SHARES / 100
            bottom = _BARS + _SHARES * (100 - piece["at"]) / 100
            slot["pieces"].append(
                {"name": piece["name"], "y": short(bottom - height), "height": short(max(height, 0.5))}
            )
    ends = [{"y": _BARS, "says": number(high)}, {"y": round(_BARS + _SHARES * high / (high - low), 1), "says": "0"}]
    deep = -_SHARES * low / (high - low)
    return [*ends, {"y": _BARS + _SHARES, "says": number(low)}] if deep > 12 else ends


# --- names --------------------------------------------------------------------------------------------------------


def _label(slots: list[dict[str, Any]], lanes: list[dict[str, Any]]) -> int:
    """Sets what each module is called: without what stands above it. Returns the letters of the longest."""
    grouped = {place for lane in lanes for group in lane["groups"] for place in range(group["start"], group["end"])}
    for place, slot in enumerate(slots):
        slot["label"] = slot["short"].rpartition(".")[2] if place in grouped else slot["short"]
    return max((len(slot["label"]) for slot in slots), default=0)


def _lanes(slots: list[dict[str, Any]], wide: float) -> list[dict[str, Any]]:
    """What modules are in, below them: the two outermost levels that tell them apart."""
    paths = [() if slot["name"] in ("", INPUTS) else tuple(slot["name"].split(".")) for slot in slots]
    levels = []
    for level in range(1, max(map(len, paths), default=0) + 1):
        groups = [group for group in _runs(paths, level) if group["end"] - group["start"] > 1]
        if groups:
            levels.append(groups)
    chosen = [groups for groups in levels if len(groups) > 1][:2] or levels[:1]
    for groups in chosen:
        for group in groups:
            size = group["end"] - group["start"]
            group["x"] = short(100 * group["start"] / len(slots))
            group["width"] = short(100 * size / len(slots))
            group["middle"] = short(100 * (group["start"] + size / 2) / len(slots))
            group["label"] = next((text for text in group["labels"] if len(text) * _LETTER <= size * wide), "")
    return [{"groups": groups} for groups in chosen]


def _runs(paths: list[tuple[str, ...]], level: int) -> Iterator[dict[str, Any]]:
    """Modules beside each other that are in the same one."""
    start = 0
    for path, run in itertools.groupby(path[:level] for path in paths):
        end = start + len(list(run))
        if len(path) == level:
            labels = (".".join(path), ".".join(path[-2:]), path[-1])
            yield {"start": start, "end": end, "title": labels[0], "labels": labels}
        start = end
