"""What `enforce` decorates, which annotations it reads, and what it leaves as it was."""

# ruff: noqa: UP007, UP045  (the older spellings are annotations too)

import asyncio
import contextlib
import copy
import dataclasses
import functools
import importlib
import inspect
import operator
import pickle
import random
import sys
import typing
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple, NewType, Optional, ParamSpec, TypeVar, Union

import postponed
import pytest
import torch
import typing_extensions
from beartype.vale import Is
from jaxtyping import BFloat16, Float, Float16, Float32, Float64, Int64
from torch import Tensor, nn
from torch.utils._pytree import tree_map
from typing_extensions import TypeAliasType, TypedDict, Unpack

import dtypeguard
from dtypeguard import (
    AnnotationError,
    CastError,
    CastWarning,
    DtypeError,
    DtypeGuardError,
    HintError,
    ShapeError,
    enforce,
)
from dtypeguard._core.doors.enforce import contract_behind

pytestmark = pytest.mark.filterwarnings("ignore:enforce reads annotations:dtypeguard.DtypeGuardWarning")
Row = Float32[Tensor, "n"]


def f32(n=3):
    return torch.arange(n, dtype=torch.float32)


def f64(n=3):
    return torch.arange(n, dtype=torch.float64)


# ---------------------------------------------------------------- one table of forms
#
# Each form is made by `make(decorate, seen)`: a callable of (x, y) whose body appends what it got to `seen`
# and returns x + y, through whatever this form needs to be run.


def bodies(seen):
    """A function of two rows, a method and a static method, that note what they get."""

    def function(x: Row, y: Row) -> Row:
        seen.extend((x, y))
        return x + y

    class Holder:
        def method(self, x: Row, y: Row) -> Row:
            return function(x, y)

        def static(x: Row, y: Row) -> Row:  # noqa: N805
            return function(x, y)

    return function, Holder.method, Holder.static


def made(base=object, **members):
    return type(base)("Made", (base,), members)


def data(base=object, names="xy", **options):
    return dataclass(**options)(made(base, __annotations__=dict.fromkeys(names, Row)))


def fields(cls, function):
    def call(x, y):
        pair = cls(x, y)
        return function(pair.x, pair.y)

    return call


def make_positional_only(decorate, seen):
    @decorate
    def f(x: Row, y: Row, /) -> Row:
        seen.extend((x, y))
        return x + y

    return f


def make_keyword_only(decorate, seen):
    @decorate
    def f(*, x: Row, y: Row) -> Row:
        seen.extend((x, y))
        return x + y

    return lambda x, y: f(y=y, x=x)


def make_all_kinds(decorate, seen):
    @decorate
    def f(x: Row, /, n: int, *rest: Row, y: Row, flag: bool = True, **more: Row) -> Row:
        seen.extend((x, y))
        return x + y

    return lambda x, y: f(x, 1, f32(len(x)), y=y, z=f32(len(x)))


def make_string_annotations(decorate, seen):
    Local = Row

    @decorate
    def f(x: "Local", y: 'Float32[Tensor, "n"]') -> "Local":
        seen.extend((x, y))
        return x + y

    return f


def make_setter(decorate, seen):
    def put(self, pair: tuple[Row, Row]) -> None:
        seen.extend(pair)
        self.sum = pair[0] + pair[1]

    def call(x, y):
        holder = made(value=decorate(property(None, put)))()
        holder.value = (x, y)
        return holder.sum

    return call


def make_coroutine(decorate, seen):
    @decorate
    async def f(x: Row, y: Row) -> Row:
        await asyncio.sleep(0)
        seen.extend((x, y))
        return x + y

    return lambda x, y: asyncio.run(f(x, y))


def make_generator(decorate, seen):
    @decorate
    def f(x: Row, y: Row) -> Iterator[Row]:
        seen.extend((x, y))
        yield x + y

    return lambda x, y: next(iter(list(f(x, y))))


def make_async_generator(decorate, seen):
    @decorate
    async def f(x: Row, y: Row) -> AsyncIterator[Row]:
        await asyncio.sleep(0)
        seen.extend((x, y))
        yield x + y

    async def first(x, y):
        items = [item async for item in f(x, y)]
        return items[0]

    return lambda x, y: asyncio.run(first(x, y))


def make_context_manager(decorate, seen):
    @contextlib.contextmanager
    @decorate
    def f(x: Row, y: Row) -> Iterator[Row]:
        seen.extend((x, y))
        yield x + y

    def call(x, y):
        with f(x, y) as total:
            return total

    return call


def make_dataclass_with_init_var(decorate, seen):
    @decorate
    @dataclass
    class Pair:
        x: Row
        y: dataclasses.InitVar[Row]

        def __post_init__(self, y):
            seen.extend((self.x, y))
            self.sum = self.x + y

    return lambda x, y: Pair(x, y).sum


def make_autograd_setup_context(decorate, seen):
    class Sum(torch.autograd.Function):
        @decorate
        @staticmethod
        def forward(x: Row, y: Row) -> Row:
            seen.extend((x, y))
            return x + y

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

    return Sum.apply


# What is called, of the decorator, the bodies above and a place for what they got.
FORMS = {
    "function": lambda d, f, m, s: d(f),
    "method": lambda d, f, m, s: made(call=d(m))().call,
    "bound method": lambda d, f, m, s: d(made(call=m)().call),
    "__call__": lambda d, f, m, s: made(__call__=d(m))(),
    "staticmethod outside": lambda d, f, m, s: made(call=staticmethod(d(s))).call,
    "staticmethod inside": lambda d, f, m, s: made(call=d(staticmethod(s)))().call,
    "classmethod outside": lambda d, f, m, s: made(made(call=classmethod(d(m)))).call,
    "classmethod inside": lambda d, f, m, s: made(made(call=d(classmethod(m))))().call,
    "forward": lambda d, f, m, s: made(nn.Module, forward=d(m))(),
    "module class": lambda d, f, m, s: d(made(nn.Module, forward=m))(),
    "subclass of a module": lambda d, f, m, s: d(made(made(nn.Module, forward=m)))(),
    "dataclass": lambda d, f, m, s: fields(d(data()), f),
    "frozen dataclass with slots": lambda d, f, m, s: fields(d(data(frozen=True, slots=True)), f),
    "dataclass subclass": lambda d, f, m, s: fields(d(data(data(names="x"), "y")), f),
    "subclass of an enforced dataclass": lambda d, f, m, s: fields(made(d(data())), f),
    "NamedTuple": lambda d, f, m, s: fields(d(NamedTuple("Pair", [("x", Row), ("y", Row)])), f),
    "autograd.Function.forward": lambda d, f, m, s: made(torch.autograd.Function, forward=staticmethod(d(m))).apply,
    "under no_grad": lambda d, f, m, s: torch.no_grad()(d(f)),
    "over no_grad": lambda d, f, m, s: d(torch.no_grad()(f)),
    "over lru_cache": lambda d, f, m, s: d(functools.lru_cache(f)),
}
LONGER = {
    "positional-only": make_positional_only,
    "keyword-only": make_keyword_only,
    "all kinds of parameters": make_all_kinds,
    "string annotations": make_string_annotations,
    "property setter": make_setter,
    "coroutine": make_coroutine,
    "generator": make_generator,
    "async generator": make_async_generator,
    "context manager": make_context_manager,
    "dataclass with InitVar": make_dataclass_with_init_var,
    "autograd.Function with setup_context": make_autograd_setup_context,
}


def form(name, decorate, seen):
    return LONGER[name](decorate, seen) if name in LONGER else FORMS[name](decorate, *bodies(seen))


