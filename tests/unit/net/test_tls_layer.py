"""TLS as a layer between a client and a server, alone and stacked with compression."""

import ssl

import pytest

from certificates import Authority
from nsqx.client.options import Options
from nsqx.errors import ConfigError
from nsqx.net.compression import Deflate
from nsqx.net.layers import Layers
from nsqx.net.snappy import Snappy
from nsqx.net.tls import TLSFailed, TLSLayer, client_context

LIMIT = 256 * 1024


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def server_context(authority):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate = authority.sign("server")
    context.load_cert_chain(certificate.cert, certificate.key)
    return context


def context_of(**options):
    return client_context(Options.of({"tls_v1": True, **options}))


def stacks(client_layer, server_layer):
    client, server = Layers(), Layers()
    assert list(client.push(client_layer, b"")) == []
    assert list(server.push(server_layer, b"")) == []
    return client, server


def exchange(client, server, from_client=b"", from_server=b""):
    """Transfer bytes until both sides are silent; return the data that each has read."""
    read_by_client, read_by_server = b"", b""
    to_server = client.take_output() + (client.send(from_client) if from_client else b"")
    to_client = server.take_output() + (server.send(from_server) if from_server else b"")
    while to_server or to_client:
        read_by_server += b"".join(server.receive(to_server))
        read_by_client += b"".join(client.receive(to_client))
        to_server, to_client = client.take_output(), server.take_output()
    return read_by_client, read_by_server


@pytest.mark.parametrize("version", ["tls1.2", "tls1.3"])
def test_data_is_exchanged_after_the_handshake(authority, server_context, version):
    context = context_of(tls_root_ca_file=authority.cert, tls_min_version=version)
    context.maximum_version = context.minimum_version
    tls = TLSLayer(context, server_hostname="localhost")
    client, server = stacks(tls, TLSLayer(server_context, server_side=True))
    assert exchange(client, server) == (b"", b"")
    assert tls.is_done
    assert tls.version == f"TLSv{version[3:]}"
    assert tls.cipher
    assert exchange(client, server, b"question", b"answer") == (b"answer", b"question")
    big = bytes(range(256)) * 8000
    assert exchange(client, server, big, big) == (big, big)


def test_data_before_the_handshake_is_sent_afterwards(authority, server_context):
    client, server = stacks(
        TLSLayer(context_of(tls_root_ca_file=authority.cert), server_hostname="localhost"),
        TLSLayer(server_context, server_side=True),
    )
    assert exchange(client, server, b"early") == (b"", b"early")


@pytest.mark.parametrize("compression", [Deflate, Snappy])
def test_compression_works_inside_tls(authority, server_context, compression):
    client, server = stacks(
        TLSLayer(context_of(tls_root_ca_file=authority.cert), server_hostname="localhost"),
        TLSLayer(server_context, server_side=True),
    )
    exchange(client, server)
    # nsqd sends OK through the new layer at once, so its bytes may arrive before the layer is added.
    assert list(server.push(compression(), b"")) == []
    early = server.send(b"OK")
    decrypted = b"".join(client.receive(early))
    assert b"".join(client.push(compression(), decrypted)) == b"OK"
    body = b"body " * 100_000
    assert exchange(client, server, body, body) == (body, body)


def test_pieces_are_bounded(authority, server_context):
    client, server = stacks(
        TLSLayer(context_of(tls_root_ca_file=authority.cert), server_hostname="localhost"),
        TLSLayer(server_context, server_side=True),
    )
    exchange(client, server)
    list(client.push(Deflate(), b""))
    list(server.push(Deflate(), b""))
    wire = client.send(bytes(50 * 1024 * 1024))
    sizes = [len(piece) for piece in server.receive(wire)]
    assert sum(sizes) == 50 * 1024 * 1024
    assert max(sizes) <= LIMIT


@pytest.mark.parametrize(
    ("options", "hostname", "text"),
    [
        ({}, "localhost", "the certificate is not trusted"),
        ({"trusted": True}, "elsewhere", "the certificate is not trusted: Hostname mismatch"),
        ({"trusted": True, "tls_insecure_skip_verify": True}, "elsewhere", None),
        ({"tls_insecure_skip_verify": True}, "localhost", None),
    ],
)
def test_certificates_are_verified(authority, server_context, options, hostname, text):
    trusted = {"tls_root_ca_file": authority.cert} if options.pop("trusted", False) else {}
    client, server = stacks(
        TLSLayer(context_of(**options, **trusted), server_hostname=hostname),
        TLSLayer(server_context, server_side=True),
    )
    if text is None:
        exchange(client, server)
    else:
        with pytest.raises(TLSFailed, match=text):
            exchange(client, server)


def test_input_that_is_not_tls_is_rejected(authority):
    layer = TLSLayer(context_of(tls_root_ca_file=authority.cert), server_hostname="localhost")
    with pytest.raises(TLSFailed, match="TLS: "):
        layer.unwrap(b"HTTP/1.1 400 Bad Request\r\n\r\n", LIMIT)


def test_invalid_certificate_files_are_rejected(tmp_path):
    path = tmp_path / "empty.pem"
    path.write_text("")
    with pytest.raises(ConfigError, match="TLS files .*empty.pem"):
        context_of(tls_root_ca_file=str(path))
