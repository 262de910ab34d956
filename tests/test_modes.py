"""What each mode does with a broken contract, and which mode is in force."""

import asyncio
import concurrent.futures
import contextlib
import copy
import functools
import importlib.util
import inspect
import operator
import os
import pickle
import subprocess
import sys
import threading
import types
import warnings
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from jaxtyping import AbstractDtype, BFloat16, Complex64, Float16, Float32, Float64, Int8, Int32, Int64
from support import in_backward
from torch import Tensor, nn
from torch._dynamo.exc import Unsupported
from torch.utils.checkpoint import checkpoint

import dtypeguard
from dtypeguard import (
    CastError,
    CastWarning,
    ContractWarning,
    DtypeError,
    HintError,
    ShapeError,
    casts,
    check,
    enforce,
    get_mode,
    mode,
    reset_casts,
    set_mode,
)
from dtypeguard._core.base import config as _config
from dtypeguard._core.base.config import Mode
from dtypeguard._core.base.dtypes import Casting
from dtypeguard._core.repair import records as _records

RIGHT, WRONG = torch.zeros(3), torch.zeros(3, dtype=torch.float64)
FORBIDDEN = torch.zeros(3, dtype=torch.int64)
SHAPE = torch.zeros(3, 3)
NAMES = ["strict", "lenient", "warn", "off"]


@enforce
def f(x: Float32[Tensor, "n"]):
    return x


def outcome(fn=f, x=WRONG):
    """Which mode a call met, by what it did."""
    reset_casts()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            result = fn(x)
        except DtypeError:
            return "strict"
    if result is not x:
        return "lenient"
    return "warn" if said else "off"


# ---------------------------------------------------------------- what each mode does

CASES = {  # of each value, by mode
    "right": (None, None, None, None),
    "wrong dtype": (DtypeError, CastWarning, ContractWarning, None),
    "forbidden cast": (DtypeError, CastError, ContractWarning, None),
    "wrong shape": (ShapeError, ShapeError, ContractWarning, None),
    "no tensor": (HintError, HintError, ContractWarning, None),
}
VALUES = {"right": RIGHT, "wrong dtype": WRONG, "forbidden cast": FORBIDDEN, "wrong shape": SHAPE, "no tensor": "x"}


def in_context(name, value):
    with mode(name):
        return f(value)


def by_set_mode(name, value):
    set_mode(name)
    return f(value)


def by_decorator(name, value):
    return enforce(mode=name)(f.__wrapped__)(value)


def by_check(name, value):
    return check(value, Float32[Tensor, "n"], mode=name)


@pytest.mark.parametrize("way", [in_context, by_set_mode, by_decorator, by_check], ids=lambda w: w.__name__)
@pytest.mark.parametrize("kind", CASES)
def test_what_a_mode_does(kind, way):
    value = VALUES[kind]
    for name, expected in zip(NAMES, CASES[kind], strict=True):
        reset_casts()
        if expected is None:
            assert way(name, value) is value
        elif issubclass(expected, Warning):
            with pytest.warns(expected):
                result = way(name, value)
            assert (result is value) is (name == "warn")
        else:
            with pytest.raises(expected):
                way(name, value)


def test_warn_speaks_once_for_each_line_and_changes_nothing():
    def call(x):
        return f(x)

    with mode("warn"):
        with pytest.warns(ContractWarning) as said:
            assert call(WRONG) is WRONG
        assert len(said) == 1
        assert said[0].filename == __file__
        assert call(WRONG) is WRONG
        with pytest.warns(ContractWarning):
            f(WRONG)
        reset_casts()
        with pytest.warns(ContractWarning):
            call(WRONG)
    assert casts() == []


DTYPES = {"r": torch.float32, "w": torch.float64, "h": torch.float16}


def test_warn_speaks_again_of_another_argument_or_another_dtype_on_the_same_line():
    class Net(nn.Linear):
        def forward(self, x, y):
            return x

    model = dtypeguard.guard(Net(3, 3), mode="warn")
    said = []
    for x, y, own in ("w-r", "-wr", "h-r", "w-h", "w-r"):
        model.to(DTYPES[own])
        given = [None if dtype == "-" else torch.zeros(3, dtype=DTYPES[dtype]) for dtype in (x, y)]
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            model(*given)
        said.append([str(w.message).splitlines()[0].removeprefix("Net.forward: argument ") for w in told])
    assert said == [
        ["`x` is float64, the module's parameters are float32"],
        ["`y` is float64, the module's parameters are float32"],
        ["`x` is float16, the module's parameters are float32"],
        ["`x` is float64, the module's parameters are float16"],
        [],
    ]


@enforce
def zeroes(x: Float32[Tensor, "n"]):
    return x.zero_()


