"""What a wrong annotation, option or object is answered, word for word, against tests/golden/errors.txt.

`python tests/test_error_texts.py` writes the file anew; read the difference before you commit it. The messages about
values are in `test_messages`.
"""

import dataclasses
import re
import warnings
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple, TypedDict

import numpy as np
import pytest
import torch
from jaxtyping import Bool, Complex64, Float, Float32, Float64, Int64, UInt8
from torch import Tensor, nn

import dtypeguard
from dtypeguard import enforce, guard

GOLDEN = Path(__file__).parent / "golden" / "errors.txt"
F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64


def f(*shape, dtype=F32):
    return torch.ones(shape, dtype=dtype)


CASES = {}


def says(mode="strict"):
    """Something whose error and warnings are written down."""

    def add(function):
        CASES[function.__name__] = (mode, function)
        return function

    return add


def check(name, make, annotation, mode="strict", **options):
    CASES[name] = (mode, lambda: dtypeguard.check(make(), annotation, name="x", **options))


# ---------------------------------------------------------------- annotations


def annotated(text):
    def function(x):
        return x

    function.__annotations__ = {"x": text}
    return function


DIMS = """a,b c# *a... ##b **b __ #_ *3 _3 ?3 *n+1 _n+1 ?n+1 n+ (n""".split()
DIMS_OF_A_CALL = """?n *?n m+1 n-{k} {x.shape[9]} n//0""".split()
HINTS = [F32, torch.int64, Float32, Float, torch.ones(2), 3, b"n", [Tensor], (Tensor, int), {}, list[3]]
HINTS += [
    "float32",
    "Float32[Tensor, '-1']",
    "Float32[Tensor",
    "Float32[Tensor, 'a,b']",
    "list['Float32[Tensor, \"##b\"]']",
]
for dims in [*DIMS, "... *n", "... ..."]:
    CASES[f"axes: {dims}"] = ("strict", lambda dims=dims: enforce(annotated(f'Float32[Tensor, "{dims}"]')))
for dims in DIMS_OF_A_CALL:
    CASES[f"axes of a call: {dims}"] = (
        "strict",
        lambda dims=dims: enforce(annotated(f'Float32[Tensor, "n {dims}"]'))(f(2, 2)),
    )
for hint in HINTS:
    CASES[f"hint: {hint}"] = ("strict", lambda hint=hint: dtypeguard.check(f(2), hint))


@says()
def a_name_that_does_not_exist():
    dtypeguard.check(f(2), "Nowhere[Tensor, 'n']")


@says()
def a_name_that_does_not_exist_at_the_call():
    enforce(annotated("Nowhere[Tensor, 'n']"))(f(2))


@says()
def a_malformed_result():
    def function(x):
        return x

    function.__annotations__ = {"return": "Float32[Tensor, 'a,b']"}
    enforce(function)


@says()
def a_malformed_item_of_a_generator():
    def function(x):
        yield x

    function.__annotations__ = {"return": Iterator[Float32[Tensor, "n+"]]}
    enforce(function)


@says()
def a_result_of_integers():
    def function(n) -> Float32[Tensor, "n"]:
        return torch.arange(n)

    enforce(function)(2)


@says()
def an_item_of_integers_that_a_generator_yields():
    def function(n) -> Iterator[Float32[Tensor, "n"]]:
        yield torch.arange(n)

    next(enforce(function)(2))


@says()
def a_malformed_field():
    @enforce
    @dataclasses.dataclass
    class Row:
        x: "Float32[Tensor, 'a,b']"


# ---------------------------------------------------------------- options and objects


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 2)

    def forward(self, x, mask=None):
        return self.fc(x)


class Static(nn.Module):
    @staticmethod
    def forward(x):
        return x


class Odd(nn.Module):
    forward = nn.Linear(2, 2)


class Fixed(Net):
    """As classes that are written in C."""

    @property
    def __class__(self):
        return Fixed

    @__class__.setter
    def __class__(self, cls):
        if cls is not Fixed:
            raise TypeError("it is final")


class Plain:
    pass


@dataclasses.dataclass
class Parent:
    x: int


def stream(x: Float32[Tensor, "n"]):
    yield x


