"""The version line of the daemons."""

from nsqx.version import version_line


def test_version_line():
    assert version_line("nsqlookupd").startswith("nsqlookupd v1.3.0 (built w/python3.")
