"""Programs that are audited: with what must be found in them, or to prove that nothing is.

A program is a function; its table is where it is defined. Each runs twice, alone and audited, and must give the same.
"""

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import torch
from support import same

import dtypeguard

BAD = ("warning", "error")


@dataclasses.dataclass(frozen=True)
class Case:
    """A program, and the finding that it must give; without a rule it must give none worse than info."""

    program: Callable[[], Any]
    rule: str | None = None
    source: str = ""  # of the line, or a part of it
    severity: str = "warning"
    count: int | None = None
    message: str | None = None  # all of it, without numbers of lines
    origin: tuple[str, ...] = ()  # parts of its lines, in order
    fix: str = ""  # a part of it
    also: tuple[str, ...] = ()  # rules that come with it
    fields: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.rule}-{self.program.__name__}" if self.rule else self.program.__name__


class Cases(list[Case]):
    """A table of programs, filled by decorators."""

    def add(self, rule: str | None = None, source: str = "", **expected: Any) -> Callable[..., Any]:
        names = {field.name for field in dataclasses.fields(Case)}
        own = {name: expected.pop(name) for name in list(expected) if name in names}

        def enter(program: Callable[[], Any]) -> Callable[[], Any]:
            self.append(Case(program, rule, source, fields=expected, **own))
            return program

        return enter


def run(program: Callable[[], Any]) -> Any:
    """What a program gives: its result, or its exception as text."""
    torch.manual_seed(0)
    try:
        return program()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        torch.set_default_dtype(torch.float32)  # as no program finds it otherwise


def audited(program: Callable[[], Any], **options: Any) -> Any:
    """The report on a program that gives the same as without an audit."""
    alone = run(program)
    audit = dtypeguard.audit(**options)
    torch.manual_seed(0)
    try:
        with audit as report:
            watched = program()
    except Exception as error:
        watched = f"{type(error).__name__}: {error}"
    finally:
        torch.set_default_dtype(torch.float32)
    assert report.faults == []
    assert same(alone, watched), f"{alone}\n{watched}"
    assert report.to_dict()["operations"] > 0
    return report


def bad(report: Any) -> list[Any]:
    return [finding for finding in report.findings if finding.severity in BAD]


def nothing_is_found(case: Case) -> None:
    report = audited(case.program)
    assert not bad(report), f"\n{report.findings}"


def it_is_found(case: Case) -> None:
    report = audited(case.program)
    text = f"\n{report.findings}"
    found = [f for f in report.findings if f.rule == case.rule and case.source in f.source]
    assert len(found) == 1, text
    finding = found[0]
    assert finding.severity == case.severity, text
    for name, value in case.fields.items():
        assert getattr(finding, name) == value, f"{name} is {getattr(finding, name)!r}{text}"
    if case.count is not None:
        assert finding.count == case.count, text
    if case.message is not None:
        said = finding.message.replace("at::Half", "c10::Half")  # torch < 2.13: its old name; goes with that floor
        assert re.sub(r"\S*/(\w+\.py):\d+", r"\1", said) == case.message
    assert case.fix in finding.fix, text
    lines = list(finding.origin)
    for part in case.origin:
        while lines and part not in lines[0]:
            lines.pop(0)
        assert lines, f"{part!r} is not in {finding.origin}, or not in this order"
        lines.pop(0)
    others = [f for f in bad(report) if f is not finding and f.rule not in case.also]
    assert not others, text


# ---------------------------------------------------------------- what is right, of which the results are compared


def plain(made: Any) -> Any:
    """What a program made, as tensors and numbers."""
    if isinstance(made, torch.nn.Module):
        return [plain(dict(made.state_dict())), [parameter.grad for parameter in made.parameters()]]
    if isinstance(made, (torch.optim.Optimizer, torch.amp.GradScaler)):
        return plain(made.state_dict())
    if isinstance(made, (list, tuple)):
        return [plain(one) for one in made]
    if isinstance(made, dict):
        return {key: plain(value) for key, value in made.items()}
    return made.detach().clone() if isinstance(made, torch.Tensor) else made


def silent(report: Any) -> None:
    """Nothing is worse than an information, and nothing went wrong in the audit itself."""
    __tracebackhide__ = True
    assert report.faults == []
    assert bad(report) == []
    assert report.to_dict()["operations"] > 0


def twice(program: Callable[[], Any]) -> None:
    """Bare, then in an audit, from the same seed: the same results and random numbers, bit for bit."""
    __tracebackhide__ = True
    torch.manual_seed(0)
    bare = plain(program()), torch.get_rng_state()
    torch.manual_seed(0)
    with dtypeguard.audit() as report:
        made = program()
        state = torch.get_rng_state()
    assert same(bare, (plain(made), state))
    silent(report)
