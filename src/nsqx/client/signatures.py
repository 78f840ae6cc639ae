"""Complete signatures for compiled classes, for ``help()`` and ``inspect.signature``.

Cython keeps the signatures of methods, but not those of constructors and not the return annotations of ``cpdef``
methods. Both are restored here, at no cost per call.
"""

from __future__ import annotations

import ast
import inspect
import os
import sys
from types import ModuleType
from typing import Any


def annotate_returns(owner: type, **annotations: str) -> None:
    """Set the return annotation of each named method."""
    for name, annotation in annotations.items():
        getattr(owner, name).__annotations__["return"] = annotation


class ConstructorSignature:
    """The ``__signature__`` attribute of a compiled class, read on demand from the source file beside the module.

    Raises AttributeError where Python finds the signature itself (the class is not compiled, or a subclass has its own
    constructor) and where the source file is missing.
    """

    def __get__(self, instance: object, owner: Any) -> inspect.Signature:
        defining = next(each for each in owner.__mro__ if each.__dict__.get("__signature__") is self)
        module = sys.modules[defining.__module__]
        directory, name = os.path.split(str(module.__file__))
        source = os.path.join(directory, f"{name.partition('.')[0]}.py")
        is_inherited = owner.__init__ is defining.__init__ and owner.__new__ is defining.__new__
        if source == module.__file__ or not is_inherited or not os.path.isfile(source):
            raise AttributeError("__signature__")
        return _read_signature(defining.__name__, source, module)


def _read_signature(class_name: str, source: str, module: ModuleType) -> inspect.Signature:
    """Return the signature of ``__init__`` without ``self``; an empty one if the class has no ``__init__``."""
    with open(source, encoding="utf-8") as file:
        tree = ast.parse(file.read())
    (class_node,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == class_name)
    for node in class_node.body:
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            break
    else:
        return inspect.Signature()
    # Define the function without its body: its default values are evaluated in the module, its annotations stay text.
    node.body = [ast.copy_location(ast.Pass(), node)]
    code = compile(ast.Module([node], []), source, "exec")
    namespace = dict(vars(module))
    exec(code, namespace)
    signature = inspect.signature(namespace["__init__"])
    return signature.replace(parameters=list(signature.parameters.values())[1:])
