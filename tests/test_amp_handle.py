"""The handle that `amp.watch` returns: bad input, modes, its end, copies, threads, and training out of the ordinary."""

import copy
import dataclasses
import functools
import gc
import inspect
import io
import logging
import pickle
import threading
import types
import warnings
import weakref

import pytest
import torch
from support import BF16, F16, F32, F64
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.amp import GradScaler
from versions import since

import dtypeguard
from dtypeguard import AmpError, AmpWarning, amp
from dtypeguard.results import Finding


def trio(optimizer=torch.optim.SGD, **options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    return model, optimizer(model.parameters(), **{"lr": 0.1, **options}), GradScaler("cpu")


def step(model, optimizer, scaler, clip=None, x=None):
    """One right step; `clip` makes it wrong: it clips gradients that are still scaled."""
    x = torch.ones(3, 4) if x is None else x
    with torch.autocast("cpu", F16):
        loss = model(x).float().square().mean()
    scaler.scale(loss).backward()
    if clip is not None:
        nn.utils.clip_grad_norm_(model.parameters(), clip)
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()


def plain_step(model, optimizer, x=None):
    x = torch.ones(3, 4) if x is None else x
    model(x).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def three_steps(*run, **options):
    for _ in range(3):
        step(*run, **options)


def rules(handle):
    return [found.rule for found in handle.report()]


def untouched(model, optimizer, scaler=None):
    """Whether no trace of a watch is left."""
    hooks = [optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks]
    hooks += [module._forward_pre_hooks for module in model.modules()]
    hooks += [parameter._post_accumulate_grad_hooks or {} for parameter in model.parameters()]
    return not any(hooks) and (scaler is None or type(scaler) is GradScaler)


# ---------------------------------------------------------------- bad input

MODEL, OPTIMIZER, SCALER = trio()
FROZEN = nn.Linear(2, 2).requires_grad_(False)
BAD = {
    "no model": ({"model": None}, TypeError, "watch takes an nn.Module as model, .* not None"),
    "a class of models": ({"model": nn.Linear}, TypeError, "as model, .* not the class Linear"),
    "parameters for a model": ({"model": list(MODEL.parameters())}, TypeError, "as model, .* not a Parameter"),
    "an empty list of models": ({"model": []}, ValueError, "model has no trainable parameters: an empty"),
    "a frozen model": ({"model": FROZEN}, ValueError, "model has no trainable parameters: Linear"),
    "no optimizer": ({"optimizer": None}, TypeError, "watch takes a torch.optim.Optimizer as optimizer, .* not None"),
    "a class of optimizers": ({"optimizer": torch.optim.SGD}, TypeError, "as optimizer, .* not the class SGD"),
    "parameters for an optimizer": ({"optimizer": MODEL.parameters()}, TypeError, "as optimizer, .* not a Parameter"),
    "a list with no optimizer in it": ({"optimizer": [OPTIMIZER, None]}, TypeError, "as optimizer, .* not None"),
    "an empty list of optimizers": ({"optimizer": []}, ValueError, "optimizer is an empty collection"),
    "scaler and optimizer swapped": ({"optimizer": SCALER, "scaler": OPTIMIZER}, TypeError,
                                     "as optimizer, .* not a GradScaler"),
    "a class of scalers": ({"scaler": GradScaler}, TypeError, "scaler must be .* not type"),
    "a mode that does not exist": ({"mode": "loud"}, ValueError, "mode='loud' is not a mode: use one of 'strict'"),
    "every zeroth": ({"every": 0}, ValueError, "every=0"),
    "every True": ({"every": True}, TypeError, "every must be a number of steps, not True"),
    "every second and a half": ({"every": 2.5}, TypeError, "every must be a number of steps, not 2.5"),
    "an unknown rule": ({"ignore": ["DG301", "DG999"]}, ValueError, "ignore='DG999' is no rule"),
    "a rule of audits": ({"ignore": ["DG301", "DG101"]}, ValueError, "a watch looks for DG3 and DG4, and DG101 "),
    "a number for an id": ({"ignore": [301]}, TypeError, "ignore takes rule ids .* not 301"),
    "a number for an average": ({"averaged": 3}, TypeError, "averaged must be .* not int"),
    "a list of numbers for an average": ({"averaged": [1.0, 2.0]}, TypeError, "averaged must be .* not list of float"),
    "an empty average": ({"averaged": {}}, ValueError, "averaged: nothing in it"),
    "an average of another model": ({"averaged": {"x.y": torch.ones(1)}}, ValueError, "averaged: nothing in it"),
}  # fmt: skip


@pytest.mark.parametrize(("wrong", "kind", "text"), BAD.values(), ids=BAD)
def test_bad_input_is_refused_with_the_name_of_the_argument_and_leaves_nothing_behind(wrong, kind, text):
    given = {"model": MODEL, "optimizer": OPTIMIZER, "scaler": SCALER, **wrong}
    with pytest.raises(kind, match=text):
        amp.watch(**given)
    assert untouched(MODEL, OPTIMIZER, SCALER)


def test_everything_after_the_scaler_is_given_by_keyword():
    with pytest.raises(TypeError, match="positional"):
        amp.watch(MODEL, OPTIMIZER, SCALER, "strict")


# ---------------------------------------------------------------- good input of every kind


@pytest.mark.parametrize("kind", [list, iter, lambda found: dict(enumerate(found)).values()])
def test_models_and_optimizers_come_in_any_collection(kind):
    models = [nn.Linear(2, 2), nn.Linear(2, 2)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    with amp.watch(kind(models), kind(optimizers), mode="strict") as handle:
        models[1](models[0](torch.ones(1, 2))).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
    assert handle.report() == []
    assert handle._optimizers[0].title != handle._optimizers[1].title


def test_an_optimizer_that_is_named_twice_counts_once():
    model, optimizer, scaler = trio()
    with pytest.warns(AmpWarning), amp.watch(model, [optimizer, optimizer], scaler) as handle:
        step(model, optimizer, scaler, clip=1.0)
    (found,) = handle.report()
    assert found.count == 1


@pytest.mark.parametrize(
    "ignore",
    ["DG309", "DG3", ("DG4", "clip-before-unscale"), iter(["DG3"])],
    ids=["a rule", "a family", "a family and a name", "an iterator"],
)
def test_ignored_rules_are_neither_raised_nor_listed(ignore):
    model, optimizer, scaler = trio()
    with amp.watch(model, optimizer, scaler, mode="strict", ignore=ignore) as handle:
        step(model, optimizer, scaler, clip=1.0)
    assert handle.report() == []


def test_an_optimizer_of_another_model_is_found_at_once():
    model, _, scaler = trio()
    optimizer = torch.optim.SGD(nn.Linear(3, 3).parameters(), lr=0.1)
    with pytest.raises(AmpError, match=r"DG401 .* holds 2 of 2 parameters that the model Sequential"):
        amp.watch(model, optimizer, scaler, mode="strict")
    assert untouched(model, optimizer, scaler)
    with pytest.warns(AmpWarning, match="DG401"):
        handle = amp.watch(model, optimizer)
    optimizer.step()
    assert rules(handle) == ["DG401"]


@pytest.mark.parametrize("every", [2, 3])
def test_every_nth_step_only_is_looked_at(every):
    model, optimizer, _ = trio()
    seen = 0
    with amp.watch(model, optimizer, mode="strict", every=every):
        for _ in range(every - 1):
            plain_step(model, optimizer, torch.ones(3, 4) * torch.nan)
            seen += 1
        with pytest.raises(AmpError, match="DG408"):
            plain_step(model, optimizer, torch.ones(3, 4) * torch.nan)
    assert seen == every - 1


@pytest.mark.parametrize("start", range(2, 8))
def test_a_nan_that_stays_is_found_at_the_next_look_however_few_parameters_there_are(start):
    """Where no element is read between the looks: on a GPU, and here, as the last parameter has no gradient."""
    model, optimizer, _ = trio()
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
    amp.watch(model, optimizer, mode="strict")
    for step in range(1, 50 * start):
        plain_step(model, optimizer, torch.ones(3, 4) * (torch.nan if step > 50 * start - 40 else 1))
    with pytest.raises(AmpError, match="DG408"):
        plain_step(model, optimizer, torch.ones(3, 4) * torch.nan)


# ---------------------------------------------------------------- scalers that do nothing


def test_a_disabled_scaler_is_no_scaler():
    model, optimizer, _ = trio()
    scaler = GradScaler("cpu", enabled=False)
    with amp.watch(model, optimizer, scaler, mode="strict") as handle:
        for _ in range(3):
            with torch.autocast("cpu", BF16):
                loss = model(torch.ones(3, 4)).float().mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
            optimizer.step()
            scaler.step(optimizer)
    assert handle.report() == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="with CUDA the scaler is enabled")
def test_a_scaler_for_cuda_without_cuda_is_disabled_by_torch_and_watched_as_such():
    model, optimizer, _ = trio()
    with pytest.warns(UserWarning, match="CUDA is not available"):
        scaler = GradScaler("cuda")
    with amp.watch(model, optimizer, scaler, mode="strict") as handle:
        scaler.scale(model(torch.ones(3, 4)).mean()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert handle.report() == []


# ---------------------------------------------------------------- modes


def outcome(model, optimizer, scaler):
    """What one wrong step does: raise, warn, or neither."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            step(model, optimizer, scaler, clip=1.0)
        except AmpError:
            optimizer.zero_grad()
            return "raises"
    return "warns" if said else "is silent"


MODES = [("strict", "raises"), ("lenient", "warns"), ("warn", "warns"), ("off", "is silent")]


@pytest.mark.parametrize(("mode", "expected"), MODES)
@pytest.mark.parametrize("how", ["argument", "context at watch and step", "context at the step alone", "set_mode"])
def test_a_mode_counts_wherever_it_is_named(how, mode, expected):
    model, optimizer, scaler = trio()
    if how == "argument":
        handle = amp.watch(model, optimizer, scaler, mode=mode)
        assert outcome(model, optimizer, scaler) == expected
    elif how == "context at watch and step":
        with dtypeguard.mode(mode):
            handle = amp.watch(model, optimizer, scaler)
            assert outcome(model, optimizer, scaler) == expected
    elif how == "context at the step alone":
        handle = amp.watch(model, optimizer, scaler)
        with dtypeguard.mode(mode):
            assert outcome(model, optimizer, scaler) == expected
    else:
        handle = amp.watch(model, optimizer, scaler)
        dtypeguard.set_mode(mode)
        assert outcome(model, optimizer, scaler) == expected
    assert rules(handle) == ([] if mode == "off" else ["DG309"])


def test_switched_off_counts_before_everything_and_what_was_missed_is_found_afterwards():
    model, optimizer, scaler = trio()
    handle = amp.watch(model, optimizer, scaler, mode="strict")
    dtypeguard.set_mode("off")
    with dtypeguard.mode("strict"):
        assert outcome(model, optimizer, scaler) == "is silent"
    assert handle.report() == []
    dtypeguard.set_mode(None)
    assert outcome(model, optimizer, scaler) == "raises"


def test_lenient_says_a_thing_once_and_counts_it_and_strict_raises_each_time():
    model, optimizer, scaler = trio()
    handle = amp.watch(model, optimizer, scaler)
    assert [outcome(model, optimizer, scaler) for _ in range(3)] == ["warns", "is silent", "is silent"]
    for _ in range(2):
        with dtypeguard.mode("strict"):
            assert outcome(model, optimizer, scaler) == "raises"
    assert [found.count for found in handle.report()] == [5]


def test_a_watch_that_is_begun_again_replaces_the_first():
    """As when a notebook's cell is run again."""
    model, optimizer, scaler = trio()
    first, second = amp.watch(model, optimizer, scaler), amp.watch(model, optimizer, scaler)
    assert (first.closed, second.closed) == (True, False)
    with pytest.warns(AmpWarning) as said:
        step(model, optimizer, scaler, clip=1.0)
    assert len(said) == 1
    assert (rules(first), rules(second)) == ([], ["DG309"])
    first.remove()
    with pytest.raises(AmpError), dtypeguard.mode("strict"):
        step(model, optimizer, scaler, clip=1.0)
    second.remove()
    assert untouched(model, optimizer, scaler)


AGAIN = {  # what the second watch shares with the first, and whether it says once more what the first has said
    "all": (lambda first, new: first, False),
    "model": (lambda first, new: (first[0], new[1](first[0]), new[2]), False),
    "model and scaler": (lambda first, new: (first[0], new[1](first[0]), first[2]), False),
    "nothing": (lambda first, new: (new[0], new[1](new[0]), new[2]), True),
}


@pytest.mark.parametrize(("share", "says"), AGAIN.values(), ids=AGAIN)
def test_a_watch_that_is_begun_again_says_nothing_twice(share, says):
    """DG301 is found by the call itself; reports have it, and strict mode raises it, each time."""
    model, optimizer, scaler = trio()
    model.half()
    with pytest.warns(AmpWarning, match="DG301"):
        first = amp.watch(model, optimizer, scaler)
    new = trio()[0].half(), lambda model: torch.optim.SGD(model.parameters(), lr=0.1), GradScaler("cpu")
    parts = share((model, optimizer, scaler), new)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        second = amp.watch(*parts)
    assert bool(said) is says
    assert rules(first) == rules(second) == ["DG301"]
    with pytest.raises(AmpError, match="DG301"):
        amp.watch(*parts, mode="strict")
    second.remove()
    first.remove()


def test_a_watch_keeps_the_optimizers_that_another_does_not_take():
    model, optimizer, scaler = trio()
    other, second, _ = trio()
    both = amp.watch([model, other], [optimizer, second], scaler)
    one = amp.watch(other, second, scaler)
    for parts in ((model, optimizer, scaler), (other, second, scaler)):
        with pytest.warns(AmpWarning) as said:
            step(*parts, clip=1.0)
        assert len(said) == 1
    assert rules(both) == rules(one) == ["DG309"]
    one.remove()
    both.remove()
    assert untouched(model, optimizer, scaler)
    assert untouched(other, second, scaler)


def test_the_class_of_a_scaler_can_be_inspected_as_before():
    model, optimizer, scaler = trio()
    with amp.watch(model, optimizer, scaler):
        assert inspect.getsource(type(scaler)) == inspect.getsource(GradScaler)


def test_a_new_optimizer_with_the_old_scaler_needs_no_word_of_the_old_one():
    model, optimizer, scaler = trio()
    first = amp.watch(model, optimizer, scaler)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gc.collect()
    second = amp.watch(model, optimizer, scaler)
    assert (first.closed, second.closed) == (True, False)


# ---------------------------------------------------------------- what is found


def test_a_finding_says_what_where_and_what_to_write():
    model, optimizer, scaler = trio()
    handle = amp.watch(model, optimizer, scaler)
    with pytest.warns(AmpWarning) as said:
        step(model, optimizer, scaler, clip=1.0)
    (found,) = handle.report()
    assert (found.rule, found.severity, found.count) == ("DG309", "error", 1)
    assert found.op == "GradScaler.unscale_"
    assert found.parameters == ("0.weight", "0.bias", "2.weight", "2.bias")
    assert "unscale_" in found.fix
    line = step.__code__.co_firstlineno + 8
    assert found.site == f"tests/test_amp_handle.py:{line}, in step"
    assert str(found) == f"DG309 clip-before-unscale: {found.message}"
    (warning,) = said
    assert (warning.filename, warning.lineno) == (__file__, line)
    assert str(warning.message).splitlines()[0] == str(found)
    assert "seen at" not in str(warning.message)  # Python prints the line
    assert (warning.message.code, warning.message.fix) == (found.rule, found.fix)
    assert found.fix in str(warning.message)
    assert "DG309.md" in str(warning.message)


def test_the_error_has_the_same_facts_as_attributes():
    model, optimizer, scaler = trio()
    with pytest.raises(AmpError) as caught:
        amp.watch(model.half(), optimizer, scaler, mode="strict")
    error = caught.value
    assert (error.rule, error.argument, error.actual, error.expected) == ("DG301", "0.weight", F16, F32)
    assert len(error.violations) == 1
    assert error.violations[0] in str(error)
    assert error.call_site.startswith("tests/test_amp_handle.py:")
    assert isinstance(error, dtypeguard.DtypeGuardError)


def test_errors_warnings_and_findings_pickle():
    model, optimizer, scaler = trio()
    with pytest.raises(AmpError) as caught:
        amp.watch(model.half(), optimizer, scaler, mode="strict")
    error = pickle.loads(pickle.dumps(caught.value))
    assert type(error) is AmpError
    assert str(error) == str(caught.value)
    assert vars(error) == vars(caught.value)
    with pytest.warns(AmpWarning) as said:
        handle = amp.watch(model, optimizer, scaler)
    assert str(pickle.loads(pickle.dumps(said[0].message))) == str(said[0].message)
    assert pickle.loads(pickle.dumps(handle.report())) == handle.report()
    assert copy.deepcopy(handle.report()) == handle.report()


def test_a_report_is_a_copy():
    model, optimizer, scaler = trio()
    handle = amp.watch(model, optimizer, scaler)
    with pytest.warns(AmpWarning):
        step(model, optimizer, scaler, clip=1.0)
    report = handle.report()
    kept = copy.deepcopy(report)
    handle.report().clear()
    handle.report()[0].count = 99
    handle.report()[0].message = ""
    assert handle.report() == kept
    step(model, optimizer, scaler, clip=1.0)
    assert report == kept
    assert handle.report()[0].count == 2


def test_findings_are_logged_as_they_are_said_with_their_place(caplog):
    model, optimizer, scaler = trio()
    amp.watch(model, optimizer, scaler)
    with caplog.at_level(logging.INFO, logger="dtypeguard"), pytest.warns(AmpWarning) as said:
        three_steps(model, optimizer, scaler, clip=1.0)
    (record,) = caplog.records
    place = f"  seen at    tests/test_amp_handle.py:{said[0].lineno}, in step\n"
    assert (record.name, record.levelname) == ("dtypeguard", "WARNING")
    assert place in record.getMessage()
    assert record.getMessage().replace(place, "") == str(said[0].message)


def test_what_is_raised_and_what_is_mere_information_is_not_logged(caplog):
    model, optimizer, scaler = trio()
    with caplog.at_level(logging.INFO, logger="dtypeguard"):
        with amp.watch(model, optimizer, scaler, mode="lenient") as handle:
            scaler.scale(model(torch.ones(1, 4)).sum()).backward()
        assert rules(handle) == ["DG304"]
        with pytest.raises(AmpError):
            amp.watch(model.half(), optimizer, scaler, mode="strict")
    assert caplog.records == []


def test_percent_signs_in_messages_are_logged_as_they_are(caplog):
    model = nn.Linear(64, 64).bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    amp.watch(model, optimizer)
    for _ in range(31):
        plain_step(model, optimizer, torch.ones(1, 64, dtype=BF16))
    with pytest.warns(AmpWarning, match="100 % of the elements"):
        plain_step(model, optimizer, torch.ones(1, 64, dtype=BF16))
    assert "100 % of the elements" in caplog.records[0].getMessage()


def test_repr_says_what_is_watched_and_what_was_found():
    model, optimizer, scaler = trio()
    handle = amp.watch(model, optimizer, scaler)
    assert repr(handle) == "<watch of Sequential, SGD: 0 findings>"
    assert str(handle) == str(handle.report()) == "nothing found"
    with pytest.warns(AmpWarning):
        step(model, optimizer, scaler, clip=1.0)
    assert "1 finding" in repr(handle)
    assert str(handle) == str(handle.report()) != "nothing found"
    handle.remove()
    assert repr(handle).startswith("<removed watch of Sequential, SGD")
    two = amp.watch([model, nn.Linear(1, 1)], [optimizer, torch.optim.Adam(model.parameters())])
    assert "Sequential, Linear" in repr(two)
    assert "SGD" in repr(two)
    assert "Adam" in repr(two)
    del model, optimizer
    gc.collect()
    assert "Sequential" in repr(handle)


# ---------------------------------------------------------------- the end of a watch


def test_a_removed_watch_leaves_nothing_and_keeps_its_report():
    model, optimizer, scaler = trio()
    handle = amp.watch(model, optimizer, scaler)
    with pytest.warns(AmpWarning):
        step(model, optimizer, scaler, clip=1.0)
    handle.remove()
    assert handle.closed
    assert untouched(model, optimizer, scaler)
    handle.remove()
    step(model, optimizer, scaler, clip=1.0)
    assert [(found.rule, found.count) for found in handle.report()] == [("DG309", 1)]


@pytest.mark.parametrize("moment", ["scale", "backward", "clip", "unscale_", "step"])
def test_a_watch_can_be_removed_in_the_middle_of_an_iteration(moment):
    model, optimizer, scaler = trio()
    handle = amp.watch(model, optimizer, scaler, mode="strict")

    def after(name):
        if name == moment:
            handle.remove()

    with torch.autocast("cpu", F16):
        loss = model(torch.ones(3, 4)).float().square().mean()
    scaled = scaler.scale(loss)
    after("scale")
    scaled.backward()
    after("backward")
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    after("clip")
    if moment in ("unscale_", "step"):
        with pytest.raises(AmpError, match="DG309"):
            scaler.unscale_(optimizer)
        handle.remove()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    assert handle.report() == [] or moment in ("unscale_", "step")
    assert untouched(model, optimizer, scaler)


def test_a_closed_handle_heads_no_block():
    model, optimizer, scaler = trio()
    handle = amp.watch(model, optimizer, scaler)
    with handle as inside:
        assert inside is handle
    with pytest.raises(ValueError, match="this watch was removed: begin another"), handle:
        pass
    assert untouched(model, optimizer, scaler)


def test_a_watch_goes_on_after_its_error_was_caught():
    model, optimizer, scaler = trio()
    handle = amp.watch(model, optimizer, scaler, mode="strict")
    assert outcome(model, optimizer, scaler) == "raises"
    for _ in range(3):
        step(model, optimizer, scaler)
    assert [(found.rule, found.count) for found in handle.report()] == [("DG309", 1)]
    assert outcome(model, optimizer, scaler) == "raises"


def test_a_watch_can_be_removed_by_a_closure_in_the_step():
    model, optimizer, _ = trio(torch.optim.LBFGS)
    handle = amp.watch(model, optimizer, mode="strict")

    def closure():
        handle.remove()
        return closure_of(model, optimizer)

    for _ in range(3):
        optimizer.step(closure)
    assert handle.closed
    assert handle.report() == []
    assert untouched(model, optimizer)


def test_warnings_that_are_errors_stop_once_and_training_can_go_on():
    model, optimizer, scaler = trio()
    handle = amp.watch(model, optimizer, scaler, mode="lenient")
    with pytest.raises(AmpWarning, match="DG309"):
        step(model, optimizer, scaler, clip=1.0)
    optimizer.zero_grad()
    for _ in range(3):
        step(model, optimizer, scaler)
    step(model, optimizer, scaler, clip=1.0)
    assert [(found.rule, found.count) for found in handle.report()] == [("DG309", 2)]


# ---------------------------------------------------------------- what lives, and how long


def test_dropping_the_handle_keeps_the_watch_on():
    model, optimizer, scaler = trio()
    amp.watch(model, optimizer, scaler, mode="strict")
    gc.collect()
    with pytest.raises(AmpError, match="DG309"):
        step(model, optimizer, scaler, clip=1.0)


@pytest.mark.parametrize("kept", ["handle", "nothing"])
def test_model_optimizer_and_scaler_are_not_kept_alive(kept):
    model, optimizer, scaler = trio(torch.optim.AdamW)
    average = copy.deepcopy(model).bfloat16()
    handle = amp.watch(model, optimizer, scaler, averaged=average)
    for _ in range(3):
        step(model, optimizer, scaler)
    with pytest.warns(AmpWarning):
        step(model, optimizer, scaler, clip=1.0)
    references = [weakref.ref(one) for one in (model, optimizer, scaler, average, *model.parameters())]
    if kept == "nothing":
        references.append(weakref.ref(handle))
        del handle
    del model, optimizer, scaler, average
    gc.collect()
    assert [reference() for reference in references] == [None] * len(references)
    if kept == "handle":
        assert "DG309" in rules(handle)
        assert "Sequential" in repr(handle)
        handle.remove()


def test_a_dict_of_averages_is_let_go_by_remove():
    model, optimizer, _ = trio()
    average = {name: parameter.detach().bfloat16() for name, parameter in model.named_parameters()}
    handle = amp.watch(model, optimizer, averaged=average)
    plain_step(model, optimizer)
    tensor = weakref.ref(average["0.weight"])
    handle.remove()
    del average
    gc.collect()
    assert tensor() is None


def test_each_of_the_three_may_go_first():
    model, optimizer, scaler = trio()
    handle = amp.watch(model, optimizer, scaler, mode="strict")
    step(model, optimizer, scaler)
    del scaler
    gc.collect()
    plain_step(model, optimizer)
    del model
    gc.collect()
    optimizer.step()
    del optimizer
    gc.collect()
    handle.remove()
    assert handle.report() == []


@pytest.mark.slow
def test_the_number_of_tensors_does_not_grow_with_the_steps():
    model, optimizer, scaler = trio(torch.optim.AdamW)
    amp.watch(model, optimizer, scaler, mode="strict")

    def tensors():
        gc.collect()
        return sum(issubclass(type(one), torch.Tensor) for one in gc.get_objects())

    for _ in range(70):
        step(model, optimizer, scaler)
    before = tensors()
    for _ in range(130):
        step(model, optimizer, scaler)
    assert tensors() <= before


def test_watches_that_come_and_go_leave_nothing():
    model, optimizer, scaler = trio()
    step(model, optimizer, scaler)
    for _ in range(3):
        with amp.watch(model, optimizer, scaler, mode="strict"):
            step(model, optimizer, scaler)
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(50):
        with amp.watch(model, optimizer, scaler, mode="strict"):
            step(model, optimizer, scaler)
    gc.collect()
    assert len(gc.get_objects()) - before < 50


# ---------------------------------------------------------------- the user's objects


def test_nothing_is_added_to_the_instances():
    model, optimizer, scaler = trio(torch.optim.AdamW)
    step(model, optimizer, scaler)
    before = [set(vars(one)) for one in (model, optimizer, scaler, *model.modules(), *model.parameters())]
    amp.watch(model, optimizer, scaler, mode="strict")
    for _ in range(3):
        step(model, optimizer, scaler)
    assert [set(vars(one)) for one in (model, optimizer, scaler, *model.modules(), *model.parameters())] == before
    assert [set(group) for group in optimizer.param_groups] == [
        set(group) for group in optimizer.state_dict()["param_groups"]
    ]
    assert isinstance(scaler, GradScaler)
    assert type(scaler).__name__ == "GradScaler"
    assert type(scaler).__module__ == GradScaler.__module__
    assert type(scaler).__doc__ == GradScaler.__doc__


COPIES = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda one: pickle.loads(pickle.dumps(one)),
    "torch.save": lambda one: _saved(one),
}


def _saved(one):
    file = io.BytesIO()
    torch.save(one, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("duplicate", COPIES.values(), ids=COPIES)
@pytest.mark.parametrize("steps", [0, 1, 3])
def test_copies_of_watched_things_are_plain(duplicate, steps):
    model, optimizer, scaler = trio(torch.optim.AdamW)
    handle = amp.watch(model, optimizer, scaler, mode="strict")
    for _ in range(steps):
        step(model, optimizer, scaler)
    states = [copy.deepcopy(one.state_dict()) for one in (optimizer, scaler)]
    model2, optimizer2, scaler2 = duplicate((model, optimizer, scaler))
    assert type(scaler2) is GradScaler
    assert str([one.state_dict() for one in (optimizer2, scaler2)]) == str(states)
    assert untouched_but_for_the_probe(model2, optimizer2)
    step(model2, optimizer2, scaler2, clip=1.0)
    assert handle.report() == []
    with pytest.raises(AmpError, match="DG309"):
        step(model, optimizer, scaler, clip=1.0)


def untouched_but_for_the_probe(model, optimizer):
    return not optimizer._optimizer_step_pre_hooks and not any(
        p._post_accumulate_grad_hooks for p in model.parameters()
    )


@pytest.mark.parametrize("duplicate", COPIES.values(), ids=COPIES)
def test_a_model_that_holds_its_own_watch_copies_like_any_other(duplicate):
    model, optimizer, scaler = trio()
    model.watch = amp.watch(model, optimizer, scaler, mode="strict")
    step(model, optimizer, scaler)
    twin = duplicate(model)
    assert torch.equal(twin[0].weight, model[0].weight)
    twin.watch.remove()
    with pytest.raises(AmpError, match="DG309"):
        step(model, optimizer, scaler, clip=1.0)


# ---------------------------------------------------------------- threads


def in_threads(*bodies):
    failures = []
    barrier = threading.Barrier(len(bodies))

    def run(body):
        try:
            barrier.wait()
            body()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(body,)) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def test_a_fault_in_one_thread_is_that_threads_own():
    right, wrong = trio(), trio()
    handles = [amp.watch(*right, mode="strict"), amp.watch(*wrong, mode="strict")]

    def fail():
        for _ in range(20):
            with pytest.raises(AmpError, match="DG309"):
                step(*wrong, clip=1.0)
            wrong[1].zero_grad()

    in_threads(lambda: [step(*right) for _ in range(20)], fail)
    assert [rules(handle) for handle in handles] == [[], ["DG309"]]


def test_each_thread_has_its_own_mode():
    strict, off = trio(), trio()
    handles = [amp.watch(*strict), amp.watch(*off)]

    def raises():
        with dtypeguard.mode("strict"), pytest.raises(AmpError):
            step(*strict, clip=1.0)

    def passes():
        with dtypeguard.mode("off"):
            step(*off, clip=1.0)

    in_threads(raises, passes)
    assert [rules(handle) for handle in handles] == [["DG309"], []]


# ---------------------------------------------------------------- training out of the ordinary


def silent(*watched, **options):
    return amp.watch(*watched, mode="strict", **options)


def test_a_layer_that_is_deleted_is_told_and_breaks_nothing():
    model, optimizer, _ = trio()
    model.extra = nn.Linear(2, 2)
    optimizer.add_param_group({"params": model.extra.parameters()})
    handle = amp.watch(model, optimizer)
    plain_step(model, optimizer)
    del model.extra
    with pytest.warns(AmpWarning, match="DG401"):
        plain_step(model, optimizer)
    for _ in range(8):
        plain_step(model, optimizer)
    assert rules(handle) == ["DG401"]


class Custom(torch.optim.Optimizer):
    """Plain gradient descent with whatever groups and state it is given."""

    def __init__(self, params, state=None, **defaults):
        self.made = state
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    if self.made is not None:
                        self.state[parameter] = self.made(parameter)
                    parameter.sub_(parameter.grad, alpha=0.01)


class Sharp(torch.optim.Optimizer):
    """Sharpness-aware minimisation, as it is usually written: two backwards, and an optimizer inside."""

    def __init__(self, params, base, lr):
        super().__init__(params, {"lr": lr})
        self.base_optimizer = base(self.param_groups, lr=lr)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def step(self, closure):
        parameters = [p for group in self.param_groups for p in group["params"]]
        steps = [p.grad * 0.01 for p in parameters]
        torch._foreach_add_(parameters, steps)
        with torch.enable_grad():
            closure()
        torch._foreach_sub_(parameters, steps)
        self.base_optimizer.step()


class Odd(torch.optim.SGD):
    """Its step takes more than a closure."""

    @torch.no_grad()
    def step(self, closure=None, *extra, scale=1.0):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(parameter.grad, alpha=group["lr"] * scale)
        return ("stepped", extra)


@pytest.mark.parametrize("scaler", [None, GradScaler("cpu")], ids=["alone", "through a scaler"])
@pytest.mark.parametrize("arguments", [(None,), (None, 3, "x")])
def test_a_step_with_arguments_of_its_own(arguments, scaler):
    model, optimizer, _ = trio(Odd)
    with silent(model, optimizer, scaler, ignore="DG304") as handle:
        for _ in range(6):
            loss = model(torch.ones(3, 4)).sum()
            (scaler.scale(loss) if scaler else loss).backward()
            step = functools.partial(scaler.step, optimizer) if scaler else optimizer.step
            assert step(*arguments, scale=0.5) == ("stepped", arguments[1:])
            if scaler:
                scaler.update()
            optimizer.zero_grad()
    assert handle.report() == []


OWN = {
    "no lr": (None, {}),
    "lr None, as Adafactor has with relative steps": (None, {"lr": None}),
    "lr a tensor": (None, {"lr": torch.tensor(0.1)}),
    "lr a function": (None, {"lr": lambda n: 0.1 / n}),
    "lr a tuple": (None, {"lr": (0.1, 0.2)}),
    "eps a tuple": (None, {"lr": 0.1, "eps": (1e-30, 1e-3)}),
    "eps a tensor": (None, {"lr": 0.1, "eps": torch.tensor(1e-8)}),
    "eps and decay None": (None, {"lr": 0.1, "eps": None, "weight_decay": None}),
    "state a tensor": (torch.zeros_like, {"lr": 0.01, "eps": 1e-8}),
    "state a list": (lambda parameter: [torch.zeros_like(parameter)], {"lr": 0.01, "eps": 1e-8}),
    "state an object": (lambda parameter: types.SimpleNamespace(moment=torch.zeros_like(parameter)), {"eps": 1e-8}),
    "state None": (lambda parameter: None, {"lr": 0.01, "eps": 1e-8}),
    "state nested": (lambda parameter: {"a": {"b": torch.zeros_like(parameter)}, "c": [1, 2]}, {"eps": 1e-8}),
    "state numbers": (lambda parameter: {"step": 3, "lr": 0.1, "name": "x"}, {"lr": 0.01, "eps": 1e-8}),
}


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize(("state", "group"), OWN.values(), ids=OWN)
def test_a_users_optimizer_with_groups_and_state_of_its_own_kind(state, group, dtype):
    model, optimizer, _ = trio(lambda params, lr: Custom(params, state, **group))
    with silent(model.to(dtype), optimizer) as handle:
        for _ in range(6):
            plain_step(model, optimizer, torch.ones(3, 4, dtype=dtype))
    assert handle.report() == []


def an_empty_group(model, optimizer):
    optimizer.add_param_group({"params": []})


def a_tensor_that_no_model_has(model, optimizer):
    optimizer.add_param_group({"params": [torch.ones(3, 4, requires_grad=True)]})


def no_group_left(model, optimizer):
    optimizer.param_groups.clear()


def state_dropped(model, optimizer):
    optimizer.state.clear()


def gradients_of_inference_mode(model, optimizer):
    with torch.inference_mode():
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize(
    "change",
    [an_empty_group, a_tensor_that_no_model_has, no_group_left, state_dropped, gradients_of_inference_mode],
    ids=lambda change: change.__name__,
)
def test_an_optimizer_that_changes_between_steps(change):
    model, optimizer, scaler = trio(torch.optim.AdamW)
    with silent(model, optimizer, scaler, ignore="DG402") as handle:
        three_steps(model, optimizer, scaler)
        change(model, optimizer)
        for _ in range(3):
            plain_step(model, optimizer)
    assert handle.report() == []


def test_an_optimizer_with_an_optimizer_inside():
    model, optimizer, _ = trio(lambda params, lr: Sharp(params, torch.optim.SGD, lr=lr))

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(3, 4)).square().mean()
        loss.backward()
        return loss

    with silent(model, optimizer) as handle:
        for _ in range(6):
            closure()
            optimizer.step(closure)
    assert handle.report() == []


