import torch
from torch import nn


class Observer(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("running_max", torch.tensor(1.0))


observer = Observer()
observer.load_state_dict({"running_max": torch.tensor(2.8699)})
