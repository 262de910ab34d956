"""Everything inside a container is checked; containers are rebuilt only if something in them was cast."""

import asyncio
import collections
import contextlib
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
from jaxtyping import Float32, Float64, Int64
from support import same
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence
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
    mode,
    reset_casts,
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


def of(hint, **options):
    """A function of one argument with this annotation, that gives what it got."""

    def f(x):
        return x

    f.__annotations__ = {"x": hint}
    return enforce(**options)(f)


@pytest.mark.parametrize("name", CONTAINERS)
def test_what_a_container_holds_is_checked_and_repaired(name):
    hint, make, path, read = CONTAINERS[name]
    f, right, wrong = of(hint), f32(), f64()
    x = make(right, f32())
    before = read(x)
    assert f(x) is x
    assert all(now is then for now, then in zip(read(x), before, strict=True))
    for given, count in ((make(right, wrong), 1), (make(f64(), wrong), 2)):
        with pytest.raises(DtypeError) as caught, mode("strict"):
            f(given)
        assert len(caught.value.violations) == count
        assert path in str(caught.value)
        assert caught.value.argument == path or count == 2
    with pytest.raises(ShapeError) as caught:
        f(make(f32(3), f32(4)))
    assert caught.value.argument == path
    x = make(right, wrong)
    with pytest.warns(CastWarning):
        got = f(x)
    assert got is not x
    assert type(got) is type(x)
    assert read(got)[0] is right
    assert same(read(got)[1], wrong.float())
    assert read(x)[0] is right, "the caller's container"
    assert read(x)[1] is wrong, "the caller's container"
    assert [record.argument for record in casts()] == [path]
    reset_casts()
    with pytest.warns(CastWarning):
        a, b = read(f(make(wrong, wrong)))
    assert a is b, "a tensor that stands there twice is cast once"


@pytest.mark.parametrize("name", ["list", "tuple of other things", "TypedDict", "generic dataclass", "NamedTuple"])
def test_containers_of_a_result_are_checked_and_repaired_too(name):
    hint, make, _, read = CONTAINERS[name]

    def f():
        return make(f32(), f64())

    f.__annotations__ = {"return": hint}
    with pytest.warns(CastWarning):
        assert read(enforce(f)())[1].dtype is torch.float32
    with pytest.raises(DtypeError, match="result"):
        enforce(mode="strict")(f)()


KEPT = {  # a hint, a value, what it carries besides its items
    "a list's attribute": (list[Row], lambda: my_list(f32(), f64()), lambda x: x.tag == "kept"),
    "a dict's attribute": (dict[str, Row], lambda: my_dict(f32(), f64()), lambda x: x.secret == 3),
    "a default": (dict[str, Row], lambda: collections.defaultdict(list, a=f64()), lambda x: x["new"] == []),
    "an order": (
        collections.OrderedDict[str, Row],
        lambda: collections.OrderedDict(z=f64(), a=f32()),
        lambda x: list(x) == ["z", "a"],
    ),
    "a field": (Data, lambda: Heir(f64(), f32(), extra="kept"), lambda x: x.extra == "kept"),
    "what __post_init__ did": (Data, lambda: Data(f64(), f32()), lambda x: x.made == 1),
}


@pytest.mark.parametrize("what", KEPT)
def test_what_a_container_carries_besides_its_items_is_kept(what):
    hint, make, kept = KEPT[what]
    with pytest.warns(CastWarning):
        assert kept(of(hint)(make()))


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


# ---------------------------------------------------------------- every element


def test_all_bad_elements_are_reported_and_all_are_repaired():
    batch = {"fine": [f32()], "long": [f64() if i % 3 == 0 else f32() for i in range(30)]}
    f = of(dict[str, list[Row]])
    with pytest.raises(DtypeError) as caught, mode("strict"):
        f(batch)
    assert len(caught.value.violations) == 10
    with pytest.warns(CastWarning):
        got = f(batch)
    assert got["fine"] is batch["fine"]
    assert {x.dtype for x in got["long"]} == {torch.float32}
    assert [a is b for a, b in zip(got["long"], batch["long"], strict=True)] == [i % 3 != 0 for i in range(30)]


def test_one_tensor_in_two_arguments_is_cast_once_however_often():
    @enforce
    def attention(q: Row, k: Row, v: list[Row]):
        return q is k, q is v[0]

    x = f64()
    for given, expected in (((x, x, [x]), (True, True)), ((x, x[:], [x]), (False, True))):  # a view is another tensor
        with pytest.warns(CastWarning):
            assert attention(*given) == expected


class Narrow(TypedDict):
    a: Row
    b: Row


class Wide(TypedDict):
    a: Row
    b: Float64[Tensor, "n"]


