"""How ranks tell each other what they hold: through a store that all of them see, so nothing here is a collective."""

import time
from collections.abc import Callable, Iterable
from typing import Any

import torch.distributed as dist


def room(name: str, store: Any = None) -> Any:
    """A part of a store for ourselves; default: of that of the default group, as torch's own barriers use it."""
    c10d: Any = dist.distributed_c10d  # which torch leaves untyped
    return c10d.PrefixStore(name, c10d._get_default_store() if store is None else store)


def there(store: Any, keys: Iterable[str], known: set[str]) -> dict[str, str]:
    """What stands at those keys that exist; asking for others would block.

    Args:
        store: where.
        keys: that may exist. What was taken back is the empty string, and is left out.
        known: those that exist, as far as is known; it grows.
    """
    keys = list(keys)
    new = [key for key in keys if key not in known]
    if new and store.check(new):
        known.update(new)
    elif len(new) > 1:
        known.update(key for key in new if store.check([key]))
    keys = [key for key in keys if key in known]
    values = store.multi_get(keys) if keys else []
    return {key: value.decode() for key, value in zip(keys, values, strict=True) if value}


def wait(done: Callable[[], bool], end: float) -> bool:
    """Ask again and again; a store that waits by itself would keep its connection from other threads."""
    pause = 0.0005
    while not done():
        if time.monotonic() > end:
            return False
        time.sleep(pause)
        pause = min(pause * 2, 0.1)
    return True


def rank_names(ranks: Iterable[int]) -> str:
    several = [str(rank) for rank in ranks]
    return f"rank{'s' * (len(several) > 1)} {', '.join(several)}"
