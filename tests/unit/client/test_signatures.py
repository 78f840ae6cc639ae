"""``inspect.signature`` and ``help()`` show the signatures of the source, whether the client is compiled or not."""

import ast
import importlib
import inspect
import pydoc
from pathlib import Path

import pytest

import nsqx

PACKAGE = Path(nsqx.__file__).parent
KINDS = inspect.Parameter


def source_node(value):
    """Return the syntax tree of a class or function from its source file."""
    node = ast.parse((PACKAGE / Path(*value.__module__.split(".")[1:])).with_suffix(".py").read_text())
    for name in value.__qualname__.split("."):
        # The last one of overloads is the implementation.
        *_, node = (each for each in node.body if getattr(each, "name", "") == name)
    return node


def constructor(value):
    """Return the syntax tree of the ``__init__`` of a class, or None."""
    return next((each for each in source_node(value).body if getattr(each, "name", "") == "__init__"), None)


def public_callables():
    """Return every public function, method, and class with an ``__init__``, by name."""
    found = {}
    pending = {f"nsqx.{name}": getattr(nsqx, name) for name in nsqx.__all__}
    while pending:
        name, value = pending.popitem()
        if inspect.ismodule(value) or inspect.isclass(value):
            members = {f"{name}.{key}": each for key, each in vars(value).items() if not key.startswith("_")}
            home = "nsqx.client" if inspect.ismodule(value) else value.__module__
            pending |= {
                key: each for key, each in members.items() if str(getattr(each, "__module__", "")).startswith(home)
            }
        if inspect.isclass(value) and constructor(value) is None:
            continue
        if callable(value):
            found[name] = value
    return found


CALLABLES = public_callables()


def parameters_in_source(function):
    """Return the name, kind, annotation text and default of each parameter."""
    arguments = function.args
    plain = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(plain) - len(arguments.defaults)) + arguments.defaults
    rows = [(argument, KINDS.POSITIONAL_OR_KEYWORD, default) for argument, default in zip(plain, defaults, strict=True)]
    rows += [(arguments.vararg, KINDS.VAR_POSITIONAL, None)] if arguments.vararg else []
    rows += [
        (argument, KINDS.KEYWORD_ONLY, default)
        for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    ]
    rows += [(arguments.kwarg, KINDS.VAR_KEYWORD, None)] if arguments.kwarg else []
    return [(argument.arg, kind, unparsed(argument.annotation), default) for argument, kind, default in rows]


def unparsed(node):
    return "" if node is None else ast.unparse(node)


def text_of(annotation):
    """Return the text of an annotation. ``from __future__ import annotations`` keeps annotations as text."""
    if annotation is KINDS.empty:
        return ""
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def test_the_client_is_covered():
    assert {"nsqx.Producer", "nsqx.Producer.publish", "nsqx.Message.finish", "nsqx.Consumer"} <= set(CALLABLES)
    assert {"nsqx.blocking.Producer", "nsqx.read_option_flags", "nsqx.PublishFailed"} <= set(CALLABLES)


@pytest.mark.parametrize("name", sorted(CALLABLES))
def test_a_signature_equals_the_source(name):
    value = CALLABLES[name]
    signature = inspect.signature(value)
    function = constructor(value) if inspect.isclass(value) else source_node(value)
    expected = parameters_in_source(function)[inspect.isclass(value) :]
    assert [(each.name, each.kind, text_of(each.annotation)) for each in signature.parameters.values()] == [
        row[:3] for row in expected
    ]
    names = vars(importlib.import_module(value.__module__))
    assert [each.default for each in signature.parameters.values()] == [
        KINDS.empty if default is None else eval(ast.unparse(default), dict(names)) for *_, default in expected
    ]
    assert text_of(signature.return_annotation) == unparsed(function.returns)


def test_the_constructor_of_a_message_has_no_parameters():
    assert not inspect.signature(nsqx.Message).parameters


def test_a_subclass_has_the_signature_of_its_own_or_inherited_constructor():
    class Same(nsqx.Producer):
        pass

    class Other(nsqx.Producer):
        def __init__(self, name):
            super().__init__(name)

    assert inspect.signature(Same) == inspect.signature(nsqx.Producer)
    assert list(inspect.signature(Other).parameters) == ["name"]


def test_help_shows_signatures_and_docstrings():
    text = pydoc.plain(pydoc.render_doc(nsqx.Producer))
    assert "max_outstanding: 'int' = 16384, " in text
    assert (
        "publish(self, topic: 'str', body: 'bytes', timeout: 'Duration | None' = None, seq: 'int | None' = None)"
        in text
    )
    assert str(nsqx.Producer.publish.__doc__).partition("\n")[0] in text
    assert str(nsqx.Message.requeue.__doc__).partition("\n")[0] in pydoc.plain(pydoc.render_doc(nsqx.Message))