# To a custom Function autograd hands views of its arguments.


@pytest.mark.parametrize("decorate", [enforce, enforce(mode=None, casting="precision", verify="always")])
@pytest.mark.parametrize("name", [*FORMS, *LONGER])
def test_every_form_is_held_to_its_annotations(name, decorate):
    seen = []
    call = form(name, decorate, seen)
    x, y = f32(), f32()
    assert torch.equal(call(x, y), x + y)
    if not name.startswith("autograd"):  # which hands views of its arguments to a custom Function
        assert seen[0] is x
        assert seen[1] is y
    assert len(call(f32(5), f32(5))) == 5
    seen.clear()
    with pytest.raises(ShapeError, match="n=4"):
        call(f32(3), f32(4))
    with dtypeguard.mode("strict"), pytest.raises(DtypeError, match="float64") as caught:
        call(f32(), f64())
    assert caught.value.argument.startswith(("y", "pair"))
    assert (caught.value.actual, caught.value.expected) == (torch.float64, torch.float32)
    assert not seen, "the body has not run"
    x, y = f64(), f64()
    with pytest.warns(CastWarning):
        total = call(x, y)
    assert [item.dtype for item in (*seen, total)] == [torch.float32] * 3
    assert x.dtype is y.dtype is torch.float64
    assert torch.equal(total, (x + y).float())
    with dtypeguard.mode("off"):
        assert call(f64(), f64()).dtype is torch.float64


POSTPONED = {
    "forward reference": postponed.forward_reference,
    "method": postponed.Plain().method,
    "module class": postponed.Net(),
    "dataclass": lambda x, y: postponed.Data(x, y).x,
    "dataclass with InitVar": lambda x, y: postponed.Init(x, y).total,
    "NamedTuple": lambda x, y: postponed.Named(x, y).x,
    **postponed.local(),
}


@pytest.mark.parametrize("call", POSTPONED.values(), ids=POSTPONED.keys())
def test_postponed_annotations_mean_what_they_say(call):
    """Names of the module, of the enclosing function and of the class, and names that exist only at the first call."""
    assert call(f32(), f32()).dtype is torch.float32
    with pytest.raises(ShapeError):
        call(f32(3), f32(4))
    with pytest.warns(CastWarning):
        assert call(f64(), f64()).dtype is torch.float32
    with dtypeguard.mode("strict"), pytest.raises(DtypeError):
        call(f32(), f64())


def test_an_inherited_field_is_read_in_the_module_that_wrote_it():
    """`Row` is a name of the parent's module, and here it would be something else or nothing."""
    namespace = {"postponed": postponed, "dataclass": dataclass, "enforce": enforce, "Tensor": Tensor}
    exec("@enforce\n@dataclass\nclass Child(postponed.Base):\n    z: int = 0\n", namespace)
    child = namespace["Child"]
    assert child(f32(), z=1).z == 1
    with dtypeguard.mode("strict"), pytest.raises(DtypeError):
        child(f64())


LOCAL = """
from __future__ import annotations
from dtypeguard import enforce
from jaxtyping import Float32
from torch import Tensor

def outer():
    Row = Float32[Tensor, "n"]

    class Inner:
        @enforce(mode="strict")
        def f(self, x: Row) -> Row: return x

    return Inner().f
"""


def test_names_local_to_a_function_are_found_in_code_without_a_file():
    names = {}
    exec(LOCAL, names)
    assert len(names["outer"]()(f32())) == 3
    with pytest.raises(DtypeError):
        names["outer"]()(f64())


def test_a_class_inside_a_function_may_name_itself(strict):
    class Node:
        @enforce
        def meet(self, other: "Node", x: Row) -> "Node | None":
            return other

        @staticmethod
        @enforce
        def of(other: "Node"): ...

        @enforce
        def later(self, other: "Later"): ...

    assert isinstance(Node().meet(Node(), f32()), Node)
    with pytest.raises(HintError, match="wants Node"):
        Node().meet(3, f32())
    with pytest.raises(dtypeguard.AnnotationError, match="write Self, or move Node out"):
        Node.of(3)
    with pytest.raises(dtypeguard.AnnotationError, match=r"'Later'.*define it above"):
        Node().later(3)


def test_a_dataclass_inside_a_function_may_hold_its_own_kind(strict):
    @enforce
    @dataclass
    class Node:
        value: Row
        next: "Node | None" = None

    node = Node(f32(), Node(f32()))
    with pytest.raises(DtypeError, match="`value` is float64"):
        Node(f64())
    node.next.value = f64()
    with pytest.raises(DtypeError, match=r"`next\.value` is float64"):
        Node(f32(), node.next)


def test_the_contract_behind_a_function():
    def bare(x: Row, y=None) -> Row:
        return x

    namespace = {"enforce": enforce}
    exec("@enforce\ndef later(x: 'Later') -> 'Later':\n    return x\n", namespace)
    later = namespace["later"]
    with pytest.raises(dtypeguard.AnnotationError, match="Later"):
        contract_behind(later)
    namespace["Later"] = Row
    for function, named in ((bare, "bare"), (enforce(bare), "bare"), (later, "later")):
        contract = contract_behind(function)
        assert contract.function.endswith(named)
        assert contract.params[0].spec.hint == 'Float32[Tensor, "n"]'
        assert contract.returns is None or function is not bare
    assert later(f32(2)).shape == (2,)


def test_type_parameters_of_a_function_are_names_in_its_strings(strict):
    """What `def f[T: Row](x: "T")` makes on Python 3.12."""

    def f(x: "T", y: "list[T]") -> "T":
        return x

    f.__type_params__ = (TypeVar("T", bound=Row),)
    f = enforce(f)
    assert f(f32(), [f32()]).dtype is torch.float32
    with pytest.raises(DtypeError) as caught:
        f(f32(), [f64()])
    assert caught.value.argument == "y[0]"
    assert f.__type_params__[0].__name__ == "T"


def test_what_is_marked_no_type_check_is_not_checked(strict):
    @enforce
    @typing.no_type_check
    def f(x: Row, y: "no type at all"):
        return x

    @typing.no_type_check
    @dataclass
    class Data:
        x: Row

    @enforce
    def g(x: Data):
        return x

    assert f(3, 4) == 3
    assert g(Data(f64())).x.dtype is torch.float64


class Keywords(TypedDict):
    x: Row
    n: typing_extensions.NotRequired[int]


@pytest.mark.parametrize("hint", [Unpack[tuple[Row, int]], "*tuple[Row, int]", "Unpack[tuple[Row, int]]"], ids=str)
def test_unpacked_arguments_are_checked_one_by_one(hint):
    def f(*args):
        return args

    f.__annotations__ = {"args": hint}
    f = enforce(f)
    right = f32()
    assert f(right, 3)[0] is right
    with pytest.warns(CastWarning):
        assert f(f64(), 3)[0].dtype is torch.float32
    for arguments, argument in [((f32(), "x"), "args[1]"), ((3, 3), "args[0]"), ((f32(),), "args"), ((), "args")]:
        with pytest.raises(HintError) as caught:
            f(*arguments)
        assert caught.value.argument == argument


def test_unpacked_keywords_are_checked():
    @enforce
    def f(**kwargs: Unpack[Keywords]):
        return kwargs["x"].dtype

    assert f(x=f32(), n=3) is torch.float32
    with pytest.warns(CastWarning):
        assert f(x=f64()) is torch.float32
    with pytest.raises(HintError, match="has no 'x'"):
        f(n=3)


