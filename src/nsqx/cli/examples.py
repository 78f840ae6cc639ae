"""The examples in the help texts of the nsqx commands: command lines and what they do."""

from __future__ import annotations

EXAMPLES: dict[str, dict[str, str]] = {
    "up": {
        "nsqx up": "a cluster on the standard ports, with the page at http://127.0.0.1:4171",
        "nsqx up --nodes=3": "the same with three nsqds",
    },
    "pub": {
        "nsqx pub orders hello 'two words'": "publish two messages",
        "nsqx pub orders < lines.txt": "publish each line of a file",
        "nsqx pub orders --defer=30s later": "deliver the message after 30 seconds",
    },
    "sub": {
        "nsqx sub orders": "watch: copies of the messages published from now on",
        "nsqx sub orders billing": "consume the messages of a channel",
        "nsqx sub orders billing --count=1 --json": "one message with its id, time and attempts",
        "nsqx sub orders --filter=.status=failed": "only messages whose JSON field status is failed",
        "nsqx sub orders --format='{time} {size} {body}'": "choose what is printed",
    },
    "topics": {"nsqx topics": "list all topics", "nsqx topics --json": "a JSON object per topic"},
    "channels": {
        "nsqx channels": "the channels of all topics, the longest backlog first",
        "nsqx channels orders --json": "a JSON object per channel of orders",
    },
    "clients": {
        "nsqx clients": "all consumers and producers",
        "nsqx clients orders billing": "the consumers of a channel",
    },
    "nodes": {"nsqx nodes": "version, uptime, memory and counts of every nsqd"},
    "top": {"nsqx top": "rates and backlogs of all channels", "nsqx top orders --interval=1s": "those of one topic"},
    "stats": {
        "nsqx stats": "depth and counts of all topics and channels",
        "nsqx stats orders --interval=2s": "repeat with rates; redrawn in place on a terminal",
    },
    "peek": {
        "nsqx peek orders": "the oldest messages of a topic",
        "nsqx peek orders billing": "the messages that a channel has not finished",
        "nsqx peek orders --time=-10m --contains=error": "search the last ten minutes",
    },
    "seek": {
        "nsqx seek orders billing --to=-1h --dry-run": "show what moving the channel back one hour would do",
        "nsqx seek orders billing --to=end": "skip everything that waits",
    },
    "create": {
        "nsqx create orders": "create a topic on every nsqd",
        "nsqx create orders billing": "create a channel, and its topic",
    },
    "pause": {
        "nsqx pause orders billing": "deliver no messages of a channel",
        "nsqx pause orders": "pass no messages of a topic to its channels",
    },
    "unpause": {"nsqx unpause orders billing": "deliver messages again"},
    "empty": {
        "nsqx empty orders billing": "discard the messages that wait in a channel, after a confirmation",
        "nsqx empty orders billing --yes": "the same without a question",
    },
    "delete": {
        "nsqx delete orders billing": "delete a channel and its messages, after a confirmation",
        "nsqx delete orders --yes": "delete a topic, its channels and its messages",
    },
    "move": {
        "nsqx move orders/billing orders.retry": "move the messages that wait in a channel to another topic",
        "nsqx move orders orders2": "move the messages of a topic without channels",
        "nsqx move orders/billing orders.retry --count=100": "at most 100 messages",
    },
    "config": {
        "nsqx config show orders": "the settings of a topic",
        "nsqx config set orders max_attempts=5 retain_age=72h": "change two settings on every nsqd",
        "nsqx config unset orders retain_age": "use the value of the configuration again",
    },
    "context": {
        "nsqx context add prod --lookupd-http-address=lookup:4161": "name a cluster",
        "nsqx context use prod": "use it from now on",
        "nsqx topics --context=staging": "use another one once",
        "nsqx context ls": "list the contexts",
    },
    "drain": {
        "nsqx drain node1:4151 --wait --timeout=10m": "empty an nsqd before it is removed",
        "nsqx drain node1:4151 --status": "show what is left",
    },
    "undrain": {"nsqx undrain node1:4151": "accept publishes again"},
    "dlq": {
        "nsqx dlq ls": "the dead letters of all topics",
        "nsqx dlq show orders": "why messages of orders have failed",
        "nsqx dlq redrive orders --channel=billing": "deliver them again to the channel that failed",
    },
    "log": {
        "nsqx log ls /var/lib/nsqd": "the topic logs of a stopped nsqd",
        "nsqx log verify /var/lib/nsqd": "read every message and check it",
        "nsqx log trim orders --before=-24h": "drop messages of a running cluster that are older than a day",
    },
    "doctor": {
        "nsqx doctor /var/lib/nsqd": "check the data directory of a stopped nsqd",
        "nsqx doctor /var/lib/nsqd --repair": "repair what can be repaired",
    },
    "pipeline": {
        "nsqx pipeline check orders.toml": "check a pipeline without consuming messages",
        "nsqx pipeline run orders.toml": "run it",
    },
    "archive": {"nsqx archive orders --to=/data/archive": "write the messages of a topic to Parquet files"},
    "replay": {"nsqx replay /data/archive --to=orders": "publish archived messages again"},
    "bench": {
        "nsqx bench list": "the workloads",
        "nsqx bench run pub --nsqd-tcp-address=127.0.0.1:4150": "measure a broker",
    },
    "completion": {'eval "$(nsqx completion bash)"': "complete commands in this shell"},
}
