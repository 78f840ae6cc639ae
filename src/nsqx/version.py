"""Two versions: the one this package is released under, and the NSQ version whose behaviour it speaks."""

import platform

VERSION = "0.1.0"

# What daemons report on the wire, in /info and in --version: clients and nsqadmin decide features by it.
NSQ_VERSION = "1.3.0"


def version_line(program: str) -> str:
    """How an NSQ daemon introduces itself."""
    return f"{program} v{NSQ_VERSION} (built w/python{platform.python_version()})"
