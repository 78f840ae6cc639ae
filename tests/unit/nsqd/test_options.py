"""nsqd's options: defaults, flags, limits and GET /config."""

import dataclasses
import io

import pytest

from nsqx.errors import ConfigError
from nsqx.flags import UsageError, VersionRequested
from nsqx.nsqd import options as options_module
from nsqx.nsqd.options import (
    FLAGS,
    NsqdOptions,
    config_value,
    default_node_id,
    expand_statsd_prefix,
    options_from_argv,
    validate,
)

S = 1_000_000_000

# GET /config of a Go nsqd 1.3.0 that was started without flags, without the values that depend on the host.
GO_DEFAULTS = {
    "log_level": 2,
    "log_prefix": "[nsqd] ",
    "tcp_address": "0.0.0.0:4150",
    "http_address": "0.0.0.0:4151",
    "https_address": "0.0.0.0:4152",
    "broadcast_tcp_port": 0,
    "broadcast_http_port": 0,
    "nsqlookupd_tcp_addresses": [],
    "auth_http_addresses": [],
    "http_client_connect_timeout": 2 * S,
    "http_client_request_timeout": 5 * S,
    "data_path": "",
    "mem_queue_size": 10000,
    "max_bytes_per_file": 104857600,
    "sync_every": 2500,
    "sync_timeout": 2 * S,
    "queue_scan_selection_count": 20,
    "queue_scan_worker_pool_max": 4,
    "msg_timeout": 60 * S,
    "max_msg_timeout": 900 * S,
    "max_msg_size": 1048576,
    "max_body_size": 5242880,
    "max_req_timeout": 3600 * S,
    "max_heartbeat_interval": 60 * S,
    "max_rdy_count": 2500,
    "max_output_buffer_size": 65536,
    "max_output_buffer_timeout": 30 * S,
    "min_output_buffer_timeout": 25_000_000,
    "output_buffer_timeout": 250_000_000,
    "max_channel_consumers": 0,
    "statsd_address": "",
    "statsd_prefix": "nsq.%s",
    "statsd_interval": 60 * S,
    "statsd_mem_stats": True,
    "statsd_udp_packet_size": 508,
    "statsd_exclude_ephemeral": False,
    "e2e_processing_latency_window_time": 600 * S,
    "e2e_processing_latency_percentiles": [],
    "tls_cert": "",
    "tls_key": "",
    "tls_client_auth_policy": "",
    "tls_root_ca_file": "",
    "tls_required": 0,
    "deflate": True,
    "max_deflate_level": 6,
    "snappy": True,
}
LATER_DEFAULTS = {
    "tls_min_version": 771,
    "auth_http_request_method": "get",
    "topology_region": "",
    "topology_zone": "",
    "enable_experiment": [],
    "enable_debug_endpoints": False,
    "metrics_per_client": False,
    "shutdown_timeout": 10 * S,
    "shutdown_reserve": 16 * 1024 * 1024,
    "max_connections": 0,
    "max_connections_per_ip": 0,
    "mem_queue_bytes": 0,
    "lookupd_tls": False,
    "lookupd_http_token_file": "",
    "http_publish_token_file": "",
    "http_read_token_file": "",
    "http_consume_token_file": "",
    "http_admin_token_file": "",
    "http_client_cert_groups": [],
    "http_browser_checks": True,
    "allowed_hosts": [],
    "store": "classic",
    "store_rules": [],
    "durability": "fsync",
    "log_memory": 128 * 1024 * 1024,
    "commit_bytes": 64 * 1024 * 1024,
    "min_free_disk": 256 * 1024 * 1024,
    "log_retain_age": 0,
    "log_retain_bytes": 0,
    "log_max_age": 0,
    "log_max_bytes": 0,
    "log_when_full": "refuse",
    "log_message_ttl": 0,
    "max_attempts": 0,
    "dead_letter_suffix": ".dead",
    "channel_start": "auto",
    "dedup_producers": 10_000,
    "dedup_age": 168 * 3600 * S,
    "topic": [],
    "ledger_age": 90 * 24 * 3600 * S,
    "max_transaction_bytes": 256 * 1024 * 1024,
}


