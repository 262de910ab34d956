import torch

torch.manual_seed(0)
risk = 6 * torch.randn(4000)
score = torch.sigmoid(risk).to(torch.bfloat16)
order = torch.sort(score, descending=True, stable=True).indices  # expect: DG904 "`torch.sort(score, descending=True, stable=True)`: <...> of the first <...> places hold others than in float32: <...> instead of <...>; rounded in bfloat16: torch.sigmoid(risk).to(torch.bfloat16) at program.py:5, in <module>"
print(risk[order[:100]].mean())
# fix: stay in float32: `torch.sigmoid(risk).to(torch.bfloat16)` rounds
