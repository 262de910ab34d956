"""The rows of the registry about autocast, GradScaler (DG3) and optimizers (DG4)."""

from ._rule import AMP, AMP_EXAMPLES, GITHUB, Rule, Severity

_INFO, _WARNING, _ERROR = Severity
AMP_RULES = (
    # ------------------------------------------------------------ DG3: autocast and GradScaler
    Rule(
        "DG301", "scaler-float16-parameters", _ERROR,
        "{names} ({share} trainable parameters) are float16, and a GradScaler refuses float16 gradients",
        "keep the parameters in float32 (`model.float()` before the optimizer is built) and run the forward under "
        "`torch.autocast({device!r}, dtype=torch.float16)`",
        "A GradScaler divides gradients by the scale in place, and float16 gradients have lost what the scale was to "
        "save: `unscale_` refuses them with \"Attempting to unscale FP16 gradients\", after the first backward. "
        "Mixed precision keeps float32 master weights, and lets autocast cast them for each operation.",
        f"{AMP}#gradient-scaling; {GITHUB}/haotian-liu/LLaVA/issues/363",
    ),
    Rule(
        "DG302", "gradient-differs", _ERROR,
        "the gradients of {names} are {found}, the parameters {expected}",
        "convert the model before the first backward, or call `optimizer.zero_grad()` after converting it",
        "A gradient has its parameter's dtype and device, unless `grad_dtype` says otherwise. Where `param.data` was "
        "replaced between backward and step, the old gradient stays, and the step fails obscurely or mixes dtypes.",
        "https://docs.pytorch.org/docs/stable/generated/torch.Tensor.grad.html",
    ),
    Rule(
        "DG303", "scaler-with-bfloat16", _WARNING,
        "a GradScaler is enabled, but the forward ran in bfloat16",
        "drop the scaler (`GradScaler(enabled=False)`), or run the forward under `torch.autocast({device!r}, "
        "dtype=torch.float16)`; on the CPU autocast's default is bfloat16",
        "bfloat16 has the exponents of float32, so its gradients do not underflow and need no scaling. The scaler only "
        "adds an inf check and a copy, and skips steps that a bfloat16 program would take.",
        f"{AMP}#gradient-scaling",
    ),
    Rule(
        "DG304", "scaler-without-half", _INFO,
        "a GradScaler is enabled, but nothing between the parameters and the loss is in float16",
        "run the forward under `torch.autocast({device!r}, dtype=torch.float16)`, or drop the scaler",
        "Scaling float32 gradients does no harm, but gains nothing either: often the autocast region was forgotten, "
        "or does not reach the model.",
        f"{AMP}#gradient-scaling",
    ),
    Rule(
        "DG305", "float16-without-scaler", _WARNING,
        "the model ran under float16 autocast, and {optimizer} stepped without a GradScaler",
        "scale the loss: `scaler = torch.amp.GradScaler({device!r})`, `scaler.scale(loss).backward()`, "
        "`scaler.step(optimizer)`, `scaler.update()`; or use bfloat16; for a loss scale of your own, ignore this rule",
        "Gradients below 6e-8 are zero in float16, and activations' gradients often are that small. Without a scale "
        "those parts of the model silently stop learning.",
        f"{AMP}#gradient-scaling",
    ),
    Rule(
        "DG306", "half-loss", _WARNING,
        "the loss given to `scaler.scale` is {found}",
        "compute the loss in float32: `criterion(output.float(), target)`",
        "The scaled loss and the first gradient are computed in the loss's own dtype. In float16 a scale of 65536 is "
        "infinite already, and in bfloat16 a loss has three digits.",
        f"{AMP}#autocast-op-reference",
    ),
    Rule(
        "DG307", "no-inf-checks", _ERROR,
        "{what}, so the scaler has no gradients to check",
        "call `scaler.scale(loss).backward()` on a loss that depends on this optimizer's parameters: no `.detach()`, "
        "`.item()` or `torch.no_grad()` on its way",
        "`scaler.step` divides and checks the gradients of the optimizer's parameters. If none has one, PyTorch "
        "raises \"No inf checks were recorded for this optimizer\", which does not say that the loss was detached, or "
        "that the optimizer holds other parameters than those that the loss depends on.",
        f"{AMP_EXAMPLES}#working-with-multiple-models-losses-and-optimizers",
    ),
    Rule(
        "DG308", "unscaled-backward", _ERROR,
        "{optimizer} gets gradients of {names} from a backward without `scaler.scale`; unscaling divides "
        "them by {scale:g}",
        "`scaler.scale(loss).backward()` for every loss whose gradients this scaler unscales",
        "The scaler divides whatever it finds in `.grad` by the scale. A loss that was not multiplied by it arrives "
        "tens of thousands of times too small, without an error.",
        f"{AMP_EXAMPLES}#gradient-accumulation",
    ),
    Rule(
        "DG309", "clip-before-unscale", _ERROR,
        "gradients of {names} were clipped {how} while still multiplied by the scale {scale:g}: "
        "after unscaling the bound is {bound:.3g}",
        "`scaler.unscale_(optimizer)` before `clip_grad_norm_` or `clip_grad_value_`",
        "After `scaler.scale(loss).backward()` gradients are tens of thousands of times too large. Clipping them then "
        "nearly always clips, and unscaling makes the step that many times too small: with SGD training stands still. "
        "Adam scales most of it away again, but every gradient has the norm of the bound then, and comes close to eps.",
        f"{AMP_EXAMPLES}#gradient-clipping; {GITHUB}/Lightning-AI/pytorch-lightning/issues/9330",
    ),
    Rule(
        "DG310", "unscale-twice", _ERROR,
        "`unscale_` is called a second time on {optimizer} {since}",
        "with gradient accumulation call `unscale_`, clip, `step` and `update` once, after the last micro-batch",
        "Gradients that are accumulated after `unscale_` are scaled and those before are not. PyTorch refuses the "
        "second call; leaving it out would mix both.",
        f"{AMP_EXAMPLES}#gradient-accumulation; {GITHUB}/huggingface/transformers/issues/23935",
    ),
    Rule(
        "DG311", "step-without-update", _ERROR,
        "`{call}` is called on {optimizer} again, and `scaler.update()` was not called since its last step",
        "`scaler.update()` once at the end of each iteration, after all optimizers have stepped",
        "`update` moves the scale and forgets which optimizers were unscaled. Without it the next `unscale_` or `step` "
        "raises, and the scale never falls after an overflow.",
        f"{AMP}#torch.amp.GradScaler",
    ),
    Rule(
        "DG312", "step-past-scaler", _ERROR,
        "{optimizer}.step() was called directly {stage}",
        "`scaler.step(optimizer)` in place of `optimizer.step()`",
        "Between `scaler.scale(loss).backward()` and `scaler.step` gradients are multiplied by the scale. Stepping "
        "without the scaler applies them so, or, after `unscale_`, without looking for inf and NaN.",
        f"{AMP}#gradient-scaling",
    ),
    Rule(
        "DG313", "scale-only-falls", _WARNING,
        "the scale has fallen from {start:g} to {scale:g}: {steps} were skipped for non-finite gradients{where}",
        "look for NaN in the data and for overflow in the forward (a mask fill, an unclamped `exp`); a scale below 1 "
        "cannot help, and models pretrained in bfloat16 often cannot run in float16",
        "The scaler halves the scale at each step whose gradients are not finite, and settles after a few. If it "
        "falls below 1, the gradients are non-finite for another reason; no step is taken any more.",
        f"{AMP}#torch.amp.GradScaler.update",
    ),
    Rule(
        "DG314", "scaled-after-unscale", _ERROR,
        "a scaled loss was added to the gradients of {optimizer} after `unscale_`: they mix parts that are divided by "
        "the scale {scale:g} and parts that are not",
        "call `unscale_` once, after the last micro-batch; or `step` and `update` before the next loss",
        "`unscale_` divides the gradients that are there. A backward of a scaled loss after it adds gradients that are "
        "tens of thousands of times too large, and `step` does not divide again: PyTorch applies them as they are.",
        f"{AMP_EXAMPLES}#gradient-accumulation",
    ),
    # ------------------------------------------------------------ DG4: the optimizer
    Rule(
        "DG401", "stale-parameters", _ERROR,
        "{optimizer} holds {count} that the model {model} does not have{missing}",
        "build the optimizer after the last change of the model (new head, PEFT, parametrization, `fully_shard`, "
        "`load_state_dict(assign=True)`), or `optimizer.add_param_group` for what is new; parameters of a loss or of a "
        "second model: `watch([model, other], ...)`",
        "An optimizer keeps the parameters that it was given. Replace a layer afterwards and it steps on tensors that "
        "nothing computes with, while the new ones never move.",
        "https://docs.pytorch.org/docs/stable/optim.html#constructing-it",
    ),
    Rule(
        "DG402", "missing-parameters", _WARNING,
        "{names} ({share} trainable parameters) get gradients, and no watched optimizer holds them",
        "add them (`optimizer.add_param_group`), freeze them (`requires_grad_(False)`), or give every "
        "optimizer to `watch`",
        "Parameters that no optimizer holds never move; their gradients are never zeroed by `optimizer.zero_grad()` "
        "either, so they grow, and `clip_grad_norm_(model.parameters())` clips by them.",
        "https://docs.pytorch.org/docs/stable/optim.html#constructing-it",
    ),
    Rule(
        "DG403", "state-differs", _ERROR,
        "state {keys} of {names} is {found}, the parameters are {expected}",
        "convert or move the model before the optimizer is built; after a change build it anew, or "
        "`optimizer.load_state_dict(optimizer.state_dict())` to cast its state",
        "`model.half()` and `model.to()` change parameters in place and leave the optimizer's state as it was. The "
        "next step fails with \"expected dtype float for `end` but got dtype c10::Half\", or mixes dtypes in silence.",
        f"{GITHUB}/pytorch/pytorch/issues/7844",
    ),
    Rule(
        "DG404", "eps-is-zero", _ERROR,
        "{key}={value:g} is 0 in {found}, the dtype of {names}",
        "keep the parameters in float32 (autocast instead of `.half()`), or use a larger eps: 1e-4 in float16",
        "Adam divides by `sqrt(v) + eps`. In float16 1e-8 is 0, and squares of gradients below 2e-4 are 0 too: the "
        "first step divides by zero, and weights become inf or NaN.",
        f"{GITHUB}/pytorch/pytorch/issues/8860",
    ),
    Rule(
        "DG405", "decay-is-zero", _WARNING,
        "{key}={value:g} is 0 in {found}, the dtype of {names}",
        "keep the parameters in float32 (autocast instead of `.half()`), or use a larger weight decay",
        "What is zero in the parameter's dtype decays nothing.",
        "https://docs.pytorch.org/docs/stable/optim.html",
    ),
    Rule(
        "DG406", "updates-lost", _WARNING,
        "{share:.0%} of the elements of {found} parameters with a non-zero gradient did not move in a step of "
        "{optimizer} (lr={lr:g}): {names}",
        "keep float32 parameters and use autocast, or an optimizer with float32 master weights or stochastic rounding",
        "bfloat16 has 8 bits of significand: an update smaller than 1/512 of the weight is rounded away, each step "
        "anew, and the loss stops falling for no visible reason.",
        f"https://arxiv.org/abs/2010.06192; {GITHUB}/pytorch/torchtitan/issues/2881; "
        f"{GITHUB}/pytorch/pytorch/issues/191763",
    ),
    Rule(
        "DG407", "average-stuck", _WARNING,
        "the average of {names} is {found} and does not move: {share:.0%} of the elements that differ from the model "
        "stayed as they were in {steps} steps",
        "keep the average in float32, whatever the model's dtype",
        "An average with decay 0.999 moves by a thousandth of the difference. That is less than the spacing of "
        "bfloat16 (1/256) and float16 (1/1024) around most weights, so it stays at its first value for ever.",
        f"{GITHUB}/d8ahazard/sd_dreambooth_extension/issues/1417",
    ),
    Rule(
        "DG408", "non-finite-gradients", _ERROR,
        "gradients of {names} ({share} with a gradient) are not finite",
        "find the operation with `torch.autograd.set_detect_anomaly(True)`; under float16 autocast a GradScaler skips "
        "such steps",
        "One step with a NaN or infinite gradient makes the parameter NaN, and every later result with it.",
        "https://docs.pytorch.org/docs/stable/autograd.html#anomaly-detection",
    ),
)  # fmt: skip
