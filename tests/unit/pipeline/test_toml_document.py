"""TOML documents return values by name and type, and errors name the key."""

import pytest

from nsqx.errors import ConfigError
from nsqx.pipeline.toml_document import read_document


@pytest.fixture
def read(tmp_path):
    def read(text, overrides=None, **environment):
        path = tmp_path / "file.toml"
        path.write_text(text)
        return read_document(str(path), overrides, environment)

    return read


def error_of(call):
    with pytest.raises(ConfigError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value).rpartition("file.toml: ")[2]


def test_values_are_read_by_type(read):
    section = read('a = "x"\nb = ["x", "y"]\nc = 5\nd = true\ne = "1m30s"\n[f.g]\nh = 1').section("f").section("g")
    assert section.integer("h", 0) == 1
    document = read('a = "x"\nb = ["x", "y"]\nc = 5\nd = true\ne = "1m30s"')
    assert document.text("a") == "x"
    assert document.texts("a") == ("x",)
    assert document.texts("b") == ("x", "y")
    assert document.integer("c", 0) == 5
    assert document.flag("d") is True
    assert document.duration_ms("e") == 90_000
    assert document.text("missing", "default") == "default"
    document.end()


@pytest.mark.parametrize(
    ("text", "read_value", "expected"),
    [
        ("a = 1", lambda d: d.text("a"), "a: must be a text, not 1"),
        ('a = " "', lambda d: d.text("a"), "a: must not be empty"),
        ("", lambda d: d.text("a"), "a: required, but not set"),
        ("a = [1]", lambda d: d.texts("a"), "a: must be a text or a list of texts, not [1]"),
        ("a = true", lambda d: d.integer("a", 0), "a: must be an integer, not True"),
        ("a = 0", lambda d: d.integer("a", 0), "a: 0 is too small, use at least 1"),
        ("a = 1", lambda d: d.flag("a"), "a: must be true or false, not 1"),
        ('a = "5 weeks"', lambda d: d.duration_ms("a"), "a: '5 weeks' is not a duration such as 500ms, 30s or 1h"),
        ("a = 1", lambda d: d.section("a"), "a: must be a table, not 1"),
        ('a = "jso"', lambda d: d.choice("a", ["json", "csv"]), "a: invalid value 'jso': did you mean json?"),
        ("[a.b]\nc = [1]", lambda d: d.section("a").settings(), "a.b.c: must be a text, a number, true or false"),
    ],
)
def test_invalid_values_are_rejected(read, text, read_value, expected):
    assert error_of(lambda: read_value(read(text))) == expected


def test_unknown_keys_are_rejected(read):
    def read_value(text):
        section = read(text).section("sink")
        section.text("format", "json")
        section.end("a sink")

    assert (
        error_of(lambda: read_value("[sink]\nformt = 1")) == "sink.formt: unknown key of a sink: did you mean format?"
    )
    assert error_of(lambda: read_value("[sink]\nzzz = 1")) == "sink.zzz: unknown key of a sink: use one of format"


def test_settings_are_strings_with_their_full_names(read):
    section = read('[spark]\njars = "x"\nspark.sql.shuffle.partitions = 4\n"spark.x" = true').section("spark")
    assert section.texts("jars") == ("x",)
    assert section.settings() == {"spark.sql.shuffle.partitions": "4", "spark.x": "true"}
    section.end()


def test_environment_variables_are_replaced(read):
    document = read('a = "${HOME_OF}/x"\nb = ["${NONE:-y}"]', HOME_OF="/home")
    assert document.text("a") == "/home/x"
    assert document.texts("b") == ("y",)
    expected = error_of(lambda: read('[a]\nb = "${NONE}"'))
    assert expected == "a.b: environment variable NONE is not set: set it, or write ${NONE:-default}"


def test_overrides_replace_and_add_values(read):
    document = read("[a]\nb = 1", {"a.b": "2", "a.c": "/tmp/x", "d.e": "['x']"})
    assert document.section("a").integer("b", 0) == 2
    assert document.section("a").text("c") == "/tmp/x"
    assert document.section("d").texts("e") == ("x",)
    assert error_of(lambda: read("a = 1", {"a.b": "2"})) == "--set a.b: a is not a table"


def test_a_missing_file_and_invalid_toml_are_reported(read, tmp_path):
    assert error_of(lambda: read("a = = 1")).startswith("invalid TOML: ")
    with pytest.raises(ConfigError, match="No such file"):
        read_document(str(tmp_path / "none.toml"))
