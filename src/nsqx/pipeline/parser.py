"""The parser of pipeline files: every key with its type, default and range, and the errors for wrong values.

Needs no Spark. ``plan`` checks what only Spark can check: SQL and the names of columns.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from nsqx.errors import ConfigError
from nsqx.names import invalid_name, is_valid_name
from nsqx.pipeline.model import (
    FILE_SINKS,
    INFER,
    DeadLetterPlace,
    Nsq,
    Pipeline,
    Sink,
    Source,
    SparkSettings,
    Step,
    Table,
    Watermark,
    located,
    read_host_port,
    shared_sink_name,
    source_options,
)
from nsqx.pipeline.toml_document import Section, read_document
from nsqx.spark.options import read_source_options

FORMATS = ("json", "avro", "csv", "text", "raw")
TABLE_FORMATS = ("parquet", "json", "csv", "orc", "text")
SINK_TYPES = (*FILE_SINKS, "delta", "topic", "jdbc", "console", "foreach")
OUTPUT_MODES = ("append", "update", "complete")
AVRO_FRAMINGS = ("none", "single-object", "confluent")
COMPRESSIONS = {
    "parquet": ("zstd", "snappy", "gzip", "lz4", "none"),
    "orc": ("zstd", "snappy", "zlib", "lz4", "none"),
    "json": ("none", "gzip"),
    "csv": ("none", "gzip"),
}

_NAME = re.compile(r"[a-z][a-z0-9_]{0,30}", re.IGNORECASE)
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_SCHEMA_FILE = re.compile(r"\.(ddl|json|avsc)$")
_MAX_CHANNEL_LENGTH = 64


def read_pipeline(
    path: str,
    *,
    overrides: Mapping[str, str] | None = None,
    lookupd: Sequence[str] = (),
    nsqd: Sequence[str] = (),
) -> Pipeline:
    """Return the pipeline in a file; raises ConfigError. Given addresses replace those of the file."""
    document = read_document(path, overrides)
    directory = os.path.dirname(os.path.abspath(path))
    head = document.section("pipeline")
    name = _name(head, head.text("name"))
    state = located(directory, head.text("state", f"{name}.state"))
    trigger_ms = head.duration_ms("trigger")
    metrics_address = _read_metrics_address(head)
    head.end()
    pipeline = Pipeline(
        file=path,
        name=name,
        state=state,
        nsq=_read_nsq(document.section("nsq"), lookupd, nsqd),
        spark=_read_spark(document.section("spark"), directory),
        sources={key: _read_source(key, each, name, directory) for key, each in document.sections("source").items()},
        tables={key: _read_table(key, each, directory) for key, each in document.sections("table").items()},
        steps={key: _read_step(key, each, directory) for key, each in document.sections("step").items()},
        sinks={key: _read_sink(key, each, trigger_ms, directory) for key, each in document.sections("sink").items()},
        dead_letters=_read_dead_letters(document.section("dead_letter"), state, directory),
        metrics_address=metrics_address,
    )
    document.end()
    _check(pipeline, document)
    return pipeline


def _check(pipeline: Pipeline, document: Section) -> None:
    """Check what concerns more than one table of the file."""
    if not pipeline.sources:
        document.fail("source", "a source is required: add a table such as [source.clicks] with topic and format")
    if not pipeline.sinks:
        document.fail("sink", "a sink is required: add a table such as [sink.out] with from and type")
    seen: dict[str, str] = {}
    for kind, names in (("source", pipeline.sources), ("table", pipeline.tables), ("step", pipeline.steps)):
        for name in names:
            if name.lower() in seen:
                document.fail(f"{kind}.{name}", f"a {seen[name.lower()]} has the same name: rename one of them")
            seen[name.lower()] = kind
    relations = pipeline.relations()
    for step in pipeline.steps.values():
        if step.function and step.from_ not in relations:
            document.fail(f"step.{step.name}.from", f"unknown source or step {step.from_!r}: {_one_of(relations)}")
    for sink in pipeline.sinks.values():
        if sink.from_ not in relations:
            document.fail(f"sink.{sink.name}.from", f"unknown source or step {sink.from_!r}: {_one_of(relations)}")
        if sink.from_ in pipeline.tables:
            document.fail(f"sink.{sink.name}.from", f"{sink.from_} is a static table: use a source or a step")
        for source in pipeline.sources.values():
            if len(channel := pipeline.channel_of(source, sink)) > _MAX_CHANNEL_LENGTH:
                document.fail(
                    f"source.{source.name}.channel", f"{channel} is longer than the limit of 64 characters: shorten it"
                )
    for source in pipeline.sources.values():
        channel = f"{source.channel}.{shared_sink_name(source.name)}"
        if source.share and len(channel) > _MAX_CHANNEL_LENGTH:
            document.fail(
                f"source.{source.name}.channel", f"{channel} is longer than the limit of 64 characters: shorten it"
            )
        if pipeline.dead_letters.topic in source.topics:
            document.fail(
                "dead_letter.topic", f"source {source.name} reads this topic, which would be a loop: use another topic"
            )
    if pipeline.nsq.lookupd or pipeline.nsq.nsqd:
        for source in pipeline.sources.values():
            _check_options(pipeline, source, document)
        for sink in pipeline.sinks.values():
            if sink.exactly_once and not pipeline.nsq.nsqd:
                document.fail(
                    f"sink.{sink.name}.exactly_once",
                    "requires the TCP addresses of the nsqds, which share the batches in their order: set [nsq] nsqd",
                )


def _check_options(pipeline: Pipeline, source: Source, document: Section) -> None:
    options = source_options(pipeline, source, next(iter(pipeline.sinks.values())))
    try:
        read_source_options(options)
    except ConfigError as error:
        document.fail(f"source.{source.name}", str(error).removeprefix("nsq: "))


def _read_nsq(section: Section, lookupd: Sequence[str], nsqd: Sequence[str]) -> Nsq:
    in_file = section.texts("lookupd"), section.texts("nsqd")
    options = section.section("options").settings()
    section.end()
    given = (tuple(lookupd), tuple(nsqd)) if lookupd or nsqd else in_file
    return Nsq(*given, options)


def _read_spark(section: Section, directory: str) -> SparkSettings:
    jars = tuple(located(directory, each) for each in section.texts("jars"))
    packages = section.texts("packages")
    settings = section.settings()
    for key in settings:
        if not key.startswith("spark."):
            section.fail(key, 'unknown key: use jars, packages or a setting of Spark ("spark.x.y" = …)')
    for jar in jars:
        if "://" not in jar and not os.path.exists(jar):
            section.fail("jars", f"file {jar} does not exist")
    return SparkSettings(settings, jars, packages)


def _read_source(name: str, section: Section, pipeline_name: str, directory: str) -> Source:
    _name(section, name)
    topics = (*section.texts("topic"), *section.texts("topics"))
    pattern = section.text("pattern", "")
    if bool(topics) == bool(pattern):
        section.fail("topic", "set either topic (one or a list) or pattern (a regular expression)")
    for topic in topics:
        if not is_valid_name(topic):
            section.fail("topic", _invalid_topic(topic))
    kind = section.choice("format", FORMATS, "json")
    source = Source(
        name=name,
        topics=topics,
        pattern=pattern,
        channel=section.text("channel", pipeline_name),
        format=kind,
        schema=_read_schema(section, kind, directory),
        framing=section.choice("framing", AVRO_FRAMINGS, "none") if kind == "avro" else "none",
        delimiter=section.text("delimiter", ",") if kind == "csv" else ",",
        require=section.texts("require"),
        watermark=_read_watermark(section),
        dedup=section.texts("dedup"),
        options=_read_source_options(section),
        backfill=located(directory, section.text("backfill")) if section.has("backfill") else "",
        share=section.flag("share") if section.has("share") else False,
    )
    if source.backfill and source.pattern:
        section.fail("backfill", "set topic instead of pattern: an archive does not tell which topics match")
    if source.backfill and source.share:
        section.fail(
            "share",
            "a source with backfill cannot be shared, because each new sink reads the archive by itself: remove one of"
            " the two",
        )
    if source.dedup and source.watermark is None:
        section.fail("dedup", "requires a watermark, which limits how long rows are remembered: add watermark = { … }")
    section.end(f"a source of format {kind}")
    return source


def _read_source_options(section: Section) -> dict[str, str]:
    options = section.section("options").settings()
    for ours in ("channel", "segmentDir", "subscribe", "subscribePattern"):
        if ours.lower() in map(str.lower, options):
            section.fail(f"options.{ours}", "the pipeline sets it: use topic, pattern and channel of the source")
    if max_rows := section.integer("max_rows_per_batch", 0):
        options["maxRowsPerTrigger"] = str(max_rows)
    return options


def _read_schema(section: Section, kind: str, directory: str) -> str:
    if kind in ("text", "raw"):
        return ""
    if not section.has("schema"):
        section.fail(
            "schema",
            f'required for format {kind}: set it to columns, for example schema = "user STRING, amount DOUBLE", or to a'
            + (' file, or to "infer"' if kind == "json" else " file"),
        )
    text = section.text("schema")
    if text == INFER and kind != "json":
        section.fail("schema", f"infer works only with format json: write the schema of {kind}")
    if not _SCHEMA_FILE.search(text):
        if kind == "avro":
            section.fail("schema", 'an Avro schema must be a file, for example schema = "orders.avsc"')
        return text
    path = located(directory, text)
    try:
        with open(path, encoding="utf-8") as stream:
            return stream.read()
    except OSError as error:
        section.fail("schema", f"{path}: {error.strerror}")


def _read_watermark(section: Section) -> Watermark | None:
    if not section.has("watermark"):
        return None
    table = section.section("watermark")
    column = table.text("column")
    delay_ms = None
    delay = table.text("delay")
    # Other texts, such as "10 minutes", are passed to Spark, which checks them.
    if re.fullmatch(r"[\d.]+(ms|s|m|h)([\d.]+(ms|s|m))*", delay.strip()):
        delay_ms = table.duration_ms("delay")
    table.end()
    return Watermark(column, delay if delay_ms is None else f"{delay_ms} milliseconds")


def _read_table(name: str, section: Section, directory: str) -> Table:
    _name(section, name)
    path = located(directory, section.text("path"))
    guess = path.rstrip("/").rpartition(".")[2].lower()
    kind = section.choice("format", TABLE_FORMATS, guess if guess in TABLE_FORMATS else None)
    schema = section.text("schema", "")
    options = section.section("options").settings()
    if kind == "csv":
        options = {"header": "true", **({} if schema else {"inferSchema": "true"}), **options}
    section.end()
    if "://" not in path and not any(mark in path for mark in "*?[{") and not os.path.exists(path):
        section.fail("path", f"file or directory {path} does not exist")
    return Table(name, path, kind, schema, options)


def _read_step(name: str, section: Section, directory: str) -> Step:
    _name(section, name)
    kinds = [key for key in ("sql", "file", "function") if section.has(key)]
    if len(kinds) != 1:
        section.fail("sql", "set exactly one of sql, file (with SQL) and function (module:name)")
    sql = section.text("sql", "")
    if section.has("file"):
        path = located(directory, section.text("file"))
        try:
            with open(path, encoding="utf-8") as stream:
                sql = stream.read()
        except OSError as error:
            section.fail("file", f"{path}: {error.strerror}")
    function = _read_function(section) if section.has("function") else ""
    step = Step(
        name=name,
        sql=sql.strip().rstrip(";"),
        function=function,
        from_=section.text("from") if function else "",
        schema=section.text("schema") if function else "",
        watermark=_read_watermark(section),
        dedup=section.texts("dedup"),
    )
    if step.dedup and step.watermark is None:
        section.fail("dedup", "requires a watermark, which limits how long rows are remembered: add watermark = { … }")
    section.end("a step with a function" if function else "a step with SQL")
    return step


def _read_function(section: Section) -> str:
    function = section.text("function")
    if not _FUNCTION.fullmatch(function):
        section.fail("function", f"{function!r} is not an import path such as package.module:function")
    return function


def _read_sink(name: str, section: Section, trigger_ms: int | None, directory: str) -> Sink:
    _name(section, name)
    if section.has("type") and section.text("type") == "iceberg":
        section.fail(
            "type",
            "Iceberg's published builds support Spark up to 4.1, and nsqx needs Spark 4.2 or newer: use delta or"
            " parquet",
        )
    kind = section.choice("type", SINK_TYPES)
    sink = Sink(
        name=name,
        from_=section.text("from"),
        type=kind,
        mode=section.choice("mode", OUTPUT_MODES, "append"),
        trigger_ms=section.duration_ms("trigger", trigger_ms),
        **_SINK_READERS[kind](section, directory),
    )
    if kind in FILE_SINKS and sink.mode != "append":
        section.fail("mode", f"files support only append: for {sink.mode} use a sink of type jdbc or topic")
    if kind in ("jdbc", "delta") and sink.mode == "update" and not sink.keys:
        section.fail("keys", 'required for mode update: set the columns that identify a row, keys = ["…"]')
    section.end(f"a sink of type {kind}")
    return sink


def _read_file_sink(section: Section, directory: str) -> dict[str, Any]:
    kind = section.text("type")
    choices = COMPRESSIONS[kind]
    return {
        "path": located(directory, section.text("path")),
        "partition_by": section.texts("partition_by"),
        "compression": section.choice("compression", choices, choices[0]),
    }


def _read_delta_sink(section: Section, directory: str) -> dict[str, Any]:
    return {
        "path": located(directory, section.text("path")),
        "partition_by": section.texts("partition_by"),
        "keys": section.texts("keys"),
    }


def _read_topic_sink(section: Section, _: str) -> dict[str, Any]:
    topic = section.text("topic", "")
    if topic and not is_valid_name(topic):
        section.fail("topic", _invalid_topic(topic))
    return {
        "topic": topic,
        "exactly_once": section.flag("exactly_once") if section.has("exactly_once") else None,
        "previous_nsqd": section.texts("previous_nsqd"),
    }


def _read_jdbc_sink(section: Section, _: str) -> dict[str, Any]:
    url = section.text("url")
    if not url.startswith("jdbc:"):
        section.fail("url", f"{url!r} is not a JDBC URL such as jdbc:postgresql://host/database")
    table = section.text("table")
    if not re.fullmatch(r"\w+(\.\w+)?", table):
        section.fail("table", f"{table!r} is not a table name such as orders or shop.orders")
    return {
        "url": url,
        "table": table,
        "user": section.text("user", ""),
        "password": section.text("password", ""),
        "driver": section.text("driver", ""),
        "keys": section.texts("keys"),
    }


def _read_console_sink(section: Section, _: str) -> dict[str, Any]:
    return {"rows": section.integer("rows", 20)}


def _read_foreach_sink(section: Section, _: str) -> dict[str, Any]:
    return {"function": _read_function(section)}


_SINK_READERS = {
    **dict.fromkeys(FILE_SINKS, _read_file_sink),
    "delta": _read_delta_sink,
    "topic": _read_topic_sink,
    "jdbc": _read_jdbc_sink,
    "console": _read_console_sink,
    "foreach": _read_foreach_sink,
}


def _read_dead_letters(section: Section, state: str, directory: str) -> DeadLetterPlace:
    topic = section.text("topic", "")
    path = section.text("dir", "")
    section.end()
    if topic and path:
        section.fail("topic", "set either topic or dir, not both")
    if topic and not is_valid_name(topic):
        section.fail("topic", _invalid_topic(topic))
    return DeadLetterPlace(topic, "" if topic else located(directory, path) if path else f"{state}/dead-letters")


def _read_metrics_address(section: Section) -> str:
    address = section.text("metrics_address", "")
    if address:
        try:
            read_host_port(address)
        except ConfigError as error:
            section.fail("metrics_address", str(error))
    return address


def _name(section: Section, name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{section.file}: {section.path}: invalid name {name!r}: use 1 to 31 of a-z A-Z 0-9 _, first a letter"
        )
    return name


def _one_of(names: Sequence[str]) -> str:
    return f"use one of {', '.join(names)}"


def _invalid_topic(topic: str) -> str:
    return invalid_name("topic", topic)
