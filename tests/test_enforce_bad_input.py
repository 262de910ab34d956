"""What `enforce`, `check`, `mode` and the environment refuse, and in which words."""

import contextlib
import functools
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypedDict, TypeVar
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from jaxtyping import Float, Float32, Int64, jaxtyped
from torch import Tensor, nn
from typing_extensions import TypeAliasType

import dtypeguard
from dtypeguard import AnnotationError, check, enforce, mode, set_mode

MODES = ["'strict'", "'lenient'", "'warn'", "'off'"]
Row = Float32[Tensor, "n"]
CASTING = ["'safe'", "'precision'", "'promote'", "'unsafe'"]


def body(x: Float32[Tensor, "n"], y: int = 0) -> Float32[Tensor, "n"]:
    return x


# ---------------------------------------------------------------- options

BAD_OPTIONS = [  # beside those of tests/golden/errors.txt
    ({"mode": ""}, ValueError, ["mode=''", *MODES]),
    ({"mode": True}, ValueError, ["mode=True", *MODES]),
    ({"casting": torch.float32}, ValueError, ["casting=torch.float32", *CASTING]),
    ({"autocast": False}, ValueError, ["autocast=False", "'disable'"]),
    ({"verify": None}, ValueError, ["verify=None", "'never'"]),
    ({"anchor": 3}, (TypeError, ValueError), ["3"]),
    ({"mutates": ("x", "z")}, ValueError, ["'z'", "x, y"]),
    ({"mutates": (3,)}, (TypeError, ValueError), ["3"]),
    ({"strict": True}, TypeError, ["strict"]),
    ({"returns": "no"}, TypeError, ["returns='no'", "True", "False"]),
]


@pytest.mark.parametrize(
    ("options", "error", "words"), BAD_OPTIONS, ids=lambda v: str(v) if isinstance(v, dict) else ""
)
def test_a_bad_option_is_refused_at_decoration(options, error, words):
    with pytest.raises(error) as caught:
        enforce(**options)(body)
    for word in words:
        assert word in str(caught.value)


def test_mutates_takes_any_iterable_of_names_and_a_decorator_may_be_used_many_times():
    for names in (["x"], {"x"}, (name for name in ["x"]), iter(("x",))):
        decorate = enforce(mode="strict", mutates=names)
        for _ in range(2):
            f = decorate(body)
            assert f(torch.zeros(1)).dtype is torch.float32
            with pytest.raises(dtypeguard.DtypeError):
                f(torch.zeros(1, dtype=torch.float64))


@pytest.mark.parametrize("kind", ["coroutine", "generator", "async generator"])
def test_autocast_disable_needs_a_plain_function(kind):
    async def coroutine(x): ...

    def generator(x):
        yield

    async def async_generator(x):
        yield

    fn = {"coroutine": coroutine, "generator": generator, "async generator": async_generator}[kind]
    with pytest.raises(TypeError, match=rf"disable.*{kind}"):
        enforce(autocast="disable")(fn)


BAD_CALLS = [
    (lambda: set_mode(3), ValueError, ["mode=3", *MODES]),
    (lambda: mode(None), ValueError, ["give a mode", *MODES]),
    (lambda: mode(), ValueError, ["give a mode", *MODES]),
    (lambda: check(torch.zeros(1), Tensor, mode="loud"), ValueError, ["mode='loud'", *MODES]),
    (lambda: check(torch.zeros(1), Tensor, casting="same_kind"), ValueError, ["'same_kind'", *CASTING]),
    (lambda: check(torch.zeros(1)), TypeError, []),
    (lambda: check(torch.zeros(1), Tensor, name=3), TypeError, ["check: name=3 is no text"]),
    (
        lambda: check(torch.zeros(1), Tensor, mod="strict"),
        TypeError,
        ["check: there is no option mod=: did you mean mode=? The options are name, mode, casting"],
    ),
    (lambda: enforce(body, "strict"), TypeError, []),
    (lambda: enforce("strict"), TypeError, ["'strict'"]),
]


@pytest.mark.parametrize(("call", "error", "words"), BAD_CALLS)
def test_bad_modes_and_castings_are_refused_everywhere(call, error, words):
    with pytest.raises(error) as caught:
        call()
    for word in words:
        assert word in str(caught.value)
    assert dtypeguard.get_mode() == "lenient"


