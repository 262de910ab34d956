"""DG118 bits-reinterpreted."""

from .._kit import Op, Recorder, Rule, Severity, name_of, on, some

RULE = Rule(
    "DG118",
    "bits-reinterpreted",
    Severity.WARNING,
    summary="Bits of one floating dtype are read as another.",
    says="`{what}` reads the bits of {source} as {dtype}: {value:g} becomes {other:g}",
    fix="convert the values, `.to({code})`; to carry bits, view them as integers: `.view(torch.{bits})`",
    why=(
        "`tensor.view(dtype)` converts nothing. float16 and bfloat16 have the same size and other bits, so each value "
        "becomes another one, and most are a few powers of two away. Where bits are carried only, in a cache or a "
        "message, a view as integers says so, and refuses arithmetic that makes no sense."
    ),
    unsafe=("converted",),
    sampled=True,
    sources=(
        "https://github.com/vllm-project/vllm/pull/54338",
        "https://docs.pytorch.org/docs/stable/generated/torch.Tensor.view.html",
    ),
)


@on("viewed", RULE)
def viewed(event: Op, audit: Recorder) -> None:
    """As another floating dtype of the same size; zeros are zeros in both."""
    source, out = event.inputs[0], event.out
    same = source.is_floating_point() and out.is_floating_point() and source.dtype.itemsize == out.dtype.itemsize
    if not same or not event.readable or not source.numel() or not audit.due("DG118", event.site):
        return
    looked, as_other = some(source.detach()), some(out.detach())
    place = int(looked.abs().float().nan_to_num(0.0, 0.0, 0.0).argmax())
    value, other = float(looked.reshape(-1)[place]), float(as_other.reshape(-1)[place])
    if value:
        facts = {
            "source": name_of(source.dtype), "dtype": name_of(out.dtype), "code": out.dtype, "value": value,
            "other": other, "bits": f"int{8 * out.dtype.itemsize}",
        }  # fmt: skip
        audit.suspect(RULE, event, source, **facts).find(audit)
