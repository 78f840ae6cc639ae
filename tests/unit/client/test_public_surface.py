"""``dir()`` and ``help()`` show the public names and nothing else, whether the client is compiled or not."""

import importlib
import inspect
import pydoc

import pytest

import nsqx

MODULES = ("blocking", "codecs", "middlewares", "telemetry")
CLASSES = {
    f"{module.__name__}.{name}": value
    for module in (nsqx, *(importlib.import_module(f"nsqx.{name}") for name in MODULES))
    for name in module.__all__
    if inspect.isclass(value := getattr(module, name))
}

# What a program may use. A new name here is a promise; a name that is removed needs a line in CHANGELOG.md.
MEMBERS = {
    "nsqx.Producer": "close connected_addresses drain health is_connected last_error outstanding publish"
    " publish_deferred publish_many publish_timeout_s publisher start",
    "nsqx.Consumer": "batches channel connected_addresses health is_connected is_starved last_error max_in_flight"
    " options run start stats stop topic",
    "nsqx.Message": "answer_later attempts body error finish id is_answered is_detached is_lost log nsqd_address offset"
    " requeue timestamp touch value",
    "nsqx.Reader": "close health is_connected last_error positions read start topic",
    "nsqx.App": "health include is_connected lifespan producer publisher run start stop subscriber subscribers",
    "nsqx.TopicPublisher": "publish publish_deferred publish_many topic",
    "nsqx.blocking.Producer": "close health is_connected last_error publish publish_deferred publish_many publisher"
    " submit submit_many",
    "nsqx.blocking.Consumer": "close get health is_connected is_starved last_error run stats take",
}
OBJECTS = {
    "nsqx.Consumer": lambda: nsqx.Consumer("t", "c", print, nsqd_tcp_addresses="127.0.0.1:4150"),
    "nsqx.Producer": lambda: nsqx.Producer("127.0.0.1:4150"),
    "nsqx.Reader": lambda: nsqx.Reader("t", nsqd_http_addresses="127.0.0.1:4151"),
    "nsqx.App": lambda: nsqx.App("127.0.0.1:4150"),
    "nsqx.TopicPublisher": lambda: nsqx.Producer("127.0.0.1:4150").publisher("t", dict),
}


def public(names):
    return sorted(name for name in names if not name.startswith("_"))


def test_the_modules_show_what_they_export():
    assert public(dir(nsqx)) == sorted(name for name in nsqx.__all__ if not name.startswith("_"))
    for name in MODULES:
        module = importlib.import_module(f"nsqx.{name}")
        assert getattr(nsqx, name) is module
        assert public(dir(module)) == sorted(module.__all__)


@pytest.mark.parametrize("name", sorted(MEMBERS))
def test_an_object_shows_its_public_members(name):
    make = OBJECTS.get(name)
    assert public(dir(make() if make else CLASSES[name])) == MEMBERS[name].split()


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_help_shows_no_internals_and_everything_has_a_docstring(name):
    text = pydoc.plain(pydoc.render_doc(CLASSES[name]))
    assert "cython" not in text
    assert inspect.getdoc(CLASSES[name])
    for member in public(vars(CLASSES[name])):
        value = inspect.getattr_static(CLASSES[name], member)
        if isinstance(value, property) or inspect.isroutine(value):
            assert inspect.getdoc(value), f"{name}.{member}"


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_every_public_method_has_complete_annotations(name):
    for member in public(vars(CLASSES[name])):
        value = inspect.getattr_static(CLASSES[name], member)
        if not inspect.isroutine(value) or isinstance(value, classmethod):
            continue
        signature = inspect.signature(value)
        parameters = list(signature.parameters.values())[1:]
        assert all(each.annotation is not each.empty for each in parameters), f"{name}.{member}{signature}"
        assert signature.return_annotation is not signature.empty, f"{name}.{member}{signature}"