def test_names_of_options_have_any_case():
    set_mode("STRICT")
    assert dtypeguard.get_mode() == "strict"
    assert enforce(casting="Safe", verify="Never", autocast="IGNORE")(body)(torch.zeros(1)).dtype is torch.float32


# ---------------------------------------------------------------- targets


class Callables:
    def __call__(self, x: Float32[Tensor, "n"]):
        return x


class Holder:
    @functools.cached_property
    def value(self):
        return 3

    @functools.partialmethod
    def method(self):
        return 3


BAD_TARGETS = {
    "torch function": (torch.add, "add"),
    "instance with __call__": (Callables(), "Callables"),
    "partial": (functools.partial(body, y=1), "partial"),
    "partialmethod": (vars(Holder)["method"], "partialmethod"),
    "cached_property": (vars(Holder)["value"], "cached_property"),
    "builtin class": (int, "int"),
    "Tensor class": (Tensor, "Tensor"),
    "string": ("body", "'body'"),
    "tensor": (torch.zeros(1), "tensor"),
    "annotation": (Float32[Tensor, "n"], "n"),
    "module": (torch, "torch"),
}


@pytest.mark.parametrize(("target", "word"), BAD_TARGETS.values(), ids=BAD_TARGETS.keys())
def test_a_bad_target_is_refused_with_advice(target, word):
    for decorate in (enforce, enforce(mode="strict")):
        with pytest.raises(TypeError) as caught:
            decorate(target)
        assert not isinstance(caught.value, dtypeguard.DtypeGuardError)
        assert word in str(caught.value)


def test_a_subclass_of_a_dataclass_that_is_none_itself_yet_keeps_its_contract_or_is_refused():
    @dataclass
    class Parent:
        x: Float32[Tensor, "n"]

    try:

        @dataclass
        @enforce(mode="strict")
        class Wrong(Parent):
            y: Float32[Tensor, "n"]

    except TypeError:
        return
    with pytest.raises(dtypeguard.DtypeError):
        Wrong(torch.zeros(1), torch.zeros(1, dtype=torch.float64))


@pytest.mark.filterwarnings("ignore:enforce reads annotations:dtypeguard.DtypeGuardWarning")
def test_a_lambda_and_a_function_without_annotations_are_functions():
    anything = object()
    assert enforce(lambda x: x)(anything) is anything
    assert enforce(lambda: 3).__name__ == "<lambda>"
    assert enforce(lambda *a, **k: (a, k))(1, b=2) == ((1,), {"b": 2})


@pytest.mark.parametrize(
    ("target", "text"),
    [
        (nn.Linear, "not the class Linear"),
        (nn.Linear(1, 1), "not a Linear"),
        (property(body), "not a property"),
        (None, "not a NoneType"),
    ],
)
def test_a_mode_decorates_functions_only(target, text):
    advice = r"decorate methods, or write enforce\(mode='strict'\) or guard\(mode='strict'\)"
    with pytest.raises(TypeError, match=f"dtypeguard.mode decorates functions, {text}: {advice}"):
        mode("strict")(target)


def test_a_mode_around_a_static_and_a_class_method_leaves_them_such():
    class Holder:
        @mode("strict")
        @staticmethod
        def fixed(x):
            return x, dtypeguard.get_mode()

        @mode("warn")
        @classmethod
        def of_class(cls, x):
            return cls, x, dtypeguard.get_mode()

    assert Holder().fixed(1) == Holder.fixed(1) == (1, "strict")
    assert Holder().of_class(1) == Holder.of_class(1) == (Holder, 1, "warn")


# ---------------------------------------------------------------- nothing to check


def of(**annotations):
    def f(x=0):
        return x

    f.__annotations__ = annotations
    return f


def forward(self, x):
    return x


forward.__qualname__ = "Net.forward"


def data():
    return enforce(dataclass(type("Data", (), {"__annotations__": {"n": int}})))


