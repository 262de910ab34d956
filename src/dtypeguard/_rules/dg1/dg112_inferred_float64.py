"""DG112 inferred-float64."""

from ..._watch.rule import Program, Rule, Severity

RULE = Rule(
    "DG112",
    "inferred-float64",
    Severity.INFO,
    summary="A tensor is made from NumPy scalars, and is float64 for that reason alone.",
    says="`{what}` is float64 since it holds NumPy scalars; with Python numbers it would be {default}",
    fix="say which dtype is meant: `torch.tensor(..., dtype={default_code})`",
    why=(
        "`torch.tensor` infers the dtype from its elements, and a `numpy.float64` looks and prints like a "
        "Python float. What depends on such a chance differs from run to run, and from rank to rank."
    ),
    sources=("https://github.com/modelscope/ms-swift/issues/9550",),
)

BAD = [
    Program(
        """\
import numpy as np
import torch

losses = [0.5, 0.25]
history = torch.tensor([np.mean(losses), 0.0])
""",
        at=5,
        prints="`torch.tensor([np.mean(losses), 0.0])` is float64 since it holds NumPy scalars; with Python "
        "numbers it would be float32",
    ),
    Program(
        """\
import numpy as np
import torch

rewards = [0.0, np.float64(1.5), 2.0]
returns = torch.tensor(rewards)
""",
        at=5,
        prints="`torch.tensor(rewards)` is float64 since it holds NumPy scalars; with Python numbers it would "
        "be float32",
    ),
    Program(
        """\
import numpy as np
import torch

state = 0.5 + np.float64(True)
metric = torch.tensor([[state, 3], [1.0, 2.0]])
""",
        at=5,
        prints="`torch.tensor([[state, 3], [1.0, 2.0]])` is float64 since it holds NumPy scalars; with Python "
        "numbers it would be float32",
    ),
    Program(
        """\
import numpy as np
import torch

scale = torch.tensor(np.sqrt(2.0))
""",
        at=4,
        prints="`torch.tensor(np.sqrt(2.0))` is float64 since it holds NumPy scalars; with Python numbers it "
        "would be float32",
    ),
]
GOOD = [
    Program(
        """\
import numpy as np
import torch

losses = [0.5, 0.25]
history = torch.tensor([np.mean(losses), 0.0], dtype=torch.float32)
"""
    ),
    Program(
        """\
import numpy as np
import torch

rewards = [0.0, np.float64(1.5), 2.0]
returns = torch.tensor([float(reward) for reward in rewards])
"""
    ),
    Program(
        """\
import numpy as np
import torch

scale = torch.tensor([np.float32(1.5), 2.0])
count = torch.tensor([np.int64(1)])
"""
    ),
    Program(
        """\
import numpy as np
import torch

table = torch.tensor(np.array([1.0, 2.0]))
"""
    ),
]
