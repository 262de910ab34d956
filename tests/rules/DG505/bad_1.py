import torch
from torch import nn


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(3, 4)

    def forward(self, words):
        state = torch.zeros(1, words.shape[1], 4), torch.zeros(1, words.shape[1], 4)
        return self.rnn(words, state)[0]  # expect: DG505 "`self.rnn(words, state)` was refused: Input and hidden tensors are not at the same device, found input tensor at meta and hidden tensor at cpu; `hx[0]` = f32[1,1,4] on cpu (torch.zeros(1, words.shape[1], 4) at program.py:11, in forward: float32); `hx[1]` = f32[1,1,4] on cpu (torch.zeros(1, words.shape[1], 4) at program.py:11, in forward: float32)"


model = Tagger().to("meta")
model(torch.zeros(2, 1, 3, device="meta"))
# fix: move one of them: `.to(x.device)`; a tensor that belongs to a module is a buffer of it