def test_self_is_the_class_of_the_method(strict):
    class Base:
        @enforce
        def give(self, x: Row, value: Any) -> typing.Self:
            return value

        @classmethod
        @enforce
        def make(cls, value: Any) -> tuple[Row, typing.Self] | None:
            return value

    class Heir(Base):
        pass

    class Stranger:
        pass

    own = Heir()
    for value in (own, Heir(), Base()):  # a base made of an heir: guards and parametrizations replace classes too
        assert own.give(f32(), value) is value
        assert Heir.make((f32(), value))[1] is value
    assert Heir.make(None) is None
    for value in (Stranger(), Heir, None):
        with pytest.raises(HintError, match="Self"):
            own.give(f32(), value)
        with pytest.raises(HintError):
            Heir.make((f32(), value))


@pytest.mark.parametrize("hint", [typing.Never, typing.NoReturn], ids=str)
def test_what_never_returns_does_not(hint):
    def f(x):
        if x:
            raise KeyError

    f.__annotations__ = {"return": hint}
    with pytest.raises(KeyError):
        enforce(f)(True)
    with pytest.raises(HintError, match=f"the result is None|wants {hint._name}"):
        enforce(f)(False)


RETURNED = {  # what a result is told to be; an argument is passed
    "a tensor": (Float32[Tensor, "n"], None, "return a Tensor", "pass a Tensor"),
    "a number": (int, "1", "return an int", "pass an int"),
    "a list": (list[Float32[Tensor, "n"]], None, "return a value of list", "pass a value of list"),
}


@pytest.mark.parametrize("case", RETURNED)
def test_a_wrong_result_is_to_be_returned_and_a_wrong_argument_passed(case):
    hint, value, returned, passed = RETURNED[case]

    def f(x, given=None): return given  # fmt: skip

    f.__annotations__ = {"return": hint, "x": Float32[Tensor, "n"]}
    with pytest.raises(HintError) as caught:
        enforce(f)(f32(), value)
    assert f"  fix        {returned}" in str(caught.value)
    f.__annotations__ = {"given": hint, "x": Float32[Tensor, "n"]}
    with pytest.raises(HintError) as caught:
        enforce(f)(f32(), {} if case == "a tensor" else value or 1.5)
    assert f"  fix        {passed}" in str(caught.value)


CIRCLES = {  # the files of two modules that import each other; the second one is imported first
    "modules": ({"circle_a.py": "import circle_b", "circle_b.py": "import circle_a"}, "circle_b", "circle_b.Row"),
    "modules by other names": (
        {"circle_a.py": "import circle_b as b", "circle_b.py": "import circle_a"}, "circle_b", "b.Row",
    ),
    "a package and its part": (
        {"circle_b/__init__.py": "from . import part", "circle_b/part.py": "import circle_a",
         "circle_a.py": "import circle_b.part"}, "circle_b.part", "circle_b.part.Row",
    ),
}  # fmt: skip


@pytest.mark.parametrize("hint", ["{}", "list[{}] | None", "{}.Inner"])
@pytest.mark.parametrize("circle", CIRCLES)
def test_a_name_in_a_module_that_is_being_imported_is_resolved_once_it_exists(circle, hint, tmp_path, monkeypatch):
    files, last, name = CIRCLES[circle]
    user = "import dtypeguard\nfrom jaxtyping import Float32\nfrom torch import Tensor\n@dtypeguard.enforce\n"
    user += f"def f(row: {hint.format(name)!r}, x: Float32[Tensor, 'n']): return x.dtype\n"
    row = "class Row:\n class Inner: pass\n"
    for file, text in files.items():
        path = tmp_path / file
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"{text}\n" + (user if file == "circle_a.py" else row if "import circle_a" in text else ""))
    monkeypatch.syspath_prepend(tmp_path)
    try:
        made = importlib.import_module(last).Row
        value = {"{}": made, "{}.Inner": made.Inner}.get(hint, list)()
        f = sys.modules["circle_a"].f
        with pytest.warns(CastWarning):
            assert f(value, f64()) is torch.float32
        with pytest.raises(HintError, match=r"argument `row` is an int, the annotation wants .*(Row|Inner)"):
            f(1, f32())
    finally:
        for module in [name for name in sys.modules if name.startswith("circle_")]:
            del sys.modules[module]


def test_a_name_that_a_whole_module_does_not_have_is_found_at_decoration():
    def f(x: "torch.Tensr"): ...

    with pytest.raises(AnnotationError, match="has no attribute 'Tensr'"):
        enforce(f)


@pytest.mark.parametrize("known", [[], ["x"]], ids=["nothing known", "an argument known"])
def test_a_forward_reference_in_a_generator_is_resolved_once_it_exists(known, strict):
    def f(x, y) -> "Iterator[LaterRow]":
        yield x
        return y

    nest = TypeAliasType("nest", Union[Row, "list[nest]"])
    f.__annotations__ = {"x": nest if known else "LaterRow", "y": "LaterRow", "return": "Iterator[LaterRow]"}
    made = enforce(f)
    f.__globals__["LaterRow"] = Row
    try:
        assert next(made(f32(), f32())).dtype is torch.float32
        for arguments in [(f64(), f32()), (f32(), f64())]:
            with pytest.raises(DtypeError):
                next(made(*arguments))
    finally:
        del f.__globals__["LaterRow"]


# ---------------------------------------------------------------- results


def test_a_result_is_checked_like_an_argument():
    def f(x: Row, result) -> Row:
        return result

    def none(x: Row) -> None:
        return x

    assert len(enforce(f)(f32(), f32())) == 3
    with pytest.raises(ShapeError, match="the result"):
        enforce(f)(f32(), f32(4))
    with pytest.raises(HintError, match="the result"):
        enforce(none)(f32())
    assert enforce(f, mode="strict", returns=False)(f32(), f64()).dtype is torch.float64
    for x in (f32(), f64()):
        with pytest.warns(CastWarning):
            assert enforce(f)(x, f64()).dtype is torch.float32


def test_a_property_checks_what_it_gives_and_takes():
    class Holder:
        @enforce
        @property
        def value(self) -> Row:
            """The doc."""
            return self._value

        @enforce
        @value.setter
        def value(self, value: Row):
            self._value = value

        @value.deleter
        def value(self):
            del self._value

    holder, right = Holder(), f32()
    assert Holder.value.__doc__ == "The doc."
    holder.value = right
    assert holder.value is right
    with pytest.warns(CastWarning):
        holder.value = f64()
    assert holder.value.dtype is torch.float32
    holder._value = f64()
    with dtypeguard.mode("strict"), pytest.raises(DtypeError, match="the result"):
        _ = holder.value
    del holder.value
    with pytest.raises(AttributeError):
        _ = holder.value


# ---------------------------------------------------------------- generators


@enforce
def echo(x: Row) -> Generator[Row, str, Row]:
    """Gives x, then whatever it is sent as axes of one; returns x."""
    said = []
    while True:
        try:
            word = yield x
        except KeyError as error:
            said.append(f"caught {error}")
            continue
        if word == "stop":
            x.said = said
            return x
        said.append(word)


@pytest.mark.parametrize("wrong", [None, "yielded", "returned"])
def test_what_a_generator_yields_and_returns(wrong, strict):
    @enforce
    def stream(x: Row, last) -> Generator[Row, Float32[Tensor, "n n"], Int64[Tensor, ""]]:
        sent = yield x
        yield sent
        return last

    values = stream(f32(2), f32(2) if wrong == "returned" else torch.tensor(1))
    assert next(values).shape == (2,)
    if wrong == "yielded":
        with pytest.raises(ShapeError, match="n=3"):
            values.send(f32(3))
        return
    assert values.send(f32(2)).shape == (2,)  # what is sent is not checked
    with pytest.raises(DtypeError, match="result") if wrong else pytest.raises(StopIteration, match="1"):
        next(values)


