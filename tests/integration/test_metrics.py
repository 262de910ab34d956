"""`watch.metrics()` and `watch.log()`: what the numbers are, with the real loggers, and over real ranks."""

import csv
import gc
import math
import sys

import pytest
import torch
import torch.distributed as dist
from ranks import on_ranks
from support import BF16, F16, F32
from torch import nn

import dtypeguard
from dtypeguard import amp

HISTOGRAM = "dtypeguard/update_log2"


def watched(dtype=F32, lr=0.5, steps=1, **options):
    """A layer of ones whose gradients are ones, so that SGD moves each weight by lr."""
    layer = nn.Linear(4, 4, bias=False, dtype=dtype)
    nn.init.ones_(layer.weight)
    optimizer = torch.optim.SGD(layer.parameters(), lr=lr)
    handle = amp.watch(layer, optimizer, mode="off", **{"metrics": 1, **options})
    for _ in range(steps):
        optimizer.zero_grad()
        layer(torch.ones(1, 4, dtype=dtype)).sum().backward()
        optimizer.step()
    return handle


# A weight of 1, the learning rate, and log2 of the update in spacings (2^-23 in float32, 2^-7 in bfloat16).
UPDATES = [
    (F32, 0.5, 22),
    (F32, 2.0**-20, 3),
    (F32, 2.0**-30, -2),
    (F16, 2.0**-8, 2),
    (BF16, 2.0**-7, 0),
    (BF16, 2.0**-8, -1),  # below 1 the spacing is half as large
    (BF16, 2.0**-10, -2),
]


@pytest.mark.parametrize(("dtype", "lr", "bin_"), UPDATES, ids=str)
def test_updates_are_told_in_spacings(dtype, lr, bin_):
    found = watched(dtype, lr).metrics()
    counts, edges = found.histograms[HISTOGRAM]
    assert {edge: count for edge, count in zip(edges, counts, strict=False) if count} == {bin_: 16}
    assert found["dtypeguard/unmoved"] == (bin_ == -2)
    assert found["dtypeguard/update"] == pytest.approx(0 if bin_ == -2 else 2.0 ** (bin_ + 0.5))
    assert found[f"dtypeguard/gradients/{str(dtype)[6:]}"] == 1


@pytest.mark.parametrize("fused", [False, True])
def test_scale_and_skipped_steps(fused):
    model = nn.Linear(4, 4)
    optimizer = torch.optim.Adam(model.parameters(), fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with amp.watch(model, optimizer, scaler, mode="off", metrics=1) as handle:
        for factor in (1.0, float("inf"), 1.0):
            optimizer.zero_grad()
            scaler.scale(model(torch.ones(1, 4)).sum() * factor).backward()
            scaler.step(optimizer)
            scaler.update()
        found = handle.metrics()
    assert found["dtypeguard/skipped"] == 1
    assert found["dtypeguard/scale"] == 512
    assert found["dtypeguard/unmoved"] == 0
    del scaler
    gc.collect()
    assert handle.metrics() == found  # those of a scaler that is gone stay


def test_without_the_option_nothing_is_measured_and_repairs_are_counted():
    handle = watched(metrics=None)
    layer = dtypeguard.guard(nn.Linear(2, 2), mode="lenient")
    x = torch.ones(1, 2).double()
    with pytest.warns(dtypeguard.CastWarning):
        [layer(x) for _ in range(3)]
    found = handle.metrics()
    (site,) = {name for name in found if "test_metrics.py" in name}
    assert found == {"dtypeguard/steps": 1, "dtypeguard/repairs": 3, site: 3}
    assert not found.histograms


def test_metrics_change_no_bit():
    def trained(every):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 1)).to(BF16)
        optimizer = torch.optim.AdamW(model.parameters())
        with amp.watch(model, optimizer, mode="off", metrics=every) as handle:
            for _ in range(5):
                optimizer.zero_grad()
                model(torch.randn(4, 8, dtype=BF16)).sum().backward()
                optimizer.step()
                handle.metrics()
        return torch.cat([parameter.flatten() for parameter in model.parameters()])

    assert torch.equal(trained(None), trained(1))


