#!/opt/nsqx/bin/python -IS
"""Exit with 0 if the daemon of this container answers /ping with 200, else print why and exit with 1.

The URL is NSQ_HEALTH_URL, or else /ping at the HTTP address of the first process's flags or at the daemon's standard
port. A container that runs another program is always healthy. With --alive any answer is enough: nsqd answers 500 on a
full disk, which a restart does not help.
"""

import http.client
import os
import sys
from pathlib import Path
from urllib.parse import urlsplit

PORTS = {"nsqd": 4151, "nsqlookupd": 4161, "nsqadmin": 4171, "up": 4171}
TIMEOUT_S = 4


def url_of(command: list[str]) -> str:
    """Return the URL for the command line of a daemon, or an empty text for another program."""
    names = [Path(word).name for word in command[:4]]
    program = next((name for name in names if name in PORTS), "")
    if not program:
        return ""
    host, port = "127.0.0.1", str(PORTS[program])
    for number, word in enumerate(command):
        name, _, value = word.lstrip("-").partition("=")
        if word.startswith("-") and name == "http-address":
            value = value or "".join(command[number + 1 : number + 2])
            listening, _, port = value.rpartition(":")
            host = listening if listening not in ("", "0.0.0.0", "[::]") else host
        elif word.startswith("-") and name == "host" and program == "up":
            host = value or "".join(command[number + 1 : number + 2])
    return f"http://{host}:{port}/ping"


def main() -> int:
    command = Path("/proc/1/cmdline").read_bytes().decode(errors="replace").split("\0")
    url = os.environ.get("NSQ_HEALTH_URL") or url_of(command)
    if not url:
        return 0
    parts = urlsplit(url)
    try:
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port or 80, timeout=TIMEOUT_S)
        connection.request("GET", parts.path or "/")
        answer = connection.getresponse()
        text = answer.read(200).decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        print(f"{url}: {error}")
        return 1
    if answer.status != 200 and "--alive" not in sys.argv[1:]:
        print(f"{url}: {answer.status} {text}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