def test_a_step_that_fails_leaves_the_watch_as_it_was():
    model, optimizer, _ = trio(torch.optim.LBFGS)
    with silent(model, optimizer) as handle:
        for n in range(6):
            with pytest.raises(KeyError, match="mine"):
                optimizer.step(lambda: {}["mine"])
            optimizer.step(lambda: closure_of(model, optimizer))
            assert n < 6
    assert handle.report() == []


def closure_of(model, optimizer):
    optimizer.zero_grad()
    loss = model(torch.ones(3, 4)).square().mean()
    loss.backward()
    return loss


# ---------------------------------------------------------------- scalers of the user's own


class Logging(GradScaler):
    """A scaler that overrides everything, with names and arguments of its own."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.log = []

    def scale(self, loss, tag=None):
        self.log.append(("scale", tag))
        return super().scale(loss)

    def unscale_(self, optimizer, tag=None):
        self.log.append(("unscale_", tag))
        return super().unscale_(optimizer)

    def step(self, optimizer, *args, tag=None, **kwargs):
        self.log.append(("step", tag))
        return super().step(optimizer, *args, **kwargs)

    def update(self, new_scale=None, tag=None):
        self.log.append(("update", tag))
        return super().update(new_scale)

    def get_scale(self, tag=None):
        self.log.append(("get_scale", tag))
        return super().get_scale()


@pytest.mark.parametrize("by", ["position", "keyword"])
def test_a_scaler_of_a_class_of_ones_own_keeps_its_signatures(by):
    model, optimizer, _ = trio()
    scaler, alone = Logging("cpu"), Logging("cpu")

    def train(scaler):
        scaler.log.clear()
        for _ in range(3):
            with torch.autocast("cpu", F16):
                loss = model(torch.ones(3, 4)).float().square().mean()
            (scaler.scale(loss, "a") if by == "position" else scaler.scale(loss=loss, tag="a")).backward()
            scaler.unscale_(optimizer, "b") if by == "position" else scaler.unscale_(optimizer=optimizer, tag="b")
            scaler.step(optimizer, tag="c") if by == "position" else scaler.step(optimizer=optimizer, tag="c")
            scaler.update(None, "d") if by == "position" else scaler.update(tag="d")
            scaler.get_scale("e") if by == "position" else scaler.get_scale(tag="e")
            optimizer.zero_grad()
        return scaler.log

    with silent(model, optimizer, scaler) as handle:
        watched = list(train(scaler))
    assert watched == train(alone)
    assert handle.report() == []
    assert type(scaler) is Logging


def test_a_fault_with_a_scaler_of_a_class_of_ones_own_is_found():
    model, optimizer, _ = trio()
    scaler = Logging("cpu")
    with pytest.raises(AmpError, match="DG309"), silent(model, optimizer, scaler):
        step(model, optimizer, scaler, clip=1.0)
    twin = pickle.loads(pickle.dumps(scaler))
    assert type(twin) is Logging
    assert twin.log == scaler.log


class Registered(GradScaler):
    """A class that says what its children must say, and counts them."""

    known = []  # noqa: RUF012

    def __init_subclass__(cls, *, name, **kwargs):
        super().__init_subclass__(**kwargs)
        Registered.known.append(name)


class Slotted(GradScaler):
    __slots__ = ("extra",)


class Comparable(GradScaler):
    def __eq__(self, other):
        return self is other


@pytest.mark.parametrize("kind", [Registered, Slotted, Comparable])
def test_a_scaler_of_a_class_that_is_particular(kind):
    model, optimizer, _ = trio()
    scaler = kind("cpu")
    with silent(model, optimizer, scaler) as handle:
        step(model, optimizer, scaler)
    assert handle.report() == []
    assert type(scaler) is kind
    assert Registered.known == []


class OwnStep(GradScaler):
    """A scaler that steps in its own way, without PyTorch's `step`."""

    def step(self, optimizer):
        self.unscale_(optimizer) if id(optimizer) not in self._per_optimizer_states else None
        return optimizer.step()


