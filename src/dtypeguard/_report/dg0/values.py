"""Values that violate a contract."""

from ..._base.codes import AXIS, DEVICE, DTYPE, RANK, TYPE
from ..._watch.rule import Program
from ._explanation import LOSS, MODES, MODULES, SEMANTICS, SKIP, Explanation

EXPLANATIONS = [
    Explanation(
        DTYPE,
        what=(
            "Reports an argument or a result whose dtype is not the one of its annotation or, on a method of a "
            "module, of the module's parameters. Strict mode raises it; lenient mode does so for a result that it "
            "cannot repair."
        ),
        why=(
            "PyTorch raises later, in an operation that does not know the name of the argument; or it promotes "
            "without an error, and the rest of the program runs in the wider dtype."
        ),
        bad=Program(
            LOSS + 'batch = {"target": torch.zeros(8, dtype=torch.float64)}\nmse(torch.ones(8), batch["target"])\n',
            at=16,
            prints="""\
dtypeguard.DtypeError: mse: argument `target` is float64, the annotation wants float32
  argument   target = f64[8] on cpu
  passed as  batch["target"]
  expected   Float32[Tensor, "batch"]
  called at  train.py:16, in <module>
  axes       batch=8
  fix        batch["target"].to(torch.float32), or mode="lenient"
""",
            fix="cast the tensor where it is passed or, better, where it is made",
        ),
        good=Program(LOSS + 'batch = {"target": torch.zeros(8)}\nmse(torch.ones(8), batch["target"])\n'),
        ignore=(
            "If several dtypes are right, say so: `Float` is any of the floating dtypes, and `Float32 | BFloat16` "
            f"one of two. {SKIP} {MODES}"
        ),
        also=(SEMANTICS,),
    ),
    Explanation(
        DEVICE,
        what=(
            "Reports a tensor that is not on the device of the module's parameters, or of the argument that "
            "`anchor=` names. CPU tensors without axes are accepted, as PyTorch accepts them."
        ),
        why=(
            "An operation refuses tensors of two devices, somewhere inside the model; and a tensor that is moved "
            "there at each step costs time."
        ),
        bad=Program(
            f"""\
{MODULES}model = dtypeguard.guard(nn.Linear(4, 2, device="meta"), mode="strict")
model(torch.rand(8, 4))
""",
            at=7,
            prints="""\
dtypeguard.DeviceError: Linear.forward: argument `input` is on cpu, the module's parameters are on meta
  argument   input = f32[8,4] on cpu
  passed as  torch.rand(8, 4)
  expected   meta like weight (f32[2,4] on meta)
  module     Linear
  called at  train.py:7, in <module>
  fix        torch.rand(8, 4).to('meta'), or dtypeguard.guard(model, mode="lenient")
""",
            fix="make the tensor on the device of the model, or move it once, before the loop",
        ),
        good=Program(
            f"""\
{MODULES}model = dtypeguard.guard(nn.Linear(4, 2, device="meta"), mode="strict")
model(torch.rand(8, 4, device="meta"))
"""
        ),
        ignore=f"Integer and bool tensors without an annotation may stay on the CPU. {SKIP} {MODES}",
        also=(SEMANTICS,),
    ),
    Explanation(
        RANK,
        what="Reports a tensor with another number of axes than its annotation has. No mode repairs it.",
        why=("Operations broadcast a missing axis without an error, and the result has a shape that nobody asked for."),
        bad=Program(
            LOSS + "mse(torch.ones(8), torch.zeros(8, 1))\n",
            at=15,
            prints="""\
dtypeguard.ShapeError: mse: argument `target` has 2 axes, the annotation wants 1 axis
  argument   target = f32[8,1] on cpu
  passed as  torch.zeros(8, 1)
  expected   Float32[Tensor, "batch"]
  called at  train.py:15, in <module>
  axes       batch=8
  fix        torch.zeros(8, 1).squeeze(1)
""",
            fix="`squeeze`, `unsqueeze` or `reshape` the tensor, or correct the annotation",
        ),
        good=Program(LOSS + "mse(torch.ones(8), torch.zeros(8, 1).squeeze(1))\n"),
        ignore=f'If any number of axes is right, annotate `"..."` or, with a name, `"*batch"`. {MODES}',
        also=(SEMANTICS,),
    ),
    Explanation(
        AXIS,
        what=(
            "Reports an axis whose size is not the number or the expression of the annotation, or not the size "
            "that its name has in this call already. No mode repairs it."
        ),
        why="Sizes that differ broadcast, or fail in an operation that does not know which argument is wrong.",
        bad=Program(
            LOSS + "mse(torch.ones(8), torch.zeros(1))\n",
            at=15,
            prints="""\
dtypeguard.ShapeError: mse: argument `target` has axis batch=1, but batch=8 in `pred`
  argument   target = f32[1] on cpu
  passed as  torch.zeros(1)
  expected   Float32[Tensor, "batch"]
  called at  train.py:15, in <module>
  axes       batch=8
""",
            fix="pass tensors of the same size, or correct the annotation",
        ),
        good=Program(LOSS + "mse(torch.ones(8), torch.zeros(1).expand(8))\n"),
        ignore=(
            f'If an axis may be 1 instead, annotate it as `"#batch"`; if its size does not matter, as `"_"`. {MODES}'
        ),
        also=(SEMANTICS,),
    ),
    Explanation(
        TYPE,
        what=(
            "Reports a value that is no tensor where the annotation names one, or that another annotation (`int`, "
            "`list[...]`, `Literal[...]`) does not allow. Lenient mode turns NumPy arrays into tensors."
        ),
        why="A list or a number in the place of a tensor fails later, or changes what an operation computes.",
        bad=Program(
            LOSS + "mse(torch.ones(2), [0.0, 1.0])\n",
            at=15,
            prints="""\
dtypeguard.HintError: mse: argument `target` is a list, the annotation wants a Tensor
  argument   target = [0.0, 1.0]
  passed as  [0.0, 1.0]
  expected   Float32[Tensor, "batch"]
  called at  train.py:15, in <module>
  axes       batch=2
  fix        pass a Tensor
""",
            fix="pass a value of the type that the annotation names",
        ),
        good=Program(LOSS + "mse(torch.ones(2), torch.tensor([0.0, 1.0]))\n"),
        ignore=f'If other types are right, annotate a union: `Float32[Tensor, "n"] | None`. {MODES}',
        also=(SEMANTICS,),
    ),
]
