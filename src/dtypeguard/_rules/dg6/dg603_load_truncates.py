"""DG603 load-truncates."""

from ..._engine.watch.events import Loading
from .._kit import Recorder, Rule, Severity, listed, name_of, on

RULE = Rule(
    "DG603",
    "load-truncates",
    Severity.ERROR,
    summary="Loading a checkpoint truncates floats to integers.",
    says="`load_state_dict` writes {was} into {dtype}: the fractions of {names} of {module} are lost ({value})",
    fix="{advice}",
    at_birth=True,
    why=("Loading copies into the tensors that the model has; what is copied into an integer tensor is truncated."),
    unsafe=("floating_buffer",),
    sources=("https://github.com/pytorch/pytorch/issues/126000",),
)

_REGISTER = "register the buffer with a floating dtype: `torch.tensor(1.0)`, not `torch.tensor(1)`"
_LEAVE = "leave integers as they are where floats are computed: `if tensor.is_floating_point()`"


@on("loading", RULE)
def truncates(event: Loading, audit: Recorder) -> None:
    was, dtype, state = event.was, event.dtype, event.state
    if not was.is_floating_point or dtype.is_floating_point or dtype.is_complex:
        return
    broken = [name for name in event.names if bool((state[name] != state[name].trunc()).any())]
    if broken:
        value = state[broken[0]]
        fraction = float(value[value != value.trunc()].flatten()[0])
        loaded = audit.lineage.get(value)
        mixed = loaded is not None and not all(node.dtype.is_floating_point for node in loaded.ancestors())
        facts = {
            "advice": _LEAVE if mixed else _REGISTER,
            "names": listed(broken), "module": event.path, "was": name_of(was), "dtype": name_of(dtype),
            "value": f"{fraction:g}, ...",
        }  # fmt: skip
        origin = audit.origin_of(value if mixed else event.own[broken[0]])
        fields = event.fields | ({"parameters": ()} if mixed else {})  # then the buffer is right as it is
        audit.find(RULE, event.site, facts=facts, origin=origin, **fields)
