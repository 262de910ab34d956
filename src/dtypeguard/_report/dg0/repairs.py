"""Repairs: those that are refused, and those that are made."""

from ..._base.codes import CAST, COPY, LOST, REFUSED, WRITTEN
from ..._watch.rule import Program
from ._explanation import IMPORTS, LOSS, MODULES, SEMANTICS, SKIP, Explanation

_MODEL = f"""\
{MODULES}model = dtypeguard.guard(nn.Linear(4, 2).to(torch.float16))
"""

_ADD = f"""\
{IMPORTS}
@dtypeguard.enforce(mutates=("out",))
def add_into(x: Float32[Tensor, "n"], out: Float32[Tensor, "n"]):
    out.add_(x)


"""

_SCALE = f"""\
{IMPORTS}
@dtypeguard.enforce
def scale(x: Float32[Tensor, "n"]):
    return x{{}}(0.5)


"""


EXPLANATIONS = [
    Explanation(
        REFUSED,
        what=(
            "Reports, in lenient mode, a value that a cast would repair, but the casting rule does not allow it. "
            "The rule `precision` (the default) casts between floating dtypes, and integers only where every "
            "value survives."
        ),
        why=(
            "Whether integers are pixels that must be scaled, ids, or numbers is something that only the author knows."
        ),
        bad=Program(
            LOSS.replace("strict", "lenient") + "mse(torch.ones(8), torch.randint(10, (8,)))\n",
            at=15,
            prints="""\
dtypeguard.CastError: mse: argument `target` is int64, the annotation wants float32, and casting='precision' does \
not turn int64 into it
  argument   target = i64[8] on cpu
  passed as  torch.randint(10, (8,))
  expected   Float32[Tensor, "batch"]
  called at  train.py:15, in <module>
  axes       batch=8
  fix        torch.randint(10, (8,)).to(torch.float32), scaled as the model expects, or casting="promote"
""",
            fix="cast in your own code, where the meaning of the values is known",
        ),
        good=Program(
            LOSS.replace("strict", "lenient") + "mse(torch.ones(8), torch.randint(10, (8,)).to(torch.float32) / 9)\n"
        ),
        ignore=(
            'A wider rule allows more casts: `casting="promote"` also from bool to integers to floats, '
            '`casting="unsafe"` all that `Tensor.to` does; on the decorator, the guard, or with '
            "`dtypeguard.set_mode`."
        ),
        also=(SEMANTICS,),
    ),
    Explanation(
        LOST,
        what=(
            "Reports, in lenient mode, a cast to a narrower dtype after which a finite value is infinite, or a "
            "whole number is another number. The first cast of a line is verified; whole numbers are compared "
            "more often."
        ),
        why=(
            "A mask of `finfo(float32).min` is infinite in float16, and a softmax over it is NaN; a timestep of "
            "999 is 1000 in bfloat16."
        ),
        bad=Program(
            _MODEL + "model(torch.full((1, 4), 1e6))\n",
            at=7,
            prints="""\
dtypeguard.CastError: Linear.forward: argument `input` is float32, and finite values of it become infinite in float16
  argument   input = f32[1,4] on cpu
  passed as  torch.full((1, 4), 1e6)
  expected   float16
  module     Linear
  called at  train.py:7, in <module>
  fix        clamp it to torch.finfo(torch.float16), keep it out with skip_args, or use a wider dtype than float16
""",
            fix="keep the values in the range of the narrow dtype, or give the argument a dtype that holds them",
        ),
        good=Program(_MODEL + "model(torch.full((1, 4), 1e3, dtype=torch.float16))\n"),
        ignore=(
            'If the loss is intended, write the cast before the call, or `verify="never"` on the decorator or the '
            f"guard. {SKIP}"
        ),
        also=(SEMANTICS,),
    ),
    Explanation(
        WRITTEN,
        what=(
            "Reports, in lenient mode, an argument of the wrong dtype or device that the function writes to: "
            "`out`, what `mutates=` names, and what the schema of a custom operator marks."
        ),
        why=("The function would write to the copy that a cast makes, and the caller's tensor would stay as it was."),
        bad=Program(
            _ADD + "add_into(torch.ones(3), torch.zeros(3, dtype=torch.float64))\n",
            at=13,
            prints="""\
dtypeguard.CastError: add_into: argument `out` is float64, the annotation wants float32; `out` is written to, so it \
is never cast
  argument   out = f64[3] on cpu
  passed as  torch.zeros(3, dtype=torch.float64)
  expected   Float32[Tensor, "n"]
  called at  train.py:13, in <module>
  axes       n=3
  fix        create `out` in float32
""",
            fix="create the tensor that is written to in the dtype that the function requires",
        ),
        good=Program(_ADD + "add_into(torch.ones(3), torch.zeros(3))\n"),
        ignore=(
            "If the function does not write to the argument, take its name out of `mutates=`, or call it other "
            "than `out`."
        ),
        also=(SEMANTICS,),
    ),
    Explanation(
        CAST,
        what=(
            "Warns, in lenient mode, that a value was cast or moved. Each repair of a line warns once, is logged "
            'on `logging.getLogger("dtypeguard")`, and is counted in `dtypeguard.casts()`.'
        ),
        why=(
            "The program is right now, but the copy costs time and memory in each call, and the data has another "
            "dtype than its reader expects."
        ),
        bad=Program(
            LOSS.replace("strict", "lenient")
            + "steps = torch.arange(8, dtype=torch.float64)\nmse(torch.ones(8), steps / 10)\n",
            at=16,
            prints="""\
CastWarning: mse: `target` was cast from float64 to float32; passed as `steps / 10` [DG012]
""",
            fix="cast the value at the line that the warning names, or make it in the right dtype",
        ),
        good=Program(LOSS.replace("strict", "lenient") + "steps = torch.arange(8.0)\nmse(torch.ones(8), steps / 10)\n"),
        ignore=(
            '`warnings.filterwarnings("ignore", category=dtypeguard.CastWarning)` silences all repairs, with '
            "`module=` those of one module. `casts()` counts them anyway."
        ),
        also=(SEMANTICS,),
    ),
    Explanation(
        COPY,
        what=("Warns that a function changed a cast copy of its argument in place, or called `requires_grad_` on it."),
        why=(
            "The caller's tensor has another dtype, so it was not changed; a caller that relies on it goes on "
            "with old values."
        ),
        bad=Program(
            _SCALE.format(".mul_") + "scale(torch.ones(3, dtype=torch.float64))\n",
            at=13,
            prints="""\
InplaceOnCastWarning: scale changed in place `x`, which is a cast copy: the caller's float64 tensor did not change; \
cast it to float32 before the call, or name it in mutates= [DG013]
""",
            fix="return a new tensor; or cast before the call, and name the argument in `mutates=`",
        ),
        good=Program(_SCALE.format(".mul") + "scale(torch.ones(3))\n"),
        ignore=(
            'If nobody needs the change, `warnings.filterwarnings("ignore", category=dtypeguard.InplaceOnCastWarning)`.'
        ),
        also=(SEMANTICS,),
    ),
]
