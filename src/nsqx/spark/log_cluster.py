"""The logs of a query's topics: which nsqds have them, how far they are, and the positions of the query there.

Used beside the driver. Asks nsqlookupd and nsqd; the requests to several nsqds run in threads. An nsqd that does not
answer is *away*: its logs keep their last known state.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nsqx.client.handshake import open_connection
from nsqx.client.http_credentials import http_credentials
from nsqx.client.options import Options
from nsqx.cluster.credentials import NSQD, HTTPClientTLS
from nsqx.cluster.fan_out import ask_all
from nsqx.cluster.lookupd import LookupdClient, check_lookupd_address
from nsqx.errors import ClientError, ConfigError, RequestFailed
from nsqx.net.address import format_host_port
from nsqx.spark.cluster import find_topics, http_session
from nsqx.spark.log_http import POOL, NodeAccess, NodeAway, NodeRefused
from nsqx.spark.log_offsets import LogKey, LogStatus, Positions

if TYPE_CHECKING:
    from nsqx.spark.log_options import LogReadOptions

_log = logging.getLogger("nsqx.spark")

_THREADS = 16
# After so long without an answer an nsqd counts as away, and the others go on.
_PATIENCE_S = 3.0
# While an nsqd is away, it is searched this often.
_SEARCH_S = 10.0
# The answers of nsqds that have no log for a topic. Go's nsqd does not know the route.
_NO_LOG = ("NOT_A_LOG", "NOT_FOUND")
# How long an nsqd waits for new messages before it answers.
_POLL_S = 1.0


@dataclass(slots=True)
class LogNode:
    """An nsqd. ``address`` is that of its HTTP API, or empty if it has none for logs."""

    name: str  # its TCP address
    address: str
    topics: list[str]
    log_topics: list[str] = field(default_factory=list)
    classic_topics: list[str] = field(default_factory=list)


class LogCluster:
    """What the nsqds have said last."""

    def __init__(self, options: LogReadOptions) -> None:
        self._options = options
        self._checked = Options.of(dict(options.cluster.client_options))
        self._credentials = http_credentials(self._checked)
        checked = self._checked
        self.access = NodeAccess(
            self._credentials.tokens.get(NSQD, ""),
            HTTPClientTLS(
                checked.tls_root_ca_file, checked.tls_insecure_skip_verify, checked.tls_cert, checked.tls_key
            ),
            options.fetch_timeout_s,
        )
        self.nodes: list[LogNode] = []
        self.logs: dict[LogKey, LogStatus] = {}
        self.away: dict[str, str] = {}  # the reason by the name of the node
        self._found_s = float("-inf")
        self._polls: dict[str, Future[None]] = {}
        self._threads = ThreadPoolExecutor(_THREADS, "nsq logs")

    # Finding

    def find(self) -> None:
        """Find the nsqds and their logs; raises ConfigError if nothing can be asked."""
        nodes = asyncio.run(self._find_nodes())
        self.away = {name: reason for name, (_, reason) in nodes.items() if reason}
        self.nodes = [node for node, _ in nodes.values() if node is not None]
        names = {*self.away, *(node.name for node in self.nodes)}
        self.logs = {key: status for key, status in self.logs.items() if status.node in names}
        self._each(self.nodes, self._look_at)
        self._found_s = time.monotonic()

    def find_again(self) -> None:
        """Find the nsqds again if they were found long ago."""
        interval_s = self._checked.lookupd_poll_interval
        if time.monotonic() - self._found_s < (min(interval_s, _SEARCH_S) if self.away else interval_s):
            return
        try:
            self.find()
        except ConfigError as error:
            _log.warning("%s", error)
            self._found_s = time.monotonic()

    async def _find_nodes(self) -> dict[str, tuple[LogNode | None, str]]:
        """Return the nodes by name, with the reason if one cannot be asked."""
        cluster, options = self._options.cluster, self._options
        found: dict[str, tuple[LogNode | None, str]] = {}
        topics = list(options.topics)
        if cluster.lookupd_http_addresses:
            for address in cluster.lookupd_http_addresses:
                check_lookupd_address(address)
            clients = LookupdClient.at(http_session(self._credentials), cluster.lookupd_http_addresses)
            try:
                if options.topic_pattern:
                    pattern = re.compile(options.topic_pattern)
                    names = await find_topics(cluster.lookupd_http_addresses, self._credentials)
                    topics = [name for name in names if pattern.fullmatch(name)]
                for topic in topics:
                    answers = await ask_all(clients, LookupdClient.lookup, topic)
                    for node in (node for nodes in answers.require_one().values for node in nodes):
                        known, _ = found.setdefault(
                            node.tcp_address, (LogNode(node.tcp_address, node.http_address, []), "")
                        )
                        assert known is not None
                        if topic not in known.topics:
                            known.topics.append(topic)
            except RequestFailed as error:
                raise ConfigError(
                    f"nsq: no nsqlookupd answers ({error}): check nsq.lookupd, it takes HTTP addresses, usually port"
                    " 4161"
                ) from None
        missing = [name for name in cluster.nsqd_tcp_addresses if name not in found]
        for name, outcome in zip(missing, await asyncio.gather(*map(self._ports_of, missing)), strict=True):
            if isinstance(outcome, str):
                found[name] = None, outcome.removeprefix(f"{name}: ")
            else:
                host = name.rpartition(":")[0].strip("[]")
                address = format_host_port(host, outcome) if outcome else ""
                found[name] = LogNode(name, address, list(topics)), ""
        return found

    async def _ports_of(self, address: str) -> int | str:
        """Return the HTTP port of an nsqd, 0 if it has no logs, or the reason why it cannot be asked."""
        for node in self.nodes:
            if node.name == address and node.address and address not in self.away:
                return int(node.address.rpartition(":")[2])
        try:
            connection, terms = await open_connection(address, self._checked, asks_extras=True)
        except ClientError as error:
            return str(error)
        connection.fail(ClientError("not needed any more"))
        return terms.http_port

    def _look_at(self, node: LogNode) -> None:
        """Ask a node which of the topics have a log there, and which are classic."""
        if not node.address:
            node.classic_topics = list(node.topics)
            return
        for topic in node.topics:
            try:
                if self._note(node, self._ask(node, [("topic", topic)])):
                    node.log_topics.append(topic)
            except NodeRefused as refusal:
                if refusal.code in _NO_LOG:
                    node.classic_topics.append(topic)
                elif refusal.code != "TOPIC_NOT_FOUND":
                    raise ConfigError(f"nsq: {refusal}") from None

    def _ask(self, node: LogNode, query: list[tuple[str, object]], *, extra_s: float = 0.0) -> Any:
        return POOL.ask(
            self.access, node.address, "GET", "/log/offsets", [*query, ("sync", "true")], extra_s=extra_s
        ).json()["topics"]

    def _note(self, node: LogNode, topics: Iterable[Mapping[str, Any]]) -> bool:
        """Note the state of logs; False if the query reads none of them."""
        is_wanted = False
        for found in topics:
            name, log = found["topic"], found["log"]
            if not self._is_wanted(node, name, log):
                continue
            is_wanted = True
            channel = next((each for each in found["channels"] if each["channel"] == self._options.channel), None)
            is_paused = bool(found["paused"] or (channel is not None and channel["paused"]))
            for key in [key for key, status in self.logs.items() if key[0] == name and status.node == node.name]:
                if key[1] != log:
                    del self.logs[key]  # the topic was deleted and created again
            self.logs[name, log] = LogStatus(
                name, log, node.name, node.address, found["first"], found["stable"], found["bytes_per_message"],
                is_paused,
            )  # fmt: skip
        return is_wanted

    def _is_wanted(self, node: LogNode, topic: str, log: str) -> bool:
        assigned = self._options.assigned
        return not assigned or bool({node.name, node.address, log}.intersection(assigned.get(topic, ())))

    def _each(self, nodes: list[LogNode], ask: Any) -> None:
        """Call ``ask`` for every node, and note those that do not answer."""
        futures = [(node, self._threads.submit(ask, node)) for node in nodes]
        wait([future for _, future in futures], _PATIENCE_S)
        for node, future in futures:
            if not future.done():
                self._polls[node.name] = future
                self._note_away(node, NodeAway(f"no answer in {_PATIENCE_S:g} s"))
                continue
            try:
                future.result()
                self.away.pop(node.name, None)
            except NodeAway as error:
                self._note_away(node, error)

    def _note_away(self, node: LogNode, error: NodeAway) -> None:
        if node.name not in self.away:
            _log.warning("nsqd %s does not answer: %s", node.name, error)
        self.away[node.name] = str(error)

    @property
    def classic(self) -> list[tuple[str, str]]:
        """Topic and node for each topic that has no log on a node."""
        return [(topic, node.name) for node in self.nodes for topic in node.classic_topics]

    # Polling

    def poll(self, seen: Positions, wait_s: float) -> None:
        """Ask all nodes how far their logs are; with ``wait_s``, until one of them has more than ``seen``."""
        for name in [name for name, future in self._polls.items() if future.done()]:
            self._end_poll(name)
        self._each([node for node in self.nodes if node.log_topics and node.name not in self._polls], self._poll_now)
        if self._has_more(seen) or wait_s <= 0:
            return
        deadline_s = time.monotonic() + wait_s
        for node in self.nodes:
            if node.log_topics and node.name not in self._polls and node.name not in self.away:
                self._polls[node.name] = self._threads.submit(self._poll_later, node)
        while (left_s := deadline_s - time.monotonic()) > 0:
            if not self._polls:
                time.sleep(min(left_s, 0.2))  # nothing can be asked now
                continue
            done, _ = wait(self._polls.values(), left_s, FIRST_COMPLETED)
            for name in [name for name, future in self._polls.items() if future in done]:
                self._end_poll(name)
            if self._has_more(seen):
                return

    def _end_poll(self, name: str) -> None:
        future = self._polls.pop(name)
        node = next((node for node in self.nodes if node.name == name), None)
        try:
            future.result()
        except NodeAway as error:
            if node is not None:
                self._note_away(node, error)

    def _has_more(self, seen: Positions) -> bool:
        logs = list(self.logs.items())
        return any(
            status.stable > seen.get(key, -1) and not status.is_paused and status.node not in self.away
            for key, status in logs
        )

    def _poll_now(self, node: LogNode) -> None:
        self._poll_node(node, [], 0.0)

    def _poll_later(self, node: LogNode) -> None:
        stables = {status.topic: status.stable for status in list(self.logs.values()) if status.node == node.name}
        starts: list[tuple[str, object]] = [("from", stables.get(topic, 0)) for topic in node.log_topics]
        self._poll_node(node, [("wait", f"{int(_POLL_S * 1000)}ms"), *starts], _POLL_S)

    def _poll_node(self, node: LogNode, query: list[tuple[str, object]], extra_s: float) -> None:
        topics: list[tuple[str, object]] = [("topic", topic) for topic in node.log_topics]
        try:
            self._note(node, self._ask(node, [*topics, *query], extra_s=extra_s))
        except NodeRefused:
            node.log_topics, node.classic_topics = [], []
            self._forget(node)
            self._look_at(node)

    def _forget(self, node: LogNode) -> None:
        for key in [key for key, status in self.logs.items() if status.node == node.name]:
            del self.logs[key]

    # Positions

    def create_channel(self, status: LogStatus, start: str) -> tuple[int, bool]:
        """Create the query's channel if it does not exist; return its position, and whether it is new.

        The position stays the same until the first commit, in another process too.
        """
        query = {"topic": status.topic, "channel": self._options.channel, "start": start}
        try:
            answer = self._ask_admin(status, query)
        except NodeRefused as refusal:
            raise ConfigError(f"nsq: cannot create the channel of {status}: {refusal}") from None
        return int(answer["start"]), bool(answer["created"])

    def _ask_admin(self, status: LogStatus, query: Mapping[str, object]) -> Any:
        try:
            return POOL.ask(self.access, status.address, "POST", "/channel/create", query).json()
        except ConfigError:
            # A token of the group consume may not create channels. An existing one is enough.
            floor = self._position_of(status)
            if floor is None:
                raise ConfigError(
                    f"nsq: the token in nsq.nsqd_http_token_file may not create the channel {self._options.channel} of"
                    f" {status}: create it with POST /channel/create, or use a token of the group admin"
                ) from None
            return {"start": floor, "created": False}

    def _position_of(self, status: LogStatus) -> int | None:
        answer = POOL.ask(self.access, status.address, "GET", "/log/offsets", {"topic": status.topic}).json()
        for channel in answer["topics"][0]["channels"]:
            if channel["channel"] == self._options.channel:
                return int(channel["floor"])
        return None

    def commit(self, positions: Positions) -> Positions:
        """Set the positions of the query's channel; return those that were not set."""
        futures = {
            key: self._threads.submit(self._commit, self.logs[key], offset)
            for key, offset in positions.items()
            if key in self.logs and self.logs[key].node not in self.away
        }
        failed = {key: offset for key, offset in positions.items() if key not in futures}
        for key, future in futures.items():
            try:
                future.result()
            except (NodeAway, NodeRefused) as error:
                _log.warning(
                    "cannot set the position of channel %s of topic %s: %s", self._options.channel, key[0], error
                )
                failed[key] = positions[key]
        return failed

    def _commit(self, status: LogStatus, offset: int) -> None:
        query = {"topic": status.topic, "channel": self._options.channel, "log": status.log, "offset": offset}
        POOL.ask(self.access, status.address, "POST", "/channel/commit", query)

    def offset_at(self, status: LogStatus, time_ms: int) -> int | None:
        """Return the offset of the first message at or after a time, None if there is none."""
        query = {"topic": status.topic, "time": str(max(time_ms, 1) * 1_000_000).rjust(16, "0")}
        try:
            return int(POOL.ask(self.access, status.address, "GET", "/log/at", query).json()["offset"])
        except NodeRefused as refusal:
            if refusal.code == "NO_SUCH_TIME":
                return None
            raise ConfigError(f"nsq: cannot find a time in {status}: {refusal}") from None

    def close(self) -> None:
        """Ask nothing more."""
        self._threads.shutdown(wait=False, cancel_futures=True)
