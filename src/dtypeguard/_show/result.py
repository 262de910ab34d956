"""What all results have: plain data, a page, the output of a notebook's cell."""

import abc
import dataclasses
import math
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch

if TYPE_CHECKING:
    from .svg import Picture

_OTHERS = (".png", ".jpg", ".jpeg", ".gif", ".webp", ".pdf", ".html", ".json")  # endings of what is no SVG
SCHEMA = 1  # of the data; a key that goes or changes its meaning makes it one more


class Result(abc.ABC):
    """A result of one of the tools, which can be kept and looked at."""

    kind: ClassVar[str]  # the tool's name
    __slots__ = ()

    @abc.abstractmethod
    def _data(self) -> dict[str, Any]:
        """The result, without the envelope; `plain` makes plain data of it."""

    @abc.abstractmethod
    def _cell(self) -> tuple[Any, ...]:
        """The first line and the parts of a notebook's cell, for `fragment`."""

    def _picture(self) -> "Picture | None":
        """What the result is as a picture, which its page and its cell show too: see `Drawn`."""
        return None

    def _shown(self) -> tuple[Any, ...]:
        """What the cell shows, with the picture below the first line."""
        from .fragment import drawn

        title, *parts = self._cell()
        return title, drawn(self._picture()), *parts

    def _page(self) -> str:
        """The page: what a cell shows, in a frame. Results that have a template of their own override it."""
        from .fragment import framed

        return framed(self._heading(), *self._shown())

    def _heading(self) -> str:
        """The title of the page."""
        return f"dtypeguard {self.kind}"

    def to_dict(self) -> dict[str, Any]:
        """The result as plain data. Dtypes are names (`bfloat16`).

        Every result begins alike: `schema`, the number of the format; `tool`, "dtypeguard"; its `version`; the `kind`
        of result; and the version of `torch`.
        """
        return {
            "schema": SCHEMA,
            "tool": "dtypeguard",
            "version": sys.modules["dtypeguard"].__dict__["__version__"],
            "kind": self.kind,
            "torch": str(torch.__version__),
            **plain(self._data()),
        }

    def to_json(self, path: str | os.PathLike[str] | None = None) -> str:
        """The result as JSON, which is written to a file too if a path is given.

        Args:
            path: the path of the file.

        Returns:
            The text.

        Raises:
            OSError: the file cannot be written.
        """
        from .files import as_json

        return as_json(self.to_dict(), path)

    def to_html(self, path: str | os.PathLike[str] | None = None) -> str:
        """The result as a self-contained HTML page, which is written to a file too if a path is given.

        Args:
            path: the path of the file.

        Returns:
            The text.

        Raises:
            OSError: the file cannot be written.
        """
        from .files import write

        page = self._page()
        if path is not None:
            write(path, page, "report.html")
        return page

    def _repr_html_(self) -> str:
        from .fragment import fragment

        return fragment(*self._shown())


class Drawn(Result):
    """A result that is a picture too."""

    __slots__ = ()

    @abc.abstractmethod
    def _picture(self) -> "Picture": ...

    def to_svg(self, path: str | os.PathLike[str] | None = None) -> str:
        """The result as a picture in SVG, for light and dark, which is written to a file too if a path is given.

        Raises:
            OSError: where it cannot be written.
            ValueError: the name of the file has another ending.
        """
        from .files import write
        from .svg import alone

        picture = alone(self._picture())
        if path is not None:
            if str(path).lower().endswith(_OTHERS):
                ending = os.path.splitext(path)[1]
                raise ValueError(f"to_svg writes SVG, and path={os.fspath(path)!r} ends with {ending}: write .svg")
            write(path, picture, "picture.svg")
        return picture


class Row:
    """A part of a result, as a dataclass: a notebook shows it as a table of its facts."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        from .fragment import fragment, table

        facts = ((field.name, _fact(getattr(self, field.name))) for field in dataclasses.fields(cast(Any, self)))
        rows = [(name, value) for name, value in facts if value not in (None, "")]
        return fragment(type(self).__name__, table("", ("fact", "value"), rows, "fact"))


def _fact(value: Any) -> Any:
    """A fact as a cell shows it; nothing for what is empty, and for parts that show themselves."""
    if isinstance(value, tuple | list):
        return "\n".join(str(plain(item)) for item in value if not dataclasses.is_dataclass(item))
    if isinstance(value, float):
        return f"{value:.3g}"
    if dataclasses.is_dataclass(value) or isinstance(value, Mapping):
        return None
    return value if value is None or isinstance(value, int | torch.dtype) else str(plain(value))


def plain(value: Any) -> Any:
    """Plain data: dtypes and devices by name, rows as dicts; JSON has no infinity and no NaN."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, dict):
        return {key if isinstance(key, str) else plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | frozenset):
        return [plain(item) for item in value]
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return str(value).removeprefix("torch.")