SHOW = 'annotate its tensors, as Float[Tensor, "batch 3"]'
IDLE = [
    (lambda: enforce(of()), f"f has none, so nothing is checked: {SHOW}"),
    (lambda: enforce(staticmethod(of())), f"f has none, so nothing is checked: {SHOW}"),
    (lambda: enforce(property(of(), of())), f"f has none, so nothing is checked: {SHOW}"),
    (lambda: enforce(of(x=Any)), f"the annotations of f have no tensor, so nothing is checked: {SHOW}"),
    (
        lambda: enforce(mode="strict")(of(x=int, **{"return": None})),
        f"the annotations of f have no tensor, so only their types are checked: {SHOW}",
    ),
    (data, f"the annotations of Data.__init__ have no tensor, so only their types are checked: {SHOW}"),
    (
        lambda: type("Net", (dtypeguard.GuardedModule,), {"forward": forward}),
        f"Net.forward has none, so nothing is checked: {SHOW}, "
        "or use dtypeguard.guard(model), which needs no annotations",
    ),
]


@pytest.mark.parametrize(("make", "text"), IDLE)
def test_a_contract_that_has_nothing_to_check_says_so(make, text):
    with pytest.warns(dtypeguard.DtypeGuardWarning) as caught:
        make()
    assert [str(warning.message) for warning in caught] == [f"enforce reads annotations; {text}"]
    assert caught[0].filename == __file__


@pytest.mark.parametrize("hint", [Tensor, "Row", Callable[[Tensor], int], "Undefined", list[Tensor], dict[str, "Row"]])
def test_where_a_tensor_is_named_nothing_is_said(hint):
    enforce(of(x=hint))
    enforce(property(of(), of(x=hint)))
    enforce(autocast="disable")(of())


# ---------------------------------------------------------------- annotations

# Every error row of jaxtyping's grammar, and two of its sentences.
BAD_TOKENS = ["#", "a#", "##b", "**b", "__", "#_", "_4", "*4", "?4", "_a-1", "*a-1", "a...", "a,b", "...b", "?a+1"]
BAD_AXES = [*BAD_TOKENS, "... *b", "*a *b", "... ..."]


@pytest.mark.parametrize("axes", BAD_AXES)
@pytest.mark.parametrize("around", ["{}", "{} | None", "list[{}]", "dict[str, tuple[{}, ...]]", "'{}'"])
def test_malformed_axes_raise_at_decoration_and_name_argument_and_token(axes, around):
    def f(fine, x, y): ...

    f.__annotations__ = {"fine": Tensor, "x": around.format(f'Float32[Tensor, "b {axes} 3"]'), "y": "int"}
    with pytest.raises(AnnotationError) as caught:
        enforce(f)
    assert caught.value.argument == "x"
    assert caught.value.function == "f"
    assert "`x`" in str(caught.value)
    assert f"`{axes}`" in str(caught.value) or all(f"{token}" in str(caught.value) for token in axes.split())


# Each is legal for jaxtyping, so it is for us.
GOOD_AXES = """
    a|...|*_|_*|_|dim=4|#dim=4|d=#b|d=*b|d=_|a<=3|{n}=4|*|?|d=|+3|1_000|True|class|é|#a|*a|*#a|#*a|3|_a|*_a|?a|a b c|
""".strip().split("|")


@pytest.mark.parametrize("axes", [*GOOD_AXES, "a a+1", "a b min(a,b)", "a==b", "3.0"])
def test_odd_but_legal_axes_can_be_decorated(axes):
    def f(x, y): ...

    f.__annotations__ = {"x": f'Float32[Tensor, "{axes}"]', "y": Float32[Tensor, axes]}
    assert callable(enforce(f))


@pytest.mark.parametrize("axes", ["a=b=3", "a-", "(a", "a b+", "3+", "-1", "a -3", "#-1", "d=-2"])
def test_an_axis_that_no_tensor_can_have_is_refused_at_decoration(axes):
    """jaxtyping notices only at a call."""

    def f(x: Float32[Tensor, axes]): ...

    with pytest.raises(AnnotationError, match="`x`") as caught:
        enforce(f)
    assert f"`{axes.split()[-1]}`" in str(caught.value)


MALFORMED = {
    "syntax": 'Float32[Tensor, "n"',
    "axes are no string": "Float32[Tensor, 3]",
    "no axes": "Float32[Tensor]",
    "nothing": "Float32[()]",
    "not subscriptable": "int[Tensor]",
    "attribute": "torch.NoSuchThing",
    "call": "print()(",
    "empty": "",
}


