"""Log mode: whether a source reads logs, where its queries begin, and the positions of their channels.

The data source decides by itself between the logs of its topics and a channel. These functions tell the pipeline what
it will choose. A new query begins at the beginning of each log; its channel is created there before any query starts.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from nsqx.pipeline.figures import positions_of
from nsqx.pipeline.model import source_options
from nsqx.spark.log_cluster import LogCluster
from nsqx.spark.log_http import POOL, NodeAway, NodeRefused
from nsqx.spark.log_options import CHANNEL, read_log_options, read_mode
from nsqx.spark.log_source import LogPlanner, LogStreamReader
from nsqx.spark.segments import SegmentDirectory

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nsqx.pipeline.model import Pipeline, Sink, Source


def reads_logs(pipeline: Pipeline, source: Source, sink: Sink) -> bool:
    """Return True if the query of a sink reads the logs of a source: every nsqd that has a topic has a log for it.

    Raises ConfigError if nothing can be asked.
    """
    given = source_options(pipeline, source, sink)
    if read_mode(given) == CHANNEL or SegmentDirectory.exists(given["segmentDir"]):
        return False
    cluster = LogCluster(read_log_options(given, is_stream=True))
    try:
        cluster.find()
        return bool(cluster.logs) and not cluster.classic
    finally:
        cluster.close()


def create_log_channels(
    pipeline: Pipeline, source: Source, sink: Sink, starts: Mapping[str, Mapping[str, int]] | None = None
) -> dict[str, int]:
    """Create the channels of a query that reads logs, and return where it begins; raises ConfigError.

    The channels keep the messages from there on until the query has read them. ``starts`` are the offsets at which new
    channels begin, by topic and log; without one a channel begins at the beginning of its log.
    """
    given = source_options(pipeline, source, sink)
    if starts and any(starts.values()):
        given["startingOffsets"] = json.dumps(starts)
    options = read_log_options(given, is_stream=True)
    reader = LogStreamReader(options, LogPlanner(options))
    try:
        return positions_of(reader.initialOffset())
    finally:
        reader.stop()


def first_offsets(pipeline: Pipeline, source: Source, sink: Sink) -> dict[str, int]:
    """Return the first offset that each log has, as ``positions_of`` does; raises ConfigError."""
    cluster = LogCluster(read_log_options(source_options(pipeline, source, sink), is_stream=True))
    try:
        cluster.find()
        return {f"{topic}/{log}": status.first for (topic, log), status in cluster.logs.items()}
    finally:
        cluster.close()


def set_log_positions(pipeline: Pipeline, source: Source, sink: Sink, ends: Mapping[str, int]) -> list[str]:
    """Set the positions of the channels of a query; return the logs whose nsqd did not answer. Raises ConfigError."""
    cluster = LogCluster(read_log_options(source_options(pipeline, source, sink), is_stream=True))
    try:
        cluster.find()
        wanted = {(topic, log): ends[f"{topic}/{log}"] for topic, log in cluster.logs if f"{topic}/{log}" in ends}
        missing = [key for key in ends if tuple(key.split("/")) not in wanted and key.split("/")[0] in source.topics]
        return [*missing, *("/".join(key) for key in cluster.commit(wanted))]
    finally:
        cluster.close()


def create_topic_in_logs(pipeline: Pipeline, topic: str) -> bool:
    """Create a topic on all nsqds of the pipeline, and return True if each has a log for it; raises ConfigError."""
    options = read_log_options({**pipeline.nsq.settings(), "subscribe": topic}, is_stream=False)
    cluster = LogCluster(options)
    try:
        cluster.find()
        if cluster.classic or cluster.away:
            return False
        for node in cluster.nodes:
            if topic not in node.log_topics:
                POOL.ask(cluster.access, node.address, "POST", "/topic/create", {"topic": topic})
        cluster.find()
        return not cluster.classic and len(cluster.logs) == len(pipeline.nsq.nsqd)
    except (NodeAway, NodeRefused):
        # The token may not create topics, or the nsqd ends: publishing reports what is wrong.
        return False
    finally:
        cluster.close()
