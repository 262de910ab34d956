"""Casts and dtypes in one file: how code says them, and what is no tensor."""

import functools
import re
from collections.abc import Iterator
from typing import TypeGuard

import libcst as cst
import torch

from ..._core.base.dtypes import name_of
from .names import Names
from .source import Change, Node, argument, arguments

CASTS = {
    torch.float32: "float", torch.float16: "half", torch.bfloat16: "bfloat16", torch.float64: "double",
    torch.int64: "long", torch.int32: "int", torch.bool: "bool", torch.int16: "short", torch.uint8: "byte",
}  # fmt: skip
CASTING = frozenset([*CASTS.values(), "to", "type", "type_as"])
FACTORIES = frozenset(
    """tensor as_tensor asarray zeros ones empty full arange linspace logspace eye rand randn zeros_like ones_like
    empty_like full_like rand_like randn_like new_zeros new_ones new_full new_empty new_tensor hann_window
    hamming_window""".split()
)
_OF_MODULES = ("parameters", "named_parameters", "state_dict", "load_state_dict", "train", "eval", "modules")
_TENSORS = ("Tensor", "Parameter", "Buffer")
SHARING = frozenset("from_numpy as_tensor asarray frombuffer from_dlpack".split())
SUMS = frozenset("sum mean prod cumsum cumprod var std norm logsumexp".split())
WIDER_INTEGER = {torch.uint8: torch.int32, torch.int8: torch.int32, torch.int16: torch.int32, torch.int32: torch.int64}
_COUNTED = frozenset("range arange zeros ones empty linspace eye rand randn randint randperm".split())
_VIEWS = frozenset("detach view reshape flatten t transpose permute squeeze unsqueeze expand contiguous".split())
_TRAINED = re.compile(r"\b(detach|data|state_dict|params|\w*parameters)\b")  # what is read off a model
_NUMBERS = frozenset("size numel nelement dim ndimension item tolist".split())  # methods that give no tensors
_WHOLE = ("int64", "long", "int32", "int", "bool", "uint8")  # names of dtypes
LITERALS = (cst.Integer, cst.Float, cst.BaseString, cst.Imaginary, cst.Lambda, cst.Dict, cst.Slice)


