"""Starts nsqx's nsqd with short timeouts for nsqlookupd, so that tests do not wait."""

import os
import sys

from daemons import Daemon, start_nsqd


def start_nsqd_with_lookup_timeouts(
    *flags: str, data_path: str | os.PathLike[str] | None = None, **limits_s: float
) -> Daemon:
    """Start nsqd on free loopback ports; ``limits_s`` are values for constants of its lookup module."""
    changes = "".join(f"lookup.{name} = {value}; " for name, value in limits_s.items())
    program = f"import sys; from nsqx.nsqd import lookup; {changes}from nsqx.cli.commands import nsqd; sys.exit(nsqd())"
    return start_nsqd("nsqx", *flags, data_path=data_path, program=[sys.executable, "-c", program])
