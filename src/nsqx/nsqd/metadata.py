"""nsqd.dat: the topics and channels that survive a restart, and which are paused. The format is Go nsqd's.

{"topics":[{"name":"t","paused":false,"channels":[{"name":"c","paused":false}]}],"version":"1.3.0"}

A topic for which the classic store was chosen over HTTP has the additional key ``"store":"classic"``, and a topic with
settings that were set over HTTP has ``"settings":{"max_attempts":"5"}``. Go nsqd ignores both.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson

from nsqx.errors import MetadataError
from nsqx.net.steps import Steps, finish
from nsqx.queues.files import NSQD, read_file
from nsqx.version import NSQ_VERSION

if TYPE_CHECKING:
    from nsqx.nsqd.topic import Topic

FILE_NAME = "nsqd.dat"


@dataclass(slots=True)
class SavedTopic:
    """A topic in the file; each channel is its name and paused flag."""

    name: str
    paused: bool
    channels: list[tuple[str, bool]] = field(default_factory=list)
    store: str = ""
    """The store that was chosen over HTTP, if it is in no log."""
    settings: dict[str, str] = field(default_factory=dict)
    """The settings that were set over HTTP."""


def metadata_path(data_path: str) -> str:
    """Return the path of nsqd.dat."""
    return os.path.join(data_path, FILE_NAME)


def encode_metadata(topics: Iterable[Topic]) -> bytes:
    """Return the content of the file for these topics, without ephemeral ones."""
    return finish(metadata_steps({topic.name: topic for topic in topics}))


def metadata_steps(topics: Mapping[str, Topic]) -> Steps[bytes]:
    """Build the content of the file in steps, without ephemeral topics. Each topic is read when its step runs."""
    saved = []
    for name in list(topics):
        topic = topics.get(name)
        if topic is not None and not topic.is_ephemeral:
            channels = []
            for channel in list(topic.channels.values()):
                if not channel.is_ephemeral:
                    channels.append({"name": channel.name, "paused": channel.paused})
                    yield
            entry: dict[str, object] = {"name": topic.name, "paused": topic.paused, "channels": channels or None}
            if topic.chosen_store:
                entry["store"] = topic.chosen_store
            if topic.changed_settings:
                entry["settings"] = topic.changed_settings
            saved.append(orjson.Fragment(orjson.dumps(entry)))
        yield
    return orjson.dumps({"topics": saved or None, "version": NSQ_VERSION})


def encode_saved(topics: Iterable[SavedTopic]) -> bytes:
    """Return the content of the file for saved topics."""
    saved = [
        {
            "name": topic.name,
            "paused": topic.paused,
            "channels": [{"name": name, "paused": paused} for name, paused in topic.channels],
            **({"store": topic.store} if topic.store else {}),
            **({"settings": topic.settings} if topic.settings else {}),
        }
        for topic in topics
    ]
    return orjson.dumps({"topics": saved, "version": NSQ_VERSION})


def load_metadata(data_path: str) -> list[SavedTopic]:
    """Return the saved topics, or none without a file; raises MetadataError if the file is invalid."""
    path = metadata_path(data_path)
    try:
        data = read_file(NSQD, path)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise MetadataError(f"failed to read metadata from {path} - {error.strerror}") from None
    try:
        return [_saved_topic(entry) for entry in orjson.loads(data).get("topics") or []]
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise MetadataError(
            f"failed to parse metadata in {path} - {error}; the messages are in the *.diskqueue.* files beside it: "
            "move it away to start without its topics, or restore it from a backup"
        ) from None


def _saved_topic(entry: dict[str, Any]) -> SavedTopic:
    channels = [(_text(channel), bool(channel.get("paused"))) for channel in entry.get("channels") or []]
    settings = {str(name): str(text) for name, text in (entry.get("settings") or {}).items()}
    return SavedTopic(_text(entry), bool(entry.get("paused")), channels, str(entry.get("store", "")), settings)


def _text(entry: dict[str, Any]) -> str:
    name = entry.get("name", "")
    if not isinstance(name, str):
        raise TypeError(f"{name!r} is not a name")
    return name
