"""The version of this package, and the version of NSQ that it is compatible with."""

import platform

VERSION = "0.1.0"

# Reported by the daemons in IDENTIFY, /info and --version. Clients and nsqadmin choose features by it.
NSQ_VERSION = "1.3.0"


def version_line(program: str) -> str:
    """Return the version line that an NSQ daemon prints."""
    return f"{program} v{NSQ_VERSION} (built w/python{platform.python_version()})"
