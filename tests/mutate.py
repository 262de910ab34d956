"""Mutation testing: plants small faults in the package and counts those that the tests notice.

    python tests/mutate.py                      # 200 faults, drawn evenly over the core's rooms and operators
    python tests/mutate.py --part values --part compare --count 40
    python tests/mutate.py --count 40 --seed 7 8 9 --file _check/reference --list

Each mutant is one change to one room, made on the syntax tree. It gets its own copy of `src`, and those tests of its
part that reach its line run against that, cheapest first, until one of them fails. A process that has torch, pytest and
hypothesis imported, but not dtypeguard, is forked for each file of tests. Without a fault they must pass first: that
takes their times, and the lines that they reach.
"""

import argparse
import ast
import copy
import functools
import itertools
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "dtypeguard"


class Part(NamedTuple):
    """Folders and modules, and words in the names of the tests that are about them; with `but`, all tests but those."""

    rooms: str
    tests: str = ""
    but: str = ""


PARTS = {
    "core": Part(
        "_core",  # apart: tests of something else, or of the sources as text
        but="amp audit architecture check_module command compare describe dryrun hypothesis op_mixing pytest rule "
        "seeds testing values versions docs",
    ),
    "watch": Part("_engine/watch _tools/audit", "audit_ rule_programs findings_text isolation"),
    "rules": Part("_rules", "rule_programs amp_rules amp_silent audit_training audit_state audit_conversions"),
    "values": Part("_engine/values _engine/ops _engine/operands", "test_values rule_programs"),
    "compare": Part("_tools/compare _engine/values/graph _engine/values/attention", "compare"),
    "dryrun": Part("_tools/dryrun", "dryrun"),
    "describe": Part("_tools/describe _tools/calls", "describe calls"),
    "report": Part("_show results", "report html baseline command describe compare dryrun error_pages"),
    "amp": Part("amp", "amp_"),
    "testing": Part("testing", "testing check_module op_mixing"),
    "plugins": Part("_plugins __main__ _tools/doctor", "pytest hypothesis command"),
}
BY_RULE = "test_rule_programs"  # its programs of one rule are a unit of tests of their own


def rooms_of(part: Part) -> list[str]:
    """Modules by their paths in the package."""
    found = []
    for name in part.rooms.split():
        folder = PACKAGE / name
        files = sorted(folder.rglob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]
        found += [str(file.relative_to(PACKAGE).with_suffix("")) for file in files if file.name != "__init__.py"]
    return found


ROOMS = {room: name for name, part in PARTS.items() for room in rooms_of(part)}
FIRST = {  # what kills soonest
    "_core/contract/anchor": ["test_anchor", "test_guard"],
    "_core/check/axes": ["test_agreement", "test_properties"],
    "_core/check/reference": ["test_messages", "test_agreement"],
    "_core/wrap/build": ["test_fast_path", "test_enforce_forms"],
    "_core/base/config": ["test_modes"],
    "_core/wrap/emit": ["test_fast_path", "test_agreement"],
    "_core/doors/enforce": ["test_enforce_forms"],
    "_core/doors/forward": ["test_guard"],
    "_core/doors/guard": ["test_guard"],
    "_core/repair/plans": ["test_fast_path"],
    "_core/repair/containers": ["test_containers"],
    "_core/repair/cast": ["test_messages"],
    "_core/wrap/slow": ["test_inplace"],
    "_core/wrap/scan": ["test_side_inputs", "test_guard"],
    "_core/check/scope": ["test_isinstance"],
    "_core/wrap/script": ["test_script"],
    "_core/check/sides": ["test_side_inputs"],
    "_core/contract/spec": ["test_agreement"],
    "_core/check/verify": ["test_messages"],
}
# What takes long is thinned out, so that the score is a lower bound.
EXAMPLES = 200  # of hypothesis, at most, for a test
ENUMS = {  # in the order of their members
    "Casting": "SAFE PRECISION PROMOTE UNSAFE".split(),
    "Kind": "BOOL INT FLOAT COMPLEX STORAGE".split(),
    "Mode": "STRICT LENIENT WARN OFF".split(),
    "Autocast": "FOLLOW IGNORE DISABLE".split(),
    "Verify": "FIRST ALWAYS NEVER".split(),
}
# Mutants that the tests of the core cannot tell from the original: room, a part of what is printed, and why.
EQUIVALENT = [
    ("_core/repair/records", "generation = 1", "where a counter starts that is only compared with itself"),
    ("_core/base/dtypes", "a.digits < b.digits", "no two dtypes of a kind have as many digits"),
    ("_core/wrap/emit", "self.branches += 1", "an axis is bound in two statements instead of one"),
    (
        "_core/wrap/emit",
        "DimKind.ANONYMOUS and dim.variadic for dim in dims",
        "sizes are unpacked that nothing is asked of",
    ),
    (
        "_core/doors/enforce",
        "build(fn, dataclasses.replace(contract))",
        "the wrapper is replaced before it checks anything",
    ),
    (
        "_core/doors/enforce",
        "return {name: hint for name, hint in hints.items()}",
        "a hint for what is no parameter is not read",
    ),
    (
        "_core/doors/enforce",
        "'verify': Verify.ALWAYS, 'returns': False",
        "such a contract is read, but nothing runs under it",
    ),
    ("_core/doors/guard", "stacklevel=3", "both places are in one file of torch"),
    ("_core/repair/plans", "if isinstance(values[0], nn.Module) else", "a plan for one module, where any would do"),
    ("_core/contract/spec", "in list(ast.walk(tree))[1:]", "the first node is the expression as a whole"),
    ("_core/contract/spec", "specs[-0]", "there is one"),
    ("_core/check/verify", "tensor.size(axis) >= 1", "an axis of one is narrowed to one"),
]

