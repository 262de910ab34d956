"""A comparison as one HTML page: what it found, the network from input to output, its layers and its lines."""

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ..._show.document import document
from ..._show.fragment import badge, drawn, facts, folded, joined, listed, table, where
from ..._show.text import titled
from .bars import LEAST, PARTS, bar, number, scale_of, share, words_of
from .formats_page import formats_of
from .measure import INPUTS
from .pictures import of_comparison, of_formats
from .strip import above, strip_of
from .text import grouped, of_whole, site_of, verified
from .units import in_any

_PAGE = Path(__file__).parent / "compare"
_SHOWN = 12  # rows of a list before the rest is folded
_NAMES = 8  # names in a row


def render(data: dict[str, Any]) -> str:
    """The page of a comparison, from `Comparison.to_dict()`."""
    rows = list(_layers(data))
    strip, error = strip_of(data, rows), float(data["error"])
    formats = formats_of(data, {row["name"]: row["id"] for row in rows})
    sums = {name: sum(layer[name] for layer in data["layers"]) for name in PARTS}
    view = {
        "data": data,
        "error": error,
        "lost": not math.isfinite(error),
        "shared": data["explained"] is not None,
        "layers": _folded(rows),
        "lines": _folded(_lines(data, rows)),
        "total": sums,
        "strip": strip,
        "first": next((slot for slot in strip["slots"] if slot["first"]), None),
        "kept": _kept_layers(data, rows),
        "picture": drawn(of_formats(data) if formats else of_comparison(data)),
        "shares": not formats and len(data["curve"]) > 1,
        "formats": formats,
        "alone": _folded(formats["rows"] if formats else ()),
        "low": data.get("format") or data["dtype"] or data["region"],
        "modules": sum(row["name"] != INPUTS for row in rows),
        "inputs": INPUTS,
        "parts": PARTS,
        "words": words_of(data),
        "least": LEAST,
        "fold": _NAMES,
    }
    style = f".strip svg{{min-width:{strip['width']}px;max-width:{strip['most']}px;height:{strip['height']}px}}\n"
    return document(_PAGE, view, {"percent": number, "share": share, "of_whole": of_whole}, style)


def _layers(data: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """One row for each layer, in the order of the result: with its lines, its parameters, and its bar."""
    parts = (
        part | {"site": site_of(part["file"], part["line"]), "share": sum(part[name] for name in PARTS)}
        for part in data["parts"]
    )
    inside = grouped((part["layer"], part) for part in parts)
    own = grouped((name.rpartition(".")[0], (name, value)) for name, value in data["parameters"].items())
    scale = scale_of(data["layers"])
    names = () if data["kept"] is None else tuple(data["kept"]["names"])
    stays = () if not data.get("placed") else data["placed"]["names"]
    for place, layer in enumerate(data["layers"]):
        error = None if layer["error"] is None else float(layer["error"])
        yield layer | {
            "id": f"l{place}",
            "title": titled(layer["name"]),
            "error": error,
            "above": above(error),
            "lines": sorted(inside.get(layer["name"], ()), key=lambda row: -abs(row["share"])),
            "parameters": own.get(layer["name"], ()),
            "bar": bar(layer, scale),
            "kept": layer["name"] in stays or (layer["name"] != INPUTS and in_any(layer["name"], names)),
        }


def _lines(data: dict[str, Any], rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """One row for each line, with the layers that run it, the largest share first."""
    inside = grouped(
        ((line["file"], line["line"]), {"id": row["id"], "title": row["title"], "share": line["share"]})
        for row in rows
        for line in row["lines"]
    )
    scale = scale_of(data["lines"])
    for place, line in enumerate(data["lines"]):
        yield line | {
            "id": f"s{place}",
            "site": site_of(line["file"], line["line"]),
            "layers": sorted(inside.get((line["file"], line["line"]), ()), key=lambda layer: -abs(layer["share"])),
            "bar": bar(line, scale),
        }


def _folded(rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The rows that are shown, which add or take away most, and the rest."""
    rows = list(rows)
    shown = len(rows) if len(rows) <= _SHOWN + 3 else _SHOWN
    rest = rows[shown:]
    return {"all": rows, "shown": rows[:shown], "rest": rest, "share": sum(row["share"] or 0.0 for row in rest)}


def _kept_layers(data: dict[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    """What stays in float32, with the rows of these layers."""
    kept: dict[str, Any] | None = data["kept"]
    if kept is None:
        return None
    ids = {row["name"]: row["id"] for row in rows}
    names = [{"title": titled(name), "id": ids.get(name)} for name in kept["names"]]
    return kept | {"error": float(kept["error"]), "names": names, "verified": verified(kept["runs"], _low(data))}


def _low(data: dict[str, Any]) -> str:
    return data["dtype"] or f"{data['region']} autocast"


def parts_of(data: dict[str, Any], title: str) -> tuple[Any, ...]:
    """What a notebook's cell shows of a comparison."""
    shared = data["explained"] is not None
    rows = [layer for layer in _layers(data) if not shared or abs(layer["share"]) >= LEAST]
    head = (
        ("layer", "keeping saves", "share", *words_of(data).values(), "output error", "where")
        if shared
        else ("layer", "output error")
    )
    return (
        f"{data['model']}, {title}: {data['verdict']}",
        *(facts(badge("not finite", "error"), line) for line in data["born"]),
        table("", head, (_cells(layer, shared) for layer in rows), "layer"),
        *_said_of(data["kept"], data["wide"], _low(data)),
        folded("notes", listed(data["notes"])) if data["notes"] else None,
    )


def _cells(layer: dict[str, Any], shared: bool) -> tuple[Any, ...]:
    name = joined(f"`{layer['title']}`", layer["kind"])
    error = "" if layer["error"] is None else number(layer["error"])
    if not shared:
        return name, error
    parts = [number(layer[part]) if abs(layer[part]) >= LEAST else "" for part in PARTS]
    saves = "" if not layer["saves"] else share(layer["saves"])
    return name, saves, share(layer["share"]), *parts, error, where(layer["lines"][0]["site"] if layer["lines"] else "")


def parts_of_kept(data: dict[str, Any]) -> tuple[Any, ...]:
    """What shows which modules are kept."""
    return f"modules that stay in {data['wide']}", *_said_of(data, data["wide"], data["dtype"] or "autocast")


def _said_of(kept: dict[str, Any] | None, wide: str, low: str) -> Iterator[Any]:
    if kept is not None:
        runs = verified(kept["runs"], low)
        yield facts(badge(f"keep in {wide}", "info"), f"error {number(float(kept['error']))}", runs)
        cost = f"{of_whole(kept['parameters'])} of the parameters, {of_whole(kept['bytes'])} of the bytes"
        yield joined(*(f"`{titled(name)}`" for name in kept["names"]), cost if kept["names"] else "")
        yield from kept["notes"]