def unreadable(x):
    return x


unreadable.__signature__ = "none"


def watched():
    return dtypeguard.amp.watch(net := Net(), torch.optim.SGD(net.parameters()))


OPTIONS = {
    "enforce(mode='loud')": lambda: enforce(mode="loud"),
    "enforce(casting='anything')": lambda: enforce(casting="anything"),
    "enforce(autocast='on')": lambda: enforce(autocast="on"),
    "enforce(verify='maybe')": lambda: enforce(verify="maybe"),
    "enforce(mutates=3)": lambda: enforce(mutates=3),
    "enforce(mutates='y')": lambda: enforce(mutates="y")(annotated("int")),
    "enforce(mutates=('z', 'y'))": lambda: enforce(mutates=("z", "y"))(annotated("int")),
    "enforce(anchor='y')": lambda: enforce(anchor="y")(annotated("int")),
    "enforce(anchor='x') of an int": lambda: enforce(anchor="x")(annotated("int")),
    "enforce(mutates='x') of an int": lambda: enforce(mutates="x")(annotated("int")),
    "enforce(autocast='disable') of a generator": lambda: enforce(autocast="disable")(stream),
    "enforce a model": lambda: enforce(Net()),
    "enforce a number": lambda: enforce(3),
    "enforce a builtin": lambda: enforce(len),
    "enforce what has no signature": lambda: enforce(unreadable),
    "enforce a class": lambda: enforce(Plain),
    "enforce a dataclass too early": lambda: enforce(type("Child", (Parent,), {})),
    "mode('loud')": lambda: dtypeguard.mode("loud"),
    "mode()": lambda: dtypeguard.mode(),
    "mode(casting='any')": lambda: dtypeguard.mode(casting="any"),
    "mode(casting=) of a class": lambda: dtypeguard.mode(casting="promote")(Net),
    "set_mode('loud')": lambda: dtypeguard.set_mode("loud"),
    "mode of a generator": lambda: dtypeguard.mode("strict")(stream),
    "guard(depth='deep')": lambda: guard(Net(), depth="deep"),
    "guard(skip_args=0)": lambda: guard(Net(), skip_args=0),
    "guard(skip_args=['x', None])": lambda: guard(Net(), skip_args=["x", None]),
    "guard(skip_args='y')": lambda: guard(Net(), skip_args="y"),
    "guard(skip_modules=3)": lambda: guard(Net(), skip_modules=3),
    "guard(skip_modules='head')": lambda: guard(Net(), skip_modules="head"),
    "guard(move_args=b'x')": lambda: guard(Net(), move_args=b"x"),
    "guard(skip_modules='bloks.*')": lambda: guard(
        nn.Sequential(OrderedDict(blocks=nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)))), skip_modules="bloks.*"
    ),
    "guard(dtype='float8')": lambda: guard(Net(), dtype="float8"),
    "a misspelt annotation": lambda: enforce(annotated("Flaot32[Tensor, 'n']"))(1),
    "guard(dtype=torch.int64)": lambda: guard(Net(), dtype=torch.int64),
    "guard(output_dtype='int8')": lambda: guard(Net(), output_dtype="int8"),
    "guard(skip_args=('y',))": lambda: guard(Net(), skip_args=("y",)),
    "guard(move_args=('y',))": lambda: guard(Net(), move_args=("y",)),
    "guard(mode='loud')": lambda: guard(Net(), mode="loud"),
    "guard(casting='anything')": lambda: guard(Net(), casting="anything"),
    "guard(autocast='on')": lambda: guard(Net(), autocast="on"),
    "guard(verify='maybe')": lambda: guard(Net(), verify="maybe"),
    "guard a class": lambda: guard(Net),
    "guard None": lambda: guard(None),
    "guard a function": lambda: guard(f),
    "guard a number": lambda: guard(3),
    "guard a script": lambda: guard(torch.jit.script(nn.Linear(2, 2))),
    "guard what is lazy": lambda: guard(nn.LazyLinear(2)),
    "guard what holds something lazy": lambda: guard(nn.Sequential(nn.Linear(2, 2), nn.LazyBatchNorm1d())),
    "guard what has no forward": lambda: guard(nn.ModuleList([nn.Linear(2, 2)])),
    "guard a forward that is no function": lambda: guard(Odd()),
    "guard what keeps its class": lambda: guard(Fixed()),
    "script a guarded model": lambda: torch.jit.script(guard(nn.ReLU())),
    "unguard a number": lambda: dtypeguard.unguard(3),
    "guard(mod=)": lambda: guard(Net(), mod="strict"),
    "a guarded block with mod=": lambda: dtypeguard.guarded(Net(), mod="strict").__enter__(),
    "unguard(loud=)": lambda: dtypeguard.unguard(Net(), loud=True),
    "enforce(mutate=)": lambda: enforce(mutate="x"),
    "enforce(f, mutate=)": lambda: enforce(f, mutate="x"),
    "set_mode(undr=)": lambda: dtypeguard.set_mode("strict", undr="src"),
    "install_import_hook(casing=)": lambda: dtypeguard.install_import_hook("here", casing="safe"),
    "watch(metric=)": lambda: dtypeguard.amp.watch(Net(), torch.optim.SGD(Net().parameters()), metric=3),
    "capture(loss=)": lambda: dtypeguard.capture(Net(), f(2), "x.safetensors", loss=sum),
    "mode('lenint')": lambda: dtypeguard.mode("lenint"),
    "guard(depth='boundry')": lambda: guard(Net(), depth="boundry"),
    "a name that is misspelt": lambda: dtypeguard.gaurd,
    "a name of a module that is misspelt": lambda: dtypeguard.amp.wacth,
    "mode(cast=)": lambda: dtypeguard.mode("off", cast="safe"),
    "enforce('strict')": lambda: enforce("strict"),
    "guard(device='gpu')": lambda: guard(Net(), device="gpu"),
    "guard(device='tpu')": lambda: guard(Net(), device="tpu"),
    "a name that is unknown": lambda: dtypeguard.blue,
    "audit of a batch function without a return": lambda: dtypeguard.audit(Net(), None),
    "a guarded block of None": lambda: dtypeguard.guarded(None).__enter__(),
    "capture without a batch": lambda: dtypeguard.capture(Net(), None, "x.safetensors"),
    "capture what is on meta": lambda: dtypeguard.capture(Net().to("meta"), f(2), "x.safetensors"),
    "capture what does not run": lambda: dtypeguard.capture(torch.nn.functional.relu, (), "x.safetensors"),
    "capture a class": lambda: dtypeguard.capture(Net, f(2), "x.safetensors"),
    "a manifest with another batch": lambda: dtypeguard.manifest(Net(), None, {}),
    "a manifest with a batch for an optimizer": lambda: dtypeguard.manifest(Net(), f(2)),
    "enforce(anchor=3)": lambda: enforce(anchor=3),
    "guard(skip_args='x,z')": lambda: guard(Net(), skip_args="x,z"),
    "guard(dtype='bf16,fp16')": lambda: guard(Net(), dtype="bf16,fp16"),
    "mode('strict', 'promote')": lambda: dtypeguard.mode("strict", "promote"),
    "an audit that has not run": lambda: dtypeguard.audit(Net()).findings,
    "check_ranks of a number": lambda: dtypeguard.distributed.check_ranks(3),
    "log(step='a')": lambda: watched().log(print, "a"),
    "log(grup=)": lambda: watched().log(print, 1, grup=1),
    "a picture that is no SVG": lambda: watched().history.to_svg("x.png"),
    "a strategy of a dtype": lambda: dtypeguard.testing.tensors(F32),
    "GuardedModule()": lambda: dtypeguard.GuardedModule(),
}  # fmt: skip
CASES |= {name: ("strict", call) for name, call in OPTIONS.items()}


