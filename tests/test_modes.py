"""What each mode does with a broken contract, and which mode is in force."""

import asyncio
import concurrent.futures
import contextlib
import copy
import importlib.util
import inspect
import pickle
import sys
import threading
import types
import warnings
from pathlib import Path

import pytest
import torch
from jaxtyping import Float32, Float64
from torch import Tensor, nn
from torch._dynamo.exc import Unsupported

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
from dtypeguard._base import config as _config
from dtypeguard._base.config import Mode
from dtypeguard._base.dtypes import Casting

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

CASES = {
    ("strict", "right"): None,
    ("strict", "wrong dtype"): DtypeError,
    ("strict", "forbidden cast"): DtypeError,
    ("strict", "wrong shape"): ShapeError,
    ("strict", "no tensor"): HintError,
    ("lenient", "right"): None,
    ("lenient", "wrong dtype"): CastWarning,
    ("lenient", "forbidden cast"): CastError,
    ("lenient", "wrong shape"): ShapeError,
    ("lenient", "no tensor"): HintError,
    ("warn", "right"): None,
    ("warn", "wrong dtype"): ContractWarning,
    ("warn", "forbidden cast"): ContractWarning,
    ("warn", "wrong shape"): ContractWarning,
    ("warn", "no tensor"): ContractWarning,
    ("off", "right"): None,
    ("off", "wrong dtype"): None,
    ("off", "forbidden cast"): None,
    ("off", "wrong shape"): None,
    ("off", "no tensor"): None,
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
@pytest.mark.parametrize(("name", "kind"), CASES, ids=" ".join)
def test_what_a_mode_does(name, kind, way):
    value, expected = VALUES[kind], CASES[name, kind]
    if expected is None:
        assert way(name, value) is value
    elif issubclass(expected, Warning):
        with pytest.warns(expected):
            result = way(name, value)
        assert (result is value) is (name == "warn")
    else:
        with pytest.raises(expected):
            way(name, value)


def test_lenient_is_the_default():
    assert get_mode() == "lenient"
    assert outcome() == "lenient"


@pytest.mark.parametrize("name", ["strict", "warn"])
def test_every_offender_of_a_call_is_named_in_strict_and_in_warn(name):
    @enforce
    def g(x: Float32[Tensor, "n"], y: Float32[Tensor, "n"], z: int):
        return x

    context = pytest.raises(DtypeError) if name == "strict" else pytest.warns(ContractWarning)
    with mode(name), context as caught:
        g(WRONG, SHAPE, "z")
    text = str(caught.value if name == "strict" else caught[0].message)
    for argument in ("`x`", "`y`", "`z`"):
        assert argument in text


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


def test_a_repair_speaks_once_for_each_line_and_is_counted_always():
    def call(x):
        return f(x)

    with pytest.warns(CastWarning) as said:
        call(WRONG)
    assert len(said) == 1
    assert said[0].filename == __file__
    for _ in range(4):
        call(WRONG)
    with pytest.warns(CastWarning):
        f(WRONG)
    with pytest.warns(CastWarning):
        call(RIGHT.half())
    counts = sorted((record.count, str(record.from_dtype), record.bytes) for record in casts())
    assert counts == [(1, "torch.float16", 12), (1, "torch.float64", 12), (5, "torch.float64", 60)]
    assert {record.argument for record in casts()} == {"x"}
    assert {record.function for record in casts()} == {"f"}
    assert all("test_modes.py:" in record.site for record in casts())
    reset_casts()
    assert casts() == []
    with pytest.warns(CastWarning):
        call(WRONG)


def test_a_repair_is_logged_once(caplog):
    def call():
        return f(WRONG)

    with pytest.warns(CastWarning):
        call()
    for _ in range(3):
        call()
    assert [record.name for record in caplog.records] == ["dtypeguard"]
    assert "float64" in caplog.text
    assert "float32" in caplog.text


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
    *((None, None, own, own) for own in NAMES),
    *((base, context, None, context) for base in NAMES[:3] for context in NAMES),
    *((None, context, own, own) for context in NAMES for own in NAMES),
    *((base, None, own, own) for base in NAMES[:3] for own in NAMES),
    *(("off", context, own, "off") for context in (None, *NAMES) for own in (None, *NAMES)),
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
    with mode("strict"):
        set_mode("warn")
        assert outcome() == "strict"
        set_mode("off")
        assert outcome() == "off"
        set_mode("warn")
        assert outcome() == "strict"
    assert outcome() == "warn"


def test_set_mode_has_one_level_and_the_last_writer_wins():
    for name in ("strict", "warn", None):
        set_mode(name)
    assert get_mode() == "lenient"


def test_blocks_nest_and_end_with_what_was_before():
    with mode("strict"):
        with mode("warn"):
            with mode("off"):
                assert outcome() == "off"
            assert outcome() == "warn"
        assert outcome() == "strict"
    assert outcome() == "lenient"


def test_a_block_ends_when_an_error_leaves_it():
    with contextlib.suppress(DtypeError), mode("strict"):
        f(WRONG)
    assert outcome() == "lenient"


def test_the_mode_is_read_at_the_call_not_at_decoration():
    with mode("strict"):
        fn = enforce(f.__wrapped__)
    assert outcome(fn) == "lenient"


def test_a_mode_that_changes_between_calls_is_seen_by_a_repair_that_is_a_habit():
    """The same line repairs again and again; then the mode changes under it."""

    def call():
        return f(WRONG)

    with pytest.warns(CastWarning):
        call()
    for _ in range(3):
        assert call().dtype is torch.float32
    with mode("strict"), pytest.raises(DtypeError):
        call()
    with mode("off"):
        assert call() is WRONG
    with pytest.warns(ContractWarning), mode("warn"):
        assert call() is WRONG
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


def test_a_mode_decorates_methods_and_recursion():
    class Holder:
        @mode("warn")
        def method(self, depth):
            return get_mode() if depth == 0 else self.method(depth - 1)

    assert Holder().method(5) == "warn"
    assert get_mode() == "lenient"


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


def test_one_mode_object_may_be_entered_again_inside_itself():
    block = mode("strict")
    with block, mode("warn"), block:
        assert get_mode() == "strict"
    assert get_mode() == "lenient"


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


@pytest.mark.parametrize("shared", [False, True], ids=["own objects", "one shared object"])
def test_interleaved_tasks_each_keep_their_mode(shared):
    """Tasks enter one after the other and leave in the order they came, not in reverse."""
    strict = mode("strict")

    async def work(name, barrier, turn):
        block = strict if shared and name == "strict" else mode(name)
        seen = [get_mode()]
        await barrier.wait()
        with block:
            for _ in range(5):
                await barrier.wait()
                seen.append(outcome())
            for _ in range(turn):
                await asyncio.sleep(0)
            seen.append(get_mode())
        for _ in range(10):
            await asyncio.sleep(0)
        return [*seen, get_mode()]

    async def run():
        names = ["strict", "warn", "strict", "off"]
        barrier = asyncio.Barrier(len(names))
        tasks = [asyncio.create_task(work(name, barrier, turn)) for turn, name in enumerate(names)]
        for name, seen in zip(names, await asyncio.gather(*tasks), strict=True):
            assert seen == ["lenient", *[name] * 6, "lenient"]

    asyncio.run(asyncio.wait_for(run(), 30))
    assert get_mode() == "lenient"
    assert outcome() == "lenient"


def test_a_task_inherits_the_mode_it_was_created_under_and_keeps_it():
    async def child():
        before = get_mode()
        await asyncio.sleep(0)
        with mode("warn"):
            await asyncio.sleep(0)
        return before, get_mode()

    async def run():
        with mode("strict"):
            task = asyncio.create_task(child())
            await asyncio.sleep(0)
            assert get_mode() == "strict"
        assert get_mode() == "lenient"
        assert await task == ("strict", "strict")
        assert get_mode() == "lenient"

    asyncio.run(asyncio.wait_for(run(), 30))


def test_to_thread_takes_the_mode_along():
    async def run():
        with mode("strict"):
            return await asyncio.to_thread(get_mode)

    assert asyncio.run(asyncio.wait_for(run(), 30)) == "strict"


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


def test_the_mode_of_a_coroutine_is_that_of_its_caller():
    @enforce
    async def g(x: Float32[Tensor, "n"]):
        return x

    async def run():
        with mode("strict"), pytest.raises(DtypeError):
            await g(WRONG)
        with mode("off"):
            assert await g(WRONG) is WRONG

    asyncio.run(asyncio.wait_for(run(), 30))


def test_modes_are_names_not_state_so_errors_do_not_carry_them():
    with mode("strict"), pytest.raises(DtypeError) as caught:
        f(WRONG)
    with mode("off"):
        assert isinstance(pickle.loads(pickle.dumps(caught.value)), DtypeError)


# ---------------------------------------------------------------- check


def test_check_returns_the_value_itself_or_its_repair():
    assert check(RIGHT, Float32[Tensor, "n"]) is RIGHT
    with pytest.warns(CastWarning, match="`loss`"):
        assert check(WRONG, Float32[Tensor, "n"], name="loss").dtype is torch.float32
    with pytest.raises(CastError):
        check(WRONG, Float32[Tensor, "n"], casting="safe")
    with pytest.warns(CastWarning):
        assert check(FORBIDDEN, Float32[Tensor, "n"], casting="promote").dtype is torch.float32
    assert check({"a": RIGHT}, dict[str, Float32[Tensor, "n"]])["a"] is RIGHT
    with pytest.raises(HintError):
        check("a", int)


def test_check_names_the_value_in_its_error():
    with pytest.raises(DtypeError) as caught:
        check([RIGHT, WRONG], list[Float32[Tensor, "n"]], name="batch", mode="strict")
    assert caught.value.argument == "batch[1]"
    assert "test_modes.py" in caught.value.call_site


def test_check_reads_string_annotations_where_it_is_called():
    Row = Float32[Tensor, "n"]
    assert check(RIGHT, "Row", mode="strict") is RIGHT
    assert Row is not None
    with pytest.raises(DtypeError):
        check(WRONG, "Row", mode="strict")


def test_dtypeguard_has_the_four_modes_and_no_other():
    for name in NAMES:
        with dtypeguard.mode(name):
            assert get_mode() == name


# ---------------------------------------------------------------- a base for the code below a directory

SOURCE = """
import dataclasses, torch, dtypeguard
from jaxtyping import Float32, Float64
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


@pytest.mark.parametrize("base", ["strict", "warn", "off"])
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


def test_a_directory_in_site_packages_may_be_the_one(tmp_path):
    package = tmp_path / "site-packages" / "mine"
    module = written_at(package / "mine.py")
    set_mode("strict", under=package)
    assert outcome(module.enforced) == "strict"
    set_mode("strict", under=tmp_path)
    assert outcome(module.enforced) == "lenient"


@pytest.mark.parametrize(("file", "under"), [("real", "link"), ("link", "real")])
def test_links_are_followed(tmp_path, file, under):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    module = written_at(tmp_path / file / "mine.py")
    set_mode("strict", under=str(tmp_path / under))
    assert outcome(module.enforced) == "strict"


def test_a_directory_may_be_relative_and_is_the_one_of_the_call(tmp_path, monkeypatch):
    module = written_at(tmp_path / "src" / "mine.py")
    monkeypatch.chdir(tmp_path)
    set_mode("strict", under="src")
    monkeypatch.chdir("/")
    assert outcome(module.enforced) == "strict"


def test_code_without_a_file_is_below_no_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = {}
    exec(compile(SOURCE, "<typed in>", "exec"), namespace)
    set_mode("strict", under=tmp_path)
    assert {outcome(way) for way in namespace["WAYS"].values()} == {"lenient"}


def test_code_that_was_moved_after_it_was_compiled_is_where_it_is_now(tmp_path):
    namespace = {"__file__": str(tmp_path / "mine.py")}
    exec(compile(SOURCE, "/somewhere/else/mine.py", "exec"), namespace)
    set_mode("strict", under=tmp_path)
    assert {outcome(way) for way in namespace["WAYS"].values()} == {"strict"}


@pytest.mark.parametrize("base", ["strict", "off"])
def test_what_is_said_closer_counts_before_a_base_for_elsewhere(tmp_path, base):
    set_mode(base, under=tmp_path)
    assert outcome(enforce(mode="warn")(f.__wrapped__)) == "warn"
    with mode("strict"):
        assert outcome() == "strict"
    assert outcome() == "lenient"


def test_off_for_a_directory_is_a_switch_there(tmp_path):
    module = written_at(tmp_path / "mine.py")
    set_mode("off", under=tmp_path)
    with mode("strict"):
        assert outcome(module.enforced) == "off"
        assert outcome() == "strict"


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
    model = copied(dtypeguard.guard(Net()))
    set_mode("strict", under=Path(__file__).parent)
    assert outcome(model) == "strict"
    assert type(model) is type(dtypeguard.guard(Net()))


def test_a_guarded_model_that_was_pickled_before_this_was_known(tmp_path):
    model = dtypeguard.guard(Net())
    del model._dtypeguard.file
    model = pickle.loads(pickle.dumps(model))
    assert outcome(model) == "lenient"
    set_mode("strict", under=Path(__file__).parent)
    assert outcome(model) == "lenient"
    set_mode("strict")
    assert outcome(model) == "strict"


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


def test_a_repair_that_is_a_habit_ends_when_its_directory_becomes_strict():
    def call():
        return f(WRONG)

    with pytest.warns(CastWarning):
        call()
    for _ in range(3):
        assert call().dtype is torch.float32
    set_mode("strict", under=Path(__file__).parent)
    with pytest.raises(DtypeError):
        call()
    set_mode("strict", under=Path(__file__).parent / "typing")
    assert call().dtype is torch.float32


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

CASTINGS = ["safe", "precision", "promote", "unsafe"]
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


def test_a_base_casting_counts_in_lenient_mode_whoever_chose_that():
    set_mode("strict", casting="promote")
    with pytest.raises(DtypeError):
        f(FORBIDDEN)
    with mode("lenient"), pytest.warns(CastWarning):
        f(FORBIDDEN)
    set_mode("strict")
    with mode("lenient"), pytest.raises(CastError):
        f(FORBIDDEN)


def test_a_base_casting_for_a_directory(tmp_path):
    theirs = written_at(tmp_path / "theirs.py")
    set_mode(None, casting="unsafe", under=tmp_path)
    assert cast_by(theirs.enforced) == "unsafe"
    assert cast_by(f) == "precision"


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


def test_a_base_casting_that_is_none():
    with pytest.raises(ValueError, match="casting='sage' is not a casting: use one of 'safe', 'precision'"):
        set_mode("lenient", casting="sage")


# ---------------------------------------------------------------- before the first import


TOLD = [
    (None, {}, (None, None, None)),
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
    monkeypatch.setitem(sys.modules, "dtypeguard_pytest", types.SimpleNamespace(told=told))
    base = _config.initial()
    assert (base.mode, base.casting) == expected[:2]
    assert base.under == (None if expected[2] is None else str((tmp_path / expected[2]).resolve()))


@pytest.mark.parametrize("plugin", [None, types.ModuleType("dtypeguard_pytest")])
def test_nobody_needs_to_say_anything(plugin, monkeypatch):
    monkeypatch.delenv("DTYPEGUARD_MODE", raising=False)
    monkeypatch.setitem(sys.modules, "dtypeguard_pytest", plugin)
    assert _config.initial() == (None, None, None)


def test_an_environment_that_names_no_mode(monkeypatch):
    monkeypatch.setenv("DTYPEGUARD_MODE", "loud")
    text = "the environment variable DTYPEGUARD_MODE='loud' is not a mode: use one of 'strict', 'lenient'"
    with pytest.raises(ValueError, match=text):
        _config.initial()
