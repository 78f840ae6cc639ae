"""nsqadmin's history with real daemons: a restart of nsqadmin, a restart of an nsqd, and a damaged file."""

from pathlib import Path
from typing import Any

from daemons import Daemon, Fleet, free_port, wait_until

WAIT_S = 60


def history(admin: Daemon, target: str, span_s: float = 7200) -> dict[str, Any]:
    document: dict[str, Any] = admin.request("GET", f"/api/history/topics/{target}?span={span_s}").json()
    return document


def wait_for_polls(admin: Daemon, count: int = 2) -> None:
    wait_until(lambda: admin.request("GET", "/api/health").json()["number"] >= count, "polls", WAIT_S)


def test_the_history_survives_a_restart_and_has_restarts(fleet: Fleet, tmp_path: Path, topic: str) -> None:
    port = free_port()
    nsqd_flags = (f"--http-address=127.0.0.1:{port}",)
    nsqd = fleet.nsqd("nsqx", *nsqd_flags, data_path=tmp_path)
    nsqd.post("/topic/create", topic=topic)
    nsqd.post("/channel/create", topic=topic, channel="c")
    nsqd.post("/mpub", b"a\nb\nc", topic=topic)
    state = tmp_path / "state"
    flags = (f"--nsqd-http-address={nsqd.http_address}", f"--state-file={state}/nodes.json", "--poll-interval=200ms")
    admin = fleet.nsqadmin("nsqx", *flags)
    wait_for_polls(admin, 5)
    before = history(admin, f"{topic}/c")
    assert before["series"]["depth"][-1] == 3
    assert before["events"] == []
    admin.stop()
    assert (state / "history.json").exists()
    nsqd.stop()
    stats_before_s = admin_times(before)[-1]
    nsqd = fleet.nsqd("nsqx", *nsqd_flags, data_path=tmp_path)
    wait_until(lambda: nsqd.stats()["start_time"] > stats_before_s - 1, "nsqd is started again", WAIT_S)

    admin = fleet.nsqadmin("nsqx", *flags)
    wait_for_polls(admin)
    after = history(admin, f"{topic}/c")
    assert [depth for depth in after["series"]["depth"] if depth is not None][0] == 3
    assert after["times_s"] == sorted(after["times_s"])
    assert after["times_s"][0] <= stats_before_s + 0.001, "a point of the time before the restart"
    assert after["step_s"] > 0
    stop = next(each for each in after["events"] if each["kind"] == "nsqadmin_stopped")
    assert stats_before_s <= stop["time_s"] <= stop["until_s"] <= after["times_s"][-1]
    assert history(admin, topic)["series"]["channels_depth"][-1] == 3
    assert history(admin, f"{topic}/c", 0.001)["times_s"] == []

    answer = admin.request("GET", f"/api/history/topics/{topic}?span=0")
    assert (answer.status, answer.json()) == (400, {"message": "INVALID_ARG_SPAN"})
    assert admin.request("GET", f"/api/history/topics/{topic}?span=x").status == 400
    assert admin.request("GET", "/api/history/topics/nowhere?span=60").status == 404
    assert admin.request("GET", f"/api/history/topics/{topic}/nowhere?span=60").json() == {
        "message": "CHANNEL_NOT_FOUND"
    }


def admin_times(document: dict[str, Any]) -> list[float]:
    times_s: list[float] = document["times_s"]
    return times_s


def test_a_restart_of_an_nsqd_is_an_event(fleet: Fleet, tmp_path: Path, topic: str) -> None:
    port = free_port()
    flags = (f"--http-address=127.0.0.1:{port}",)
    nsqd = fleet.nsqd("nsqx", *flags, data_path=tmp_path)
    other = fleet.nsqd("nsqx")
    for each in (nsqd, other):
        each.post("/topic/create", topic=topic)
    nsqd.post("/topic/create", topic=f"{topic}.only")
    addresses = (f"--nsqd-http-address={each.http_address}" for each in (nsqd, other))
    admin = fleet.nsqadmin("nsqx", *addresses, "--poll-interval=200ms", "--state-file=-")
    wait_for_polls(admin)
    started_s = nsqd.stats()["start_time"]

    def restarted() -> bool:
        nonlocal nsqd
        nsqd.stop()
        nsqd = fleet.nsqd("nsqx", *flags, data_path=tmp_path)
        return bool(nsqd.stats()["start_time"] > started_s)

    wait_until(restarted, "nsqd starts in a later second", WAIT_S)

    def events() -> list[str]:
        return [each["node"] for each in history(admin, f"{topic}.only")["events"]]

    wait_until(lambda: nsqd.http_address in events(), "the restart is noticed", WAIT_S)
    assert set(events()) == {nsqd.http_address}
    assert {each["kind"] for each in history(admin, topic)["events"]} == {"nsqd_started"}


def test_a_damaged_history_is_set_aside(fleet: Fleet, tmp_path: Path) -> None:
    nsqd = fleet.nsqd("nsqx")
    (tmp_path / "history.json").write_bytes(b"nsqx history 1\r\n" + b"\xff" * 100)
    flags = (f"--nsqd-http-address={nsqd.http_address}", f"--state-file={tmp_path}/nodes.json")
    admin = fleet.nsqadmin("nsqx", *flags)
    assert admin.log.count("invalid history") == 1
    assert (tmp_path / "history.json.invalid").exists()
    admin.stop()
    assert (tmp_path / "history.json").exists()
