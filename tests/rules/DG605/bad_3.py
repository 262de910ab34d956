import torch
from torch import nn

tower = nn.ModuleDict({"q_proj": nn.Linear(4, 4, bias=False)}).half()
file = {"q_proj.weight": torch.randint(-127, 128, (4, 4)).to(torch.int8), "q_proj.SCB": torch.rand(4) + 1}
tower.load_state_dict(file, strict=False)  # expect: DG605 "`load_state_dict` loads `q_proj.weight` of ModuleDict from int8 without `q_proj.SCB`"
# fix: multiply by the scale first, `weight.float() * scale`; or load the file with the library that wrote it
