"""A short soak test, with restarts by SIGTERM and by kill -9; ``make soak`` runs a long one."""

import argparse
import json

import pytest
from accounts import Accounts, balance, read_body, write_body
from soak_run import Soak


@pytest.mark.timeout(240)
@pytest.mark.parametrize("restart", ["sigterm", "kill"])
def test_every_message_is_accounted_for(restart: str) -> None:
    arguments = argparse.Namespace(minutes=0.06, connections=80, rate=200.0, kill=restart == "kill", seed=3)
    figures = Soak(arguments).run()
    assert figures.is_good, json.dumps(figures.__dict__, default=str)[:3000]
    assert figures.restarts == 4
    assert figures.balance.acked > 0
    assert figures.balance.deliveries >= 3 * figures.balance.acked


def test_accounts_count_lost_repeated_and_changed_messages() -> None:
    accounts = Accounts()
    for number in range(3):
        assert accounts.next_number(1, 0) == number
        accounts.acked(1, 0, number)
    body = write_body(1, 0, 0, 500)
    assert read_body(body) == (1, 0, 0)
    accounts.received(1, 0, body)
    accounts.received(1, 0, body)
    accounts.received(1, 0, write_body(1, 0, 1, 10))
    accounts.received(1, 0, body[:-1] + b"?")
    accounts.received(1, 0, write_body(2, 0, 1, 10))
    totals = balance(accounts, 1)
    assert (totals.acked, totals.lost, totals.duplicated, totals.foreign) == (3, 1, 1, 2)
