"""A callback for Lightning's Trainer.

For `lightning`, or `pytorch_lightning` where that is what is installed.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch import nn
from typing_extensions import Unpack

from .._core.contract.anchor import find
from .._core.doors.options import GuardOptions
from .._core.repair.records import Casts
from .._show.report.findings import Report
from .._show.report.report import AuditReport
from ..distributed import check_ranks
from ._run import AuditOptions, Run, WatchOptions

if TYPE_CHECKING:
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.strategies import DDPStrategy
else:
    try:
        from lightning.pytorch import Callback, LightningModule, Trainer
        from lightning.pytorch.strategies import DDPStrategy
    except ModuleNotFoundError:
        try:
            from pytorch_lightning import Callback, LightningModule, Trainer
        except ModuleNotFoundError as error:
            text = "dtypeguard.integrations.lightning needs Lightning: pip install lightning"
            raise ModuleNotFoundError(text, name=error.name) from None
        from pytorch_lightning.strategies import DDPStrategy


class DtypeGuardCallback(Callback):
    """Guards a LightningModule and watches its optimizers during a run of a Trainer. At the end it logs the repairs.

    It guards the `forward` of the LightningModule, if there is one, and every module inside that has parameters,
    because steps may call any of them. It compares all ranks before DistributedDataParallel wraps the module. When the
    run ends, also with an exception, it removes the guards.

    With `watch={"metrics": 10}` what `Watch.metrics` tells goes to the Trainer's loggers every `log_every_n_steps`.

    Args:
        watch: whether to watch the optimizers and the scaler too, or a dict of options of `dtypeguard.amp.watch`.
        audit: whether to audit the training too, or a dict of options of `dtypeguard.audit`: `{"values": True, "every":
            "2^k"}` follows the values in steps 1, 2, 4, 8 ..., and costs next to nothing in between.
        options: options of `dtypeguard.guard`.

    Raises:
        TypeError, ValueError: for an option that `guard`, `watch` or `audit` does not have, and for a wrong value.
        AmpError: in strict mode, from the watch.
        RankError: at the start of a run, if ranks hold different parameters.

    >>> from lightning.pytorch import Trainer
    >>> from dtypeguard.integrations.lightning import DtypeGuardCallback
    >>> trainer = Trainer(callbacks=[DtypeGuardCallback(mode="strict")], logger=False, accelerator="cpu")
    """

    def __init__(
        self, *, watch: bool | WatchOptions = True, audit: bool | AuditOptions = False, **options: Unpack[GuardOptions]
    ) -> None:
        super().__init__()
        self._run = Run(watch, options, audit)
        self._metrics, self._stepped = isinstance(watch, dict) and "metrics" in watch, 0

    def report(self) -> Casts:
        """The repairs of the run, or of the last one."""
        return self._run.report()

    def audited(self) -> AuditReport | None:
        """What the audit of the run, or of the last one, found; None without one."""
        return self._run.audited

    def findings(self) -> Report:
        """What the watch found in the run, or in the last one."""
        return self._run.findings()

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if isinstance(trainer.strategy, DDPStrategy):
            check_ranks(pl_module)

    # Whichever comes first: by then `configure_model` has made the layers, and no batch has been seen.
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._run.open(_doors(pl_module))

    def on_sanity_check_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.on_fit_start(trainer, pl_module)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.on_fit_start(trainer, pl_module)

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.on_fit_start(trainer, pl_module)

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.on_fit_start(trainer, pl_module)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        self._run.watch(pl_module, trainer.optimizers, scaler)
        self._run.audit(pl_module, trainer.optimizers, scaler)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        every = getattr(trainer, "log_every_n_steps", 0)  # 0: no logs
        stepped, self._stepped = trainer.global_step != self._stepped, trainer.global_step
        # Lightning's own metrics are at the number of batches that stepped before: at 1, 3, 5 for every second one.
        step: int = getattr(trainer.fit_loop.epoch_loop, "_batches_that_stepped", trainer.global_step - 1)
        if self._metrics and every and stepped and not (step + 1) % every:
            found = self._run.metrics()
            for logger in trainer.loggers:
                logger.log_metrics(found, step=step)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._run.close(speak=trainer.is_global_zero)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._run.close(speak=trainer.is_global_zero)


def _doors(module: LightningModule) -> Iterator[nn.Module]:
    if type(module).forward is not LightningModule.forward and find(module) is not None:
        yield module
    for child in module.children():
        if find(child) is not None and type(child).forward is not nn.Module.forward:
            yield child
