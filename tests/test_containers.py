"""Everything inside a container is checked; containers are rebuilt only if something in them was cast."""

import asyncio
import collections
import dataclasses
import functools
import itertools
from collections.abc import Callable, Generator, ItemsView, Iterable, Mapping, Sequence, ValuesView
from collections.abc import Iterator as AbstractIterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, NotRequired, Optional, Protocol, TypedDict, TypeVar, Union

import pytest
import torch
from jaxtyping import Float32, Int64
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence
from torch.utils import _pytree
from typing_extensions import TypeAliasType

from dtypeguard import (
    CastError,
    CastWarning,
    DtypeError,
    DtypeGuardWarning,
    HintError,
    InplaceOnCastWarning,
    ShapeError,
    casts,
    check,
    enforce,
    guard,
)

Row = Float32[Tensor, "n"]


def f32(n=3):
    return torch.arange(n, dtype=torch.float32)


def f64(n=3):
    return torch.arange(n, dtype=torch.float64)


# ---------------------------------------------------------------- one table of containers


class Pair(NamedTuple):
    a: Row
    b: Row


@dataclass
class Data:
    a: Row
    b: Row
    made: int = 0

    def __post_init__(self):
        self.made += 1


@dataclass(frozen=True, slots=True)
class Frozen:
    a: Row
    b: Row


@dataclass
class Heir(Data):
    extra: str = ""


class Typed(TypedDict):
    a: Row
    b: NotRequired[Row]
    name: NotRequired[str]


class Both(NamedTuple):
    data: Data
    rows: list[Row]


class ModelOutput(collections.OrderedDict):
    """As in transformers: a dataclass whose fields are attributes and items at once."""

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not None:
                collections.OrderedDict.__setitem__(self, field.name, value)

    def __setattr__(self, name, value):
        if name in self.keys() and value is not None:
            super().__setitem__(name, value)
        super().__setattr__(name, value)

    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        super().__setattr__(key, value)

    def __getitem__(self, key):
        return dict(self.items())[key] if isinstance(key, str) else self.to_tuple()[key]

    def to_tuple(self):
        return tuple(self[key] for key in self.keys())

    def __reduce__(self):
        return self.__class__, tuple(getattr(self, field.name) for field in dataclasses.fields(self))


@dataclass
class Output(ModelOutput):
    a: Optional[Row] = None  # noqa: UP045
    b: Row | None = None
    loss: Row | None = None


T = TypeVar("T")


class Stack(list[T]):
    pass


@dataclass
class Box(Generic[T]):
    item: T
    rest: "Box[T] | None" = None


@dataclass
class Rows(Box[Row]):
    pass


class Typed2(TypedDict, Generic[T]):
    item: T


class Crate(Generic[T]):
    """Nobody knows what it does when it is looked at."""

    def __iter__(self):
        raise AssertionError


class Shown(Protocol[T]):
    def show(self) -> T: ...


Forest = TypeAliasType("Forest", Union[Row, "list[Forest]"])
Nest = TypeAliasType("Nest", Union[T, "dict[str, Nest[T]]"], type_params=(T,))


class MyList(list):
    pass


class MyDict(dict):
    def __init__(self, *, secret):
        super().__init__()
        self.secret = secret


class MyTuple(tuple):
    pass


def my_list(a, b):
    made = MyList([a, b])
    made.tag = "kept"
    return made


def my_dict(a, b):
    made = MyDict(secret=3)
    made.update(a=a, b=b)
    return made


