"""What DG901 and DG902 say to write for a formula is finite, and right, where the formula is not."""

import pytest
import torch

from dtypeguard import audit

LARGE, HALF = torch.tensor([[200.0, 1.0], [3.0, 150.0]]), torch.tensor([[300.0, 1.0], [2.0, 1.0]]).half()
SMALL, OTHER = torch.tensor([1e-4, 3e-4]).bfloat16(), torch.tensor([400.0, 2.0]).half()
FORMULAS = [
    "torch.exp(LARGE) / torch.exp(LARGE).sum(-1, keepdim=True)",
    "LARGE.exp() / LARGE.exp().sum()",
    "torch.log(torch.softmax(HALF * 2, dim=-1))",
    "(HALF * 2).softmax(1).log()",
    "LARGE.exp().sum(dim=1).log()",
    "torch.log(torch.sum(torch.exp(LARGE)))",
    "torch.log(1 + SMALL)",
    "(SMALL + 1).log()",
    "SMALL.exp() - 1",
    "torch.sqrt(HALF[0] * HALF[0] + OTHER**2)",
    "(HALF[0].pow(2) + OTHER.square()).sqrt()",
]


@pytest.mark.parametrize("formula", FORMULAS)
def test_what_is_advised_is_right(formula, tmp_path):
    file = tmp_path / "program.py"
    file.write_text(f"result = {formula}\nresult.tolist()\n")
    names = {name: value for name, value in globals().items() if name.isupper() or name == "torch"}
    with audit(select="DG9", values=True) as report:
        exec(compile(file.read_text(), str(file), "exec"), names)
    advised = {finding.fix.split("`")[1] for finding in report.findings}
    assert len(advised) == 1, report
    with audit(select="DG9", values=True) as after:
        better = eval(advised.pop(), names)
        better.tolist()
    assert after.findings == []
    wide = {name: value.double() if isinstance(value, torch.Tensor) else value for name, value in names.items()}
    exec(compile(f"result = {formula}", "<wide>", "exec"), wide)
    torch.testing.assert_close(better.double(), wide["result"], rtol=0.02, atol=1e-6)


def test_exp_alone_overflows_in_every_dtype():
    with audit(select="DG9", values=True) as report:
        torch.exp(LARGE).tolist()
    assert [finding.fix for finding in report.findings] == [
        "softmax, log_softmax and logsumexp subtract the largest value before they call exp: use the one that this is "
        "a part of, or clamp what goes in"
    ]


def test_each_line_that_rounds_enough_to_spoil_the_result_is_named(tmp_path):
    """To widen the first alone would leave what the second rounds."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(24, 48), torch.nn.Tanh(), torch.nn.Linear(48, 32)).requires_grad_(False)
    x, w = torch.randn(500, 24), torch.randn(1, 32)
    file = tmp_path / "program.py"
    file.write_text(
        "x = net(x).float()\n"
        "y = x.mul(w).sum(1, keepdim=True)\n"
        "gram, right = x.T @ x, x.T @ y\n"
        "torch.linalg.solve(gram.float(), right.float()).tolist()\n"
    )
    with audit(select="DG902", values=True) as report, torch.autocast("cpu", dtype=torch.bfloat16):
        exec(compile(file.read_text(), str(file), "exec"), {"torch": torch, "net": net, "x": x, "w": w})
    (found,) = report.findings
    assert [(spot.line, spot.label) for spot in found.spots[1:]] == [
        (1, "rounded to bfloat16 here"), (3, "also rounded here")
    ]  # fmt: skip
    assert found.fix.endswith("; `x.T @ y` at line 3 too")


def test_the_number_that_is_zero_and_the_tensor_that_rounds_are_named():
    zeros = torch.zeros(4).half()
    with audit(values=True) as report:
        (zeros / (zeros.norm() + 1e-8)).tolist()
        torch.tensor(16777217.0).long().item()
    assert [finding.fix for finding in report.findings] == [
        "1e-08 is 0 in float16: use an eps that float16 has, 1e-4 and up, or compute it in float32",
        "give `dtype=torch.float64` to `torch.tensor(16777217.0)`, which rounds to float32; whole numbers "
        "stay integers",
    ]
