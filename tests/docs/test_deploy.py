"""The files of deploy/ work: systemd accepts the units, and the daemons start with the configurations."""

import configparser
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from markdown_pages import ROOT

from daemons import Daemon, Fleet

DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
DAEMONS = [unit.stem for unit in UNITS]


def unit(name: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(DEPLOY / "systemd" / f"{name}.service", encoding="utf-8")
    return parser


def test_there_is_a_unit_for_each_daemon() -> None:
    assert DAEMONS == ["nsqadmin", "nsqd", "nsqlookupd"]


def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed (Debian: systemd)")
    for path in UNITS:
        # systemd checks that the program exists.
        text = re.sub(r"/opt/nsqx/bin/\w+", sys.executable, path.read_text(encoding="utf-8"))
        (tmp_path / path.name).write_text(text, encoding="utf-8")
    done = subprocess.run(
        ["systemd-analyze", "verify", *map(str, sorted(tmp_path.iterdir()))],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("name", DAEMONS)
def test_the_unit_names_existing_files_and_users(name: str) -> None:
    service = unit(name)["Service"]
    assert service["ExecStart"] == f"/opt/nsqx/bin/{name} --config=/etc/nsqx/{name}.toml"
    assert (DEPLOY / "etc" / f"{name}.toml").is_file()
    users = (DEPLOY / "systemd" / "nsq.sysusers").read_text(encoding="utf-8")
    assert re.search(rf"^u {service['User']} ", users, re.MULTILINE)


def test_the_directories_of_the_units_are_those_of_the_configurations() -> None:
    nsqd = tomllib.loads((DEPLOY / "etc" / "nsqd.toml").read_text(encoding="utf-8"))
    nsqadmin = tomllib.loads((DEPLOY / "etc" / "nsqadmin.toml").read_text(encoding="utf-8"))
    assert nsqd["data_path"] == f"/var/lib/{unit('nsqd')['Service']['StateDirectory']}"
    assert Path(nsqadmin["audit_log"]).parent == Path("/var/log", unit("nsqadmin")["Service"]["LogsDirectory"])


@pytest.mark.parametrize("name", DAEMONS)
def test_the_daemon_starts_with_its_configuration(fleet: Fleet, tmp_path: Path, name: str) -> None:
    config = tmp_path / f"{name}.toml"
    text = (DEPLOY / "etc" / f"{name}.toml").read_text(encoding="utf-8")
    config.write_text(re.sub(r"/var/(?:lib|log)/\w+", str(tmp_path), text), encoding="utf-8")
    daemon = _start(fleet, name, f"--config={config}")
    assert "is ignored" not in daemon.log
    assert daemon.stop() == 0


def _start(fleet: Fleet, name: str, flag: str) -> Daemon:
    """Start a daemon. The fleet sets ports and data directory by flags, which take precedence over the file."""
    start = {"nsqd": fleet.nsqd, "nsqlookupd": fleet.nsqlookupd, "nsqadmin": fleet.nsqadmin}[name]
    return start("nsqx", flag)


def test_the_page_quotes_the_unit() -> None:
    page = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
    quoted = re.search(r"```ini\n\[Service\]\n(.*?)```", page, re.DOTALL)
    assert quoted is not None
    lines = (DEPLOY / "systemd" / "nsqd.service").read_text(encoding="utf-8").splitlines()
    assert [line for line in quoted.group(1).splitlines() if line not in lines] == []