def options(*argv: str) -> NsqdOptions:
    return options_from_argv(argv, io.StringIO())


def refusal(**settings: object) -> str:
    with pytest.raises(ConfigError) as caught:
        validate(NsqdOptions(**settings))
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_defaults_are_those_of_nsqd():
    defaults = options()
    assert {key: config_value(defaults, key) for key in GO_DEFAULTS} == GO_DEFAULTS
    assert {key: config_value(defaults, key) for key in LATER_DEFAULTS} == LATER_DEFAULTS


def test_every_option_has_a_flag_and_every_flag_an_option():
    keys = {flag.key for flag in FLAGS if flag.in_config} | {"topic"}  # [[topic]] is in configuration files only
    assert keys == {field.name for field in dataclasses.fields(NsqdOptions)}
    assert keys == GO_DEFAULTS.keys() | LATER_DEFAULTS.keys() | {"id", "broadcast_address"}
    assert len({flag.name for flag in FLAGS}) == len(FLAGS)


def test_defaults_are_valid():
    validate(options())


# Computed by Go: crc32.ChecksumIEEE(md5(hostname)) % 1024.
@pytest.mark.parametrize(
    ("hostname", "node_id"),
    [("vm", 617), ("", 812), ("localhost", 16), ("nsqd-1.example.com", 995), ("\u00fcn\u00efcode", 166)],
)
def test_default_node_id(hostname, node_id):
    assert default_node_id(hostname) == node_id


def test_the_host_name_determines_node_id_and_broadcast_address(monkeypatch):
    monkeypatch.setattr(options_module.socket, "gethostname", lambda: "localhost")
    defaults = NsqdOptions()
    assert (defaults.id, defaults.broadcast_address) == (16, "localhost")


@pytest.mark.parametrize(
    ("argv", "key", "value"),
    [
        (["-node-id", "5"], "id", 5),
        (["-lookupd-tcp-address=a:1", "-lookupd-tcp-address", "b:2"], "nsqlookupd_tcp_addresses", ["a:1", "b:2"]),
        (["-auth-http-address", "a:1"], "auth_http_addresses", ["a:1"]),
        (["-e2e-processing-latency-percentile", "0.5,1.0"], "e2e_processing_latency_percentiles", [1.0, 0.5]),
        (["-mem-queue-size", "0x10"], "mem_queue_size", 16),
        (["-msg-timeout", "1h30m"], "msg_timeout", 5400 * S),
        (["-tls-required"], "tls_required", 2),
        (["-tls-min-version", "tls1.2"], "tls_min_version", 771),
        (["-log-level=DEBUG"], "log_level", 1),
        (["-deflate=false"], "deflate", False),
        (["-enable-experiment", "topology-aware-consumption"], "enable_experiment", ["topology-aware-consumption"]),
        (["-shutdown-timeout", "1s"], "shutdown_timeout", S),
        (["-verbose", "-worker-id"], "log_level", 2),
        (["-store=log"], "store", "log"),
        (["-store-rule=a*=log", "-store-rule", "b=classic"], "store_rules", ["a*=log", "b=classic"]),
        (["-commit-bytes", "0x200000"], "commit_bytes", 1 << 21),
    ],
)
def test_flags_set_options(argv, key, value):
    assert getattr(options(*argv), key) == value


def test_the_configuration_file_sets_options_by_key(tmp_path):
    path = tmp_path / "nsqd.cfg"
    path.write_text(
        """
        id = 7
        nsqlookupd_tcp_addresses = ["127.0.0.1:4160"]
        auth_http_addresses = "a:1,b:2"
        e2e_processing_latency_percentiles = [0.5, 0.99]
        sync_timeout = 1500
        msg_timeout = "30s"
        tls_min_version = ""
        node_id = 8
        store = "log"
        store_rules = ["audit=classic"]
        log_memory = 2097152

        [[topic]]
        match = "orders*"
        durability = "write"
        """
    )
    stderr = io.StringIO()
    read = options_from_argv(["-config", str(path), "-msg-timeout=1s"], stderr)
    assert read == NsqdOptions(
        id=7,
        nsqlookupd_tcp_addresses=["127.0.0.1:4160"],
        auth_http_addresses=["a:1", "b:2"],
        e2e_processing_latency_percentiles=[0.5, 0.99],
        sync_timeout=1_500_000_000,
        msg_timeout=S,
        store="log",
        store_rules=["audit=classic"],
        log_memory=2097152,
        topic=[{"match": "orders*", "durability": "write"}],
    )
    assert config_value(read, "topic") == [{"match": "orders*", "durability": "write"}]
    assert 'unknown key "node_id" is ignored' in stderr.getvalue()


