"""What a search came to, as edits that can be looked at and written."""

from collections.abc import Callable
from pathlib import Path

from ..._core.base.frames import shown
from ..._show.report.edits import Edit, diff_of, replacements_of
from ..._show.report.report import AuditReport
from .code import MOVES
from .search import Proof, Run, Search
from .source import decode


def read(file: str) -> str:
    """The text of a source file.

    Raises:
        OSError, SyntaxError, UnicodeError: it cannot be read.
    """
    return decode(Path(file).read_bytes())[0]


def searched(
    first: Run, run: Callable[..., Run] | None, mine: Callable[[str], bool], unsafe: bool = True,
    skip: frozenset[object] = frozenset(), read: Callable[[str], str] = read,
) -> tuple[list[Edit], Search]:  # fmt: skip
    """The edits for what a run found, the safe ones first, and the search, whose `last` run is that with all of them.

    Args:
        first: the run without edits.
        run: runs the program with other texts; without it nothing is proven.
        mine: whether a file may be edited.
        unsafe: whether edits that are not safe are looked for too.
        skip: keys of findings that are known, and stay.
        read: gives the text of a file.
    """
    search = Search(run, read, first, mine, skip)
    search.mend(("safe",))
    safe = len(search.proofs)
    if unsafe:
        search.mend(("safe", "unsafe"))
    return [_edit(proof, number < safe, run is not None, read) for number, proof in enumerate(search.proofs)], search


def _edit(proof: Proof, safe: bool, proven: bool, read: Callable[[str], str]) -> Edit:
    old, new = proof.before, proof.after
    changed = [file for file, text in new.texts.items() if old.texts.get(file) != text]
    before = {file: old.texts.get(file) or read(file) for file in changed}
    after = {file: new.texts[file] for file in changed}
    codes = {file: decode(Path(file).read_bytes())[1] if Path(file).is_file() else "utf-8" for file in changed}
    does = " and ".join(dict.fromkeys(said(name) for name in proof.moves))
    places = [
        one for file in changed
        for one in replacements_of(file, before[file], after[file], old.numbers(file, before[file]), codes[file])
    ]  # fmt: skip
    findings = tuple(finding for cause in proof.causes for finding in cause.findings)
    return Edit(
        shown(changed[0]), diff_of(before, after), findings, safe, proven, does, tuple(places),
        {file: text.encode(codes[file]) for file, text in before.items()},
        {file: text.encode(codes[file]) for file, text in after.items()},
    )  # fmt: skip


def said(move: str) -> str:
    """What a move does, in a few words."""
    text = (MOVES[move].__doc__ or "").partition("\n")[0].rstrip(".")
    return text[:1].lower() + text[1:]


def unproven(report: AuditReport) -> list[Edit]:
    """What may be written for the findings of a report, best guesses that nobody has run."""
    return searched(Run(list(report.findings)), None, lambda file: Path(file).is_file())[0]
