"""An audit's report as one HTML page; its JavaScript only filters, sorts and switches between light and dark."""

import functools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..._core.base.dtypes import BY_NAME, TABLE, DtypeInfo, Kind
from ..._core.base.frames import shown
from ..._engine.watch.rule import RULES
from ..chips import chip, class_styles, rank
from ..document import document, markup
from ..fragment import drawn
from ..svg import Axis, Chart, Series
from ..text import human, limit, number
from .causes import tone
from .flow import flow_of
from .ranges import picture_of, range_of

if TYPE_CHECKING:
    from markupsafe import Markup

_PAGE = Path(__file__).parent / "page"
STYLE = _PAGE.with_suffix(".css")  # for pages that list findings too
SEVERITIES = ("error", "warning", "info")

_STEP = re.compile(r"(?P<what>.*) at (?P<site>.*): (?P<dtype>\w+)", re.DOTALL)
_CLOSED_FROM = 8  # of a longer list the rest is folded
_OPEN_MODULES = 40  # a tree up to this size is shown open
_DEEPEST = 12  # indentation stops here, or deep trees would leave a phone's width


def render(data: dict[str, Any]) -> str:
    """The page of a report, from `AuditReport.to_dict()`."""
    filters: dict[str, Callable[..., Any]] = {
        "chip": functools.cache(chip), "human": human, "steps": _steps, "shape": _shape, "tip": _tip, "kinds": _kinds,
        "marked": _marked, "elsewhere": _elsewhere, "shown": shown, "tone": tone,
        "often": _often, "course": lambda found: drawn(_course(found)),
    }  # fmt: skip
    depths = "".join(f".d{depth}{{--d:{depth}}}\n" for depth in range(_DEEPEST + 1))
    return document(_PAGE, {"data": data, **_view(data)}, filters, class_styles() + depths)


# --- what the template shows --------------------------------------------------------------------------------------


def _view(data: dict[str, Any]) -> dict[str, Any]:
    """What is worked out from the report: order, tree, sums."""
    ranks = {id(found): rank for rank, found in enumerate(data["findings"])}  # by which causes name them
    findings = sorted(data["findings"], key=lambda found: SEVERITIES.index(found["severity"]))
    numbers = {ranks[id(found)]: place for place, found in enumerate(findings)}
    casts = sorted(data["casts"], key=lambda cast: (-cast["bytes"], -cast["count"], cast["site"] or ""))
    findings = [f | {"id": f"f{n}", "docs": _link(f["docs"]), "flow": _flow(f)} for n, f in enumerate(findings)]
    casts = [cast | {"id": f"c{row}", "flow": (cast["from_dtype"], cast["to_dtype"])} for row, cast in enumerate(casts)]
    nodes, outside = _tree(data["modules"], findings, casts)
    causes = [
        _cause(cause, place, [findings[numbers[n]] for n in cause["findings"]])
        for place, cause in enumerate(data["causes"])
    ]
    return {
        "causes": causes,
        "edits": [edit | {"first": causes[edit["causes"][0]]["link"]} for edit in data["edits"]],
        "findings": findings,
        "casts": casts,
        "picture": drawn(flow_of(data) if any(module["calls"] for module in data["modules"]) else None),
        "ranges": drawn(picture_of([range_of(row) for row in data["ranges"]]) if data.get("ranges") else None),
        "nodes": nodes,
        "outside": outside,
        "rules": _rules(data["rules"], findings),
        "legend": _legend(data),
        "severities": [(name, data["severities"].get(name, 0)) for name in SEVERITIES],
        "totals": [(name, sum(cause["severity"] == name for cause in causes)) for name in SEVERITIES],
        "tests": _tests(data),
        "module_ids": {node["path"]: node["id"] for node in nodes},
        "fold": _CLOSED_FROM,
    }


def _flow(found: dict[str, Any]) -> tuple[str | None, str | None]:
    """The dtypes of a finding: two where the program converts the one to the other."""
    was, became, rule = found["from_dtype"], found["to_dtype"], RULES.get(found["rule"])
    converted = was != became and (rule is None or rule.converts)
    return (was, became) if was is None or converted else (was, None)


def _tests(data: dict[str, Any]) -> str | None:
    """`12 of 340 tests`: those in which something was found that is more than mere information; None for a program."""
    if data.get("tests") is None:
        return None
    bad = {test for found in data["findings"] if found["severity"] != "info" for test in found["seen_in"]}
    return f"{len(bad):,} of {number(data['tests'], 'test')}"


