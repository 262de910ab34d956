"""What is done to an edit that helps: what it does not need goes, and functions return the dtype that they returned."""

import difflib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import libcst as cst
import torch

from ..._core.base.dtypes import HALF
from .casts import WIDER_INTEGER, Source
from .code import At, joined
from .program import Run, Tried
from .source import Candidate, Change, Node, Scope


@dataclass(frozen=True)
class Edited:
    """A file before an edit that helps, `old`, and after it, with both programs; `written`: the lines of the edit."""

    source: Source
    old: Source
    before: Tried
    after: Tried
    written: frozenset[int]

    def lines(self, node: Node) -> range:
        place = self.source.range(node)
        return range(place.start.line, place.end.line + 1)

    def wrote(self, node: Node) -> bool:
        return not self.written.isdisjoint(self.lines(node))

    def narrowed(self, node: Node) -> torch.dtype | None:
        """The dtype of what an expression gave before the edit, if that was narrower than it is with it."""
        file, numbers = self.source.file, self.lines(node)
        places = [(file, line) for line in numbers]
        found = [self.after.run.results[place] for place in places if place in self.after.run.results]
        was, known = self.after.lines(places), self.before.run.results.items()
        old = [dtype for place, dtype in known if (place[0], self.before.state.was(*place)) in was]
        if not found or not old or len({*found}) > 1 or len({*old}) > 1:
            return None
        narrow = old[0] in HALF if found[0].is_floating_point else old[0] in WIDER_INTEGER
        same = old[0].is_floating_point == found[0].is_floating_point
        return old[0] if narrow and same and old[0].itemsize < found[0].itemsize else None


def taken_back(file: str, before: str, after: str) -> Iterator[Candidate]:
    """Each of several changes of a file undone."""
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    changed = [code for code in difflib.SequenceMatcher(None, old, new, False).get_opcodes() if code[0] != "equal"]
    begins = [*itertools.accumulate(map(len, new), initial=0)]
    for _, first, last, begin, end in changed if len(changed) > 1 else ():
        yield [Change(file, begins[begin], begins[end], "".join(old[first:last]))]


def without_needless(edited: Edited) -> Iterator[Candidate]:
    """Deletes casts of its own that cast nothing, and assignments of a variable to itself."""
    source, run = edited.source, edited.after.run
    done = [one for one in run.casts if one.file == source.file and one.kind == "explicit"]
    idle: list[Candidate] = []
    for call in source.of(cst.Call):
        inner, place = source.on(call), source.range(call)
        new = source.is_cast(call) and not call.args and edited.wrote(call)
        ran = (source.file, place.start.line) in run.results
        casts = any(
            one.end == (place.end.line, place.end.column) if one.end else one.line in edited.lines(call) for one in done
        )
        if new and ran and inner is not None and not casts:
            idle.append([source.uncast(inner, call)])
    yield from [joined(idle)] if len(idle) > 1 else ()
    yield from idle
    for assign in source.of(cst.Assign):
        same = len(assign.targets) == 1 and source.code(assign.targets[0].target) == source.code(assign.value)
        if same and edited.wrote(assign):
            yield [source.without(source.statement(assign))]


def all_operands(edited: Edited) -> Iterator[Candidate]:
    """Widens the other operands too.

    A line would mix what the edit has widened with what is half as it was.
    """
    source, file = edited.source, edited.source.file
    before = {edited.before.state.was(file, line) for line in _mixing(edited.before.run, file)}
    for line in sorted(_mixing(edited.after.run, file)):
        statement = source.statement_at(line) if edited.after.state.was(file, line) not in before else None
        if statement is None or edited.wrote(statement):
            continue
        names = [one.node for one in At(source, statement).names() if isinstance(one.node, cst.BaseExpression)]
        made = [value for name in names for value in source.definitions(name)[:1]]
        made = [value for value in made if source.scope(value) is source.scope(statement)]
        if _adds(source, statement) or any(edited.wrote(value) and _is_born_wide(source, value) for value in made):
            rest = [At(source, statement)]
            if isinstance(source.scope(statement), cst.FunctionDef):  # else it may be what the program is given
                rest += [At(source, value) for value in made if not edited.wrote(value)]
            calls = [call for one in rest for call in one.casts(torch.float32)]
            yield joined([next(call.retyped(torch.float32), []) for call in calls])


