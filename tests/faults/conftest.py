"""Fixtures of the fault tests, and the switch for the slow ones: ``--run-slow``, or NSQX_SLOW=1 in the environment."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from stage import Stage

import daemons

HERE = Path(__file__).parent
SLOW_REASON = "takes long: run with --run-slow or NSQX_SLOW=1"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--run-slow", action="store_true", help="also run the slow fault tests")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: takes long, so it runs only with --run-slow or NSQX_SLOW=1")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--run-slow", False) or os.environ.get("NSQX_SLOW"):
        return
    for item in items:
        if HERE in item.path.parents and item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.skip(reason=SLOW_REASON))


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """A data directory for nsqx's nsqd; its daemons, tracers and mounts end with the test."""
    with Stage("nsqx", tmp_path) as place:
        yield place


@pytest.fixture
def classic_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the classic store even if NSQX_TEST_STORE names another one, for tests of its files and of its syncs."""
    monkeypatch.setattr(daemons, "TEST_STORE", "classic")