@pytest.mark.parametrize("annotation", MALFORMED.values(), ids=MALFORMED.keys())
def test_an_annotation_that_cannot_be_read_names_its_argument(annotation):
    def f(x): ...

    f.__annotations__ = {"x": annotation}
    with pytest.raises(AnnotationError, match="`x`") as caught:
        enforce(f)
    assert caught.value.argument == "x"


def test_a_malformed_annotation_is_found_at_decoration_even_beside_a_forward_reference():
    def f(x, y): ...

    f.__annotations__ = {"x": "DefinedLater", "y": 'Float32[Tensor, "a#"]'}
    with pytest.raises(AnnotationError, match="`y`"):
        enforce(f)


def test_malformed_fields_are_found_at_decoration():
    hints = {"x": 'Float32[Tensor, "a#"]'}

    def forward(self, x: 'Float32[Tensor, "a#"]'): ...

    for made in (NamedTuple("Named", hints.items()), type("Net", (nn.Module,), {"forward": forward})):
        with pytest.raises(AnnotationError, match="`x`"):
            enforce(made)


def test_an_alias_that_means_nothing_is_refused_at_decoration():
    def of(hint):
        def f(x): ...

        f.__annotations__ = {"x": hint}
        return enforce(f)

    item = TypeVar("item")
    itself = TypeAliasType("itself", "itself | None")
    grows = TypeAliasType("grows", "item | list[grows[tuple[item, item]]]", type_params=(item,))
    names = {"itself": itself, "grows": grows, "item": item}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in names.items():
            patch.setitem(globals(), name, value)
        with pytest.raises(AnnotationError, match="`itself` stands for itself"):
            of(itself)
        with pytest.raises(AnnotationError, match="`grows` grows without end"):
            of(grows[Float32[Tensor, "n"]])


PYTREE = """
import sys, types
for name in ("jax", "jax.tree_util"):  # jaxtyping has PyTree only where jax is, and asks for nothing here
    sys.modules[name] = types.ModuleType(name)
sys.modules["jax"].tree_util = sys.modules["jax.tree_util"]
import torch
from jaxtyping import Float32, PyTree
from torch import Tensor, nn
from dtypeguard import AnnotationError, enforce, guard

for hint in (PyTree[Float32[Tensor, "n"]], PyTree[Float32[Tensor, "n"], "T"], list[PyTree[int, "S T"]]):
    def f(x): return x
    f.__annotations__ = {"x": hint}
    try: enforce(f)
    except AnnotationError as error: print(error)
def f(x: PyTree): return x
assert enforce(f)(3) == 3
class Net(nn.Linear):
    def forward(self, x: PyTree[Float32[Tensor, "n"]]): return super().forward(x)
guard(Net(2, 2))(torch.ones(2))
"""


def test_a_pytree_is_refused_at_decoration():
    done = subprocess.run([sys.executable, "-c", PYTREE], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    first, second, third = (line for line in done.stdout.splitlines() if not line.startswith("  docs  "))
    assert first == (
        'f: the annotation of argument `x` is malformed: `PyTree[Float32[Tensor, "n"]]` is not supported: the axes in '
        "it are never bound; name the containers, list[...], dict[str, ...] or a dataclass, or an alias of them that "
        "names itself"
    )
    assert "the structure 'T' is never bound" in second
    assert "the structure 'S T' is never bound" in third


def test_check_reports_a_malformed_annotation_by_its_name():
    with pytest.raises(AnnotationError, match="`loss`") as caught:
        check(torch.zeros(1), 'Float32[Tensor, "a#"]', name="loss")
    assert caught.value.argument == "loss"


def test_an_axis_that_nothing_binds_is_reported_at_the_call():
    @enforce
    def f(x: Float32[Tensor, "n+1"]):
        return x

    for which in ("strict", "lenient"):
        with mode(which), pytest.raises(AnnotationError, match=r"n\+1") as caught:
            f(torch.zeros(3))
        assert caught.value.argument == "x"


def test_an_axis_that_a_bad_argument_would_have_bound_is_not_the_culprit():
    @enforce
    def f(x: Float32[Tensor, "n"], y: Float32[Tensor, "n+1"]):
        return x

    with pytest.raises(dtypeguard.ShapeError) as caught:
        f(torch.zeros(3, 3), torch.zeros(4))
    assert caught.value.argument == "x"
    with pytest.raises(dtypeguard.HintError) as caught:
        f(None, torch.zeros(4))
    assert caught.value.argument == "x"


# ---------------------------------------------------------------- the environment


def run(code, value):
    environment = {**os.environ, "DTYPEGUARD_MODE": value}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)


