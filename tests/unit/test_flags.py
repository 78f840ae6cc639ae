"""Go's flag syntax, the usage text, and the priority of flag, configuration file and default."""

import io

import pytest

from nsqx.errors import ConfigError
from nsqx.flags import (
    BOOL,
    DURATION,
    FLOAT,
    FLOATS,
    INT,
    LOG_LEVEL,
    STRING,
    STRINGS,
    TLS_REQUIREMENT,
    TLS_VERSION,
    Flag,
    UsageError,
    VersionRequested,
    load_config,
    parse,
    read_options,
    resolve,
    usage,
)

FLAGS = [
    Flag("version", BOOL, False, "print the version", in_config=False),
    Flag("config", STRING, "", "configuration file", in_config=False),
    Flag("log-level", LOG_LEVEL, 2, "level"),
    Flag("log-prefix", STRING, "[it] ", "prefix"),
    Flag("name", STRING, "", "a name"),
    Flag("fast", BOOL, True, "be fast"),
    Flag("count", INT, 10, "how many"),
    Flag("share", FLOAT, 1.0, "how much"),
    Flag("wait", DURATION, 60_000_000_000, "how long"),
    Flag("peer", STRINGS, [], "who", "peer_addresses"),
    Flag("quantile", FLOATS, [], "which"),
    Flag("tls", TLS_REQUIREMENT, 0, "need TLS"),
    Flag("tls-min", TLS_VERSION, 0x0301, "oldest TLS"),
]
DEFAULTS = {
    "log_level": 2,
    "log_prefix": "[it] ",
    "name": "",
    "fast": True,
    "count": 10,
    "share": 1.0,
    "wait": 60_000_000_000,
    "peer_addresses": [],
    "quantile": [],
    "tls": 0,
    "tls_min": 0x0301,
}


def given(*argv):
    return parse(FLAGS, argv, "it").given


@pytest.mark.parametrize(
    ("argv", "values"),
    [
        ([], {}),
        (["-name", "x"], {"name": "x"}),
        (["--name", "x"], {"name": "x"}),
        (["-name=x"], {"name": "x"}),
        (["--name=a=b"], {"name": "a=b"}),
        (["-name="], {"name": ""}),
        (["-name", ""], {"name": ""}),
        (["-name", "-count", "-count", "3"], {"name": "-count", "count": 3}),
        (["-name", "--", "-count", "3"], {"name": "--", "count": 3}),
        (["-count", "0x10"], {"count": 16}),
        (["-count=-1_000"], {"count": -1000}),
        (["-count", "1", "-count", "2"], {"count": 2}),
        (["-share", "0.25"], {"share": 0.25}),
        (["-wait", "1m30s"], {"wait": 90_000_000_000}),
        (["-fast"], {"fast": True}),
        (["-fast=false"], {"fast": False}),
        (["-fast=T"], {"fast": True}),
        (["-fast=0"], {"fast": False}),
        (["-peer", "a", "-peer=b,c"], {"peer": ["a", "b,c"]}),
        (["-quantile", "0.5,1", "-quantile", "0.9"], {"quantile": [1.0, 0.9, 0.5]}),
        (["-log-level", "WARN"], {"log-level": 3}),
        (["-tls"], {"tls": 2}),
        (["-tls=TRUE"], {"tls": 2}),
        (["-tls=f"], {"tls": 0}),
        (["-tls=TCP-https"], {"tls": 1}),
        (["-tls-min", "TLS1.3"], {"tls-min": 0x0304}),
        (["-tls-min="], {"tls-min": 0x0301}),
        (["-tls-min", "tls1.2", "-tls-min", ""], {"tls-min": 0x0303}),
    ],
)
def test_a_value_is_parsed_by_the_kind_of_its_flag(argv, values):
    assert given(*argv) == values


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--", "-count", "1"], ["-count", "1"]),
        (["word", "-count", "1"], ["word", "-count", "1"]),
        (["-", "-count", "1"], ["-", "-count", "1"]),
        (["", "-count", "1"], ["", "-count", "1"]),
        (["-fast", "false", "-count", "1"], ["false", "-count", "1"]),
    ],
)
def test_flags_end_at_two_dashes_or_at_a_word(argv, words):
    line = parse(FLAGS, argv, "it")
    assert line.words == words
    assert "count" not in line.given