EQUIVALENT += [
    ("_core/base/config", f"{name} = '{name.lower()}~'", "options go by the members' names")
    for kind in ("Autocast", "Verify")
    for name in ENUMS[kind]
]


# ---------------------------------------------------------------- operators


Edit = Callable[[], None]
NEGATED = {ast.Eq: ast.NotEq, ast.Lt: ast.GtE, ast.LtE: ast.Gt, ast.In: ast.NotIn}
NEGATED |= {b: a for a, b in NEGATED.items()}
IDENTITY = {ast.Is: ast.IsNot, ast.IsNot: ast.Is}
SHIFTED = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
OTHER = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr}
IN_CODE = [(" is not ", " is "), (" is ", " is not "), (" != ", " == "), (" == ", " != "), (" and ", " or "),
           (" or ", " and "), (" not in ", " in "), ("if not ", "if "), ("continue", "break")]  # fmt: skip


def become(node: ast.AST, other: ast.AST) -> None:
    """Turn a node of a tree into another one."""
    place = {key: getattr(node, key) for key in ("lineno", "col_offset", "end_lineno", "end_col_offset")}
    node.__class__, node.__dict__ = other.__class__, {**copy.deepcopy(other).__dict__, **place}  # type: ignore[assignment]


def signs(table: dict[type[ast.cmpop], type[ast.cmpop]], node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.Compare):
        for place, sign in enumerate(node.ops):
            if (new := table.get(type(sign))) is not None:
                yield lambda place=place, new=new: node.ops.__setitem__(place, new())


def connective(node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.BoolOp):
        yield lambda: setattr(node, "op", ast.Or() if isinstance(node.op, ast.And) else ast.And())


def operand(node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.BoolOp):
        for place in range(len(node.values)):
            yield (
                lambda place=place: (
                    become(node, node.values[1 - place]) if len(node.values) == 2 else node.values.pop(place)
                )
            )


