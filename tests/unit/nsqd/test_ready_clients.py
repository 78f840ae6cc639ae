"""The order in which ready clients are served."""

from dataclasses import dataclass

import pytest

from nsqx.nsqd.client import Client
from nsqx.nsqd.protocol_states import ClientState
from nsqx.nsqd.ready_clients import ELSEWHERE, SAME_REGION, SAME_ZONE, ReadyClients


@dataclass
class Order:
    """Ready clients, each with room for a number of messages."""

    ready: ReadyClients
    count: int = 0

    def join(self, room: int, locality: int = ELSEWHERE) -> Client:
        self.count += 1
        client = Client(self.count, "127.0.0.1:1", "127.0.0.1", None, 0)
        client.state, client.ready_count, client.locality = ClientState.SUBSCRIBED, room, locality
        self.ready.add(client)
        return client

    def serve(self, count: int) -> list[int]:
        """Deliver up to ``count`` messages and return the numbers of the clients that got them."""
        served = []
        for _ in range(count):
            client = self.ready.next()
            if client is None:
                break
            client.in_flight_count += 1
            served.append(client.id)
        return served


@pytest.fixture
def order():
    return Order(ReadyClients())


def test_clients_take_turns_until_they_are_not_ready(order):
    order.join(3)
    order.join(1)
    order.join(2)
    assert order.serve(10) == [1, 2, 3, 1, 3, 1]
    assert not order.ready.has_any()


def test_a_client_is_added_once_and_only_if_it_is_ready(order):
    client = order.join(2)
    assert not order.ready.add(client)
    assert order.serve(10) == [1, 1]
    assert not order.ready.add(client)
    client.in_flight_count = 1
    assert order.ready.add(client)
    assert order.serve(10) == [1]


def test_a_removed_client_is_not_served(order):
    first, near = order.join(5), order.join(5, SAME_ZONE)
    order.join(2)
    for client in (first, near, near):
        order.ready.remove(client)
    assert order.serve(10) == [3, 3]
    assert order.ready.add(first)
    assert order.serve(1) == [1]


def test_the_nearest_clients_are_served_first_and_take_turns(order):
    order.join(2, ELSEWHERE)
    order.join(2, SAME_REGION)
    order.join(2, SAME_ZONE)
    order.join(1, SAME_ZONE)
    assert order.serve(10) == [3, 4, 3, 2, 2, 1, 1]


def test_a_near_client_that_becomes_ready_overtakes_the_others(order):
    order.join(3)
    assert order.serve(1) == [1]
    order.join(1, SAME_REGION)
    assert order.ready.has_any()
    assert order.serve(10) == [2, 1, 1]
