"""What the page and the cell of a comparison have more for formats: bars by layer, error against bits, gradients."""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ..._show.document import markup
from ..._show.fragment import badge, facts, folded, joined, listed, table
from ..._show.text import modules_shown, titled
from ..formats.table import format_of
from .bars import number, short
from .pictures import HUES
from .text import grouped, runs_of

if TYPE_CHECKING:
    from markupsafe import Markup

_THINNEST = 0.2  # of a bar, in percent of the longest


def formats_of(data: dict[str, Any], ids: Mapping[str, str]) -> dict[str, Any] | None:
    """What the page shows of formats, with the ids of the rows of layers; None for another comparison."""
    if "format" not in data:
        return None
    placed = data["placed"]
    return {
        "table": _overview(data),
        "rows": list(_rows(data, ids)),
        "stays": _stays(data),
        "gradients": _gradients(data),
        "chosen": None if placed is None else _chosen_table(placed, data["wide"], _by_name(data)),
    }


def parts_of_formats(data: dict[str, Any]) -> tuple[Any, ...]:
    """What a notebook's cell shows of formats, behind what it shows of any comparison."""
    placed, gradients, titles = data["placed"], _gradients(data), _by_name(data)
    alone = (
        (f"`{row['title']}`", *("stays" if bar["why"] else bar["says"] for bar in row["bars"]), row["chosen"])
        for row in _rows(data, {})
    )
    return (
        _overview(data),
        table("output error that a layer alone makes", ("layer", *titles, "chosen"), alone, "layer"),
        _stays(data),
        None if gradients is None else folded(f"gradients: error {number(float(data['gradient']))}", gradients),
        *(() if placed is None else _placed_parts(placed, data["wide"])),
    )


def parts_of_placed(data: dict[str, Any]) -> tuple[Any, ...]:
    """What shows which formats modules go to, from `Placed.to_dict()`."""
    count = len(data["formats"])
    return f"formats for {count} module{'s' * (count != 1)}", *_placed_parts(data, data["wide"])


def _placed_parts(placed: dict[str, Any], wide: str) -> Iterator[Any]:
    gradient = None if placed["gradient"] is None else f"gradients {number(float(placed['gradient']))}"
    said = (f"error {number(float(placed['error']))}", f"{placed['bits']:.3g} bits a weight", gradient)
    yield facts(badge("chosen", "info"), *filter(None, said), f"verified by {runs_of(placed['runs'])}")
    yield _chosen_table(placed, wide)
    yield listed(placed["notes"])


