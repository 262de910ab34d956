import torch

decay = torch.exp(-torch.tensor([0.001, 0.0015])).bfloat16()
factor, state = decay.float(), torch.zeros(2)
for _ in range(800):
    state = state * factor  # expect: DG902 "`state * factor`: an error of 0.15 % comes in, 66 % goes out: 799 where float64 has 465.2; it reaches values that the program reads; rounded in bfloat16: torch.exp(-torch.tensor([0.001, 0.0015])).bfloat16() at program.py:3, in <module>"
    state = state + 1.0
print(state.tolist())
