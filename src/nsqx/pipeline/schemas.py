"""The schemas of sources: given in the pipeline file, or inferred from the first messages of a topic.

The sample of messages is received from the channel of the first sink that reads the source, and requeued, so no message
is lost and no additional channel is created. The sample and its schema are stored, so every later run uses the same
schema.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nsqx.client.blocking import Consumer, Message
from nsqx.errors import ConfigError, NSQError
from nsqx.pipeline.avro import spark_schema_json
from nsqx.pipeline.decode import LOG_META, META
from nsqx.pipeline.log_mode import reads_logs
from nsqx.pipeline.model import INFER, cluster_of
from nsqx.pipeline.spark_errors import explain
from nsqx.pipeline.state import PipelineState
from nsqx.spark.cluster import find_topics
from nsqx.spark.jvm import has_jvm

if TYPE_CHECKING:
    from nsqx.pipeline.model import Pipeline, Sink, Source
    from nsqx.spark.options import ClusterAddresses

SAMPLE_SIZE = 1000
# How long to wait for the first message, and for each further message.
FIRST_WAIT_S = 30.0
MORE_WAIT_S = 1.0


@dataclass(frozen=True, slots=True)
class SourceSchemas:
    """The schemas of sources."""

    known: Mapping[str, Any]
    """The StructType of each source by name; None for the formats text and raw."""
    missing: tuple[Source, ...] = ()
    """The sources whose schema must be inferred, and of which there is no sample yet."""


def find_schemas(pipeline: Pipeline, sources: Iterable[Source]) -> SourceSchemas:
    """Return the schemas that are given or stored; raises ConfigError if one is invalid."""
    state = PipelineState(pipeline.state)
    known: dict[str, Any] = {}
    missing = []
    for source in sources:
        if source.schema != INFER:
            known[source.name] = _parse(pipeline, source, source.schema)
        elif (stored := state.read(_file_of(source))) is not None:
            known[source.name] = _parse(pipeline, source, stored["schema"])
        else:
            missing.append(source)
    return SourceSchemas(known, tuple(missing))


def infer_schemas(
    spark: Any, pipeline: Pipeline, schemas: SourceSchemas, readers: Mapping[str, Sink], note: Callable[[str], None]
) -> SourceSchemas:
    """Return ``schemas`` with the missing ones, each inferred from a sample; raises ConfigError.

    ``readers`` are the sinks whose channels the samples are received from, by source.
    """
    inferred = {}
    for source in schemas.missing:
        note(f"source.{source.name}: taking a sample to infer the schema")
        ddl = _infer(spark, pipeline, source, readers[source.name])
        note(f"source.{source.name}: {ddl}")
        inferred[source.name] = _parse(pipeline, source, ddl)
    return SourceSchemas({**schemas.known, **inferred})


def infer_from_bodies(
    spark: Any, pipeline: Pipeline, schemas: SourceSchemas, bodies: Mapping[str, Sequence[bytes]]
) -> SourceSchemas:
    """Return ``schemas`` with the missing ones, each inferred from given messages of the source; raises ConfigError."""
    inferred = {}
    for source in schemas.missing:
        texts = [body.decode("utf-8", "replace") for body in bodies.get(source.name, ())]
        inferred[source.name] = _parse(pipeline, source, _ddl_of(spark, pipeline, source, texts))
    return SourceSchemas({**schemas.known, **inferred})


def not_inferred(pipeline: Pipeline, source: Source) -> ConfigError:
    """Return the error for a source whose schema is missing."""
    return pipeline.fail(f"source.{source.name}.schema", "not inferred yet: the first run infers it")


def _file_of(source: Source) -> str:
    return f"schema-{source.name}.json"


def _parse(pipeline: Pipeline, source: Source, text: str) -> Any:
    from pyspark.sql.types import DataType, StructType

    if source.format in ("text", "raw"):
        return None
    key = f"source.{source.name}.schema"
    try:
        if source.format == "avro":
            schema: Any = StructType.fromJson(spark_schema_json(text))
        elif text.lstrip().startswith("{"):
            schema = StructType.fromJson(json.loads(text))
        else:
            schema = DataType.fromDDL(text)
    except ConfigError as error:
        raise pipeline.fail(key, str(error)) from None
    except Exception as error:  # Spark raises various errors for JSON that is not a schema
        raise pipeline.fail(key, f"invalid schema: {explain(error)}") from None
    taken = sorted({field.name for field in schema.fields} & {*META.values(), *LOG_META.values()})
    if taken:
        raise pipeline.fail(key, f"{', '.join(taken)} is a column that the pipeline adds: rename the field")
    return schema


def _infer(spark: Any, pipeline: Pipeline, source: Source, reader: Sink) -> str:
    """Take a sample, store it with its schema in the state directory, and return the DDL; raises ConfigError."""
    key = f"source.{source.name}.schema"
    cluster = cluster_of(pipeline)
    try:
        sample = _take_sample(spark, pipeline, source, reader, cluster)
    except NSQError as error:
        raise pipeline.fail(key, f"cannot take a sample: {error}") from None
    texts = [body.decode("utf-8", "replace") for body in sample]
    if not texts:
        raise pipeline.fail(
            key, f"cannot infer it: no message arrived within {FIRST_WAIT_S:g} s: publish one, or write the schema"
        )
    ddl = _ddl_of(spark, pipeline, source, texts)
    PipelineState(pipeline.state).write(_file_of(source), {"schema": ddl, "messages": len(texts), "sample": texts})
    return ddl


def _ddl_of(spark: Any, pipeline: Pipeline, source: Source, texts: Sequence[str]) -> str:
    """Return the columns of JSON objects; raises ConfigError if there are none."""
    rows = spark.createDataFrame([(text,) for text in texts], "value STRING")
    reader = spark.read.option("inferTimestamp", "true")
    schema = (reader.json(rows.rdd.map(lambda row: row[0])) if has_jvm(spark) else reader.json(rows)).schema
    fields = [field for field in schema.fields if field.name != "_corrupt_record"]
    if not fields:
        key = f"source.{source.name}.schema"
        raise pipeline.fail(key, f"cannot infer it: none of {len(texts)} messages is a JSON object: check the format")
    return str(type(schema)(fields).toDDL())


def _take_sample(
    spark: Any, pipeline: Pipeline, source: Source, reader: Sink, cluster: ClusterAddresses
) -> list[bytes]:
    """Return the bodies of messages, which are read from a log, or requeued."""
    if reads_logs(pipeline, source, reader):
        return _read_sample(spark, pipeline, source)
    topic = (
        source.topics[0]
        if source.topics
        else _matching(source, asyncio.run(find_topics(cluster.lookupd_http_addresses, pipeline.nsq.credentials())))
    )
    options = {**dict(cluster.client_options), "max_in_flight": SAMPLE_SIZE}
    with Consumer(
        topic,
        pipeline.channel_of(source, reader),
        nsqd_tcp_addresses=cluster.nsqd_tcp_addresses,
        lookupd_http_addresses=cluster.lookupd_http_addresses,
        require_connection=not cluster.lookupd_http_addresses,
        **options,
    ) as consumer:
        taken: list[Message] = []
        wait_until_s = time.monotonic() + FIRST_WAIT_S
        while len(taken) < SAMPLE_SIZE:
            wait_s = MORE_WAIT_S if taken else max(0.0, wait_until_s - time.monotonic())
            message = consumer.get(wait_s)
            if message is None:
                break
            taken.append(message)
        for message in taken:
            message.requeue(0, backoff=False)
        return [message.body for message in taken]


def _read_sample(spark: Any, pipeline: Pipeline, source: Source) -> list[bytes]:
    """Return the bodies of messages in logs; waits for the first one."""
    subscribed = {"subscribePattern": source.pattern} if source.pattern else {"subscribe": ",".join(source.topics)}
    options = {**pipeline.nsq.settings(), **subscribed, "mode": "log"}
    rows = spark.read.format("nsq").options(**options).load().select("value").limit(SAMPLE_SIZE)
    wait_until_s = time.monotonic() + FIRST_WAIT_S
    while not (found := [bytes(row.value) for row in rows.collect()]) and time.monotonic() < wait_until_s:
        time.sleep(MORE_WAIT_S)
    return found


def _matching(source: Source, topics: list[str]) -> str:
    found = [topic for topic in topics if re.fullmatch(source.pattern, topic)]
    if not found:
        raise NSQError(f"no topic matches {source.pattern} yet")
    return found[0]
