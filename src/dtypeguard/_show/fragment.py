"""The output of a notebook's cell: one HTML element, with the colours and labels that pages have.

Its style is kept to the element itself, and follows the theme of JupyterLab, VS Code and Colab. There is no script.
Where a notebook is shown without styles, as on GitHub, tables and lists are left, which read well.
"""

import functools
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from .._core.base.dtypes import name_of
from .chips import chip, class_styles
from .document import document, markup, prose, readable
from .svg import Picture, inline
from .text import number

if TYPE_CHECKING:
    from markupsafe import Markup

_HERE = Path(__file__).parent
_SHORT = re.compile(r"[^a-z]*\d[\d.,e+%-]*|[\u2580-\u259f ]+")  # a number as text, a bar: none is broken
_MOST = 12  # rows before the rest is folded
_EMPTY = "<td></td>"
_SCOPE = "div.dtypeguard.dtypeguard"  # twice, so that it counts for more than a notebook's own style of tables
# How JupyterLab, VS Code, Colab and the pages of documentation say that they are dark.
_DARK = (
    "[data-jp-theme-light=false]", ".vscode-dark", ".vscode-high-contrast:not(.vscode-high-contrast-light)",
    "html[theme=dark]", "[data-theme=dark]", "[data-bs-theme=dark]",
)  # fmt: skip


def fragment(title: Any, *parts: Any) -> str:
    """What `_repr_html_` returns: a line in bold, and parts or texts, each a paragraph; None is left out."""
    element = markup('<div class="dtypeguard"><style>{}</style>\n{}\n</div>')
    return readable(element.format(markup(_style()), body(title, *parts)))


def framed(heading: str, title: Any, *parts: Any) -> str:
    """The same as a page that needs nothing else."""
    style = re.sub(r":root \{[^}]*\}", "", (_HERE / "fragment.css").read_text("utf-8")) + class_styles()
    return document(_HERE / "result", {"heading": heading, "body": body(title, *parts)}, {}, style)


def body(title: Any, *parts: Any) -> "Markup":
    """The same without its frame and style."""
    first = markup('<p class="title"><strong>{}</strong></p>').format(title)
    return markup("\n").join([first, *map(_paragraph, parts)])


def _paragraph(part: Any) -> "Markup":
    if part is None or hasattr(part, "__html__"):
        return markup(part or "")
    return markup("<p>{}</p>").format(prose(str(part)))


@functools.cache
def _style() -> str:
    light, dark = f"{_SCOPE}{{color-scheme:light}}\n", "{color-scheme:dark}\n"
    styles = "".join((_HERE / name).read_text("utf-8") for name in ("parts.css", "fragment.css")) + class_styles()
    return light + ",".join(f"{theme} {_SCOPE}" for theme in _DARK) + dark + scoped(styles)


def scoped(style: str) -> str:
    """A style that holds for our element only; `:root` in it means the element."""

    def kept(rule: re.Match[str]) -> str:
        selectors = (selector.strip() for selector in rule[1].split(","))
        return ",".join(_SCOPE if one == ":root" else f"{_SCOPE} {one}" for one in selectors) + "{"

    return re.sub(r"([^{}]+)\{", kept, re.sub(r"/\*.*?\*/", "", style, flags=re.DOTALL)).replace("\n", " ")


# --- parts --------------------------------------------------------------------------------------------------------


def drawn(picture: Picture | None) -> "Markup | None":
    """A picture; None for none."""
    return None if picture is None else markup(inline(picture))


def facts(*texts: Any) -> "Markup":
    """A quiet line of facts."""
    return markup('<p class="facts">{}</p>').format(markup(" · ").join(map(_cell, texts)))


def badge(text: str, kind: str) -> "Markup":
    """A label: 'error', 'warning', 'info', 'good' or 'none'."""
    return markup('<span class="badge {}">{}</span>').format(kind, text)


def where(text: str | None) -> "Markup | None":
    """A line of the program; None for none."""
    return markup('<span class="place">{}</span>').format(text) if text else None


def joined(*texts: Any) -> "Markup":
    """Texts and labels side by side; None is left out."""
    return markup(" ").join(_cell(text) for text in texts if text is not None)


def lines(*texts: Any) -> "Markup":
    """Texts below each other; None is left out."""
    return markup("<br>").join(_cell(text) for text in texts if text is not None)


def link(text: str, address: str | None) -> "Markup":
    """A link to the web; only the text for what is no such address."""
    if not address or not address.startswith(("https://", "http://")):
        return markup("{}").format(text)
    return markup('<a href="{}" rel="noreferrer">{}</a>').format(address, text)


def plain(text: str) -> "Markup":
    """Text whose lines stay as they are."""
    return markup("<pre>{}</pre>").format(text)


def listed(texts: Iterable[Any]) -> "Markup | None":
    """A list; None where there is nothing to list."""
    items = [markup("<li>{}</li>").format(_cell(text)) for text in texts]
    return markup("<ul>{}</ul>").format(markup("").join(items)) if items else None


def table(caption: str, head: Sequence[str], rows: Iterable[Sequence[Any]], noun: str = "row") -> "Markup | None":
    """A table; None where it has no rows. Columns without anything in them are left out, rows after a dozen folded.

    Cells are text, numbers, dtypes, or what this module's functions make; `noun` is what the folded rows are called.
    """
    rows = [tuple(map(_data, row)) for row in rows]
    kept = [place for place, name in enumerate(head) if any(row[place] != _EMPTY for row in rows)]
    head, rows = [head[place] for place in kept], [tuple(row[place] for place in kept) for row in rows]
    first, rest = _table(caption, head, rows[:_MOST]), rows[_MOST:]
    if first is None or not rest:
        return first
    return first + folded(number(len(rest), f"more {noun}"), _table("", head, rest))


def _table(caption: str, head: Sequence[str], rows: Sequence[Sequence["Markup"]]) -> "Markup | None":
    if not rows:
        return None
    cells = markup("").join(markup('<th scope="col">{}</th>').format(name) for name in head)
    lines = (markup("<tr>{}</tr>").format(markup("").join(row)) for row in rows)
    above = markup("<caption>{}</caption>").format(caption) if caption else markup("")
    whole = markup("<table>{}<thead><tr>{}</tr></thead><tbody>{}</tbody></table>")
    return whole.format(above, cells, markup("\n").join(lines))


def folded(summary: Any, *parts: Any, opened: bool = False) -> "Markup":
    """What is shown when its summary is pressed; at once if it is opened."""
    whole = markup("<details{}><summary>{}</summary>{}</details>")
    return whole.format(markup(" open" if opened else ""), _cell(summary), markup("\n").join(map(_paragraph, parts)))


def _data(value: Any) -> "Markup":
    if isinstance(value, int | float) and not isinstance(value, bool):
        return markup('<td class="number">{}</td>').format(f"{value:,}")
    short = isinstance(value, str) and not hasattr(value, "__html__") and _SHORT.fullmatch(value)
    return markup('<td class="short">{}</td>' if short else "<td>{}</td>").format(_cell(value))


def _cell(value: Any) -> "Markup":
    if value is None:
        return markup("")
    if isinstance(value, torch.dtype):
        return chip(name_of(value))
    return markup(value) if hasattr(value, "__html__") else prose(str(value))