# ---------------------------------------------------------------- values


class Row(TypedDict):
    image: Float32[Tensor, "n"]
    label: Int64[Tensor, ""]


class Pair(NamedTuple):
    image: Float32[Tensor, "n"]
    label: int


check("keys are missing", lambda: {"other": f(2)}, Row)
check("a key is misspelt", lambda: {"label": f(2), "imgae": f(2)}, Row)
check("a tuple of another length", lambda: (f(2), f(2)), tuple[Float32[Tensor, "n"]])
check("a tuple for a list", lambda: (f(2), f(2)), list[Float32[Tensor, "n"]])
check("a list for a tuple", lambda: [f(2)], tuple[Float32[Tensor, "n"]])
check("a list for a dict", lambda: [f(2)], dict[str, Float32[Tensor, "n"]])
check("a tensor for a NamedTuple", lambda: f(2), Pair)
check("a tensor for a list of tensors", lambda: f(2, 2), list[Float32[Tensor, "n"]])
check("a tensor for None", lambda: f(2), None)
check("a word that is not listed", lambda: "sum", Literal["mean", "max"] | None)
check("a list where an array is wanted", lambda: [1.0], Float32[np.ndarray, "n"])
check("an array of another dtype", lambda: np.ones(2), Float32[np.ndarray, "n"])
check("an array for a tensor", lambda: np.ones(2, dtype=np.float32), Float32[Tensor, "n"])
check("a tensor for a parameter", lambda: f(2), Float32[nn.Parameter, "n"], mode="lenient")
check(
    "a subclass that a cast does not keep", lambda: nn.Parameter(f(2, dtype=F64)), Float32[nn.Parameter, "n"], "lenient"
)
check("a tensor of tensors", lambda: torch.nested.nested_tensor([f(2), f(3)]), Float32[Tensor, "b n"])
check("a parameter without a shape", lambda: nn.UninitializedParameter(), Float32[Tensor, "n"])
check("a quantized tensor", lambda: torch.quantize_per_tensor(f(2), 0.1, 0, torch.qint8), Float32[Tensor, "n"])
_SEVERAL = Float[Tensor, "n"] | Int64[Tensor, "n m"]
for _mode in ("strict", "lenient"):
    check(f"a bool tensor for either of two, {_mode}", lambda: f(2, dtype=torch.bool), _SEVERAL, _mode)