def _by_name(data: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The comparison of each format, by its name."""
    return {data["format"]: data, **data["by_format"]}


# --- tables -------------------------------------------------------------------------------------------------------


def _broken(title: str) -> "Markup":
    """The name of a format, which may break at a colon."""
    return markup(":<wbr>").join(title.split(":"))


def _format_label(title: str, titles: Iterable[str]) -> "Markup":
    """The name of a format with its colour, if it has one."""
    for place, one in enumerate(titles):
        if one == title:
            return markup('<span class="key f{}">{}</span>').format(place % HUES, _broken(title))
    return _broken(title)


def _overview(data: dict[str, Any]) -> "Markup | None":
    """One row for each format."""
    formats = _by_name(data)
    placed: list[str] = [] if data["placed"] is None else [*data["placed"]["formats"].values()]
    rows = (
        (
            _format_label(title, formats),
            f"{format_of(title).bits:.4g}",
            number(float(one["error"])),
            "" if one["gradient"] is None else number(float(one["gradient"])),
            str(len(one["stays"]) or ""),
            str(placed.count(title) or ""),
        )
        for title, one in formats.items()
    )
    return table("", ("format", "bits a weight", "output error", "gradients", "stay", "chosen"), rows)


def _stays(data: dict[str, Any]) -> "Markup | None":
    """Which modules stay, by the reason, and in which formats."""
    found = grouped((stay, title) for title, one in _by_name(data).items() for stay in one["stays"].items())
    rows = grouped(((why, tuple(titles)), name) for (name, why), titles in found.items())
    names = [layer["name"] for layer in data["layers"]]
    head = (f"stays in {data['wide']}", "not in", "why")
    return table("", head, ((_names(some, names), ", ".join(of), why) for (why, of), some in rows.items()))


def _chosen_table(placed: dict[str, Any], wide: str, titles: Iterable[str] = ()) -> "Markup | None":
    """Which modules go to which format."""
    formats, stays = placed["formats"], placed["stays"]
    names = dict.fromkeys((*formats, *placed["names"], *stays))
    rows = grouped(((formats[n], "") if n in formats else (wide, stays.get(n, "")), n) for n in names)
    cells = ((_format_label(to, titles), _names(some, names), why) for (to, why), some in rows.items())
    return table("", ("chosen", "modules", ""), cells)


def _names(some: Iterable[str], names: Iterable[str]) -> "Markup":
    return joined(*(f"`{name}`" for name in modules_shown(some, names)))


def _gradients(data: dict[str, Any]) -> "Markup | None":
    """The error of each parameter's gradient, by formats, the largest in the first one on top."""
    if data["gradients"] is None:
        return None
    found = [one["gradients"] or {} for one in _by_name(data).values()]
    names = dict.fromkeys(name for errors in found for name in errors)
    cells = (
        (f"`{name}`", *(number(float(errors[name])) if name in errors else "" for errors in found)) for name in names
    )
    return table("", ("parameter", *map(_broken, _by_name(data))), cells, "parameter")


# --- bars ---------------------------------------------------------------------------------------------------------


def _rows(data: dict[str, Any], ids: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """One row for each layer that has products, with a bar for each format: the largest error first."""
    formats, placed = _by_name(data), data["placed"]
    kinds = {layer["name"]: layer["kind"] for layer in data["layers"]}
    errors = {title: dict(_errors_alone(one)) for title, one in formats.items()}
    stays = [name for one in formats.values() for name in one["stays"]]
    chosen: dict[str, str] = {}
    if placed is not None:
        chosen = dict.fromkeys((*placed["names"], *placed["stays"]), data["wide"]) | placed["formats"]
    names = dict.fromkeys((*(name for found in errors.values() for name in found), *stays, *chosen))
    scale = max((e for found in errors.values() for e in found.values() if math.isfinite(e)), default=0.0) or 1.0

    def bar(place: int, title: str, name: str) -> dict[str, Any]:
        shared, why = formats[title]["explained"] is not None, formats[title]["stays"].get(name)
        error = errors[title].get(name, 0.0 if shared and why is None else None)
        lost = error is not None and not math.isfinite(error)
        width = 0.0 if not error else 100.0 if lost else max(100 * error / scale, _THINNEST)
        says = "no shares" if error is None else number(error)
        return {
            "title": _broken(title), "hue": place % HUES, "why": why, "says": says, "width": short(width), "lost": lost,
            "chosen": chosen.get(name) == title,
            "rank": math.inf if lost else error or 0.0,
        }  # fmt: skip

    rows = [
        {
            "title": titled(name),
            "id": ids.get(name),
            "kind": kinds.get(name, ""),
            "share": None,
            "bars": [bar(place, title, name) for place, title in enumerate(formats)],
            "chosen": chosen.get(name) and _format_label(chosen[name], formats),
            "stays": chosen.get(name) == data["wide"],
        }
        for name in names
    ]
    yield from sorted(rows, key=lambda row: -max(bar["rank"] for bar in row["bars"]))


def _errors_alone(one: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """What each layer alone makes of the outputs, of those that are in the format."""
    for layer in one["layers"]:
        if layer["alone"] is not None and layer["name"] not in one["stays"]:
            yield layer["name"], float(layer["alone"])