def test_a_generator_of_two_arguments_says_nothing_of_its_result():
    @enforce(mode="strict")
    def stream(x: Row) -> AsyncGenerator[Row, Float32[Tensor, "n n"]]:
        yield x
        return 3

    values = stream(f32(2))
    next(values)
    with pytest.raises(StopIteration, match="3"):
        next(values)


def test_a_generator_gets_what_is_sent_and_thrown_and_returns_its_value():
    x = f32()
    stream = echo(x)
    assert inspect.isgeneratorfunction(echo)
    assert next(stream) is x
    assert stream.send("a") is x
    assert stream.throw(KeyError("b")) is x
    assert next(stream) is x
    with pytest.raises(StopIteration) as stop:
        stream.send("stop")
    assert stop.value.value is x
    assert x.said == ["a", "caught 'b'", None]


def test_an_exception_thrown_into_a_generator_comes_out_as_itself():
    stream, error = echo(f32()), ValueError("mine")
    next(stream)
    with pytest.raises(ValueError, match="mine") as caught:
        stream.throw(error)
    assert caught.value is error
    assert error.__context__ is None
    with pytest.raises(StopIteration):
        next(stream)


def test_a_generator_that_runs_on_after_close_is_an_error_as_in_python():
    @enforce
    def f(x: Row) -> Iterator[Row]:
        with contextlib.suppress(GeneratorExit):
            yield x
        yield x

    stream = f(f32())
    next(stream)
    with pytest.raises(RuntimeError, match="generator ignored GeneratorExit"):
        stream.close()


def test_every_item_of_a_generator_is_repaired_in_lenient():
    @enforce
    def f(x: Row) -> Iterator[Row]:
        for _ in range(3):
            yield x.double()

    with pytest.warns(CastWarning):
        assert [item.dtype for item in f(f32())] == [torch.float32] * 3


def test_a_generator_whose_item_was_refused_is_closed(strict):
    """And its body cannot swallow the error: `except Exception` around a yield is about the consumer's errors."""
    closed = []

    @enforce
    def f(x: Row) -> Iterator[Row]:
        try:
            for _ in range(2):
                with contextlib.suppress(Exception):
                    yield x.double()
        finally:
            closed.append(True)

    stream = f(f32())
    with pytest.raises(DtypeError):
        next(stream)
    assert closed == [True]
    with pytest.raises(StopIteration):
        next(stream)


def test_an_async_generator_gets_what_is_sent_and_thrown_and_closed():
    said = []

    @enforce
    async def f(x: Row) -> AsyncIterator[Row]:
        try:
            while True:
                try:
                    said.append((yield x))
                except KeyError as error:
                    said.append(f"caught {error}")
        finally:
            await asyncio.sleep(0)
            said.append("closed")

    async def run():
        x = f32()
        stream = f(x)
        assert await anext(stream) is x
        assert await stream.asend("a") is x
        assert await stream.athrow(KeyError("b")) is x
        await stream.aclose()
        with pytest.raises(StopAsyncIteration):
            await anext(stream)

    assert inspect.isasyncgenfunction(f)
    asyncio.run(run())
    assert said == ["a", "caught 'b'", "closed"]


def test_an_exception_thrown_into_an_async_generator_comes_out_as_itself():
    @enforce
    async def f(x: Row) -> AsyncIterator[Row]:
        yield x

    async def run():
        stream, error = f(f32()), ValueError("mine")
        await anext(stream)
        with pytest.raises(ValueError, match="mine") as caught:
            await stream.athrow(error)
        assert caught.value is error
        assert error.__context__ is None

    asyncio.run(run())


def test_every_item_of_an_async_generator_is_checked_and_the_body_closed(strict):
    closed = []

    @enforce
    async def f(x: Row) -> AsyncIterator[Row]:
        try:
            yield x
            with contextlib.suppress(Exception):
                yield x.double()
            yield x
        finally:
            closed.append(True)

    async def run():
        stream = f(f32())
        await anext(stream)
        with pytest.raises(DtypeError, match="float64"):
            await anext(stream)

    asyncio.run(run())
    assert closed == [True]


def test_a_coroutines_result_is_checked(strict):
    @enforce
    async def f(x: Row) -> Row:
        return x.double()

    with pytest.raises(DtypeError, match="the result"):
        asyncio.run(f(f32()))


# ---------------------------------------------------------------- autograd.Function and custom operators


@pytest.fixture
def library():
    """A namespace of operators that is gone after the test."""
    name = "dtypeguard_forms"
    yield name
    for key in [key for key in torch._library.custom_ops.OPDEFS if key.startswith(f"{name}::")]:
        torch._library.custom_ops.OPDEFS[key]._lib._destroy()


def test_enforce_over_a_custom_operator(library, strict):
    @enforce
    @torch.library.custom_op(f"{library}::add", mutates_args=(), schema="(Tensor x, Tensor y) -> Tensor")
    def add(x: Row, y: Row) -> Row:
        return x + y

    assert torch.equal(add(f32(), f32()), 2 * f32())
    with pytest.raises(DtypeError, match="`y`"):
        add(f32(), f64())
    dtypeguard.set_mode("lenient")
    with pytest.warns(CastWarning):
        assert add(f64(), f64()).dtype is torch.float32


def test_what_the_schema_of_an_operator_writes_to_is_checked_and_never_cast(library):
    @enforce
    @torch.library.custom_op(f"{library}::bump", mutates_args=("x",), schema="(Tensor(a!) x, Tensor y) -> ()")
    def bump(x: Row, y: Row) -> None:
        x.add_(y)

    x = f32()
    with pytest.warns(CastWarning, match="`y`"):
        bump(x, f64())
    assert torch.equal(x, 2 * f32())
    wrong = f64()
    with pytest.raises(CastError, match="`x` is float64"):
        bump(wrong, f32())
    assert torch.equal(wrong, f64())


def test_an_enforced_operator_still_registers_its_fake_and_its_gradient(library):
    @enforce
    @torch.library.custom_op(f"{library}::half", mutates_args=(), schema="(Tensor x) -> Tensor")
    def half(x: Row) -> Row:
        return x / 2

    @half.register_fake
    def _(x):
        return torch.empty_like(x)

    half.register_autograd(lambda ctx, grad: grad / 2)
    x = f32().requires_grad_()
    half(x).sum().backward()
    assert torch.equal(x.grad, torch.full((3,), 0.5))
    with torch._subclasses.FakeTensorMode() as fake:
        assert half(fake.from_tensor(f32())).shape == (3,)


# ---------------------------------------------------------------- modules


