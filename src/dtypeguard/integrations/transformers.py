"""A callback for the Trainer of Hugging Face transformers."""

from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from typing_extensions import Unpack

from .._core.doors.options import GuardOptions
from .._core.repair.records import Casts
from .._show.report.findings import Report
from .._show.report.report import AuditReport
from ..distributed import check_ranks
from ._run import AuditOptions, Run, WatchOptions


class DtypeGuardCallback(TrainerCallback):
    """Guards the model of a Trainer and watches its optimizer until training ends. At the end it logs the repairs.

    It guards the model when the Trainer is constructed, before accelerate prepares the model and turns its outputs into
    float32. If several processes train, it compares them first.

    With `watch={"metrics": 10}` what `Watch.metrics` tells is added to each log of the Trainer: to `state.log_history`,
    and to the logs of callbacks that come after this one.

    Args:
        watch: whether to watch the optimizer and the scaler too, or a dict of options of `dtypeguard.amp.watch`.
        audit: whether to audit the training too, or a dict of options of `dtypeguard.audit`: `{"values": True, "every":
            "2^k"}` follows the values in steps 1, 2, 4, 8 ..., and costs next to nothing in between.
        options: options of `dtypeguard.guard`.

    Raises:
        TypeError, ValueError: for an option that `guard`, `watch` or `audit` does not have, and for a wrong value.
        AmpError: in strict mode, from the watch.
        RankError: at the start of training, if ranks hold different parameters.

    >>> from dtypeguard.integrations.transformers import DtypeGuardCallback
    >>> callback = DtypeGuardCallback(mode="strict")  # Trainer(..., callbacks=[callback])
    """

    def __init__(
        self, *, watch: bool | WatchOptions = True, audit: bool | AuditOptions = False, **options: Unpack[GuardOptions]
    ) -> None:
        self._run = Run(watch, options, audit)
        self._metrics = isinstance(watch, dict) and "metrics" in watch

    def report(self) -> Casts:
        """The repairs of the training, or of the last one."""
        return self._run.report()

    def audited(self) -> AuditReport | None:
        """What the audit of the run, or of the last one, found; None without one."""
        return self._run.audited

    def findings(self) -> Report:
        """What the watch found in the training, or in the last one."""
        return self._run.findings()

    def on_init_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._run.open([kwargs["model"]])

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._run.open([kwargs["model"]])
        if args.parallel_mode.value == "distributed" and not args.fsdp and not args.deepspeed:
            check_ranks(kwargs["model"])
        self._run.watch(kwargs["model"], kwargs.get("optimizer"))
        self._run.audit(kwargs["model"], kwargs.get("optimizer"))

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        logs = kwargs.get("logs") or {}
        if self._metrics and "loss" in logs:  # of a training step, not of an evaluation
            found = self._run.metrics()
            logs.update(found)
            state.log_history[-1].update(found)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._run.close(speak=state.is_world_process_zero)
