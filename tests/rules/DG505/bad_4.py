import torch
from torch.nn.utils.rnn import pack_padded_sequence

batch = {"words": torch.zeros(3, 2, 4), "lengths": torch.tensor([3, 2])}
batch = {name: value.to("meta") for name, value in batch.items()}
packed = pack_padded_sequence(batch["words"], batch["lengths"])  # expect: DG505 "`pack_padded_sequence(batch[\"words\"], batch[\"lengths\"])` was refused: 'lengths' argument should be a 1D CPU int64 tensor, but got 1D meta Long tensor"
