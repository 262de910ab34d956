"""The callback for the Hugging Face Trainer: one line of user code, and training is what it was."""

import logging
import re
import subprocess
import sys

import pytest
import torch
import transformers as hf
from support import F32, F64, LIBRARIES_WARN

import dtypeguard
from dtypeguard import AmpError, AmpWarning, DtypeError, is_guarded
from dtypeguard.integrations.transformers import DtypeGuardCallback

pytestmark = LIBRARIES_WARN


def vit():
    torch.manual_seed(1)
    config = hf.ViTConfig(
        image_size=8, patch_size=4, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    return hf.ViTForImageClassification(config)


def rows(dtype=F32, count=8):
    images = torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(2)).to(dtype)
    return [{"pixel_values": image, "labels": n % 2} for n, image in enumerate(images)]


class Losses(hf.TrainerCallback):
    def __init__(self):
        self.values, self.guarded = [], set()

    def on_step_begin(self, args, state, control, model=None, **kwargs):
        self.guarded.add(is_guarded(model))

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.values += [logs["loss"]] if "loss" in logs else []


def trained(folder, *callbacks, data=None, model=None, add_later=False, optimizers=(None, None), **options):
    args = hf.TrainingArguments(
        output_dir=str(folder), max_steps=4, per_device_train_batch_size=4, logging_steps=1, use_cpu=True,
        report_to="none", disable_tqdm=True, save_strategy="no", seed=3, dataloader_pin_memory=False, **options,
    )  # fmt: skip
    model, losses = model or vit(), Losses()
    first = [losses] if add_later else [losses, *callbacks]
    given = {"train_dataset": data or rows(), "callbacks": first, "optimizers": optimizers}
    trainer = hf.Trainer(model=model, args=args, **given)
    for callback in callbacks if add_later else ():
        trainer.add_callback(callback)
    trainer.train()
    return model, losses


def weights(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


@pytest.mark.thin(4)
@pytest.mark.parametrize(
    "options",
    [{}, {"bf16": True}, {"activation_checkpointing": True}, {"gradient_accumulation_steps": 2}],
    ids=["f32", "bf16", "gc", "acc"],
)
@pytest.mark.parametrize("add_later", [False, True], ids=["given", "added"])
def test_training_with_the_callback_is_training_without(tmp_path, options, add_later):
    bare, expected = trained(tmp_path, **options)
    callback = DtypeGuardCallback(mode="strict")
    guarded, losses = trained(tmp_path, callback, add_later=add_later, **options)
    assert losses.values == expected.values
    assert len(losses.values) == 4
    assert all(torch.equal(tensor, weights(guarded)[name]) for name, tensor in weights(bare).items())
    assert (expected.guarded, losses.guarded) == ({False}, {True})
    assert callback.report() == callback.findings() == []
    assert not is_guarded(guarded)


def test_in_strict_mode_a_wrong_column_ends_the_training(tmp_path):
    with pytest.raises(DtypeError, match="argument `pixel_values` is float64"):
        trained(tmp_path, DtypeGuardCallback(mode="strict"), data=rows(F64), bf16=True)


def test_in_lenient_mode_it_is_repaired_and_the_end_says_so(tmp_path, caplog):
    bare, expected = trained(tmp_path)
    callback = DtypeGuardCallback()
    with caplog.at_level(logging.WARNING, "dtypeguard"), pytest.warns(dtypeguard.CastWarning):
        model, losses = trained(tmp_path, callback, data=rows(F64))
    assert losses.values == expected.values
    assert all(torch.equal(tensor, weights(model)[name]) for name, tensor in weights(bare).items())
    (record,) = callback.report()
    assert (record.argument, record.from_dtype, record.count) == ("pixel_values", F64, 4)
    summary = next(message for message in caplog.messages if message.startswith("dtypeguard: "))
    assert "4 x ViTForImageClassification.forward `pixel_values`: float64 -> float32" in summary


WRONG = {
    "an option": ({"moed": "strict"}, TypeError, "there is no option moed=: did you mean mode=? The options are "),
    "an option of its own": ({"wach": False}, TypeError, "there is no option wach=: did you mean watch=? The options"),
    "a mode": ({"mode": "x"}, ValueError, "mode='x' is not a mode"),
    "no options of watch": (
        {"watch": 3}, TypeError, "watch=3 is not True, False or a dict of options of dtypeguard.amp.watch",
    ),
    "an option of watch": ({"watch": {"metric": 2}}, TypeError, "watch: there is no option metric=: did you mean me"),
    "a mode of watch": ({"watch": {"mode": "x"}}, ValueError, "watch: mode='x' is not a mode"),
    "steps of watch": ({"watch": {"metrics": 0}}, ValueError, "watch: metrics=0 is no number of steps"),
    "a rule of watch": ({"watch": {"ignore": "DG999"}}, ValueError, "watch: "),
    "no options of audit": ({"audit": 3}, TypeError, "audit=3 is not True, False or a dict of options of dtypegu"),
    "an option of audit": ({"audit": {"vales": True}}, TypeError, "audit: there is no option vales=: did you mean "),
    "steps of audit": ({"audit": {"values": True, "every": 0}}, ValueError, "audit: audit takes every='2^k'"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_option_is_refused_when_the_callback_is_made(name):
    options, kind, text = WRONG[name]
    with pytest.raises(kind, match=f"^DtypeGuardCallback: {re.escape(text)}"):
        DtypeGuardCallback(**options)


def test_importing_dtypeguard_imports_neither_library():
    code = "import sys, dtypeguard; print([m for m in ('transformers', 'lightning', 'accelerate') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_model_that_was_guarded_before_keeps_its_own_guard(tmp_path):
    model = dtypeguard.guard(vit(), mode="strict")
    with pytest.raises(DtypeError):
        trained(tmp_path, DtypeGuardCallback(mode="lenient"), data=rows(F64), model=model)
    assert is_guarded(model)


def test_the_callback_watches_the_optimizer(tmp_path):
    def optimizers():
        return torch.optim.SGD(vit().parameters(), lr=0.1), None  # of another model of the same making

    with pytest.raises(AmpError, match="DG401 stale-parameters: SGD holds 24 of 24 parameters that the model ViTFor"):
        trained(tmp_path, DtypeGuardCallback(mode="strict"), optimizers=optimizers())
    callback = DtypeGuardCallback()
    with pytest.warns(AmpWarning, match="DG401"):
        trained(tmp_path, callback, optimizers=optimizers())
    assert [finding.rule for finding in callback.findings()] == ["DG401"]
    callback = DtypeGuardCallback(watch=False)
    trained(tmp_path, callback, optimizers=optimizers())
    assert callback.findings() == []


def test_the_callback_audits_some_steps(tmp_path):
    plain, losses = trained(tmp_path)
    callback = DtypeGuardCallback(audit={"values": True, "every": 3})
    model, audited = trained(tmp_path, callback)
    assert audited.values == losses.values
    assert all(torch.equal(tensor, weights(model)[name]) for name, tensor in weights(plain).items())
    report = callback.audited()
    assert report.values["steps"] == 4
    assert report.values["shadowed"] > 100
    assert DtypeGuardCallback().audited() is None
    whole = DtypeGuardCallback(audit=True)
    trained(tmp_path, whole)
    assert whole.audited().values is None
    assert whole.audited().findings == report.findings
