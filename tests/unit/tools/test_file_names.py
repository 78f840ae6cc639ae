from datetime import datetime, timedelta, timezone

import pytest

from nsqx.tools.file_names import file_names, format_time, host_identifier, with_revision
from nsqx.tools.utility import UtilityFailed

AFTERNOON = datetime(2006, 1, 2, 15, 4, 5, tzinfo=timezone(timedelta(hours=-7), "MST"))
MIDNIGHT = datetime(826, 12, 31, 0, 4, 5, tzinfo=timezone(timedelta(hours=5, minutes=30), "IST"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("%Y-%m-%d_%H", "2006-01-02_15"),
        ("%B %b %A %a", "January Jan Monday Mon"),
        ("%I:%M:%S %p %y", "03:04:05 PM 06"),
        ("%Z %z", "MST -0700"),
        ("100%% %q %", "100% %q %"),
        ("2006 Jan 15", "2006 Jan 15"),  # a Go layout is only text
    ],
)
def test_times_are_formatted_as_strftime_does(text: str, expected: str) -> None:
    assert format_time(text, AFTERNOON) == expected


def test_early_years_midnight_and_half_hour_offsets_are_formatted() -> None:
    assert format_time("%Y %I %p %B %z", MIDNIGHT) == "0826 12 AM December +0530"


def test_host_identifiers_are_replaced() -> None:
    assert host_identifier("", "web1.example.org") == "web1"
    assert host_identifier("<SHORT_HOST>/<HOSTNAME>", "web1.example.org") == "web1/web1.example.org"


def names(filename_format: str, **changes: object) -> str:
    arguments = {"topic": "t", "host": "h", "gzip": False, "needs_revision": False, **changes}
    return file_names(filename_format, "%Y", **arguments).at(AFTERNOON)  # type: ignore[arg-type]


def test_tokens_in_file_names_are_replaced() -> None:
    assert names("<TOPIC>.<HOST><REV>.<DATETIME>.log") == "t.h.2006.log"
    assert names("<TOPIC><REV>.<DATETIME>", needs_revision=True) == "t<REV>.2006"
    assert names("<TOPIC><REV>", needs_revision=True, gzip=True) == "t<REV>.gz"
    assert names("<TOPIC><REV>.gz", needs_revision=True, gzip=True) == "t<REV>.gz"


def test_a_required_revision_needs_its_token() -> None:
    with pytest.raises(UtilityFailed, match="missing <REV>"):
        names("<TOPIC>", needs_revision=True)


def test_a_topic_name_cannot_leave_the_output_directory() -> None:
    with pytest.raises(UtilityFailed, match="would leave the output directory"):
        names("<TOPIC>/log", topic="..")
    assert names("<TOPIC>.log", topic="..") == "...log"


def test_a_revision_has_six_digits() -> None:
    assert with_revision("a<REV>.<REV>", 12) == "a-000012.-000012"