OFF = """
import torch, dtypeguard
from dataclasses import dataclass
from jaxtyping import Float32
from torch import Tensor, nn

def f(x: Float32[Tensor, "n"], y: 'Float32[Tensor, "a#"]' = None): return x
assert dtypeguard.enforce(f) is f
assert dtypeguard.enforce(mode="strict")(f) is f
method = staticmethod(f)
assert dtypeguard.enforce(method) is method

class Net(nn.Module):
    def forward(self, x: Float32[Tensor, "n"]): return x
forward = Net.forward
assert dtypeguard.enforce(Net) is Net and Net.forward is forward

assert dtypeguard.get_mode() == "off"
with dtypeguard.mode("strict"):
    wrong = torch.zeros(1, dtype=torch.float64)
    assert dtypeguard.check(wrong, Float32[Tensor, "2 2"], mode="strict") is wrong
try:
    dtypeguard.enforce(mode="loud")
except ValueError: pass
else: raise AssertionError("a bad option is an error in every mode")
"""


def test_off_in_the_environment_takes_enforce_away():
    done = run(OFF, " Off ")
    assert done.returncode == 0, done.stderr


def test_another_value_in_the_environment_is_an_error_that_lists_the_legal_ones():
    done = run("from dtypeguard import get_mode", "on")
    assert done.returncode != 0
    assert "ValueError" in done.stderr
    for word in ("DTYPEGUARD_MODE", "'on'", *MODES):
        assert word in done.stderr


def test_a_mode_in_the_environment_is_the_base_and_set_mode_comes_after_it():
    code = (
        "import dtypeguard as d; assert d.get_mode() == 'strict'; d.set_mode('warn'); assert d.get_mode() == 'warn'\n"
        "with d.mode('lenient'): assert d.get_mode() == 'lenient'\n"
        "import torch\n"
        "try: d.guard(torch.nn.Linear(2, 1), mode='strict')(torch.ones(1, 2).double())\n"
        "except d.DtypeError as error: assert 'called at  <string>:4, in <module>' in str(error), error"
    )
    done = run(code, "strict")
    assert done.returncode == 0, done.stderr


# ---------------------------------------------------------------- values that are hard to print


class Silent:
    def __repr__(self):
        raise ValueError("no")


HARD = [np.float32, MagicMock(), Silent(), [Silent()], {"a": Silent()}]