def _cause(cause: dict[str, Any], place: int, members: list[dict[str, Any]]) -> dict[str, Any]:
    """A cause with its findings; where it is one, its place on the page is that of the finding."""
    several, seen = len(members) > 1, cause.get("seen", "")
    members = [found | {"seen": "" if several else seen} for found in members]
    link = f"k{place}" if several else members[0]["id"]
    more = {"id": f"k{place}", "link": link, "seen": seen, "members": members, "first": members[0], "several": several}
    return cause | more


def _tree(modules: list[dict[str, Any]], findings: list[Any], casts: list[Any]) -> tuple[list[Any], dict[str, Any]]:
    """The modules in the order of the tree, each with what happened in it; and what happened in none of them."""
    nodes = {module["path"]: _node(module) for module in modules}
    outside = _node({"path": "", "class": "", "parent": None, "parameters": (), "inputs": (), "outputs": ()})
    for kind, things in (("findings", findings), ("casts", casts)):
        for thing in things:
            _nearest(nodes, thing["module_path"], outside)[kind].append(thing)
    ordered = list(_walk(nodes))
    # Children come after their parents, so each is complete when it is added to its parent.
    for node in reversed(ordered):
        _sum_up(node, nodes.get(node["parent"]) if node["depth"] else None)
    _sum_up(outside, None)
    small = len(ordered) <= _OPEN_MODULES
    troubled = sum(node["troubled"] for node in ordered) <= _OPEN_MODULES
    for node in (*ordered, outside):
        node["dtypes"] = sorted(node["dtypes"], key=lambda name: (rank(name), name))
        happened = node["children"] or node["casts"] or node["findings"]
        node["open"] = bool(node.get("depth") == 0 or (small and happened) or (troubled and node["troubled"]))
    return ordered, outside


def _node(module: dict[str, Any]) -> dict[str, Any]:
    dtypes = dict.fromkeys(_kinds(module["parameters"]))
    lists: dict[str, Any] = {"findings": [], "casts": [], "children": []}
    return module | lists | {"dtypes": dtypes, "held": 0, "moved": 0, "found": Counter(), "troubled": False}


def _nearest(nodes: dict[str, Any], path: str | None, outside: dict[str, Any]) -> Any:
    """The node called `path`, or the closest one around it."""
    while path:
        if path in nodes:
            return nodes[path]
        path = path.rpartition(".")[0]
    return outside


def _walk(nodes: dict[str, Any]) -> Iterator[Any]:
    """Depth first, without recursion: some models are deeper than Python's stack. Sets name, depth, what to close."""
    seen: set[str] = set()
    roots: list[Any] = []
    for path, node in nodes.items():
        parent = node["parent"]
        (nodes[parent]["children"] if parent in seen else roots).append(node)
        seen.add(path)
    stack = [(root, 0) for root in reversed(roots)]
    row = 0
    while stack:
        node, depth = stack.pop()
        above = f"{node['parent']}." if depth else ""
        name = node["path"].removeprefix(above) or "(root)"
        node |= {"id": f"m{row}", "depth": depth, "indent": min(depth, _DEEPEST), "name": name}
        stack += [(child, depth + 1) for child in reversed(node["children"])]
        node["closes"] = depth + 1 - (stack[-1][1] if stack else 0)
        row += 1
        yield node


def _sum_up(node: dict[str, Any], parent: dict[str, Any] | None) -> None:
    """Adds to a node what it holds itself, and the whole to its parent."""
    node["held"] += sum(tensor["bytes"] for tensor in node["parameters"])
    node["moved"] += sum(cast["bytes"] for cast in node["casts"])
    node["found"].update(found["severity"] for found in node["findings"])
    node["troubled"] |= any(severity in node["found"] for severity in SEVERITIES[:2])
    if parent is not None:
        parent["dtypes"] |= node["dtypes"]
        parent["held"] += node["held"]
        parent["moved"] += node["moved"]
        parent["found"] += node["found"]
        parent["troubled"] |= node["troubled"]


def _rules(rules: dict[str, Any], findings: list[Any]) -> list[dict[str, Any]]:
    counts = Counter(found["rule"] for found in findings)
    named = sorted(rules.items())
    return [rule | {"id": name, "count": counts[name], "docs": _link(rule["docs"])} for name, rule in named]


def _link(url: str | None) -> str | None:
    return url if url and url.startswith(("https://", "http://")) else None


# --- dtypes -------------------------------------------------------------------------------------------------------


