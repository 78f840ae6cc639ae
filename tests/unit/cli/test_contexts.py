"""The file of contexts, and the choice of one."""

import stat
from pathlib import Path

import pytest

from nsqx.cli.contexts import Context, ContextFile, chosen_context
from nsqx.errors import ConfigError


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CONFIG_HOME": str(tmp_path)}


def saved(environment: dict[str, str], current: str = "", **contexts: Context) -> Path:
    file = ContextFile(environment)
    file.contexts = contexts
    file.current = current
    file.save()
    return file.path


def test_what_is_saved_is_read_again(environment: dict[str, str]) -> None:
    context = Context(["a:1", "b:2"], [], [], "tok'en\"\\", "x", "s", tls_v1=True, tls_cert="/a b/ü.pem", tls_key="k")
    path = saved(environment, "prod", prod=context, other=Context(nsqd_tcp_addresses=["c:3"]))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [each.name for each in path.parent.iterdir()] == ["contexts.toml"]
    file = ContextFile(environment)
    assert (file.current, file.contexts["prod"]) == ("prod", context)
    assert list(file.contexts) == ["prod", "other"]
    assert file.contexts["prod"].shown["nsqd_http_token"] == "(set)"
    assert "tok" not in repr(file.contexts["prod"])


def test_without_a_file_there_are_no_contexts(environment: dict[str, str]) -> None:
    assert ContextFile(environment).contexts == {}
    assert chosen_context("", has_addresses=False, address_variables=("A",), environment=environment) is None
    home = ContextFile({"HOME": "/home/me"})
    assert home.path == Path("/home/me/.config/nsqx/contexts.toml")
    for missing in ({}, {"HOME": ""}, {"XDG_CONFIG_HOME": "relative"}):
        assert ContextFile(missing).path == Path.home() / ".config/nsqx/contexts.toml"


def test_the_choice_of_a_context(environment: dict[str, str]) -> None:
    one, two, three = (Context([f"{name}:1"]) for name in "abc")
    saved(environment, "one", one=one, two=two, three=three)

    def choice(name: str = "", *, has_addresses: bool = False, **more: str) -> Context | None:
        variables = ("NSQX_NSQD",)
        all_variables = {**environment, **more}
        return chosen_context(name, has_addresses=has_addresses, address_variables=variables, environment=all_variables)

    assert choice() == one
    assert choice(NSQX_NSQD="x:1") is None
    assert choice(NSQX_NSQD="x:1", NSQX_CONTEXT="two") == two
    assert choice("three", NSQX_CONTEXT="two") == three
    # The credentials of a context are not sent to addresses in flags, unless the context is named there too.
    assert choice(has_addresses=True, NSQX_CONTEXT="two") is None
    assert choice("three", has_addresses=True) == three
    with pytest.raises(ConfigError, match='no context is named "tow"; did you mean two'):
        choice("tow")
    with pytest.raises(ConfigError, match="the contexts are one, two, three"):
        choice(NSQX_CONTEXT="q")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("= 1", "invalid TOML"),
        ("current = 1", "current must be a name"),
        ("context = 1", "a table of tables"),
        ("[context]\na = 1", "context.a must be a table"),
        ("[context.a]\nlookupd = 'x'", "unknown key context.a.lookupd"),
        ("[context.a]\ntls_certt = 'x'", "did you mean tls_cert"),
        ("[context.a]\ntls_v1 = 'yes'", "invalid context.a.tls_v1: use a boolean"),
        ("[context.a]\nnsqd_tcp_addresses = 'x:1'", "use a list of strings"),
        ("[context.a]\nnsqd_tcp_addresses = [1]", "use a list of strings"),
    ],
)
def test_a_wrong_file_is_refused_by_its_name(environment: dict[str, str], text: str, message: str) -> None:
    path = saved(environment)
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        ContextFile(environment)
    assert str(path) in str(caught.value)


def test_tokens_that_others_can_read_are_refused(environment: dict[str, str]) -> None:
    path = saved(environment, a=Context(["x:1"], nsqd_http_token="secret"))
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="other users may read it: chmod 600"):
        ContextFile(environment)
    path.chmod(0o600)
    assert ContextFile(environment).get("a").nsqd_http_token == "secret"


def test_a_file_that_cannot_be_written_is_named(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "nsqx").write_text("a file where the directory should be")
    file = ContextFile({"XDG_CONFIG_HOME": str(tmp_path / "other")})
    file.path = tmp_path / "nsqx" / "contexts.toml"
    with pytest.raises(ConfigError, match="cannot write"):
        file.save()