def test_a_scaler_that_steps_by_itself_is_no_step_past_the_scaler():
    model, optimizer, _ = trio()
    scaler = OwnStep("cpu")
    with silent(model, optimizer, scaler) as handle:
        for _ in range(4):
            step(model, optimizer, scaler)
    assert handle.report() == []


def test_a_scaler_other_than_the_one_that_was_given_is_noticed():
    model, optimizer, scaler = trio()
    other = GradScaler("cpu")
    with silent(model, optimizer, scaler) as handle:
        for _ in range(4):
            step(model, optimizer, other)
        assert handle.report() == []
        with pytest.raises(AmpError, match="DG309"):
            three_steps(model, optimizer, other, clip=1.0)


def test_a_scaler_that_steps_an_optimizer_that_is_not_watched():
    model, optimizer, scaler = trio()
    other, second, _ = trio()
    with silent(model, optimizer, scaler) as handle:
        for _ in range(4):
            with torch.autocast("cpu", F16):
                loss = sum(one(torch.ones(3, 4)).float().square().mean() for one in (model, other))
            scaler.scale(loss).backward()
            nn.utils.clip_grad_norm_(other.parameters(), 1.0)
            scaler.step(second)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            second.zero_grad()
    assert handle.report() == []


def test_wrong_arguments_for_the_scaler_fail_as_without_a_watch():
    model, optimizer, scaler = trio()

    def failures():
        calls = [
            lambda: scaler.scale(3),
            lambda: scaler.unscale_(None),
            lambda: scaler.step(),
            lambda: scaler.scale(),
        ]
        said = []
        for call in calls:
            with pytest.raises(Exception) as caught:  # noqa: PT011
                call()
            said.append((caught.type, str(caught.value).replace("_listening.<locals>.", "").replace("GradScaler.", "")))
        return said

    before = failures()
    with silent(model, optimizer, scaler):
        during = failures()
    assert during == before