@pytest.mark.filterwarnings("ignore::dtypeguard.CastWarning")
@pytest.mark.parametrize("hints", [(Narrow, Wide), (Wide, Narrow)])
def test_one_dict_given_twice_becomes_what_each_argument_wants(hints):
    def pair(x, y):
        return x, y

    pair.__annotations__ = dict(zip("xy", hints, strict=True))
    given = {"a": f64(2), "b": f64(2)}
    made = dict(zip(hints, enforce(pair)(given, given), strict=True))
    assert [made[Narrow][key].dtype for key in "ab"] == [torch.float32, torch.float32]
    assert [made[Wide][key].dtype for key in "ab"] == [torch.float32, torch.float64]
    assert made[Narrow]["a"] is made[Wide]["a"]
    assert made[Wide]["b"] is given["b"]


@pytest.mark.filterwarnings("ignore::dtypeguard.CastWarning")
def test_one_list_given_twice_and_two_that_share_a_tensor():
    @enforce
    def three(x: list[Float32[Tensor, "_"]], y: list[Float64[Tensor, "_"]], z: list[Float32[Tensor, "_"]]):
        return x, y, z

    half, left, right = f32(2).bfloat16(), f32(), f32()
    given = [half]
    for one, other in (([half], [half]), (given, given)):
        x, y, z = three(one, one, other)
        assert [t.dtype for (t,) in (x, y, z)] == [torch.float32, torch.float64, torch.float32]
        assert (x is z) == (one is other)
    x, _, z = three([half, left], [], [half, right])
    assert x[0] is z[0]
    assert x[1] is left
    assert z[1] is right


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
        (list[Row], [f32(), None], "x[1]"),
        (list[Row], [[f32()]], "x[0]"),
        (tuple[Row, Row], (f32(),), "x"),
        (tuple[Row, Row], (f32(), f32(), f32()), "x"),
        (tuple[Row, Row], [f32(), f32()], "x"),
        (tuple[Row, ...], [f32()], "x"),
        (dict[str, Row], [f32()], "x"),
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
def test_the_wrong_container_is_refused(hint, value, argument):
    f = of(hint)
    for name in ("strict", "lenient"):
        with mode(name), pytest.raises(HintError) as caught:
            f(value)
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


class Loader:
    """May do anything when it is iterated over, so it is not."""

    def __len__(self):
        return 1

    def __iter__(self):
        raise AssertionError


class Lazy(Mapping):
    """A mapping that is no dict: it is checked and never rebuilt."""

    def __init__(self, **items):
        self.held = items

    def __getitem__(self, key):
        return self.held[key]

    def __iter__(self):
        return iter(self.held)

    def __len__(self):
        return len(self.held)


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
    "a mapping that is no dict": (Mapping[str, Row], lambda: Lazy(a=f32()), lambda: Lazy(a=f64()), "x['a']"),
    "an iterable that is no container": (Iterable[Row], Loader, lambda: 3, "x"),
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
        (Mapping[str, Row], lambda x: Lazy(a=x)),
    ],
    ids=["set", "keys", "values of a dict", "iterable of keys", "rows", "a mapping that is no dict"],
)
def test_a_copy_is_another_member_so_it_is_refused(hint, make):
    """What a set or a dict holds for its identity, and what only shows the items of another."""
    x = make(f64())
    with pytest.raises(CastError, match="cannot be rebuilt around a copy"):
        of(hint)(x)


@pytest.mark.filterwarnings("ignore:enforce reads annotations")  # some hints have no tensor
def test_a_recursive_alias_without_tensors_is_checked(strict):
    json = TypeAliasType("json", Union[int, "dict[str, json]", "list[json]", None])
    both = tuple[Row, json]
    assert of(both)((f32(), {"a": [1, None]}))[1] == {"a": [1, None]}
    with pytest.raises(HintError):
        of(both)((f32(), {"a": ["x"]}))


def test_an_iterator_is_not_used_up_by_looking(strict):
    for hint, x in ((Iterable[Row], iter([f32()])), (AbstractIterator[Row], (row for row in [f32()]))):
        assert of(hint)(x) is x
        assert len(list(x)) == 1


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


def test_every_node_of_a_recursive_type_is_checked_and_repaired():
    for depth in range(3):
        wrong = Node(f64())
        for _ in range(depth):
            wrong = Node(f32(), wrong)
        with pytest.raises(DtypeError) as caught, mode("strict"):
            of(Node)(wrong)
        assert caught.value.argument == "x" + ".next" * depth + ".x"
    tree = Tree(f32(), [Tree(f32()), Tree(f32(), [Tree(f64())])])
    with pytest.raises(DtypeError) as caught, mode("strict"):
        of(Tree)(tree)
    assert caught.value.argument == "x.children[1].children[0].x"
    with pytest.warns(CastWarning):
        assert of(Tree)(tree).children[1].children[0].x.dtype is torch.float32


