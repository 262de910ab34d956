"""DG503 attribute-stays-behind."""

from collections.abc import Iterator

from torch import Tensor, nn

from ..._core.base.modules import walk
from .._kit import Conversion, Recorder, Rule, Severity, name_of, on, size_of
from ._stays import Stays, enter_all

RULE = Rule(
    "DG503",
    "attribute-stays-behind",
    Severity.INFO,
    summary="A plain tensor attribute stays behind when its module converts.",
    says="{which} of {module}: a plain tensor, which {change} left {stays}{effect}",
    fix="`self.register_buffer({name!r}, ..., persistent=False)` in `__init__`, so that `.to()` reaches it{digits}",
    why=(
        "`Module.to`, `.half`, `.cuda` change parameters and buffers; a tensor that is only an attribute "
        "stays where and what it was."
    ),
    asks=("DG101", "DG102"),
    unsafe=("as_buffer",),
    sources=(
        "https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.register_buffer",
        "https://github.com/lucidrains/rotary-embedding-torch/issues/9",
    ),
)

_MANY = 1000  # plain attributes of one module


@on("converted", RULE)
def left_behind(event: Conversion, audit: Recorder) -> None:
    device, dtype, found = event.device, event.dtype, []
    given = [repr(str(device))] * (device is not None) + [str(dtype)] * (dtype is not None)
    change = f"`.{event.name}({', '.join(given) if event.name == 'to' else ''})`"
    for path, module in walk(event.model):
        for name, tensor in _plain(module):
            stays = []
            if dtype is not None and tensor.dtype.is_floating_point and tensor.dtype is not dtype:
                stays.append(name_of(tensor.dtype))
            if device is not None and tensor.device.type != device.type:
                stays.append(f"on {tensor.device}")
            if stays:
                where, was = (event.site, event.inside(path), name, f"Module.{event.name}"), tensor.dtype
                wider = dtype is not None and tensor.dtype.itemsize > dtype.itemsize
                digits = f"; if it needs the digits of {name_of(tensor.dtype)}, cast what is made from it"
                facts = {"change": change, "stays": " ".join(stays), "digits": digits * wider}
                found.append((path, tensor, Stays(RULE, "attribute", *where, was, dtype, size_of(tensor), facts)))
    enter_all(audit, event, found)


def _plain(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Tensors that are attributes, by themselves or in a list or dict, and neither parameters nor buffers."""
    registered = {"_parameters", "_buffers", "_modules"}
    for key, value in list(vars(module).items())[:_MANY]:
        if isinstance(value, Tensor):
            yield key, value
        elif key not in registered and type(value) in (list, tuple, dict):
            parts = value.items() if isinstance(value, dict) else enumerate(value)
            for place, part in list(parts)[:_MANY]:
                if isinstance(part, Tensor):
                    yield f"{key}[{place!r}]", part