COLLECTIONS = {
    "a list": lambda a, b: [a, b],
    "nested tuples": lambda a, b: (a, (b,)),
    "a list in a tuple": lambda a, b: ([a, b],),
    "a generator": lambda a, b: (loss for loss in (a, b)),
    "a map": lambda a, b: map(torch.clone, (a, b)),
}


def flat(losses):
    return [losses] if isinstance(losses, torch.Tensor) else [one for loss in losses for one in flat(loss)]


@pytest.mark.parametrize("collect", COLLECTIONS.values(), ids=COLLECTIONS)
def test_losses_in_collections_are_scaled_as_without_a_watch_and_a_fault_is_found(collect):
    model, optimizer, scaler = trio()
    with silent(model, optimizer, scaler) as handle:
        for clip in (False, True):
            with torch.autocast("cpu", F16):
                output = model(torch.ones(3, 4)).float()
                losses = output.square().mean(), output.abs().mean()
            scaled = scaler.scale(collect(*losses))
            for one, loss in zip(flat(scaled), losses, strict=True):
                assert torch.equal(one, loss * 65536)
                one.backward(retain_graph=True)
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
                with pytest.raises(AmpError, match="DG309"):
                    scaler.step(optimizer)
                break
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    assert rules(handle) == ["DG309"]


