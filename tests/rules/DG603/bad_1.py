import torch
from torch import nn


class Observer(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("running_max", torch.tensor(1))


observer = Observer()
observer.load_state_dict({"running_max": torch.tensor(2.8699)})  # expect: DG603 "`load_state_dict` writes float32 into int64: the fractions of `running_max` of Observer are lost (2.8699, ...)"
# fix: register the buffer with a floating dtype: `torch.tensor(1.0)`, not `torch.tensor(1)`
