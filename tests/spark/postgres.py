"""A temporary PostgreSQL server for tests, with a new cluster, on a loopback port."""

from __future__ import annotations

import contextlib
import glob
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from daemons import free_port

JAR_VARIABLE = "NSQX_TEST_JDBC_JAR"
_JARS = ("/usr/share/java/postgresql.jar",)


def driver_jar() -> str:
    """Return the path of PostgreSQL's JDBC driver; skips the test if there is none."""
    for path in (os.environ.get(JAR_VARIABLE, ""), *_JARS):
        if path and os.path.exists(path):
            return path
    pytest.skip(f"no JDBC driver of PostgreSQL: apt install libpostgresql-jdbc-java, or set {JAR_VARIABLE}")


def _programs() -> Path:
    found = shutil.which("initdb")
    places = [os.path.dirname(os.path.realpath(found))] if found else sorted(glob.glob("/usr/lib/postgresql/*/bin"))
    if not places:
        pytest.skip("PostgreSQL is not installed: apt install postgresql")
    return Path(places[-1])


def _unprivileged() -> dict[str, Any]:
    """Return subprocess arguments that drop root, because PostgreSQL refuses to run as root."""
    if os.getuid():
        return {}
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(name)
            return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    pytest.skip("PostgreSQL does not run as root, and there is no other user")


@contextlib.contextmanager
def running_postgres() -> Iterator[str]:
    """Run a server during the block; yield its JDBC URL. The user is ``test``."""
    programs, user = _programs(), _unprivileged()
    directory = tempfile.mkdtemp(prefix="postgres-")
    os.chmod(directory, 0o777)
    data, port = f"{directory}/data", free_port()

    def call(program: str, *arguments: str) -> None:
        # Output is not captured: the server would keep the pipe open.
        subprocess.run(
            [str(programs / program), "-D", data, *arguments],
            check=True,
            cwd=directory,
            env={**os.environ, "HOME": directory},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            **user,
        )

    try:
        call("initdb", "-A", "trust", "-U", "test", "--no-sync", "--no-locale", "-E", "UTF8")
        settings = f"-p {port} -k {directory} -c listen_addresses=127.0.0.1 -c fsync=off"
        call("pg_ctl", "-w", "-l", f"{directory}/log", "-o", settings, "start")
        try:
            yield f"jdbc:postgresql://127.0.0.1:{port}/postgres"
        finally:
            call("pg_ctl", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(directory, ignore_errors=True)