# ---------------------------------------------------------------- tensors out of the ordinary


class Holder(nn.Module):
    def __init__(self, *parameters):
        super().__init__()
        self.held = nn.ParameterList(parameters)

    def forward(self):
        return sum((one * (1 + n)).abs().square().sum() for n, one in enumerate(self.held))


def views():
    flat = torch.randn(20)
    return nn.Parameter(flat[:8].view(2, 4)), nn.Parameter(flat[8:12]), nn.Parameter(torch.randn(4, 6).t())


TENSORS = {
    "no elements": lambda: [nn.Parameter(torch.empty(0, 3)), nn.Parameter(torch.randn(3))],
    "no elements, last": lambda: [nn.Parameter(torch.randn(3)), nn.Parameter(torch.empty(0, 3))],
    "no elements at all": lambda: [nn.Parameter(torch.empty(0))],
    "no axis": lambda: [nn.Parameter(torch.randn(())), nn.Parameter(torch.randn(3)), nn.Parameter(torch.randn(()))],
    "views of one storage and a transpose": views,
    "channels last": lambda: [nn.Parameter(torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last))],
    "strides with gaps": lambda: [nn.Parameter(torch.randn(8, 8)[::2, ::2])],
    "complex": lambda: [nn.Parameter(torch.randn(4, dtype=torch.complex64)), nn.Parameter(torch.randn(4))],
    "float64 beside float32": lambda: [nn.Parameter(torch.randn(4, dtype=F64)), nn.Parameter(torch.randn(4))],
    "a frozen integer": lambda: [nn.Parameter(torch.arange(3), requires_grad=False), nn.Parameter(torch.randn(4))],
    "meta": lambda: [nn.Parameter(torch.empty(3, 4, device="meta"))],
}