# annotation, how to make one of two tensors, the path of the second, how to read both
CONTAINERS = {
    "list": (list[Row], lambda a, b: [a, b], "x[1]", list),
    "tuple of any length": (tuple[Row, ...], lambda a, b: (a, b), "x[1]", list),
    "tuple": (tuple[Row, Row], lambda a, b: (a, b), "x[1]", list),
    "tuple of other things": (tuple[str, Row, int, Row], lambda a, b: ("s", a, 3, b), "x[3]", lambda x: [x[1], x[3]]),
    "dict": (dict[str, Row], lambda a, b: {"a": a, "b": b}, "x['b']", lambda x: list(x.values())),
    "dict of numbers": (dict[int, Row], lambda a, b: {0: a, 7: b}, "x[7]", lambda x: list(x.values())),
    "Sequence": (Sequence[Row], lambda a, b: [a, b], "x[1]", list),
    "Sequence, a tuple": (Sequence[Row], lambda a, b: (a, b), "x[1]", list),
    "Iterable": (Iterable[Row], lambda a, b: [a, b], "x[1]", list),
    "deque": (collections.deque[Row], lambda a, b: collections.deque([a, b], maxlen=2), "x[1]", list),
    "a list of one's own": (Stack[Row], lambda a, b: Stack([a, b]), "x[1]", list),
    "generic dataclass": (Box[Row], lambda a, b: Box(a, Box(b)), "x.rest.item", lambda x: [x.item, x.rest.item]),
    "heir of a generic dataclass": (Rows, lambda a, b: Rows(a, Box(b)), "x.rest.item", lambda x: [x.item, x.rest.item]),
    "NamedTuple as a tuple": (tuple[Row, ...], Pair, "x.b", list),
    "unpacked tuple": (tuple[int, *tuple[Row, Row]], lambda a, b: (1, a, b), "x[2]", lambda x: list(x[1:])),
    "recursive alias": (Forest, lambda a, b: [a, [[b]]], "x[1][0][0]", lambda x: [x[0], x[1][0][0]]),
    "generic recursive alias": (Nest[Row], lambda a, b: {"a": a, "b": {"c": b}}, "x['b']['c']",
                                lambda x: [x["a"], x["b"]["c"]]),
    "Mapping": (Mapping[str, Row], lambda a, b: {"a": a, "b": b}, "x['b']", lambda x: list(x.values())),
    "NamedTuple": (Pair, Pair, "x.b", list),
    "dataclass": (Data, Data, "x.b", lambda x: [x.a, x.b]),
    "frozen dataclass with slots": (Frozen, Frozen, "x.b", lambda x: [x.a, x.b]),
    "subclass of the dataclass": (Data, Heir, "x.b", lambda x: [x.a, x.b]),
    "TypedDict": (Typed, lambda a, b: {"a": a, "b": b, "name": "s"}, "x['b']", lambda x: [x["a"], x["b"]]),
    "ModelOutput": (Output, Output, "x.b", lambda x: [x.a, x.b]),
    "Optional": (list[Row] | None, lambda a, b: [a, b], "x[1]", list),
    "Union": (Union[Row, list[Row]], lambda a, b: [a, b], "x[1]", list),  # noqa: UP007
    "Union of containers": (dict[str, Row] | list[Row], lambda a, b: [a, b], "x[1]", list),
    "list of lists": (list[list[Row]], lambda a, b: [[a], [b]], "x[1][0]", lambda x: [x[0][0], x[1][0]]),
    "list of optional": (list[Row | None], lambda a, b: [a, None, b], "x[2]", lambda x: [x[0], x[2]]),
    "dict of tuples": (dict[str, tuple[Row, int]], lambda a, b: {"a": (a, 1), "b": (b, 2)}, "x['b'][0]",
                       lambda x: [x["a"][0], x["b"][0]]),
    "NamedTuple of containers": (Both, lambda a, b: Both(Data(a, f32()), [f32(), b]), "x.rows[1]",
                                 lambda x: [x.data.a, x.rows[1]]),
    "list of dataclasses": (list[Data], lambda a, b: [Data(a, f32()), Data(f32(), b)], "x[1].b",
                            lambda x: [x[0].a, x[1].b]),
    "OrderedDict": (collections.OrderedDict[str, Row], lambda a, b: collections.OrderedDict(a=a, b=b), "x['b']",
                    lambda x: [x["a"], x["b"]]),
    "defaultdict": (dict[str, Row], lambda a, b: collections.defaultdict(list, a=a, b=b), "x['b']",
                    lambda x: [x["a"], x["b"]]),
    "list subclass": (list[Row], my_list, "x[1]", list),
    "dict subclass": (dict[str, Row], my_dict, "x['b']", lambda x: list(x.values())),
    "tuple subclass": (tuple[Row, ...], lambda a, b: MyTuple([a, b]), "x[1]", list),
}  # fmt: skip
every_container = pytest.mark.parametrize(("hint", "make", "path", "read"), CONTAINERS.values(), ids=CONTAINERS.keys())


def of(hint, **options):
    """A function of one argument with this annotation, that gives what it got."""

    def f(x):
        return x

    f.__annotations__ = {"x": hint}
    return enforce(**options)(f)


@every_container
def test_a_right_container_arrives_as_the_same_object(hint, make, path, read, strict):
    x = make(f32(), f32())
    before = read(x)
    assert of(hint)(x) is x
    assert all(now is then for now, then in zip(read(x), before, strict=True))


@every_container
def test_the_error_names_the_place_in_the_container(hint, make, path, read, strict):
    with pytest.raises(DtypeError) as caught:
        of(hint)(make(f32(), f64()))
    assert caught.value.argument == path
    assert len(caught.value.violations) == 1


@every_container
def test_every_offender_in_a_container_is_named(hint, make, path, read, strict):
    with pytest.raises(DtypeError) as caught:
        of(hint)(make(f64(), f64()))
    assert len(caught.value.violations) == 2
    assert path in str(caught.value)


@every_container
def test_axes_hold_inside_a_container(hint, make, path, read):
    with pytest.raises(ShapeError) as caught:
        of(hint)(make(f32(3), f32(4)))
    assert caught.value.argument == path


@every_container
def test_a_container_is_rebuilt_with_its_type_and_the_rest_of_it_unchanged(hint, make, path, read):
    right, wrong = f32(), f64()
    x = make(right, wrong)
    with pytest.warns(CastWarning):
        got = of(hint)(x)
    assert got is not x
    assert type(got) is type(x)
    assert read(got)[0] is right
    assert read(got)[1].dtype is torch.float32
    assert torch.equal(read(got)[1], wrong.float())
    assert read(x)[0] is right, "the caller's container"
    assert read(x)[1] is wrong, "the caller's container"
    assert [record.argument for record in casts()] == [path]