@pytest.mark.parametrize(("wrong", "kind", "text"), [
    (lambda: watched(metrics=0), ValueError, "metrics=0 is no number of steps"),
    (lambda: watched(metrics=True), TypeError, "metrics must be a number of steps, not True"),
    (lambda: watched().metrics(group=True), TypeError, r"group must be a process group \(.*WORLD.*\), not bool"),
    (lambda: watched().log("wandb"), TypeError, "writer must be a SummaryWriter, .*, not str: give the logger itself"),
    (lambda: watched().log(object()), TypeError, "writer must be .*, not object"),
])  # fmt: skip
def test_bad_input(wrong, kind, text):
    with pytest.raises(kind, match=text):
        wrong()


# ---------------------------------------------------------------- loggers


def test_a_function():
    told = []
    found = watched().log(lambda values, step: told.append((values, step)), 7)
    assert told == [(found, 7)]


def test_a_writer_of_ones_own_needs_no_histograms():
    class Writer:
        def add_scalar(self, tag, value, step):
            told[tag] = (value, step)

    told = {}
    found = watched().log(Writer(), 7)
    assert found.histograms
    assert told == {name: (value, 7) for name, value in found.items()}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        found = watched().log(writer, 7)
    events = EventAccumulator(str(tmp_path)).Reload()
    assert {name: events.Scalars(name)[0].value for name in events.Tags()["scalars"]} == pytest.approx(dict(found))
    (told,) = events.Histograms(HISTOGRAM)
    assert (told.step, told.histogram_value.num) == (7, 16)


def test_wandb(tmp_path):
    wandb = pytest.importorskip("wandb")
    with wandb.init(mode="offline", dir=tmp_path, settings={"silent": True}) as run:
        found = watched().log(run, 7)
        run.log({"next": 1}, step=8)  # what belongs to a step is written when the next one begins
        assert {name: run.summary[name] for name in found} == found
        assert run.summary[HISTOGRAM]["_type"] == "histogram"
        assert run.step == 8


def test_mlflow(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    with mlflow.start_run() as run:
        found = watched().log(mlflow, 7)
    assert mlflow.get_run(run.info.run_id).data.metrics == found


def test_opentelemetry():
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    reader = InMemoryMetricReader()
    meter = MeterProvider([reader]).get_meter("training")
    handle = watched()
    for _ in range(2):
        handle.log(meter)
    (scope,) = reader.get_metrics_data().resource_metrics[0].scope_metrics
    told = {one.name: (p.value, p.attributes) for one in scope.metrics for p in one.data.data_points}
    assert told["dtypeguard.update"][0] == handle.metrics()["dtypeguard/update"]
    assert told["dtypeguard.gradients"] == (1.0, {"part": "float32"})


def test_lightning_logger(tmp_path):
    loggers = pytest.importorskip("lightning.pytorch.loggers")
    logger = loggers.CSVLogger(str(tmp_path))
    watched().log(logger, 7)
    logger.save()
    assert "dtypeguard/update" in (tmp_path / "lightning_logs/version_0/metrics.csv").read_text()


def test_no_logger_is_imported():
    before = set(sys.modules)
    watched().log(lambda values, step: None)
    assert not {"wandb", "mlflow", "tensorboard"} & (set(sys.modules) - before)


# ---------------------------------------------------------------- ranks


@on_ranks(world_size=4)
def test_four_ranks_become_one_with_one_collective(rank):
    """Each has other names: one has measured nothing, one has repairs."""
    handle = watched(lr=2.0 ** -(rank + 1), metrics=None if rank == 3 else 1)
    layer = dtypeguard.guard(nn.Linear(2, 2), mode="lenient")
    if rank == 1:
        with pytest.warns(dtypeguard.CastWarning):
            layer(torch.ones(1, 2).double())
    calls, real = [], dist.all_gather

    def counted(*args, **options):
        calls.append(args)
        return real(*args, **options)

    dist.all_gather = counted
    try:
        found = handle.metrics(dist.group.WORLD)
    finally:
        dist.all_gather = real
    assert len(calls) == 1
    assert found["dtypeguard/repairs"] == 1
    assert (found["dtypeguard/repairs/min_rank"], found["dtypeguard/repairs/max_rank"]) == (0, 1)
    assert (found["dtypeguard/update/min_rank"], found["dtypeguard/update/max_rank"]) == (2, 0)
    assert found["dtypeguard/update/min"] == pytest.approx(2.0**20.5)
    assert sum(found.histograms[HISTOGRAM].counts) == 3 * 16
    assert "dtypeguard/scale" not in found
    assert any("test_metrics.py" in name for name in found) == (rank == 1)


# ---------------------------------------------------------------- callbacks


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
def test_the_callback_of_lightning_logs_with_its_trainer(tmp_path):
    pl = pytest.importorskip("lightning.pytorch")
    from lightning.pytorch.loggers import CSVLogger

    from dtypeguard.integrations.lightning import DtypeGuardCallback

    class Net(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 1)

        def training_step(self, batch, step):
            loss = self.layer(batch).square().mean()
            self.log("loss", loss)
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    logger = CSVLogger(str(tmp_path))
    callback = DtypeGuardCallback(watch={"metrics": 2, "mode": "off"})
    trainer = pl.Trainer(
        max_steps=4, log_every_n_steps=2, logger=logger, callbacks=[callback], accelerator="cpu", **quiet
    )
    trainer.fit(Net(), torch.utils.data.DataLoader(torch.randn(8, 4), batch_size=2))
    rows = list(csv.DictReader((tmp_path / "lightning_logs/version_0/metrics.csv").read_text().splitlines()))
    steps = {name: [row["step"] for row in rows if row[name]] for name in ("loss", "dtypeguard/update")}
    assert steps["loss"] == steps["dtypeguard/update"]
    assert len(steps["loss"]) == 2


def test_the_callback_of_the_trainer_adds_to_its_logs(tmp_path):
    hf = pytest.importorskip("transformers")
    from dtypeguard.integrations.transformers import DtypeGuardCallback

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 1)

        def forward(self, x, labels):
            return {"loss": (self.layer(x) - labels).square().mean()}

    data = [{"x": torch.randn(4), "labels": torch.ones(1)} for _ in range(8)]
    args = hf.TrainingArguments(
        str(tmp_path), max_steps=4, logging_steps=2, use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True,
        per_device_train_batch_size=2, dataloader_pin_memory=False,
    )  # fmt: skip
    callback = DtypeGuardCallback(watch={"metrics": 2, "mode": "off"})
    trainer = hf.Trainer(Net(), args, train_dataset=data, callbacks=[callback])
    trainer.train()
    told = [row["dtypeguard/steps"] for row in trainer.state.log_history if "dtypeguard/update" in row]
    assert told == [2, 4]


