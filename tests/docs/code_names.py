"""The names that the package defines, read from its source without importing it.

Owns what counts as a name: modules, classes, functions with their parameters, members of classes, constants, string
literals and the texts of messages. It does not know how the documentation writes them.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef
Documented = ast.Module | ast.ClassDef | Function

HOLE = "\0"
"""The character that replaces a replacement field in the text of an f-string."""

_PXD_NAME = re.compile(r"^\s*(?:c?p?def\b|ctypedef\b).*?(\w+)\s*(?:\(|$|=|:|,)", re.MULTILINE)


@dataclass(frozen=True)
class Signature:
    """The parameters of one function, without ``self`` and ``cls``."""

    parameters: tuple[str, ...]
    defaults: tuple[tuple[str, str], ...]
    """The optional parameters, each with the source of its default."""
    takes_any: bool
    """True if the function has ``*args`` or ``**kwargs``."""

    @property
    def required(self) -> tuple[str, ...]:
        """The parameters that every call must pass."""
        optional = dict(self.defaults)
        return tuple(name for name in self.parameters if name not in optional)


@dataclass(frozen=True)
class Docstring:
    """One docstring, and the names that are in scope there: parameters, members, names of the module."""

    where: str
    text: str
    scope: frozenset[str]


@dataclass
class Module:
    """One source file."""

    path: Path
    name: str
    """The dotted name, such as ``nsqx.net.router``."""
    tree: ast.Module

    @cached_property
    def names(self) -> set[str]:
        """The names at the top level: definitions, constants and imports."""
        found: set[str] = set()
        for node in _statements(self.tree.body):
            found |= _bound_names(node)
        return found


@dataclass
class Code:
    """Every name of a package."""

    root: Path
    """The folder of the package."""
    modules: list[Module] = field(default_factory=list)

    @classmethod
    def read(cls, root: Path) -> "Code":
        """Parse every module below ``root``."""
        modules = []
        for path in sorted(root.rglob("*.py")):
            parts = [root.name, *path.relative_to(root).with_suffix("").parts]
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            modules.append(Module(path, name, ast.parse(path.read_text(encoding="utf-8"))))
        return cls(root, modules)

    @cached_property
    def classes(self) -> dict[str, list[ast.ClassDef]]:
        """All classes by name."""
        found: dict[str, list[ast.ClassDef]] = {}
        for node in self._nodes:
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(node)
        return found

    @cached_property
    def functions(self) -> dict[str, list[Signature]]:
        """The signatures of all functions and methods by name; a class has the signature of its constructor."""
        found: dict[str, list[Signature]] = {}
        for node in self._nodes:
            if isinstance(node, Function):
                found.setdefault(node.name, []).append(_signature(node))
            elif isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(_constructor(node))
        return found

    @cached_property
    def definitions(self) -> set[str]:
        """The unqualified names of all modules, classes, functions, methods, attributes and constants."""
        found = set(self.functions)
        for module in self.modules:
            found |= set(module.name.split(".")) | module.names
        for name in self.classes:
            found |= self.members(name)
        for path in self.root.rglob("*.pxd"):
            found |= set(_PXD_NAME.findall(path.read_text(encoding="utf-8")))
        return found

    @cached_property
    def enum_values(self) -> set[str]:
        """The members of enumerations, in lower case as in the documentation and the APIs."""
        classes = [node for nodes in self.classes.values() for node in nodes]
        enums = [node for node in classes if any(ast.unparse(base).endswith("Enum") for base in node.bases)]
        return {name.lower() for node in enums for name in _own_members(node)}

    @cached_property
    def parameters(self) -> set[str]:
        """The parameters of all public functions and methods."""
        public = [signatures for name, signatures in self.functions.items() if not name.startswith("_")]
        return {name for signatures in public for signature in signatures for name in signature.parameters}

    @cached_property
    def literals(self) -> set[str]:
        """Every string and bytes literal, except docstrings."""
        found = set()
        for node in self._nodes:
            if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes) and id(node) not in self._docs:
                found.add(node.value if isinstance(node.value, str) else node.value.decode("latin-1"))
        return found

    @cached_property
    def texts(self) -> list[str]:
        """Every string literal and f-string, with HOLE in place of each replacement field."""
        found = list(self.literals)
        for node in self._nodes:
            if isinstance(node, ast.JoinedStr):
                parts = [str(part.value) if isinstance(part, ast.Constant) else HOLE for part in node.values]
                found.append("".join(parts))
        return found

    def members(self, class_name: str) -> set[str]:
        """Return the methods and attributes of all classes with this name, also inherited ones."""
        found: set[str] = set()
        waiting, seen = [class_name], set()
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            for node in self.classes.get(name, ()):
                found |= _own_members(node)
                waiting += [ast.unparse(base).split("[")[0].split(".")[-1] for base in node.bases]
        return found

    def defines(self, path: str, name: str) -> bool:
        """Return True if the module at ``path``, below the package, defines ``name``, which may be ``Class.method``."""
        module = next((each for each in self.modules if each.path == self.root / path), None)
        if module is None:
            return False
        places: list[Documented] = [module.tree]
        for part in name.split("."):
            places = [each for place in places for each in _nested(place) if each.name == part]
        return bool(places)

    def docstrings(self) -> Iterator[Docstring]:
        """Yield the docstrings of modules, classes, functions and attributes."""
        for module in self.modules:
            yield from self._docstrings(module.tree, module, module.names | _all_parameters(module.tree), module.name)

    def _docstrings(self, node: Documented, module: Module, scope: set[str], where: str) -> Iterator[Docstring]:
        for text in _docs_of(node):
            yield Docstring(where, text, frozenset(scope | _drawn_words(text)))
        outer = module.names if isinstance(node, ast.Module) else scope
        for child in _nested(node):
            names = set(outer) | {child.name}
            if isinstance(child, ast.ClassDef):
                names |= self.members(child.name) | _all_parameters(child)
            else:
                names |= set(_signature(child).parameters) | _returned_names(child)
            yield from self._docstrings(child, module, names, f"{where}.{child.name}")

    @cached_property
    def _nodes(self) -> list[ast.AST]:
        return [node for module in self.modules for node in ast.walk(module.tree)]

    @cached_property
    def _docs(self) -> set[int]:
        """The ids of the nodes that are docstrings."""
        found = set()
        for node in self._nodes:
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                found.add(id(node.value))
        return found


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a body and of its ``if``, ``try`` and ``with`` blocks."""
    for node in body:
        yield node
        for name in ("body", "orelse", "finalbody"):
            if isinstance(node, ast.If | ast.Try | ast.With):
                yield from _statements(getattr(node, name, []))
        if isinstance(node, ast.Try):
            for handler in node.handlers:
                yield from _statements(handler.body)


