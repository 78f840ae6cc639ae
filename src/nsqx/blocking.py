"""Producer and consumer for code without an event loop: scripts, notebooks, threads, Spark executors."""

from nsqx.client.blocking import BlockingTopicPublisher, Consumer, Message, Producer

__all__ = ["BlockingTopicPublisher", "Consumer", "Message", "Producer"]
