"""What the caller wrote for an argument is named in errors and warnings, where that is certain."""

import functools
import logging
import warnings

import pytest
import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor, nn

import dtypeguard
from dtypeguard import DtypeGuardError, enforce, guard

F32, F64 = torch.float32, torch.float64


@enforce
def mse(
    pred: Float32[Tensor, "n"],
    target: Float32[Tensor, "n"] | None = None,
    *more: Float32[Tensor, "n"],
    weight: Float32[Tensor, "n"] | None = None,
    **named: Float32[Tensor, "n"],
):
    return pred


@enforce
def stack(items: list[Float32[Tensor, "n"]], by_name: dict[str, Float32[Tensor, "n"]] | None = None):
    return items


@enforce
def stream(x: Float32[Tensor, "n"]):
    yield x


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 2)
        self.loss = mse

    @enforce
    def forward(self, x: Float[Tensor, "n 2"], t: Float[Tensor, "n"] | None = None):
        return self.fc(x)

    def step(self, row):
        return self.loss(self.scaled(row["x"]), row["y"][0])

    def scaled(self, x):
        return x / 2

    @enforce
    def project(self, x: Float[Tensor, "n 2"]):
        return x


class Wider(Net):
    def forward(self, x, t=None):
        return super().forward(x * 2, t)


class Store:
    parts = (torch.ones(2), torch.ones(2, dtype=F64))


def logged(function):
    @functools.wraps(function)
    def log(*args, **kwargs):
        return function(*args, **kwargs)

    return log


good, bad, image = torch.ones(2), torch.ones(2, dtype=F64), torch.ones(2, 2, dtype=F64)
batch, steps, both, options = {"image": image, "rows": [good, bad]}, bad * 3, (good, bad), {"weight": bad}
net, linear = Net(), guard(nn.Linear(2, 2))
chain = nn.Sequential(nn.ReLU(), linear)
hooked, changed = guard(nn.Linear(2, 2)), guard(nn.Linear(2, 2))
hooked.register_forward_hook(lambda module, args, result: None)
hooked.register_forward_pre_hook(lambda module, args: None)
changed.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
behind = functools.partial(mse, good)
logged_mse = logged(mse)
once = torch.no_grad()(mse)


def fix(text):
    return f"{text}.to(torch.float32)"


TOLD = {  # a call, and what its error names; the name of the parameter where that is not certain
    "a name": (lambda: mse(bad), "bad"),
    "a keyword": (lambda: mse(target=bad, pred=good), "bad"),
    "an item": (lambda: net(batch["image"]), 'batch["image"]'),
    "an operation": (lambda: net(x=image.float(), t=steps / 10), "steps / 10"),
    "a choice": (lambda: mse(good, weight=bad if True else good), "bad if True else good"),
    "a call": (lambda: mse(bad.clone()), "bad.clone()"),
    "several lines": (
        lambda: net(
            batch["image"]  # a comment
            + 1
        ),
        "batch['image'] + 1",
    ),
    "an item of *args": (lambda: mse(good, good, good, bad + 1), "bad + 1"),
    "an item of **kwargs": (lambda: mse(good, extra=bad[:2]), "bad[:2]"),
    "a list in a dict": (lambda: stack(batch["rows"]), 'batch["rows"][1]'),
    "a list that is written out": (lambda: stack([good, bad * 2]), "bad * 2"),
    "a dict that is written out": (lambda: stack([good], {"a": bad * 2}), "bad * 2"),
    "an attribute": (lambda: stack(list(Store.parts)), None),
    "a module's attribute": (lambda: net.step({"x": good, "y": [bad]}), 'row["y"][0]'),
    "a method": (lambda: net.project(image + 1), "image + 1"),
    "a method of the class": (lambda: Net.project(net, image + 1), "image + 1"),
    "super()": (lambda: Wider()(image), "x * 2"),
    "a guarded module": (lambda: linear(image + 1), "image + 1"),
    "its forward": (lambda: linear.forward(image + 1), "image + 1"),
    "a module made here": (lambda: guard(nn.Linear(2, 2))(image + 1), "image + 1"),
    "a module with hooks": (lambda: hooked(image + 1), "image + 1"),
    "a module with a hook, by a keyword": (lambda: hooked(input=image + 1), "image + 1"),
    "a module whose hook changes the arguments": (lambda: changed(image + 1), None),
    "a module that torch calls": (lambda: chain(image + 1), None),
    "a check": (lambda: dtypeguard.check(batch["image"], Float32[Tensor, "n m"]), 'batch["image"]'),
    "no_grad around": (lambda: once(bad + 1), "bad + 1"),
    "a list comprehension": (lambda: [mse(x) for x in [bad]], "x"),
    "map": (lambda: list(map(mse, [bad])), None),
    "map, consumed by a method": (lambda: [].extend(map(mse, [bad])), None),
    "map, in a loop": (lambda: [0 for _ in map(mse, [bad])], None),
    "reduce": (lambda: functools.reduce(mse, [good, bad]), None),
    "a partial of a global name": (lambda: behind(bad), None),
    "a decorator around": (lambda: logged_mse(bad + 1), None),
    "*args": (lambda: mse(*both), None),
    "arguments before *args": (lambda: mse(bad + 1, *both[:1]), "bad + 1"),
    "**kwargs": (lambda: mse(good, **options), None),
    "a long expression": (lambda: mse(bad + bad + bad + bad + bad + bad + bad + bad + bad + bad + bad), None),
    "a generator, started later": (lambda: next(stream(bad + 1)), None),
    "a generator, consumed by a list": (lambda: list(stream(bad + 1)), None),
    "eval, which has no source": (lambda: eval("mse(bad + 1)", globals()), None),
    "exec of a file that is gone": (lambda: exec(compile("mse(bad + 1)", "gone.py", "exec"), globals()), None),
}


