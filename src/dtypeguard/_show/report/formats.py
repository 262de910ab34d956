"""Causes for machines: annotations of GitHub, and SARIF."""

import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ..._core.base.codes import DOCS
from ..._engine.watch.rule import RULES
from ..._engine.watch.spots import Spot
from .causes import Cause
from .edits import Edit

# https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html
_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVELS = {"error": "error", "warning": "warning", "info": "note"}
_COMMANDS = {"error": "error", "warning": "warning", "info": "notice"}


def github(causes: Iterable[Cause], edits: Sequence[Edit] = ()) -> Iterator[str]:
    """Workflow commands, which GitHub shows beside the lines of a pull request; an edit is a block to be suggested.

    Source: https://docs.github.com/en/actions/reference/workflow-commands-for-github-actions
    """
    for cause in causes:
        facts = {"title": f"{cause.rule} {RULES[cause.rule].name}"}
        if cause.spots:
            spot = cause.spots[0]
            place = {"file": _uri(spot), "line": spot.line, "col": spot.begin + 1, "endColumn": spot.end}
            facts = {**{key: str(value) for key, value in place.items()}, **facts}
        listed = ",".join(f"{key}={_escaped(value, ':,')}" for key, value in facts.items())
        yield f"::{_COMMANDS[cause.severity]} {listed}::{_escaped(_message(cause) + _suggested(cause, edits))}"


def _edit_for(cause: Cause, edits: Iterable[Edit]) -> Edit | None:
    """The edit that removes a cause."""
    places = {(finding.rule, finding.file, finding.line) for finding in cause.findings}
    return next((e for e in edits if any((f.rule, f.file, f.line) in places for f in e.findings)), None)


def _suggested(cause: Cause, edits: Iterable[Edit]) -> str:
    """The line that an edit writes in place of the one that is annotated, as a block that a review can take over."""
    edit, line = _edit_for(cause, edits), cause.spots[0].line if cause.spots else 0
    blocks = [] if edit is None else [one for one in edit.blocks if one.line == line == one.end_line - 1]
    return "".join(f"\n```suggestion\n{block.text.rstrip()}\n```" for block in blocks)


def sarif(causes: Sequence[Cause], edits: Sequence[Edit] = ()) -> str:
    """A log of SARIF 2.1.0, which code scanning reads."""
    ids = sorted({cause.rule for cause in causes})
    driver = {
        "name": "dtypeguard",
        "version": sys.modules["dtypeguard"].__dict__["__version__"],
        "informationUri": DOCS.partition("/blob/")[0],
        "rules": [_rule(rule) for rule in ids],
    }
    results = [{**_result(cause, _edit_for(cause, edits)), "ruleIndex": ids.index(cause.rule)} for cause in causes]
    runs = [{"tool": {"driver": driver}, "results": results}]
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": runs})


def _rule(rule_id: str) -> dict[str, Any]:
    rule = RULES[rule_id]
    return {
        "id": rule.id,
        "name": rule.name,
        "shortDescription": {"text": rule.summary},
        "fullDescription": {"text": rule.why},
        "helpUri": rule.docs,
        "defaultConfiguration": {"level": _LEVELS[rule.severity.value]},
    }


def _fix(edit: Edit) -> dict[str, Any]:
    """An edit as replacements of whole lines."""
    changes: dict[str, list[dict[str, Any]]] = {}
    for one in edit.blocks:
        region = {"startLine": one.line, "startColumn": 1, "endLine": one.end_line, "endColumn": 1}
        changes.setdefault(one.path, []).append({"deletedRegion": region, "insertedContent": {"text": one.text}})
    return {
        "description": {"text": edit.does},
        "artifactChanges": [
            {"artifactLocation": {"uri": Path(path).as_posix()}, "replacements": rows} for path, rows in changes.items()
        ],
    }


def _result(cause: Cause, edit: Edit | None) -> dict[str, Any]:
    spots = cause.spots
    others = [{**_location(spot), "message": {"text": spot.label or "here too"}} for spot in spots[1:]]
    return {
        "ruleId": cause.rule,
        "level": _LEVELS[cause.severity],
        "message": {"text": _message(cause)},
        "locations": [_location(spot) for spot in spots[:1]],
        **({"relatedLocations": others} if others else {}),
        **({} if edit is None else {"fixes": [_fix(edit)]}),
    }


def _location(spot: Spot) -> dict[str, Any]:
    region: dict[str, Any] = {"startLine": spot.line}
    if spot.source:
        region |= {"startColumn": spot.begin + 1, "endColumn": spot.end + 1, "snippet": {"text": spot.source}}
    return {"physicalLocation": {"artifactLocation": {"uri": _uri(spot)}, "region": region}}


def _message(cause: Cause) -> str:
    where = f" (in {cause.where})" if cause.where else ""
    return f"{cause.first.message}{where}\nhelp: {cause.advice}"


def _uri(spot: Spot) -> str:
    path = Path(spot.path)
    return path.as_uri() if path.is_absolute() and os.path.exists(path) else path.as_posix()


def _escaped(text: str, more: str = "") -> str:
    for character in "%\r\n" + more:
        text = text.replace(character, f"%{ord(character):02X}")
    return text
