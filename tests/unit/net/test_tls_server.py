"""An error about a certificate file is one line with the file and the reason."""

import ssl
import subprocess

import pytest

from certificates import self_signed
from nsqx.errors import ConfigError
from nsqx.net.tls_server import server_context

TLS_1_2 = 0x0303


def reason(certificate: str, key: str) -> str:
    with pytest.raises(ConfigError) as caught:
        server_context(certificate, key, TLS_1_2)
    text = str(caught.value)
    assert text.startswith("failed to build TLS config - ")
    assert "\n" not in text
    return text.removeprefix("failed to build TLS config - ")


def test_a_matching_pair_is_loaded(tmp_path):
    made = self_signed(tmp_path, "server")
    assert isinstance(server_context(made.cert, made.key, TLS_1_2), ssl.SSLContext)


def test_missing_files_are_rejected(tmp_path):
    made = self_signed(tmp_path, "server")
    assert reason("missing.pem", made.key) == "open missing.pem: No such file or directory"
    assert reason(made.cert, "missing.key") == "open missing.key: No such file or directory"


def test_files_without_pem_are_rejected(tmp_path):
    made = self_signed(tmp_path, "server")
    empty = tmp_path / "empty"
    empty.write_bytes(b"")
    assert reason(str(empty), made.key) == f"{empty}: no certificate in PEM format found"
    assert reason(made.cert, str(empty)) == f"{empty}: no private key in PEM format found"
    assert reason(made.cert, made.cert) == f"{made.cert}: no private key in PEM format found"


def test_damaged_pem_is_rejected(tmp_path):
    made = self_signed(tmp_path, "server")
    damaged = tmp_path / "damaged"
    damaged.write_bytes(b"-----BEGIN CERTIFICATE-----\nxx\n-----END CERTIFICATE-----\n")
    assert reason(str(damaged), made.key) == f"{damaged} {made.key}: damaged pem data"


def test_a_key_of_another_certificate_is_rejected(tmp_path):
    made, other = self_signed(tmp_path, "server"), self_signed(tmp_path, "other")
    assert reason(made.cert, other.key) == f"{made.cert} {other.key}: key values mismatch"


def test_an_encrypted_key_is_rejected_without_asking_for_a_password(tmp_path):
    made = self_signed(tmp_path, "server")
    encrypted = tmp_path / "encrypted.key"
    command = ["openssl", "pkey", "-in", made.key, "-aes128", "-passout", "pass:secret", "-out", str(encrypted)]
    subprocess.run(command, check=True, capture_output=True)
    assert reason(made.cert, str(encrypted)) == f"{encrypted}: the private key is encrypted: decrypt it first"