@pytest.mark.parametrize("text", ['topic = "x"', '[topic]\nmatch = "x"', "topic = [1]"])
def test_topic_must_be_an_array_of_tables(tmp_path, text):
    path = tmp_path / "nsqd.cfg"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"^failed parsing topic .* - must be an array of tables: use two brackets"):
        options("-config", str(path))


def test_no_flag_sets_the_tables_of_topics():
    with pytest.raises(UsageError, match="^flag provided but not defined: -topic\n"):
        options("-topic=x")


def test_bad_flags_and_version_raise_their_exceptions():
    with pytest.raises(UsageError, match=r"^flag provided but not defined: -x\nUsage of nsqd:\n"):
        options("-x")
    with pytest.raises(VersionRequested):
        options("-version")


def test_worker_id_is_a_boolean_flag():
    with pytest.raises(UsageError, match='^invalid boolean value "5" for -worker-id: parse error\n'):
        options("-worker-id=5")


def test_a_client_certificate_policy_requires_tls():
    assert NsqdOptions(tls_client_auth_policy="require").tls_required == 2
    assert NsqdOptions(tls_client_auth_policy="require", tls_required=1).tls_required == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_deflate_level": 0}, "--max-deflate-level must be [1,9]"),
        ({"max_deflate_level": 10}, "--max-deflate-level must be [1,9]"),
        ({"id": -1}, "--node-id must be [0,1024)"),
        ({"id": 1024}, "--node-id must be [0,1024)"),
        ({"tls_required": 1}, "cannot require TLS client connections without TLS key and cert"),
        ({"tls_required": 2}, "cannot require TLS client connections without TLS key and cert"),
        ({"tls_client_auth_policy": "x"}, "cannot require TLS client connections without TLS key and cert"),
        ({"auth_http_request_method": "put"}, "--auth-http-request-method must be post or get"),
        ({"e2e_processing_latency_percentiles": [0.5, 2.0]}, "invalid E2E processing latency percentile: 2"),
        ({"e2e_processing_latency_percentiles": [0.0]}, "invalid E2E processing latency percentile: 0"),
        ({"e2e_processing_latency_percentiles": [-0.5]}, "invalid E2E processing latency percentile: -0.5"),
    ],
)
def test_invalid_options_are_refused_with_the_wording_of_nsqd(settings, message):
    assert refusal(**settings) == message


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tls_cert": "a"}, "--tls-cert and --tls-key must be given together"),
        ({"tls_key": "a", "tls_required": 2}, "--tls-cert and --tls-key must be given together"),
        (
            {"tls_cert": "a", "tls_key": "b", "tls_client_auth_policy": "x"},
            "--tls-client-auth-policy must be require or require-verify",
        ),
        ({"e2e_processing_latency_percentiles": [float("nan")]}, "invalid E2E processing latency percentile: NaN"),
        ({"enable_experiment": ["x"]}, 'unknown experiment "x" (known: topology-aware-consumption)'),
        ({"mem_queue_size": -1}, "--mem-queue-size must not be negative"),
        ({"max_bytes_per_file": -1}, "--max-bytes-per-file must not be negative"),
        ({"sync_timeout": 0}, "--sync-timeout must be positive"),
        ({"msg_timeout": 0}, "--msg-timeout must be positive"),
        ({"output_buffer_timeout": 0}, "--output-buffer-timeout must be positive"),
        ({"max_msg_size": 0}, "--max-msg-size must be positive"),
        ({"max_msg_size": 2147483622}, "--max-msg-size must be at most 2147483621"),
        ({"max_body_size": 0}, "--max-body-size must be positive"),
        ({"max_channel_consumers": -1}, "--max-channel-consumers must not be negative"),
        ({"broadcast_tcp_port": 65536}, "--broadcast-tcp-port must be at most 65535"),
        ({"broadcast_http_port": -1}, "--broadcast-http-port must not be negative"),
        ({"queue_scan_selection_count": -1}, "--queue-scan-selection-count must not be negative"),
        ({"statsd_udp_packet_size": 65508}, "--statsd-udp-packet-size must be at most 65507"),
        ({"log_memory": 1048575}, "--log-memory must be at least 1048576"),
        ({"commit_bytes": 1048575}, "--commit-bytes must be at least 1048576"),
        ({"min_free_disk": -1}, "--min-free-disk must not be negative"),
        ({"store": "disk"}, 'invalid --store "disk": use classic or log'),
        ({"statsd_address": "a:1", "statsd_interval": 0}, "--statsd-interval must be positive"),
        (
            {"e2e_processing_latency_percentiles": [1.0], "e2e_processing_latency_window_time": 0},
            "--e2e-processing-latency-window-time must be positive",
        ),
        ({"http_address": "a:65536"}, 'listen (a:65536) failed - address "a:65536": invalid port 65536'),
        (
            {"tls_cert": "a", "tls_key": "b", "https_address": "/run/x"},
            "listen (/run/x) failed - HTTPS needs host:port",
        ),
    ],
)
def test_values_that_would_fail_later_are_refused_at_the_start(settings, message):
    assert refusal(**settings) == message


