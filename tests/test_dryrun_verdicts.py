"""The verdicts of `dryrun` over PyTorch's own inventory of operations, none of which is computed: as eager has it."""

import pytest
import torch
from dryrun_cases import compared, operations, tally
from support import BF16
from torch.testing._internal.common_methods_invocations import op_db

OPERATIONS = {f"{op.name}{op.variant_test_name and '-'}{op.variant_test_name}": op for op in op_db}
# What a dry run cannot know, and why; in these cells it says so, or errs.
EXCEPT = {
    "item": {"unknown"},  # the value itself
    "nonzero": {"unknown"},  # sizes
    "argwhere": {"unknown"},
    "to_sparse": {"unknown"},  # what comes out is not strided
    "linalg.lstsq": {"unknown"},
    "linalg.lstsq-grad_oriented": {"unknown"},
    "nn.functional.pdist": {"missed"},  # the kernel looks at dtypes only if there are two rows
    "pinverse": {"dtype"},  # which products autocast sees depends on sizes
    "matrix_exp": {"missed"},
    "_upsample_bilinear2d_aa": {"missed"},  # the kernel copies where the size stays the same
    "isin": {"missed"},  # under autocast, another algorithm from some number of elements on
}


@pytest.mark.thin(25)
@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.filterwarnings("ignore")  # torch's own, when samples are made
def test_an_operation_is_taken_or_refused_as_eager_does(name):
    op = OPERATIONS[name]
    cases = operations(op, 2) if torch.float32 in op.dtypes else []
    found = tally(*(compared(model, inputs, values=False, region=[None, BF16]) for model, inputs in cases))
    assert set(found) <= {"agree"} | EXCEPT.get(name, set())