@pytest.mark.parametrize("way", TOLD)
def test_an_error_names_what_the_caller_wrote(way):
    call, text = TOLD[way]
    with dtypeguard.mode("strict"), pytest.raises(DtypeGuardError) as caught:
        call()
    error = caught.value
    if text is None:
        assert error.expression is None
        assert error.fix == fix(error.argument)
        assert "passed as" not in str(error)
    else:
        operand = f"({text})" if " " in text else text
        assert error.expression == text
        assert error.fix.endswith(fix(operand))
        assert f"  passed as  {text}\n" in str(error)


def test_a_cast_at_the_end_of_an_argument_makes_way_for_the_one_that_is_wanted():
    @enforce
    def looked_up(ids: Int64[Tensor, "n"], scale: Float32[Tensor, "n"]) -> Float32[Tensor, "n"]:
        return scale

    ids = torch.arange(3)
    calls = {
        "ids.to(torch.int64)": lambda: looked_up(ids.float(), good),
        "(ids + 1).to(torch.int64)": lambda: looked_up((ids + 1).to(torch.int32), good),
        "good.to(torch.float32)": lambda: looked_up(ids, good.to(dtype=torch.float64)),
        "good.long().to(torch.float32)": lambda: looked_up(ids, good.long()),  # which truncates
    }
    for text, call in calls.items():
        with dtypeguard.mode("strict"), pytest.raises(dtypeguard.DtypeError) as caught:
            call()
        assert caught.value.fix.startswith(text)


def test_a_result_is_named_by_what_it_is():
    """Also beside an argument that has that name."""

    @enforce
    def double(result: Float32[Tensor, "n"]) -> Float32[Tensor, "n"]:
        return result.double()

    with dtypeguard.mode("strict"), pytest.raises(dtypeguard.DtypeError) as caught:
        double(good + 1)
    assert (caught.value.expression, caught.value.fix) == (None, "return (...).to(torch.float32)")


def test_what_mends_one_value_is_chained():
    model = guard(nn.Linear(2, 2, device="meta"), mode="strict")
    with pytest.raises(DtypeGuardError) as caught:
        model(image + 1)
    assert caught.value.fix == "(image + 1).to(torch.float32).to('meta')"


def test_a_cast_warning_names_the_line_once(caplog):
    dtypeguard.reset_casts()
    told = caplog.at_level(logging.WARNING, logger="dtypeguard")
    with told, dtypeguard.mode("lenient"), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        mse(good, steps / 10)
    (warning,) = said
    text = "mse: `target` was cast from float64 to float32; passed as `steps / 10` [DG012]"
    assert (str(warning.message), warning.filename) == (text, __file__)
    assert (warning.message.code, warning.message.fix) == ("DG012", "(steps / 10).to(torch.float32)")
    (record,) = caplog.records
    place = f"tests/test_expressions.py:{warning.lineno}, in test_a_cast_warning_names_the_line_once"
    assert record.getMessage() == f"{text}; seen at {place}"


def test_a_contract_warning_names_the_line_once():
    with dtypeguard.mode("warn"), pytest.warns(dtypeguard.ContractWarning) as said:
        mse(good, steps / 10)
    (warning,) = said
    assert (warning.filename, warning.message.code) == (__file__, "DG001")
    assert warning.message.fix == "(steps / 10).to(torch.float32)"
    assert "called at" not in str(warning.message)
    assert str(warning.message).endswith("docs/errors/DG001.md")


def test_locals_of_the_caller_are_not_kept_alive():
    """`f_locals` would: the dictionary stays with the frame."""
    import weakref

    def train():
        first = torch.ones(2, dtype=F64)
        known = weakref.ref(first)
        mse(first + 1)
        del first
        return known()

    dtypeguard.reset_casts()
    with dtypeguard.mode("lenient"), pytest.warns(dtypeguard.CastWarning):
        assert train() is None