def test_a_history_has_each_measured_step_and_of_a_long_run_at_most_512():
    handle = watched(BF16, lr=2.0**-7, steps=30, metrics=10)
    assert [moment.step for moment in handle.history] == [1, 10, 20, 30]
    first = handle.history.moments[0]
    assert (first.unmoved, first.update) == (0, watched(BF16, lr=2.0**-7).metrics()["dtypeguard/update"])
    assert 1 < first.low < first.update < first.high < 2
    steps = [moment.step for moment in watched(BF16, steps=1500).history]
    assert steps == list(range(1, 1501, 4))


def test_a_history_has_the_scale_of_each_step_and_prints_it_first():
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1)
    with amp.watch(model, optimizer, scaler, mode="off", metrics=1) as handle:
        for _ in range(3):
            optimizer.zero_grad()
            scaler.scale(model(torch.ones(1, 4)).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
    assert [moment.scale for moment in handle.history] == [1024.0, 2048.0, 4096.0]
    lines = str(handle.history).splitlines()
    assert [line.split()[0] for line in lines] == ["step", "scale", "unmoved", "update"]
    assert lines[1].split()[1:] == ["1024", "\u2581\u2585\u2588", "4096"]


@pytest.mark.parametrize(
    ("metrics", "steps", "removed", "why"),
    [
        (None, 3, False, "watch(..., metrics=n) measures each n-th"),
        (2, 0, False, "there was none"),
        (2, 1, False, "the scaler skipped the only one"),
        (2, 3, False, "the scaler skipped all 3"),
        (2, 3, True, "the scaler skipped all 3"),
    ],
)
def test_a_history_without_a_step_says_why(metrics, steps, removed, why):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    with amp.watch(model, optimizer, scaler, mode="off", metrics=metrics) as handle:
        for _ in range(steps):
            optimizer.zero_grad()
            scaler.scale(model(torch.full((1, 4), math.inf)).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
        told = None if removed else str(handle.history)
    assert (told or str(handle.history)) == f"no step was measured: {why}"
