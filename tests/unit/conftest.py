"""Fixtures of the unit tests."""

from collections.abc import Iterator

import pytest

from nsqx.tools.utility import LINE_STYLE


@pytest.fixture(autouse=True)
def _line_style() -> Iterator[None]:
    """Restore the style of lines on stderr, which a command sets for its process."""
    program = LINE_STYLE.program
    yield
    LINE_STYLE.program = program
