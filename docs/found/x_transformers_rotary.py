import torch
from x_transformers import Decoder

decoder = Decoder(dim=64, depth=1, heads=2, rotary_pos_emb=True)
right = decoder.rotary_pos_emb.forward_from_seq_len(4096)[0].cos()
found = decoder.to(torch.bfloat16).rotary_pos_emb.forward_from_seq_len(4096)[0].cos()
print("relative error", ((found - right).norm() / right.norm()).item())