def _bound_names(node: ast.stmt) -> set[str]:
    """Return the names that one statement defines."""
    if isinstance(node, ast.ClassDef | Function):
        return {node.name}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return {leaf.id for target in targets for leaf in ast.walk(target) if isinstance(leaf, ast.Name)}
    if isinstance(node, ast.TypeAlias) if hasattr(ast, "TypeAlias") else False:
        return {node.name.id}
    return set()


def _own_members(node: ast.ClassDef) -> set[str]:
    found: set[str] = set()
    for statement in _statements(node.body):
        found |= _bound_names(statement)
    for leaf in ast.walk(node):
        if isinstance(leaf, ast.Attribute) and isinstance(leaf.ctx, ast.Store) and ast.unparse(leaf.value) == "self":
            found.add(leaf.attr)
    return found


def _signature(node: Function) -> Signature:
    arguments = node.args
    positional = [*arguments.posonlyargs, *arguments.args]
    names = [each.arg for each in (*positional, *arguments.kwonlyargs)]
    defaults = dict(zip((each.arg for each in reversed(positional)), reversed(arguments.defaults), strict=False))
    for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        if default is not None:
            defaults[each.arg] = default
    if names and names[0] in ("self", "cls"):
        names = names[1:]
    extra = [each.arg for each in (arguments.vararg, arguments.kwarg) if each]
    sources = {name: ast.unparse(default) for name, default in defaults.items()}
    return Signature((*names, *extra), tuple({**sources, **dict.fromkeys(extra, "")}.items()), takes_any=bool(extra))


def _constructor(node: ast.ClassDef) -> Signature:
    """Return the signature of ``__init__``, or of the fields of a dataclass or NamedTuple."""
    for statement in node.body:
        if isinstance(statement, Function) and statement.name == "__init__":
            return _signature(statement)
    fields = [
        (each.target.id, each.value)
        for each in node.body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    ]
    defaults = tuple((name, ast.unparse(value)) for name, value in fields if value is not None)
    return Signature(tuple(name for name, _ in fields), defaults, takes_any=False)


def _all_parameters(node: ast.AST) -> set[str]:
    """Return the parameters of every function inside ``node``."""
    return {name for each in ast.walk(node) if isinstance(each, Function) for name in _signature(each).parameters}


def _returned_names(node: Function) -> set[str]:
    """Return the variables in the return statements of a function: ``first`` and ``last`` of ``return first, last``."""
    returned = [each.value for each in ast.walk(node) if isinstance(each, ast.Return) and each.value is not None]
    return {leaf.id for value in returned for leaf in ast.walk(value) if isinstance(leaf, ast.Name)}


def _nested(node: Documented) -> Iterator[ast.ClassDef | Function]:
    for statement in _statements(node.body):
        if isinstance(statement, ast.ClassDef | Function):
            yield statement


def _drawn_words(text: str) -> set[str]:
    """Return the words of the indented lines of a docstring. They draw a layout and define its fields."""
    drawn = [line for line in text.splitlines() if line.startswith("      ")]
    return {word for line in drawn for word in re.findall(r"\w+", line)}


def _docs_of(node: Documented) -> Iterator[str]:
    """Yield the strings that are statements of ``node``, without those of its nested definitions."""
    for statement in _statements(node.body):
        value = statement.value if isinstance(statement, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield value.value
