"""Starts nsqx's nsqd with short timeouts for nsqlookupd, so that tests do not wait."""

import os
import sys
import tempfile

from daemons import Daemon


def start_nsqd_with_lookup_timeouts(
    *flags: str, data_path: str | os.PathLike[str] | None = None, **limits_s: float
) -> Daemon:
    """Start nsqd on free loopback ports; ``limits_s`` are values for constants of its lookup module."""
    changes = "".join(f"lookup.{name} = {value}; " for name, value in limits_s.items())
    program = f"import sys; from nsqx.nsqd import lookup; {changes}from nsqx.cli.commands import nsqd; sys.exit(nsqd())"
    directory = str(data_path) if data_path is not None else tempfile.mkdtemp(prefix="nsqd-")
    listening = ["--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0", "--broadcast-address=127.0.0.1"]
    command = [sys.executable, "-c", program, *listening, f"--data-path={directory}", *flags]
    daemon = Daemon(command, listeners=("TCP", "HTTP"))
    return daemon if data_path is not None else daemon.owns(directory)