def test_a_cycle_ends(strict):
    node, rows, loop, table = Node(f32()), [f32()], [torch.ones(1, dtype=torch.int64)], {"x": 1}
    node.next, table["self"] = node, table
    rows.append(rows)
    loop.append(loop)
    net = guard(Net())
    assert of(Node)(node) is node
    assert of(Forest)(rows) is rows
    net(loop, table)
    assert net.got[0] is loop
    node.x = f64()
    rows.append(f64())
    loop.append(f64())
    for call, argument in (
        (lambda: of(Node)(node), "x.x"),
        (lambda: of(Forest)(rows), "x[2]"),
        (lambda: net(loop, table), "x[2]"),
    ):
        with pytest.raises(DtypeError) as caught:
            call()
        assert caught.value.argument == argument


class Net(nn.Module):
    """Says what it got."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x, *more, **named):
        self.got = (x, *more, *named.values())
        return self.weight


def test_one_container_in_two_places_is_no_cycle():
    net = guard(Net(), mode="strict")
    shared = [f64()]
    with pytest.raises(DtypeError) as caught:
        net([shared, shared])
    assert len(caught.value.violations) == 2


# ---------------------------------------------------------------- what the body changes


CHANGES = {
    "grow": lambda x: x.append(torch.ones(1)),
    "shrink": lambda x: x.pop(),
    "drop the first": lambda x: x.__delitem__(0),
    "put": lambda x: x.__setitem__(0, torch.ones(1)),
    "put over the cast one": lambda x: x.__setitem__(1, torch.ones(1)),
    "turn": lambda x: x.reverse(),
    "empty": lambda x: x.clear(),
    "double": lambda x: x.extend(list(x)),
    "insert": lambda x: x.insert(1, torch.ones(1)),
}


@pytest.mark.parametrize(("kind", "hint"), [(list, list[Row]), (collections.deque, collections.deque[Row])])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_to_a_rebuilt_list_is_made_to_the_callers_own(change, kind, hint):
    """What the caller's list holds afterwards is what it would hold without a contract."""
    new = torch.ones(1)

    def f(x, change):
        change(x)

    f.__annotations__ = {"x": hint}
    a, b = f32(), f64()
    plain, own = kind([a, b]), kind([a, b])
    with pytest.warns(CastWarning) as said:
        enforce(f)(own, len)
    assert [w.category for w in said] == [CastWarning], "nothing is said of a list that the body leaves alone"
    assert own[0] is a
    assert own[1] is b
    change(plain)
    reset_casts()
    with pytest.warns(CastWarning), pytest.warns(InplaceOnCastWarning, match="`x`"):
        enforce(f)(own, change)
    assert len(own) == len(plain)
    for ours, theirs in zip(own, plain, strict=True):
        assert ours is theirs or (same(ours, new) and same(theirs, new))


def test_a_change_to_a_rebuilt_dict_is_made_to_the_callers_own_and_deep_inside():
    @enforce
    def f(x: dict[str, Row | list[Row]]):
        x["new"] = x.pop("gone")
        x["a"] = torch.ones(1)
        x["cache"].append(torch.ones(1))

    b, gone, cache = f64(), f64(), [f64()]
    own = {"a": f32(), "b": b, "gone": gone, "cache": cache}
    with pytest.warns(CastWarning), pytest.warns(InplaceOnCastWarning) as said:
        f(own)
    assert any("`x['cache']`" in str(warning.message) for warning in said)
    assert list(own) == ["a", "b", "cache", "new"]
    assert own["b"] is b
    assert own["new"] is gone
    assert same(own["a"], torch.ones(1))
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


def coroutine(x):
    async def body(x: list[Row]):
        await asyncio.sleep(0)
        x.append(torch.ones(1))

    asyncio.run(enforce(body)(x))


def generator(items, x):
    @enforce
    def body(x: list[Row]):
        x.append(torch.ones(1))
        yield 3

    stream = body(x)
    list(itertools.islice(stream, items))
    stream.close()


def raising(x):
    @enforce
    def body(x: list[Row]):
        x.append(torch.ones(1))
        raise KeyError

    with contextlib.suppress(KeyError):
        body(x)


@pytest.mark.parametrize(
    "run", [raising, coroutine, functools.partial(generator, 1), functools.partial(generator, 2)],
    ids=["a body that raises", "a coroutine", "a consumer that stops early", "a generator to its end"],
)  # fmt: skip
def test_a_change_is_not_lost_however_the_body_ends(run):
    own = [f64()]
    with pytest.warns(CastWarning), pytest.warns(InplaceOnCastWarning):
        run(own)
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


