"""A list of findings that prints."""

from .._show.fragment import badge, joined
from .._watch.rule import Finding
from .causes import causes_of
from .cell import findings_cell
from .text import Style, paragraphs


class Report(list[Finding]):
    """A list of findings, in the order in which they were found; it prints them by cause, the worst first."""

    def __str__(self) -> str:
        return "\n".join(paragraphs(causes_of(self), Style.of())) or "nothing found"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        causes = causes_of(self)
        return findings_cell("findings" if causes else joined("findings", badge("nothing found", "good")), causes)


Report.__module__ = "dtypeguard.amp"