def called_in_warn_mode():
    with mode("warn"):
        f(WRONG)


def called_after_a_conversion():
    held = dtypeguard.guard(nn.Linear(3, 3), state=dtypeguard.manifest(nn.Linear(3, 3)))
    held.half()(RIGHT.half())


def mode_without_block():
    mode("strict")


WARNS = {
    "a repair": lambda: f(WRONG),
    "a copy that is written to": lambda: zeroes(torch.ones(3, dtype=torch.float64)),
    "a violation in the mode warn": called_in_warn_mode,
    "a model that is not what its manifest says": called_after_a_conversion,
    "a mode without its block": mode_without_block,
    "a package that is imported already": lambda: dtypeguard.install_import_hook("typing_extensions").remove(),
    "annotations that ask for nothing": lambda: enforce(lambda x: x),
}


@pytest.mark.parametrize("warn", WARNS.values(), ids=WARNS)
def test_every_warning_is_logged_with_its_line_whatever_the_filters_do(warn, caplog):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        warn()
    assert said
    reset_casts()
    caplog.clear()
    with warnings.catch_warnings(action="ignore"):
        warn()
    assert [record.name for record in caplog.records] == ["dtypeguard"] * len(said)
    for one, logged in zip(said, caplog.messages, strict=True):
        head, _, rest = str(one.message).partition("\n")
        place = f"seen at{' ' * 4 if rest else ' '}tests/test_modes.py:{one.lineno}, in "
        assert logged.startswith(head)
        assert place in logged
        assert logged.endswith(rest)


def test_a_repair_speaks_once_for_each_line_and_is_counted_and_logged(caplog):
    def call(x):
        return f(x)

    with pytest.warns(CastWarning) as said:
        call(WRONG)
    assert len(said) == 1
    assert said[0].filename == __file__
    assert said[0].lineno == call.__code__.co_firstlineno + 1
    for _ in range(4):
        call(WRONG)
    assert [record.name for record in caplog.records] == ["dtypeguard"]
    assert "float64" in caplog.text
    with pytest.warns(CastWarning):
        f(WRONG)
    with pytest.warns(CastWarning):
        call(RIGHT.half())
    counts = sorted((record.count, str(record.from_dtype), record.bytes) for record in casts())
    assert counts == [(1, "torch.float16", 12), (1, "torch.float64", 12), (5, "torch.float64", 60)]
    assert {(record.function, record.argument) for record in casts()} == {("f", "x")}
    assert all("test_modes.py:" in record.site for record in casts())
    reset_casts()
    assert casts() == []
    with pytest.warns(CastWarning):
        call(WRONG)


@pytest.mark.filterwarnings("ignore::dtypeguard.CastWarning")
def test_what_makes_a_repair_another_record():
    def one(x: Float32[Tensor, "n"], y: Float32[Tensor, "n"]):
        return x

    def other(x: Float32[Tensor, "n"], y: Float32[Tensor, "n"]):
        return y

    one, other, half = enforce(one), enforce(other), RIGHT.half()
    for function, *args in ((one, WRONG, RIGHT), (one, RIGHT, WRONG), (one, half, RIGHT), (other, WRONG, RIGHT)):
        for _ in range(2):
            function(*args)
    one(WRONG, RIGHT)
    assert [(r.function, r.argument, r.from_dtype, r.count) for r in casts()] == [
        ("one", "x", torch.float64, 2),
        ("one", "y", torch.float64, 2),
        ("one", "x", torch.float16, 2),
        ("other", "x", torch.float64, 2),
        ("one", "x", torch.float64, 1),
    ]
    reset_casts()
    model = dtypeguard.guard(Net())
    for dtype, device in (("float32", "cpu"), ("float16", "cpu"), ("float16", "meta"), ("float32", "cpu")):
        model.weight = nn.Parameter(torch.ones(1, dtype=getattr(torch, dtype), device=device))
        model.forward([WRONG])
    records = [(str(r.to_dtype), str(r.to_device), r.count) for r in casts()]
    assert records == [("torch.float32", "cpu", 2), ("torch.float16", "cpu", 1), ("torch.float16", "meta", 1)]


@pytest.mark.filterwarnings("ignore::dtypeguard.CastWarning")
def test_what_is_repaired_on_one_line_is_one_record():
    for call in (lambda: f(WRONG), lambda: f(WRONG)):
        call()
    (record,) = casts()
    assert (record.count, record.bytes) == (2, 24)