@every_container
def test_a_tensor_that_stands_twice_in_a_container_is_cast_once(hint, make, path, read):
    x = f64()
    with pytest.warns(CastWarning):
        a, b = read(of(hint)(make(x, x)))
    assert a is b


@every_container
def test_containers_of_a_result_are_checked_and_repaired_too(hint, make, path, read):
    def f():
        return make(f32(), f64())

    f.__annotations__ = {"return": hint}
    with pytest.warns(CastWarning):
        assert read(enforce(f)())[1].dtype is torch.float32
    with pytest.raises(DtypeError) as caught:
        enforce(mode="strict")(f)()
    assert "result" in str(caught.value)


def test_what_a_subclass_carries_besides_its_items_is_kept():
    with pytest.warns(CastWarning):
        assert of(list[Row])(my_list(f32(), f64())).tag == "kept"
    with pytest.warns(CastWarning):
        assert of(dict[str, Row])(my_dict(f32(), f64())).secret == 3
    with pytest.warns(CastWarning):
        made = of(dict[str, Row])(collections.defaultdict(list, a=f64()))
    assert made["new"] == []
    with pytest.warns(CastWarning):
        made = of(collections.OrderedDict[str, Row])(collections.OrderedDict(z=f64(), a=f32()))
    assert list(made) == ["z", "a"]
    with pytest.warns(CastWarning):
        assert of(Data)(Heir(f64(), f32(), extra="kept")).extra == "kept"


def test_a_dataclass_is_not_constructed_again():
    """`__post_init__` ran once, for the caller."""
    data = Data(f64(), f32())
    with pytest.warns(CastWarning):
        assert of(Data)(data).made == data.made == 1


def test_a_model_output_stays_one_in_all_its_ways_of_reading():
    output = Output(a=f64(), b=f32())
    with pytest.warns(CastWarning):
        got = of(Output)(output)
    assert type(got) is Output
    assert list(got.keys()) == ["a", "b"]
    assert got.a is got["a"] is got[0] is got.to_tuple()[0]
    assert got.a.dtype is torch.float32
    assert got.b is output.b
    assert got.loss is None
    assert output.a is output["a"]
    assert output.a.dtype is torch.float64


def test_a_guarded_model_takes_a_model_output_apart_and_together():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, output):
            assert output.a is output["a"]
            return self.layer(output["a"]) + self.layer(output.a)

    output = Output(a=f64(), b=f32())
    with pytest.warns(CastWarning):
        assert guard(Net())(output).dtype is torch.float32
    assert output.a is output["a"]
    assert output.a.dtype is torch.float64


# ---------------------------------------------------------------- every element


@pytest.mark.parametrize("position", [0, 57, 199])
def test_every_element_of_a_long_list_is_checked(position, strict):
    batch = [f32() for _ in range(200)]
    batch[position] = f64()
    with pytest.raises(DtypeError) as caught:
        of(list[Row])(batch)
    assert caught.value.argument == f"x[{position}]"


def test_all_bad_elements_are_reported_and_all_are_repaired():
    batch = [f64() if i % 3 == 0 else f32() for i in range(30)]
    with pytest.raises(DtypeError) as caught:
        of(list[Row], mode="strict")(batch)
    assert len(caught.value.violations) == 10
    with pytest.warns(CastWarning):
        got = of(list[Row])(batch)
    assert {x.dtype for x in got} == {torch.float32}
    assert all((new is old) == (i % 3 != 0) for i, (new, old) in enumerate(zip(got, batch, strict=True)))


def test_sub_containers_without_a_cast_keep_their_identity():
    x = {"fine": [f32(), f32()], "wrong": [f32(), f64()]}
    with pytest.warns(CastWarning):
        got = of(dict[str, list[Row]])(x)
    assert got["fine"] is x["fine"]
    assert got["wrong"] is not x["wrong"]
    assert got["wrong"][0] is x["wrong"][0]


def test_one_list_passed_twice_is_rebuilt_once():
    @enforce
    def f(x: list[Row], y: list[Row]):
        return x, y

    rows = [f64()]
    with pytest.warns(CastWarning):
        x, y = f(rows, rows)
    assert x is y


def test_one_tensor_in_two_arguments_is_cast_once_however_often():
    """The second call of a line takes a shorter way than the first."""

    @enforce
    def attention(q: Row, k: Row, v: list[Row]):
        return q is k, q is v[0]

    @enforce
    def short(q: Row, k: Row):
        return q is k

    def call(q, k):
        return short(q, k)

    x, y = f64(), f64()
    with pytest.warns(CastWarning):
        assert attention(x, x, [x]) == (True, True)
    with pytest.warns(CastWarning):
        assert call(x, y) is False
    assert call(x, y) is False
    assert call(x, x) is True
    assert call(x, y) is False


def test_tensors_over_one_storage_are_still_two_tensors():
    @enforce
    def f(q: Row, k: Row):
        return q is k

    x = f64()
    with pytest.warns(CastWarning):
        assert f(x, x[:]) is False


