"""A TLS file that is missing or has no certificate makes every program fail at start with one line."""

from pathlib import Path

import pytest

from certificates import Authority
from daemons import require_go
from utilities import run_utility

DAEMON = ["--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0"]
ADMIN = ["--http-address=127.0.0.1:0", "--nsqd-http-address=127.0.0.1:1"]
STAT = ["--topic=t", "--channel=c", "--nsqd-http-address=127.0.0.1:1"]
STATS = ["--nsqd-http-address=127.0.0.1:1"]
CONSUMER = ["--topic=t", "--nsqd-tcp-address=127.0.0.1:1"]


MISSING, NO_CERTIFICATE = None, "not a certificate"
OWN_PAIR = ["--tls-cert={cert}", "--tls-key={key}"]


@pytest.mark.parametrize(
    ("program", "flags", "content"),
    [
        ("nsqd", [*DAEMON, "--data-path={directory}", "--tls-root-ca-file={file}"], MISSING),
        ("nsqd", [*DAEMON, "--data-path={directory}", "--tls-cert={file}", "--tls-key={file}"], MISSING),
        ("nsqd", [*DAEMON, "--data-path={directory}", *OWN_PAIR, "--tls-root-ca-file={file}"], NO_CERTIFICATE),
        ("nsqlookupd", [*DAEMON, "--tls-root-ca-file={file}"], MISSING),
        ("nsqlookupd", [*DAEMON, "--tls-cert={file}", "--tls-key={file}"], MISSING),
        ("nsqlookupd", [*DAEMON, *OWN_PAIR, "--tls-root-ca-file={file}"], NO_CERTIFICATE),
        ("nsqadmin", [*ADMIN, "--http-client-tls-root-ca-file={file}"], MISSING),
        ("nsqadmin", [*ADMIN, "--http-client-tls-cert={file}", "--http-client-tls-key={file}"], NO_CERTIFICATE),
        ("nsqadmin", [*ADMIN, "--consumer-opt=tls_v1,true", "--consumer-opt=tls_root_ca_file,{file}"], NO_CERTIFICATE),
        ("nsq_stat", [*STAT, "--http-client-tls-root-ca-file={file}"], MISSING),
        ("stats", [*STATS, "--http-client-tls-cert={file}", "--http-client-tls-key={file}"], NO_CERTIFICATE),
        (
            "nsq_tail",
            [*CONSUMER, "--consumer-opt=tls_v1,true", "--consumer-opt=tls_root_ca_file,{file}"],
            NO_CERTIFICATE,
        ),
    ],
)
def test_an_unusable_file_is_named_in_one_line(
    program: str, flags: list[str], content: str | None, tmp_path: Path
) -> None:
    pair = Authority(tmp_path).sign("server")
    file = tmp_path / "named.pem"
    if content is not None:
        file.write_text(content)
    values = {"directory": tmp_path, "file": file, "cert": pair.cert, "key": pair.key}
    ended = run_utility("nsqx", program, *(flag.format(**values) for flag in flags))
    assert ended.code == 1, ended
    assert str(file) in ended.stderr
    assert len([line for line in ended.lines if "named.pem" in line]) == 1, ended
    assert "Traceback" not in ended.stderr


def test_go_nsqd_also_fails_without_its_ca_file(tmp_path: Path) -> None:
    require_go()
    ended = run_utility("go", "nsqd", *DAEMON, f"--data-path={tmp_path}", f"--tls-root-ca-file={tmp_path}/gone.pem")
    assert ended.code == 1
    assert f"{tmp_path}/gone.pem" in ended.stderr


@pytest.mark.parametrize(
    ("program", "flags", "flag"), [("nsq_stat", STAT, "cert"), ("stats", STATS, "key"), ("nsqadmin", ADMIN, "key")]
)
def test_a_certificate_without_key_or_a_key_without_certificate_fails(
    program: str, flags: list[str], flag: str, tmp_path: Path
) -> None:
    pair = Authority(tmp_path).sign("client")
    ended = run_utility(
        "nsqx", program, *flags, f"--http-client-tls-{flag}={pair.cert if flag == 'cert' else pair.key}"
    )
    assert ended.code == 1
    assert "--http-client-tls-cert" in ended.stderr
    assert "--http-client-tls-key" in ended.stderr
    assert "Traceback" not in ended.stderr
