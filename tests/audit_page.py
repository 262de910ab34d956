"""Reports as `AuditReport.to_dict()` has them, for the tests of the page: one that holds everything, and a big one."""

RULES = {
    "DG102": (
        "implicit-promotion",
        "An operation on two dtypes computes in the wider one. `float64` scalars from NumPy do it too.",
    ),
    "DG105": ("overflow-on-narrowing", "float16 ends at 65504: larger values become inf without a word."),
    "DG201": ("half-output", "What leaves an autocast region keeps the half dtype that it was computed in."),
    "DG501": (
        "narrowed-buffer",
        "`.to()` and `.half()` narrow buffers as well; frequencies and running statistics lose what they need.",
    ),
    "DG101": ("float64-creep", "NumPy's default is float64, and `from_numpy` keeps it."),
}
DOCS = "https://github.com/dtypeguard/dtypeguard/blob/main/docs/rules"
NASTY = "<script>alert('x')</script> \"quoted\" & ünïcødé 数据 {{ braces }} " + "verylongword" * 30


def place(file, line, function, source):
    return {
        "site": f"{file}:{line}, in {function}",
        "file": f"/home/ana/run/{file}",
        "line": line,
        "function": function,
        "source": source,
    }


def finding(rule, severity, message, where, module=None, op=None, dtypes=(None, None), **rest):
    return {
        "rule": rule,
        "name": RULES[rule][0],
        "severity": severity,
        "message": message,
        "fix": "",
        "module_path": module,
        "op": op,
        "from_dtype": dtypes[0],
        "to_dtype": dtypes[1],
        "count": 1,
        "bytes": 0,
        "origin": [],
        "parameters": [],
        "docs": f"{DOCS}/{rule}.md",
        **place(*where),
        **rest,
    }


def cast(kind, op, source, target, where, module=None, count=1, size=0, devices=("cpu", "cpu")):
    return {
        "kind": kind,
        "op": op,
        "from_dtype": source,
        "to_dtype": target,
        "from_device": devices[0],
        "to_device": devices[1],
        **place(*where),
        "module_path": module,
        "count": count,
        "bytes": size,
    }


def tensor(name, dtype, shape, device="cpu"):
    return {"name": name, "dtype": dtype, "device": device, "shape": shape}


def held(name, dtype, shape, size, kind="parameter", device="cpu"):
    return {**tensor(name, dtype, shape, device), "kind": kind, "bytes": size}


def module(path, kind, parameters=(), inputs=(), outputs=(), parent=None, calls=4):
    parent = parent if parent is not None else path.rpartition(".")[0] or None
    return {
        "path": path,
        "class": kind,
        "parent": parent,
        "calls": calls,
        "parameters": list(parameters),
        "inputs": list(inputs),
        "outputs": list(outputs),
    }


def report(findings=(), casts=(), modules=(), **rest):
    severities = {name: sum(f["severity"] == name for f in findings) for name in ("error", "warning", "info")}
    rules = {
        rule: {"name": name, "why": why, "docs": f"{DOCS}/{rule}.md"}
        for rule, (name, why) in RULES.items()
        if any(f["rule"] == rule for f in findings)
    }
    return {
        "schema": 1,
        "version": "0.1.0",
        "torch": "2.13.0+cpu",
        "program": "train.py",
        "command": "python -m dtypeguard audit train.py",
        "date": "2026-11-23T01:46:41+00:00",
        "error": None,
        "seconds": 1.234,
        "operations": 12345,
        "findings": list(findings),
        "casts": list(casts),
        "modules": list(modules),
        "rules": rules,
        "severities": severities,
        **grouped(findings),
        **rest,
    }


def grouped(findings, groups=()):
    """Causes and edits: those of the numbers of findings that are given, and each other finding by itself."""
    alone = [[n] for n in range(len(findings)) if not any(n in group for group in groups)]
    order = ("error", "warning", "info")
    members = sorted([*groups, *alone], key=lambda group: order.index(findings[group[0]]["severity"]))
    causes = [
        {
            "rule": findings[group[0]]["rule"],
            "severity": findings[group[0]]["severity"],
            "title": findings[group[0]]["message"],
            "count": sum(findings[n]["count"] for n in group),
            "where": findings[group[0]]["module_path"] if len(group) == 1 else f"Net.* ({len(group)} modules)",
            "findings": list(group),
        }
        for group in members
    ]
    edits = [
        {
            "place": (findings[cause["findings"][0]]["site"] or "").partition(",")[0],
            "fix": findings[cause["findings"][0]]["fix"],
            "removes": f"{len(cause['findings'])} {cause['severity']}{'s' * (len(cause['findings']) > 1)}",
            "causes": [n],
        }
        for n, cause in enumerate(causes)
        if cause["severity"] != "info"
    ]
    verdict = f"FAIL: {len(findings)} warnings, {len(edits)} lines to change" if edits else "Clean"
    return {"causes": causes, "edits": edits, "verdict": verdict}


