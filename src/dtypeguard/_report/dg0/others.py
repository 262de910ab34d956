"""Annotations that cannot be read; ranks; `compare`."""

from ..._base.codes import COMPARE, MALFORMED, RANKS, UNBOUND, UNKNOWN
from ..._watch.rule import Program
from ._explanation import IMPORTS, SEMANTICS, Explanation


def _hinted(hint: str, *lines: str) -> str:
    function = f"\n@dtypeguard.enforce\ndef double(x: {hint}):\n    return x * 2\n"
    return IMPORTS + function + "".join(f"{line}\n" for line in ("", "", *lines)) * bool(lines)


EXPLANATIONS = [
    Explanation(
        MALFORMED,
        what=(
            "Reports, where a function is decorated, an annotation that jaxtyping's grammar does not allow, or a "
            "type that no value can be compared with."
        ),
        why=(
            "jaxtyping notices some of these mistakes only at a call, or never, and the contract would check nothing."
        ),
        bad=Program(
            _hinted("\"Float32[Tensor, 'batch,n']\""),
            at=8,
            prints="""\
dtypeguard.AnnotationError: double: the annotation of argument `x` is malformed: axis `batch,n` has a comma: axes \
are separated by spaces
""",
            fix="write what the message says; axes are separated by spaces",
        ),
        good=Program(_hinted('Float32[Tensor, "batch n"]')),
        ignore=(
            "An annotation that is no contract can stay where `@typing.no_type_check` stands above the function, "
            "or in a parameter without a tensor."
        ),
        also=(SEMANTICS, "[jaxtyping: array annotations](https://docs.kidger.site/jaxtyping/api/array/)"),
    ),
    Explanation(
        UNKNOWN,
        what=("Reports a name in an annotation that does not exist when the annotation is needed: at the first call."),
        why="Names that are imported under `if TYPE_CHECKING:` are known to type checkers only.",
        bad=Program(
            _hinted("\"Float16[Tensor, 'n']\"", "double(torch.ones(3))"),
            at=13,
            prints="""\
dtypeguard.AnnotationError: double: an annotation names what does not exist: name 'Float16' is not defined; import \
it at run time too, not only under TYPE_CHECKING
""",
            fix="import the name, or define it before the first call",
        ),
        good=Program(_hinted("\"Float32[Tensor, 'n']\"", "double(torch.ones(3))")),
        ignore=(
            "There is nothing to check against, so it cannot be ignored. Without `enforce`, nothing reads the "
            "annotation."
        ),
        also=(SEMANTICS,),
    ),
    Explanation(
        UNBOUND,
        what=(
            "Reports an axis such as `n+1` or `{size}` that cannot be computed in a call: a name in it has no "
            "size yet, or its computation fails."
        ),
        why=("Axes get their sizes from left to right, so an expression can use only arguments that stand before it."),
        bad=Program(
            _hinted('Float32[Tensor, "n+1"]', "double(torch.ones(3))"),
            at=13,
            prints="""\
dtypeguard.AnnotationError: axis `n+1` cannot be computed: n is not bound yet; it may use axes of arguments to its \
left only
""",
            fix="use only names that an argument further left has bound",
        ),
        good=Program(_hinted('Float32[Tensor, "n"]', "double(torch.ones(3))")),
        ignore='If the size does not matter, annotate the axis as `"_"`.',
        also=(SEMANTICS,),
    ),
    Explanation(
        RANKS,
        what=(
            "Reports, on every rank, that `distributed.check_ranks` found tensors of different names, dtypes, "
            "shapes or device types. Run this program with `torchrun --nproc-per-node=2 train.py`."
        ),
        why=(
            "DistributedDataParallel and FSDP match parameters by position, and collectives do not compare "
            "dtypes: ranks hang, or reduce wrong data."
        ),
        bad=Program(
            """\
import torch
import torch.distributed as dist

import dtypeguard

dist.init_process_group("gloo")
model = torch.nn.Linear(2, 1, dtype=[torch.float32, torch.bfloat16][dist.get_rank()])
dtypeguard.distributed.check_ranks(model)
""",
            at=8,
            prints="""\
dtypeguard.RankError: check_ranks(Linear): ranks differ in 2 of 2 entries (this is rank 0)
  weight  f32[1,2] on cpu (rank 0); bf16[1,2] on cpu (rank 1)
  bias    f32[1] on cpu (rank 0); bf16[1] on cpu (rank 1)
  fix        build and convert the model alike on every rank, in the same order
""",
            fix="build and convert the model alike on every rank",
        ),
        good=Program(
            """\
import torch
import torch.distributed as dist

import dtypeguard

dist.init_process_group("gloo")
model = torch.nn.Linear(2, 1, dtype=torch.bfloat16)
dtypeguard.distributed.check_ranks(model)
"""
        ),
        ignore=(
            "If batches may differ in size, `check_ranks(batch, shapes=False)`. If ranks hold different modules, "
            "as in a pipeline, compare only what they share."
        ),
        also=("[Use with DDP and FSDP](../wild.md)",),
    ),
    Explanation(
        COMPARE,
        what=(
            "Reports that `compare` cannot run the model in the low dtype or in float64, or that there is no "
            "error to measure."
        ),
        why="A share of an error means something only if both runs give finite outputs of the same kind.",
        bad=Program(
            """\
import torch

import dtypeguard

model = torch.nn.Linear(4, 2, dtype=torch.bfloat16)
dtypeguard.compare(model, torch.rand(8, 4), dtype=torch.bfloat16)
""",
            at=6,
            prints="""\
dtypeguard.CompareError: compare: Linear has bfloat16 parameters already, so its digits are lost: pass the model in \
float32, as it was before it was converted
""",
            fix="do what the message says; pass the model in float32",
        ),
        good=Program(
            """\
import torch

import dtypeguard

model = torch.nn.Linear(4, 2)
dtypeguard.compare(model, torch.rand(8, 4), dtype=torch.bfloat16)
"""
        ),
        ignore="There is no result without both runs. `dryrun` tells in which dtypes a model runs at all.",
        also=("[Which layers must stay in float32?](../compare.md)", "[Will it run in bf16 on my GPU?](../dryrun.md)"),
    ),
]
