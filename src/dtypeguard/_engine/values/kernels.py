"""Fused kernels in the wider dtype: by the operations that they stand for, where they have no way there."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..ops import Operator

_FAR = 0.5  # of a vector of length 1
_CELLS = (2, 4)  # LSTM: oneDNN's number for it, and how many gates it has


def composite(op: Operator, args: Any, kwargs: Any) -> Any:
    """The results of a fused kernel; None where the kernel itself gives them."""
    if op.attends:
        return _attention(op, args, kwargs)
    function = _KERNELS.get(op.name)
    return None if function is None else function(op, args, kwargs)


def _attention(op: Operator, args: Any, kwargs: Any) -> Any:
    """The kernel for the CPU has a derivative for all but its mask.

    Those for GPUs take no wider dtype, or keep what their backward needs only where they are told to.
    """
    query, key, value = args[:3]
    mask = op.argument(args, kwargs, "attn_mask", op.argument(args, kwargs, "attn_bias"))
    if query.is_cpu and not (isinstance(mask, Tensor) and mask.requires_grad):
        return None
    fused: Any = torch.ops.aten._scaled_dot_product_attention_math
    causal, scale = op.argument(args, kwargs, "is_causal", False), op.argument(args, kwargs, "scale")
    return fused(query, key, value, mask, 0.0, causal, scale=scale, enable_gqa=query.shape[-3] != key.shape[-3])[:1]


def _attention_backward(op: Operator, args: Any, kwargs: Any) -> Any:
    """The kernels for GPUs take no wider dtype here either; what they drop out nobody sees."""
    if op.argument(args, kwargs, "dropout_p"):
        raise NotImplementedError(op.name)
    grad, query, key, value = args[:4]
    bias, scale = op.argument(args, kwargs, "attn_bias"), op.argument(args, kwargs, "scale")
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    shared, groups = (
        key.shape[-3],
        query.shape[-3] // key.shape[-3],
    )  # heads of keys, and how many of queries each has
    keys, values = (one.repeat_interleave(groups, -3) for one in (key, value))
    scores = query @ keys.mT * scale
    if op.argument(args, kwargs, "is_causal", False):
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -math.inf)
    weights = torch._safe_softmax(scores if bias is None else scores + bias, -1)
    of_weights = grad @ values.mT
    of_scores = weights * (of_weights - (weights * of_weights).sum(-1, keepdim=True))
    of_heads = of_scores.mT @ query * scale, weights.mT @ grad
    of_keys, of_values = (one.unflatten(-3, (shared, groups)).sum(-3) for one in of_heads)
    return of_scores @ keys * scale, of_keys, of_values, None if bias is None else of_scores.sum_to_size(bias.shape)


def _grouped(op: Operator, args: Any, kwargs: Any) -> Any:
    """One product for each group of experts; rows behind the last group are nobody's."""
    one, other = args[:2]
    ends = op.argument(args, kwargs, "offs")
    if ends is None:
        return torch.bmm(one, other)
    stops: list[int] = ends.tolist()
    groups = list(zip([0, *stops], stops, strict=False))
    if one.ndim == 2 and other.ndim == 2:
        return torch.stack([one[:, a:b] @ other[a:b] for a, b in groups])
    if one.ndim == 2:
        rest = one.new_full((len(one) - stops[-1], other.shape[-1]), math.nan)
        return torch.cat([*(one[a:b] @ other[n] for n, (a, b) in enumerate(groups)), rest])
    rest = one.new_full((one.shape[-2], other.shape[-1] - stops[-1]), math.nan)
    return torch.cat([*(one[n] @ other[:, a:b] for n, (a, b) in enumerate(groups)), rest], -1)


def _lstm(op: Operator, args: Any, kwargs: Any) -> Any:
    """One direction of one layer: input (time, batch, features)."""
    x, w_in, w_state, b_in, b_state, h, c, reverse, lengths, mode = args[:10]
    if mode != _CELLS[0] or lengths:
        raise NotImplementedError(op.name)
    states = _states(x, w_in, w_state, b_in + b_state if args[12] else None, h, c, reverse)
    order = states[::-1] if reverse else states
    return torch.stack([one.h for one in order]), states[-1].h, states[-1].c


class _State:
    """One step of it: gates, the cell before, the cell and the state."""

    def __init__(self, gates: Tensor, before: tuple[Tensor, Tensor]) -> None:
        i, f, g, o = gates.chunk(_CELLS[1], -1)
        self.before = before
        self.i, self.f, self.g, self.o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
        self.c = self.f * before[1] + self.i * self.g
        self.h = self.o * self.c.tanh()


def _states(
    x: Tensor, w_in: Tensor, w_state: Tensor, bias: Tensor | None, h: Tensor, c: Tensor, reverse: bool
) -> list[_State]:
    gates, states = x @ w_in.mT, []
    if bias is not None:
        gates = gates + bias
    for step in gates.flip(0) if reverse else gates:
        states.append(_State(step + h @ w_state.mT, (h, c)))
        h, c = states[-1].h, states[-1].c
    return states