class Source(Names):
    """The syntax of one file, its names, and its casts."""

    def dtype_code(self, dtype: torch.dtype) -> str:
        """`torch.float32`, by the file's own name for torch."""
        return f"{self.torch() or 'torch'}.{name_of(dtype)}"

    def spelt(self, dtype: torch.dtype) -> str:
        """`.half()`, or `.to(torch.int16)` for a dtype without a method."""
        return f".{CASTS[dtype]}()" if dtype in CASTS else f".to({self.dtype_code(dtype)})"

    def is_cast(self, node: Node) -> TypeGuard[cst.Call]:
        return self.called(node) in CASTING and self.on(node) is not None

    def dtype_argument(self, call: Node) -> cst.Arg | None:
        """The argument of a call that says a dtype."""
        said = argument(call, "dtype")
        if said is not None or self.called(call) not in ("to", "type"):
            return said
        plain = [(arg, self.code(arg.value)) for arg in arguments(call) if arg.keyword is None]
        return next((arg for arg, code in plain if code.endswith("dtype") or code.startswith(f"{self.torch()}.")), None)

    def uncast(self, inner: cst.BaseExpression, outer: cst.Call, text: str = "") -> Change:
        """What is cast in place of the cast, or with another one; without parentheses that nothing needs then."""
        begin, end = self.extent(inner)
        alone = (
            not text
            and isinstance(self.parents[outer], cst.Assign | cst.Arg | cst.Return | cst.AnnAssign)
            and not outer.lpar
        )
        if alone and len(inner.lpar) == 1 and self.text[begin] == "(" and "\n" not in self.text[begin:end]:
            return self.replace(outer, self.text[begin + 1 : end - 1].strip())
        return Change(self.file, end, self.extent(outer)[1] - len(outer.rpar), text)

    def makes(self, node: Node) -> TypeGuard[cst.Call]:
        """Whether a call makes a tensor, and says no dtype."""
        return self.called(node) in FACTORIES and self.torch() is not None and self.dtype_argument(node) is None

    def like(self, node: Node) -> list[str]:
        """What has the dtype that an expression in a function should have: code that has no dtype of its own.

        What is added or multiplied in it, or what the expression is added to or multiplied by, or else the first
        argument of the function that is no number, or a buffer or parameter that the function computes with.
        """
        beside: list[str] = []
        if isinstance(self.scope(node), cst.FunctionDef):
            sides = (node.left, node.right) if isinstance(node, cst.BinaryOperation) else ()
            beside = [self.code(one) for one in sides if isinstance(one, cst.Name)] or [*self._beside(node, node)]
        given = [name for name in self.others(node) if not self._is_number(name, node)]
        sums = self.below(self.scope(node), cst.BinaryOperation)
        own = (self.code(side) for one in sums for side in (one.left, one.right) if self.of_self(side))
        return [code for code in (*beside, *given, *own) if code != self.code(node)][:1]

    def _is_number(self, name: str, node: Node) -> bool:
        """Whether an argument of the function that a node is in is said to be a number, or counts something there."""
        function = self.scope(node)
        params = function.params.params if isinstance(function, cst.FunctionDef) else ()
        said = [self.code(one.annotation.annotation) for one in params if one.name.value == name and one.annotation]
        counts = [call for call in self.below(function, cst.Call) if self.called(call) in _COUNTED]
        return said[:1] in (["int"], ["float"], ["bool"]) or any(
            self.code(arg.value) == name for call in counts for arg in call.args
        )

    def _beside(self, first: Node, node: Node, names: int = 2) -> Iterator[str]:
        """The names that an expression is computed with, also by the name that it gets itself: they are older."""
        parent = self.parents.get(node)
        while (isinstance(parent, cst.Subscript) and parent.value is node) or (
            isinstance(parent, cst.Attribute) and parent.attr.value in _VIEWS
        ):
            node, parent = parent, self.parents.get(parent)
            if isinstance(parent, cst.Call):
                node, parent = parent, self.parents.get(parent)
        if isinstance(parent, cst.BinaryOperation):
            other = parent.right if parent.left is node else parent.left
            made = self.definitions(other) if isinstance(other, cst.Name) else []
            older = not made or any(self.extent(one)[1] <= self.extent(first)[0] for one in made)
            if (isinstance(other, cst.Name) and older) or self.of_self(other):
                yield self.code(other)
        elif isinstance(parent, cst.Assign) and names and isinstance(target := parent.targets[0].target, cst.Name):
            for use in self.below(self.scope(node), cst.Name):
                if use.value == target.value and use is not target and self.extent(use)[0] > self.extent(node)[1]:
                    yield from self._beside(first, use, names - 1)

    def is_fresh(self, node: Node) -> bool:
        """Whether nobody else has what an expression gives."""
        made = (FACTORIES - SHARING) | {"clone"}
        return isinstance(node, cst.BinaryOperation | cst.UnaryOperation) or self.called(node) in made

    def is_snapshot(self, inner: cst.BaseExpression, outer: cst.Call) -> bool:
        """Whether a cast has made a copy of what a model trains, which without it would be the model's own memory."""
        node: Node = inner
        while self.called(node) in _VIEWS and (owner := self.on(node)) is not None:
            node = owner
        around = [one for one in self.up(outer) if isinstance(one, cst.BaseComp)]
        code = self.code(around[-1] if around else outer)
        return isinstance(node, cst.Name | cst.Attribute | cst.Subscript) and _TRAINED.search(code) is not None

    def is_place(self, call: cst.Call, arg: cst.Arg) -> bool:
        """Whether an operator of PyTorch takes no values there: an index, an axis, a size."""
        name, receiver = self.called(call), self.on(call)
        if receiver is None and self.code(call.func) != f"{self.torch()}.{name}":
            return False
        if receiver is not None and self.is_module(receiver):  # a layer of that name: `self.norm(x)`
            return False
        where = arg.keyword.value if arg.keyword else call.args.index(arg) + (receiver is not None)
        return hasattr(torch.Tensor if receiver is not None else torch, name) and where in _places(name)

    def is_constant(self, node: Node) -> bool:
        """What is no tensor: a literal, a name of a module's, a dtype, a number that Python has."""
        if isinstance(node, cst.UnaryOperation):
            return self.is_constant(node.expression)
        if isinstance(node, cst.BinaryOperation):
            return self.is_constant(node.left) and self.is_constant(node.right)
        code = self.code(node)
        known = code.partition(".")[0] in self.modules and not isinstance(node, cst.Call)
        named_so = code in ("True", "False", "None") or code.endswith((".dtype", ".device"))
        return isinstance(node, LITERALS) or known or named_so or self.is_size(node)

    def is_size(self, node: Node, depth: int = 4) -> bool:
        """Whether code is a number or a shape that Python has, by name too: `x.shape[0]`, `len(x)`, `x.item()`."""
        if isinstance(node, cst.Call):
            if isinstance(node.func, cst.Name):
                return node.func.value in ("float", "int", "len")
            return self.on(node) is not None and self.called(node) in _NUMBERS
        if isinstance(node, cst.Subscript):
            return self.is_size(node.value, depth)
        if isinstance(node, cst.BinaryOperation):
            return all(isinstance(one, cst.BaseNumber) or self.is_size(one, depth) for one in (node.left, node.right))
        if isinstance(node, cst.Attribute) and node.attr.value in ("shape", "ndim"):
            return True
        if isinstance(node, cst.Name) or self.of_self(node):
            added = any(self.code(one.target) == self.code(node) for one in self.of(cst.AugAssign))  # maybe a tensor
            made = self.definitions(node) if depth and not added else []
            return bool(made) and all(isinstance(one, cst.BaseNumber) or self.is_size(one, depth - 1) for one in made)
        return False

    def is_module(self, node: Node) -> bool:
        """Whether a name stands for a module, which a cast would convert in place, for all; no tensor is called."""
        code = self.code(node)
        if not isinstance(node, cst.Name) and not self.of_self(node):
            return False
        called = [self.code(call.func) for call in self.of(cst.Call)]
        made = self.called(self.call_behind(node) or node)
        return (
            code in ("self", "cls", self.receiver(node))
            or code in called
            or any(one in (f"{code}.{method}" for method in _OF_MODULES) for one in called)
            or (made[:1].isupper() and not made.endswith(_TENSORS))
        )

    def widens(self, call: Node) -> bool:
        """Whether a cast is to float32 or float64, at a line where floats became wider."""
        code = self.code(call).rpartition(".")[2]
        wide = self.called(call) in ("float", "double") or code.startswith(("float32", "float64"))
        return wide and self.is_cast(call) and self.range(call).end.line in self.widened

    def says_float(self, call: Node) -> bool:
        said = self.dtype_argument(call)
        return said is not None and not self.code(said.value).endswith(_WHOLE)


@functools.cache
def _places(name: str) -> frozenset[int | str]:
    """The arguments of an operator, by position and name, that are no values in any of its overloads."""
    packet = getattr(torch.ops.aten, name, None)
    schemas = [getattr(packet, one)._schema.arguments for one in packet.overloads()] if packet else []
    values, others = set[int | str](), set[int | str]()
    for schema in schemas:
        for number, one in enumerate(schema):
            index = one.name in ("index", "indices")
            names = (
                {one.name} if one.kwarg_only else {number, one.name}
            )  # `einsum` takes more tensors where it has these
            (values if "Tensor" in str(one.type) and not index else others).update(names)
    return frozenset(others - values)
