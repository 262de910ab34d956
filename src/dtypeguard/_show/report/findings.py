"""A list of findings that prints."""

from typing import Any

from ..._engine.watch.rule import Finding
from ..fragment import badge, joined
from ..result import Result
from .causes import causes_of
from .cell import findings_parts
from .text import Style, paragraphs


class Report(list[Finding], Result):
    """A list of findings, in the order in which they were found; it prints them by cause, the worst first."""

    kind = "findings"

    def __str__(self) -> str:
        return "\n".join(paragraphs(causes_of(self), Style.of())) or "nothing found"

    __repr__ = __str__

    def _data(self) -> dict[str, Any]:
        return {"findings": list(self)}

    def _cell(self) -> tuple[Any, ...]:
        causes = causes_of(self)
        return findings_parts("findings" if causes else joined("findings", badge("nothing found", "good")), causes)


Report.__module__ = "dtypeguard.results"
