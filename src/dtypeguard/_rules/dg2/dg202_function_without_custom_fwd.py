"""DG202 function-without-custom-fwd."""

from ..._watch.rule import Rule, Severity

RULE = Rule(
    "DG202",
    "function-without-custom-fwd",
    Severity.ERROR,
    summary="",
    says="autograd.Function `{name}` ran under autocast without `custom_fwd`; {detail}",
    fix=(
        "decorate it: `@torch.amp.custom_fwd(device_type={device!r}, cast_inputs=torch.float32)` on "
        "forward, `@torch.amp.custom_bwd(device_type={device!r})` on backward"
    ),
    why=(
        "Autocast casts inside the forward of a Function, but backward runs outside of any region, on "
        "saved tensors of the dtypes that came in and a gradient of the dtype that went out."
    ),
    sources=(
        "https://github.com/pytorch/pytorch/issues/47906",
        "https://docs.pytorch.org/docs/stable/notes/amp_examples.html#functions-with-multiple-inputs-or-autocastable-ops",
    ),
)
