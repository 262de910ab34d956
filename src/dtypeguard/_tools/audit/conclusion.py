"""What `python -m dtypeguard audit` prints and writes at the end, and its exit status."""

import argparse
import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import TextIO

from ..._core.base.frames import shown as short
from ..._core.base.usage import INTERRUPTED
from ..._engine.watch.rule import Finding
from ..._engine.watch.selection import reaches
from ..._show.files import write
from ..._show.report.baseline import Baseline, save
from ..._show.report.causes import causes_of, changes_of, counted
from ..._show.report.edits import Edit
from ..._show.report.formats import github, sarif
from ..._show.report.report import AuditReport
from ..._show.report.text import Style
from ..._show.text import number
from ..fix.command import Mending
from ..late import notes as of_late_options
from ..output import STDOUT

# What runners of tests mean by their exit status.
_TESTS = {
    "pytest": {1: "tests failed", 2: "interrupted, or errors in the collection", 3: "internal error", 4: "wrong usage",
               5: "no tests were collected"},
    "unittest": {1: "tests failed", 5: "no tests were run"},
}  # fmt: skip
_ALONE = ("json", "sarif")  # formats that a machine reads, which stand alone


def stands_alone(options: argparse.Namespace) -> bool:
    """Whether standard output is for one text alone."""
    return options.output in (None, STDOUT) and options.output_format in _ALONE


def conclude(
    report: AuditReport, status: int, options: argparse.Namespace, baseline: Baseline | None, out: TextIO,
    mending: Mending | None = None, notes: Sequence[str] = (),
) -> int:  # fmt: skip
    """Look for edits; print and write what was asked for, and give the exit status."""
    least = "warning" if options.fail_on == "never" else options.fail_on
    findings = report.findings
    unknown = list(findings) if baseline is None else baseline.new(findings)
    known = [finding for finding in findings if finding not in unknown]
    new = [finding for finding in unknown if reaches(finding.severity, least)]
    accepted = options.fail_on == "never" or (options.write_baseline and baseline is None)
    shown = [finding for finding in unknown if reaches(finding.severity, options.severity)]
    to_file = options.output not in (None, STDOUT)
    report._proven, report._least = options.prove, "never" if accepted else options.fail_on
    # What does not change with edits is shown before the search for them, which takes its time.
    first = options.diff and options.output_format == "text" and not to_file and (status or new or not options.quiet)
    if first:
        _print(_format_report(report, shown, options, out, [], []), out)
    if mending is not None:
        report._edits = mending.mend(report, status, baseline)
    cut = mending is not None and mending.status == INTERRUPTED != status
    if mending is not None and mending.status is not None:
        status = mending.status
    if mending is not None and options.fix:  # what stays is told
        unknown = [*mending.left, *(finding for finding in unknown if not reaches(finding.severity, "warning"))]
        new = [finding for finding in unknown if reaches(finding.severity, least)]
        told = unknown if least == "info" else mending.left  # edits move the lines of mere information
        shown = [finding for finding in told if reaches(finding.severity, options.severity)]
    staying = [*known, *unknown]
    ended = status or int(bool(new) and not accepted)
    quiet = options.quiet and not ended
    old = counted(causes_of(finding for finding in known if reaches(finding.severity, least)))
    reason = "the search for edits was interrupted" if cut else _reason(report, status, new, least, options, old)
    edits = [] if mending is None else [*mending.edits, *mending.written]
    mended = {_place(finding) for edit in ([] if mending is None else mending.written) for finding in edit.findings}
    fixed = [finding for finding in findings if _place(finding) in mended]  # a line may have several of one rule
    text = "" if first else _format_report(report, shown, options, None if to_file else out, edits, fixed)
    notes = [*notes, *([] if mending is None else mending.lines()), *of_late_options(options)]
    if stands_alone(options):
        notes.append(report._text(Style.of(sys.stderr), shown, fixed=fixed))
    try:
        for path, keep in ((options.json, report.to_json), (options.html, report.to_html)):
            if path is not None:
                keep(path)
        if options.write_baseline:
            save(staying, options.write_baseline)
            count = counted(causes_of(staying)) or "nothing"
            notes.append(f"{count} known from now on in {short(options.write_baseline)}")
        if to_file:
            write(options.output, text + "\n" * bool(text))
            text = ""
    except OSError as error:
        notes.append(str(error))
        ended, reason = ended or 2, reason if ended else "a file could not be written"
    _print("" if quiet and options.output_format == "text" else text, out)
    if not quiet or (mending is not None and mending.written):
        notes += [*_next(report, ended, new, options, mending), f"exit status {ended}: {reason}"]
        print(*notes, sep="\n", file=sys.stderr if stands_alone(options) else out)
    out.flush()
    return ended


