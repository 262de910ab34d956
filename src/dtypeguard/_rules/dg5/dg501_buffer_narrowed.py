"""DG501 buffer-narrowed."""

from ..._core.base.modules import tensors_below
from .._kit import Conversion, Recorder, Rule, Severity, on, size_of
from ._stays import Stays, enter_all

RULE = Rule(
    "DG501",
    "buffer-narrowed",
    Severity.INFO,
    summary="A module's conversion narrows one of its buffers.",
    says="{which} of {module}: converted from {was} to {dtype}{effect}",
    fix="{kept}",
    why=(
        "`Module.to(dtype)` converts every floating buffer. Frequencies, statistics and tables are small, "
        "and need the digits."
    ),
    unsafe=("buffers_stay",),
    sources=(
        "https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.to",
        "https://github.com/huggingface/transformers/issues/25681",
    ),
)


@on("converted", RULE)
def narrowed(event: Conversion, audit: Recorder) -> None:
    found = []
    for path, module, kind, name, buffer in tensors_below(event.model):
        was, dtype = event.before.get((path, name)), buffer.dtype
        if kind == "buffer" and was is not None and was.itemsize > dtype.itemsize:
            where = event.site, event.inside(path), name, f"Module.{event.name}"
            stays = Stays(RULE, kind, *where, was, dtype, size_of(buffer))
            stays.of_torch = type(module).__module__.startswith("torch.nn.")
            found.append((path, buffer, stays))
    enter_all(audit, event, found)
