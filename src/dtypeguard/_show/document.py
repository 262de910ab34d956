"""What all pages have: one HTML file that needs nothing else, no network, no fonts, no framework.

A page is whole without JavaScript. Its two inline parts are named by hash in a Content-Security-Policy, so that nothing
else could run or be fetched, whatever a program has put into what the page shows.
"""

import base64
import hashlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from markupsafe import Markup

_HERE = Path(__file__).parent
_CONTROL = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n"} | {0x7F: 0x2421}


def document(page: Path, view: Mapping[str, Any], filters: Mapping[str, Callable[..., Any]], style: str = "") -> str:
    """A page: `page` is the path of its template without `.html.j2`, `view` the names that the template knows.

    Its `.css` and `.js`, if it has any, are beside it, and come after those that all pages have, and after `style`:
    inline styles would need a hole in the policy.
    """
    common = _HERE / "common"
    script = _asset(common.with_suffix(".js")) + _asset(page.with_suffix(".js"))
    style = _asset(_HERE / "parts.css") + _asset(common.with_suffix(".css")) + style + _asset(page.with_suffix(".css"))
    text = _template(page, filters).render(
        script=markup(script),
        style=markup(style),
        policy=f"default-src 'none'; img-src data:; script-src {_hash(script)}; style-src {_hash(style)}",
        **view,
    )
    return readable(text)


def readable(text: str) -> str:
    """HTML as a file can hold it: a path that is not text holds surrogates, which no file could hold in turn."""
    return str(text).translate(_CONTROL).encode("utf-8", "backslashreplace").decode("utf-8")


def _asset(path: Path) -> str:
    return path.read_text("utf-8") if path.exists() else ""


def _template(page: Path, filters: Mapping[str, Callable[..., Any]]) -> Any:
    import jinja2

    def source(name: str) -> str:
        folder = _HERE if name.startswith("common.") else page.parent
        return re.sub(r"\n[ \n]+", "\n", (folder / name).read_text("utf-8"))  # indentation is a third of a big page

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(source), autoescape=True, trim_blocks=True, lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    environment.filters.update(number="{:,}".format, prose=prose, **filters)
    return environment.get_template(f"{page.name}.html.j2")


def markup(text: str) -> "Markup":
    """Text that is HTML already."""
    from markupsafe import Markup

    return Markup(text)


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def prose(text: str) -> "Markup":
    """Text with its `code` set as code."""
    parts = text.split("`")
    if len(parts) % 2 == 0:  # an odd number of backticks marks nothing
        parts = [text]
    return markup("").join(markup("<code>{}</code>").format(p) if i % 2 else p for i, p in enumerate(parts))