check("the dtype of one of two and the axes of the other", lambda: f(2, 2), _SEVERAL)
check("no tensor for one of three", lambda: 3, _SEVERAL | list[Bool[Tensor, "n"]])
check("a wrong size for one of two", lambda: f(2), Float32[Tensor, "3"] | Float64[Tensor, "3"])
check("a layout that cannot be cast", lambda: f(2, 2).to_mkldnn(), Float64[Tensor, "n m"], "lenient")
check("a union", lambda: torch.ones(2, dtype=torch.int64), Float32[Tensor, "n"] | Float32[Tensor, "n m"])
check("a mask of integers", lambda: torch.ones(2, dtype=torch.int64), Float32[Tensor, "n"] | Bool[Tensor, "n"])
check("a rung that is too low", lambda: f(2, dtype=F64), Float32[Tensor, "n"], "lenient", casting="safe")
check("values that are too large", lambda: f(2, dtype=F64) * 1e300, Float32[Tensor, "n"], "lenient")
KINDS = [torch.bool, torch.int64, F32, torch.complex64, torch.float8_e5m2]
WANTED = [Bool[Tensor, "n"], UInt8[Tensor, "n"], Float[Tensor, "n"], Float32[Tensor, "n"], Complex64[Tensor, "n"]]
for dtype in KINDS:
    for wanted in WANTED:
        if not isinstance(torch.ones(2).to(dtype), wanted):
            check(f"{dtype} for {wanted.__name__}", lambda dtype=dtype: torch.ones(2).to(dtype), wanted)


@enforce(mutates=("out",))
def add_into(x: Float32[Tensor, "n"], out: Float32[Tensor, "n"], *, anchor: Float32[Tensor, "..."] = None):
    out.add_(x)


@enforce
def write(x: Float32[Tensor, "n"]):
    x.add_(1)


@enforce
def ask(x: Float32[Tensor, "n"]):
    x.requires_grad_()


@enforce
def append(x: list[Float32[Tensor, "n"]]):
    x.append(x[0])


@enforce
def double(x: Float32[Tensor, "n"]) -> Float32[Tensor, "n"]:
    return x.double()


@enforce
def attend(scores: Float32[Tensor, "n"], attention_mask: Float32[Tensor, "n"]):
    return (scores + attention_mask).softmax(-1)


