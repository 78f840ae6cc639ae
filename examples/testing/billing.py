"""A worker that bills orders. An order whose customer is unknown is tried again after ten minutes."""

from nsqx import Consumer, Message

CUSTOMERS = {b"ada"}


async def bill(message: Message) -> None:
    if message.body in CUSTOMERS:
        message.finish()
    else:
        message.requeue("10m")


def worker(nsqd_address: str) -> Consumer:
    return Consumer("orders", "billing", bill, nsqd_tcp_addresses=nsqd_address)
