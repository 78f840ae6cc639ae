"""The ``.pxd`` of a hot module declares what its ``.py`` defines. Cython does not report all differences."""

import ast
import re
from dataclasses import dataclass, field
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
SOURCE = PROJECT / "src"


def hot_modules():
    for node in ast.parse((PROJECT / "setup.py").read_text()).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "HOT_MODULES":
            return ast.literal_eval(node.value)
    raise AssertionError("setup.py has no HOT_MODULES")


HOT_MODULES = hot_modules()

# Modules that are not compiled. Their .pxd has inline C functions for compiled modules, the .py the same in Python.
WRITTEN_TWICE = ["nsqx.queues.checksums", "nsqx.queues.log.heads", "nsqx.wire.byteops", "nsqx.wire.encode"]


@dataclass
class Shape:
    """The declarations of a module: attributes by class, arguments by function (``Class.method`` or ``function``)."""

    attributes: dict[str, set[str]] = field(default_factory=dict)
    arguments: dict[str, list[str]] = field(default_factory=dict)
    variables: set[str] = field(default_factory=set)


def path_of(module, suffix):
    return SOURCE / (module.replace(".", "/") + suffix)


def python_shape(text):
    shape = Shape()
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef):
            for statement in node.body:
                if isinstance(statement, ast.FunctionDef):
                    shape.arguments[f"{node.name}.{statement.name}"] = argument_names(statement)
                elif isinstance(statement, ast.Assign) and statement.targets[0].id == "__slots__":
                    shape.attributes[node.name] = set(ast.literal_eval(statement.value))
        elif isinstance(node, ast.FunctionDef):
            shape.arguments[node.name] = argument_names(node)
        elif isinstance(node, ast.Assign):
            shape.variables.update(target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign):
            shape.variables.add(node.target.id)
    return shape


def argument_names(function):
    arguments = function.args
    return [argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]


FUNCTION = re.compile(
    r"(?:cpdef|cdef)\s+(?:inline\s+)?(?:unsigned\s+)?(?:[\w.]+\s+\**)?(?P<name>\w+)\s*\((?P<arguments>[^)]*)\)"
)
ATTRIBUTE = re.compile(r"cdef\s+(?:public\s+|readonly\s+)?(?:unsigned\s+)?[\w.]+(?:\[[:\d]+\])?\s+(?P<name>\w+)$")
CLASS = re.compile(r"cdef\s+class\s+(?P<name>\w+)")


def declared_shape(text):
    shape = Shape()
    owner = ""
    for line in logical_lines(text):
        declaration = line.strip()
        if not declaration or declaration.startswith(("@", "cimport", "from ")):
            continue
        if not line.startswith(" "):
            owner = ""
        if match := CLASS.match(declaration):
            owner = match["name"]
            shape.attributes[owner] = set()
        elif match := FUNCTION.match(declaration):
            names = [
                argument.split("=")[0].split()[-1] for argument in match["arguments"].split(",") if argument.strip()
            ]
            shape.arguments[f"{owner}.{match['name']}" if owner else match["name"]] = names
        elif match := ATTRIBUTE.match(declaration):
            (shape.attributes[owner] if owner else shape.variables).add(match["name"])
        else:
            raise AssertionError(f"unknown declaration: {declaration}")
    return shape


def logical_lines(text):
    """Yield the lines without comments. Lines within parentheses are joined."""
    joined = ""
    for line in text.splitlines():
        joined += (" " if joined else "") + (line.strip() if joined else line.rstrip()).partition("#")[0]
        if joined.count("(") == joined.count(")"):
            yield joined.rstrip()
            joined = ""


def test_the_list_in_setup_py_is_found():
    assert "nsqx.wire.commands" in HOT_MODULES
    assert len(HOT_MODULES) == len(set(HOT_MODULES))


@pytest.mark.parametrize("module", HOT_MODULES)
def test_a_hot_module_has_both_files(module):
    assert path_of(module, ".py").is_file()
    assert path_of(module, ".pxd").is_file()


@pytest.mark.parametrize("module", HOT_MODULES)
def test_slots_are_the_declared_attributes(module):
    python = python_shape(path_of(module, ".py").read_text())
    declared = declared_shape(path_of(module, ".pxd").read_text())
    assert declared.attributes or declared.arguments
    for name, attributes in declared.attributes.items():
        assert python.attributes[name] == attributes, name


@pytest.mark.parametrize("module", HOT_MODULES)
def test_every_class_with_slots_is_declared(module):
    python = python_shape(path_of(module, ".py").read_text())
    declared = declared_shape(path_of(module, ".pxd").read_text())
    assert set(python.attributes) == set(declared.attributes)


@pytest.mark.parametrize("module", HOT_MODULES)
def test_arguments_have_the_same_names(module):
    python = python_shape(path_of(module, ".py").read_text())
    declared = declared_shape(path_of(module, ".pxd").read_text())
    for name, arguments in declared.arguments.items():
        assert python.arguments.get(name) == arguments, name


@pytest.mark.parametrize("module", HOT_MODULES)
def test_typed_variables_are_assigned(module):
    python = python_shape(path_of(module, ".py").read_text())
    declared = declared_shape(path_of(module, ".pxd").read_text())
    assert declared.variables <= python.variables


def test_every_other_pxd_belongs_to_a_module_written_twice():
    hot = {path_of(module, ".pxd") for module in HOT_MODULES}
    assert set(SOURCE.rglob("*.pxd")) - hot == {path_of(module, ".pxd") for module in WRITTEN_TWICE}


@pytest.mark.parametrize("module", WRITTEN_TWICE)
def test_a_module_written_twice_has_the_same_functions_in_both(module):
    python = python_shape(path_of(module, ".py").read_text())
    declared = {
        match["name"]: [argument.split()[-1] for argument in match["arguments"].split(",")]
        for match in FUNCTION.finditer(path_of(module, ".pxd").read_text())
        if not match["name"].startswith(("_", "nsqx_"))
    }
    assert declared == python.arguments


def test_differences_are_found():
    python = python_shape(
        "_LIMIT = 1\nclass A:\n    __slots__ = ('x', 'y')\n    def f(self, one, *, two): ...\ndef g(a): ...\n"
    )
    declared = declared_shape(
        "cimport cython\n"
        "cdef int _LIMIT\n"
        "@cython.final\n"
        "cdef class A:\n"
        "    cdef readonly unsigned int x  # a comment\n"
        "    @cython.locals(\n"
        "        z=int\n"
        "    )\n"
        "    cpdef int f(self, int one, object two=*) except -1\n"
        "cpdef bytes g(bytes b)\n"
    )
    assert (python.attributes, declared.attributes) == ({"A": {"x", "y"}}, {"A": {"x"}})
    assert python.arguments == {"A.f": ["self", "one", "two"], "g": ["a"]}
    assert declared.arguments == {"A.f": ["self", "one", "two"], "g": ["b"]}
    assert python.variables == declared.variables == {"_LIMIT"}
