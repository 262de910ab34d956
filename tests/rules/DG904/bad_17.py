import torch

torch.manual_seed(0)
steps = torch.log_softmax(torch.randn(40, 40), -1).bfloat16()
token, score = torch.zeros(1, dtype=torch.long), torch.zeros(1, dtype=torch.bfloat16)
for _ in range(120):
    grown = (score[:, None] + steps[token] - 1.5).flatten()
    score, place = grown.topk(min(8, grown.numel()))  # expect: DG904 "`grown.topk(min(8, grown.numel()))`: 18 of 72 come out otherwise than in float32: 67 instead of 1; rounded in bfloat16: torch.log_softmax(torch.randn(40, 40), -1).bfloat16() at program.py:4, in <module>"
    token = place % 40
