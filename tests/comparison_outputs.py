"""Writes what each tool prints of one faulty program into docs/explanation/comparison.md.

    python tests/comparison_outputs.py

tests/test_comparison_outputs.py compares the page with the tools that are installed in the page's versions. Some need
an environment of their own: `pip install --group peers`.
"""

import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from comparison import PAGE, split, version

NAME = "outputs"
# The mask is float32 where the model is bfloat16, and the sum with 300 costs bfloat16 all digits of `hidden`.
NET = """import torch
from jaxtyping import Float
from torch import Tensor, nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.last = nn.Linear(4, 2)

    def forward(self, x: Float[Tensor, "batch 4"], mask: Float[Tensor, "batch 4"]) -> Float[Tensor, "batch 2"]:
        hidden = self.first(x)
        shifted = hidden + 300
        hidden = (shifted - 300) * mask
        return self.last(hidden.to(x.dtype))


torch.manual_seed(0)
net = Net().to(torch.bfloat16)
x, mask = torch.rand(3, 4, dtype=torch.bfloat16), torch.ones(3, 4)
"""


@dataclass(frozen=True)
class Tool:
    """A program beside net.py, or a command, and what is said of it."""

    name: str
    packages: tuple[str, ...]
    says: str
    program: str = ""
    command: str = ""


TOOLS = (
    Tool(
        "dtypeguard, the contract", (), "`enforce` names the argument; the annotations are as they were.",
        """import dtypeguard
from net import Net, mask, net, x

Net.forward = dtypeguard.enforce(mode="strict")(Net.forward)
net(x, mask)
""",
    ),
    Tool(
        "dtypeguard, the audit", (),
        "It needs no annotation. It names the line that loses digits, and lists the promotion.",
        """import dtypeguard
from net import mask, net, x

with dtypeguard.audit(values=True) as report:
    net(x, mask)
print(report)
""",
    ),
    Tool(
        "jaxtyping + beartype", ("jaxtyping", "beartype"),
        "`Float` is any floating dtype, so the call is right. `BFloat16` would refuse the mask, and "
        "the model in another dtype.",
        """from beartype import beartype
from jaxtyping import jaxtyped
from net import Net, mask, net, x

Net.forward = jaxtyped(typechecker=beartype)(Net.forward)
print(net(x, mask).dtype)
""",
    ),
    Tool(
        "jaxtyping + typeguard", ("jaxtyping", "typeguard"),
        "typeguard 4 reads the axes as an expression of Python, and ends at the import.",
        """from jaxtyping import install_import_hook

with install_import_hook("net", "typeguard.typechecked"):
    from net import mask, net, x
print(net(x, mask).dtype)
""",
    ),
    Tool(
        "torchtyc", ("torchtyc",), "It checks shapes without running the program on data; the shapes are right.",
        command="torchtyc check net.py",
    ),
    Tool(
        "`DebugMode`", (), "A log of all operations. Who reads it sees the `f32` behind `mul`, and no values.",
        """from net import mask, net, x
from torch.utils._debug_mode import DebugMode

with DebugMode() as debug:
    net(x, mask)
print(debug.debug_string())
""",
    ),
    Tool(
        "ModelOpt", ("nvidia-modelopt",),
        "It quantizes, and does not look for mistakes: it places quantizers, and calibrates them on "
        "the faulty activations, the last of which are 0.",
        """import modelopt.torch.quantization as mtq
from net import mask, net, x

mtq.quantize(net, mtq.INT8_DEFAULT_CFG, lambda model: model(x, mask))
mtq.print_quant_summary(net)
""",
    ),
    Tool(
        "msProbe", ("mindstudio-probe",),
        "It dumps statistics of each call into a file, to be compared with those of another run. The "
        "loop prints of each call the dtypes and the largest values: `add` and `sub` lead from 0.645 to 0.",
        """import json
from pathlib import Path

from msprobe.pytorch import PrecisionDebugger
from net import mask, net, x

debugger = PrecisionDebugger(task="statistics", level="L1", dump_path="dump")
debugger.start(model=net)
net(x, mask)
debugger.stop()
debugger.step()
(dump,) = Path("dump").rglob("dump.json")
for call, told in json.loads(dump.read_text())["data"].items():
    tensors = [value for value in told["input_args"] + told["output"] if value["type"] == "torch.Tensor"]
    print(call, *(f"{value['dtype']}:{value['Max']:.3g}" for value in tensors))
""",
    ),
)  # fmt: skip


def output(tool: Tool) -> str:
    """What a tool prints: of an error its message, of a log nothing that has a date."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "net.py").write_text(NET)
        (Path(folder) / "run.py").write_text(tool.program)
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        environment = {**os.environ, "PATH": path, "COLUMNS": "100", "OMP_NUM_THREADS": "1"}
        command = tool.command.split() or [sys.executable, "-W", "ignore", "run.py"]
        run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    error = re.search(r"^(?!Traceback)\w[\w.]*(?:Error|Exception): [\s\S]*", run.stderr, re.MULTILINE)
    text = run.stdout + (error[0] if run.returncode and error else "")
    dated = re.compile(r"^\d{4}-\d\d-\d\d .*\n", re.MULTILINE)
    return "\n".join(line.rstrip() for line in dated.sub("", text).strip().splitlines())


def versions(tool: Tool) -> dict[str, str | None]:
    return {package: version(package) for package in (*tool.packages, "torch")}


def section(tool: Tool) -> str:
    told = ", ".join(f"{package} {found}" for package, found in versions(tool).items())
    how = f"```sh\n{tool.command}\n```" if tool.command else f"```py\n{tool.program}```"
    return f"### {tool.name}\n\n{tool.says} ({told})\n\n{how}\n\n```text\n{output(tool)}\n```"


def sections(page: str) -> dict[str, str]:
    """The sections of a page, by the names of their tools."""
    parts = split(page, NAME)[1].split("\n### ")[1:]
    return {part.partition("\n")[0]: f"### {part.strip()}" for part in parts}


def main() -> int:
    """Write the sections; that of a tool that is not installed stays."""
    before, _, after = split(PAGE.read_text(), NAME)
    made, old = [f"```py\n# net.py\n{NET}```"], sections(PAGE.read_text())
    for tool in TOOLS:
        if absent := [package for package, found in versions(tool).items() if found is None]:
            print(f"{tool.name} stays as it is: {', '.join(absent)} is not installed", file=sys.stderr)
        made.append(old[tool.name] if absent else section(tool))
    PAGE.write_text(before + "\n" + "\n\n".join(made) + "\n\n" + after)
    return 0


if __name__ == "__main__":
    sys.exit(main())