def test_given_list_values_are_not_added_to_the_default():
    given("-peer", "a", "-quantile", "1")
    assert given("-peer", "b") == {"peer": ["b"]}


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["-x"], "flag provided but not defined: -x"),
        (["--x=3"], "flag provided but not defined: -x"),
        (["-fast", "-x", "-y"], "flag provided but not defined: -x"),
        (["---name"], "bad flag syntax: ---name"),
        (["-=3"], "bad flag syntax: -=3"),
        (["--="], "bad flag syntax: --="),
        (["-count"], "flag needs an argument: -count"),
        (["-count", "abc"], 'invalid value "abc" for flag -count: parse error'),
        (["-count="], 'invalid value "" for flag -count: parse error'),
        (
            ["-count", "99999999999999999999"],
            'invalid value "99999999999999999999" for flag -count: value out of range',
        ),
        (["-share", "x"], 'invalid value "x" for flag -share: parse error'),
        (["-wait", "5"], 'invalid value "5" for flag -wait: parse error'),
        (["-wait", 'a"b'], r'invalid value "a\"b" for flag -wait: parse error'),
        (["-wait", "\udcff"], r'invalid value "\xff" for flag -wait: parse error'),
        (["-fast=maybe"], 'invalid boolean value "maybe" for -fast: parse error'),
        (["-fast=tRUE"], 'invalid boolean value "tRUE" for -fast: parse error'),
        (
            ["-tls=Maybe"],
            'invalid boolean value "Maybe" for -tls: strconv.ParseBool: parsing "maybe": invalid syntax',
        ),
        (["-tls-min", "ssl3.0"], 'invalid value "ssl3.0" for flag -tls-min: unknown tlsVersionOption "ssl3.0"'),
        (
            ["-log-level", "x"],
            "invalid value \"x\" for flag -log-level: invalid log level 'x' (debug, info, warn, error, fatal)",
        ),
    ],
)
def test_errors_have_the_text_of_go(argv, message):
    with pytest.raises(UsageError) as caught:
        given(*argv)
    assert str(caught.value) == message + "\n" + usage(FLAGS, "it")
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("argv", [["-h"], ["--help"], ["-help=1"], ["-h=x"], ["-fast", "-h", "-x"]])
def test_help_prints_the_usage_text_and_exits_with_0(argv):
    with pytest.raises(UsageError) as caught:
        given(*argv)
    assert str(caught.value) == usage(FLAGS, "it")
    assert caught.value.exit_code == 0


@pytest.mark.parametrize(("text", "item"), [("abc", "abc"), ("0.5,", ""), ("0.5,x,1", "x"), ("1e999", "1e999")])
def test_a_bad_number_in_a_list_is_a_configuration_error(text, item):
    with pytest.raises(ConfigError) as caught:
        given("-quantile", text)
    assert str(caught.value) == f"Could not parse: {item}"


def test_a_declared_flag_h_is_not_help():
    flags = [Flag("h", BOOL, False, "hours")]
    assert parse(flags, ["-h"], "it").given == {"h": True}


def test_usage_text():
    flags = [
        Flag("q", BOOL, False, "quiet"),
        Flag("n", INT, 0, "how many"),
        *FLAGS,
        Flag("size", INT, 0, "largest `bytes` of a file\nand more"),
        Flag("tick", STRING, "a\tb", "one ` stays"),
    ]
    assert usage(flags, "it") == (
        "Usage of it:\n"
        "  -config string\n    \tconfiguration file\n"
        "  -count int\n    \thow many (default 10)\n"
        "  -fast\n    \tbe fast (default true)\n"
        "  -log-level value\n    \tlevel (default INFO)\n"
        '  -log-prefix string\n    \tprefix (default "[it] ")\n'
        "  -n int\n    \thow many\n"
        "  -name string\n    \ta name\n"
        "  -peer value\n    \twho\n"
        "  -q\tquiet\n"
        "  -quantile value\n    \twhich\n"
        "  -share float\n    \thow much (default 1)\n"
        "  -size bytes\n    \tlargest bytes of a file\n    \tand more\n"
        '  -tick string\n    \tone ` stays (default "a\\tb")\n'
        "  -tls\n    \tneed TLS\n"
        "  -tls-min value\n    \toldest TLS (default tls1.0)\n"
        "  -version\n    \tprint the version\n"
        "  -wait duration\n    \thow long (default 1m0s)\n"
    )


