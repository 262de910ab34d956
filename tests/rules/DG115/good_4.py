import torch
from torch.nn import functional as F

torch.manual_seed(0)
rows = torch.eye(4).half()  # of norm 1, beside an eps that float16 has not, and nobody needs
print(F.normalize(rows, dim=1).sum().item(), rows.norm(dim=1).clamp(1e-12).sum().item())
