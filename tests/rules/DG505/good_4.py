import torch
from torch.nn.utils.rnn import pack_padded_sequence

batch = {"words": torch.zeros(3, 2, 4), "lengths": torch.tensor([3, 2])}
packed = pack_padded_sequence(batch["words"].double(), batch["lengths"].cpu())
