"""Makes the pictures of the README from real runs: docs/images/report.png is what an audit prints on a terminal, and
docs/images/compare.svg is what `compare` finds in examples/picture.py, for light and dark pages.

    python docs/picture.py

It needs rich, and Chromium.
"""

import io
import os
import re
import runpy
import subprocess
import tempfile
from pathlib import Path

import torch
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

import dtypeguard

HERE = Path(__file__).parent
COLUMNS, WIDTH = 96, 1100
PROGRAM = """\
import numpy as np
import torch
from torch import nn

mean = torch.from_numpy(np.array([0.485, 0.456, 0.406]))
pixels = torch.rand(8, 3, 64, 64)
batch = pixels - mean[:, None, None]

model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)).bfloat16()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
for step in range(40):
    loss = model(pixels.bfloat16()).float().square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


class Terminal(io.StringIO):
    """A file that takes colours."""

    def isatty(self) -> bool:
        return True


def report() -> str:
    """What is printed, with escape sequences."""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("train.py").write_text(PROGRAM)
        with dtypeguard.audit(ignore="DG104") as found:
            runpy.run_path(str(Path("train.py").absolute()))
        os.environ.update(COLUMNS=str(COLUMNS), TERM="xterm")
        terminal = Terminal()
        found.show(terminal)
        os.chdir(HERE)
    return terminal.getvalue().partition("casts that are worth a look")[0].rstrip()


def compared() -> str:
    """What examples/picture.py finds, as a picture."""
    names = runpy.run_path(str(HERE.parent / "examples" / "picture.py"))
    result = dtypeguard.compare(names["make_model"](), names["make_batch"](), dtype=torch.bfloat16)
    return result.keep(error=0.01).to_svg()


def main() -> None:
    (HERE / "images" / "compare.svg").write_text(compared(), "utf-8")
    console = Console(record=True, width=COLUMNS + 2, file=io.StringIO())
    console.print(Text("$ python -m dtypeguard audit train.py\n"), Text.from_ansi(report() + "\n "), sep="\n")
    svg = console.export_svg(title="train.py", theme=MONOKAI)
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "report.html")
        page.write_text(f"<style>body {{ margin: 0 }} svg {{ width: {WIDTH}px; display: block }}</style>{svg}")
        width, height = map(float, re.findall(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)[0])
        size = f"{WIDTH},{int(WIDTH * height / width)}"
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--force-device-scale-factor=2"]
        options += [f"--user-data-dir={folder}/profile", f"--window-size={size}", "--default-background-color=00000000"]
        picture = HERE / "images" / "report.png"
        picture.parent.mkdir(exist_ok=True)
        subprocess.run(
            ["chromium", *options, f"--screenshot={picture}", page.as_uri()], check=True, capture_output=True
        )


if __name__ == "__main__":
    main()
