"""Log probabilities by token: of two models, or of a model and of a list that an engine wrote."""

import json
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..._core.base.errors import CompareError
from ..._show.result import Row
from ..compare.batches import Batch
from .distances import Verdict, roundings, verdict_of, worse

# An engine may compute in bfloat16, and keep more in it than the model does: three bits more are no rounding.
_BITS = 8.0


@dataclass(frozen=True, slots=True)
class Token(Row):
    """One token of the batch, and what both programs said of it.

    Attributes:
        sequence, position: which one it is.
        token: its number.
        logprob_a, logprob_b: the logarithm of its probability.
        logprob: the same in float64.
        first_a, first_b: the token that each would have chosen; None where only probabilities are known.
        margin: between the two likeliest tokens, in float64; in parts of what rounding changes in these logits.
    """

    sequence: int
    position: int
    token: int
    logprob_a: float
    logprob_b: float
    logprob: float
    first_a: int | None
    first_b: int | None
    margin: float | None

    @property
    def coin(self) -> bool:
        """Whether rounding decides which token comes first."""
        return self.margin is not None and self.margin <= 1

    @staticmethod
    def summary(rows: "Sequence[Token]") -> Iterator[str]:
        """What a report says of all."""
        apart = [abs(row.logprob_a - row.logprob_b) for row in rows]
        worst = max(range(len(rows)), key=apart.__getitem__)
        row = rows[worst]
        if not apart[worst]:
            yield "tokens: the log probabilities are the same"
            return
        yield (
            f"tokens: log probabilities {sum(apart) / len(apart):.1e} apart on average, most {apart[worst]:.1e}, of "
            f"token {row.token} at position {row.position} of sequence {row.sequence}"
        )
        other = next((row for row in rows if row.first_a != row.first_b), None)
        if other is not None and other.margin is not None:
            told = "a coin flip" if other.coin else "which rounding does not explain"
            yield (
                f"tokens: the first choice that differs is after position {other.position - 1} of sequence "
                f"{other.sequence}: {other.first_a} and {other.first_b}, with a margin of {other.margin:.2g} "
                f"roundings: {told}"
            )


def logits_of(out: list[Tensor], batch: Batch) -> tuple[int, Tensor] | None:
    """The place of the logits in an output, and the tokens of the batch; None where there are none of them."""
    for _, ids in batch.tensors():
        if ids.ndim == 2 and ids.dtype in (torch.int64, torch.int32) and ids.shape[1] > 1 and int(ids.min()) >= 0:
            for place, tensor in enumerate(out):
                fits = tensor.is_floating_point() and tensor.ndim == 3 and tensor.shape[:2] == ids.shape
                if fits and int(ids.max()) < tensor.shape[2]:
                    return place, ids
    return None


def tokens_of(outs: tuple[Tensor, Tensor], wide: tuple[Tensor, Tensor], ids: Tensor) -> tuple[Token, ...]:
    """Of each token but the first, what the logits before it say."""
    *low, truth, other = (t.detach().double().cpu()[:, :-1] for t in (*outs, *wide))
    said = [_logprobs(t, ids).tolist() for t in (*outs, wide[0])]
    firsts = [t.argmax(-1).tolist() for t in low]
    top = truth.topk(2, -1)
    noise = (low[0] - truth).abs() + (low[1] - other).abs()
    near = noise.gather(-1, top.indices).sum(-1).clamp(min=torch.finfo(torch.float64).tiny)
    margins = ((top.values[..., 0] - top.values[..., 1]) / near).tolist()
    return tuple(
        Token(s, p + 1, int(ids[s, p + 1]), said[0][s][p], said[1][s][p], said[2][s][p], firsts[0][s][p],
              firsts[1][s][p], margins[s][p])
        for s in range(ids.shape[0]) for p in range(ids.shape[1] - 1)
    )  # fmt: skip


def _logprobs(logits: Tensor, ids: Tensor) -> Tensor:
    """Of each token but the first, in float64."""
    said = logits.detach().double().cpu()[:, :-1].log_softmax(-1)
    return said.gather(-1, ids.cpu()[:, 1:, None].long())[..., 0]


def listed(path: str | os.PathLike[str]) -> list[list[float]] | None:
    """Log probabilities from a file: a list of numbers, or of lists of them; None where it is no JSON."""
    with open(path, "rb") as file:
        if file.read(1) not in (b"[", b"{"):
            return None
        file.seek(0)
        try:
            data: Any = json.load(file)
        except ValueError as error:
            raise ValueError(f"{path}, is cut, or no JSON: {error}") from error
    rows = [data] if isinstance(data, list) and not any(isinstance(row, list) for row in data) else data
    good = isinstance(rows, list) and all(
        isinstance(row, list) and all(n is None or isinstance(n, int | float) for n in row) for row in rows
    )
    if not good:
        raise ValueError(f"{path}, has no log probabilities: write a list of numbers, or a list for each sequence")
    if any(n is not None and math.isnan(n) for row in rows for n in row):
        raise ValueError(f"{path}, holds NaN, which is no log probability: write null for a token that has none")
    return [[math.nan if n is None else float(n) for n in row] for row in rows]


def against(
    rows: list[list[float]], logits: Tensor, wide: Tensor, ids: Tensor
) -> tuple[tuple[Token, ...], float, float, float, float]:
    """Tokens with an engine's log probabilities; errors as shares of what float64 has.

    They are those of the model, of the engine, and of one rounding, and how far model and engine are apart.
    """
    count, length = ids.shape
    if len(rows) != count or any(len(row) not in (length, length - 1) for row in rows):
        told = ", ".join(str(len(row)) for row in rows[:4])
        raise CompareError(
            f"diff: the batch has {count} sequences of {length} tokens, and the file {len(rows)} lists of {told} "
            "numbers: one for each token, with or without the first"
        )
    mine, its, once = (_logprobs(t, ids) for t in (logits, wide, wide.to(logits.dtype)))
    engine = torch.tensor([row[-(length - 1) :] for row in rows], dtype=torch.float64)
    known = ~engine.isnan()
    size = float(its[known].norm()) or 1.0
    pairs = (mine, its), (engine, its), (once, its), (mine, engine)
    errors = [float((t - of)[known].norm()) / size for t, of in pairs]
    tokens = tuple(
        Token(s, p + 1, int(ids[s, p + 1]), float(mine[s, p]), float(engine[s, p]), float(its[s, p]), None, None, None)
        for s in range(count) for p in range(length - 1) if known[s, p]
    )  # fmt: skip
    return tokens, errors[0], errors[1], errors[2], errors[3]


def judged(
    errors: tuple[float, float], unit: float, tokens: Sequence[Token], half: float, halves: Sequence[Token]
) -> tuple[Verdict, tuple[float, float]]:
    """The verdict on an engine whose float64 nobody knows, and the errors as roundings.

    Args:
        errors: of the model, and of the engine.
        unit: what one rounding of the logits makes.
        tokens: with the engine's log probabilities.
        half: the error of the model in bfloat16.
        halves: the tokens with its log probabilities as those of a.
    """
    (a, b), counts = errors, (roundings(errors[0], unit), roundings(errors[1], unit))
    most = max((abs(one.logprob_b - one.logprob) for one in tokens), default=0.0)  # of one token
    usual = max((abs(one.logprob_a - one.logprob) for one in (*tokens, *halves)), default=0.0)
    return verdict_of(b > _BITS * max(a, half) or most > _BITS * usual, worse(*counts)), counts
