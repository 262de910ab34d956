"""What a search came to, as edits that can be looked at and written."""

import functools
import math
import os
from collections.abc import Callable
from pathlib import Path

from ..._core.base.frames import installed
from ..._show.report.edits import Edit, blocks_of, diff_of, path_of, replacements_of
from ..._show.report.report import AuditReport
from .code import MOVES
from .finish import SAID
from .program import Run
from .screen import Runner
from .search import Proof, Search
from .source import decode


def searched(
    first: Run, run: Runner | None, mine: Callable[[str], bool], unsafe: bool = True,
    skip: frozenset[object] = frozenset(), data: Callable[[str], bytes] = lambda file: Path(file).read_bytes(),
    limit: float = math.inf,
) -> tuple[list[Edit], Search]:  # fmt: skip
    """The edits for what a run found, the safe ones first, and the search, whose `last` run is that with all of them.

    Args:
        first: the run without edits.
        run: runs the program with other texts; without it nothing is proven.
        mine: whether a file may be edited.
        unsafe: whether edits that are not safe are looked for too.
        skip: keys of findings that are known, and stay.
        data: gives the bytes of a file, as they were when the program ran.
        limit: the seconds after which the search ends.
    """
    search = Search(run, lambda file: decode(data(file))[0], first, mine, skip, limit)
    search.mend(("safe",))
    safe = len(search.proofs)
    if unsafe:
        search.mend(("safe", "unsafe"))
    edits = [_edit(proof, number < safe, run is not None, data) for number, proof in enumerate(search.proofs)]
    return edits, search


def _edit(proof: Proof, safe: bool, proven: bool, data: Callable[[str], bytes]) -> Edit:
    old, new = proof.before, proof.after
    changed = [file for file, text in new.texts.items() if old.texts.get(file) != text]
    kept = {file: decode(data(file)) for file in changed}
    before = {file: old.texts.get(file) or kept[file][0] for file in changed}
    after = {file: new.texts[file] for file in changed}
    lines = {file: old.numbers(file, before[file]) for file in changed}
    return Edit(
        path_of(changed[0]), diff_of(before, after), proof.findings, safe, proven,
        does(proof),
        tuple(one for f in changed for one in replacements_of(f, before[f], after[f], kept[f][1])),
        tuple(one for f in changed for one in blocks_of(f, before[f], after[f], lines[f])),
        {file: text.encode(kept[file][1]) for file, text in before.items()},
        {file: text.encode(kept[file][1]) for file, text in after.items()},
    )  # fmt: skip


def does(proof: Proof) -> str:
    """All that an edit does, in a few words."""
    parts = [said(name) for name in dict.fromkeys(proof.moves) if name in MOVES or name in SAID]
    return ", and ".join(parts) + (f", and leaves an error of {proof.left:.0%} in a result" if proof.left else "")


def said(move: str) -> str:
    """What a move does, in a few words."""
    text = ((MOVES.get(move) or SAID[move]).__doc__ or "").partition("\n")[0].rstrip(".")
    return text[:1].lower() + text[1:]


def unproven(report: AuditReport) -> list[Edit]:
    """What may be written for the findings of a report, best guesses that nobody has run."""
    data = functools.partial(since, report.began)
    first = Run(list(report.findings), casts=tuple(report._recorder.findings.conversions()))
    return searched(first, None, lambda file: installed(file) is None, data=data)[0]


def since(began: float, file: str) -> bytes:
    """The bytes of a file that has not changed since the program began."""
    if os.stat(file).st_mtime > began:
        raise OSError(f"{file} has changed since the program began")
    return Path(file).read_bytes()