def sample():
    """Everything that a report can hold."""
    rope = ("model.py", 88, "rotate", "    angles = positions.to(x.dtype) * self.freqs")
    step = ("train.py", 42, "step", "loss = criterion(model(batch), target)")
    load = ("data.py", 17, "load", "x = torch.from_numpy(rows)")
    findings = [
        finding(
            "DG201", "info", "the output of Net.head is bfloat16 outside of autocast", step, "Net.head", "aten.mm",
            ("bfloat16", "float32"), count=4, bytes=8192,
            fix="`logits.float()` before the loss, if it is to be float32",
        ),
        finding(
            "DG102",
            "warning",
            "bfloat16 * float64 computes in float64: 3 of 4 calls, 12 MiB more than in bfloat16",
            rope,
            "Net.blocks.0.rope",
            "aten.mul.Tensor",
            ("bfloat16", "float64"),
            count=3,
            bytes=12_582_912,
            fix="`self.freqs.to(x.dtype)`, or keep the table in float32",
            origin=[
                "from_numpy at data.py:17, in load: float64",
                "div at data.py:18, in load: float64",
                "a step that reads otherwise",
            ],
        ),
        finding(
            "DG105", "error", "17 of 4,096 values became inf: the largest is 70123.0, and float16 ends at 65504", step,
            "Net.head", "aten._to_copy", ("float32", "float16"), count=17, bytes=16384,
            fix="scale before the cast, or use `torch.bfloat16`", origin=["full at train.py:12, in main: float32"],
            parameters=[f"head.{n}.weight" for n in range(12)],
        ),
        finding(
            "DG501", "warning", "the buffer freqs was narrowed to bfloat16 by `.to()`", rope, "Net.blocks.0.rope", "to",
            ("float32", "bfloat16"), bytes=256, fix="keep it out of `.to()`, or recompute it in float32",
        ),
        finding(
            "DG101", "warning", NASTY, ("<b>.py", 1, "<lambda>", NASTY), "Net.<i>", "</dl><script>alert(1)</script>",
            ("float64", "float32"), fix=NASTY, origin=[NASTY, f"{NASTY} at {NASTY}: float64"], parameters=[NASTY],
        ),
    ]  # fmt: skip
    casts = [
        cast("explicit", "to", "float64", "float32", load, None, 64, 3_211_264),
        cast("promotion", "aten.mul.Tensor", "bfloat16", "float64", rope, "Net.blocks.0.rope", 3, 12_582_912),
        cast(
            "autocast", "aten.linear", "float32", "bfloat16", ("model.py", 60, "forward", "q = self.q(x)"),
            "Net.blocks.0.q", 4, 8192,
        ),
        cast(
            "backward", "aten.linear", "bfloat16", "float32", ("model.py", 9, "forward", "q = self.q(x)"),
            "Net.blocks.0.q", 4, 8192,
        ),
        cast(
            "device", "to", "float32", "float32", ("train.py", 40, "step", "batch = batch.cuda()"), None, 4, 802_816,
            ("cpu", "cuda:0"),
        ),
        cast("write", "aten.copy_", "float32", "float16", step, "Net.head", 1, 512),
        cast("explicit", "to", "int64", "float8_e4m3fn", ("<b>.py", 1, "<lambda>", NASTY), "Net.<i>", 1, 7),
    ]  # fmt: skip
    x, y = tensor("x", "float32", [8, 128, 256]), tensor("0", "bfloat16", [8, 128, 256])
    modules = [
        module(
            "Net", "Net", (), [tensor("tokens", "int64", [8, 128]), tensor("cond['mask']", "bool", [8, 128])],
            [tensor("0", "bfloat16", [8, 10])],
        ),
        module(
            "Net.embed", "Embedding", [held("weight", "float32", [32000, 256], 32_768_000)],
            [tensor("0", "int64", [8, 128])], [x],
        ),
        module("Net.blocks", "ModuleList"),
    ]  # fmt: skip
    for block in range(3):
        path = f"Net.blocks.{block}"
        modules += [module(path, "Block", (), [x], [y])]
        modules += [
            module(
                f"{path}.{part}", "Linear",
                [held("weight", "float32", [256, 256], 262_144), held("bias", "float32", [256], 1024)], [x], [y],
            )
            for part in ("q", "k", "v")
        ]  # fmt: skip
        modules.append(
            module(
                f"{path}.rope", "Rotary", [held("freqs", "bfloat16", [64], 128, "buffer")], [y],
                [tensor("0", "float64", [8, 128, 256])],
            )
        )  # fmt: skip
    modules += [
        module(
            "Net.experts", "Experts",
            [held(f"w{n}", "float8_e4m3fn", [64, 64], 4096, device="cuda:0") for n in range(40)], [y], [y],
        ),
        module(
            "Net.norm",
            "BatchNorm1d",
            [
                held("weight", "float32", [256], 1024),
                held("running_mean", "float16", [256], 512, "buffer"),
                held("num_batches_tracked", "int64", [], 8, "buffer"),
            ],
            [y],
            [y],
        ),
        module(
            "Net.head", "Linear", [held("weight", "float16", [10, 256], 5120), held("phase", "complex64", [10], 80)],
            [y], [y],
        ),
        module(
            "Net.<i>", "<script>alert(2)</script>", [held(NASTY, "<dtype>", [1], 1)], [tensor(NASTY, "uint8", [1])], []
        ),
        module("Loss", "CrossEntropyLoss", (), [y, tensor("1", "int64", [8])], [tensor("0", "float32", [])]),
    ]  # fmt: skip
    return report(findings, casts, modules, error=f"RuntimeError: mat1 and mat2 must have the same dtype\n  {NASTY}")


