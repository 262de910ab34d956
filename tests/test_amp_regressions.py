"""What once broke a training step under a watch, or stayed behind after it."""

import copy
import warnings

import pytest
import torch
from torch import nn
from versions import reset_default_device

import dtypeguard
from dtypeguard import AmpError, AmpWarning, amp


def trio(optimizer=torch.optim.SGD, **options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    return model, optimizer(model.parameters(), lr=0.1, **options), torch.amp.GradScaler("cpu")


def loss_of(model):
    return model(torch.ones(3, 4)).square().mean()


def test_an_embedding_that_no_row_was_asked_of():
    table = nn.Embedding(5, 3, sparse=True)
    optimizer = torch.optim.SparseAdam(table.parameters())
    watch = amp.watch(table, optimizer, mode="strict")
    for ids in (torch.tensor([], dtype=torch.int64), torch.tensor([1, 2])):
        optimizer.zero_grad()
        table(ids).sum().backward()
        optimizer.step()
    assert watch.report() == []


def test_gradients_that_are_conjugated_lazily():
    weight = nn.Parameter(torch.ones(3, dtype=torch.complex64))
    model = nn.ParameterList([weight])
    optimizer = torch.optim.SGD([weight], lr=0.1)
    watch = amp.watch(model, optimizer, mode="strict")
    (weight.conj() * torch.ones(3)).sum().abs().backward()
    optimizer.step()
    assert watch.report() == []


def test_a_parameter_in_the_middle_is_replaced_in_model_and_optimizer():
    model, optimizer, _ = trio()
    watch = amp.watch(model, optimizer, mode="strict")
    for step in range(4):
        if step == 2:
            model[2].weight = nn.Parameter(torch.zeros(2, 8))
            optimizer.param_groups[0]["params"][2] = model[2].weight
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()
    assert watch.report() == []


def test_a_watch_that_raised_at_once_leaves_the_scaler_alone():
    model, _, scaler = trio()
    optimizer = torch.optim.SGD(model.half().parameters(), lr=0.1)
    with pytest.raises(AmpError, match="DG301"):
        amp.watch(model, optimizer, scaler, mode="strict")
    assert type(scaler) is torch.amp.GradScaler
    assert not optimizer._optimizer_step_pre_hooks
    assert not any(parameter._backward_hooks for parameter in model.parameters())


def test_gradients_that_are_replaced_in_inference_mode():
    model, optimizer, scaler = trio()
    watch = amp.watch(model, optimizer, scaler, mode="strict")
    scaler.scale(loss_of(model)).backward()
    with torch.inference_mode():
        for parameter in model.parameters():
            parameter.grad = parameter.grad / 4
        scaler.step(optimizer)
        scaler.update()
    assert [finding.rule for finding in watch.report()] == ["DG304"]


def test_a_scale_that_falls_to_zero():
    model, optimizer, scaler = trio(fused=True)
    watch = amp.watch(model, optimizer, scaler)
    with warnings.catch_warnings(action="ignore", category=AmpWarning):
        for _ in range(200):
            optimizer.zero_grad()
            scaler.scale(loss_of(model) * torch.nan).backward()
            scaler.step(optimizer)
            scaler.update()
    assert scaler.get_scale() == 0
    assert "DG313" in {finding.rule for finding in watch.report()}


def test_gradients_with_a_graph():
    model, optimizer, _ = trio()
    watch = amp.watch(model, optimizer, mode="strict")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Using backward.. with create_graph=True")
        for _ in range(3):
            optimizer.zero_grad()
            loss_of(model).backward(create_graph=True)
            optimizer.step()
    optimizer.zero_grad()
    assert watch.report() == []


def test_averages_from_an_iterator_are_read_more_than_once():
    model, optimizer, _ = trio()
    average = [parameter.detach().bfloat16() for parameter in model.parameters()]
    watch = amp.watch(model, optimizer, averaged=iter(average))
    with warnings.catch_warnings(action="ignore", category=AmpWarning):
        for _ in range(40):
            optimizer.zero_grad()
            loss_of(model).backward()
            optimizer.step()
            for mean, parameter in zip(average, model.parameters(), strict=True):
                mean.mul_(0.9999).add_(parameter.detach(), alpha=0.0001)
    assert [finding.rule for finding in watch.report()] == ["DG407"]


def to_nearest(mean, parameter, decay):
    mean.mul_(decay).add_(parameter.to(mean.dtype), alpha=1 - decay)


def stochastically(mean, parameter, decay):
    """Each neighbour as likely as it is near."""
    exact = (mean.float() * decay + parameter * (1 - decay)).view(torch.int32)
    noise = torch.randint(0, 2**16, mean.shape, dtype=torch.int32)
    mean.copy_((exact + noise & -(2**16)).view(torch.float32))


@pytest.mark.parametrize(
    ("follow", "decay", "rules"),
    [(to_nearest, 0.999, ["DG407"]), (to_nearest, 0.9999, ["DG407"]), (to_nearest, 0.9, []),
     (stochastically, 0.999, []), (stochastically, 0.9999, []), (stochastically, 0.9, [])],
)  # fmt: skip
def test_a_small_net_whose_average_moves_in_part_only(follow, decay, rules):
    """Biases and small weights follow, since their digits are fine; the rest never will."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    average = copy.deepcopy(model).bfloat16().requires_grad_(False)
    watch, goal = amp.watch(model, optimizer, averaged=average), torch.randn(4, 2)
    with warnings.catch_warnings(action="ignore", category=AmpWarning):
        for _ in range(201):
            x = torch.randn(32, 4)
            optimizer.zero_grad()
            (model(x) - torch.tanh(x) @ goal - 0.5).square().mean().backward()
            optimizer.step()
            with torch.no_grad():
                for mean, parameter in zip(average.parameters(), model.parameters(), strict=True):
                    follow(mean, parameter, decay)
    assert [finding.rule for finding in watch.report()] == rules


def test_each_of_two_optimizers_has_a_finding_of_its_own():
    (a, first, scaler), (b, second, _) = trio(), trio()
    watch = amp.watch([a, b], [first, second], scaler, ignore="DG304")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for model, optimizer in ((a, first), (b, second)):
            scaler.scale(loss_of(model)).backward()
            scaler.unscale_(optimizer)
            with pytest.raises(RuntimeError, match="already been called"):
                scaler.unscale_(optimizer)
    assert [finding.rule for finding in watch.report()] == ["DG310", "DG310"]
    assert [warning.category for warning in said] == [AmpWarning, AmpWarning]


def test_a_disabled_scaler_puts_no_hooks_on_parameters():
    model, optimizer, _ = trio()
    with amp.watch(model, optimizer, torch.amp.GradScaler("cpu", enabled=False)):
        assert not any(parameter._backward_hooks for parameter in model.parameters())


def test_a_default_device_changes_nothing():
    code = "import torch; torch.set_default_device('meta'); import dtypeguard; dtypeguard.amp.watch"
    exec(compile(code, "<test>", "exec"), {})
    reset_default_device()
    model, optimizer, _ = trio()
    with torch.device("meta"), amp.watch(model, optimizer, mode="strict") as watch:
        loss_of_cpu = model(torch.ones(3, 4, device="cpu")).sum()
        loss_of_cpu.backward()
        optimizer.step()
    assert watch.report() == []


@pytest.mark.parametrize("micro", [1, 2])
def test_clipping_after_unscale_is_no_reason_to_look_in_full(micro):
    model, optimizer, scaler = trio()
    watch = amp.watch(model, optimizer, scaler, mode="strict")
    looks = 0
    driven = watch._scaling.driven[0]
    for step in range(200):
        for _ in range(micro if step % 3 else 1):
            scaler.scale(loss_of(model)).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        looks += driven.now
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert looks == 10  # steps 1, 2, 4, 8, 16, 32, 50, 100, 150, 200


def test_a_finding_that_became_worse_is_said_once_more_and_no_more():
    from dtypeguard._engine.watch.ledger import Ledger
    from dtypeguard._engine.watch.rule import RULES, Severity

    ledger = Ledger(dtypeguard._core.base.config.Mode.LENIENT)
    facts = {
        "names": "`a`",
        "share": 0.95,
        "found": "bfloat16",
        "optimizer": "SGD",
        "lr": 0.1,
        "looks": "",
        "sampled": "",
    }
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for severity in (Severity.INFO, None, Severity.INFO, None):
            ledger.add(RULES["DG406"], (), "SGD", facts, severity=severity)
    assert len(said) == 1
    (finding,) = ledger.findings
    assert (finding.severity, finding.count) == ("warning", 4)
