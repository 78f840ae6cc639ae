"""nsqlookupd's options: defaults, flags, limits."""

import dataclasses
import io
import socket

import pytest

from nsqx.errors import ConfigError
from nsqx.flags import UsageError, VersionRequested
from nsqx.nsqlookupd.options import FLAGS, NsqlookupdOptions, options_from_argv, validate

S = 1_000_000_000


def options_of(*argv):
    return options_from_argv(argv, io.StringIO())


def test_defaults_are_those_of_nsq():
    assert options_of() == NsqlookupdOptions(
        log_level=2,
        log_prefix="[nsqlookupd] ",
        tcp_address="0.0.0.0:4160",
        http_address="0.0.0.0:4161",
        broadcast_address=socket.gethostname(),
        inactive_producer_timeout=300 * S,
        tombstone_lifetime=45 * S,
    )
    validate(NsqlookupdOptions())


def test_every_option_has_a_flag():
    assert {flag.key for flag in FLAGS if flag.in_config} == {
        field.name for field in dataclasses.fields(NsqlookupdOptions)
    }


def test_flags_override_the_file(tmp_path):
    config = tmp_path / "nsqlookupd.toml"
    config.write_text('tcp_address = "1.1.1.1:1"\nhttp_address = "2.2.2.2:2"\ntombstone_lifetime = 1500\n')
    options = options_of("-config", str(config), "--tcp-address=3.3.3.3:3", "-inactive-producer-timeout", "1h")
    assert (options.tcp_address, options.http_address) == ("3.3.3.3:3", "2.2.2.2:2")
    assert (options.tombstone_lifetime, options.inactive_producer_timeout) == (3 * S // 2, 3600 * S)


def test_an_unknown_key_of_the_file_is_logged(tmp_path):
    config = tmp_path / "nsqlookupd.toml"
    config.write_text("surprise = 1\n")
    stderr = io.StringIO()
    options_from_argv(["-config", str(config)], stderr)
    assert "[nsqlookupd] " in stderr.getvalue()
    assert 'unknown key "surprise" is ignored' in stderr.getvalue()


def test_an_unknown_flag_and_the_version_flag():
    with pytest.raises(UsageError, match="flag provided but not defined: -x\nUsage of nsqlookupd:"):
        options_of("-x")
    with pytest.raises(VersionRequested):
        options_of("-version")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"tcp_address": "/tmp/x.sock"}, r"listen \(/tmp/x.sock\) failed - .*missing port in address"),
        ({"http_address": "127.0.0.1:99999"}, r"listen \(127.0.0.1:99999\) failed - .*invalid port"),
        ({"inactive_producer_timeout": -1}, "--inactive-producer-timeout must not be negative"),
        ({"tombstone_lifetime": -1}, "--tombstone-lifetime must not be negative"),
    ],
)
def test_invalid_options_are_rejected(changes, text):
    with pytest.raises(ConfigError, match=text):
        validate(NsqlookupdOptions(**changes))


def test_an_empty_address_means_any_free_port():
    options = NsqlookupdOptions(tcp_address="", http_address="")
    validate(options)
    assert (options.tcp_address, options.http_address) == (":0", ":0")