def test_the_usage_text_shows_defaults_of_lists():
    flags = [Flag("peer", STRINGS, ["a", "b"], "who"), Flag("quantile", FLOATS, [1.0, 0.5], "which")]
    assert usage(flags, "it") == (
        "Usage of it:\n"
        "  -peer value\n    \twho (default a,b)\n"
        "  -quantile value\n    \twhich (default 1.000000,0.500000)\n"
    )


def test_an_option_that_is_not_given_has_its_default():
    assert resolve(FLAGS, {}, {}) == (DEFAULTS, [])


def test_each_result_has_its_own_copy_of_a_default_list():
    resolve(FLAGS, {}, {}).values["peer_addresses"].append("x")
    assert resolve(FLAGS, {}, {}).values["peer_addresses"] == []


def test_a_flag_overrides_the_file_and_the_file_overrides_the_default():
    values = resolve(FLAGS, {"count": 1}, {"count": 2, "name": "file"}).values
    assert values == {**DEFAULTS, "count": 1, "name": "file"}


def test_an_invalid_value_in_the_file_is_ignored_if_the_flag_is_given():
    assert resolve(FLAGS, {"count": 1}, {"count": "bad"}).values["count"] == 1


def test_unknown_keys_are_returned():
    config = {"count": 1, "peer": ["a"], "bogus": 1, "version": True, "table": {"count": 5}}
    assert resolve(FLAGS, {}, config).unknown_keys == ["peer", "bogus", "version", "table"]


@pytest.mark.parametrize(
    ("key", "value", "option"),
    [
        ("name", "x", "x"),
        ("fast", False, False),
        ("fast", 0, False),
        ("fast", 1, True),
        ("fast", "f", False),
        ("count", 12, 12),
        ("count", -12, -12),
        ("count", "12", 12),
        ("share", 0.5, 0.5),
        ("share", 2, 2.0),
        ("share", " 0.5", 0.5),
        ("wait", "1.5s", 1_500_000_000),
        ("wait", 1500, 1_500_000_000),
        ("peer_addresses", ["a", "b, c"], ["a", "b, c"]),
        ("peer_addresses", "a, b", ["a", "b"]),
        ("peer_addresses", "", []),
        ("peer_addresses", [], []),
        ("quantile", [0.5, 0.99], [0.5, 0.99]),
        ("quantile", [1, 0.99], [1.0, 0.99]),
        ("quantile", "0.5, 1", [0.5, 1.0]),
        ("quantile", ["0.5", " 1"], [0.5, 1.0]),
        ("log_level", "Debug", 1),
        ("tls", True, 2),
        ("tls", 0, 0),
        ("tls", "tcp-https", 1),
        ("tls_min", "tls1.2", 0x0303),
        ("tls_min", "", 0x0301),
    ],
)
def test_a_value_of_the_file_is_converted_by_the_kind_of_its_flag(key, value, option):
    resolved = resolve(FLAGS, {}, {key: value}).values[key]
    assert resolved == option
    assert type(resolved) is type(option)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("name", 5, "failed parsing name 5 - must be a string"),
        ("fast", 2, "failed parsing fast 2 - must be true or false"),
        ("fast", 1.0, "failed parsing fast 1.0 - must be true or false"),
        ("fast", "maybe", "failed parsing fast maybe - must be true or false"),
        ("count", 1.5, "failed parsing count 1.5 - must be an integer"),
        ("count", True, "failed parsing count true - must be an integer"),
        ("count", "0x12", "failed parsing count 0x12 - must be an integer"),
        ("count", [1], "failed parsing count [1] - must be an integer"),
        ("count", 1 << 63, "failed parsing count 9223372036854775808 - value out of range"),
        ("share", "x", "failed parsing share x - must be a number"),
        ("share", False, "failed parsing share false - must be a number"),
        ("share", 10**400, None),
        ("wait", "5", 'failed parsing wait 5 - time: missing unit in duration "5"'),
        ("wait", 1.5, 'failed parsing wait 1.5 - must be a duration like "250ms" or an integer of milliseconds'),
        ("wait", True, 'failed parsing wait true - must be a duration like "250ms" or an integer of milliseconds'),
        ("wait", 1 << 62, "failed parsing wait 4611686018427387904 - value out of range"),
        ("peer_addresses", 5, "failed parsing peer_addresses 5 - must be a list of strings"),
        ("peer_addresses", [1], "failed parsing peer_addresses [1] - must be a list of strings"),
        ("quantile", 0.5, "failed parsing quantile 0.5 - must be a list of numbers"),
        ("quantile", ["x"], "failed parsing quantile ['x'] - must be a number"),
        ("quantile", "0.5,x", "failed parsing quantile 0.5,x - must be a number"),
        (
            "log_level",
            "loud",
            "failed parsing log_level loud - invalid log level 'loud' (debug, info, warn, error, fatal)",
        ),
        ("log_level", 3, "failed parsing log_level 3 - invalid log level '3' (debug, info, warn, error, fatal)"),
        ("tls", "maybe", 'failed parsing tls maybe - strconv.ParseBool: parsing "maybe": invalid syntax'),
        ("tls_min", 5, 'failed parsing tls_min 5 - unknown tlsVersionOption "5"'),
        ("count", "a\nb", r'failed parsing count "a\nb" - must be an integer'),
    ],
)
def test_an_invalid_value_in_the_file_gives_an_error_of_one_line(key, value, message):
    with pytest.raises(ConfigError) as caught:
        resolve(FLAGS, {}, {key: value})
    assert "\n" not in str(caught.value)
    assert message is None or str(caught.value) == message