@pytest.mark.parametrize(
    "settings",
    [
        {"id": 0},
        {"id": 1023},
        {"max_deflate_level": 1},
        {"max_deflate_level": 9},
        {"mem_queue_size": 0},
        {"max_bytes_per_file": 0},
        {"sync_every": 0},
        {"sync_every": -1},
        {"tcp_address": ""},
        {"max_msg_size": 2147483621},
        {"statsd_interval": 0},
        {"e2e_processing_latency_window_time": 0},
        {"e2e_processing_latency_percentiles": [1.0, 0.0001]},
        {"auth_http_request_method": "post"},
        {"tls_required": 2, "tls_cert": "a", "tls_key": "b"},
        {"tls_cert": "a", "tls_key": "b", "tls_client_auth_policy": "require-verify"},
        {"tls_cert": "a", "tls_key": "b", "https_address": ""},
        {"https_address": "a:65536"},
        {"http_address": ""},
        {"tcp_address": "/run/nsqd.sock", "http_address": "/run/nsqd-http.sock"},
        {"enable_experiment": ["topology-aware-consumption"]},
    ],
)
def test_options_that_go_nsqd_accepts_are_accepted(settings):
    validate(NsqdOptions(**settings))


# Values of GET /config/statsd_prefix of a Go nsqd.
@pytest.mark.parametrize(
    ("prefix", "host", "port", "expanded"),
    [
        ("nsq.%s", "vm", 0, "nsq.vm_0."),
        ("nsq.%s", "a.example.com", 4151, "nsq.a_example_com_4151."),
        ("nsq.%s.", "vm", 4151, "nsq.vm_4151."),
        ("%s.%s", "vm", 1, "vm_1.vm_1."),
        ("nsq", "vm", 1, "nsq."),
        ("nsq.%s", "::1", 4151, "nsq.[__1]_4151."),
        ("", "vm", 1, ""),
    ],
)
def test_expand_statsd_prefix(prefix, host, port, expanded):
    assert expand_statsd_prefix(NsqdOptions(statsd_prefix=prefix, broadcast_address=host), port) == expanded


def test_config_value_writes_whole_percentiles_as_go_does():
    value = config_value(
        NsqdOptions(e2e_processing_latency_percentiles=[1.0, 0.5]), "e2e_processing_latency_percentiles"
    )
    assert repr(value) == "[1, 0.5]"


@pytest.mark.parametrize("key", ["version", "config", "verbose", "worker_id", "node_id", "bogus", "__class__", ""])
def test_config_value_of_an_unknown_option_raises_key_error(key):
    with pytest.raises(KeyError):
        config_value(NsqdOptions(), key)