@pytest.mark.filterwarnings("ignore::dtypeguard.CastWarning")
def test_repairs_since_a_mark():
    """What the plugin of pytest says of each test."""

    def repaired(times):
        for _ in range(times):
            f(WRONG)

    def fresh(begin):
        return [(r.argument, r.count, r.bytes) for r in _records.since(begin)]

    repaired(3)
    begin = _records.mark()
    assert fresh(begin) == []
    repaired(2)
    assert fresh(begin) == [("x", 2, 24)]
    assert fresh(None) == [("x", 5, 60)]
    reset_casts()
    repaired(1)
    assert fresh(begin) == [("x", 1, 12)]


def test_a_warning_that_is_an_error_raises_before_the_body_and_again_is_silent():
    """With `-W error` the first repair raises; the body must not have run by then."""
    ran = []

    @enforce
    def g(x: Float32[Tensor, "n"]):
        ran.append(x.dtype)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(CastWarning):
            g(WRONG)
    assert ran == []


# ---------------------------------------------------------------- precedence

PRECEDENCE = [
    # set_mode, with mode(...), enforce(mode=...), what counts
    (None, None, None, "lenient"),
    *((base, None, None, base) for base in NAMES),
    *((None, context, None, context) for context in NAMES),
    *(("strict", context, None, context) for context in NAMES),
    *((None, context, own, own) for context in ("strict", "off") for own in NAMES),
    *(("warn", None, own, own) for own in NAMES),
    *(("off", context, own, "off") for context in (None, "strict") for own in (None, "lenient")),
]


@pytest.mark.parametrize(("base", "context", "own", "expected"), PRECEDENCE)
def test_precedence(base, context, own, expected):
    fn = enforce(mode=own)(f.__wrapped__)
    set_mode(base)
    with contextlib.nullcontext() if context is None else mode(context):
        assert outcome(fn) == expected
        assert outcome(lambda x: check(x, Float32[Tensor, "n"], mode=own)) == expected
        if own is None:
            assert get_mode() == expected


def test_set_mode_inside_a_block_waits_until_it_ends_but_off_does_not():
    strict = mode("strict")
    with strict:
        with mode("warn"), strict:
            assert outcome() == "strict"
        with contextlib.suppress(KeyError), mode("warn"):
            raise KeyError
        set_mode("warn")
        assert outcome() == "strict"
        set_mode("off")
        assert outcome() == "off"
        set_mode("warn")
        assert outcome() == "strict"
    assert outcome() == "warn"


@pytest.mark.filterwarnings("ignore::dtypeguard.CastWarning")
def test_a_mode_that_changes_between_calls_is_seen_by_a_repair_that_is_known():
    def call():
        return f(WRONG)

    for _ in range(3):
        assert call().dtype is torch.float32
    with mode("strict"), pytest.raises(DtypeError):
        call()
    with mode("off"):
        assert call() is WRONG
    with pytest.warns(ContractWarning), mode("warn"):
        assert call() is WRONG
    assert call().dtype is torch.float32
    set_mode("strict", under=Path(__file__).parent)
    with pytest.raises(DtypeError):
        call()
    set_mode("strict", under=Path(__file__).parent / "typing")
    assert call().dtype is torch.float32


# ---------------------------------------------------------------- mode as a decorator


def test_a_mode_decorates_functions():
    @mode("strict")
    def g(x: Tensor, y: int = 3) -> Tensor:
        """The doc."""
        return f(x)

    assert (g.__name__, g.__doc__) == ("g", "The doc.")
    assert list(inspect.signature(g).parameters) == ["x", "y"]
    assert g(RIGHT) is RIGHT
    with pytest.raises(DtypeError):
        g(WRONG)
    assert outcome() == "lenient"


def test_a_mode_decorates_coroutines_across_their_awaits():
    @mode("strict")
    async def g():
        await asyncio.sleep(0)
        return get_mode()

    async def run():
        assert await asyncio.gather(g(), g()) == ["strict", "strict"]
        assert get_mode() == "lenient"

    assert inspect.iscoroutinefunction(g)
    asyncio.run(run())


def test_a_mode_refuses_generators():
    def generator():
        yield

    async def async_generator():
        yield

    for fn in (generator, async_generator):
        with pytest.raises(TypeError, match=fn.__name__):
            mode("strict")(fn)


def test_enforce_goes_over_and_under_a_mode():
    over = enforce(mode("strict")(f.__wrapped__))
    under = mode("strict")(enforce(f.__wrapped__))
    assert outcome(over) == "lenient"
    assert outcome(under) == "strict"


# ---------------------------------------------------------------- threads


def in_thread(fn, *args):
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(fn, *args).result(timeout=30)


def test_a_block_does_not_reach_other_threads_but_set_mode_does():
    with mode("strict"):
        assert in_thread(get_mode) == "lenient"
        set_mode("warn")
        assert in_thread(get_mode) == "warn"
        assert get_mode() == "strict"


