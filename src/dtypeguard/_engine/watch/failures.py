"""What is known of an exception before it is a finding."""

from dataclasses import dataclass, field
from typing import Any

from .events import Operand
from .lineage import Node
from .sites import Site


@dataclass
class Caught:
    """What was found of an exception that the program may still catch."""

    error: int
    text: str
    rule: str
    site: Site
    nodes: list[Node]
    dtypes: bool
    fields: dict[str, Any]


@dataclass
class Failure:
    """What was known of an exception where it was seen first."""

    error: int  # its id: builtin exceptions take no weak references
    module: str | None
    autocast: bool
    op: str | None = None
    operands: list[Operand] = field(default_factory=list)
    function: type | None = None
    said: bool = False
    outer: int | None = None  # the id of one that was raised from it
    depth: int = 0  # of the module that was running
    raised: BaseException | None = None  # by an operation, until a module around it ends: one that caught it is told
