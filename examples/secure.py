"""TLS with a client certificate, compression inside it, and a secret for nsqd's auth server."""

import asyncio
import os

from nsqx import Producer


async def main() -> None:
    producer = Producer(
        os.environ.get("NSQD", "127.0.0.1:4150"),
        tls_v1=True,
        tls_root_ca_file=os.environ["CA_FILE"],
        tls_cert=os.environ["CERT_FILE"],
        tls_key=os.environ["KEY_FILE"],
        snappy=True,
        auth_secret=os.environ["AUTH_SECRET"],
    )
    async with producer:
        await producer.publish("orders", b"order 1")
    print("published")


asyncio.run(main())
