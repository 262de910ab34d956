"""`dryrun` asks the kernels of the GPU, if there is one."""

import pytest
import torch
from support import BF16, F16, F32
from torch import nn
from torch.nn import functional as F

from dtypeguard import dryrun


@pytest.mark.parametrize("width", [16, 4096], ids=["computed", "not computed"])
def test_a_cell_is_what_the_gpu_does(device, width):
    model = nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width), nn.Linear(width, 3))
    x = torch.randn(2, width)
    table = dryrun(model, x)
    assert table.device.type == device.type
    for cell in table:
        if cell.inputs is cell.parameters and cell.region is None:
            assert cell.status == "runs"
            assert cell.outputs == (model.to(device, cell.parameters)(x.to(device, cell.inputs)).dtype,)
    assert table[F32, F32, BF16].outputs == (BF16,)
    assert table[F16, F32, None].status == "repaired"


def test_the_model_stays_where_it_is_and_takes_no_memory_there(device):
    model, before = nn.Linear(8192, 8192), torch.cuda.memory_allocated(device)
    dryrun(model, torch.randn(2, 8192), region=[None])
    assert model.weight.device.type == "cpu"
    assert torch.cuda.memory_allocated(device) <= before


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(768, 768)

    def forward(self, x):
        heads = self.project(x).unflatten(-1, (12, 64)).transpose(1, 2)
        return F.scaled_dot_product_attention(heads, heads, heads)


def test_kernels_of_attention_that_take_half_only(device):
    model, x = Attention(), torch.randn(4, 1024, 768)
    for cell in dryrun(model, x, dtype=[F32, F16, BF16], device=device):
        if cell.inputs is cell.parameters and cell.region is None:
            out = model.to(device, cell.parameters)(x.to(device, cell.inputs))
            assert (cell.status, cell.outputs) == ("runs", (out.dtype,))
