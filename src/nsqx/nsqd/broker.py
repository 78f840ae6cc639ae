"""The broker: topics by name, connected clients, and the services that topics and channels use.

It owns all state and opens no socket. ``daemon`` adds the listeners and controls start and stop.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from nsqx.cluster.credentials import Credentials
from nsqx.errors import BrokerDraining, BrokerExiting, DiskQueueError
from nsqx.names import is_valid_name
from nsqx.net.round_robin import RoundRobin
from nsqx.net.steps import StepScheduler
from nsqx.nsqd.authorizer import Authorizer, OpenAuthorizer
from nsqx.nsqd.classic_files import ClassicFiles
from nsqx.nsqd.client import Client, Link
from nsqx.nsqd.conversion import Conversions
from nsqx.nsqd.dead_letters import DeadLetterWriter
from nsqx.nsqd.drain import BrokerDrain
from nsqx.nsqd.group_commit import GroupCommit
from nsqx.nsqd.latency import LatencySketch
from nsqx.nsqd.log_commits import LogCommits
from nsqx.nsqd.metadata import SavedTopic, metadata_path, metadata_steps
from nsqx.nsqd.metadata_store import MetadataStore
from nsqx.nsqd.options import TOPOLOGY_AWARE_CONSUMPTION, NsqdOptions
from nsqx.nsqd.ready_clients import ELSEWHERE, SAME_REGION, SAME_ZONE
from nsqx.nsqd.topic import Topic
from nsqx.nsqd.topic_configs import TopicConfigs
from nsqx.nsqd.transactions import Transactions
from nsqx.nsqd.turn import Turn
from nsqx.units import NS_PER_S

if TYPE_CHECKING:
    from nsqx.log import Log
    from nsqx.nsqd.channel import Channel
    from nsqx.nsqd.clock import Clock, Timer
    from nsqx.nsqd.connection import ClientConnection
    from nsqx.nsqd.lookup import Lookup
    from nsqx.nsqd.publish_options import PublishOptions, PublishOutcome
    from nsqx.nsqd.topic_flow import TopicFlow
    from nsqx.queues.log.log import TopicLog

# NSQ's client timeout. The default heartbeat interval is half of it.
_CLIENT_TIMEOUT_S = 60
# How many messages in memory are freed in one turn of the loop.
_DISCARDS_PER_TURN = 5000
# How many channels known to nsqlookupd are created in one turn of the loop.
_CHANNELS_PER_TURN = 20


@dataclass(slots=True)
class Upgrades:
    """Which layers a client may negotiate for its connection."""

    tls: bool = False
    snappy: bool = False
    deflate: bool = False


class Broker:
    """The state of one nsqd. It is used by one event loop only and needs no locks."""

    client_timeout_s = _CLIENT_TIMEOUT_S
    default_heartbeat_ns = _CLIENT_TIMEOUT_S * NS_PER_S // 2

    def __init__(
        self,
        options: NsqdOptions,
        log: Log,
        clock: Clock,
        call_soon: Callable[[Callable[[], None]], object],
        authorizer: Authorizer | None = None,
    ) -> None:
        self.options = options
        self.log = log
        self.clock = clock
        self.authorizer: Authorizer = authorizer or OpenAuthorizer()
        self.upgrades = Upgrades(snappy=options.snappy, deflate=options.deflate)
        self.tls_context: ssl.SSLContext | None = None
        self.lookup_tls_context: ssl.SSLContext | None = None
        self.lookup_credentials = Credentials()
        self.is_tls_required = False
        self.data_path = options.data_path or "."
        self.hostname = socket.gethostname()
        # Empty if broker.id could not be written.
        self.broker_id = ""
        self.start_time_ns = clock.wall_ns()
        self.tcp_port = self.http_port = 0
        self.topics: dict[str, Topic] = {}
        self.clients: dict[int, Client] = {}
        self.connections: set[ClientConnection] = set()
        self.hosts: Counter[str] = Counter()  # of the connections
        self.exiting = False
        self.lookup: Lookup | None = None  # set by the daemon when it serves
        self.turn = Turn(call_soon)
        self.commits = GroupCommit(self.turn, self, log, options.sync_every, options.sync_timeout)
        self.classic_files = ClassicFiles(self.data_path, options, log, self.commits)
        self.logs = LogCommits(self.data_path, options, self.turn, self.commits, self, clock, log)
        self.configs = TopicConfigs(self)
        self.conversions = Conversions(self)
        self.dead_letters = DeadLetterWriter(self)
        self.drain = BrokerDrain(self)
        self.transactions = Transactions(self)
        self._call_soon = call_soon
        self.round_robin = RoundRobin(self.call_soon, clock.now_ns)
        self.long_jobs = StepScheduler()
        self.metadata_store = MetadataStore(
            metadata_path(self.data_path),
            lambda: self.long_jobs.run(metadata_steps(self.topics)),
            log,
            partial(self.turn.run, self._save_ended),
        )
        # Topics that are missing in nsqd.dat, or whose channels are not all in it, with the save that will add them.
        self._unrecorded: dict[Topic, asyncio.Future[bool]] = {}
        self._client_serial = 0
        self._save_failure = ""
        self._is_loading = False
        # Topics whose channels are being requested from nsqlookupd, with the task that creates the channels.
        self._fetches: dict[Topic, asyncio.Task[None]] = {}
        self._is_topology_aware = TOPOLOGY_AWARE_CONSUMPTION in options.enable_experiment

    # Topics and channels

    def topic(self, name: str) -> Topic:
        """Return the topic of this valid name, and create it if needed; raises BrokerExiting or BrokerDraining."""
        topic = self.topics.get(name)
        if topic is not None:
            return topic
        if self.drain.is_active:
            raise BrokerDraining
        return self.create_topic(name)

    def find_topic(self, name: str) -> Topic | None:
        """Return the topic of this name, or None."""
        return self.topics.get(name)

    def create_topic(self, name: str) -> Topic:
        """Create a topic, also while nsqd is draining; raises BrokerExiting."""
        self.refuse_if_exiting()
        topic = self.topics[name] = Topic(name, self)
        if self.drain.is_active:
            topic.refuse_publishes(True)
        self.log.info("TOPIC(%s): created", name)
        if self._is_loading:
            return topic
        self._start_topic(topic)
        if self.lookup is not None:
            self.lookup.registered(name)
        if not topic.is_ephemeral:
            self.record(topic)
            self.conversions.resume(topic)
        return topic

    def refuse_if_exiting(self) -> None:
        """Raise BrokerExiting if the broker is exiting."""
        if self.exiting:
            raise BrokerExiting

    def _start_topic(self, topic: Topic) -> None:
        """Start the topic, after creating the channels that it has on other nsqds."""
        if self.lookup is None or not self.options.nsqlookupd_tcp_addresses:
            topic.start()
        elif self.lookup.has_connection():
            task = asyncio.get_running_loop().create_task(self._fetch_channels(topic, self.lookup))
            self._fetches[topic] = task
        else:
            self.log.error("no available nsqlookupd to query for channels to pre-create for topic %s", topic.name)
            topic.start()

    async def _fetch_channels(self, topic: Topic, lookup: Lookup) -> None:
        names = await lookup.channels_of(topic.name)
        try:
            for start in range(0, len(names), _CHANNELS_PER_TURN):
                for name in names[start : start + _CHANNELS_PER_TURN]:
                    if not topic.exiting:
                        topic.channel(name)
                await asyncio.sleep(0)
        except DiskQueueError as error:
            self.log.error("TOPIC(%s): failed to create channels known to nsqlookupd - %s", topic.name, error)
        del self._fetches[topic]
        self.turn.run(topic.start)

    def channels_fetch(self, topic: Topic) -> asyncio.Task[None] | None:
        """Return the running task that creates the channels a new topic has on other nsqds, or None."""
        return self._fetches.get(topic)

    def stop_fetching(self) -> None:
        """Stop waiting for nsqlookupd; messages of the topics concerned stay in the topic."""
        for task in self._fetches.values():
            task.cancel()

    def delete_topic(self, name: str) -> bool:
        """Delete a topic with all its messages; False if it does not exist."""
        topic = self.topics.pop(name, None)
        if topic is None:
            return False
        self.log.info("TOPIC(%s): deleting", name)
        topic.delete()
        if self.lookup is not None:
            self.lookup.unregistered(name)
        self._unrecorded.pop(topic, None)
        if not topic.is_ephemeral:
            self.save_metadata()
        return True

    def delete_channel(self, topic_name: str, name: str) -> bool:
        """Delete a channel with all its messages; False if it does not exist."""
        topic = self.topics.get(topic_name)
        return topic is not None and topic.delete_channel(name)

    def channel_created(self, topic: Topic, channel: Channel) -> None:
        """Register and record a new channel of ``topic``."""
        self.log.info("TOPIC(%s): new channel(%s)", channel.topic_name, channel.name)
        if self._is_loading:
            return
        if self.lookup is not None:
            self.lookup.registered(channel.topic_name, channel.name)
        if not channel.is_ephemeral and not topic.is_ephemeral:
            self.record(topic)
            self.conversions.resume(topic)

    def channel_deleted(self, channel: Channel) -> None:
        """Unregister a deleted channel and remove it from nsqd.dat."""
        self.log.info("TOPIC(%s): deleted channel(%s)", channel.topic_name, channel.name)
        if self.lookup is not None:
            self.lookup.unregistered(channel.topic_name, channel.name)
        if not channel.is_ephemeral:
            self.save_metadata()

    # Publishing from HTTP

    def publish(self, topic: Topic, body: bytes) -> None:
        """Publish one message. Raises BrokerExiting."""
        topic.publish(len(body).to_bytes(4, "big") + body, 1)

    def publish_many(self, topic: Topic, items: bytes, count: int) -> None:
        """Publish ``count`` messages; ``items`` holds each with its int32 size before it. Raises BrokerExiting."""
        topic.publish(items, count)

    def publish_with(self, topic: Topic, items: bytes, count: int, options: PublishOptions) -> PublishOutcome:
        """Publish messages with options. Raises BrokerExiting, or NotALogTopic if an option needs a log."""
        return topic.publish_with(items, count, options)

    # Services to topics, channels and sessions

    def call_soon(self, handler: Callable[[], None]) -> None:
        """Handle an event in the next iteration of the loop."""
        self._call_soon(partial(self.turn.run, handler))

    def call_at(self, when_ns: int, handler: Callable[[], None]) -> Timer:
        """Handle an event at a time of the monotonic clock."""
        return self.clock.call_at(when_ns, partial(self.turn.run, handler))

    def call_in(self, delay_ns: int, handler: Callable[[], None]) -> Timer:
        """Handle an event after a delay."""
        return self.call_at(self.clock.now_ns() + delay_ns, handler)

    def admits(self, host: str) -> bool:
        """True if one more connection from ``host`` is within the limits."""
        most, most_per_ip = self.options.max_connections, self.options.max_connections_per_ip
        return not (most and len(self.connections) >= most) and not (most_per_ip and self.hosts[host] >= most_per_ip)

    def new_client(self, remote_address: str, remote_host: str, link: Link) -> Client:
        """Return a new client, for a connection that has sent the magic."""
        self._client_serial += 1
        client = Client(self._client_serial, remote_address, remote_host, link, self.clock.wall_ns() // NS_PER_S)
        self.clients[client.id] = client
        return client

    def open_flow(self, topic: Topic) -> TopicFlow:
        """Return the flow of a new topic, which decides how its messages are kept; raises DiskQueueError or OSError."""
        return self.conversions.open_flow(topic)

    def discard(self, items: list[Any]) -> None:
        """Free the items of a possibly very long list, some in each turn of the loop."""
        del items[-_DISCARDS_PER_TURN:]
        if items:
            self._call_soon(partial(self.discard, items))

    def new_latency_sketch(self) -> LatencySketch | None:
        """Return a sketch for a channel's end-to-end latency, or None if no percentiles are configured."""
        percentiles = self.options.e2e_processing_latency_percentiles
        return LatencySketch(percentiles, self.options.e2e_processing_latency_window_time) if percentiles else None

    def locality_of(self, client: Client) -> int:
        """Return how near a client is; always ELSEWHERE unless topology-aware consumption is enabled."""
        if not self._is_topology_aware:
            return ELSEWHERE
        if self.options.topology_zone and client.topology_zone == self.options.topology_zone:
            return SAME_ZONE
        if self.options.topology_region and client.topology_region == self.options.topology_region:
            return SAME_REGION
        return ELSEWHERE

    def set_lookupd_addresses(self, addresses: list[str]) -> None:
        """Register with these nsqlookupds from now on."""
        self.options.nsqlookupd_tcp_addresses = addresses
        self.update_registrations()

    def update_registrations(self) -> None:
        """Connect to the nsqlookupds of the options, or to none if nsqd drains and does not stay registered."""
        if self.lookup is not None:
            is_hidden = self.drain.is_active and not self.drain.keeps_registered
            self.lookup.set_addresses([] if is_hidden else self.options.nsqlookupd_tcp_addresses)

    @property
    def broadcast_tcp_port(self) -> int:
        """The TCP port that is announced to nsqlookupd and clients."""
        return self.options.broadcast_tcp_port or max(0, self.tcp_port)

    @property
    def broadcast_http_port(self) -> int:
        """The HTTP port that is announced to nsqlookupd and clients."""
        return self.options.broadcast_http_port or max(0, self.http_port)

    # Health

    @property
    def _failure(self) -> str:
        return self.commits.failure or self._save_failure

    @property
    def is_healthy(self) -> bool:
        """False while the last disk write of a topic or channel, or the last save of nsqd.dat, has failed."""
        return not self._failure

    @property
    def is_ready(self) -> bool:
        """True if publishers may be sent to this nsqd: it is healthy and not draining."""
        return not (self._failure or self.drain.is_active or self.exiting)

    @property
    def health(self) -> str:
        """The health as shown by /ping and /stats."""
        return f"NOK - {self._failure}" if self._failure else "OK"

    def _save_ended(self, error: OSError | None) -> None:
        """Handle a failed save of nsqd.dat, or the first successful one after it."""
        if error is not None:
            self._save_failure = error.strerror or str(error)
        else:
            self._save_failure = ""
            self._saved_again()

    # Metadata and exit

    def record(self, topic: Topic) -> None:
        """Save nsqd.dat with a topic that is new, has a new channel or has another store."""
        if topic.log_stats() is not None:
            self.save_metadata()  # a copy: the log has the channels
            return
        saving = self._unrecorded[topic] = self.save_metadata()
        saving.add_done_callback(partial(self.turn.run, self._recorded, topic))

    def _recorded(self, topic: Topic, saving: asyncio.Future[bool]) -> None:
        if not saving.cancelled() and saving.result() and self._unrecorded.get(topic) is saving:
            del self._unrecorded[topic]
            topic.finish_moves()

    def _saved_again(self) -> None:
        """Note that a save succeeded after failures: it covers the topics whose own saves failed."""
        for topic in [topic for topic, saving in self._unrecorded.items() if saving.done()]:
            del self._unrecorded[topic]
            topic.finish_moves()

    def is_recorded(self, topic: Topic) -> bool:
        """True if nsqd.dat on disk names the topic and those of its channels that are persisted."""
        return topic not in self._unrecorded

    def when_recorded(self, topic: Topic, done: Callable[[None], object]) -> bool:
        """Call ``done`` when the save of nsqd.dat that names the topic and its channels has ended; False if it has.

        A failed save has ended too: the broker is unhealthy then, and the client gets its answer.
        """
        saving = self._unrecorded.get(topic)
        if saving is None or saving.done():
            return False
        self.metadata_store.hurry()
        saving.add_done_callback(lambda _: self.turn.run(done, None))
        return True

    def save_metadata(self, *, is_urgent: bool = False) -> asyncio.Future[bool]:
        """Save nsqd.dat soon, or now if urgent. The future is done when the save has ended: True if it is durable."""
        return self.metadata_store.save(is_urgent=is_urgent)

    async def saved(self, topic: Topic) -> None:
        """Return when nsqd.dat, and the log of ``topic`` if there is one, have been written."""
        await self.save_metadata(is_urgent=True)
        await self.committed(topic)

    async def committed(self, topic: Topic) -> None:
        """Return when the log of ``topic``, if there is one, has everything so far durably, or cannot be written."""
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if topic.when_durable(lambda _: None if written.done() else written.set_result(None)):
            await written

    def restore(self, saved: list[SavedTopic]) -> None:
        """Create the topics and channels of the logs and of nsqd.dat again, then start them."""
        self.turn.run(self._restore, saved)

    def _restore(self, saved: list[SavedTopic]) -> None:
        self._is_loading = True
        self.classic_files.find_left()
        for entry in saved:
            self.conversions.note_chosen(entry.name, entry.store)
            self.configs.note_saved(entry.name, entry.settings)
        entries = {entry.name: entry for entry in saved}
        for log in self.logs.load():
            self._restore_log(log, entries.pop(log.topic, None))
        for entry in entries.values():
            if not is_valid_name(entry.name):
                self.log.warn("skipping creation of invalid topic %s", entry.name)
                continue
            topic = self.topic(entry.name)
            if entry.paused:
                topic.pause()
            for name, paused in entry.channels:
                if not is_valid_name(name):
                    self.log.warn("skipping creation of invalid channel %s", name)
                    continue
                channel = topic.channel(name)
                if paused:
                    channel.pause()
            topic.start()
        self.classic_files.remove_deleted()
        self.transactions.load()
        self._is_loading = False
        for topic in list(self.topics.values()):
            self.conversions.resume(topic)

    def _restore_log(self, log: TopicLog, entry: SavedTopic | None) -> None:
        """Create the topic and the channels of a log again. Its state is newer than ``entry``, that of nsqd.dat.

        If the topic has files of the classic store too, because it is being converted or Go's nsqd has used the
        directory, it may have more channels in nsqd.dat.
        """
        has_queues = self.classic_files.has_queue_of(log.topic)
        topic = self.topic(log.topic)
        is_paused = log.state.is_paused
        channels = {saved.name: saved.is_paused for saved in log.state.channels.values()}
        if entry is not None and topic.log_stats() is None:
            is_paused = entry.paused
            channels |= {name: paused for name, paused in entry.channels if is_valid_name(name)}
        elif entry is not None and has_queues:
            channels = {name: paused for name, paused in entry.channels if is_valid_name(name)} | channels
        if is_paused:
            topic.pause()
        for name, paused in channels.items():
            channel = topic.channel(name)
            if paused:
                channel.pause()
        topic.start()

    async def close_disk_threads(self) -> None:
        """Wait for the syncs and the save in progress, and begin no other."""
        self.logs.stop()
        await asyncio.gather(self.commits.close(), self.metadata_store.close())

    def spill_topics(self) -> None:
        """Move every message to the disk queues; ``write_spilled`` writes them."""
        self.exiting = True
        for topic in self.topics.values():
            topic.spill()

    def write_spilled(self) -> bool:
        """Write the pending records of all disk queues and logs; return False if some cannot be written now."""
        is_written = self.logs.flush()
        for topic in self.topics.values():
            for queue in topic.disk_queues():
                try:
                    queue.write_pending()
                except DiskQueueError:
                    is_written = False
        return is_written

    def close_topics(self) -> int:
        """Write every message to disk and release the files; return the number of lost messages.

        Messages that cannot be written are lost. The log has their number for each queue.
        """
        self.spill_topics()
        lost = 0
        for topic in self.topics.values():
            try:
                topic.close()
                self.conversions.note_closed(topic)
            except (OSError, DiskQueueError) as error:
                self.log.error("TOPIC(%s): failed to flush to disk - %s", topic.name, error)
            for name, count in topic.lost_counts().items():
                self.log.error("DISKQUEUE(%s): %d messages in memory could not be written and are lost", name, count)
                lost += count
        self.logs.close()
        return lost + self.conversions.close()
