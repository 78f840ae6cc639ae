"""Makes certificates for tests with openssl: an authority and the certificates that it signs."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

_NEW_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]


@dataclass(frozen=True)
class Certificate:
    """The file names of a certificate and its key."""

    cert: str
    key: str


class Authority:
    """Signs certificates; ``cert`` is the file of the authority's own certificate."""

    def __init__(self, directory: Path, name: str = "authority") -> None:
        self._directory = directory
        self.cert, self._key = str(directory / f"{name}.pem"), str(directory / f"{name}.key")
        _openssl(
            "req", "-x509", *_NEW_KEY, "-days", "2", "-subj", f"/CN={name}", "-keyout", self._key, "-out", self.cert
        )

    def sign(self, name: str, alternatives: str = "DNS:localhost,IP:127.0.0.1", *, days: int = 2) -> Certificate:
        """Return a certificate for ``name``; with ``days=-1`` it has expired."""
        made = Certificate(str(self._directory / f"{name}.pem"), str(self._directory / f"{name}.key"))
        request, extensions = self._directory / f"{name}.csr", self._directory / f"{name}.ext"
        extensions.write_text(f"subjectAltName={alternatives}\n")
        _openssl("req", *_NEW_KEY, "-subj", f"/CN={name}", "-keyout", made.key, "-out", str(request))
        signing = ["-CA", self.cert, "-CAkey", self._key, "-CAcreateserial", "-days", str(days)]
        _openssl("x509", "-req", "-in", str(request), *signing, "-extfile", str(extensions), "-out", made.cert)
        return made


def self_signed(directory: Path, name: str) -> Certificate:
    """Return a self-signed certificate."""
    made = Certificate(str(directory / f"{name}.pem"), str(directory / f"{name}.key"))
    names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    _openssl(
        "req", "-x509", *_NEW_KEY, "-days", "2", "-subj", f"/CN={name}", *names, "-keyout", made.key, "-out", made.cert
    )
    return made


def _openssl(*arguments: str) -> None:
    try:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl missing: install it to make test certificates")