def test_one_tensor_that_must_become_two_dtypes_becomes_two_tensors():
    @enforce(casting="unsafe")
    def f(x: Row, index: Int64[Tensor, "n"]):
        return x.dtype, index.dtype

    x = f64()
    with pytest.warns(CastWarning):
        assert f(x, x) == (torch.float32, torch.int64)


@pytest.mark.parametrize(
    ("hint", "value", "argument"),
    [
        (list[Row], (f32(),), "x"),
        (list[Row], f32(), "x"),
        (list[Row], "abc", "x"),
        (list[Row], None, "x"),
        (list[Row], [f32(), None], "x[1]"),
        (list[Row], [f32(), 3.0], "x[1]"),
        (list[Row], [[f32()]], "x[0]"),
        (tuple[Row, Row], (f32(),), "x"),
        (tuple[Row, Row], (f32(), f32(), f32()), "x"),
        (tuple[Row, Row], [f32(), f32()], "x"),
        (tuple[Row, ...], [f32()], "x"),
        (dict[str, Row], [f32()], "x"),
        (dict[str, Row], {"a": None}, "x['a']"),
        (Sequence[Row], f32(), "x"),
        (Sequence[Row], "abc", "x"),
        (Sequence[Row], {f32()}, "x"),
        (Pair, (f32(), f32()), "x"),
        (Pair, Pair(f32(), None), "x.b"),
        (Data, {"a": f32(), "b": f32()}, "x"),
        (Data, Data(f32(), "b"), "x.b"),
        (Typed, [f32()], "x"),
        (Typed, {"a": 3}, "x['a']"),
        (Typed, {"b": f32()}, "x"),
        (list[Row] | None, 3, "x"),
    ],
    ids=str,
)
@pytest.mark.parametrize("mode", ["strict", "lenient"])
def test_the_wrong_container_is_refused(hint, value, argument, mode):
    with pytest.raises(HintError) as caught:
        of(hint, mode=mode)(value)
    assert caught.value.argument == argument


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (list[Row], []),
        (tuple[Row, ...], ()),
        (dict[str, Row], {}),
        (Typed, {"a": f32()}),
        (list[Row] | None, None),
        (list[Row | None], [None, f32(), None]),
        (tuple[()], ()),
        (Output, Output()),
        (list[list[Row]], [[], []]),
        (list[Any], [f64(), 3]),
        (dict[str, Any], {"a": f64()}),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:enforce reads annotations:dtypeguard.DtypeGuardWarning")
def test_empty_and_open_containers_pass(hint, value, strict):
    assert of(hint)(value) is value


class Told:
    def show(self): ...


