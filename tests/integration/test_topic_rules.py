"""The store of a topic by its name: flags and [[topic]] tables of a running nsqd."""

import json
import subprocess
from pathlib import Path

from daemons import Fleet, program_command

CONFIG = """
store_rules = ["orders.test=classic"]

[[topic]]
match = "orders*"
store = "log"
"""


def test_an_invalid_table_ends_nsqd_with_one_line(tmp_path: Path) -> None:
    config = tmp_path / "nsqd.toml"
    config.write_text(CONFIG + 'retain_age = "72h"\n')
    command = [*program_command("nsqx", "nsqd"), f"-config={config}", f"-data-path={tmp_path}"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    reason = '[[topic]] table 1: unknown key "retain_age": use match, store, durability\n'
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.count("\n") == 1
    assert ended.stderr.endswith(f" FATAL: failed to instantiate nsqd - {reason}")


def test_config_answers_with_the_rules(fleet: Fleet, tmp_path: Path) -> None:
    config = tmp_path / "nsqd.toml"
    config.write_text(CONFIG)
    nsqd = fleet.nsqd("nsqx", f"--config={config}", "--store=classic", "--min-free-disk=1000")
    answers = {
        name: nsqd.request("GET", f"/config/{name}").body
        for name in ("store", "durability", "store_rules", "topic", "min_free_disk")
    }
    assert (answers.pop("store"), answers.pop("durability")) == (b"classic", b"fsync")
    assert {name: json.loads(body) for name, body in answers.items()} == {
        "store_rules": ["orders.test=classic"],
        "topic": [{"match": "orders*", "store": "log"}],
        "min_free_disk": 1000,
    }