def all_totals(edited: Edited) -> Iterator[Candidate]:
    """Widens the totals beside it too.

    Those that one function makes by the same code, and one function adds to.
    """
    source, old = edited.source, edited.old
    adding: dict[str, set[Scope]] = {}
    for added in source.of(cst.AugAssign):
        adding.setdefault(source.code(added.target), set()).add(source.scope(added))
    made = [(source.code(one.targets[0].target), one) for one in source.of(cst.Assign) if len(one.targets) == 1]
    made = [(name, one) for name, one in made if name in adding]
    was = [(old.code(one.targets[0].target), _name(old.scope(one)), old.code(one.value)) for one in old.of(cst.Assign)]
    for name, total in made:
        scope, code = source.scope(total), source.code(total.value)
        narrow = [text for known, function, text in was if (known, function) == (name, _name(scope))]
        if edited.wrote(total) and edited.narrowed(total) is not None and len(narrow) == 1:
            alike = [one for other, one in made if source.scope(one) is scope and adding[other] & adding[name]]
            if beside := [one.value for one in alike if source.code(one.value) in narrow]:
                yield [source.replace(one, code) for one in beside]


def _is_born_wide(source: Source, value: Node) -> bool:
    """Whether an expression is wide without a cast, which would only be for what that line computes."""
    return not any(source.is_cast(call) for call in source.below(value, cst.Call))


def _adds(source: Source, statement: Node) -> bool:
    """Whether something is added in place, as to an average, of which a cast would only take digits."""
    return any(source.called(call) in _ADD for call in source.below(statement, cst.Call))


def _mixing(run: Run, file: str) -> set[int]:
    """The lines at which float32 and half meet."""
    return {line for half in HALF for where, line in run.promoted(half, torch.float32) if where == file}


def same_results(edited: Edited) -> Iterator[Candidate]:
    """Casts back what a function returns.

    Where that is computed, else where it is returned.
    """
    source = edited.source
    functions: list[Scope] = [*source.of(cst.FunctionDef), *source.of(cst.Lambda)]
    for function in functions:
        inner = [one.value for one in source.below(function, cst.Return) if source.scope(one) is function]
        inner += [function.body] if isinstance(function, cst.Lambda) else []
        given = [(value, edited.narrowed(value)) for value in inner if value is not None]
        narrow = {dtype for _, dtype in given if dtype is not None}
        if len(narrow) != 1 or not edited.wrote(function):
            continue
        (dtype,) = narrow
        values = [one.value for one in source.below(function, cst.Assign) if edited.wrote(one)]
        values += [value for value, changed in given if changed is not None]
        own = list(_own(edited, function))
        yield from (source.after(value, text) for text in own for value in values)
        for at in [At(source, value) for value in values]:
            for text in at.in_function() if dtype in HALF else [f".to({source.dtype_code(dtype)})"]:
                yield source.after(at.node, text)
            if dtype in HALF and not own:  # else other callers may have another one
                yield at.cast(dtype, source.spelt(dtype))


def _own(edited: Edited, function: Scope) -> Iterator[str]:
    """The casts of a function, before the edit, to a dtype that it is given: `.to(self.dtype)`."""
    old = edited.old
    named = [one for one in old.of(cst.FunctionDef) if isinstance(function, cst.FunctionDef)]
    for call in [call for one in named if _name(one) == _name(function) for call in old.below(one, cst.Call)]:
        said, inner = old.dtype_argument(call) if old.is_cast(call) else None, old.on(call)
        if said is not None and inner is not None and not old.code(said.value).startswith(f"{old.torch()}."):
            yield old.code(call).removeprefix(old.code(inner))


def _name(function: Scope) -> str:
    return function.name.value if isinstance(function, cst.FunctionDef) else ""


_ADD = frozenset(["add_", "lerp_", "addcmul_"])
Way = Callable[[Edited], Iterator[Candidate]]
WAYS: tuple[Way, ...] = (all_operands, all_totals, without_needless, same_results)
MORE = (all_operands, all_totals)  # those that widen more
SAID = {way.__name__: way for way in (*MORE, same_results)}  # those that change what the program computes