# annotation, values that it takes, values that it does not, what such an error is about
LOOKED_AT = {
    "set": (set[Row], lambda: {f32()}, lambda: {f64()}, "x.<item 0>"),
    "frozenset": (frozenset[Row], lambda: frozenset([f32()]), lambda: frozenset([f64()]), "x.<item 0>"),
    "Set": (AbstractSet[Row], lambda: {f32()}, lambda: {f64()}, "x.<item 0>"),
    "ChainMap": (collections.ChainMap[str, Row], lambda: collections.ChainMap({"a": f32()}),
                 lambda: collections.ChainMap({"a": f64()}), "x['a']"),
    "values": (ValuesView[Row], lambda: {"a": f32()}.values(), lambda: {"a": f64()}.values(), "x.<item 0>"),
    "items": (ItemsView[str, Row], lambda: {"a": f32()}.items(), lambda: {"a": f64()}.items(), "x.<item 0>[1]"),
    "keys of a dict": (dict[int, Row], lambda: {1: f32()}, lambda: {"1": f32()}, "x.<key 0>"),
    "tensors for keys": (dict[Row, Any], lambda: {f32(): 1}, lambda: {f64(): 1}, "x.<key 0>"),
    "rows of a tensor": (Iterable[Row], lambda: torch.ones(3, 3), lambda: torch.ones(3, 3).double(), "x[0]"),
    "rows of a tensor, their axes": (Iterable[Row], lambda: torch.ones(0, 3), lambda: torch.ones(3), "x[0]"),
    "a tensor without rows": (Iterable[Tensor], lambda: torch.ones(3), lambda: torch.tensor(3.0), "x"),
    "a tensor is no Sequence": (Sequence[Row], lambda: [f32()], lambda: torch.ones(3, 3), "x"),
    "Iterator": (AbstractIterator[Row], lambda: iter([f32()]), lambda: [f32()], "x"),
    "Generator": (Generator[Row, None, None], lambda: (x for x in [f32()]), lambda: iter([f32()]), "x"),
    "Callable": (Callable[[Row], Row], lambda: len, lambda: 3, "x"),
    "type of an array": (type[Row], lambda: Row, lambda: f32(), "x"),
    "type of a tensor": (type[Tensor], lambda: nn.Parameter, lambda: int, "x"),
    "generic class": (Crate[Row], Crate, lambda: [f32()], "x"),
    "generic protocol": (Shown[Row], Told, f32, "x"),
    "generic TypedDict": (Typed2[Row], lambda: {"item": f32()}, lambda: {"item": f64()}, "x['item']"),
    "tuple with an open middle": (tuple[int, *tuple[Row, ...]], lambda: (1, f32()), lambda: [1, f32()], "x"),
    "array or function": (Row | Callable[[Row], Row], lambda: len, lambda: 3, "x"),
    "array or function, an array": (Row | Callable[[Row], Row], f32, lambda: torch.ones(2, 2), "x"),
    "array or protocol": (Row | Shown[Row], Told, f64, "x"),
    "list of iterators": (list[AbstractIterator[Row]], lambda: [iter([f32()])], lambda: [[f32()]], "x[0]"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:enforce reads annotations")  # some hints have no tensor
@pytest.mark.parametrize(("hint", "right", "wrong", "argument"), LOOKED_AT.values(), ids=LOOKED_AT.keys())
def test_what_can_be_looked_at_in_a_generic_is_checked_and_else_its_class(hint, right, wrong, argument, strict):
    value = right()
    assert of(hint)(value) is value
    with pytest.raises((DtypeError, ShapeError, HintError)) as caught:
        of(hint)(wrong())
    assert caught.value.argument == argument


@pytest.mark.parametrize(
    ("hint", "make"),
    [
        (set[Row], lambda x: {x}),
        (dict[Row, int], lambda x: {x: 1}),
        (ValuesView[Row], lambda x: {"a": x}.values()),
        (Iterable[Row], lambda x: {x: 1}),
        (Iterable[Row], lambda x: x[None]),
    ],
    ids=["set", "keys", "values of a dict", "iterable of keys", "rows"],
)
def test_a_copy_is_another_member_so_it_is_refused(hint, make):
    """What a set or a dict holds for its identity, and what only shows the items of another."""
    x = make(f64())
    with pytest.raises(CastError, match="cannot be rebuilt around a copy"):
        of(hint)(x)


def test_what_may_do_anything_when_it_is_iterated_over_is_not():
    class Loader:
        def __len__(self):
            return 1

        def __iter__(self):
            raise AssertionError

    loader = Loader()
    assert of(Iterable[Row], mode="strict")(loader) is loader


def test_a_change_to_a_rebuilt_deque_is_made_to_the_callers_own():
    @enforce
    def f(x: collections.deque[Row]):
        x.appendleft(torch.ones(1))

    own = collections.deque([f64()])
    with pytest.warns(CastWarning), pytest.warns(InplaceOnCastWarning):
        f(own)
    assert len(own) == 2
    assert own[1].dtype is torch.float64


def test_a_list_that_holds_itself_ends_under_a_recursive_alias(strict):
    x = [f32()]
    x.append(x)
    assert of(Forest)(x) is x
    x.append(f64())
    with pytest.raises(DtypeError) as caught:
        of(Forest)(x)
    assert caught.value.argument == "x[2]"


@pytest.mark.filterwarnings("ignore:enforce reads annotations")  # some hints have no tensor
def test_a_recursive_alias_without_tensors_is_checked(strict):
    json = TypeAliasType("json", Union[int, "dict[str, json]", "list[json]", None])
    both = tuple[Row, json]
    assert of(both)((f32(), {"a": [1, None]}))[1] == {"a": [1, None]}
    with pytest.raises(HintError):
        of(both)((f32(), {"a": ["x"]}))


def test_dict_keys_of_every_kind_are_written_as_python_writes_them(strict):
    for key, text in [("a", "x['a']"), (0, "x[0]"), ((1, "b"), "x[(1, 'b')]"), (None, "x[None]"), ("a'b", 'x["a\'b"]')]:
        with pytest.raises(DtypeError) as caught:
            of(dict[Any, Row])({key: f64()})
        assert caught.value.argument == text


def test_an_iterator_is_not_used_up_by_looking(strict):
    x = iter([f32(), f32()])
    assert of(Iterable[Row])(x) is x
    assert len(list(x)) == 2
    x = (row for row in [f32()])
    assert of(AbstractIterator[Row])(x) is x
    assert len(list(x)) == 1


def test_a_mapping_that_is_no_dict_is_checked_and_never_rebuilt():
    class Lazy(Mapping):
        def __init__(self, **items):
            self.items_ = items

        def __getitem__(self, key):
            return self.items_[key]

        def __iter__(self):
            return iter(self.items_)

        def __len__(self):
            return len(self.items_)

    right, wrong = Lazy(a=f32()), Lazy(a=f64())
    assert of(Mapping[str, Row])(right) is right
    with pytest.raises(DtypeError):
        of(Mapping[str, Row], mode="strict")(wrong)
    with pytest.raises((CastError, DtypeError)):
        of(Mapping[str, Row])(wrong)


def test_a_default_dict_is_not_filled_by_looking(strict):
    x = collections.defaultdict(f32, a=f32())
    of(Typed)(x)
    assert list(x) == ["a"]


# ---------------------------------------------------------------- cycles and recursion


@dataclass
class Node:
    x: Row
    next: Optional["Node"] = None


@dataclass
class Tree:
    x: Row
    children: list["Tree"] = dataclasses.field(default_factory=list)


def test_every_node_of_a_recursive_type_is_checked():
    for depth in range(4):
        wrong = Node(f64())
        for _ in range(depth):
            wrong = Node(f32(), wrong)
        with pytest.raises(DtypeError) as caught:
            of(Node, mode="strict")(wrong)
        assert caught.value.argument == "x" + ".next" * depth + ".x"
    tree = Tree(f32(), [Tree(f32()), Tree(f32(), [Tree(f64())])])
    with pytest.raises(DtypeError) as caught:
        of(Tree, mode="strict")(tree)
    assert caught.value.argument == "x.children[1].children[0].x"


def test_nodes_of_a_recursive_type_are_repaired():
    with pytest.warns(CastWarning):
        assert of(Node)(Node(f32(), Node(f64()))).next.x.dtype is torch.float32


def test_a_cycle_ends():
    node = Node(f32())
    node.next = node
    assert of(Node, mode="strict")(node) is node
    node.x = f64()
    with pytest.raises(DtypeError) as caught:
        of(Node, mode="strict")(node)
    assert caught.value.argument == "x.x"


class Net(nn.Module):
    """Says what it got."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x, *more, **named):
        self.got = (x, *more, *named.values())
        return self.weight


def test_a_cycle_in_an_unannotated_container_ends():
    net = guard(Net(), mode="strict")
    loop = [torch.ones(1, dtype=torch.int64)]
    loop.append(loop)
    table = {"x": 1}
    table["self"] = table
    net(loop, table)
    assert net.got[0] is loop
    loop.append(f64())
    with pytest.raises(DtypeError) as caught:
        net(loop)
    assert caught.value.argument == "x[2]"


def test_one_container_in_two_places_is_no_cycle():
    net = guard(Net(), mode="strict")
    shared = [f64()]
    with pytest.raises(DtypeError) as caught:
        net([shared, shared])
    assert len(caught.value.violations) == 2


# ---------------------------------------------------------------- what the body changes


def grow(x):
    x.append(torch.ones(1))


def shrink(x):
    x.pop()


def drop_first(x):
    del x[0]


def put(x):
    x[0] = torch.ones(1)


def put_over_the_cast_one(x):
    x[1] = torch.ones(1)


def turn(x):
    x.reverse()


def empty(x):
    x.clear()


def double(x):
    x += x


def insert(x):
    x.insert(1, torch.ones(1))


@pytest.mark.parametrize(
    "change",
    [grow, shrink, drop_first, put, put_over_the_cast_one, turn, empty, double, insert],
    ids=lambda f: f.__name__,
)
def test_a_change_to_a_rebuilt_list_is_made_to_the_callers_own(change):
    """What the caller's list holds afterwards is what it would hold without a contract."""
    new = torch.ones(1)

    def f(x):
        change(x)

    f.__annotations__ = {"x": list[Row]}
    a, b = f32(), f64()
    plain, own = [a, b], [a, b]
    change(plain)
    with pytest.warns(CastWarning), pytest.warns(InplaceOnCastWarning, match="`x`"):
        enforce(f)(own)
    assert len(own) == len(plain)
    for ours, theirs in zip(own, plain, strict=True):
        assert ours is theirs or (torch.equal(ours, new) and torch.equal(theirs, new))


def test_a_list_that_the_body_leaves_alone_is_left_alone_without_a_word():
    own = [f32(), f64()]
    before = list(own)
    with pytest.warns(CastWarning) as said:
        of(list[Row])(own)
    assert [w.category for w in said] == [CastWarning]
    assert all(now is then for now, then in zip(own, before, strict=True))


def test_a_change_to_a_rebuilt_dict_is_made_to_the_callers_own():
    @enforce
    def f(x: dict[str, Row]):
        x["new"] = x.pop("gone")
        x["a"] = torch.ones(1)

    own = {"a": f32(), "b": f64(), "gone": f64()}
    b, gone = own["b"], own["gone"]
    with pytest.warns(CastWarning), pytest.warns(InplaceOnCastWarning):
        f(own)
    assert list(own) == ["a", "b", "new"]
    assert own["b"] is b
    assert own["new"] is gone
    assert torch.equal(own["a"], torch.ones(1))


def test_a_change_deep_inside_is_made_deep_inside():
    @enforce
    def f(x: dict[str, list[Row]]):
        x["cache"].append(torch.ones(1))

    cache = [f64()]
    own = {"cache": cache}
    with pytest.warns(CastWarning), pytest.warns(InplaceOnCastWarning, match=r"x\['cache'\]"):
        f(own)
    assert own["cache"] is cache
    assert len(cache) == 2


def test_a_change_to_a_rebuilt_dataclass_is_not_lost_without_a_word():
    @enforce
    def f(x: Data):
        x.made = 7

    own = Data(f64(), f32())
    with pytest.warns(DtypeGuardWarning) as said:
        f(own)
    assert own.made == 7 or InplaceOnCastWarning in {w.category for w in said}


def test_a_change_is_not_lost_when_the_body_raises():
    @enforce
    def f(x: list[Row]):
        x.append(torch.ones(1))
        raise KeyError

    own = [f64()]
    with pytest.warns(CastWarning), pytest.warns(InplaceOnCastWarning), pytest.raises(KeyError):
        f(own)
    assert len(own) == 2


@pytest.mark.parametrize("items", [1, 2], ids=["consumer stops early", "consumer goes on to the end"])
def test_a_change_made_by_a_generator_is_not_lost(items):
    @enforce
    def f(x: list[Row]):
        x.append(torch.ones(1))
        yield 3

    own = [f64()]
    stream = f(own)

    def consume():
        list(itertools.islice(stream, items))
        stream.close()

    with pytest.warns(CastWarning), pytest.warns(InplaceOnCastWarning):
        consume()
    assert len(own) == 2


def test_a_change_made_by_a_coroutine_is_not_lost():
    @enforce
    async def f(x: list[Row]):
        await asyncio.sleep(0)
        x.append(torch.ones(1))

    own = [f64()]
    with pytest.warns(CastWarning), pytest.warns(InplaceOnCastWarning):
        asyncio.run(f(own))
    assert len(own) == 2


def test_args_and_kwargs_are_no_containers_of_the_callers():
    @enforce
    def f(*x: Row, **y: Row):
        y["new"] = x[0]

    arguments = {"a": f64()}
    with pytest.warns(CastWarning) as said:
        f(f64(), **arguments)
    assert {w.category for w in said} == {CastWarning}
    assert list(arguments) == ["a"]


# ---------------------------------------------------------------- guarded models: no annotations


def test_a_guard_looks_into_every_kind_of_container():
    net = guard(Net(), mode="strict")
    for make in (list, tuple, lambda x: {"k": x[0]}, lambda x: Pair(x[0], 1), lambda x: Data(1, x[0])):
        with pytest.raises(DtypeError):
            net([make([f64()])])
        net([make([f32()])])


class Cache:
    """A pytree of somebody else's, like a cache of keys and values."""

    def __init__(self, *tensors):
        self.tensors = list(tensors)


_pytree.register_pytree_node(
    Cache,
    lambda cache: (cache.tensors, None),
    lambda tensors, _: Cache(*tensors),
    serialized_type_name="dtypeguard_tests.Cache",
)


def test_another_registered_pytree_is_checked_and_never_cast():
    net, right, wrong = guard(Net()), Cache(f32()), Cache(1, f64())
    net(f32(), right)
    assert net.got[1] is right
    with pytest.raises((CastError, DtypeError), match="float64"):
        net(None, wrong)
    assert wrong.tensors[1].dtype is torch.float64
    with pytest.raises(DtypeError):
        guard(Net(), mode="strict")(None, wrong)
    with pytest.raises((CastError, DtypeError)):
        net(None, [{"deep": wrong}])


def test_a_pytree_that_was_registered_after_the_guard_is_seen():
    class Late:
        def __init__(self, x):
            self.x = x

    net = guard(Net(), mode="strict")
    net(f32(), Late(f64()))
    _pytree.register_pytree_node(
        Late, lambda late: ([late.x], None), lambda x, _: Late(*x), serialized_type_name="dtypeguard_tests.Late"
    )
    with pytest.raises(DtypeError):
        net(None, Late(f64()))


def packed(dtype):
    return pack_sequence([torch.ones(4, 3, dtype=dtype), torch.ones(2, 3, dtype=dtype)])


def test_of_a_packed_sequence_only_its_data_counts():
    net = guard(Net())
    right, wrong = packed(torch.float32), packed(torch.float64)
    net(right)
    assert net.got[0] is right
    with pytest.warns(CastWarning):
        net(wrong)
    got = net.got[0]
    assert type(got) is PackedSequence
    assert got.data.dtype is torch.float32
    assert got.batch_sizes is wrong.batch_sizes
    assert got.batch_sizes.dtype is torch.int64
    assert wrong.data.dtype is torch.float64
    with pytest.raises(DtypeError) as caught:
        guard(Net(), mode="strict")(wrong)
    assert caught.value.argument == "x.data"


def test_a_guarded_rnn_takes_a_packed_sequence_of_the_wrong_dtype():
    rnn = guard(nn.GRU(3, 5, batch_first=True))
    sequence = pack_padded_sequence(torch.ones(2, 4, 3, dtype=torch.float64), torch.tensor([4, 2]), batch_first=True)
    with pytest.warns(CastWarning):
        output, _ = rnn(sequence)
    assert output.data.dtype is torch.float32


@pytest.mark.parametrize("x", [[1, 2, 3], [1.0, 2.0], ["a", "b"], [True], [None, None], list(range(100_000))], ids=repr)
def test_unannotated_lists_of_plain_scalars_pass_as_they_are(x):
    net = guard(Net(), mode="strict")
    net(f32(), x, key=x)
    assert net.got[1] is net.got[2] is x


def test_an_unannotated_list_with_scalar_ends_is_skipped():
    net = guard(Net(), mode="strict")
    x = [1, f64(), 2]
    net(x)
    assert net.got[0] is x


def test_an_annotated_list_with_scalar_ends_is_not_skipped(strict):
    with pytest.raises(DtypeError) as caught:
        of(list[Row | int])([1, f64(), 2])
    assert caught.value.argument == "x[1]"


def test_check_takes_containers_too():
    assert check([f32()], list[Row])[0].dtype is torch.float32
    with pytest.raises(DtypeError) as caught:
        check({"a": [f32(), f64()]}, dict[str, list[Row]], mode="strict", name="batch")
    assert caught.value.argument == "batch['a'][1]"


class Refusing(Output):
    """What transformers' own ModelOutput forbids."""

    def refuse(self, *args, **kwargs):
        raise Exception("refused")

    update = __delitem__ = pop = setdefault = refuse


class Half(dict):
    """Takes one kind of key only."""

    def __setitem__(self, key, value):
        if key == "refused":
            raise KeyError(key)
        super().__setitem__(key, value)


class Queue(list):
    def extend(self, items):
        raise TypeError("refused")


def put_loss(x):
    x["loss"] = torch.ones(1)


def forget_a(x):
    collections.OrderedDict.pop(x, "a")


def forget_a_field(x):
    x.a = None


def put_two(x):
    x["b"] = x["taken"] = torch.ones(1)
    dict.__setitem__(x, "refused", torch.ones(1))


def grow_behind(x):
    list.append(x, torch.ones(1))


@pytest.mark.parametrize(
    ("make", "change", "made"),
    [
        (lambda: Refusing(a=f64(), b=f64()), put_loss, lambda x: list(x) == ["a", "b", "loss"] and x.loss is x["loss"]),
        (lambda: Refusing(a=f64(), b=f64()), forget_a_field, lambda x: x.a is None),
        (lambda: Refusing(a=f64(), b=f64()), forget_a, None),
        (lambda: Half(a=f64(), b=f64()), put_two, None),
        (lambda: Queue([f64()]), grow_behind, None),
    ],
    ids=["put", "attribute", "refused", "half of it refused", "refused by a list"],
)
def test_a_container_that_refuses_changes_keeps_what_it_has(make, change, made):
    """`ModelOutput` of transformers has no `update`; nothing of the caller's is lost by that."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(3, 2)

        def forward(self, x):
            change(x)

    own = make()
    before = _inside(own)
    with pytest.warns(CastWarning), pytest.warns(InplaceOnCastWarning, match="`x`") as said:
        guard(Model())(own)
    text = str(said[-1].message)
    if made:
        assert made(own)
        assert text.endswith("was changed in the same way")
    else:
        assert "allows no such change, so it stays as it was; cast before the call" in text
        assert all(now is then for now, then in zip(_inside(own), before, strict=True))


@pytest.mark.parametrize("copies", [{}, {"__copy__": lambda self: self}], ids=["no copy", "is its own copy"])
@pytest.mark.parametrize("kind", [dict, collections.OrderedDict, collections.UserDict])
def test_a_dict_that_takes_nothing_after_its_making_is_rebuilt_all_the_same(kind, copies):
    class Head(nn.Linear):
        def forward(self, x):
            return x

    def refuse(self, key, value):
        raise TypeError("fixed")

    fixed = type("Fixed", (kind,), copies)
    own = fixed(a=f64(), b=f64())
    fixed.__setitem__ = refuse
    with pytest.warns(CastWarning):
        given = guard(Head(1, 1))(own)
    assert type(given) is fixed
    assert [x.dtype for x in given.values()] == [torch.float32] * 2
    assert own["a"].dtype is torch.float64


def test_what_a_cached_property_leaves_behind_is_no_change():
    @dataclass
    class Batch:
        a: Row

        @functools.cached_property
        def total(self):
            return self.a.sum()

    class Model(nn.Linear):
        def forward(self, x):
            return x.total

    own = Batch(f64())
    with pytest.warns(CastWarning) as said:
        assert guard(Model(1, 1))(own).dtype is torch.float32
    assert [w.category for w in said] == [CastWarning]
    assert own.total.dtype is torch.float64


def _inside(container):
    items = list(container.items()) if isinstance(container, dict) else list(enumerate(container))
    return [part for pair in [*items, *vars(container).items()] for part in pair]


def test_a_user_dict_is_taken_apart_and_rebuilt_like_a_dict():
    """What Hugging Face tokenizers and processors return is a UserDict."""

    class Encoding(collections.UserDict):
        pass

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(3, 2)

        def forward(self, batch):
            batch["seen"] = True
            assert type(batch) is Encoding
            return self.fc(batch["x"])

    own = Encoding(x=f64(), ids=torch.arange(3))
    with pytest.warns(DtypeGuardWarning) as said:
        assert guard(Model())(own).dtype is torch.float32
    assert {warning.category for warning in said} == {CastWarning, InplaceOnCastWarning}
    assert own["seen"] is True
    assert own["x"].dtype is torch.float64
    with pytest.raises(DtypeError, match=r"`batch\['x'\]` is float64"):
        guard(Model(), mode="strict")(own)