def negation(node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield lambda: become(node, node.operand)


def condition(node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, (ast.If, ast.While)) and isinstance(node.test, (ast.Name, ast.Call, ast.Attribute)):
        yield lambda: setattr(node, "test", ast.UnaryOp(ast.Not(), node.test))
    if isinstance(node, ast.comprehension):
        for place in range(len(node.ifs)):
            yield lambda place=place: node.ifs.pop(place)


def constant(node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.Constant):
        if isinstance(node.value, bool):
            yield lambda: setattr(node, "value", not node.value)
        elif isinstance(node.value, int):
            yield lambda: setattr(node, "value", 0 if node.value == 1 else node.value + 1)


def text(node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield lambda: setattr(node, "value", node.value + "~")


def emitted(node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        for before, after in IN_CODE:
            if before in node.value and not (before == " is " and " is not " in node.value):
                yield lambda before=before, after=after: setattr(node, "value", node.value.replace(before, after, 1))


def member(node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.Attribute) and node.attr in (members := ENUMS.get(ast.unparse(node.value), [])):
        yield lambda: setattr(node, "attr", members[(members.index(node.attr) + 1) % len(members)])


def element(node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, (ast.For, ast.comprehension)):
        yield lambda: setattr(node, "iter", ast.parse(f"list({ast.unparse(node.iter)})[1:]", mode="eval").body)
        yield lambda: setattr(node, "iter", ast.parse(f"list({ast.unparse(node.iter)})[:-1]", mode="eval").body)


def removal(node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, (ast.Set, ast.List, ast.Tuple)) and isinstance(getattr(node, "ctx", ast.Load()), ast.Load):
        for place in range(len(node.elts)) if len(node.elts) > 1 else ():
            yield lambda place=place: node.elts.pop(place)
    if isinstance(node, ast.Dict):
        for place in range(len(node.keys)):
            yield lambda place=place: (node.keys.pop(place), node.values.pop(place))


def branch(node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.IfExp):
        yield lambda: become(node, node.body)
        yield lambda: become(node, node.orelse)
    if isinstance(node, ast.Return) and node.value is not None:
        other = node.other  # type: ignore[attr-defined]  # of `parse`
        if ast.dump(other) != ast.dump(node):
            yield lambda: setattr(node, "value", copy.deepcopy(other.value))


def argument(node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.Call):
        for place, keyword in enumerate(node.keywords):
            if keyword.arg not in (None, *ASSERTIONS):
                yield lambda place=place: node.keywords.pop(place)


def deletion(node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, (ast.Expr, ast.Assign, ast.AugAssign, ast.Raise, ast.Delete)):
        yield lambda: become(node, ast.Pass())


def jump(node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, (ast.Break, ast.Continue)):
        yield lambda: become(node, ast.Continue() if isinstance(node, ast.Break) else ast.Break())
        yield lambda: become(node, ast.Pass())


def arithmetic(node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, (ast.BinOp, ast.AugAssign)) and type(node.op) in OTHER:
        yield lambda: setattr(node, "op", OTHER[type(node.op)]())


OPERATORS: dict[str, tuple[str, Callable[[ast.AST], Iterator[Edit]]]] = {
    "comparison": ("== for !=, < for >=, `in` for `not in`, and back", functools.partial(signs, NEGATED)),
    "boundary": ("< for <=, and back", functools.partial(signs, SHIFTED)),
    "identity": ("`is` for `is not`, and back", functools.partial(signs, IDENTITY)),
    "connective": ("`and` for `or`, and back", connective),
    "operand": ("one side of `and` or `or` dropped", operand),
    "negation": ("`not` dropped", negation),
    "condition": ("the condition of an `if` turned, that of a comprehension dropped", condition),
    "constant": ("True for False, a number one more, 1 for 0", constant),
    "text": ("another text, in messages too", text),
    "emitted": ("the same changes in the source text that is generated", emitted),
    "member": ("the next member of an enum: another rung of the ladder, another mode", member),
    "element": ("the first or the last element of a loop skipped", element),
    "removal": ("an element of a literal container left out", removal),
    "branch": ("the other branch, or what another `return` gives", branch),
    "argument": ("a keyword argument left out", argument),
    "deletion": ("a call, assignment or `raise` deleted", deletion),
    "jump": ("`break` for `continue`, or neither", jump),
    "arithmetic": ("+ for -, | for &, and back", arithmetic),
}


# ---------------------------------------------------------------- mutants


class Mutant(NamedTuple):
    room: str
    operator: str
    node: int  # in the order of `nodes`
    edit: int
    line: int
    lines: tuple[int, int]  # of its statement, without the statements in that
    before: str = ""
    after: str = ""

    def __str__(self) -> str:
        return f"{self.room}.py:{self.line}  {self.operator}  {self.before}  ->  {self.after}"


def parse(source: str) -> ast.Module:
    """A tree in which each `return` knows the next one of its function."""
    tree = ast.parse(source)
    for function in ast.walk(tree):
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            returns = [node for node in ast.walk(function) if isinstance(node, ast.Return) and node.value is not None]
            for one, other in zip(returns, returns[1:] + returns[:1], strict=True):
                one.other = other  # type: ignore[attr-defined]
    return tree


def nodes(tree: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Each node whose change could matter, with the statement that it is in."""
    stack: list[tuple[ast.AST, ast.AST]] = [(tree, tree)]
    while stack:
        node, statement = stack.pop()
        yield node, statement
        for field, value in reversed(list(ast.iter_fields(node))):
            for child in reversed(value if isinstance(value, list) else [value]):
                if isinstance(child, ast.AST) and not idle(node, field, child):
                    stack.append((child, child if isinstance(child, (ast.stmt, ast.ExceptHandler)) else statement))


ASSERTIONS = ("strict",)  # of zip: the lengths are equal by construction


def idle(node: ast.AST, field: str, child: ast.AST) -> bool:
    """Docstrings, type hints, and what is for tools, for tracebacks or for other Pythons."""
    words = ast.unparse(child) if isinstance(child, (ast.Assign, ast.If, ast.Call)) else ""
    return (
        field in ("annotation", "returns", "decorator_list")
        or (isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant))
        or words.startswith(IDLE)
        or (isinstance(child, ast.FunctionDef) and "overload" in map(ast.unparse, child.decorator_list))
        or (isinstance(child, ast.keyword) and child.arg in ASSERTIONS)
        or (isinstance(child, ast.Subscript) and isinstance(child.value, ast.Name) and child.value.id in HINTS)
    )


IDLE = ("__all__", "__tracebackhide__", "__slots__", "if TYPE_CHECKING", "if sys.version_info", "TypeVar(", "cast(")
HINTS = {"Literal", "Callable", "Any", "Optional", "Union", "dict", "list", "tuple", "type", "frozenset", "set"}


def extent(statement: ast.AST) -> tuple[int, int]:
    block = getattr(statement, "body", None)
    return statement.lineno, block[0].lineno - 1 if block else statement.end_lineno  # type: ignore[attr-defined]


def mutants_of(room: str, source: str) -> Iterator[Mutant]:
    tree = parse(source)
    for place, (node, statement) in enumerate(nodes(tree)):
        for operator, (_, edits) in OPERATORS.items():
            if operator == "emitted" and room not in ("_core/wrap/emit", "_core/wrap/build", "_core/repair/plans"):
                continue
            for number in range(sum(1 for _ in edits(node))):
                line = getattr(node, "lineno", statement.lineno)
                yield Mutant(room, operator, place, number, line, extent(statement))


def mutated(mutant: Mutant, source: str) -> tuple[Mutant, str]:
    """The mutant with its texts, and the source with its fault."""
    tree = parse(source)
    before = ast.unparse(tree).splitlines()
    node = next(node for place, (node, _) in enumerate(nodes(tree)) if place == mutant.node)
    list(OPERATORS[mutant.operator][1](node))[mutant.edit]()
    after = ast.unparse(ast.fix_missing_locations(tree)).splitlines()
    one, other = next(((a, b) for a, b in zip(before, after, strict=False) if a != b), ("", ""))
    start = max(next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), 0) - 50, 0)
    texts = [line[start : start + 110].strip() for line in (one, other)]
    return mutant._replace(before=texts[0], after=texts[1]), "\n".join(after) + "\n"


def equivalent(mutant: Mutant) -> bool:
    return any(mutant.room == room and part in str(mutant) for room, part, _ in EQUIVALENT)


def drawn(every: list[Mutant], count: int, seed: int) -> list[Mutant]:
    """A sample that takes from each room and each operator in turn."""
    chance = random.Random(seed)
    groups: dict[tuple[str, str], list[Mutant]] = defaultdict(list)
    for mutant in every:
        groups[mutant.room, mutant.operator].append(mutant)
    for group in groups.values():
        chance.shuffle(group)
    sample: list[Mutant] = []
    while len(sample) < count and groups:
        turn = list(groups)
        chance.shuffle(turn)
        for key in turn[: count - len(sample)]:
            sample.append(groups[key].pop())
            if not groups[key]:
                del groups[key]
    return sample


# ---------------------------------------------------------------- running


class Tests(NamedTuple):
    """A file of tests, or those of one rule, that pass without a fault."""

    name: str
    seconds: float
    reached: set[tuple[str, int]]  # rooms and lines
    blind: bool  # it reaches lines in other processes, or in compiled code, that are not seen

    def concern(self, mutant: Mutant) -> bool:
        start, end = mutant.lines
        return any((mutant.room, line) in self.reached for line in range(start, max(start, end) + 1))


def tests_for(mutant: Mutant, tests: list[Tests]) -> list[Tests]:
    first = FIRST.get(mutant.room) or [f"{BY_RULE}-{mutant.room.split('/')[-1][:5].upper()}"]
    chosen = [file for file in tests if file.concern(mutant)] or [file for file in tests if file.blind]
    return sorted(chosen, key=lambda file: (file.name not in first, file.seconds))


def run(tests: Path, name: str, src: Path, limit: float, log: Path, trace: bool = False) -> str | None:
    """What a file of tests says to a copy of `src`, in a fork: None, the test that failed, or what else went wrong."""
    child = os.fork()
    if child == 0:
        os.setsid()
        code = 70
        try:
            code = _test(tests, name, src, log, trace)
        except BaseException:  # a fault in `import dtypeguard`
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)
    end = time.monotonic() + limit
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        if time.monotonic() > end:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return "timeout"
        time.sleep(0.02)
    if status == 0:
        return None
    failed = [line for line in log.read_text(errors="replace").splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return failed[0] if failed else f"exit status {status}"


def _test(tests: Path, name: str, src: Path, log: Path, trace: bool) -> int:
    import pytest

    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.path[:0] = [str(src), str(tests)]
    os.environ["PYTHONPATH"] = str(src)
    os.chdir(tests.parent)
    reached = Reached(src)
    if trace:
        sys.settrace(reached)
        threading.settrace(reached)
    import dtypeguard

    assert Path(dtypeguard.__file__).is_relative_to(src), dtypeguard.__file__
    quiet = "-x -q -p no:cacheprovider --no-header --tb=no -W ignore::pytest.PytestAssertRewriteWarning".split()
    file, _, rule = name.partition("-")
    code = pytest.main([f"tests/{file}.py", *quiet, "-m", "not slow", "-k", rule], plugins=[reached] if trace else [])
    sys.settrace(None)
    log.with_suffix(".lines").write_text(repr(reached.lines()))
    return int(code)


class Reached:
    """Which lines of the package run; a function is left alone when all of its lines have."""

    def __init__(self, src: Path) -> None:
        self._rooms = {str(src / "dtypeguard" / f"{room}.py"): room for room in ROOMS}
        self._left: dict[CodeType, set[int]] = {}

    def pytest_runtest_setup(self, item: object) -> None:
        """Python stops to trace where that fails, as in the depths of a recursion without end."""
        sys.settrace(self)

    def __call__(self, frame: FrameType, event: str, arg: object) -> Any:
        code = frame.f_code
        if code.co_filename not in self._rooms:
            return None
        left = self._left.get(code)
        if left is None:
            left = self._left[code] = {line for *_, line in code.co_lines() if line}
        left.discard(frame.f_lineno)

        def line(frame: FrameType, event: str, arg: object) -> Any:
            left.discard(frame.f_lineno)
            return line

        return line if left else None

    def lines(self) -> list[tuple[str, int]]:
        return [
            (self._rooms[code.co_filename], line)
            for code, left in self._left.items()
            for *_, line in code.co_lines()
            if line and line not in left
        ]


def prepare() -> None:
    """Import what takes long; few examples, always the same ones."""
    import beartype
    import hypothesis
    import jaxtyping
    import numpy
    import pytest
    import torch
    import torch._dynamo

    torch.set_num_threads(1)
    init = hypothesis.settings.__init__

    def capped(self, *args, **kwargs):  # type: ignore[no-untyped-def]
        kwargs["max_examples"] = min(kwargs.get("max_examples", 100), EXAMPLES)
        init(self, *args, **{"derandomize": True, "database": None, "deadline": None, **kwargs})

    hypothesis.settings.__init__ = capped
    for name in [name for name in sys.modules if name.partition(".")[0] == "dtypeguard"]:
        del sys.modules[name]  # what hypothesis has loaded of it is no mutant
    del beartype, jaxtyping, numpy, pytest


class Job(NamedTuple):
    mutant: Mutant
    root: Path
    tests: list[Tests]


def judged(job: Job) -> tuple[Mutant, str | None, float]:
    """The first test that fails with a mutant."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(dir=job.root) as place:
        src = Path(place, "src")
        shutil.copytree(job.root / "src", src)
        file = src / "dtypeguard" / f"{job.mutant.room}.py"
        mutant, source = mutated(job.mutant, file.read_text())
        file.write_text(source)
        for tests in tests_for(mutant, job.tests):
            failure = run(job.root / "tests", tests.name, src, 20 + 2 * tests.seconds, Path(place, "log"))
            if failure is not None:
                return mutant, failure, time.monotonic() - started
    return mutant, None, time.monotonic() - started


def units(root: Path, parts: Iterable[str]) -> Iterator[tuple[str, Path]]:
    """The tests that are about parts, by names: files, and of one file the programs of each rule."""
    for file in sorted((root / "tests").glob("test_*.py")):
        for part in map(PARTS.__getitem__, parts):
            words = (part.tests or part.but).split()
            if any(word in file.stem for word in words) is bool(part.tests):
                break
        else:
            continue
        if file.stem == BY_RULE:
            yield from ((f"{BY_RULE}-{folder.name}", file) for folder in sorted((root / "tests" / "rules").iterdir()))
        else:
            yield file.stem, file


def taken(root: Path, name: str, file: Path) -> Tests:
    """One unit of tests, run once without a fault."""
    log = root / f"{name}.log"
    started, blind = time.monotonic(), any(word in file.read_text() for word in ("subprocess", "torch.compile("))
    failure = run(root / "tests", name, root / "src", 900, log, trace="compile" not in name)
    if failure is not None:
        sys.exit(f"{name} fails without a fault: {failure}\n{log.read_text()}")
    reached = set(ast.literal_eval(log.with_suffix(".lines").read_text()))
    return Tests(name, time.monotonic() - started, reached, blind)


# ---------------------------------------------------------------- report


def score(results: list[tuple[Mutant, str | None]], of: Callable[[Mutant], str]) -> Iterator[str]:
    count, killed = Counter(of(m) for m, _ in results), Counter(of(m) for m, failure in results if failure)
    for name in sorted(count):
        yield f"  {name:12} {killed[name]:4} of {count[name]:4}  {killed[name] / count[name]:6.1%}"


def report(results: list[tuple[Mutant, str | None]]) -> None:
    titles = {"part": lambda m: ROOMS[m.room], "room": lambda m: m.room, "operator": lambda m: m.operator}
    for title, of in titles.items():
        print(f"\nkilled, by {title}", *score(results, of), sep="\n")
    survivors = [mutant for mutant, failure in results if failure is None]
    print(f"\n{len(survivors)} survived", *map(str, survivors), sep="\n  ")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200, help="how many mutants")
    parser.add_argument("--seed", type=int, nargs="+", default=[0], help="one sample for each")
    parser.add_argument("--part", action="append", choices=list(PARTS), help="in place of the core; may be given again")
    parser.add_argument("--file", action="append", choices=list(ROOMS), help="only this room; may be given again")
    parser.add_argument("--operator", action="append", choices=list(OPERATORS))
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--list", action="store_true", help="print the mutants, run nothing")
    options = parser.parse_args()
    rooms = options.file or [room for room, part in ROOMS.items() if part in (options.part or ["core"])]
    sources = {room: (PACKAGE / f"{room}.py").read_text() for room in rooms}
    every = [mutant for room, source in sources.items() for mutant in mutants_of(room, source)]
    every = [mutant for mutant in every if mutant.operator in (options.operator or OPERATORS)]
    samples = {seed: drawn(every, options.count, seed) for seed in options.seed}
    texts = {mutant: mutated(mutant, sources[mutant.room])[0] for sample in samples.values() for mutant in sample}
    samples = {seed: [texts[m] for m in sample if not equivalent(texts[m])] for seed, sample in samples.items()}
    sample = list(dict.fromkeys(itertools.chain(*samples.values())))
    print(f"{len(sample)} of {len(every)} mutants, seeds {options.seed}")
    if options.list:
        print(*sorted(sample), sep="\n")
        return
    prepare()
    with tempfile.TemporaryDirectory(prefix="mutants-") as place:
        root = Path(place)
        for name in ("src", "tests"):
            shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copytree(ROOT / "docs", root / "docs", ignore=shutil.ignore_patterns("_build"))
        shutil.copy(ROOT / "pyproject.toml", root)
        tests = [taken(root, *unit) for unit in units(root, {ROOMS[room] for room in rooms})]
        print(*(f"  {file.seconds:5.1f} s  {file.name}" for file in tests), sep="\n")
        print(f"{len(tests)} files of tests pass without a fault, in {sum(t.seconds for t in tests):.0f} s", flush=True)
        jobs = [Job(mutant, root, tests) for mutant in sample]
        results = {}
        with multiprocessing.get_context("fork").Pool(options.workers) as pool:
            for mutant, failure, spent in pool.imap_unordered(judged, jobs):
                results[mutant] = failure
                print(f"{'killed' if failure else 'SURVIVED'} {spent:5.1f} s  {mutant}  {failure or ''}", flush=True)
    report(list(results.items()))
    for seed, sample in samples.items():
        killed = sum(results[mutant] is not None for mutant in sample)
        print(f"seed {seed}: {killed} of {len(sample)} killed, {killed / len(sample):.1%}")


if __name__ == "__main__":
    main()