def _print(text: str, out: TextIO) -> None:
    with contextlib.suppress(AttributeError, ValueError):
        out.reconfigure(errors="backslashreplace")  # type: ignore[attr-defined]  # a terminal that cannot show it all
    if text:
        print(text, file=out, flush=True)


def _place(finding: Finding) -> tuple[str, str | None, int | None]:
    return finding.rule, finding.file, finding.line


def _format_report(
    report: AuditReport, shown: list[Finding], options: argparse.Namespace, stream: TextIO | None, edits: list[Edit],
    fixed: list[Finding],
) -> str:  # fmt: skip
    """What is printed, in the format that was asked for."""
    if options.output_format == "json":
        return report.to_json()
    if options.output_format == "html":  # by the ending of the file
        return report.to_html()
    if options.output_format == "sarif":
        return sarif(causes_of(shown), edits)
    if options.output_format == "github":
        return "\n".join(github(causes_of(shown), edits))
    casts = options.casts and not options.quiet and not options.fix
    return report._text(Style.of(stream), shown, casts, fixed)


def _next(
    report: AuditReport, status: int, new: list[Finding], options: argparse.Namespace, mending: Mending | None
) -> Iterator[str]:
    """What to do now, in a line."""
    changes = changes_of(causes_of(new))
    if options.output_format != "text":
        return
    if not changes:
        if not status and report.values is None and not report.findings and report._recorder.operations:
            yield "next: --values looks at what dtypes do to the values"
    elif options.write_baseline:
        yield f"next: run with --baseline {short(options.write_baseline)}, which reports only what is new"
    elif mending is not None and not options.fix and any(not edit.installed for edit in mending.edits):
        kinds = [edit.safe for edit in mending.edits if not edit.installed]
        safe, unsafe = (number(kinds.count(kind), name) for kind, name in ((True, "safe edit"), (False, "unsafe edit")))
        both = f"--fix writes {safe}, --fix --unsafe-fixes {unsafe} too"
        only = f"--fix writes {safe}" if True in kinds else f"--fix --unsafe-fixes writes {unsafe}"
        yield f"next: {both if len({*kinds}) > 1 else only}"
    else:
        count, of = (sum(len(change.causes) for change in some) for some in (changes[:1], changes))
        more = f"{count} of {of}" if count < of else changes[0].removes
        shown = "" if mending is not None else "; --diff looks for an edit"
        accept = options.baseline or "known.json"
        yield f"next: change {changes[0].place} (removes {more}){shown}; or accept: --write-baseline {accept}"


def _reason(
    report: AuditReport, status: int, new: list[Finding], least: str, options: argparse.Namespace, known: str
) -> str:
    """Why the exit status is what it is."""
    found = f"the audit found {counted(causes_of(new))}" if new else ""
    if status:
        own = _TESTS.get(options.program.partition(".")[0], {}) if options.module else {}
        raised = "interrupted" if status == INTERRUPTED else (report.error or "").partition("\n")[0]
        told = f"the program's own{', ' * bool(raised)}{raised}"
        told = f"{options.program}: {own[status]}" if status in own else told
        return f"{told}; {found}" if found else told
    kept = report._recorder.findings.least  # what is below that nobody has kept
    least = least if reaches(least, kept) else kept
    parts = [found or f"nothing of severity {least} or worse"]
    if options.baseline is not None:
        parts = [f"{parts[0]} that {options.baseline} does not know"]
        parts += [f"{known} that it knows"] * bool(known)
    elif new and options.fail_on == "never":
        parts.append("--fail-on never")
    elif new and options.write_baseline:
        parts.append("known from now on")
    return ", ".join(parts)