def test_load_config_returns_the_keys_of_the_file(tmp_path):
    path = tmp_path / "it.toml"
    path.write_text('count = 5\npeer_addresses = ["a"]\n')
    assert load_config(str(path)) == {"count": 5, "peer_addresses": ["a"]}


def test_load_config_fails_if_the_file_is_missing(tmp_path):
    path = tmp_path / "none.toml"
    with pytest.raises(ConfigError) as caught:
        load_config(str(path))
    assert str(caught.value) == f"failed to load config file {path} - open {path}: no such file or directory"


@pytest.mark.parametrize("content", [b"broken", b"a = 1\na = 2\n", b"a = '\xff'\n"])
def test_load_config_fails_if_the_file_is_not_toml(tmp_path, content):
    path = tmp_path / "it.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load_config(str(path))
    assert str(caught.value).startswith(f"failed to load config file {path} - toml: ")
    assert "\n" not in str(caught.value)


def test_read_options_combines_argv_and_file(tmp_path):
    path = tmp_path / "it.toml"
    path.write_text('count = 5\nname = "file"\n')
    stderr = io.StringIO()
    values = read_options(FLAGS, ["-config", str(path), "-name", "flag"], "it", stderr)
    assert values == {**DEFAULTS, "count": 5, "name": "flag"}
    assert stderr.getvalue() == ""


def test_read_options_warns_of_unknown_keys_and_stray_words(tmp_path):
    path = tmp_path / "it.toml"
    path.write_text("bogus = 5\n")
    stderr = io.StringIO()
    values = read_options(FLAGS, ["-config", str(path), "-tls", "false", "-count", "5"], "it", stderr)
    assert values == {**DEFAULTS, "tls": 2}
    warnings = [line.split(" ", 3)[3] for line in stderr.getvalue().splitlines()]
    assert warnings == [
        f'WARNING: config file {path}: unknown key "bogus" is ignored',
        'WARNING: flags end at "false": this word and the words after it are ignored',
    ]


def test_read_options_does_not_log_below_the_log_level():
    stderr = io.StringIO()
    read_options(FLAGS, ["-log-level", "error", "word"], "it", stderr)
    assert stderr.getvalue() == ""


def test_the_version_flag_is_handled_before_the_file_is_read():
    with pytest.raises(VersionRequested):
        read_options(FLAGS, ["-version", "-config", "/nonexistent/it.toml", "word"], "it", io.StringIO())


def test_an_invalid_flag_after_version_is_an_error():
    with pytest.raises(UsageError):
        read_options(FLAGS, ["-version", "-x"], "it", io.StringIO())


def test_version_can_be_set_to_false():
    assert read_options(FLAGS, ["-version=false"], "it", io.StringIO()) == DEFAULTS
