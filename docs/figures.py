"""Draws docs/images/amp-order.svg and docs/images/doors.svg, the figures of amp.md and semantics.md.

    python docs/figures.py

A test holds the files to this program. They are right on a light and on a dark page, and readable at 390 pixels.
"""

from html import escape
from pathlib import Path

IMAGES = Path(__file__).parent / "images"
STYLE = """
svg {
  color-scheme: light dark; --ink: #1f2328; --soft: #59636e; --line: #8c959f; --box: #f6f8fa; --good: #0969da;
  --bad: #c62828
}
@media (prefers-color-scheme: dark) {
  svg { --ink: #e6edf3; --soft: #9da7b1; --line: #6e7681; --box: #161b22; --good: #58a6ff; --bad: #ff7b72 }
}
text { font: 14px system-ui, sans-serif; fill: var(--ink) }
.code { font: 13.5px ui-monospace, monospace }
.soft { fill: var(--soft) } text.bad { fill: var(--bad) } text.good { fill: var(--good) } .strong { font-weight: 600 }
circle { fill: var(--bad) } .in { font-size: 11px; fill: var(--box); text-anchor: middle }
rect { fill: var(--box); stroke: var(--line); rx: 6 }
path { fill: none; stroke: var(--line); stroke-width: 1.5 } path.bad { stroke: var(--bad); stroke-dasharray: 5 3 }
path.good { stroke: var(--good) } .head { stroke: none } .head.bad { fill: var(--bad) } .head.good { fill: var(--good) }
"""

# The calls of one step, in the order that is right.
CALLS = (
    "scaler.scale(loss)",
    ".backward()",
    "scaler.unscale_(optimizer)",
    "clip_grad_norm_(...)",
    "scaler.step(optimizer)",
    "scaler.update()",
)
# Ways that are wrong, by the row that a label stands in: from one call to another (None: from outside; the same:
# again); the rule, and what it is in words.
WRONG = (
    (None, 1, "DG308", "without scale"),
    (2, 1, "DG314", "backward again"),
    (2, 2, "DG310", "unscale_ twice"),
    (1, 3, "DG309", "clip before unscale_"),
    (3, None, "DG312", "optimizer.step()"),
    (4, 0, "DG311", "no update"),
)


def amp_order() -> str:
    """The right order down the left side, each wrong way beside it with its rule."""
    left, wide, high, gap, top = 12, 236, 34, 34, 40
    right = left + wide
    y = [top + number * (high + gap) for number in range(len(CALLS))]
    parts = [_text(left, 22, "in each step", "soft"), _text(right + 120, 22, "wrong, and the rule", "bad")]
    for number, call in enumerate(CALLS):
        parts += [_box(left, y[number], wide, high), _text(left + 12, y[number] + 22, call, "code")]
        if number:
            parts += _arrow([(left + wide / 2, y[number] - gap), (left + wide / 2, y[number])], "good")
    for place, (begin, end, rule, words) in enumerate(WRONG):
        out, label = right + 14 + 17 * place, top + place * (high + gap) + 8
        first = top - 10 if begin is None else y[begin] + high / 2 + 5
        last = y[4] - gap / 2 if end is None else y[end] + high / 2 - 5
        middle = (first + last) / 2 if begin != end else last
        parts += _arrow([(right, first), (out, first), (out, last), (right, last)], "bad")
        parts += _number(out, middle, place + 1) + _number(right + 130, label + 3, place + 1)
        parts += [_text(right + 146, label + 8, rule, "bad strong"), _text(right + 120, label + 27, words, "soft")]
    return _svg(530, y[-1] + high + 14, "The calls of a training step with a GradScaler, in order", parts)


# What comes to the door of a bfloat16 model, and what becomes of it.
INPUTS = (
    ("image", "bfloat16", "is right", "good"),
    ("time", "float32", "side input: stays", "good"),
    ("ids", "int64", "integer: stays", "good"),
)
ALONE = (("image", "float32", "strict: error, lenient: cast", "bad"),)
DEPTHS = (
    ("boundary", "the door of the model"),
    ("auto", "and Linear, Conv, LSTM inside, if needed"),
    ("all", "and every module with parameters"),
)


def doors() -> str:
    """A call with side inputs, a call without the dtype of the anchor, and the depths."""
    parts = [_text(12, 24, "model(image, time, ids)", "code strong"), *_call(INPUTS, 36)]
    parts += [_text(12, 186, "model(image)", "code strong"), *_call(ALONE, 198)]
    parts += [_text(12, 286, "depth= says which doors are checked", "strong")]
    for number, (name, words) in enumerate(DEPTHS):
        indent = 12 + 22 * number
        y = 300 + 42 * number
        parts += [_box(indent, y, 456 - 2 * 22 * number, 34), _text(indent + 12, y + 22, f'"{name}"', "code")]
        parts += [_text(indent + 110, y + 22, words, "soft")]
    return _svg(480, 300 + 42 * len(DEPTHS) + 6, "What a guard does with the inputs of a bfloat16 model", parts)


def _call(inputs: tuple[tuple[str, str, str, str], ...], top: int) -> list[str]:
    """The inputs of one call, each with an arrow to the model's door."""
    row, high = 36, 36 * len(inputs) + 12
    parts = [_box(346, top, 122, max(high, 58)), _text(358, top + 24, "anchor", "soft")]
    parts += [_text(358, top + 44, "bfloat16", "code")]
    for number, (name, dtype, words, kind) in enumerate(inputs):
        y = top + 26 + row * number
        parts += [_text(12, y, name, "code"), _text(62, y, dtype, "code soft")]
        parts += [*_arrow([(140, y - 5), (346, y - 5)], kind), _text(146, y - 11, words, kind)]
    return parts


def _svg(width: int, height: float, title: str, parts: list[str]) -> str:
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:g}" width="{width}" role="img">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n{body}\n</svg>\n"
    )


def _text(x: float, y: float, words: str, kind: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{kind}">{escape(words)}</text>'


def _number(x: float, y: float, number: int) -> list[str]:
    return [f'<circle cx="{x:g}" cy="{y:g}" r="8"/>', f'<text x="{x:g}" y="{y + 4:g}" class="in">{number}</text>']


def _box(x: float, y: float, width: float, height: float) -> str:
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"/>'


def _arrow(points: list[tuple[float, float]], kind: str) -> list[str]:
    """A line through points, with a head at the last one."""
    (x0, y0), (x, y) = points[-2:]
    dx, dy = (x > x0) - (x < x0), (y > y0) - (y < y0)
    head = [(x, y), (x - 8 * dx - 4 * dy, y - 8 * dy - 4 * dx), (x - 8 * dx + 4 * dy, y - 8 * dy + 4 * dx)]
    line = "M" + " L".join(f"{a:g} {b:g}" for a, b in points)
    tip = "M" + " L".join(f"{a:g} {b:g}" for a, b in head) + "Z"
    return [f'<path d="{line}" class="{kind}"/>', f'<path d="{tip}" class="head {kind}"/>']


FIGURES = {"amp-order.svg": amp_order, "doors.svg": doors}

if __name__ == "__main__":
    for name, draw in FIGURES.items():
        (IMAGES / name).write_text(draw())
