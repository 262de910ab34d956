"""The kinds of mistakes that contracts report: family DG0. The rules of an audit are the families DG1 to DG9."""

from dataclasses import dataclass

DOCS = "https://github.com/dtypeguard/dtypeguard/blob/main/docs"


@dataclass(frozen=True, slots=True)
class Mistake:
    """One kind of mistake.

    Attributes:
        id: `DG001`, the `code` of the exception or warning.
        name: `dtype-differs`.
        kind: the name of the exception or warning.
        summary: one sentence, for lists and pages.
    """

    id: str
    name: str
    kind: str
    summary: str


def _row(id: str, name: str, kind: str, summary: str) -> Mistake:
    return MISTAKES.setdefault(id, Mistake(id, name, kind, summary))


MISTAKES: dict[str, Mistake] = {}
DTYPE = _row("DG001", "dtype-differs", "DtypeError", "A tensor has another dtype than its contract requires.")
DEVICE = _row("DG002", "device-differs", "DeviceError", "A tensor is on another device than its contract requires.")
RANK = _row("DG003", "axes-missing", "ShapeError", "A tensor has too few or too many axes.")
AXIS = _row("DG004", "size-differs", "ShapeError", "An axis of a tensor has another size than its contract requires.")
TYPE = _row("DG005", "wrong-type", "HintError", "A value is of another type than its annotation names.")
REFUSED = _row("DG006", "cast-refused", "CastError", "The casting rule forbids the cast that would repair a value.")
LOST = _row("DG007", "values-lost", "CastError", "A cast would make values infinite, or change whole numbers.")
WRITTEN = _row("DG008", "output-cast", "CastError", "An argument that the function writes to cannot be cast.")
MALFORMED = _row("DG009", "malformed-annotation", "AnnotationError", "An annotation cannot be read.")
UNKNOWN = _row("DG010", "unknown-name", "AnnotationError", "An annotation uses a name that does not exist.")
UNBOUND = _row("DG011", "unbound-axis", "AnnotationError", "The size of an axis cannot be computed in a call.")
CAST = _row("DG012", "value-cast", "CastWarning", "A value was cast or moved, because its contract requires it.")
COPY = _row("DG013", "copy-changed", "InplaceOnCastWarning", "A function wrote to a cast copy of its argument.")
RANKS = _row("DG014", "ranks-differ", "RankError", "Ranks of a distributed program hold tensors that do not match.")
COMPARE = _row("DG015", "cannot-compare", "CompareError", "`compare` cannot run a model, or measure its results.")
STATE = _row("DG016", "manifest-differs", "StateError", "A model does not hold the dtypes that its manifest says.")


def page_of(code: str) -> str:
    """The address of the page of a mistake or a rule."""
    return f"{DOCS}/{'errors' if code in MISTAKES else 'rules'}/{code}.md"