@enforce(anchor="x")
def join(x: Float32[Tensor, "n"], y: Float[Tensor, "n"]):
    return x


@says("lenient")
def an_argument_is_written_to():
    add_into(f(2), [f(2, dtype=F64)][0])


@says()
def a_mask_that_hides_is_given_where_one_is_added():
    attend(f(2), f(2) == 1)


@says("lenient")
def a_meta_tensor_cannot_be_moved():
    guard(Net())(f(1, 2).to("meta"))


@says("lenient")
def a_cast_that_is_written_to():
    write(f(2, dtype=F64))


@says("lenient")
def a_cast_of_a_guard_that_is_written_to():
    guard(nn.ReLU(inplace=True), dtype=F32)(f(2, dtype=F64))


@says("lenient")
def a_cast_whose_gradient_is_asked_for():
    ask(f(2, dtype=F64))


@says("lenient")
def a_rebuilt_list_that_is_changed():
    append([f(2, dtype=F64)])


@says("lenient")
def a_result_is_cast():
    double(f(2))


@says("lenient")
def an_array_is_converted():
    ask(np.ones(2, dtype=np.float32))


@says("lenient")
def an_array_is_converted_and_cast():
    ask(np.ones(2))


@says("lenient")
def an_array_is_cast():
    dtypeguard.check(np.ones(2), Float32[np.ndarray, "n"])


@says("lenient")
def a_tensor_is_moved():
    guard(Net().to("meta"))(f(1, 2))


@says("lenient")
def a_tensor_is_cast_and_moved():
    guard(Net().to("meta"))(f(1, 2, dtype=F64))


@says()
def the_anchor_is_to_be_cast_itself():
    join(f(2, dtype=F64), f(2, dtype=F64))


@says()
def the_anchor_is_right():
    join(f(2), f(2, dtype=F64))


@says()
def an_output_dtype():
    guard(Net(), output_dtype=BF16)(f(1, 2))


@says()
def a_guard_that_was_told_a_device():
    guard(Net(), device="meta")(f(1, 2))


@says()
def buffers_are_the_anchor():
    guard(nn.BatchNorm1d(2, affine=False))(f(1, 2, dtype=F64))


@says("warn")
def a_report():
    join(f(2), f(2, dtype=F64))


@says("warn")
def a_report_of_what_the_default_rule_does_not_cast():
    dtypeguard.check(torch.ones(2, dtype=torch.int64), Bool[Tensor, "n"], name="x")


@says()
def torch_s_own_error():
    guard(Net(), skip_args=("x",))(f(1, 2, dtype=F64))


@says()
def torch_s_own_error_of_a_loss():
    classes = torch.ones(2, dtype=torch.int32)
    guard(nn.CrossEntropyLoss(weight=f(2, dtype=F64)))(f(2, 2), classes)


@says("lenient")
def torch_s_own_error_after_a_repair():
    class Mixed(Net):
        def forward(self, x, mask=None):
            return self.fc(x.double())

    guard(Mixed())(f(1, 2, dtype=F64))


# ---------------------------------------------------------------- the file


VARIES = {  # from one run, Python or torch to the next
    r"at 0x\w+>: [\w<].*": "at ...>: ...",
    r":\d+, in ": ":LINE, in ",
    r"(?m)((defined|return) at .*):\d+$": r"\1:LINE",
    r"integer division or modulo by zero": "division by zero",  # Python < 3.14: more words; goes with that floor
    r"no Python expression \(.*\)": "no Python expression (...)",
    r"(?m)^RuntimeError: .*": "RuntimeError: ...",
}


def text_of(name):
    mode, call = CASES[name]
    lines = []
    with warnings.catch_warnings(record=True) as caught, dtypeguard.mode(mode):
        warnings.simplefilter("ignore")  # of torch
        warnings.simplefilter("always", dtypeguard.DtypeGuardWarning)
        try:
            call()
        except Exception as error:
            lines = [f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())]
    text = "\n".join([*(f"{w.category.__name__}: {w.message}" for w in caught), *lines])
    for pattern, instead in VARIES.items():
        text = re.sub(pattern, instead, text)
    return text


