"""Fixtures for tests that run Go's programs or third-party clients beside nsqx.

With NSQX_CANDIDATE=go in the environment, the differential tests compare the Go daemon with itself. A difference found
in this mode is a defect of the tests.
"""

import os
import ssl
import subprocess
from pathlib import Path

import pytest

from daemons import GO_MISSING, IMPLEMENTATIONS, has_go

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.interop)
            if not has_go():
                item.add_marker(pytest.mark.skip(reason=GO_MISSING))


@pytest.fixture(scope="session")
def candidate() -> str:
    """The implementation that is compared with the Go daemon."""
    return os.environ.get("NSQX_CANDIDATE", "nsqx")


@pytest.fixture(params=IMPLEMENTATIONS)
def implementation(request: pytest.FixtureRequest) -> str:
    """Each implementation in turn. The run on Go's program shows that the test expects NSQ's behaviour."""
    name: str = request.param
    return name


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """File names of a self-signed certificate for localhost and of its key."""
    directory = tmp_path_factory.mktemp("tls")
    cert, key = str(directory / "cert.pem"), str(directory / "key.pem")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    try:
        subprocess.run([*command, "-keyout", key, "-out", cert], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl missing: install it to make test certificates")
    return cert, key


@pytest.fixture(scope="session")
def tls_context(certificate: tuple[str, str]) -> ssl.SSLContext:
    """A TLS context for clients that trusts the test certificate."""
    return ssl.create_default_context(cafile=certificate[0])
