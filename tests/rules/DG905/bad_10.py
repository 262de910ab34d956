import torch
from torch import nn

embed, scale = nn.Embedding(4096, 8).bfloat16(), torch.rand(600, 8)
batch = {"ids": torch.arange(600), "scale": scale}
batch = {name: value.to(torch.bfloat16) for name, value in batch.items()}  # expect: DG905 "`value.to(torch.bfloat16)`: 194 of 600 whole numbers become others in bfloat16, 600 different ones become 407: 512 where float32 has 514; it reaches a number that the program reads"
print((embed(batch["ids"].long()) * batch["scale"]).sum().item())
