"""`amp.watch`: find mistakes with autocast, GradScaler and optimizers during training."""

from ._watch import watch as watch
