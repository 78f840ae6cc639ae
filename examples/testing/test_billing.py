"""Tests of a worker with a real broker and without waiting."""

import asyncio

import billing

from nsqx.testing import LocalBroker


async def bill_orders(broker: LocalBroker) -> None:
    broker.create("orders", "billing")
    broker.publish("orders", "ada", "grace")
    async with billing.worker(broker.tcp_address):
        await asyncio.to_thread(broker.wait_for, "orders", "billing", deferred_count=1)
        assert broker.bodies("orders", "billing") == [b"grace"]

        billing.CUSTOMERS.add(b"grace")
        broker.advance("10m")
        await asyncio.to_thread(broker.wait_until_finished, "orders", "billing")


def test_an_order_is_billed_when_its_customer_is_known(nsq_broker: LocalBroker) -> None:
    asyncio.run(bill_orders(nsq_broker))
