"""The version of this package, and the version of NSQ that it is compatible with."""

import platform

# The version of this package. Nothing else in the repository states it.
VERSION = "0.2.0"

# Reported by the daemons in IDENTIFY, /info and --version. Clients and nsqadmin choose features by it.
NSQ_VERSION = "1.3.0"


def version_line(program: str) -> str:
    """Return the version line that an NSQ daemon prints, in Go's format."""
    return f"{program} v{NSQ_VERSION} (built w/python{platform.python_version()})"


def own_version_line(program: str) -> str:
    """Return the version of this package, and what ``program`` of it is compatible with."""
    return f"nsqx {VERSION} (compatible with {program} v{NSQ_VERSION})"