def _legend(data: dict[str, Any]) -> list[dict[str, Any]]:
    """Every dtype of the report, in the table's order, with what it can hold and what of the model is in it."""
    held = Counter[str]()
    names: set[str | None] = set()
    for module in data["modules"]:
        for tensor in module["parameters"]:
            held[tensor["dtype"]] += tensor["bytes"]
        names |= {tensor["dtype"] for kind in ("parameters", "inputs", "outputs") for tensor in module[kind]}
    for thing in [*data["findings"], *data["casts"]]:
        names |= {thing["from_dtype"], thing["to_dtype"]}
    known = sorted((name for name in names if name), key=lambda name: (rank(name), name))
    return [{"dtype": name, "says": _says(name), "held": held[name]} for name in known]


def _says(dtype: str) -> str:
    """What a dtype holds, in a few words."""
    info = TABLE[BY_NAME[dtype]] if dtype in BY_NAME else None
    return "" if info is None else _HOLDS[info.kind](info)


def _range(info: DtypeInfo) -> str:
    size = f"{2**info.digits:,}" if info.digits <= 16 else f"2^{info.digits}"
    most = f"{2**info.digits - 1:,}" if info.digits <= 16 else f"{size} - 1"
    return f"{f'-{size}' if info.signed else '0'} to {most}"


def _precision(info: DtypeInfo) -> str:
    largest = 2.0**info.emax * (2 - 2.0 ** (1 - info.digits))
    return f"{info.digits} significant bits, up to {limit(largest)}"


_HOLDS: dict[Kind, Callable[[DtypeInfo], str]] = {
    Kind.BOOL: lambda info: "true or false",
    Kind.INT: _range,
    Kind.FLOAT: _precision,
    Kind.COMPLEX: lambda info: f"two parts of {_precision(info)}",
    Kind.STORAGE: lambda info: "for storage, not for arithmetic",
}


# --- filters ------------------------------------------------------------------------------------------------------


def _steps(origin: list[str]) -> list[dict[str, str]]:
    """`from_numpy at data.py:17, in load: float64` in its parts; what reads otherwise stays one text."""
    steps = ((_STEP.fullmatch(line), line) for line in origin)
    return [match.groupdict() if match else {"what": line, "site": "", "dtype": ""} for match, line in steps]


def _marked(spot: dict[str, Any]) -> "Markup":
    """A line of code, with what a finding points at marked, and without the indentation."""
    source, begin, end = spot["source"], spot["begin"], spot["end"]
    start = len(source) - len(source.lstrip())
    begin = max(begin, start)
    parts = (source[start:begin], source[begin:end], source[end:])
    marked = markup("<code>{}<mark>{}</mark>{}</code>").format(*parts)
    return marked if parts[1] else markup("<code>{}</code>").format(source.strip())


def _often(seen: dict[str, Any]) -> str:
    """How often a finding or a cause was seen; nothing where the count is one of looks."""
    rule = RULES.get(seen["rule"])
    return "" if rule is not None and rule.sampled else f"{seen['count']:,}"


def _elsewhere(found: dict[str, Any]) -> str:
    """`data.py:17`, where that is the line to edit and not the one that the finding is at."""
    spot = found.get("edit")
    if not spot or (spot["file"], spot["line"]) == (found["file"], found["line"]):
        return ""
    return f"{shown(spot['file'])}:{spot['line']}"


def _kinds(tensors: Iterable[dict[str, Any]]) -> list[str]:
    """The dtypes among tensors, each once."""
    return list(dict.fromkeys(tensor["dtype"] for tensor in tensors))


def _shape(sizes: list[Any]) -> str:
    return f"[{', '.join(str(size) for size in sizes)}]"


def _tip(thing: dict[str, Any]) -> str | None:
    """The whole path of a site."""
    return f"{thing['file']}:{thing['line']}" if thing["file"] else None


def _course(found: dict[str, Any]) -> Chart | None:
    """A total and its shadow, write by write, from the data of a finding; None where nothing was followed."""
    points: Sequence[Sequence[float]] = found.get("course") or ()
    if len(points) < 3:
        return None
    steps = [(float(write), moved, should) for write, moved, should in points]
    return Chart(
        f"how far the values of `{found['op']}` have moved",
        Axis("writes"),
        Axis("distance from where they began"),
        [
            Series([(write, should) for write, _, should in steps], f"in {found['to_dtype']}", "f0"),
            Series([(write, moved) for write, moved, _ in steps], f"in {found['from_dtype']}", "above"),
        ],
    )
