import torch

table = torch.polar(torch.ones(4), torch.arange(4.0))
state = {"rotation": table}
state = {name: tensor.to(torch.bfloat16) for name, tensor in state.items()}  # expect: DG107 error "`tensor.to(torch.bfloat16)` makes bfloat16 of complex64: the imaginary parts of 3 of 4 values are lost"
print(state["rotation"].sum().item())
