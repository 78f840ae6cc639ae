"""The container image: every command runs, and data survives a kill, a restart and another build.

`make image` runs these tests. They are not part of `make test`, because they need podman and an image.
"""

import json
import time

import pytest

from containers import (
    IMAGE,
    OTHER_BUILD,
    Container,
    new_host,
    new_volume,
    nsqd,
    nsqlookupd,
    podman,
    removed,
    require_podman,
    run_once,
)
from nsqx.version import NSQ_VERSION, VERSION

pytestmark = pytest.mark.timeout(600)

DAEMONS = ("nsqd", "nsqlookupd", "nsqadmin")
# Go's to_nsq has no --version, so ours has none.
TOOLS = ("nsq_stat", "nsq_tail", "nsq_to_file", "nsq_to_http", "nsq_to_nsq")
COUNT = 2000


@pytest.fixture(scope="module", autouse=True)
def _podman() -> None:
    require_podman()


@pytest.mark.parametrize("program", DAEMONS)
def test_each_daemon_prints_its_version(program: str) -> None:
    assert f"nsqx {VERSION} (compatible with {program} v{NSQ_VERSION})" in run_once(program, "--version")


@pytest.mark.parametrize("program", TOOLS)
def test_each_tool_runs_at_the_path_that_it_has_in_the_image_of_nsq(program: str) -> None:
    assert run_once(f"/{program}", "--version") == f"{program} v{NSQ_VERSION}\n"


def test_without_a_command_the_commands_are_listed() -> None:
    assert "usage: nsqx COMMAND" in run_once()
    assert "Usage of to_nsq" in run_once("sh", "-c", "/to_nsq -help 2>&1")


def test_the_programs_run_as_a_user_without_rights() -> None:
    assert run_once("id", "-u") == "4150\n"
    run_once("sh", "-c", "echo > /opt/nsqx/file", fails=True)
    image = json.loads(podman("inspect", IMAGE))[0]
    assert image["Config"]["Labels"]["org.opencontainers.image.version"] == VERSION
    print(f"\nimage: {image['Size'] / 1e6:.0f} MB")


def test_a_daemon_is_healthy_while_it_serves() -> None:
    containers = (nsqd(new_host()), nsqlookupd(new_host()), admin(new_host()))
    with removed(*containers):
        for container in containers:
            container.run()
            print(f"\n{container.name}: served after {container.start_s:.1f} s")
            assert container.execute("nsq-health") == ""
            podman("healthcheck", "run", container.name)
            wrong = podman(
                "exec", "--env=NSQ_HEALTH_URL=http://127.0.0.1:1/ping", container.name, "nsq-health", fails=True
            )
            assert "Connection refused" in wrong
            not_found = f"--env=NSQ_HEALTH_URL=http://{container.http_address}/nothing"
            assert "404" in podman("exec", not_found, container.name, "nsq-health", fails=True)
            assert podman("exec", not_found, container.name, "nsq-health", "--alive") == ""
            assert container.stop() == 0


def admin(host: str) -> Container:
    command = ["nsqadmin", f"--http-address={host}:4171", f"--lookupd-http-address={host}:1"]
    return Container(command, host, (0, 4171))


def publish(container: Container, topic: str, start: int, count: int) -> None:
    body = "\n".join(f"message {number}" for number in range(start, start + count)).encode()
    assert container.get(f"/mpub?topic={topic}", "POST", body)[0] == 200


def consume(container: Container, topic: str, count: int) -> set[str]:
    address = f"--nsqd-tcp-address={container.tcp_address}"
    return set(run_once("nsqx", "sub", address, f"--n={count}", topic, "c").splitlines())


@pytest.mark.parametrize("store", ["classic", "log"])
def test_data_survives_a_stop_a_new_container_and_another_build(store: str) -> None:
    host = new_host()
    with new_volume() as volume:
        for number, image in enumerate((OTHER_BUILD, IMAGE, OTHER_BUILD)):
            container = nsqd(host, f"--store={store}", volume=volume)
            with removed(container):
                container.run(image)
                assert container.get("/channel/create?topic=t&channel=c", "POST")[0] in (200, 404)
                publish(container, "t", number * COUNT, COUNT)
                if number == 2:
                    assert consume(container, "t", 3 * COUNT) == {f"message {each}" for each in range(3 * COUNT)}
                began_s = time.monotonic()
                assert container.stop() == 0
                print(f"\nstopped after {time.monotonic() - began_s:.1f} s")


def test_acknowledged_messages_of_topic_logs_survive_a_kill() -> None:
    with new_volume() as volume:
        container = nsqd(new_host(), "--store=log", volume=volume)
        with removed(container):
            container.run()
            publish(container, "t", 0, COUNT)
            container.kill()
            podman("start", container.name)
            container.wait_until_ready()
            publish(container, "t", COUNT, 1)
            assert consume(container, "t", COUNT + 1) == {f"message {each}" for each in range(COUNT + 1)}


def test_a_reload_signal_reaches_the_daemon() -> None:
    container = nsqd(new_host())
    with removed(container):
        container.run()
        podman("kill", "--signal=HUP", container.name)
        container.wait_until_ready()
        assert container.stop() == 0


def test_nsqx_up_runs_in_one_container() -> None:
    host = new_host()
    container = Container(["nsqx", "up", f"--host={host}", "--data-path=/data"], host, (4150, 4171))
    with removed(container):
        container.run()
        shown = run_once("nsqx", "pub", f"--nsqd-tcp-address={container.tcp_address}", "greetings", "hello")
        assert shown == "" or "published" in shown
        assert consume(container, "greetings", 1) == {"hello"}
        assert container.execute("nsq-health") == ""
        assert container.stop() == 0
