"""Writing into a tensor, which keeps its dtype."""

from torch import Tensor

from .._kit import Op, Recorder, Suspect


def source_of(event: Op, audit: Recorder) -> Tensor | None:
    """What is written; None while a state dict is loaded, and where its values cannot be looked at."""
    if audit.local.loading or not event.readable:
        return None
    return next(t for t in reversed(event.inputs) if t.dtype is not event.out.dtype)


def at_target(suspect: Suspect, target: Tensor, audit: Recorder) -> Suspect:
    """The line to change is the one that made what is written to."""
    node = audit.lineage.get(target)
    suspect.fields["origin"] = () if node is None else node.target()
    return suspect


def expression(event: Op) -> str:
    return event.site.expression or event.site.source or event.name