class Affine(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    @enforce
    def forward(self, x: Float[Tensor, "n"]) -> Float[Tensor, "n"]:
        return x * self.weight

    @enforce
    def encode(self, x: Float[Tensor, "n"]) -> Float[Tensor, "n"]:
        return x * self.weight

    @enforce
    def scale(model, x: Float[Tensor, "n"]):  # noqa: N805
        return x * model.weight


@pytest.mark.parametrize("name", ["forward", "encode", "scale"])
def test_every_method_of_a_module_follows_its_parameters(name):
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        net = Affine().to(dtype)
        assert getattr(net, name)(torch.ones(3, dtype=dtype)).dtype is dtype
        other = torch.float64 if dtype is torch.float32 else torch.float32
        with pytest.warns(CastWarning):
            assert getattr(net, name)(torch.ones(3, dtype=other)).dtype is dtype


def test_an_enforced_method_may_use_super_and_name_its_own_class(strict):
    """Both are cells that are still empty while the class body runs."""

    class Parent(nn.Module):
        def forward(self, x):
            return x

    class Child(Parent):
        @enforce
        def forward(self, x: Row) -> Row:
            assert isinstance(self, Child)
            return super().forward(x)

    assert Child()(f32()).dtype is torch.float32
    with pytest.raises(DtypeError):
        Child()(f64())


def test_a_plain_function_has_no_anchor_even_if_it_takes_a_module(strict):
    @enforce
    def run(model: nn.Module, x: Float[Tensor, "n"]) -> Float[Tensor, "n"]:
        return x

    assert run(Affine(), f64()).dtype is torch.float64


FOLLOWS = {
    "function": False,
    "staticmethod outside": False,
    "staticmethod inside": False,
    "classmethod outside": False,
    "method": False,
    "dataclass": False,
    "autograd.Function.forward": False,
    "forward": True,
    "module class": True,
}


@pytest.mark.parametrize("name", FOLLOWS)
def test_only_methods_of_a_module_follow_autocast_unasked(name, strict):
    """A loss in a static method must not take half precision for float32 because the loop autocasts."""
    call, half = form(name, enforce, []), f32().bfloat16()
    refusal = contextlib.nullcontext() if FOLLOWS[name] else pytest.raises(DtypeError)
    with torch.autocast("cpu", dtype=torch.bfloat16), refusal:
        call(half, half)


# ---------------------------------------------------------------- dataclasses and NamedTuples


@enforce
@dataclass
class Sample:
    """A row with what belongs to it."""

    x: Row
    mask: Row | None = None
    weight: Row = field(default_factory=lambda: torch.ones(3))
    tags: list[str] = field(default_factory=list)
    total: Tensor = field(init=False)

    def __post_init__(self):
        self.total = self.x.sum()


def test_an_enforced_dataclass_stays_one(strict):
    a, b = Sample(f32()), Sample(f32(), tags=["a"])
    assert a.mask is None
    assert a.tags == []
    assert torch.equal(a.weight, torch.ones(3))
    assert torch.equal(a.total, f32().sum())
    assert Sample.__doc__ == "A row with what belongs to it."
    assert [f.name for f in dataclasses.fields(Sample)] == ["x", "mask", "weight", "tags", "total"]
    assert torch.equal(copy.deepcopy(b).x, f32())
    assert torch.equal(pickle.loads(pickle.dumps(b)).x, f32())
    assert dataclasses.asdict(b)["tags"] == ["a"]
    with pytest.raises(DtypeError, match="`x`"):
        Sample(f64())


def test_a_constructor_that_a_class_wrote_itself_counts_by_its_own_annotations(strict):
    @enforce
    @dataclass
    class Sums:
        x: Row
        y: Row
        n: int = 0

        def __init__(self, x: Float32[Tensor, "n 2"], y: Row, n):
            self.x, self.y, self.n = x.sum(1), y, n

    class Pair(NamedTuple):
        x: Row
        y: Row

    @enforce
    class Halves(Pair):
        def __new__(cls, x: Float64[Tensor, "n"], y: Row):
            return super().__new__(cls, x.float(), y)

    assert Sums(torch.zeros(3, 2), f32(), "any").x.shape == (3,)
    assert Halves(f64(), f32()).x.dtype is torch.float32
    for wrong in (
        lambda: Sums(f32(), f32(), 0), lambda: Sums(torch.zeros(3, 2), f64(), 0),
        lambda: Sums(torch.zeros(3, 2), f32(2), 0), lambda: Halves(f32(), f32()), lambda: Halves(f64(), f64()),
    ):  # fmt: skip
        with pytest.raises(DtypeGuardError):
            wrong()


@enforce
class Pair(NamedTuple):
    x: Row
    y: Row | None = None


def test_an_enforced_named_tuple_stays_one(strict):
    pair = Pair(f32())
    assert isinstance(pair, tuple)
    assert Pair._fields == ("x", "y")
    assert Pair._field_defaults == {"y": None}
    assert torch.equal(pickle.loads(pickle.dumps(pair)).x, f32())
    assert type(pair._replace(y=f32())) is Pair
    with pytest.raises(DtypeError, match="`y`"):
        Pair(f32(), f64())


# ---------------------------------------------------------------- annotations

Bound = TypeVar("Bound", bound=Float32[Tensor, "n"])
Constrained = TypeVar("Constrained", Float32[Tensor, "n"], Int64[Tensor, "n"])
Free = TypeVar("Free")
Named = NewType("Named", Float32[Tensor, "n"])
NestedNamed = NewType("NestedNamed", Named)
Alias = TypeAliasType("Alias", Float32[Tensor, "n"])
AliasOfAlias = TypeAliasType("AliasOfAlias", Union[Alias, None])
Generic = TypeAliasType("Generic", Union[Free, None], type_params=(Free,))
P = ParamSpec("P")

ROWS = {
    "plain": Float32[Tensor, "n"],
    "string": 'Float32[Tensor, "n"]',
    "string inside": Optional["Float32[Tensor, 'n']"],
    "Optional": Optional[Float32[Tensor, "n"]],
    "X | None": Float32[Tensor, "n"] | None,
    "Union of dtypes": Union[Float32[Tensor, "n"], Int64[Tensor, "n"]],
    "X | Y": Float32[Tensor, "n"] | Int64[Tensor, "n"],
    "Union of ranks": Union[Float32[Tensor, "n"], Float32[Tensor, "n n"]],
    "Union with a scalar": Union[Float32[Tensor, "n"], float],
    "bound TypeVar": Bound,
    "constrained TypeVar": Constrained,
    "type alias": Alias,
    "alias of an alias": AliasOfAlias,
    "generic alias": Generic[Float32[Tensor, "n"]],
    "Annotated": Annotated[Float32[Tensor, "n"], "the doc"],
    "Annotated Optional": Annotated[Optional[Float32[Tensor, "n"]], "the doc"],
    "NewType": Named,
    "NewType of NewType": NestedNamed,
    "Parameter or Tensor": Union[Float32[nn.Parameter, "n"], Float32[Tensor, "n"]],
}


def of(hint, **options):
    """A function of one argument, with this annotation on the argument and on the result."""

    def f(x):
        return x

    f.__annotations__ = {"x": hint, "return": hint}
    return enforce(**options)(f)


@pytest.mark.parametrize("name", ROWS)
def test_an_annotation_of_a_row_means_one(name):
    f, x = of(ROWS[name]), f32()
    assert f(x) is x
    if name in ("Union of dtypes", "X | Y", "constrained TypeVar"):
        assert f(ids := torch.arange(3)) is ids
    with pytest.warns(CastWarning):
        assert f(f64()).dtype is torch.float32
    with dtypeguard.mode("strict"), pytest.raises(DtypeError, match="float64") as caught:
        f(f64())
    assert caught.value.__context__ is caught.value.__cause__ is None
    for mode in ("strict", "lenient"):
        with dtypeguard.mode(mode), pytest.raises(ShapeError):
            f(torch.zeros(2, 3, 4))
        with dtypeguard.mode(mode), pytest.raises(HintError):
            f("a string")


def test_the_members_of_a_union_share_their_axes_with_the_other_arguments(strict):
    @enforce
    def f(x: Float32[Tensor, "n"] | Float32[Tensor, "m n"], y: Float32[Tensor, "n"]):
        return x

    f(torch.zeros(2, 3), f32(3))
    with pytest.raises(ShapeError):
        f(torch.zeros(2, 3), f32(2))


NARROW = tuple[Float32[Tensor, "n"], Float32[Tensor, "n"]]
WIDE = tuple[Float32[Tensor, "n"], Float64[Tensor, "n"]]
FORBIDDEN = tuple[Int64[Tensor, "n"], Float64[Tensor, "n"]]  # one cast, which is not allowed
UNIONS = {  # its members, what is given, the dtypes that come out
    "the fewest repairs": ([NARROW, WIDE], (f64(), f64()), (torch.float32, torch.float64)),
    "what can be repaired": ([NARROW, FORBIDDEN], (f64(), f64()), (torch.float32, torch.float32)),
    "what autocast computes in": ([Float16[Tensor, "n"], BFloat16[Tensor, "n"]], f32(), torch.bfloat16),
}


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("what", UNIONS)
def test_which_member_of_a_union_is_meant(what, order):
    members, given, dtypes = UNIONS[what]
    region = torch.autocast("cpu", dtype=torch.bfloat16, enabled="autocast" in what)
    with region, pytest.warns(CastWarning):
        got = of(Union[tuple(members[::order])])(given)
    assert tree_map(lambda x: x.dtype, got) == dtypes


@pytest.mark.parametrize("order", [1, -1])
def test_the_member_of_a_union_that_is_of_the_right_type_is_meant(order, strict):
    members = [list[Float32[Tensor, "m"]], Float32[Tensor, "m"]]  # three faults inside, or one that is a list
    with pytest.raises(ShapeError, match=r"`x\[0\]` has 2 axes"):
        of(Union[tuple(members[::order])])([torch.zeros(2, 2)] * 3)


def test_a_member_of_a_union_that_did_not_fit_is_not_where_an_axis_comes_from(strict):
    @enforce
    def f(
        x: tuple[Float32[Tensor, "n *s"], Float32[Tensor, "2"]] | tuple[Tensor, Tensor],
        y: Float32[Tensor, "n *s"],
        z: Float32[Tensor, "n *s"],
    ):
        return x

    for shape, text in ((6, 1), "n=6, but n=5 in `y`"), ((5, 2), r"\*s=\[2\], but \*s=\[1\] in `y`"):
        with pytest.raises(ShapeError, match=text):
            f((torch.zeros(4, 3), f32(3)), torch.zeros(5, 1), torch.zeros(shape))


def test_a_member_of_a_union_that_did_not_fit_repairs_nothing():
    @enforce
    def f(x: Float32[Tensor, "n"] | Float64[Tensor, "n"], y: Float32[Tensor, "n"]):
        return x, y

    right = f64()
    with pytest.warns(CastWarning, match="`y`"):
        x, y = f(right, f64())
    assert x is right
    assert y.dtype is torch.float32


def test_a_member_of_a_union_that_did_not_fit_binds_nothing(strict):
    """The first option would bind n=2 before it fails at its second axis."""

    @enforce
    def f(x: Float32[Tensor, "n 9"] | Float32[Tensor, "m 3"], y: Float32[Tensor, "n"]):
        return x

    f(torch.zeros(2, 3), f32(7))


POSITIVE = Is[lambda x: bool((x > 0).all() if isinstance(x, Tensor) else x > 0)]
POSITIVE_ROW = Annotated[Row, POSITIVE, "documented"]


@dataclass
class OwnKind:
    x: Row
    next: typing.Self | None = None


# a hint, a value that it takes, one that it does not, and if that is a repairable one, where
OTHERS = [
    (int, 3, "3"),
    (int, 3, 3.5),
    (float, 3, "3"),
    (float, 3.5, torch.tensor(3.5)),
    (bool, True, "yes"),
    (Literal["mean", "sum"], "sum", "max"),
    (list[float], [1], ["1"]),  # an integer is a float, and a float is complex
    (tuple[complex, ...], (1, 2.0), ("1",)),
    (int | None, None, "a"),
    (list[int], [1, 2], ["a"]),
    (tuple[int, int], (1, 2), (1, 2, 3)),
    (dict[str, int], {"a": 1}, {1: "a"}),
    (Callable[..., Any], len, 3),
    (nn.Module, nn.ReLU(), nn.ReLU),
    (type, nn.ReLU, 3),
    (torch.dtype, torch.float32, "float32"),
    (torch.device, torch.device("cpu"), "cpu"),
    (Tensor, torch.zeros(1, 2), [0.0]),
    (Tensor | None, None, 3),
    (Annotated[int, "doc"], 3, "3"),
    (NewType("Count", int), 3, "3"),
    (Annotated[int, POSITIVE], 1, -1),
    (Annotated[int, POSITIVE], 1, "a"),
    (POSITIVE_ROW, f32() + 1, -1 - f32()),
    (POSITIVE_ROW, f32() + 1, 3),
    (POSITIVE_ROW, f32() + 1, f64() + 1, "x"),
    (OwnKind, OwnKind(f32(), OwnKind(f32())), OwnKind(f32(), OwnKind(f64())), "x.next.x"),
    (torch.FloatTensor, torch.zeros(2, device="meta"), f64(), "x"),
    (torch.LongTensor, torch.arange(3), f64(), "x"),
    (torch.HalfTensor, f32().half(), f64(), "x"),
]


@pytest.mark.parametrize(("hint", "right", "wrong", "place"), [(*row, None)[:4] for row in OTHERS], ids=repr)
def test_other_annotations_hold_too(hint, right, wrong, place):
    assert of(hint)(right) is right
    for mode in ("strict",) if place else ("strict", "lenient"):
        with dtypeguard.mode(mode), pytest.raises(DtypeError if place else HintError) as caught:
            of(hint)(wrong)
        assert caught.value.argument.partition("[")[0] == (place or "x")
        assert len(caught.value.violations) == 1


ITEMS = [  # all of a list are wrong, as beartype looks at one, which it draws
    (list[int], [3.5, None], "x[0]", "int"),
    (tuple[str, ...], (1, 2), "x[0]", "str"),
    (dict[str, list[int]], {"b": [None, 2.5]}, "x['b'][0]", "int"),
]


@pytest.mark.parametrize(("hint", "value", "place", "wanted"), ITEMS, ids=repr)
def test_the_item_that_is_to_blame_is_named(hint, value, place, wanted, strict):
    with pytest.raises(HintError) as caught:
        of(hint)(value)
    assert caught.value.argument == place
    assert f"the annotation wants {wanted}" in str(caught.value)


SILENT = [Any, object, Free, "Any", Optional[Any], inspect.Parameter.empty, Free | None]


@pytest.mark.parametrize("hint", SILENT, ids=repr)
@pytest.mark.parametrize("value", [None, 3, f64(), [f64()], object()], ids=lambda v: type(v).__name__)
def test_annotations_that_say_nothing_let_everything_pass(hint, value, strict):
    assert of(hint)(value) is value


def test_a_default_of_none_makes_an_annotation_optional(strict):
    @enforce
    def f(x: Row = None, n: int = None, *, y: Row = None):  # noqa: RUF013
        return x, n, y

    assert f() == f(None, None, y=None) == (None, None, None)
    assert f(f32(), y=f32())[2] is not None
    for wrong in (lambda: f(f64()), lambda: f(y=f64())):
        with pytest.raises(DtypeError):
            wrong()
    with pytest.raises(HintError, match="`x` is None"):
        of(Row)(None)


@enforce
def variadic(*xs: Float32[Tensor, "n ..."], **more: Float32[Tensor, "n"]) -> tuple:
    return xs, more


def test_args_and_kwargs_are_checked_and_repaired_one_by_one():
    right = f32()
    assert variadic() == ((), {})
    for call, argument, count in (
        (lambda: variadic(right, f64(), right, f64(), a=right, b=f64()), "xs[1]", 3),
        (lambda: variadic(right, a=f64(), b=right), "more['a']", 1),
    ):
        with dtypeguard.mode("strict"), pytest.raises(DtypeError) as caught:
            call()
        assert (caught.value.argument, len(caught.value.violations)) == (argument, count)
    with pytest.raises(ShapeError, match=r"more\['a'\]"):
        variadic(right, a=f32(4))
    with pytest.warns(CastWarning):
        xs, more = variadic(right, f64(), b=f64(), a=right)
    assert type(xs) is tuple
    assert xs[0] is more["a"] is right
    assert list(more) == ["b", "a"]
    assert {t.dtype for t in (*xs, *more.values())} == {torch.float32}


def test_param_spec_arguments_pass(strict):
    @enforce
    def f(fn: Callable[P, Row], *args: P.args, **kwargs: P.kwargs) -> Row:
        return fn(*args, **kwargs)

    assert f(torch.zeros, 3, dtype=torch.float32).dtype is torch.float32


@pytest.mark.skipif(sys.version_info < (3, 12), reason="PEP 695 is syntax of Python 3.12")
def test_pep_695_aliases_and_type_parameters(strict):
    namespace = dict(globals())
    exec(
        "type Line = Float32[Tensor, 'n']\n"
        "type Maybe[T] = T | None\n"
        "@enforce\n"
        "def f[T: Float32[Tensor, 'n']](x: Line, y: Maybe[Line], z: T) -> T:\n"
        "    return z\n"
        "type Tree = Line | list[Tree]\n"
        "class Box[T: Line]:\n"
        "    @enforce\n"
        "    def put(self, x: T, y: Tree) -> 'Box[T]':\n"
        "        return self\n",
        namespace,
    )
    box = namespace["Box"]()
    assert box.put(f32(), [f32(), [f32()]]) is box
    for arguments in [(f64(), f32()), (f32(), [f32(), [f64()]])]:
        with pytest.raises(DtypeError):
            box.put(*arguments)
    f = namespace["f"]
    assert f(f32(), None, f32()).dtype is torch.float32
    for arguments in [(f64(), None, f32()), (f32(), f64(), f32()), (f32(), None, f64())]:
        with pytest.raises(DtypeError):
            f(*arguments)


# ---------------------------------------------------------------- scopes


def test_stacked_contracts_do_not_share_their_axes(strict):
    """The outer function's `n` is not the inner function's."""

    def twice(fn):
        @enforce
        def outer(x: Float32[Tensor, "n"]) -> Float32[Tensor, "m"]:
            return fn(torch.cat((x, x)))

        return outer

    @twice
    @enforce
    def f(x: Float32[Tensor, "n"]) -> Float32[Tensor, "n"]:
        return x

    assert len(f(f32(3))) == 6


def test_enforcing_twice_is_enforcing_once(strict):
    f = of(Row)
    twice = enforce(f)
    x = f32()
    assert twice(x) is x
    with pytest.raises(DtypeError) as caught:
        twice(f64())
    assert caught.value.function == f.__qualname__.rpartition("<locals>.")[2]


def test_an_error_inside_leaves_no_axes_behind(strict):
    @enforce
    def f(x: Float32[Tensor, "n"], y: Float32[Tensor, "n"]) -> bool:
        return isinstance(y, Float32[Tensor, "n"])

    for _ in range(3):
        with pytest.raises(ShapeError):
            f(f32(3), f32(4))
        assert f(f32(5), f32(5))
    assert isinstance(f32(7), Float32[Tensor, "n"])


# ---------------------------------------------------------------- decorators between


def _awaits(fn):
    @functools.wraps(fn)
    async def awaited(*args):
        return fn(*args)

    return awaited


def _passes_on(fn):
    @functools.wraps(fn)
    def passed(*args):
        return fn(*args)

    return passed


def test_above_a_function_of_another_kind_the_result_is_not_what_the_annotation_says(strict):
    @enforce
    @contextlib.contextmanager
    def opened(x: Row) -> Generator[Row, None, None]:
        yield x

    @enforce
    @contextlib.asynccontextmanager
    async def opened_later(x: Row) -> AsyncIterator[Row]:
        yield x

    @enforce
    @_passes_on
    async def later(x: Row) -> Row:
        return x

    @enforce
    @_passes_on
    def several(x: Row) -> Iterator[Row]:
        yield x

    async def run(x):
        async with opened_later(x) as y:
            return y, await later(x)

    x = f32()
    with opened(x) as y:
        assert y is x
    assert asyncio.run(run(x)) == (x, x)
    assert list(several(x)) == [x]
    for fn in (opened, opened_later, later, several):
        with pytest.raises(DtypeError):
            fn(f64())


def test_a_coroutine_around_a_function_gives_what_the_annotation_says(strict):
    @enforce
    @_awaits
    def f(x: Row, dtype: torch.dtype) -> Row:
        return x.to(dtype)

    assert asyncio.run(f(f32(), torch.float32)).dtype is torch.float32
    with pytest.raises(DtypeError):
        asyncio.run(f(f32(), torch.float64))


# ---------------------------------------------------------------- what stays as it was


class Mine(Exception):
    pass


def raises_at_once(error):
    raise error


EXCEPTIONS = [Mine("x"), DtypeGuardError("x"), TypeError("x"), KeyError("x"), StopIteration(3), KeyboardInterrupt()]


@pytest.mark.parametrize("x", [f32(), f64()], ids=["right call", "repaired call"])
@pytest.mark.parametrize("error", EXCEPTIONS, ids=lambda e: type(e).__name__)
@pytest.mark.filterwarnings("ignore::dtypeguard.CastWarning")
def test_an_exception_of_the_body_passes_through_untouched(error, x):
    @enforce
    def f(x: Row) -> Row:
        raise_it = raises_at_once
        return raise_it(error)

    for _ in range(3):  # the third repair goes another way than the first
        with pytest.raises(type(error)) as caught:
            f(x)
        assert caught.value is error
        assert error.__context__ is None
        assert error.__cause__ is None
        assert not hasattr(error, "__notes__")


def documented(x: Row, y: Row = None, *rest: Row, flag: bool = True, **more: Row) -> Row:
    """The doc."""
    return x


documented.mark = "kept"
enforced = enforce(documented)


def test_an_enforced_function_looks_like_the_function():
    raw = documented
    assert inspect.signature(enforced) == inspect.signature(raw)
    for name in ("__name__", "__qualname__", "__module__", "__doc__", "__defaults__", "__kwdefaults__", "mark"):
        assert getattr(enforced, name) == getattr(raw, name), name
    assert enforced.__annotations__ == raw.__annotations__
    assert typing.get_type_hints(enforced) == typing.get_type_hints(raw)
    assert inspect.unwrap(enforced) is raw
    assert "def forward(self, x" in inspect.getsource(Affine.forward)


@enforce
def by_reference(x: Row) -> Row:
    return x


def test_functions_modules_and_errors_pickle():
    assert pickle.loads(pickle.dumps(by_reference)) is by_reference
    net = pickle.loads(pickle.dumps(Affine()))
    assert torch.equal(net(f32()), f32())
    with dtypeguard.mode("strict"), pytest.raises(DtypeError) as caught:
        by_reference(f64())
    error = pickle.loads(pickle.dumps(caught.value))
    assert str(error) == str(caught.value)
    assert error.argument == "x"
    assert error.actual is torch.float64


WRONG_CALLS = {
    "too few": ((), {}),
    "one missing": ((1,), {}),
    "too many": ((1, 2, 3, 4), {}),
    "unknown keyword": ((1, 2), {"z": 3}),
    "given twice": ((1, 2), {"x": 3}),
    "keyword-only missing": ((1, 2), {}),
    "positional-only by name": ((), {"x": 1, "y": 2, "k": 3}),
}


@pytest.mark.parametrize(("args", "kwargs"), WRONG_CALLS.values(), ids=WRONG_CALLS.keys())
def test_a_wrong_call_gives_pythons_own_error(args, kwargs):
    def f(x: Row, /, y: Row, *, k: Row):
        return x

    with pytest.raises(TypeError) as pythons:
        f(*args, **kwargs)
    with pytest.raises(TypeError) as ours:
        enforce(f)(*args, **kwargs)
    assert type(ours.value) is TypeError
    assert str(ours.value) == str(pythons.value)


def test_hostile_names_of_parameters():
    """Names that code written around the body might use itself."""

    @enforce
    def f(len: Row, isinstance: Row, torch: Row, self: Row, call: Row, __x: Row, type: Row, fn: Row = None):
        return len

    x = f32()
    assert f(x, x, x, x, x, x, x) is x
    with pytest.warns(CastWarning):
        assert f(f64(), x, x, x, x, x, x).dtype is torch.float32


def test_private_parameters_of_methods_keep_their_mangled_names():
    class Holder:
        @enforce
        def method(self, __x: Row) -> Row:
            return __x

    x = f32()
    assert Holder().method(x) is x
    with dtypeguard.mode("strict"), pytest.raises(DtypeError):
        Holder().method(f64())


def test_a_module_that_hides_builtins_is_decorated_all_the_same():
    namespace = {"Row": Row, "enforce": enforce, "__builtins__": {}, "isinstance": None, "type": None}
    exec("@enforce\ndef f(x: Row) -> Row:\n    return x\n", namespace)
    assert namespace["f"](f32()).dtype is torch.float32
    with pytest.warns(CastWarning):
        assert namespace["f"](f64()).dtype is torch.float32


# ---------------------------------------------------------------- axes


@pytest.mark.parametrize("shape", [(5, 3), (2, 5), (2,), (3,), (2, 3, 1), (1, 2, 3), ()])
def test_axes_of_one_name_agree_from_the_first_to_the_last(shape, strict):
    @enforce
    def same(x: Float32[Tensor, "*s"], y: Float32[Tensor, "*s"]):
        return x

    same(torch.zeros(2, 3), torch.zeros(2, 3))
    with pytest.raises(ShapeError, match=r"`y` has axes \*s=.*, but \*s=\[2, 3\] in `x`"):
        same(torch.zeros(2, 3), torch.zeros(shape))


@pytest.mark.parametrize("axes", ["{n}", "{n!s}", "{n:d}", "{n}-1+1", "{len(text)}"])
def test_braces_are_those_of_an_f_string(axes, strict):
    @enforce
    def sized(n, text, x: Float32[Tensor, axes]):
        return x

    sized(3, "abc", f32(3))
    with pytest.raises(ShapeError, match=r"`x` has size 4 in axis 0, but .* is 3"):
        sized(3, "abc", f32(4))


def test_braces_mean_the_argument_where_an_axis_has_its_name_too(strict):
    @enforce
    def grow(x: Float32[Tensor, "n {n}+1"], n: int):
        return x

    grow(torch.zeros(5, 3), 2)
    with pytest.raises(ShapeError, match=r"`x` has size 6 in axis 1, but `{n}\+1` is 3"):
        grow(torch.zeros(5, 6), 2)


def test_three_shapes_that_broadcast(strict):
    @enforce
    def add(x: Float32[Tensor, "*#s"], y: Float32[Tensor, "*#s"], z: Float32[Tensor, "*#s"], w: Float32[Tensor, "*s"]):
        return x + y + z + w

    def summed(*shapes):
        return add(*map(torch.zeros, shapes)).shape

    assert summed((3,), (2, 1), (5, 1, 3), (5, 2, 3)) == (5, 2, 3)
    assert summed((5, 1, 3), (2, 1), (3,), (5, 2, 3)) == (5, 2, 3)
    with pytest.raises(ShapeError):
        summed((3,), (2, 1), (5, 2, 4), (5, 2, 3))


def test_a_method_is_no_type_beside_a_builtin_of_its_name():
    class Operator:
        def float(self):
            return self

        @enforce(mode="strict")
        def scaled(self, by: "float | None", row: "Float32[Tensor, 'n']") -> "float | None":
            return by

    assert Operator().scaled(2.0, torch.ones(3)) == 2.0
    with pytest.raises(HintError, match="argument `by` is a str"):
        Operator().scaled("2", torch.ones(3))


def test_how_a_hint_is_spelt_is_not_warned_of():
    @enforce(mode="strict")
    def f(x: Float32[Tensor, "n"], call: typing.Callable, items: typing.Sequence[int]):
        return call(x)

    assert f(torch.ones(3), len, [1]) == 3
    with pytest.raises(HintError):
        f(torch.ones(3), len, ["1"])


@pytest.mark.parametrize(
    "hint", [list[int], list[int] | None, Annotated[list[int], "n"], typing.Sequence[int], dict[str, list[int]]]
)
def test_a_check_draws_no_random_numbers_of_the_program(hint):
    @enforce(mode="strict")
    def f(x: Float32[Tensor, "n"], items: hint):
        return random.random()

    random.seed(0)
    expected = random.random()
    for _ in range(2):
        random.seed(0)
        assert f(torch.ones(3), {"a": [1, 2, 3]} if hint == dict[str, list[int]] else [1, 2, 3]) == expected


class Declines:
    """Operators that leave the answer to the other operand."""

    @enforce(mode="strict")
    def __eq__(self, other: object) -> Float32[Tensor, ""]:
        return NotImplemented

    __hash__ = object.__hash__

    @enforce(mode="strict")
    def __add__(self, other: object) -> Float32[Tensor, ""]:
        return NotImplemented

    __radd__ = __iadd__ = __add__

    @enforce(mode="strict")
    def add(self, other: object) -> Float32[Tensor, ""]:
        return NotImplemented


class Alias:
    """Operators under which a method of another name stands, and a hook of torch's."""

    @enforce(mode="strict")
    def plus(self, other: object) -> Float32[Tensor, ""]:
        return NotImplemented

    __mul__ = __lt__ = plus

    @classmethod
    @enforce(mode="strict")
    def __torch_function__(cls, func: object, *rest: Any) -> Float32[Tensor, ""]:
        return NotImplemented


def test_an_operator_may_return_not_implemented_and_no_other_function():
    one = Declines()
    for call in (lambda: Alias() * 3, lambda: Alias() < 3, lambda: torch.add(Alias(), 3)):
        with pytest.raises(TypeError) as told:  # of Python, or of torch
            call()
        assert type(told.value) is TypeError
    assert (one == 3) is False
    for call in (lambda: one + 3, lambda: 3 + one, lambda: operator.iadd(one, 3)):
        with pytest.raises(TypeError, match="unsupported operand"):
            call()
    with pytest.raises(dtypeguard.HintError, match=r"Declines\.add: the result is a NotImplementedType"):
        one.add(3)