@pytest.mark.thin(2)
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
@pytest.mark.parametrize("make", TENSORS.values(), ids=TENSORS)
def test_parameters_of_every_kind_train_as_without_a_watch(make, optimizer):
    torch.manual_seed(0)
    watched = Holder(*make())
    alone = copy.deepcopy(watched)
    handle = None
    for model in (watched, alone):
        steps = optimizer([p for p in model.parameters() if p.requires_grad], lr=0.01)
        if handle is None:
            handle = silent(model, steps)
        for _ in range(10):
            steps.zero_grad()
            model().backward()
            steps.step()
    assert handle.report() == []
    for a, b in zip(watched.parameters(), alone.parameters(), strict=True):
        assert a.is_meta or torch.equal(a, b)


@pytest.mark.parametrize("make", [TENSORS[name] for name in TENSORS if name not in ("complex", "meta")])
def test_parameters_of_every_kind_train_with_a_scaler(make):
    torch.manual_seed(0)
    model, scaler = Holder(*make()), GradScaler("cpu")
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.01)
    with silent(model, optimizer, scaler) as handle:
        for _ in range(10):
            scaler.scale(model().float()).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    assert {found.rule for found in handle.report()} <= {"DG304"}


@since("torch", "2.13", "AdamW asks its step for a number, which meta tensors have not")
@pytest.mark.parametrize("where", [lambda: torch.device("meta"), FakeTensorMode], ids=["meta", "fake"])
def test_training_without_values(where):
    with where():
        model, optimizer, _ = trio(torch.optim.AdamW)
        with silent(model, optimizer) as handle:
            for _ in range(3):
                plain_step(model, optimizer, torch.ones(3, 4))
            if where is not FakeTensorMode:
                silent(model.half(), optimizer, ignore=["DG403", "DG404"])
    assert handle.report() == []


