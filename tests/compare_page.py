"""Comparisons as `Comparison.to_dict()` has them, for the tests of the page: one that holds everything, a big one."""

NASTY = "<script>alert('x')</script> \"quoted\" & ünïcødé 数据 {{ braces }} " + "verylongword" * 30
PARTS = ("weights", "arithmetic", "decisions")
HOME = "/home/ana/run"


def layer(name, kind, weights=0.0, arithmetic=0.0, decisions=0.0, error=None, saves=0.0, lines=()):
    return {
        "name": name,
        "share": weights + arithmetic + decisions,
        "weights": weights,
        "arithmetic": arithmetic,
        "decisions": decisions,
        "saves": saves,
        "error": error,
        "kind": kind,
        "lines": list(lines),
    }


def part(name, line, weights=0.0, arithmetic=0.0, decisions=0.0, file=f"{HOME}/model.py", source="x = self.fc(x)"):
    return {
        "layer": name, "file": file, "line": line, "source": source, "weights": weights, "arithmetic": arithmetic,
        "decisions": decisions,
    }  # fmt: skip


def comparison(layers=(), parts=(), **rest):
    """The data of a comparison: its lines and its depth come from the layers and the parts."""
    layers = sorted(layers, key=lambda row: -abs(row["share"]))
    lines = {}
    for one in parts:
        row = lines.setdefault((one["file"], one["line"]), one | dict.fromkeys(PARTS, 0.0) | {"layers": []})
        row |= {name: row[name] + one[name] for name in PARTS}
        row["layers"].append(one["layer"])
    rows = [row | {"share": sum(row[name] for name in PARTS)} for row in lines.values()]
    explained = sum(row["share"] for row in layers)
    return {
        "schema": 1,
        "kind": "compare",
        "dtype": "bfloat16",
        "region": None,
        "model": "Net",
        "reference": "float64",
        "wide": "float32",
        "verdict": "",
        "compared": "output",
        "integers": False,
        "error": 0.018,
        "explained": explained,
        "linear": 0.9 <= explained <= 1.1,
        "runs": 3,
        "bisected": 0,
        "born": [],
        "notes": [],
        "layers": layers,
        "lines": sorted(rows, key=lambda row: -abs(row["share"])),
        "parts": list(parts),
        "parameters": {},
        "depth": [{"name": row["name"], "error": row["error"]} for row in layers if row["error"] is not None],
        "curve": (rest.get("kept") or {"curve": []})["curve"],
        "kept": None,
        **rest,
    }


def kept(*names, error, runs):
    curve = [[0.0, 0.002], [0.1, error], [1.0, 0.0]]
    cost = {"parameters": 0.1, "bytes": 0.18, "curve": curve, "notes": []}
    return {"names": list(names), "error": error, "runs": runs, **cost}


def sample():
    """Everything that a comparison can hold."""
    layers = [
        layer("(inputs)", "", arithmetic=0.01),
        layer("embed", "Embedding", weights=0.2, error=0.0016, saves=0.25),
        layer("blocks.0.norm", "LayerNorm", arithmetic=0.08, decisions=0.02, error=0.003, saves=0.1),
        layer("blocks.0.fc", "Linear", weights=0.3, arithmetic=-0.1, error=0.014, saves=0.31),
        layer("blocks.0", "Block", arithmetic=0.25, error=0.011, saves=0.6),
        layer("blocks.1.norm", "LayerNorm", arithmetic=-0.15, error=0.02, saves=-0.15),
        layer("blocks.1.fc", "Linear", weights=0.1, error=0.03, saves=0.1),
        layer("blocks.1", "Block", error="inf"),
        layer("head", NASTY, weights=1e-6, error=0.0, saves=1e-6),
        layer("", "Net", arithmetic=0.28, decisions=0.03, error=0.018, saves=1.0),
    ]
    order = [row["name"] for row in layers if row["error"] is not None]
    errors = {row["name"]: row["error"] for row in layers}
    parts = [
        part("embed", 10, weights=0.2),
        part("blocks.0.norm", 20, arithmetic=0.08, decisions=0.02, source="x = self.norm(x)"),
        part("blocks.0.fc", 21, weights=0.3, arithmetic=-0.1),
        part("blocks.0", 21, arithmetic=0.15),
        part("blocks.0", 22, arithmetic=0.1, source="return x + residual"),
        part("blocks.1.norm", 20, arithmetic=-0.15, source="x = self.norm(x)"),
        part("blocks.1.fc", 21, weights=0.1),
        part("head", 1, weights=1e-6, file=f"{HOME}/<b>.py", source=NASTY),
        part("", 30, arithmetic=0.28, decisions=0.03, source="return self.head(x.argmax(-1))"),
    ]
    return comparison(
        layers, parts, dtype=None, region="float16", error=0.018, runs=9, bisected=0,
        born=[f"{HOME}/model.py:22, in forward: `x + residual`: 3 of 32 values become infinite", NASTY],
        notes=["14 choices come out otherwise, most at argmax", NASTY],
        parameters={"embed.weight": 0.2, "blocks.0.fc.weight": 0.29, "blocks.0.fc.bias": 0.01},
        depth=[{"name": name, "error": errors[name]} for name in order],
        kept=kept("embed", "blocks.0", error=0.0007, runs=2),
    )  # fmt: skip


def big(modules=500):
    """A comparison of a large model: blocks of 10 modules, each with its share."""
    layers, parts = [], []
    for n in range(modules):
        block, place = divmod(n, 10)
        name = f"model.layers.{block}" + (f".part{place}" if place < 9 else "")
        share = (1 if n % 7 else -2) * (1 + n * 37 % 101) / 20_000
        layers.append(
            layer(name, "Linear", weights=share, arithmetic=share / 2, error=1e-4 * 1.012**n, saves=abs(share))
        )
        parts.append(part(name, 100 + n % 40, share, share / 2, source=f"hidden = self.part_{n % 40}(hidden)"))
    order = [{"name": row["name"], "error": row["error"]} for row in layers]
    return comparison(layers, parts, depth=order, kept=kept("model.layers.7", error=0.01, runs=5))