@pytest.mark.parametrize("value", HARD, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("hint", [Row, Float32[Any, "n"], Row | None, list[Row], Float32[np.ndarray, "n"], int])
@pytest.mark.parametrize("mode", ["strict", "lenient", "warn"])
def test_an_error_is_rendered_whatever_the_value_is(value, hint, mode):
    if mode == "warn":
        with pytest.warns(dtypeguard.ContractWarning):
            check(value, hint, mode=mode)
    else:
        with pytest.raises(dtypeguard.DtypeGuardError) as caught:
            check(value, hint, mode=mode)
        assert "argument `value" in str(caught.value)


def test_keys_that_are_hard_to_print_are_named_by_their_class():
    with pytest.raises(dtypeguard.DtypeError, match=r"argument `value\[<Silent>\]` is float64"):
        check({Silent(): torch.zeros(1, dtype=torch.float64)}, dict[Silent, Row], mode="strict")


# ---------------------------------------------------------------- wrong annotations and wrong tensors


@enforce
def one_axis_too_many(x: Float32[Tensor, "n"], y: Float32[Tensor, "n+k"]):
    return x


@pytest.mark.parametrize("name", ["lenient", "warn"])
def test_a_wrong_annotation_is_told_although_a_tensor_before_it_is_wrong_too(name):
    words = "one_axis_too_many: in the annotation of `y`, axis `n\\+k` cannot be computed: k is not bound yet"
    with (
        mode(name),
        pytest.warns(dtypeguard.DtypeGuardWarning, match="float64"),
        pytest.raises(AnnotationError) as told,
    ):
        one_axis_too_many(torch.ones(2, dtype=torch.float64), torch.ones(3))
    assert told.match(words)
    assert (told.value.function, told.value.argument) == ("one_axis_too_many", "y")
    with mode(name), pytest.raises(AnnotationError, match=words):
        one_axis_too_many(torch.ones(2), torch.ones(3))


def test_a_wrong_tensor_is_told_before_a_wrong_annotation():
    with mode("strict"), pytest.raises(dtypeguard.DtypeError, match="argument `x` is float64"):
        one_axis_too_many(torch.ones(2, dtype=torch.float64), torch.ones(3))
    with mode("lenient"), pytest.raises(dtypeguard.ShapeError, match="`x` has 2 axes"):  # without its n nobody knows
        one_axis_too_many(torch.ones(2, 2), torch.ones(3))


# An annotation of `y`, an `x` that is wrong, and what warn mode says after it: nothing if `x` is to blame.
AFTER_A_WRONG_VALUE = {
    "another axis is unbound": ("m+k", {"x": torch.ones(2, 2)}, "m is not bound yet"),
    "the axis of what is wrong": ("n+1", {"x": torch.ones(2, 2)}, None),
    "it cannot be computed at all": ("1/0", {"x": torch.ones(2, 2)}, "division by zero"),
    "an argument that is no axis": ("size+1", {"x": torch.ones(2, 2)}, "if the argument `size` is meant, write {size}"),
    "a value that is no size": ("{size}", {"x": torch.ones(2), "size": "a"}, None),
    "the shape of what is wrong": ("{x.shape[0]}", {"x": None}, None),
    "an array that is made a tensor": ("n+k", {"x": np.ones(2, dtype=np.float32)}, "k is not bound yet"),
}


@pytest.mark.parametrize("case", AFTER_A_WRONG_VALUE)
def test_a_wrong_value_is_to_blame_for_its_own_axes_only(case):
    axis, given, words = AFTER_A_WRONG_VALUE[case]
    hint = Float32[Tensor, axis]

    @enforce
    def f(x: Float32[Tensor, "n"], size: int = 2, y: hint | None = None):
        return None

    told = contextlib.nullcontext() if words is None else pytest.raises(AnnotationError, match=words)
    with mode("warn"), pytest.warns(dtypeguard.DtypeGuardWarning, match="the annotation wants"), told:
        f(**given, y=torch.ones(3))
    with mode("strict"), pytest.raises((dtypeguard.ShapeError, dtypeguard.HintError)):
        f(**given, y=torch.ones(3))


def test_what_a_wrong_annotation_stands_in_is_looked_at_as_a_whole():
    pair = tuple[Row, Float32[Tensor, "n+k"]]
    with pytest.raises(dtypeguard.DtypeError, match=r"argument `value\[0\]` is float64"):
        check((torch.ones(2, dtype=torch.float64), torch.ones(3)), pair | None, mode="strict")
    either = Float32[Tensor, "n+k"] | Int64[Tensor, "m"]
    check(torch.ones(2, dtype=torch.int64), either, mode="strict")  # what another option accepts is right
    with pytest.raises(AnnotationError, match="n is not bound yet"):
        check(torch.ones(2), either, mode="strict")


class Broken(nn.Module):
    def forward(self, a, b: Float[Tensor, "n+k"]):
        raise RuntimeError("expected scalar type Float")


def test_an_error_of_the_body_stays_the_error_although_an_annotation_is_wrong():
    model = dtypeguard.guard(Broken(), dtype=torch.float32)
    with mode("off"), pytest.raises(RuntimeError, match="expected scalar type Float"):
        model(torch.ones(2, dtype=torch.float64), torch.ones(2))


def test_a_list_that_a_wrong_annotation_left_half_checked_is_checked_as_the_next_argument():
    @enforce(mode="strict")
    def f(x: Row, rows: list[Float32[Tensor, "n+k"]], same: list[Row]):
        return x

    rows = [torch.ones(2, dtype=torch.float64)]
    with pytest.raises(dtypeguard.DtypeError) as told:
        f(torch.ones(2, dtype=torch.float64), rows, rows)
    assert [violation.partition(" is ")[0] for violation in told.value.violations] == [
        "argument `x`",
        "argument `rows[0]`",
        "argument `same[0]`",
    ]


# ---------------------------------------------------------------- names and values are never code

RAN: list[str] = []
CODE = "x or RAN.append('here')"


def a_dataclass():
    made = dataclass(init=False)(type("Odd", (), {"__annotations__": {CODE: Row}}))
    value = made()
    setattr(value, CODE, torch.ones(2))
    return made, value


def a_typed_dict():
    return TypedDict("Odd", {CODE: Row}), {CODE: torch.ones(2)}


@pytest.mark.parametrize("make", [a_dataclass, a_typed_dict])
def test_the_name_of_a_field_is_no_code(make):
    hint, value = make()

    @enforce(mode="strict")
    def f(held: hint):
        return held

    assert f(value) is value
    wrong = torch.ones(2, dtype=torch.float64)
    value.__setitem__(CODE, wrong) if isinstance(value, dict) else setattr(value, CODE, wrong)
    with pytest.raises(dtypeguard.DtypeError, match=r"argument `held.* is float64"):
        f(value)
    assert RAN == []


@enforce(mode="strict")
def sized(x: Float32[Tensor, "{size} {size}+1"], size: Any):
    return x


@pytest.mark.parametrize("size", [3, "3", 3.0, np.int64(3), torch.tensor(3)], ids=repr)
def test_a_value_in_an_annotation_is_a_number(size):
    sized(torch.ones(3, 4), size)
    with pytest.raises(dtypeguard.ShapeError):
        sized(torch.ones(4, 4), size)


@pytest.mark.parametrize(
    "size",
    ["RAN.append('here')", "3 if RAN.append('here') else 3", "n", "3+0", "0x3", "True", "-3", "3#", "", 2.5, None],
)
def test_a_value_in_an_annotation_is_no_code(size):
    with pytest.raises(AnnotationError, match=r"\{size\} is .*, which is neither an integer nor digits"):
        sized(torch.ones(3, 4), size)
    assert RAN == []


@pytest.mark.parametrize("axis", ["'+size+'", "''+size", "'a'", "'%s'%size"])
def test_a_quote_does_not_end_an_axis(axis):
    @enforce(mode="strict")
    def f(x: Float32[Tensor, axis], size: Any):
        return x

    with pytest.raises(AnnotationError, match="cannot be computed: SyntaxError"):
        f(torch.ones(3), "RAN.append('here')")
    assert RAN == []


# Axes with braces, the size that they mean, and the arguments that they name; jaxtyping gives the same sizes.
FILLED = [
    ("{n}+1", 4, {"n": 3}), ("{n}{m}", 35, {"n": 3, "m": 5}), ("-{n}", 3, {"n": -3}), ("{n//2}*2", 2, {"n": 3}),
    ("{n}+1", 2, {"n": True}), ("{n!s}", 3, {"n": 3}), ("{n!r}", 3, {"n": 3}), ("{n:d}", 3, {"n": 3}),
    ("{n:+}", 3, {"n": 3}), ("{n:5}", 3, {"n": 3}), ("{n:{m}}", 3, {"n": 3, "m": 5}), ("{n:_}", 1000, {"n": 1000}),
    ("{n:#x}", 16, {"n": 16}), ("{n.shape[0]}", 3, {"n": torch.ones(3)}), ("min({n},{m})", 3, {"n": 3, "m": 5}),
    ("{n}**2+9", 5, {"n": -2}), ("1{n}", 13, {"n": 3}), ("{n/2}", 3, {"n": 6}), ("{n}", 3, {"n": "3"}),
]  # fmt: skip


@pytest.mark.parametrize(("axis", "size", "given"), FILLED, ids=[f"{axis} {given}" for axis, _, given in FILLED])
def test_an_integer_in_an_axis_is_what_jaxtyping_reads(axis, size, given):
    def f(x, n=None, m=None):
        return isinstance(x, hint)

    hint = Float32[Tensor, axis]
    f.__annotations__["x"] = hint
    plain = jaxtyped(typechecker=None)(f)
    checked = enforce(f, mode="strict")
    assert checked(torch.ones(size), **given) is plain(torch.ones(size), **given) is True
    assert plain(torch.ones(size + 1), **given) is False
    with pytest.raises(dtypeguard.ShapeError):
        checked(torch.ones(size + 1), **given)
