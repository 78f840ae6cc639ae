"""Inference of a schema from the first messages of a topic.

The messages are received from the channel of the first sink and requeued, so no message is lost and no additional
channel is created. The sample and its schema are stored, so every later run uses the same schema.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from nsqx.client.blocking import Consumer, Message
from nsqx.errors import NSQError
from nsqx.pipeline.plan import schema_file
from nsqx.pipeline.state import PipelineState
from nsqx.spark.cluster import find_topics
from nsqx.spark.options import read_sink_options

if TYPE_CHECKING:
    from nsqx.pipeline.model import Pipeline, Source

SAMPLE_SIZE = 1000
# How long to wait for the first message, and for each further message.
FIRST_WAIT_S = 30.0
MORE_WAIT_S = 1.0


def infer_schema(spark: Any, pipeline: Pipeline, source: Source, *, first_wait_s: float = FIRST_WAIT_S) -> str:
    """Take a sample, store it with its schema in the state directory, and return the DDL; raises ConfigError."""
    try:
        sample = take_sample(pipeline, source, first_wait_s)
    except NSQError as error:
        raise pipeline.fail(f"source.{source.name}.schema", f"cannot take a sample: {error}") from None
    texts = [body.decode("utf-8", "replace") for body in sample]
    if not texts:
        raise pipeline.fail(
            f"source.{source.name}.schema",
            f"cannot infer it: no message arrived within {first_wait_s:g} s: publish one, or write the schema",
        )
    rows = spark.createDataFrame([(text,) for text in texts], "value STRING")
    schema = spark.read.option("inferTimestamp", "true").json(rows.rdd.map(lambda row: row[0])).schema
    fields = [field for field in schema.fields if field.name != "_corrupt_record"]
    if not fields:
        raise pipeline.fail(
            f"source.{source.name}.schema",
            f"cannot infer it: none of {len(texts)} messages is a JSON object: check the format",
        )
    ddl = str(type(schema)(fields).toDDL())
    PipelineState(pipeline.state).write(schema_file(source), {"schema": ddl, "messages": len(texts), "sample": texts})
    return ddl


def take_sample(pipeline: Pipeline, source: Source, first_wait_s: float) -> list[bytes]:
    """Return the bodies of messages, which are requeued."""
    import asyncio

    cluster = read_sink_options(pipeline.nsq.settings(), has_topic_column=True).cluster
    topic = (
        source.topics[0]
        if source.topics
        else _matching(source, asyncio.run(find_topics(cluster.lookupd_http_addresses, pipeline.nsq.credentials())))
    )
    sink = next(iter(pipeline.sinks.values()))
    options = {**dict(cluster.client_options), "max_in_flight": SAMPLE_SIZE}
    bodies: list[bytes] = []
    with Consumer(
        topic,
        pipeline.channel_of(source, sink),
        nsqd_tcp_addresses=cluster.nsqd_tcp_addresses,
        lookupd_http_addresses=cluster.lookupd_http_addresses,
        **options,
    ) as consumer:
        taken: list[Message] = []
        wait_until_s = time.monotonic() + first_wait_s
        while len(taken) < SAMPLE_SIZE:
            wait_s = MORE_WAIT_S if taken else max(0.0, wait_until_s - time.monotonic())
            message = consumer.get(wait_s)
            if message is None:
                break
            taken.append(message)
        for message in taken:
            bodies.append(message.body)
            message.requeue(0, backoff=False)
    return bodies


def _matching(source: Source, topics: list[str]) -> str:
    import re

    found = [topic for topic in topics if re.fullmatch(source.pattern, topic)]
    if not found:
        raise NSQError(f"no topic matches {source.pattern} yet")
    return found[0]
