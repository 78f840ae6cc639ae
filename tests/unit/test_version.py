"""The version lines, and the one place of the version."""

import re
from pathlib import Path

from nsqx.version import NSQ_VERSION, VERSION, own_version_line, version_line

CHANGELOG = Path(__file__).resolve().parents[2] / "CHANGELOG.md"


def test_version_line():
    assert version_line("nsqlookupd").startswith("nsqlookupd v1.3.0 (built w/python3.")


def test_the_version_of_this_package_is_beside_that_of_nsq():
    assert own_version_line("nsqd") == f"nsqx {VERSION} (compatible with nsqd v{NSQ_VERSION})"


def test_the_changelog_has_the_version_or_is_ahead_of_it():
    versions = re.findall(r"^## \[(\S+)\]", CHANGELOG.read_text(encoding="utf-8"), re.MULTILINE)
    assert versions[0] in (VERSION, "Unreleased")
    assert VERSION not in versions[2:]
