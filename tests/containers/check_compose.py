"""deploy/compose.yaml starts a cluster: its nsqds register by name, and what is published to one is consumed by name.

Prometheus and Grafana are not started, because their images would have to be pulled.
"""

import http.client
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from containers import IMAGE, PODMAN, require_podman
from daemons import wait_until

pytestmark = pytest.mark.timeout(600)

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
SERVICES = ("nsqlookupd-1", "nsqlookupd-2", "nsqd-1", "nsqd-2", "nsqd-3", "nsqadmin")
CONFIGURATION = """\
[containers]
default_ulimits = ["nofile=20000:20000", "nproc=4096:4096"]
[engine]
"""


class Compose:
    """Runs podman-compose with the project's file."""

    def __init__(self, program: str, configuration: Path) -> None:
        self._command = [program, "--file", str(DEPLOY / "compose.yaml")]
        self._environment = {**os.environ, "CONTAINERS_CONF": str(configuration), "NSQX_IMAGE": IMAGE}

    def __call__(self, *words: str) -> str:
        done = subprocess.run(
            [*self._command, *words],
            cwd=DEPLOY,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture
def compose(tmp_path: Path) -> Iterator[Compose]:
    require_podman()
    program = os.environ.get("PODMAN_COMPOSE") or shutil.which("podman-compose")
    if program is None:
        pytest.skip("podman-compose is not installed: pip install podman-compose, or set PODMAN_COMPOSE")
    runtime = 'runtime = "runc"\n' if "--runtime=runc" in PODMAN else ""
    (tmp_path / "containers.conf").write_text(CONFIGURATION + runtime)
    run = Compose(program, tmp_path / "containers.conf")
    run("up", "--detach", *SERVICES)
    yield run
    run("down", "--volumes")


def request(method: str, target: str, port: int, body: bytes | None = None) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request(method, target, body)
        return connection.getresponse().read()
    except OSError:
        return b""
    finally:
        connection.close()


def test_the_cluster_of_the_compose_file_works(compose: Compose) -> None:
    def registered() -> set[str]:
        nodes = json.loads(request("GET", "/api/nodes", 4171) or b"{}").get("nodes") or ()
        return {node["broadcast_address"] for node in nodes if len(node["remote_addresses"]) == 2}

    wait_until(lambda: registered() == {"nsqd-1", "nsqd-2", "nsqd-3"}, "all nsqds are at both nsqlookupds", 60)
    assert request("POST", "/pub?topic=greetings", 4151, b"hello") == b"OK"
    # podman-compose takes flags of the command for its own.
    sub = "nsqx sub --lookupd-http-address=nsqlookupd-1:4161 --n=1 greetings c"
    assert "hello" in compose("exec", "-T", "nsqd-2", "sh", "-c", sub)
    assert b"<!doctype html>" in request("GET", "/", 4171).lower()[:200]


def test_the_files_that_the_compose_file_mounts_exist() -> None:
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))["services"]
    mounts = [mount.partition(":")[0] for each in services.values() for mount in each.get("volumes", ())]
    files = [mount for mount in mounts if mount.startswith("./")]
    assert len(files) == 5
    assert [each for each in files if not (DEPLOY / each).is_file()] == []