@pytest.mark.filterwarnings("ignore::dtypeguard.CastWarning")
@pytest.mark.parametrize("depth", [0, 59, 60, 61])
def test_what_a_checkpoint_runs_again_in_a_thread_of_autograd_has_the_block_around_backward(depth):
    @enforce
    def squared(x: Float32[Tensor, "n"]):
        return x.square()

    def program():
        x = torch.ones(3, dtype=torch.float64, requires_grad=True)
        with dtypeguard.mode("lenient"):
            checkpoint(squared, x, use_reentrant=False).sum().backward()
        with pytest.raises(DtypeError):
            squared(x)
        assert {record.site.rpartition(", ")[2] for record in dtypeguard.casts()} == {"in program"}

    dtypeguard.set_mode("strict")
    in_backward(depth, program)


@pytest.mark.parametrize("shared", [False, True], ids=["own objects", "one shared object"])
def test_threads_in_blocks_at_the_same_time_do_not_meet(shared):
    strict = mode("strict")
    barrier = threading.Barrier(4, timeout=30)

    def work(name):
        seen = []
        block = strict if shared and name == "strict" else mode(name)
        for _ in range(20):
            barrier.wait()
            with block:
                barrier.wait()
                seen.append(get_mode())
                with block:
                    seen.append(get_mode())
                barrier.wait()
            seen.append(get_mode())
        return seen

    names = ["strict", "strict", "warn", "off"]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        results = list(pool.map(work, names))
    for name, seen in zip(names, results, strict=True):
        assert seen == [name, name, "lenient"] * 20


def test_leaving_a_block_in_another_thread_does_no_harm_there():
    """Exit stacks are closed by whoever closes them, an event loop's executor for one."""
    block = mode("strict")
    block.__enter__()

    def leave():
        block.__exit__(None, None, None)
        return outcome()

    try:
        assert in_thread(leave) == "lenient"
        assert get_mode() == "strict"
    finally:
        block.__exit__(None, None, None)
    assert get_mode() == "lenient"


def test_a_repair_made_by_many_threads_is_counted_exactly():
    def call(_):
        return f(WRONG).dtype

    with warnings.catch_warnings(), concurrent.futures.ThreadPoolExecutor(4) as pool:
        warnings.simplefilter("ignore")
        switch = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            assert set(pool.map(call, range(2000))) == {torch.float32}
        finally:
            sys.setswitchinterval(switch)
    assert sum(record.count for record in casts()) == 2000
    assert sum(record.bytes for record in casts()) == 2000 * 12


# ---------------------------------------------------------------- asyncio


def test_enforced_coroutines_that_interleave_keep_their_axes_apart():
    """jaxtyping's own scope is one for each thread, and mixes them up."""

    async def run():
        barrier = asyncio.Barrier(4)

        @enforce
        async def g(x: Float32[Tensor, "n"]) -> Float32[Tensor, "n"]:
            await barrier.wait()
            await asyncio.sleep(0)
            return torch.ones(len(x))

        results = await asyncio.gather(*(g(torch.zeros(size)) for size in (1, 2, 3, 4)))
        assert [len(x) for x in results] == [1, 2, 3, 4]

    asyncio.run(asyncio.wait_for(run(), 30))


# ---------------------------------------------------------------- check


def test_check_returns_the_value_itself_or_its_repair():
    Row = Float32[Tensor, "n"]
    assert check(RIGHT, "Row") is RIGHT, "a string is read where it is called"
    with pytest.warns(CastWarning, match="`loss`"):
        assert check(WRONG, Row, name="loss").dtype is torch.float32
    with pytest.raises(CastError):
        check(WRONG, Row, casting="safe")
    with pytest.warns(CastWarning):
        assert check(FORBIDDEN, Row, casting="promote").dtype is torch.float32
    with pytest.raises(HintError):
        check("a", int)
    with pytest.raises(DtypeError) as caught:
        check([RIGHT, WRONG], list[Row], name="batch", mode="strict")
    assert caught.value.argument == "batch[1]"
    assert "test_modes.py" in caught.value.call_site


# ---------------------------------------------------------------- a base for the code below a directory