def golden():
    parts = re.split(r"^== (.*)$", GOLDEN.read_text() if GOLDEN.exists() else "", flags=re.MULTILINE)[1:]
    return {name: text.strip("\n") for name, text in zip(parts[::2], parts[1::2], strict=True)}


def write_golden():
    GOLDEN.write_text("\n".join(f"== {name}\n{text_of(name)}\n" for name in CASES))


def test_the_golden_file_holds_these_cases():
    assert list(golden()) == list(CASES)


@pytest.mark.parametrize("name", CASES)
def test_the_text(name):
    assert text_of(name) == golden()[name] != ""


if __name__ == "__main__":
    write_golden()


@enforce(mode="strict")
def rows(x: Float32[Tensor, "b 4"]):
    return x


@enforce(mode="strict")
def images(x: Float32[Tensor, "b 3 h w"]):
    return x


@enforce(mode="strict")
def image(x: Float32[Tensor, "3 h w"]):
    return x


@enforce(mode="strict")
def table(x: Float32[Tensor, "rows columns"]):
    return x


@enforce(mode="strict")
def loose(x: Float32[Tensor, "b 1 h"]):
    return x


@enforce(mode="strict")
def either(x: Float32[Tensor, "b 3"] | Int64[Tensor, "b 4"]):
    return x


SHAPES = [
    (rows, (4,), "x.unsqueeze(0)"),
    (rows, (4, 3), "if the axes are swapped: x.transpose(-1, -2)"),
    (rows, (3, 4, 1), "x.squeeze(2)"),
    (rows, (3, 2, 2), "x.flatten(1)"),
    (rows, (3, 5), None),
    (images, (2, 8, 8, 3), "if the axes are swapped: x.permute(0, 3, 1, 2)"),
    (images, (3, 8, 8), "x.unsqueeze(0)"),
    (image, (4, 5, 3), "if the axes are swapped: x.permute(2, 0, 1)"),
    (table, (5,), "x.unsqueeze(0), or x.unsqueeze(-1)"),
    (table, (1, 5, 2), "x.squeeze(0), or x.flatten(1)"),
    (table, (1, 5, 1), "x.squeeze(0), or x.squeeze(2)"),
    (loose, (2, 5), "x.unsqueeze(1)"),
    (either, (3,), "x.unsqueeze(0)"),
]


@pytest.mark.parametrize(
    ("most", "fix"), [(1, "(x * 255).round().to(torch.uint8)"), (200, "x.round().to(torch.uint8)")]
)
def test_a_float_image_is_scaled_before_it_becomes_uint8(most, fix):
    @enforce(mode="strict")
    def image(x: UInt8[Tensor, "3 h w"]):
        return x

    x = torch.rand(3, 4, 4) * most
    with pytest.raises(dtypeguard.DtypeError) as told:
        image(x)
    assert told.value.fix.partition(", or ")[0] == fix
    assert image(eval(fix)).unique().numel() > 2
    with pytest.raises(dtypeguard.DtypeError, match=r"\(\(x - 0\.0\) \* 255\)" if most == 1 else "x - 0"):
        image(x - 0.0)


@pytest.mark.parametrize(("function", "shape", "fix"), SHAPES, ids=[str(shape) for _, shape, _ in SHAPES])
def test_a_shape_error_says_what_gives_the_axes_that_are_asked_for(function, shape, fix):
    x = torch.ones(shape)
    with pytest.raises(dtypeguard.ShapeError) as told:
        function(x)
    assert told.value.fix == fix
    if fix is not None:
        for way in fix.rpartition(": ")[2].split(", or "):
            function(eval(way, {"x": x}))


@pytest.mark.parametrize("tool", ["guard", "describe", "dryrun", "manifest", "compare", "diff"])
def test_a_function_that_makes_a_model_is_to_be_called(tool):
    def make():
        return Net()

    others = {"compare": [torch.ones(1, 2)], "diff": [Net(), torch.ones(1, 2)]}
    with pytest.raises(TypeError) as told:
        getattr(dtypeguard, tool)(make, *others.get(tool, []))
    assert str(told.value) == f"{tool} takes a model, not the function make: if it makes one, pass make()"
