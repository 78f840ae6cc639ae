"""The inventory on disk."""

import io
import os
from pathlib import Path

import pytest

from nsqx.log import WARN, Log
from nsqx.nsqadmin.inventory import Holding, Inventory
from nsqx.nsqadmin.inventory_file import InventoryFile, decode, state_path
from nsqx.nsqadmin.options import NsqadminOptions


class Disk:
    def __init__(self, path: Path | str) -> None:
        self.lines = io.StringIO()
        self.file = InventoryFile(str(path), Log("", WARN, self.lines))

    def load(self) -> Inventory:
        inventory = Inventory()
        self.file.load(inventory)
        return inventory


def some_nodes() -> Inventory:
    inventory = Inventory()
    inventory.note({"a:1": "host-a", "b:1": "host-b"}, {}, 100.0)
    inventory.set_holdings("b:1", {"t": Holding(1, {"c": 2})})
    return inventory


async def test_the_saved_inventory_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "new" / "nodes.json"
    await Disk(path).file.save(some_nodes())
    disk = Disk(path)
    loaded = disk.load()
    assert loaded.known == some_nodes().known
    loaded.note({"a:1": ""}, {}, 200.0)
    (missing,) = loaded.missing
    assert (missing["address"], missing["last_seen_s"], missing["stranded"]) == ("b:1", 100.0, 3)
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(path.parent.iterdir()) == [path]
    assert disk.lines.getvalue() == ""


@pytest.mark.parametrize(
    "content", [b"", b"nonsense", b"[]", b'{"format": 2, "nodes": []}', b'{"format": 1, "nodes": [{"address": "a"}]}']
)
def test_an_invalid_file_is_logged_and_renamed(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "nodes.json"
    path.write_bytes(content)
    disk = Disk(path)
    assert disk.load().known == {}
    assert "invalid --state-file" in disk.lines.getvalue()
    assert Path(f"{path}.invalid").read_bytes() == content
    with pytest.raises(ValueError, match=r".*"):
        decode(content)


async def test_an_unwritable_file_is_logged_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    disk = Disk(tmp_path / "file" / "nodes.json")
    for _ in range(3):
        await disk.file.save(some_nodes())
    assert disk.lines.getvalue().count("cannot write --state-file") == 1
    assert "the list of nodes is kept in memory" in disk.lines.getvalue()


async def test_saving_an_empty_inventory_creates_no_file(tmp_path: Path) -> None:
    path = tmp_path / "nodes.json"
    await Disk(path).file.save(Inventory())
    assert os.listdir(tmp_path) == []
    await Disk(path).file.save(some_nodes())
    await Disk(path).file.save(Inventory())
    assert Disk(path).load().known == {}


async def test_nothing_is_stored_with_a_dash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    disk = Disk("-")
    await disk.file.save(some_nodes())
    disk.load()
    assert os.listdir(tmp_path) == []
    assert disk.lines.getvalue() == ""


def test_the_default_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STATE_DIRECTORY", raising=False)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/home/nsq")
    first = state_path(NsqadminOptions(nsqlookupd_http_addresses=["l1:1", "l2:1"]))
    assert first.startswith("/home/nsq/.local/state/nsqx/nsqadmin/nodes-")
    assert state_path(NsqadminOptions(nsqlookupd_http_addresses=["l2:1", "l1:1"])) == first
    assert state_path(NsqadminOptions(nsqlookupd_http_addresses=["other:1"])) != first, "every cluster has its own file"
    monkeypatch.setenv("XDG_STATE_HOME", "/xdg")
    assert state_path(NsqadminOptions(nsqd_http_addresses=["a:1"])).startswith("/xdg/nsqx/nsqadmin/nodes-")
    monkeypatch.setenv("STATE_DIRECTORY", "/var/lib/nsqadmin:/other")
    assert state_path(NsqadminOptions(nsqd_http_addresses=["a:1"])).startswith("/var/lib/nsqadmin/nodes-")
    assert state_path(NsqadminOptions(nsqd_http_addresses=["a:1"], state_file="/x.json")) == "/x.json"
    monkeypatch.delenv("STATE_DIRECTORY")
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    path = state_path(NsqadminOptions(nsqd_http_addresses=["a:1"]))
    assert path == ""
    lines = io.StringIO()
    InventoryFile(path, Log("", WARN, lines)).load(Inventory())
    assert "set --state-file" in lines.getvalue()
