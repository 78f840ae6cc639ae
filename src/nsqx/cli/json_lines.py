"""JSON on stdout: one object per line."""

from __future__ import annotations

import orjson

from nsqx.flags import BOOL, Flag
from nsqx.tools.utility import write_stdout

JSON_FLAG = Flag("json", BOOL, False, "print a JSON object per line", config_key="is_json")


def print_json(value: object) -> None:
    """Write a value as one line; raises BrokenPipeError if stdout is closed."""
    write_stdout(orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE))
