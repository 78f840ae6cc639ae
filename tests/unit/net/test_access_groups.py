"""Access rules: which token opens which group of routes."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nsqx.net.access import ADMIN, CONSUME, PUBLISH, READ, AccessRules, access_rules


def rules(tmp_path: Path, *groups: str) -> AccessRules:
    files = {}
    for group in groups:
        (tmp_path / group).write_text(f"{group}-token\n")
        files[group] = str(tmp_path / group)
    found = access_rules(files, [], lambda _method, path: path)
    assert found is not None
    return found


def is_open(checked: AccessRules, group: str, token: str = "") -> bool:
    headers = {b"authorization": f"Bearer {token}".encode()} if token else {}
    request: Any = SimpleNamespace(method="GET", path=group, headers=headers, remote="127.0.0.1:1", tls=None)
    return checked.refusal(request) is None


@pytest.mark.parametrize("group", [PUBLISH, READ, CONSUME])
def test_a_group_needs_its_own_token_or_that_of_admin(tmp_path: Path, group: str) -> None:
    checked = rules(tmp_path, group, ADMIN)
    assert is_open(checked, group, f"{group}-token")
    assert is_open(checked, group, "admin-token")
    assert not is_open(checked, group)
    assert not is_open(checked, group, "another-token")


def test_messages_need_the_admin_token_if_they_have_no_token_of_their_own(tmp_path: Path) -> None:
    checked = rules(tmp_path, READ, ADMIN)
    assert is_open(checked, CONSUME, "admin-token")
    assert not is_open(checked, CONSUME, "read-token")
    assert not is_open(checked, CONSUME)
    assert is_open(checked, PUBLISH)


def test_messages_are_open_if_neither_consume_nor_admin_has_tokens(tmp_path: Path) -> None:
    assert is_open(rules(tmp_path, READ), CONSUME)


def test_the_token_of_messages_opens_nothing_else(tmp_path: Path) -> None:
    checked = rules(tmp_path, READ, CONSUME, ADMIN)
    assert not is_open(checked, READ, "consume-token")
    assert not is_open(checked, ADMIN, "consume-token")
