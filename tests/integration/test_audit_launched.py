"""An audit of a program that a launcher starts: one report from all ranks."""

import os
import re
import socket
import subprocess
import sys

import pytest

TRAINING = """
import sys
import torch, torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(5):
    x = torch.randn(2, 4)
    x.half()
    if rank == 1:
        x.bfloat16()
    if rank == 1 and step == 3 and "dies" in sys.argv:
        sys.exit(3)
    model(x).sum().backward()
    optimizer.step()
dist.destroy_process_group()
if rank == 0:
    print("trained", step + 1)
"""
AUDIT = ["-m", "dtypeguard", "audit", "--no-casts"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
ACCELERATE = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes=2"]


@pytest.fixture
def launch(tmp_path):
    """Runs the training under a launcher: what it prints, and its status."""
    (tmp_path / "train.py").write_text(TRAINING)
    env = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "100", "ACCELERATE_USE_CPU": "true"}

    def run(launcher, *arguments):
        done = subprocess.run(
            [*launcher, *AUDIT, *arguments], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=240
        )
        return done.stdout, done.stderr, done.returncode

    run.folder = tmp_path
    return run


@pytest.fixture
def by_hand(tmp_path):
    """Starts two ranks as deepspeed does: by variables of the environment, without a store of the launcher's."""
    (tmp_path / "train.py").write_text(TRAINING)
    with socket.socket() as port:
        port.bind(("127.0.0.1", 0))
        meeting = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port.getsockname()[1])}

    def run(*arguments):
        ranks = [
            subprocess.Popen(
                [sys.executable, *AUDIT, *arguments], cwd=tmp_path, text=True, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, env={**os.environ, **meeting, "RANK": str(rank), "OMP_NUM_THREADS": "1"},
            )
            for rank in range(2)
        ]  # fmt: skip
        return [(*rank.communicate(timeout=240), rank.returncode) for rank in ranks]

    return run


@pytest.mark.parametrize("launcher", [TORCHRUN, ACCELERATE], ids=["torchrun", "accelerate"])
def test_rank_0_prints_one_report(launch, launcher):
    out, _, status = launch(launcher, "--html", "report.html", "train.py")
    assert status == 1
    assert out.count("audit report: 2 warnings") == 1
    assert "--> train.py:13 in <module>, 10 times\n" in out  # both ranks
    assert "--> train.py:15 in <module>, 5 times, on rank 1\n" in out
    assert "the report of all 2 ranks\nnext: change train.py:13 (removes 1 of 2)" in out
    assert "\nexit status 1: the audit found 2 warnings\n" in out
    assert "trained 5" in out
    assert "on rank 1" in (launch.folder / "report.html").read_text()


def test_without_a_store_of_the_launcher(by_hand):
    (out, _, status), (other, errors, other_status) = by_hand("--steps", "2", "train.py")
    assert (status, other_status) == (1, 0)
    assert "--> train.py:13 in <module>, 4 times\n" in out
    assert "the program was ended after 2 steps\nthe report of all 2 ranks\n" in out
    assert re.sub(r"\[Gloo\] .*\n", "", other) == ""  # what gloo of torch 2.9 prints
    assert "Traceback" not in errors


def test_a_rank_that_fails_tells_what_it_found(launch):
    _, errors, status = launch(TORCHRUN, "train.py", "dies")
    assert status == 1
    assert "rank 1:\n" in errors
    assert "--> train.py:15 in <module>, 4 times\n" in errors


def test_edits_need_one_process(launch):
    _, errors, _ = launch(TORCHRUN, "--fix", "train.py")
    assert "--diff and --fix run the program again in one process, and this is one of 2 ranks" in errors
