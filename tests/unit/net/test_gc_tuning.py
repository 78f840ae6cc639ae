"""Garbage collections stay short: objects that survived a full collection are not visited again."""

import subprocess
import sys

PROGRAM = """
import gc
from nsqx.net.gc_tuning import keep_collections_short
keep_collections_short()
keep_collections_short()
assert gc.get_freeze_count() > 0
kept = [[number] for number in range(50_000)]
gc.collect()
assert gc.get_freeze_count() > 50_000, gc.get_freeze_count()
assert len(gc.get_objects()) < 1000, len(gc.get_objects())
frozen = gc.get_freeze_count()
del kept
assert gc.get_freeze_count() < frozen - 49_000, gc.get_freeze_count()
frozen = gc.get_freeze_count()
few = [[number] for number in range(1000)]
gc.collect()
assert gc.get_freeze_count() <= frozen, gc.get_freeze_count()
long = [None] * 20_000_000
gc.collect()
assert not any(each is long for each in gc.get_objects()), "a long list is frozen, though it is one object"
print("as expected")
"""


def test_many_survivors_are_frozen_and_freed_with_their_last_reference():
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60)
    assert ended.stdout == "as expected\n", ended.stderr


def test_importing_the_daemons_does_not_change_the_garbage_collector():
    program = """
import gc
before = gc.get_threshold(), list(gc.callbacks)
import nsqx.nsqd.daemon, nsqx.nsqlookupd.daemon
assert (gc.get_threshold(), gc.callbacks) == before
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