def test_an_unannotated_list_of_numbers_passes_and_a_tensor_among_them_is_seen():
    net = guard(Net(), mode="strict")
    for x in ([1, 2, 3], ["a", "b"], [None, None], list(range(100_000)), [1, f32(), 2]):
        net(f32(), x, key=x)
        assert net.got[1] is net.got[2] is x
    for x in ([1, f64()], [f64(), 1], [1, f64(), 2], [None, f64(), None]):
        with pytest.raises(DtypeError):
            net(x)
    with pytest.raises(DtypeError) as caught:
        of(list[Row | int], mode="strict")([1, f64(), 2])
    assert caught.value.argument == "x[1]"


def test_check_takes_containers_and_writes_keys_as_python_writes_them(strict):
    rows = [f32()]
    assert check(rows, list[Row]) is rows
    for key, text in [("a", "x['a']"), (0, "x[0]"), ((1, "b"), "x[(1, 'b')]"), (None, "x[None]"), ("a'b", 'x["a\'b"]')]:
        with pytest.raises(DtypeError) as caught:
            check({key: [f32(), f64()]}, dict[Any, list[Row]], name="x")
        assert caught.value.argument == f"{text}[1]"


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
        assert text.endswith("was changed in the same way [DG013]")
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


@enforce
def takes_named(batch: dict[str, Row], rows: list[dict[str, Row]] | None = None):
    return batch


@enforce
def doubles(batch: dict[str, list[Row]], queue: collections.deque[Row]):
    for rows in batch.values():
        rows[0].mul_(2)
        rows.append(rows[0])


@pytest.mark.parametrize(("name", "several"), [("warn", 1), ("lenient", 4)])  # two casts, a copy and a list changed
def test_keys_and_lengths_are_no_part_of_what_is_told_once_in_any_mode(name, several):
    reset_casts()
    calls = [[torch.ones(2, dtype=torch.float64) for _ in range(n)] for n in range(2, 7)]
    with mode(name), pytest.warns(DtypeGuardWarning) as told:
        [doubles({f"sample{len(rows)}": rows[:1]}, collections.deque(rows[1:])) for rows in calls]
    assert len(told) == several, [str(one.message) for one in told]
    assert [record.count for record in casts()] == ([5, 15] if name == "lenient" else [])


def test_the_keys_of_a_dict_are_no_part_of_what_is_told_once():
    reset_casts()
    one, other = [[{f"sample{n}": torch.ones(2, dtype=torch.float64)} for n in range(5)] for _ in range(2)]
    with mode("lenient"), pytest.warns(CastWarning) as told:
        [takes_named(batch, [row]) for batch, row in zip(one, other, strict=True)]
    assert len(told) == 2
    assert [(record.argument, record.count) for record in casts()] == [
        ("batch['sample0']", 5),
        ("rows[0]['sample0']", 5),
    ]


class Named(nn.Module):
    """A model whose batch has names that its forward does not list."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, **batch: Any) -> Tensor:
        return sum(self.fc(value) for value in batch.values())


class OfDict(Named):
    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return super().forward(**batch)


class Decorated(Named):
    @functools.wraps(lambda self, a1, a2: None)
    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return sum(self.fc(value) for value in [*args, *kwargs.values()])


# a model, the names of what it is called with, how it is called, and the arguments that are told of
TOLD_APART = {
    "positions behind a decorator": (Decorated, "a1 a2", lambda m, b: m(*b.values()), ["a1", "a2"]),
    "keywords behind a decorator": (Decorated, "a1 a2", lambda m, b: m(**b), ["a1", "a2"]),
    "**batch": (Named, "a1 a2", lambda m, b: m(**b), ["batch['a1']", "batch['a2']"]),
    "a dict": (OfDict, "image mask", lambda m, b: m(b), ["batch['image']", "batch['mask']"]),
    "a dict with numbered keys": (OfDict, "row1 row2 col", lambda m, b: m(b), ["batch['row1']", "batch['col']"]),
    "a dict of files": (OfDict, "a.png b.png", lambda m, b: m(b), ["batch['a.png']"]),
}


@pytest.mark.parametrize(("model", "names", "call", "told"), TOLD_APART.values(), ids=TOLD_APART)
def test_what_is_named_is_told_and_counted_by_itself(model, names, call, told):
    reset_casts()
    guarded, names = guard(model().bfloat16(), mode="lenient"), names.split()
    with pytest.warns(CastWarning) as warned:
        [call(guarded, {name: torch.zeros(2, 4) for name in names}) for _ in range(3)]
    assert [str(one.message).split("`")[1] for one in warned] == told
    assert [record.argument for record in casts()] == told
    assert sum(record.count for record in casts()) == 3 * len(names)
