"""A total and its shadow, write by write: where the one stands and the other goes on."""

from collections.abc import Sequence
from typing import Any

from ..svg import Axis, Chart, Series


def course_of(found: dict[str, Any]) -> Chart | None:
    """From the data of a finding; None where nothing was followed."""
    points: Sequence[Sequence[float]] = found.get("course") or ()
    if len(points) < 3:
        return None
    steps = [(float(write), moved, should) for write, moved, should in points]
    return Chart(
        f"how far the values of `{found['op']}` have moved",
        Axis("writes"),
        Axis("distance from where they began"),
        [
            Series([(write, should) for write, _, should in steps], f"in {found['to_dtype']}", "f0"),
            Series([(write, moved) for write, moved, _ in steps], f"in {found['from_dtype']}", "above"),
        ],
    )