SPARSE = nn.Embedding(8, 4, sparse=True), lambda model: model(torch.tensor([1, 2])).sum()
COMPLEX = Holder(nn.Parameter(torch.randn(4, dtype=torch.complex64))), lambda model: model()


@pytest.mark.parametrize(("model", "loss"), [SPARSE, COMPLEX], ids=["sparse", "complex"])
def test_a_nan_in_a_gradient_of_another_kind_is_found(model, loss):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    silent(model, optimizer)
    (loss(model) * torch.nan).backward()
    with pytest.raises(AmpError, match="DG408"):
        optimizer.step()


def test_a_backward_that_fails_is_tried_again():
    model, optimizer, scaler = trio()
    fails = [True]

    def hook(gradient):
        if fails[0]:
            raise MemoryError

    with silent(model, optimizer, scaler) as handle:
        for _ in range(4):
            fails[0] = True
            with torch.autocast("cpu", F16):
                output = model[0](torch.ones(3, 4))
                output.register_hook(hook)
                loss = model[2](output).float().square().mean()
            with pytest.raises(MemoryError):
                scaler.scale(loss).backward()
            fails[0] = False
            optimizer.zero_grad()
            step(model, optimizer, scaler)
    assert handle.report() == []


def test_parameters_that_two_optimizers_share():
    model, first, scaler = trio()
    second = torch.optim.SGD([{"params": model[0].parameters()}, {"params": model[2].parameters()}], lr=0.01)
    with silent(model, [first, second]) as handle:
        for n in range(6):
            model(torch.ones(3, 4)).square().mean().backward()
            (first, second)[n % 2].step()
            first.zero_grad()
    assert handle.report() == []
    with silent(model, (first, second), scaler) as handle:
        for n in range(6):
            step(model, (first, second)[n % 2], scaler)
    assert handle.report() == []


def test_tied_parameters_have_one_name():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.warns(AmpWarning, match="DG301"):
        handle = amp.watch(model.half(), optimizer, GradScaler("cpu"))
    assert handle.report()[0].parameters == ("0.weight", "0.bias", "1.bias")


def test_an_average_that_was_made_in_inference_mode():
    model, optimizer, _ = trio()
    with torch.inference_mode():
        average = {name: parameter.bfloat16() for name, parameter in model.named_parameters()}
    with silent(model, optimizer, averaged=average) as handle:
        for _ in range(6):
            plain_step(model, optimizer)
            with torch.inference_mode():
                for name, parameter in model.named_parameters():
                    average[name].copy_(parameter)
    assert handle.report() == []


def test_the_fields_of_a_finding_are_those_that_are_documented():
    names = [field.name for field in dataclasses.fields(Finding)]
    assert all(f"{name}:" in Finding.__doc__ for name in names)
    assert Finding.__module__ == "dtypeguard.results"
