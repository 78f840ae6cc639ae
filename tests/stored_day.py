"""Writes the history of a day that ended a minute ago, as an nsqadmin with the default options would have stored it."""

import asyncio
import io
import math
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from nsqx.log import INFO, Log
from nsqx.nsqadmin.cluster_stats import ClusterStats
from nsqx.nsqadmin.history import Track
from nsqx.nsqadmin.history_file import HistoryFile
from nsqx.nsqadmin.long_history import LongHistory, tiers_for
from nsqx.nsqadmin.subject import CHANNEL_SERIES, TOPIC_SERIES

STEP_S = 120.0


def store_day(path: Path, topic: str, channel: str, node: str, *, interval_s: float = 1.0) -> None:
    """Store a day with a wave of messages, two hours without measurements, and a restart of an nsqd."""
    now_s = time.time() - 60
    tiers = tiers_for(86400.0, 3600.0, interval_s)
    history = LongHistory(ClusterStats(2), tiers, 3600.0, topic_series=TOPIC_SERIES, channel_series=CHANNEL_SERIES)
    (tier,) = tiers
    keys = ((topic, ""), (topic, channel))
    for key in keys:
        tier.tracks[key] = Track(tier.clock, len(history.series_of(key)))
    for step in range(715):
        ago_s = (715 - step) * STEP_S
        number = tier.clock.tick(now_s - ago_s)
        if 8 * 3600 < ago_s < 10 * 3600:
            continue
        wave = 1 + math.sin(step / 60)
        for key in keys:
            values = {"rate": 300 * wave, "rate_out": 280 * wave, "depth": 4000 * wave, "clients": 3, "in_flight": 20}
            tier.tracks[key].put(number, [values.get(name, 0.0) for name in history.series_of(key)])
    history.note_start(node, now_s - 90_000, now_s)
    history.note_start(node, now_s - 5 * 3600, now_s)
    history.started_s.clear()
    file = HistoryFile(str(path), Log("", INFO, io.StringIO()))
    # In a thread, because the caller's thread may have a running event loop: Playwright's.
    with ThreadPoolExecutor(1) as executor:
        executor.submit(lambda: asyncio.run(file.save(history, now_s))).result()