SOURCE = """
import dataclasses, torch, dtypeguard
from jaxtyping import AbstractDtype, Float32, Float64
from torch import Tensor, nn

@dtypeguard.enforce
def enforced(x: Float32[Tensor, "n"]):
    return x

@dtypeguard.enforce(returns=False)
def enforced_with_options(x: Float32[Tensor, "n"]):
    return x

@dtypeguard.enforce
def later(x: "Float32[Rows, 'n']"):
    return x

Rows = Tensor

@dtypeguard.enforce
@dataclasses.dataclass
class Row:
    x: Float32[Tensor, "n"]

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return x

class Derived(dtypeguard.GuardedModule, Net):
    def forward(self, x: Float32[Tensor, "n"]):
        return x

@dtypeguard.enforce
class Enforced(Net):
    def forward(self, x: Float32[Tensor, "n"]):
        return x

graph = torch.fx.symbolic_trace(Net())
graph.weight = nn.Parameter(torch.ones(3))

def guarded():
    return dtypeguard.guard(Net())

def asks():
    return dtypeguard.get_mode()

WAYS = {
    "enforce": enforced,
    "enforce with options": enforced_with_options,
    "enforce, its annotation not known yet": later,
    "enforce a dataclass": lambda x: Row(x).x,
    "enforce a class": Enforced(),
    "check": lambda x: dtypeguard.check(x, Float32[Tensor, "n"]),
    "guard": guarded(),
    "guard a part": dtypeguard.guard(nn.Sequential(Net(), Net()), depth="all")[1],
    "guard a graph": dtypeguard.guard(graph),
    "GuardedModule of a model": dtypeguard.GuardedModule(Net()),
    "a class derived from GuardedModule": Derived(),
}
"""


