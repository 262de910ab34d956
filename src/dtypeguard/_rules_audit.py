"""The rows of the registry that only an audit finds: conversions (DG1), autocast (DG2), modules (DG5), state (DG6),
collectives (DG7) and export (DG8).
"""

from ._rule import AMP, GITHUB, Rule, Severity

TYPE_PROMOTION = "https://docs.pytorch.org/docs/stable/tensor_attributes.html#type-promotion-doc"
TENSOR_TO = "https://docs.pytorch.org/docs/stable/generated/torch.Tensor.to.html"
MODULE = "https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html"

_INFO, _WARNING, _ERROR = Severity
AUDIT_RULES = (
    # ------------------------------------------------------------ DG1: conversions
    Rule(
        "DG101", "float64-creep", _WARNING,
        "`{what}` {how} float64 and {other}{size}",
        "convert where the float64 is born: {where}`.to({like})`",
        "NumPy and Python compute in float64, models in float32 or less. One float64 operand makes every result "
        "float64: twice the memory and a fraction of the speed on a GPU, nothing at all on MPS; a layer refuses it.",
        f"{TYPE_PROMOTION}; {GITHUB}/pytorch/pytorch/issues/36553; {GITHUB}/sgl-project/sglang/issues/29011",
    ),
    Rule(
        "DG102", "implicit-promotion", _WARNING,
        "`{what}` mixes {pair}: the result is {wide}{size}",
        "cast one side where it is made: {advice}",
        "Operands of several dtypes are promoted without a word. A float32 table or constant turns half activations "
        "into float32, and so all that follows; between integers and floats it is usually meant.",
        f"{TYPE_PROMOTION}; {GITHUB}/lucidrains/rotary-embedding-torch/issues/9",
    ),
    Rule(
        "DG103", "discarded-cast", _WARNING,
        "`{what}` gives a new {dtype} tensor, and it is thrown away: {subject} stays {was}",
        "keep the result: `{target} = {what}`",
        "`Tensor.to`, `.type`, `.half` and the like return another tensor; only `Module.to` changes what it is called "
        "on.",
        f"{TENSOR_TO}",
    ),
    Rule(
        "DG104", "repeated-cast", _WARNING,
        "the same {was} tensor of {size} was cast to {dtype} {times} times, {total} in all, and it did not change",
        "cast it once, before the loop, or register it as a buffer of the module so that `.to()` reaches it",
        "A cast reads and writes the whole tensor. Of a constant it gives the same result each time.",
        f"{TENSOR_TO}",
    ),
    Rule(
        "DG105", "value-overflow", _WARNING,
        "`{what}` makes {count} of {total} finite values infinite in {dtype}, whose largest value is {largest:g}",
        "compute it in a wider dtype, or clamp it first: {advice}",
        "float16 ends at 65504. A sum, a product, or the cast of a mask of `finfo(float32).min` leaves it, and softmax "
        "or a mean make NaN of infinity some lines later.",
        f"{GITHUB}/huggingface/transformers/issues/25938; {GITHUB}/huggingface/transformers/issues/17306",
    ),
    Rule(
        "DG106", "fraction-lost", _WARNING,
        "`{what}` writes {source} values into {dtype}: {count} of {total} lose their fraction",
        "allocate the target with a floating dtype, or round where it is meant: `.round().to({dtype_code})`",
        "Writing into an integer tensor truncates towards zero, without a word.",
        f"{GITHUB}/pytorch/pytorch/issues/126000",
    ),
    Rule(
        "DG107", "narrowing-write", _INFO,
        "`{what}` writes {source} into a {dtype} tensor{loss}",
        "allocate the target in the dtype of what is written to it: {advice}",
        "A tensor that is written to keeps its dtype, and what is written is cast to it: complex values lose their "
        "imaginary part (PyTorch warns once in a process), wide floats their digits.",
        f"{TYPE_PROMOTION}; {GITHUB}/MagriLab/KolSol/issues/30",
    ),
    Rule(
        "DG108", "positions-collide", _WARNING,
        "`{what}`: {detail}{effect}",
        "compute positions and angles in float32 (or as integers), and cast only the result",
        "bfloat16 has 8 bits of significand, float16 has 11: integers above 256 and 2048 are rounded, so neighbouring "
        "positions become equal, and the sine of a large angle is noise.",
        f"{GITHUB}/huggingface/transformers/issues/25681",
    ),
    Rule(
        "DG109", "integer-wraps", _WARNING,
        "`{what}`: {detail}",
        "take a wider dtype, a bool mask or a clamp: {advice}",
        "Integer arithmetic is modulo the range of the dtype: 3 - 5 in uint8 is 254, 300 * 300 in int16 24464. Hashes "
        "and random numbers want that: large odd factors, and what goes on to operations on bits, are no finding. `~` "
        "on an integer mask flips bits: 1 becomes -2, or 254 in uint8, which counts as true like -1 and 255. A float "
        "outside of an integer dtype becomes any number in it.",
        f"{GITHUB}/pytorch/pytorch/issues/24180",
    ),
    Rule(
        "DG110", "dtype-refused", _ERROR,
        "`{what}` was refused: {reason}{operands}",
        "cast the operand that is odd: {advice}",
        "PyTorch's message names neither the argument nor where its dtype comes from.",
        f"{GITHUB}/pytorch/pytorch/issues/105243; {GITHUB}/pytorch/pytorch/issues/102922",
    ),
    Rule(
        "DG111", "mask-is-added", _WARNING,
        "{argument} of {function} is {dtype} and holds only 0 and 1: it is added to the scores, and masks nothing",
        "give a bool mask: `{code}.bool()`{caution}",
        "Attention takes two kinds of masks. A bool mask hides, a float mask is added to the scores: a 1 in it makes a "
        "position a little more likely.",
        f"{GITHUB}/pytorch/pytorch/issues/92554",
    ),
    Rule(
        "DG112", "inferred-float64", _INFO,
        "`{what}` is float64 since it holds NumPy scalars; with Python numbers it would be {default}",
        "say which dtype is meant: `torch.tensor(..., dtype={default_code})`",
        "`torch.tensor` infers the dtype from its elements, and a `numpy.float64` looks and prints like a Python "
        "float. What depends on such a chance differs from run to run, and from rank to rank.",
        f"{GITHUB}/modelscope/ms-swift/issues/9550",
    ),
    Rule(
        "DG113", "epsilon-vanishes", _WARNING,
        "`{what}`: {value:g} is 0 in float16, and `{use}` gives {count} infinite or NaN values",
        "an eps that float16 has, 1e-4 and up, or compute it in float32",
        "The smallest float16 is 6e-8, so the 1e-8 or 1e-12 that keeps a division or a logarithm from zero is zero "
        "itself.",
        f"{GITHUB}/pytorch/pytorch/issues/8860; "
        "https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.normalize.html",
    ),
    # ------------------------------------------------------------ DG2: autocast
    Rule(
        "DG201", "half-leaves-autocast", _ERROR,
        "`{what}` gets {dtype}, which left an autocast region{born}, and {other}: it was refused",
        "`.float()` on what leaves the region, or let the region reach this line",
        "What autocast computes stays in half when the region ends. Outside, nothing is cast any more.",
        f"{AMP}#autocasting; {GITHUB}/shawntan/scattermoe/issues/17",
    ),
    Rule(
        "DG202", "function-without-custom-fwd", _ERROR,
        "autograd.Function `{name}` ran under autocast without `custom_fwd`; {detail}",
        "decorate it: `@torch.amp.custom_fwd(device_type={device!r}, cast_inputs=torch.float32)` on forward, "
        "`@torch.amp.custom_bwd(device_type={device!r})` on backward",
        "Autocast casts inside the forward of a Function, but backward runs outside of any region, on saved tensors of "
        "the dtypes that came in and a gradient of the dtype that went out.",
        f"{GITHUB}/pytorch/pytorch/issues/47906; https://docs.pytorch.org/docs/stable/notes/amp_examples.html#functions-with-multiple-inputs-or-autocastable-ops",
    ),
    Rule(
        "DG203", "autocast-leaves-operation", _ERROR,
        "`{what}` under autocast was refused: {reason}",
        "cast one side: {advice}",
        "Autocast casts the operands of the operations on its lists. Writing by index, scattering and most factories "
        "are on none: a float32 canvas does not take half predictions.",
        f"{AMP}#autocast-op-reference; {GITHUB}/open-mmlab/mmdetection3d/issues/1842",
    ),
    Rule(
        "DG204", "unsafe-bce", _ERROR,
        "`{what}`: {reason}",
        "leave out the sigmoid and use `binary_cross_entropy_with_logits` (`nn.BCEWithLogitsLoss`)",
        "The logarithm of a half probability is infinite long before that of a float32 one, so autocast refuses "
        "`binary_cross_entropy` on a GPU.",
        f"{AMP}#prefer-binary-cross-entropy-with-logits-over-binary-cross-entropy",
    ),
    Rule(
        "DG205", "autocast-not-everywhere", _ERROR,
        "`{what}` under autocast got {dtype}: {reason}",
        "cast what it takes yourself: `.to(torch.get_autocast_dtype({device!r}))`, or annotate it and use "
        "`dtypeguard.enforce`",
        "Inside a region most tensors still are float32: autocast casts for the operations on its lists only, never "
        "for a kernel of an extension.",
        f"{AMP}#autocast-op-reference; {GITHUB}/meteofrance/py4cast/issues/38",
    ),
    Rule(
        "DG206", "fill-does-not-fit", _ERROR,
        "`{what}` was refused: {reason}",
        "`torch.finfo(x.dtype).min` in place of a constant, or `float(\"-inf\")`",
        "-1e9 and finfo(float32).min are no float16. In float32 the line works, under autocast or after `.half()` it "
        "does not.",
        f"{GITHUB}/huggingface/transformers/issues/17306",
    ),
    # ------------------------------------------------------------ DG5: modules
    Rule(
        "DG501", "buffer-narrowed", _INFO,
        "{which} of {module}: converted from {was} to {dtype}{effect}",
        "keep it in float32: compute it in forward, or restore it after `.to()`; cast only what is made from it",
        "`Module.to(dtype)` converts every floating buffer. Frequencies, statistics and tables are small, and need the "
        "digits.",
        f"{MODULE}#torch.nn.Module.to; {GITHUB}/huggingface/transformers/issues/25681",
    ),
    Rule(
        "DG502", "half-running-stats", _WARNING,
        "`{buffer}` of {module} is {dtype}, and training updates it by {momentum:g} of the difference",
        "keep norms in float32: `module.float()` on them after the model was converted (a float32 norm takes half "
        "inputs)",
        "A running average moves by a tenth of the difference or less; in half most of that is rounded away, so "
        "evaluation uses statistics that stand still.",
        f"{GITHUB}/pytorch/pytorch/issues/102922",
    ),
    Rule(
        "DG503", "attribute-stays-behind", _INFO,
        "{which} of {module}: a plain tensor, which {change} left {stays}{effect}",
        "`self.register_buffer({name!r}, ..., persistent=False)` in `__init__`, so that `.to()` reaches it",
        "`Module.to`, `.half`, `.cuda` change parameters and buffers; a tensor that is only an attribute stays where "
        "and what it was.",
        f"{MODULE}#torch.nn.Module.register_buffer; {GITHUB}/lucidrains/rotary-embedding-torch/issues/9",
    ),
    Rule(
        "DG504", "buffer-changes-dtype", _INFO,
        "{which} of {module} was {was} and became {dtype} in forward{effect}",
        "build it in the dtype that it replaces: `.to(self.{name})` or `dtype=self.{name}.dtype`",
        "A table that is grown in forward is built anew in the default dtype, whatever the model was converted to.",
        f"{GITHUB}/huggingface/transformers/issues/13665",
    ),
    Rule(
        "DG505", "device-refused", _ERROR,
        "`{what}` was refused: {reason}{operands}",
        "move one of them: {advice}",
        "Tensors of one operation are on one device. A state that is built in the loop, or an attribute that `.to()` "
        "does not reach, stays on the CPU.",
        f"{GITHUB}/pytorch/pytorch/issues/10658",
    ),
    Rule(
        "DG506", "adapter-differs", _INFO,
        "{names} are {found}, the other parameters of {module} {expected}{effect}",
        "convert the adapter like the model: `adapter.to(model.dtype)`, or cast what passes between them",
        "A layer that is added to a converted model (an adapter, a head, a cache) has the default dtype.",
        f"{GITHUB}/huggingface/accelerate/issues/3620",
    ),
    # ------------------------------------------------------------ DG6: state
    Rule(
        "DG601", "load-converts", _INFO,
        "`load_state_dict` converts {share} of {module} from {was} in the checkpoint to {dtype}: {names}{effect}",
        "load into a model of the file's dtype: {advice}",
        "Loading copies into the tensors that the model has, and casts without a word: a bfloat16 checkpoint takes "
        "twice its memory in a float32 model, a float32 one loses its digits in a bfloat16 model.",
        f"{GITHUB}/huggingface/transformers/issues/24976; {MODULE}#torch.nn.Module.load_state_dict",
    ),
    Rule(
        "DG602", "default-dtype-leaked", _ERROR,
        "the default dtype is {dtype} since this line ({was} before), and what is made from it met other dtypes: "
        "{effect}",
        "set it back (`try: ... finally: torch.set_default_dtype(torch.{was})`), or give `dtype=` to the factories",
        "`torch.set_default_dtype` holds for the whole process. A library that sets it changes what `linspace`, "
        "`zeros` and every new layer give in all programs that use it.",
        f"{GITHUB}/ACEsuit/mace/issues/328; https://docs.pytorch.org/docs/stable/generated/torch.set_default_dtype.html",
    ),
    Rule(
        "DG603", "load-truncates", _ERROR,
        "`load_state_dict` writes {was} into {dtype}: {names} of {module} lose their fractions ({value})",
        "register the buffer with a floating dtype: `torch.tensor(1.0)`, not `torch.tensor(1)`",
        "Loading copies into the tensors that the model has; what is copied into an integer tensor is truncated.",
        f"{GITHUB}/pytorch/pytorch/issues/126000",
    ),
    # ------------------------------------------------------------ DG7: collectives
    Rule(
        "DG701", "ranks-disagree", _ERROR,
        "{op}: {ranks}",
        "give every rank the same dtype and shape: `.to(...)` before the collective, `dtype=` where the tensor is made",
        "Collectives send bytes. Where ranks hold different dtypes of one size they compute nonsense without an error; "
        "where sizes differ they hang or abort.",
        f"{GITHUB}/pytorch/pytorch/issues/150248; {GITHUB}/modelscope/ms-swift/issues/9550",
    ),
    # ------------------------------------------------------------ DG8: export
    Rule(
        "DG801", "float64-in-export", _WARNING,
        "{nodes} of the exported graph {are} float64, the parameters are {expected}: {source} (exported at {called})",
        "{advice}",
        "A float64 constant makes all that it meets float64. Runtimes that have only float32 kernels reject the graph, "
        "or run it slowly.",
        f"{GITHUB}/Megvii-BaseDetection/YOLOX/issues/1674",
    ),
    Rule(
        "DG802", "dtype-baked-in", _INFO,
        "the trace holds {baked} as {dtype}{effect}",
        "trace the model in the dtype in which it will run, or derive dtypes in the graph: `torch.zeros_like`, "
        "`.type_as`",
        "Tracing records the dtypes that it sees as constants. A traced module that is converted afterwards still "
        "casts to them.",
        "https://docs.pytorch.org/docs/stable/generated/torch.jit.trace.html",
    ),
)  # fmt: skip
