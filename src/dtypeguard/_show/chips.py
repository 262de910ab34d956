"""Dtypes as small coloured labels."""

from typing import TYPE_CHECKING

from .document import markup

if TYPE_CHECKING:
    from markupsafe import Markup

# The one table of dtypes of pages: what the name begins with, what stands for that in short, and the CSS class with
# its hue and chroma. Lightness is the theme's, so every row is as legible as the others, in light and in dark.
COLOURS: tuple[tuple[str, str, str, int, float], ...] = (
    ("float64", "f64", "f64", 20, 0.13),
    ("float32", "f32", "f32", 255, 0.11),
    ("bfloat16", "bf16", "bf16", 155, 0.11),
    ("float16", "f16", "f16", 75, 0.11),
    ("float8_", "f8", "f8", 345, 0.12),
    ("float4_", "f4", "f8", 345, 0.12),
    ("bcomplex", "bc", "c", 305, 0.12),
    ("complex", "c", "c", 305, 0.12),
    ("bool", "bool", "b", 110, 0.05),
    ("uint", "u", "u", 200, 0.05),
    ("int", "i", "i", 225, 0.035),
    ("q", "q", "q", 45, 0.06),
    ("bits", "bits", "q", 45, 0.06),
    ("", "", "x", 0, 0.0),
)


def rank(dtype: str) -> int:
    """Where a dtype stands in the table."""
    return next(place for place, (start, *_) in enumerate(COLOURS) if dtype.startswith(start))


def short(dtype: str) -> str:
    """`bfloat16` as `bf16`, `float8_e4m3fn` as `f8e4m3fn`; a name that is not in the table as it is."""
    start, brief, *_ = COLOURS[rank(dtype)]
    return brief + dtype[len(start) :]


def chip(dtype: str) -> "Markup":
    """The label of a dtype."""
    name = COLOURS[rank(dtype)][2]
    return markup('<b class="t {}" title="{}">{}</b>').format(name, dtype, short(dtype))


def class_styles() -> str:
    """A class for each row of the table: inline styles would need a hole in a page's policy."""
    rows = {name: (hue, chroma) for *_, name, hue, chroma in COLOURS}
    return "".join(f".{name}{{--h:{hue};--c:{chroma}}}\n" for name, (hue, chroma) in rows.items())