def written_at(path):
    """The module with this source at a path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PLACES = {
    "src/mine.py": True,
    "src/a/b/mine.py": True,
    "src/site-packages.py": True,
    "src2/mine.py": False,
    "mine.py": False,
    "src/.venv/lib/python3.11/site-packages/theirs/__init__.py": False,
    "src/usr/lib/python3/dist-packages/theirs.py": False,
}


@pytest.mark.parametrize("base", ["strict", "off"])
@pytest.mark.parametrize(("place", "below"), PLACES.items(), ids=PLACES)
def test_a_base_for_a_directory_counts_for_what_is_written_below_it(tmp_path, place, below, base):
    module = written_at(tmp_path / place)
    (tmp_path / "src").mkdir(exist_ok=True)
    set_mode(base, under=tmp_path / "src")
    expected = base if below else "lenient"
    assert {name: outcome(way) for name, way in module.WAYS.items()} == dict.fromkeys(module.WAYS, expected)
    assert module.asks() == expected
    set_mode(base)
    assert outcome(module.enforced) == outcome(module.guarded()) == module.asks() == base


@pytest.mark.parametrize(("file", "under"), [("real", "link"), ("link", "real"), ("site-packages", "site-packages")])
def test_a_directory_may_be_a_link_relative_or_installed(tmp_path, monkeypatch, file, under):
    for name in ("real", "site-packages"):
        (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    module = written_at(tmp_path / file / "mine.py")
    set_mode("strict", under=str(tmp_path / under))
    assert outcome(module.enforced) == "strict"
    monkeypatch.chdir(tmp_path)
    set_mode("strict", under=under)
    monkeypatch.chdir("/")
    assert outcome(module.enforced) == "strict"
    set_mode("strict", under=tmp_path)
    assert outcome(module.enforced) == ("lenient" if file == "site-packages" else "strict")


@pytest.mark.parametrize(("file", "expected"), [(None, "lenient"), ("mine.py", "strict")])
def test_code_is_where_its_module_is_now_and_without_a_file_nowhere(tmp_path, monkeypatch, file, expected):
    monkeypatch.chdir(tmp_path)
    namespace = {"__file__": str(tmp_path / file)} if file else {}
    exec(compile(SOURCE, "/somewhere/else/mine.py" if file else "<typed in>", "exec"), namespace)
    set_mode("strict", under=tmp_path)
    assert {outcome(way) for way in namespace["WAYS"].values()} == {expected}


def test_what_is_said_closer_counts_before_a_base_for_elsewhere_but_off_below_it(tmp_path):
    module = written_at(tmp_path / "mine.py")
    for base, below in (("strict", "warn"), ("off", "off")):
        set_mode(base, under=tmp_path)
        assert outcome(enforce(mode="warn")(f.__wrapped__)) == "warn"
        with mode("warn"):
            assert outcome() == "warn"
            assert outcome(module.enforced) == below
        assert outcome() == "lenient"


def test_a_guard_is_written_where_guard_is_called_not_where_the_model_is(tmp_path):
    theirs = written_at(tmp_path / "theirs.py")
    set_mode("strict", under=Path(__file__).parent)
    assert outcome(theirs.guarded()) == "lenient"
    assert outcome(dtypeguard.guard(theirs.Net())) == "strict"
    assert outcome(dtypeguard.guard(theirs.guarded())) == "strict"
    assert outcome(dtypeguard.GuardedModule(theirs.Net())) == "strict"
    set_mode("strict", under=tmp_path)
    assert outcome(theirs.guarded()) == "strict"
    assert outcome(dtypeguard.guard(theirs.Net())) == "lenient"


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return x


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_of_a_guarded_model_know_where_it_was_guarded(copied):
    model, older = dtypeguard.guard(Net()), dtypeguard.guard(Net())
    del older._dtypeguard.file  # as one that was pickled before this was known
    model, older = copied(model), copied(older)
    assert type(model) is type(dtypeguard.guard(Net()))
    set_mode("strict", under=Path(__file__).parent)
    assert (outcome(model), outcome(older)) == ("strict", "lenient")
    set_mode("strict")
    assert outcome(older) == "strict"


def test_a_base_for_a_directory_compiles(tmp_path):
    theirs = written_at(tmp_path / "theirs.py")
    torch._dynamo.reset()
    for name in ("enforce", "guard", "a class derived from GuardedModule"):
        compiled = torch.compile(theirs.WAYS[name], fullgraph=True, backend="eager")
        for _ in range(2):
            set_mode("strict", under=Path(__file__).parent)
            assert outcome(compiled) == "lenient"
            set_mode("strict", under=tmp_path)
            with pytest.raises(Unsupported, match="DtypeError"):
                compiled(WRONG)
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("under", "error", "text"),
    [
        ("nowhere/at/all", ValueError, "under='nowhere/at/all' is no directory"),
        (__file__, ValueError, "is no directory"),
        (3, TypeError, "under=3 is no path: write under='src'"),
    ],
)
def test_a_directory_that_is_none(under, error, text):
    with pytest.raises(error, match=text):
        set_mode("strict", under=under)
    assert get_mode() == "lenient"


# ---------------------------------------------------------------- a base casting

CASTINGS = ["safe", "promote", "unsafe"]
NEEDS = {torch.float16: "safe", torch.float64: "precision", torch.int64: "promote", torch.complex64: "unsafe"}


def cast_by(fn):
    """The highest rung of the ladder that a call could use."""
    seen = "nothing"
    for dtype, casting in NEEDS.items():
        with contextlib.suppress(CastError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fn(torch.zeros(3, dtype=dtype))
            seen = casting
    return seen


@pytest.mark.parametrize("own", [None, *CASTINGS])
@pytest.mark.parametrize("base", [None, *CASTINGS])
def test_the_casting_of_a_contract_counts_before_that_of_the_base(base, own):
    set_mode(None, casting=base)
    expected = own or base or "precision"
    assert cast_by(enforce(casting=own)(f.__wrapped__)) == expected
    assert cast_by(dtypeguard.guard(Annotated(), casting=own)) == expected
    assert cast_by(lambda x: check(x, Float32[Tensor, "n"], casting=own)) == expected


class Annotated(Net):
    def forward(self, x: Float32[Tensor, "n"]):
        return x


def test_a_base_casting_counts_in_lenient_mode_whoever_chose_that(tmp_path):
    theirs = written_at(tmp_path / "theirs.py")
    set_mode(None, casting="unsafe", under=tmp_path)
    assert (cast_by(theirs.enforced), cast_by(f)) == ("unsafe", "precision")
    set_mode("strict", casting="promote")
    with pytest.raises(DtypeError):
        f(FORBIDDEN)
    with mode("lenient"), pytest.warns(CastWarning):
        f(FORBIDDEN)
    set_mode("strict")
    with mode("lenient"), pytest.raises(CastError):
        f(FORBIDDEN)


@pytest.mark.filterwarnings("ignore::dtypeguard.CastWarning")
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_a_repair_that_is_a_habit_ends_when_the_casting_forbids_it(compiled):
    torch._dynamo.reset()
    fn = torch.compile(f, fullgraph=True, backend="eager") if compiled else f

    def call():
        return fn(WRONG)

    for _ in range(2):
        for _ in range(3):
            assert call().dtype is torch.float32
        set_mode(None, casting="safe")
        with pytest.raises(Unsupported if compiled else CastError, match="CastError" if compiled else "safe"):
            call()
        set_mode(None)


@pytest.mark.filterwarnings("ignore::dtypeguard.CastWarning")
def test_a_repair_becomes_another_where_the_casting_leaves_a_choice():
    @enforce
    def either(x: Float32[Tensor, "n"] | Float64[Tensor, "n"]):
        return x.dtype

    def call():
        return either(torch.zeros(3, dtype=torch.complex64))

    set_mode(None, casting="unsafe")
    assert [call() for _ in range(3)] == [torch.float32] * 3
    set_mode(None)
    with pytest.raises(CastError):
        call()


LEAST = {  # the options of a union in their order, the dtype that is given, the casting, what it becomes
    "the wider, written last": ((Float16, Float32), "float64", "precision", "float32"),
    "the wider, written first": ((Float32, Float16), "float64", "precision", "float32"),
    "of three": ((Float16, BFloat16, Float32), "float64", "precision", "float32"),
    "digits or range: the first": ((Float16, BFloat16), "float64", "precision", "float16"),
    "range or digits: the first": ((BFloat16, Float16), "float64", "precision", "bfloat16"),
    "both keep all": ((Float64, Float32), "float16", "precision", "float64"),
    "complex": ((Float32, Complex64), "complex128", "unsafe", "complex64"),
    "integers to floats": ((Float16, Float32), "int64", "promote", "float32"),
    "integers stay integers": ((Float32, Int64), "int32", "unsafe", "int64"),
    "narrower integers": ((Int8, Int32), "int64", "unsafe", "int32"),
    "a fraction is worth more than range": ((Int64, Float16), "float64", "unsafe", "float16"),
}


@pytest.mark.filterwarnings("ignore::dtypeguard.CastWarning")
@pytest.mark.parametrize("case", LEAST)
def test_of_a_union_the_member_is_taken_that_loses_least(case):
    options, given, casting, expected = LEAST[case]
    arrays = [option[Tensor, "n"] for option in options]
    value = torch.tensor([1, 0, 1]).to(getattr(torch, given))

    f = enforce(casting=casting)(annotated(lambda x: x, functools.reduce(operator.or_, arrays) | None))
    lists = functools.reduce(operator.or_, [list[array] for array in arrays])
    inside = enforce(casting=casting)(annotated(lambda x: x[0], lists))
    for _ in range(3):  # the second repair follows a plan
        assert f(value).dtype is inside([value]).dtype is getattr(torch, expected)


def annotated(f, hint):
    f.__annotations__ = {"x": hint}
    return f


def test_a_base_casting_that_is_none():
    with pytest.raises(
        ValueError, match=r"casting='sage' is not a casting \(did you mean 'safe'\?\): use one of 'safe', 'precision'"
    ):
        set_mode("lenient", casting="sage")


# ---------------------------------------------------------------- before the first import


TOLD = [
    (None, None, (None, None, None)),
    ("", {}, (None, None, None)),
    (" Warn ", {}, (Mode.WARN, None, None)),
    ("warn", {"mode": "strict"}, (Mode.STRICT, None, None)),
    ("off", {"casting": "safe"}, (Mode.OFF, Casting.SAFE, None)),
    (None, {"under": "src", "casting": "unsafe", "mode": "lenient"}, (Mode.LENIENT, Casting.UNSAFE, "src")),
]


@pytest.mark.parametrize(("environment", "told", "expected"), TOLD)
def test_what_the_environment_and_the_pytest_plugin_say_before_our_import(
    environment, told, expected, tmp_path, monkeypatch
):
    (tmp_path / "src").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DTYPEGUARD_MODE", raising=False)
    if environment is not None:
        monkeypatch.setenv("DTYPEGUARD_MODE", environment)
    plugin = None if told is None else types.SimpleNamespace(told=told)
    monkeypatch.setitem(sys.modules, "dtypeguard._plugins.pytest", plugin)
    base = _config.initial()
    assert (base.mode, base.casting) == expected[:2]
    assert base.under == (None if expected[2] is None else str((tmp_path / expected[2]).resolve()))


class RealOrWide(AbstractDtype):
    dtypes: ClassVar = ["float32", "complex128"]


@pytest.mark.filterwarnings("ignore::dtypeguard.CastWarning")
def test_of_several_dtypes_the_first_that_the_casting_rule_allows_is_chosen():
    @enforce(mode="lenient")
    def f(x: RealOrWide[Tensor, "n"]):
        return x.dtype

    assert f(torch.zeros(2, dtype=torch.complex64)) is torch.complex128
    assert f(torch.zeros(2, dtype=torch.float64)) is torch.float32


# ---------------------------------------------------------------- a casting for a block


@pytest.mark.parametrize("own", [None, "safe", "unsafe"])
@pytest.mark.parametrize("base", [None, "unsafe"])
def test_the_casting_of_a_block_counts_before_that_of_the_base(base, own):
    set_mode(None, casting=base)
    for name, casting in (("lenient", "safe"), (None, "promote")):
        expected = own or casting
        with mode(name, casting=casting):
            assert cast_by(enforce(casting=own)(f.__wrapped__)) == expected
            assert cast_by(dtypeguard.guard(Annotated(), casting=own)) == expected
            assert cast_by(lambda x: check(x, Float32[Tensor, "n"], casting=own)) == expected
            with mode("lenient"):  # a block inside that names none leaves it
                assert cast_by(f) == casting
            with mode(casting="safe"):
                assert cast_by(f) == "safe"
        assert cast_by(f) == (base or "precision")


@pytest.mark.filterwarnings("ignore::dtypeguard.CastWarning")
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_a_casting_of_a_block_ends_with_it_for_a_repair_that_is_a_habit_too(compiled):
    torch._dynamo.reset()
    fn = torch.compile(f, fullgraph=True, backend="eager") if compiled else f
    refused = Unsupported if compiled else CastError
    for _ in range(2):
        with mode(casting="promote"):
            for _ in range(3):
                assert fn(FORBIDDEN).dtype is torch.float32
        with mode("lenient"), pytest.raises(refused):
            fn(FORBIDDEN)
        with mode("strict", casting="promote"), pytest.raises((DtypeError, Unsupported)):
            fn(FORBIDDEN)


def test_a_casting_decorates_functions_and_leaves_the_mode():
    @mode(casting="promote")
    def call():
        return get_mode(), cast_by(f)

    with mode("warn"):
        assert call()[0] == "warn"
    assert call() == ("lenient", "promote")
    assert repr(mode("strict", casting="safe")) == "mode('strict', casting='safe')"


# ---------------------------------------------------------------- pyproject.toml


@pytest.fixture
def project(tmp_path):
    """A project with a table, and a module of it that asks for contracts."""

    def made(table):
        (tmp_path / "pyproject.toml").write_text(f"[tool.dtypeguard]\n{table}\n")
        set_mode(None, under=tmp_path)  # from where it is looked for
        return written_at(tmp_path / "theirs.py")

    return made


@pytest.mark.parametrize("name", NAMES)
def test_pyproject_sets_the_default_of_the_project(project, name):
    theirs = project(f"mode = '{name.upper()}'")
    assert outcome(theirs.enforced) == name
    assert (outcome(), get_mode()) == ("lenient", "lenient")  # this file is not below it
    with mode("strict"):
        assert outcome(theirs.enforced) == "strict"
    set_mode("warn", under=Path(theirs.__file__).parent)
    assert outcome(theirs.enforced) == "warn"


def test_pyproject_sets_the_casting_of_the_project(project):
    theirs = project("casting = 'promote'")
    assert (cast_by(theirs.enforced), cast_by(f)) == ("promote", "precision")
    with mode(casting="safe"):
        assert cast_by(theirs.enforced) == "safe"


def test_a_guard_is_of_the_project_that_calls_guard(project):
    theirs = project("mode = 'strict'")
    mine, made = dtypeguard.guard(Net()), theirs.guarded()
    for _ in range(3):  # known repairs too
        assert (outcome(mine), outcome(made)) == ("lenient", "strict")


@pytest.mark.parametrize("mode_there", ["strict", "off"])
def test_compiled_code_of_a_project_has_its_mode(project, mode_there):
    torch._dynamo.reset()
    theirs = project(f"mode = '{mode_there}'")
    compiled = torch.compile(theirs.enforced, fullgraph=True, backend="eager")
    if mode_there == "off":
        assert compiled(WRONG).dtype is torch.float64
    else:
        with pytest.raises(Unsupported, match="is float64"):
            compiled(WRONG)


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ("mode = 'loud'", "mode='loud' is not a mode: use one of 'strict', 'lenient', 'warn', 'off'"),
        ("mode = 3", "mode=3 is not a mode: use one of"),
        ("casting = 'any'", "casting='any' is not a casting: use one of 'safe', 'precision', 'promote', 'unsafe'"),
        (
            "mood = 'strict'",
            "has no key 'mood' (did you mean 'mode'?): use select, ignore, severity, per-file-ig",
        ),
    ],
)
def test_what_is_wrong_with_a_table_is_said_when_it_is_needed(project, table, text):
    theirs = project(table)
    assert theirs.enforced(RIGHT) is RIGHT
    with pytest.raises(ValueError, match=r"pyproject.toml:2: \[tool.dtypeguard\]") as caught:
        theirs.enforced(WRONG)
    assert text in str(caught.value)


def test_pyproject_is_found_above_the_current_directory(tmp_path):
    (tmp_path / "pyproject.toml").write_text("[tool.dtypeguard]\nmode = 'strict'\n")
    program = "import dtypeguard; print(dtypeguard.get_mode())"
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "program.py").write_text(program)
    for environment, expected in (({}, "strict"), ({"DTYPEGUARD_MODE": "warn"}, "warn")):
        run = subprocess.run(
            [sys.executable, "program.py"], cwd=tmp_path / "sub", text=True, capture_output=True, check=True,
            env={"PYTHONPATH": os.pathsep.join(sys.path), **environment},
        )  # fmt: skip
        assert run.stdout == f"{expected}\n"
