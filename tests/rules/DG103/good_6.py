"""Copies that are written to and read, and writes to what is no copy."""

import torch


class Pool:
    def keep(self, x):
        wide = x.float()
        wide.mul_(2)
        self.kept = wide

    def total(self, x):
        total = 0.0
        wide = None
        for row in x:
            if wide is not None:
                total += wide.sum().item()
            wide = row.float()
            wide.mul_(2)
        return total

    def seen(self, x):
        wide = x.float()
        array = wide.numpy()
        wide.mul_(2)
        return array

    def later(self, x):
        wide = x.float()
        wide.mul_(2)
        return lambda: wide

    def given(self, x):
        wide = x.float()
        return wide.mul_(2)

    def chained(self, x):
        wide = x.float()
        scaled = wide.mul_(2)
        return x.float().mul_(2).add(scaled)

    def itself(self, x):
        x = x.double() if x.is_complex() else x
        x.mul_(1)
        same = x.to(x.dtype)
        same.mul_(1)


x = torch.ones(3, 2).half()
pool = Pool()
pool.keep(x), pool.itself(x)
print(pool.kept, pool.total(x), pool.seen(x), pool.later(x)(), pool.given(x), pool.chained(x))
