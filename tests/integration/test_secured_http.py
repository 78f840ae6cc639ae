"""nsqadmin, the tools, the client library and nsqd work with HTTP that needs tokens or client certificates."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from certificates import Authority
from daemons import Daemon, Fleet, wait_until
from nsqx import Consumer
from nsqx.errors import ConfigError
from rawclient import RawClient, pub
from utilities import Running, run_utility

NSQD_TOKEN = "nsqd-token-4c1f6a"
LOOKUPD_TOKEN = "lookupd-token-93be7d"


@dataclass
class Secured:
    """A cluster of one nsqlookupd and one nsqd, and its credentials."""

    lookupd: Daemon
    nsqd: Daemon
    flags: list[str]
    """Flags for nsqadmin, nsq_stat, nsqx stats and nsqx topics."""
    client: dict[str, str]
    """Options of the client library."""

    @property
    def lookupd_address(self) -> str:
        return self.lookupd.http_address

    @property
    def consumer_flags(self) -> list[str]:
        return [f"--consumer-opt={name},{value}" for name, value in self.client.items()]


@pytest.fixture(scope="module")
def module_fleet() -> Iterator[Fleet]:
    fleet = Fleet()
    yield fleet
    fleet.close()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("secrets")
    (directory / "nsqd").write_text(f"{NSQD_TOKEN}\n")
    (directory / "lookupd").write_text(f"{LOOKUPD_TOKEN}\n")
    return directory


@pytest.fixture(scope="module")
def with_tokens(module_fleet: Fleet, files: Path) -> Secured:
    guards = [f"--http-{group}-token-file={files}/" for group in ("publish", "read", "admin")]
    lookupd = module_fleet.nsqlookupd("nsqx", *(f"{guard}lookupd" for guard in guards[1:]))
    nsqd = module_fleet.nsqd(
        "nsqx",
        *(f"{guard}nsqd" for guard in guards),
        f"--lookupd-tcp-address={lookupd.tcp_address}",
        f"--lookupd-http-token-file={files / 'lookupd'}",
    )
    token_files = {"nsqd_http_token_file": f"{files / 'nsqd'}", "lookupd_http_token_file": f"{files / 'lookupd'}"}
    flags = [f"--{name.replace('_', '-')}={path}" for name, path in token_files.items()]
    return Secured(lookupd, nsqd, flags, token_files)


@pytest.fixture(scope="module")
def with_certificates(module_fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Secured:
    """Plain HTTP answers with the port of HTTPS, which requires a client certificate."""
    authority = Authority(tmp_path_factory.mktemp("authority"))
    server, mine = authority.sign("server"), authority.sign("client")
    groups = ["--http-client-cert-group=read", "--http-client-cert-group=admin"]
    tls = [f"--tls-cert={server.cert}", f"--tls-key={server.key}", f"--tls-root-ca-file={authority.cert}"]
    lookupd = module_fleet.nsqlookupd("nsqx", *tls, *groups, "--https-address=127.0.0.1:0")
    nsqd = module_fleet.nsqd(
        "nsqx",
        *tls,
        *groups,
        "--http-client-cert-group=publish",
        f"--lookupd-tcp-address={lookupd.tcp_address}",
        "--lookupd-tls",
    )
    client = {"tls_root_ca_file": authority.cert, "tls_cert": mine.cert, "tls_key": mine.key}
    flags = [f"--http-client-{name.replace('_', '-')}={path}" for name, path in client.items()]
    return Secured(lookupd, nsqd, flags, client)


@pytest.fixture(params=["tokens", "certificates"])
def secured(request: pytest.FixtureRequest) -> Secured:
    cluster: Secured = request.getfixturevalue(f"with_{request.param}")
    return cluster


def publish(secured: Secured, topic: str, *bodies: bytes) -> None:
    """Publish over TCP, which is open here; wait until nsqlookupd knows the topic."""
    with RawClient(secured.nsqd.tcp_address) as client:
        client.send(b"".join(pub(topic, body) for body in bodies))
        assert [client.read_frame().data for _ in bodies] == [b"OK"] * len(bodies)
    secured.lookupd.wait_for_log(rf"REGISTER category:topic key:{topic} ")


# nsqadmin


def test_nsqadmin_shows_and_changes_a_secured_cluster(fleet: Fleet, secured: Secured) -> None:
    publish(secured, "managed", b"one")
    admin = fleet.nsqadmin("nsqx", f"--lookupd-http-address={secured.lookupd_address}", *secured.flags)
    assert "managed" in admin.request("GET", "/api/topics").json()["topics"]
    topic = admin.request("GET", "/api/topics/managed").json()
    assert (topic["message_count"], topic["message"]) == (1, "")
    assert len(admin.request("GET", "/api/nodes").json()["nodes"]) == 1
    overview = wait_until(lambda: admin.request("GET", "/api/overview").json().get("topics"), "the cluster was polled")
    assert "managed" in json.dumps(overview)
    paused = admin.request("POST", "/api/topics/managed", b'{"action":"pause"}')
    assert (paused.status, paused.json()) == (200, {"message": ""})
    assert admin.request("POST", "/api/publish/managed", b'{"body":"two"}').status == 200
    assert admin.request("GET", "/api/topics/managed").json()["message_count"] == 2
    deleted = admin.request("DELETE", "/api/topics/managed")
    assert (deleted.status, deleted.json()) == (200, {"message": ""})
    assert "managed" not in (admin.request("GET", "/api/topics").json()["topics"] or ())


def test_no_token_is_shown(fleet: Fleet, with_tokens: Secured) -> None:
    admin = fleet.nsqadmin(
        "nsqx", f"--lookupd-http-address={with_tokens.lookupd_address}", "--log-level=debug", *with_tokens.flags
    )
    admin.request("GET", "/api/topics")
    told = [admin.request("GET", f"/config/{name}").body.decode() for name in ("nsqd_http_token_file", "log_level")]
    told.append(admin.request("GET", "/api/settings").body.decode())
    for text in (*told, admin.log, with_tokens.nsqd.log, with_tokens.lookupd.log, " ".join(admin.command)):
        assert NSQD_TOKEN not in text
        assert LOOKUPD_TOKEN not in text


def test_an_operation_that_failed_everywhere_is_an_error(fleet: Fleet, with_tokens: Secured, files: Path) -> None:
    publish(with_tokens, "stays", b"one")
    nsqd = fleet.nsqadmin("nsqx", f"--nsqd-http-address={with_tokens.nsqd.http_address}")
    assert nsqd.request("DELETE", "/api/topics/stays").status == 502
    # The token allows reading but no changes: every nsqd is found, and every nsqd refuses.
    (files / "reader").write_text("reader-token")
    guards = [f"--http-read-token-file={files / 'reader'}", f"--http-admin-token-file={files / 'nsqd'}"]
    lookupd = fleet.nsqlookupd("nsqx", *guards)
    nodes = [fleet.nsqd("nsqx", f"--lookupd-tcp-address={lookupd.tcp_address}", *guards) for _ in range(2)]
    for node in nodes:
        node.request("POST", "/topic/create?topic=t", b"", {"Authorization": f"Bearer {NSQD_TOKEN}"})
    flags = [f"--{kind}-http-token-file={files / 'reader'}" for kind in ("nsqd", "lookupd")]
    admin = fleet.nsqadmin("nsqx", f"--lookupd-http-address={lookupd.http_address}", *flags)
    wait_until(
        lambda: len(admin.request("GET", "/api/topics/t").json().get("nodes") or ()) == 2, "both nsqds are known"
    )
    for method, target, body in (
        ("DELETE", "/api/topics/t", None),
        ("POST", "/api/topics/t", b'{"action":"pause"}'),
        ("POST", "/api/topics", b'{"topic":"new"}'),
        ("DELETE", f"/api/nodes/{nodes[0].http_address}", b'{"topic":"t"}'),
    ):
        answer = admin.request(method, target, body)
        assert answer.status == 502, (method, target, answer)
        message = answer.json()["message"]
        assert message.startswith("UPSTREAM_ERROR: ")
        assert "401" in message
        if method == "DELETE" and "topics" in target:
            assert all(daemon.http_address in message for daemon in (lookupd, *nodes)), message
    operated = admin.request("POST", "/api/operations", b'{"operation":"delete","topic":"t"}')
    assert operated.status == 502
    assert [bool(outcome["error"]) for outcome in operated.json()["outcomes"]] == [True, True, True]


def test_an_operation_that_failed_somewhere_is_a_warning(fleet: Fleet, files: Path) -> None:
    lookupd = fleet.nsqlookupd("nsqx")
    guard = f"--http-admin-token-file={files / 'nsqd'}"
    nodes = [fleet.nsqd("nsqx", f"--lookupd-tcp-address={lookupd.tcp_address}", *more) for more in ((), (guard,))]
    for node in nodes:
        node.request("POST", "/topic/create?topic=t", b"", {"Authorization": f"Bearer {NSQD_TOKEN}"})
    admin = fleet.nsqadmin("nsqx", f"--lookupd-http-address={lookupd.http_address}")
    wait_until(
        lambda: len(admin.request("GET", "/api/topics/t").json().get("nodes") or ()) == 2, "both nsqds are known"
    )
    answer = admin.request("POST", "/api/topics/t", b'{"action":"pause"}')
    assert answer.status == 200
    assert answer.json()["message"].startswith("WARNING: got response 401")


# Tools


def test_tools_query_a_secured_cluster(secured: Secured, tmp_path: Path) -> None:
    publish(secured, "watched", b"a", b"b")
    lookupd = f"--lookupd-http-address={secured.lookupd_address}"
    nsqd = f"--nsqd-http-address={secured.nsqd.http_address}"
    tailed = run_utility(
        "nsqx", "nsq_tail", "--topic=watched", "--channel=kept", "--n=2", lookupd, *secured.consumer_flags
    )
    assert sorted(tailed.stdout.split()) == [b"a", b"b"], tailed
    for where in (lookupd, nsqd):
        shown = run_utility("nsqx", "stats", "watched", "--json", where, *secured.flags)
        assert json.loads(shown.stdout.splitlines()[0])["message_count"] == 2, shown
        assert b"watched" in run_utility("nsqx", "topics", where, *secured.flags).stdout
        line = run_utility(
            "nsqx",
            "nsq_stat",
            "--topic=watched",
            "--channel=kept",
            "--count=1",
            "--interval=100ms",
            where,
            *secured.flags,
        )
        assert line.code == 0, line
        refused = run_utility("nsqx", "stats", where)
        assert refused.code == 1
        assert "401" in refused.stderr or "certificate" in refused.stderr, refused
    sent = run_utility(
        "nsqx",
        "pub",
        "watched",
        "c",
        lookupd,
        *(flag.replace("consumer", "producer") for flag in secured.consumer_flags),
    )
    assert sent.code == 0, sent


def test_nsq_to_file_finds_topics_of_a_secured_cluster(secured: Secured, tmp_path: Path) -> None:
    publish(secured, "archived", b"kept in a file")
    flags = ["--topic-pattern=^archived$", "--channel=file", f"--output-dir={tmp_path}", "--sync-interval=100ms"]
    flags += [f"--lookupd-http-address={secured.lookupd_address}", "--topic-refresh=100ms", *secured.consumer_flags]
    with Running("nsqx", "nsq_to_file", *flags, log=tmp_path / "log"):
        found = wait_until(
            lambda: [path for path in tmp_path.glob("archived*") if path.stat().st_size], "a file is written"
        )
    assert found[0].read_text() == "kept in a file\n"


def test_tokens_may_come_from_the_environment(with_tokens: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(with_tokens, "from_environment", b"x")
    monkeypatch.setenv("NSQX_NSQD_HTTP_TOKEN", NSQD_TOKEN)
    monkeypatch.setenv("NSQX_LOOKUPD_HTTP_TOKEN", LOOKUPD_TOKEN)
    lookupd = f"--lookupd-http-address={with_tokens.lookupd_address}"
    assert b"from_environment" in run_utility("nsqx", "topics", lookupd).stdout
    assert run_utility("nsqx", "sub", "from_environment", "c", "--n=1", lookupd).stdout == b"x\n"


@pytest.mark.parametrize("program", ["stats", "topics", "nsq_stat", "nsqadmin", "nsqd"])
def test_a_missing_token_file_is_an_error(program: str, tmp_path: Path) -> None:
    flags = {
        "nsq_stat": ["--topic=t", "--channel=c", "--nsqd-http-address=127.0.0.1:1"],
        "nsqadmin": ["--nsqd-http-address=127.0.0.1:1", "--http-address=127.0.0.1:0"],
        "nsqd": [f"--data-path={tmp_path}", "--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0"],
    }
    ended = run_utility("nsqx", program, f"--lookupd-http-token-file={tmp_path}/gone", *flags.get(program, []))
    assert ended.code == 1
    assert f"--lookupd-http-token-file {tmp_path}/gone: No such file" in ended.stderr
    assert "Traceback" not in ended.stderr


# The client library


async def test_a_consumer_finds_nsqds_of_a_secured_nsqlookupd(secured: Secured) -> None:
    publish(secured, "consumed", b"found")
    async with Consumer("consumed", "c", lookupd_http_addresses=secured.lookupd_address, **secured.client) as consumer:
        async for message in consumer:
            message.finish()
            assert message.body == b"found"
            break


async def test_a_consumer_uses_https_for_nsqlookupd(with_certificates: Secured) -> None:
    publish(with_certificates, "consumed_by_https", b"found")
    port = with_certificates.lookupd.wait_for_log(r"HTTPS: listening on \S+:(\d+)")[1]
    lookupd = f"https://127.0.0.1:{port}"
    async with Consumer(
        "consumed_by_https", "c", lookupd_http_addresses=lookupd, **with_certificates.client
    ) as consumer:
        async for message in consumer:
            message.finish()
            break


def test_a_missing_file_in_a_client_option_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="lookupd_http_token_file"):
        Consumer("t", "c", lookupd_http_addresses="127.0.0.1:1", lookupd_http_token_file=f"{tmp_path}/gone")


# nsqd


def test_nsqd_queries_channels_from_a_secured_nsqlookupd(fleet: Fleet, secured: Secured) -> None:
    admin = fleet.nsqadmin("nsqx", f"--lookupd-http-address={secured.lookupd_address}", *secured.flags)
    made = admin.request("POST", "/api/topics", b'{"topic":"known","channel":"elsewhere"}')
    assert (made.status, made.json()) == (200, {"message": ""})
    publish(secured, "known", b"x")
    flags = [f"--nsqd-http-address={secured.nsqd.http_address}", *secured.flags]
    shown = wait_until(
        lambda: run_utility("nsqx", "stats", "known", "elsewhere", "--json", *flags).stdout, "made there"
    )
    assert b"elsewhere" in shown
    assert "failed to query nsqlookupd" not in secured.nsqd.log
