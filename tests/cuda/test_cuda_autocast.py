"""Operation by operation under autocast on a GPU: the table and the law of `autocast_rows`, and the GPU's own lists."""

import pytest
from autocast_rows import BF16, F16, F32, F64, PLACES, REGIONS, ROWS, Cell, cells, hold, step

from dtypeguard import guard

deterministic = pytest.mark.usefixtures("deterministic")
each_row = pytest.mark.parametrize("row", ROWS)
each_region = pytest.mark.parametrize("within", REGIONS, ids=["none", "bfloat16", "float16"])
# By the lists under "Autocast Op Reference" in PyTorch's documentation.
LOWERED = ["Linear", "Conv2d", "matmul", "bmm", "addmm", "baddbmm", "einsum", "mv", "PReLU", "GRUCell", "LSTMCell"]
WIDENED = """softmax log_softmax softplus exp log pow rsqrt reciprocal sum cumsum prod LayerNorm GroupNorm cdist
cosine_similarity mse_loss l1_loss smooth_l1_loss nll_loss cross_entropy kl_div bce_with_logits triplet_margin_loss
cosine_embedding_loss""".split()


@deterministic
@each_region
@each_row
def test_a_contract_around_a_float32_module(row, within, device):
    for cell in cells(row, within, device=str(device)):
        hold(cell)


@deterministic
@pytest.mark.slow
@each_region
@pytest.mark.parametrize("row", [row for row in ROWS if ROWS[row].floating == 2])
def test_a_contract_around_two_inputs_of_any_two_dtypes(row, within, device):
    for cell in cells(row, within, pairs=True, device=str(device)):
        hold(cell)


@deterministic
@pytest.mark.slow
@each_region
@pytest.mark.parametrize("params", [BF16, F16, F64])
@each_row
def test_a_contract_around_a_module_of_another_dtype(row, params, within, device):
    for cell in cells(row, within, params=params, device=str(device)):
        if row == "BatchNorm1d" and device.type == "cuda" and params is F64 and cell.dtypes[0] is not F64:
            continue  # PyTorch refuses it, but not before it wrote what lay in memory into the buffers
        hold(cell)


@deterministic
@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
@each_row
def test_a_contract_in_regions_that_nest_end_and_come_about_otherwise(row, place, device):
    for cell in cells(row, PLACES[place][0], place=place, device=str(device)):
        hold(cell)


@pytest.mark.parametrize("half", [BF16, F16])
@pytest.mark.parametrize(("row", "lowered"), [(row, row in LOWERED) for row in LOWERED + WIDENED])
def test_autocast_makes_of_an_input_what_its_lists_say(row, lowered, half, gpu):
    for dtype in (F16, BF16, F32):
        cell = Cell(row, (dtype,) * ROWS[row].floating, half, device=str(gpu))
        assert {result.dtype for result in step(cell, cell.model()).results} == {half if lowered else F32}


def test_what_torch_calls_unsafe_to_autocast_is_still_said_by_torch(gpu):
    for dtype in (F16, BF16, F32):
        cell = Cell("bce", (dtype, dtype), F16, device=str(gpu))
        error = step(cell, guard(cell.model(), mode="strict")).error
        assert "unsafe to autocast" in str(error)
