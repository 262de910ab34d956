"""Lightning: fits in every precision are what they are without a guard, and the callback guards them in one line."""

import logging

import lightning.pytorch as pl
import pytest
import torch
from jaxtyping import Float
from support import F32, F64
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from versions import since

import dtypeguard
from dtypeguard import AmpError, AmpWarning, DtypeError, guard, is_guarded
from dtypeguard.integrations.lightning import DtypeGuardCallback

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*GPU available but not used:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec:FutureWarning"),  # Lightning, of torch's pytree
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:DeprecationWarning"),
]
PRECISIONS = ["32-true", "bf16-mixed", "bf16-true", "64-true"]


class Direct(pl.LightningModule):
    """Its steps call its own forward."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 1))
        self.losses, self.seen = [], set()

    def forward(self, x):
        self.seen.add(x.dtype)
        return self.body(x)

    def training_step(self, batch, index):
        x, y = batch
        loss = nn.functional.mse_loss(self(x), y)
        self.losses.append(loss.detach().clone())
        self.log("train", loss)
        return loss

    def validation_step(self, batch, index):
        self.log("loss", nn.functional.mse_loss(self(batch[0]), batch[1]))

    def test_step(self, batch, index):
        self.validation_step(batch, index)

    def predict_step(self, batch, index):
        return self(batch[0])

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


class Inner(Direct):
    """Its steps call a module in it, as most do."""

    def forward(self, x):
        raise NotImplementedError

    def training_step(self, batch, index):
        loss = nn.functional.mse_loss(self.body(batch[0]), batch[1])
        self.losses.append(loss.detach().clone())
        return loss

    def validation_step(self, batch, index):
        nn.functional.mse_loss(self.body(batch[0]), batch[1])


class Bodyless(Inner):
    """Has no forward of its own at all, and makes its layers late."""

    forward = pl.LightningModule.forward

    def __init__(self):
        super().__init__()
        del self.body

    def configure_model(self):
        if not hasattr(self, "body"):
            torch.manual_seed(7)
            self.body = nn.Linear(4, 1)


class Annotated(Direct):
    @dtypeguard.enforce
    def forward(self, x: Float[Tensor, "batch 4"]) -> Float[Tensor, "batch 1"]:
        return self.body(x)


def made(cls):
    torch.manual_seed(1)
    return cls()


def loader(dtype=F32, rows=12):
    x = torch.randn(rows, 4, generator=torch.Generator().manual_seed(2)).to(dtype)
    return DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=4)


def trainer(*callbacks, precision="32-true", epochs=2):
    return pl.Trainer(
        max_epochs=epochs, accelerator="cpu", precision=precision, callbacks=list(callbacks), logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip


def fitted(model, *callbacks, precision="32-true", batches=None):
    torch.manual_seed(3)
    runner = trainer(*callbacks, precision=precision)
    runner.fit(model, batches or loader(), loader())
    return model, runner


def same(a, b):
    assert all(map(torch.equal, a.losses, b.losses))
    assert len(a.losses) == len(b.losses) > 0
    assert {n: t.dtype for n, t in a.state_dict().items()} == {n: t.dtype for n, t in b.state_dict().items()}
    assert all(torch.equal(t, b.state_dict()[n]) for n, t in a.state_dict().items())


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("cls", [Direct, Inner, Bodyless, Annotated])
def test_a_fit_with_a_guard_or_the_callback_is_the_fit_without(precision, cls):
    bare, _ = fitted(made(cls), precision=precision)
    callback = DtypeGuardCallback(mode="strict")
    watched, runner = fitted(made(cls), callback, precision=precision)
    same(watched, bare)
    assert callback.report() == callback.findings() == []
    assert not any(is_guarded(module) for module in watched.modules())
    assert type(watched) is cls
    (optimizer,) = runner.optimizers
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    assert not any(module._forward_pre_hooks for module in watched.modules())
    for depth in ("auto", "all") if cls is Direct else ():
        model = guard(made(cls), mode="strict", depth=depth)
        guarded, runner = fitted(model, precision=precision)
        assert runner.lightning_module is model
        same(guarded, bare)
        assert guarded.seen == bare.seen
    assert dtypeguard.casts() == []


class Spy(pl.Callback):
    """Notes which modules are guarded when a batch starts."""

    def __init__(self):
        self.guarded = []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.guarded.append({name for name, module in pl_module.named_modules() if is_guarded(module)})

    def on_validation_batch_start(self, trainer, pl_module, batch, batch_idx, dataloader_idx=0):
        self.on_train_batch_start(trainer, pl_module, batch, batch_idx)


@pytest.mark.parametrize(("cls", "doors"), [(Direct, {"", "body"}), (Inner, {"", "body"}), (Bodyless, {"body"})])
def test_the_callback_guards_the_module_and_what_its_steps_may_call(cls, doors):
    spy = Spy()
    fitted(made(cls), DtypeGuardCallback(), spy)
    assert spy.guarded
    assert all(guarded == doors for guarded in spy.guarded)


@pytest.mark.parametrize("cls", [Direct, Inner, Bodyless])
def test_in_strict_mode_a_wrong_batch_ends_the_fit_with_our_error_and_no_guard_stays(cls):
    model, callback = made(cls), DtypeGuardCallback(mode="strict")
    with pytest.raises(DtypeError, match="is float64, the module's parameters are float32") as caught:
        fitted(model, callback, batches=loader(F64))
    assert '.to(torch.float32), or DtypeGuardCallback(mode="lenient")' in str(caught.value)
    assert not any(is_guarded(module) for module in model.modules())


two_dtypes = since("torch", "2.13", "mse_loss has no gradient for two dtypes, and its target is still float64")


@two_dtypes
def test_in_lenient_mode_a_wrong_batch_is_repaired_and_the_end_says_so(caplog):
    callback = DtypeGuardCallback(mode="lenient")
    with caplog.at_level(logging.WARNING, "dtypeguard"), pytest.warns(dtypeguard.CastWarning):
        fitted(made(Direct), callback, batches=loader(F64))
    (record,) = callback.report()
    assert (record.argument, record.from_dtype, record.to_dtype) == ("x", F64, F32)
    assert record.count == 6  # three batches, two epochs
    assert record.bytes == 6 * 4 * 4 * 4
    summary = next(message for message in caplog.messages if message.startswith("dtypeguard: "))
    assert "6 repairs in this run, 384 B copied" in summary
    assert "6 x Direct.forward `x`: float64 -> float32" in summary
    again = DtypeGuardCallback(mode="lenient")
    fitted(made(Direct), again)
    assert again.report() == []  # of its own run only


@pytest.mark.parametrize("run", ["validate", "test", "predict"])
def test_the_callback_guards_runs_that_do_not_fit(run):
    runner = trainer(DtypeGuardCallback(mode="strict"))
    model = made(Direct)
    getattr(runner, run)(model, loader(), **({} if run == "predict" else {"verbose": False}))
    with pytest.raises(DtypeError):
        getattr(runner, run)(model, loader(F64))
    assert not is_guarded(model)


def test_a_module_that_was_guarded_before_keeps_its_own_guard():
    model = guard(made(Direct), mode="strict")
    with pytest.raises(DtypeError):
        fitted(model, DtypeGuardCallback(mode="lenient"), batches=loader(F64))
    assert is_guarded(model)


def test_checkpoints_hold_what_they_hold_without_a_guard(tmp_path):
    def saved(model, name):
        _, runner = fitted(model)
        runner.save_checkpoint(tmp_path / name)
        return torch.load(tmp_path / name, weights_only=False)

    bare, guarded = saved(made(Direct), "bare.ckpt"), saved(guard(made(Direct), mode="strict"), "guarded.ckpt")
    assert list(bare["state_dict"]) == list(guarded["state_dict"])
    assert all(torch.equal(bare["state_dict"][name], t) for name, t in guarded["state_dict"].items())
    again = Direct.load_from_checkpoint(tmp_path / "guarded.ckpt", weights_only=False)
    assert not is_guarded(again)
    assert all(torch.equal(t, guarded["state_dict"][name]) for name, t in again.state_dict().items())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_module_that_lightning_compiles_is_guarded_too():
    bare, _ = fitted(torch.compile(made(Inner), backend="eager"))
    guarded, _ = fitted(torch.compile(guard(made(Inner), mode="strict", depth="all"), backend="eager"))
    same(guarded._orig_mod, bare._orig_mod)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*sync_dist=True:UserWarning")
@pytest.mark.filterwarnings("ignore:.*DistributedSampler:UserWarning")
def test_two_processes_train_as_without_a_guard():
    def weights(*callbacks):
        torch.manual_seed(3)
        runner = pl.Trainer(
            max_epochs=1, accelerator="cpu", devices=2, strategy="ddp_spawn", callbacks=list(callbacks), logger=False,
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        model = made(Direct)
        runner.fit(model, loader(), loader())
        return model.state_dict()

    bare, guarded = weights(), weights(DtypeGuardCallback(mode="strict"))
    assert all(torch.equal(tensor, bare[name]) for name, tensor in guarded.items())
    assert not torch.equal(bare["body.0.weight"], made(Direct).body[0].weight)


class Swapped(Direct):
    """Gets a new body after its optimizer was built, as fine-tuning scripts do."""

    def on_train_start(self):
        self.body = nn.Linear(4, 1)


def test_the_callback_watches_the_optimizers():
    with pytest.raises(AmpError, match=r"DG401 stale-parameters: .* holds \d of \d parameters that the model Swapped"):
        fitted(made(Swapped), DtypeGuardCallback(mode="strict"))
    callback = DtypeGuardCallback()
    with pytest.warns(AmpWarning, match="DG401"):
        fitted(made(Swapped), callback)
    (finding,) = callback.findings()
    assert finding.rule == "DG401"
    assert finding.parameters[0] == "body.0.weight"  # of the body that is gone


def test_the_callback_need_not_watch():
    callback = DtypeGuardCallback(mode="strict", watch=False)
    fitted(made(Swapped), callback)
    assert callback.findings() == []


class Counts(Direct):
    """Keeps a total in bfloat16."""

    def on_train_start(self):
        self.total = torch.full((), 256, dtype=torch.bfloat16)

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.total += 1


def test_the_callback_audits_some_steps(caplog):
    callback = DtypeGuardCallback(audit={"values": True, "every": "2^k"})
    model, _ = fitted(made(Counts), callback, batches=loader(rows=400))
    assert model.total == 256
    report = callback.audited()
    assert report.values["steps"] > 60
    assert report.values["looked_at"] < 20
    assert [finding.rule for finding in report.findings if finding.severity == "warning"] == ["DG903"]
    assert any("the audit of this run found" in message for message in caplog.messages)
    with pytest.raises(ValueError, match="audit takes every="):
        DtypeGuardCallback(audit={"values": True, "every": "never"})