def _lstm_backward(op: Operator, args: Any, kwargs: Any) -> Any:
    x, w_in, w_state, b_in, b_state, h, c = args[:7]
    out, last_h, last_c, reverse, mode = args[10:15]
    if mode != _CELLS[0] or args[20]:
        raise NotImplementedError(op.name)
    states = _states(x, w_in, w_state, b_in + b_state if args[17] else None, h, c, reverse)
    dh, dc = (torch.zeros_like(h) if one is None else one for one in (last_h, last_c))
    gates: list[Tensor] = []
    for step in range(len(states) - 1, -1, -1):
        one, place = states[step], len(states) - 1 - step if reverse else step
        if out is not None:
            dh = dh + out[place]
        t = one.c.tanh()
        dc = dc + dh * one.o * (1 - t * t)
        of_gates = (
            dc * one.g * one.i * (1 - one.i),
            dc * one.before[1] * one.f * (1 - one.f),
            dc * one.i * (1 - one.g * one.g),
            dh * t * one.o * (1 - one.o),
        )
        gates.insert(0, torch.cat(of_gates, -1))
        dh, dc = gates[0] @ w_state, dc * one.f
    of_steps = torch.stack(gates)  # in the order of the steps
    before = torch.stack([one.before[0] for one in states])
    order = of_steps.flip(0) if reverse else of_steps
    bias = of_steps.sum((0, 1))
    return (
        order @ w_in, torch.einsum("tbg,tbi->gi", order, x), torch.einsum("tbg,tbh->gh", of_steps, before), bias, bias,
        dh, dc,
    )  # fmt: skip


def _rnn(op: Operator, args: Any, kwargs: Any) -> Any:
    """Of cuDNN: the output, the state and the cell. The last result is the buffer that all weights lie in."""
    return _of_cudnn(op, args)[1][:3]


def _rnn_backward(op: Operator, args: Any, kwargs: Any) -> Any:
    """What the kernel keeps for it has the layout of one dtype, so the forward runs again."""
    x, weights, stride, _, *states = args[:6]
    weights, (out, _, _, kept, buffer) = _of_cudnn(op, [x, weights, stride, None, *states, *args[10:20]], train=True)
    backward: Any = torch.ops.aten._cudnn_rnn_backward.default
    return backward(x, weights, stride, buffer, *states, out, *args[7:20], kept, args[21])


def _of_cudnn(op: Operator, args: Any, train: bool | None = None) -> tuple[list[Tensor], Any]:
    """The weights as they lie in a buffer of their own, and the results; what it drops out nobody sees."""
    x, weights, stride, _, h, c, mode, hidden, projected, layers, first, dropout, trains, both, sizes, drawn = args
    if dropout and trains:
        raise NotImplementedError(op.name)
    weights = [one.clone() for one in weights]
    buffer = torch._cudnn_rnn_flatten_weight(weights, stride, x.shape[-1], mode, hidden, projected, layers, first, both)
    train = trains if train is None else train
    forward: Any = torch.ops.aten._cudnn_rnn.default
    return weights, forward(
        x, weights, stride, buffer, h, c, mode, hidden, projected, layers, first, dropout, train, both, sizes, drawn
    )


def _batch_norm(op: Operator, args: Any, kwargs: Any) -> Any:
    native: Any = torch.ops.aten.native_batch_norm.default
    return native(*args[:8])


def _batch_norm_backward(op: Operator, args: Any, kwargs: Any) -> Any:
    """It is asked for in training only, and for all three gradients."""
    x, grad, weight, mean, var, saved_mean, saved_inverse, epsilon = args[:8]
    native: Any = torch.ops.aten.native_batch_norm_backward.default
    return native(grad, x, weight, mean, var, saved_mean, saved_inverse, True, epsilon, [True, True, True])


_KERNELS: dict[str, Callable[[Operator, Any, Any], Any]] = {
    "_scaled_dot_product_efficient_attention_backward": _attention_backward,
    "_scaled_dot_product_flash_attention_backward": _attention_backward,
    "_scaled_dot_product_cudnn_attention_backward": _attention_backward,
    "_grouped_mm": _grouped,
    "cudnn_batch_norm": _batch_norm,
    "cudnn_batch_norm_backward": _batch_norm_backward,
    "miopen_batch_norm": _batch_norm,
    "miopen_batch_norm_backward": _batch_norm_backward,
    "_cudnn_rnn": _rnn,
    "_cudnn_rnn_backward": _rnn_backward,
    "mkldnn_rnn_layer": _lstm,
    "mkldnn_rnn_layer_backward": _lstm_backward,
}


# The results that are eigenvectors or singular vectors, and the axis along which each of them lies.
VECTORS = {"_linalg_eigh": {1: -2}, "linalg_eig": {1: -2}, "_linalg_svd": {0: -2, 2: -1}}


def turned(name: str, out: Any, results: Any) -> list[Tensor]:
    """The results in the wider dtype, with vectors as the program has them: their sign is nobody's.

    Where eigenvalues are equal, any vectors of their space are right, and the program's are taken.
    """
    vectors = list(results)
    for place, axis in VECTORS[name].items():
        mine, theirs = out[place].to(results[place].dtype), results[place]
        if mine.shape == theirs.shape:
            sign = (mine * theirs.conj()).sum(axis, keepdim=True).sgn()
            theirs = theirs * sign
            far = torch.linalg.vector_norm(theirs - mine, dim=axis, keepdim=True) > _FAR
            vectors[place] = torch.where(far, mine, theirs)
    return vectors
