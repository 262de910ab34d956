"""Names in one file: what they are called, where their values come from, what is changed in place."""

import functools
from collections.abc import Iterable, Iterator

import libcst as cst

from .source import Node, Scope, Text, argument

Given = tuple[cst.BaseExpression, int | None]  # a value, or the part of it by its number
_VIEWS = frozenset("detach view view_as reshape flatten ravel t transpose permute squeeze unsqueeze narrow".split())
_APART = frozenset("unbind chunk split tensor_split sort topk max min".split())  # methods that give several tensors
_VIEWS |= frozenset("select expand contiguous requires_grad_ values items enumerate zip reversed".split())


class Names(Text):
    """The names of one file, and the lines at which floats become wider, and at which integers become floats unsaid."""

    def __init__(
        self, file: str, text: str, widened: frozenset[int] = frozenset(), joined: frozenset[int] = frozenset()
    ) -> None:
        super().__init__(file, text)
        self.widened, self.joined = widened, joined

    @functools.cached_property
    def modules(self) -> dict[str, str]:
        """What the file's imports call modules and their parts: `{"F": "torch.nn.functional"}`."""
        code, found = self.module.code_for_node, dict[str, str]()
        for one in self.of(cst.Import):
            for alias in one.names:
                module = code(alias.name) if alias.asname else code(alias.name).partition(".")[0]
                found[code(alias.asname.name) if alias.asname else module] = module
        for part in self.of(cst.ImportFrom):
            for alias in () if isinstance(part.names, cst.ImportStar) else part.names:
                name = code(alias.asname.name) if alias.asname else code(alias.name)
                found[name] = f"{code(part.module) if part.module else ''}.{code(alias.name)}"
        return found

    def torch(self) -> str | None:
        """What the file calls torch."""
        return next((name for name, module in self.modules.items() if module == "torch"), None)

    def device(self) -> str:
        """The device type of the file's own autocast regions, as they say it."""
        calls = [call for call in self.of(cst.Call) if self.called(call) == "autocast" and call.args]
        return self.code(calls[0].args[0].value) if calls else '"cuda"'

    def called(self, call: Node) -> str:
        """The last name of what a call calls: `zeros` of `torch.zeros(3)`."""
        function = call.func if isinstance(call, cst.Call) else None
        name = function.attr if isinstance(function, cst.Attribute) else function
        return name.value if isinstance(name, cst.Name) else ""

    def on(self, call: Node) -> cst.BaseExpression | None:
        """What a method is called on; None for a function of a module, and for what is no call."""
        function = call.func if isinstance(call, cst.Call) else None
        if not isinstance(function, cst.Attribute):
            return None
        root = function.value
        while isinstance(root, cst.Attribute):
            root = root.value
        return None if isinstance(root, cst.Name) and root.value in self.modules else function.value

    def parameters(self, node: Node) -> list[str]:
        """The positional parameters of the function that a node is in."""
        function = self.scope(node)
        return [one.name.value for one in function.params.params] if isinstance(function, cst.FunctionDef) else []

    def default(self, node: Node, name: str) -> str:
        """The default of a parameter of the function that a node is in, as it is written."""
        found = self.default_node(node, name)
        return "" if found is None else self.code(found)

    def default_node(self, node: Node, name: str) -> cst.BaseExpression | None:
        function = self.scope(node)
        params = function.params.params if isinstance(function, cst.FunctionDef) else ()
        return next((one.default for one in params if one.name.value == name), None)

    def receiver(self, node: Node) -> str:
        """What the method that a node is in calls the object that it is called on."""
        functions = (one for one in self.up(node) if isinstance(one, cst.FunctionDef))
        method = next((one for one in functions if isinstance(self.scope(one), cst.ClassDef)), None)
        first = () if method is None else method.params.params[:1]
        bound = method is not None and not any(self.code(one.decorator) == "staticmethod" for one in method.decorators)
        return first[0].name.value if first and bound else "self"

    def of_self(self, node: Node) -> bool:
        """Whether a node is an attribute of that object."""
        owner = node.value if isinstance(node, cst.Attribute) else None
        return isinstance(owner, cst.Name) and owner.value in ("self", self.receiver(node))

    def others(self, node: Node) -> list[str]:
        """The arguments of the function that a node is in."""
        return [name for name in self.parameters(node) if name not in ("self", "cls", self.receiver(node))]

    def definitions(self, name: Node) -> list[cst.BaseExpression]:
        """Where the value of a name, an attribute or an entry comes from, in this file, the nearest first.

        What is assigned to it before it is used, and elsewhere; for an argument what is passed, and its default; for
        what a function of the file returns, that.
        """
        found = [*self._set(name), *self._passed(name)]
        if isinstance(name, cst.Attribute):
            found += self.registered(name.attr.value)
        behind = [(value, part, list(self._returned(value, part))) for value, part in found]
        kept = [(value, part) for value, part, returned in behind if part is None or not returned]  # else it is a tuple
        values = [value if part is None else self._whole(value) for value, part in kept]
        values += [value for _, _, returned in behind for value in returned]
        return [value for value in values if not self.inside(name, value)]  # `total = total + x`: what it was before

    def _set(self, name: Node) -> list[Given]:
        code, scope, key = self._bare(name), self.scope(name), self._key(name)
        place = self.range(name).start
        rows: list[tuple[bool, tuple[int, int], Given]] = []
        for target, given, where in self._assigned.get(code, ()):
            if where is scope or self.inside(scope, where) or not isinstance(name, cst.Name):
                start = self.range(target).start
                near = where is scope and (start.line, start.column) < (place.line, place.column)
                rows.append((near, (start.line, start.column), given))
        rows.sort(key=lambda row: row[:2], reverse=True)
        entries = [one for one in self.of(cst.DictElement) if isinstance(one.key, cst.SimpleString)]
        keyed = [(e.value, None) for e in entries if key is not None and getattr(e.key, "evaluated_value", None) == key]
        return [*(given for _, _, given in rows), *keyed]

    def _passed(self, name: Node) -> list[Given]:
        """What calls in the file pass for the argument that a name is."""
        function = self.scope(name)
        if not isinstance(function, cst.FunctionDef) or not isinstance(name, cst.Name):
            return []
        params = [*function.params.params, *function.params.kwonly_params]
        names = [param.name.value for param in params]
        if name.value not in names:
            return []
        found: list[Given] = []
        place, bound = names.index(name.value), names[:1] in (["self"], ["cls"])
        for call in self.of(cst.Call):
            if self.called(call) == function.name.value:
                by_name = argument(call, name.value)
                by_place = [arg for arg in call.args if not arg.keyword and not arg.star][place - bound :][:1]
                found += [(arg.value, None) for arg in ([by_name] if by_name else by_place)]
        default = params[place].default
        return found if default is None else [*found, (default, None)]

    def _whole(self, value: cst.BaseExpression) -> cst.BaseExpression:
        """The tensor of which an expression gives parts."""
        return (self.on(value) if self.called(value) in _APART else None) or value

    def _returned(self, value: Node, part: int | None) -> Iterator[cst.BaseExpression]:
        """What the function of the file returns that an expression calls."""
        name = self.called(value)
        for function in self.of(cst.FunctionDef) if name else ():
            if function.name.value == name:
                for one in self.below(function, cst.Return):
                    whole = one.value
                    parts = [element.value for element in whole.elements] if isinstance(whole, cst.Tuple) else []
                    if part is not None and part < len(parts):
                        yield parts[part]
                    elif whole is not None:
                        yield whole

    def is_read(self, name: cst.Name) -> bool:
        """Whether what is assigned to a variable at a place is read later, and is the function's own."""
        scope, begin = self.scope(name), self.extent(name)[1]
        own = [target for target, _, where in self._assigned.get(name.value, ()) if where is scope]
        params = [*scope.params.params, *scope.params.kwonly_params] if isinstance(scope, cst.FunctionDef) else []
        if not own and name.value not in [param.name.value for param in params] and not isinstance(scope, cst.Module):
            return False
        loops = [one for one in self.up(name) if isinstance(one, cst.For | cst.While)]
        drawn = [one for one in loops if isinstance(one, cst.For) and name.value in self._drawn(one)]
        ends = [self.extent(drawn[0])[1]] if drawn else []  # a loop draws it anew
        around = [(self.extent(one)[0], self._assigned_anew(one, own, begin)) for one in loops if one not in drawn]
        until = min([*ends, len(self.text)])
        for one in self.of(cst.Name):
            at, parent = self.extent(one)[0], self.parents[one]
            keyword = isinstance(parent, cst.Arg) and parent.keyword is one
            read = (
                one.value == name.value and one is not name and not keyword and not isinstance(parent, cst.AssignTarget)
            )
            if (
                read
                and self.inside(one, scope)
                and (begin <= at < until or any(first <= at < last for first, last in around))
            ):
                return True
        return False

    def _assigned_anew(self, loop: cst.For | cst.While, targets: Iterable[Node], end: int) -> int:
        """Where each round of a loop has assigned one of these targets; else the end."""
        statements = map(self.statement, targets)
        return min([end, *(self.extent(one)[1] for one in statements if self.parents[one] is loop.body)])

    def is_over(self, node: Node) -> bool:
        """Whether it is a function's own variable of what a call has made, and nobody reads that any more."""
        scope = self.scope(node)
        if not isinstance(scope, cst.FunctionDef) or not isinstance(node, cst.Name):
            return False
        made = [value for _, (value, _), where in self._assigned.get(node.value, ()) if where is scope]
        return bool(made) and all(isinstance(one, cst.Call) for one in made) and not self.is_read(node)

    def _drawn(self, loop: cst.For) -> list[str]:
        return [one.value for one in self.below(loop.target, cst.Name)]

    def call_behind(self, name: Node) -> cst.Call | None:
        """The call that made what a name holds, behind functions of the file."""
        functions = {function.name.value for function in self.of(cst.FunctionDef)}
        calls = [value for value in self.definitions(name) if isinstance(value, cst.Call)]
        return next((call for call in calls if self.called(call) not in functions), None)

    def _bare(self, node: Node) -> str:
        return self.module.code_for_node(node.with_changes(lpar=(), rpar=()) if hasattr(node, "lpar") else node)

    @staticmethod
    def _key(node: Node) -> object:
        """The constant key of `batch["image"]`."""
        index = node.slice[0].slice if isinstance(node, cst.Subscript) and len(node.slice) == 1 else None
        value = index.value if isinstance(index, cst.Index) else None
        return value.evaluated_value if isinstance(value, cst.SimpleString) else None

    def is_entry(self, node: Node) -> bool:
        """Whether it reads an entry by a constant name."""
        return self._key(node) is not None

    def registered(self, name: str) -> list[Given]:
        """What is registered as a buffer or parameter under a name."""
        kinds = ("register_buffer", "register_parameter")
        rows = [[arg.value for arg in call.args[:2]] for call in self.of(cst.Call) if self.called(call) in kinds]
        named = [row for row in rows if len(row) == 2 and isinstance(row[0], cst.SimpleString)]
        return [(value, None) for key, value in named if getattr(key, "evaluated_value", None) == name]

    def buffers(self, name: str) -> list[Node]:
        """Where a buffer of this name is registered, also by `self.name = nn.Buffer(...)`, or by a variable for it."""
        assigned = [one for one in self.of(cst.Assign) if self.called(one.value) == "Buffer"]
        own: list[Node] = [one.value for one in assigned if self.code(one.targets[0].target) == f"self.{name}"]
        found = [*own, *(value for value, _ in self.registered(name))]
        if found:
            return found
        reads = [one for one in self.of(cst.Attribute) if self.code(one) == f"self.{name}"]
        classes = {one for read in reads for one in self.up(read) if isinstance(one, cst.ClassDef)}
        calls = [call for call in self.of(cst.Call) if self.called(call) == "register_buffer" and call.args]
        calls = [call for call in calls if not isinstance(call.args[0].value, cst.SimpleString)]
        return [call for call in calls if not classes.isdisjoint(self.up(call))]

    @functools.cached_property
    def written(self) -> frozenset[str]:
        """The variables whose values are changed in place."""
        functions = [one for one in self.of(cst.Call) if self.called(one).endswith("_") and self.on(one) is None]
        given = [name for call in functions for arg in call.args for name in self.below(arg, cst.Name)]
        return frozenset(map(self.root, [*self._targets, *given]))

    @functools.cached_property
    def holders(self) -> tuple[list[str], list[str]]:
        """For each write in place, in the order of the text, the variable whose memory it reaches.

        `self.shadow` for `s.mul_(0.9)` behind `s = self.shadow[name]`, but `s` behind `s = self.shadow[name].float()`,
        which is a copy. And the same for what calls pass to a function of the file that writes to it.
        """
        changed: dict[str, list[int]] = {}  # by function: which arguments it writes to
        for function in self.of(cst.FunctionDef):
            own = {self._holder(one) for one in self._targets if self.scope(one) is function}
            names = [param.name.value for param in function.params.params]
            places = [number for number, name in enumerate(names) if name in own and name not in ("self", "cls")]
            changed[function.name.value] = [place - (names[:1] == ["self"]) for place in places]
        given = [
            call.args[place].value for call in self.of(cst.Call) for place in changed.get(self.called(call), ())
            if place < len(call.args)
        ]  # fmt: skip
        return [self._holder(one) for one in sorted(self._targets, key=self.extent)], [*map(self._holder, given)]

    @property
    def _targets(self) -> list[Node]:
        """What is written to in place."""
        found: list[Node] = [one.target for one in self.of(cst.AugAssign)]
        found += [one.target for one in self.of(cst.AssignTarget) if isinstance(one.target, cst.Subscript)]
        for call in self.of(cst.Call):
            receiver, out = self.on(call), argument(call, "out")
            found += [] if out is None else [out.value]
            if receiver is not None and self.called(call).endswith("_") and not self.called(call).startswith("_"):
                found.append(receiver)
        return found

    def _holder(self, node: Node, seen: tuple[Node, ...] = ()) -> str:
        """The variable whose memory an expression shares; nothing, for what is computed."""
        if isinstance(node, cst.Subscript):
            return self._holder(node.value, seen)
        if isinstance(node, cst.Call):
            inner = self.on(node) or (node.args[0].value if node.args else None)
            shares = self.called(node) in _VIEWS or self.called(node).endswith("_")
            return self._holder(inner, seen) if shares and inner is not None else ""
        if isinstance(node, cst.BaseSimpleComp):
            return self._holder(node.elt, seen)
        if isinstance(node, cst.Attribute) and node.attr.value in ("data", "T", "mT", "grad", "real"):
            return self._holder(node.value, seen)
        if not isinstance(node, cst.Name):
            return self.code(node) if isinstance(node, cst.Attribute) else ""
        before = self.range(node).start
        for value, _ in self._set(node)[:1]:
            place = self.range(value).start
            if value not in seen and (place.line, place.column) < (before.line, before.column):
                return self._holder(value, (*seen, value)) or node.value
        return node.value

    def root(self, node: Node) -> str:
        """The variable that an expression is a part of: `average` of `average[name].mul_(0.9)`, `self.mean`."""
        while True:
            inner: Node | None = self.on(node)
            if isinstance(node, cst.Subscript) or (isinstance(node, cst.Attribute) and not self.of_self(node)):
                inner = node.value
            if inner is None:
                return self.code(node)
            node = inner

    def shared(self, value: Node) -> bool:
        """Whether what an expression gives is changed in place later, so that it must stay a copy."""
        parent = next((one for one in self.up(value) if isinstance(one, cst.Assign)), None)
        return parent is not None and any(self.root(target.target) in self.written for target in parent.targets)

    @functools.cached_property
    def _assigned(self) -> dict[str, list[tuple[Node, Given, Scope]]]:
        rows: list[tuple[Node, Given]] = []
        for node in self.nodes:
            if isinstance(node, cst.Assign):
                rows += [pair for target in node.targets for pair in _pairs(target.target, node.value)]
            elif isinstance(node, cst.For | cst.CompFor):
                rows += _pairs(node.target, node.iter)
            elif isinstance(node, cst.AnnAssign | cst.NamedExpr) and node.value is not None:
                rows.append((node.target, (node.value, None)))
        found: dict[str, list[tuple[Node, Given, Scope]]] = {}
        for target, given in rows:
            found.setdefault(self._bare(target), []).append((target, given, self.scope(target)))
        return found


def _pairs(target: Node, value: cst.BaseExpression) -> Iterator[tuple[Node, Given]]:
    """Each target of an assignment, and what it gets: an expression, or a part of it."""
    if isinstance(target, cst.Tuple | cst.List):
        ones = [element.value for element in target.elements]
        others = [element.value for element in value.elements] if isinstance(value, cst.Tuple | cst.List) else []
        for number, one in enumerate(ones):
            if len(others) == len(ones):
                yield from _pairs(one, others[number])
            else:
                yield one, (value, number)
    else:
        yield target, (value, None)