def marked(found, begin, end, label="", birth=None):
    """A finding that points at its code, and at the line where its dtype was born."""
    keys = ("file", "line", "function", "source")
    fault = {key: found[key] for key in keys} | {"begin": begin, "end": end, "label": label}
    if birth is None:
        return found | {"spots": [fault], "edit": fault}
    born = dict(zip(keys, birth, strict=True)) | {"begin": 4, "end": len(birth[-1]), "label": "float64 is born here"}
    return found | {"spots": [fault, born], "edit": born}


def repeated():
    """A finding in each of 508 modules that is one cause, one that is mended at another line, and mere information."""
    line = ("model.py", 14, "forward", "        hidden.to(torch.bfloat16)")
    rule, message = "DG105", "`hidden.to(torch.bfloat16)` gives a new tensor, and it is thrown away"
    found = [
        marked(finding(rule, "warning", message, line, f"Net.blocks.{n}", "to", ("float32", "bfloat16"),
                       fix="keep the result"), 8, 33)
        for n in range(508)
    ]  # fmt: skip
    loss = ("train.py", 29, "step", "    loss = mse(output, target)")
    birth = ("/home/ana/run/data.py", 7, "load", "    target = torch.from_numpy(rows)")
    text = "`mse(output, target)` mixes float64 and float32"
    found.append(
        marked(finding("DG101", "warning", text, loss, fix="convert it where it is born"), 11, 30, birth=birth)
    )
    found.append(finding("DG201", "info", "the output is bfloat16", loss))
    data = report(found, modules=[module("Net", "Net"), *(module(f"Net.blocks.{n}", "Block") for n in range(508))])
    return data | grouped(found, [range(508)])


def big(modules=2000, findings=500, casts=2000):
    """A report of a large program: blocks of 20 modules, findings and casts spread over them."""
    severities, rules = ("error", "warning", "info", "info"), tuple(RULES)
    floats = ("float32", "bfloat16", "float16", "float64")
    tree = [module("Net", "Transformer"), module("Net.layers", "ModuleList")]
    for n in range(modules - 2):
        block, part = divmod(n, 20)
        path = f"Net.layers.{block}" + (f".part{part}" if part else "")
        weights = (
            [held("weight", "bfloat16", [4096, 4096], 33_554_432), held("bias", "float32", [4096], 16_384)]
            if part
            else []
        )  # fmt: skip
        tree.append(
            module(
                path, "Linear" if part else "Block", weights, [tensor("0", "float32", [2, 4096])],
                [tensor("0", "bfloat16", [2, 4096])],
            )
        )  # fmt: skip
    paths = [m["path"] for m in tree]

    def where(n):
        return (
            f"model/layer{n % 40}.py",
            n,
            "forward",
            f"hidden = self.project_{n}(hidden.to(self.weight.dtype)) + residual",
        )  # fmt: skip

    return report(
        [
            finding(
                rules[n % 5], severities[n % 4], f"{n} of 4,096 values went through float64 in attention number {n}",
                where(n), paths[n * 7 % modules], "aten.mul.Tensor", (floats[n % 4], floats[(n + 1) % 4]), count=n + 1,
                bytes=n * 4096, fix="`hidden.to(self.weight.dtype)` once, before the loop",
                origin=[f"arange at model/layer{n % 40}.py:{n}, in forward: int64"] * 3,
            )
            for n in range(findings)
        ],
        [
            cast(
                ("explicit", "promotion", "autocast", "backward")[n % 4], "aten._to_copy", floats[n % 4],
                floats[(n + 3) % 4], where(n), paths[n % modules], n % 13 + 1, n * 1000,
            )
            for n in range(casts)
        ],
        tree,
    )  # fmt: skip
