"""Objects that Spark's workers exclude from garbage collection."""

import gc
import itertools

from nsqx.spark import worker_gc


def test_the_first_two_tasks_of_a_worker_exclude_what_exists(monkeypatch):
    monkeypatch.setattr(worker_gc, "_calls", itertools.count(1))
    before = gc.get_freeze_count()
    kept = []
    excluded = []
    try:
        for _ in range(4):
            kept.append([[number] for number in range(1000)])
            worker_gc.spare_collections()
            excluded.append(gc.get_freeze_count())
    finally:
        gc.unfreeze()
    assert excluded[0] >= before + 1000
    assert excluded[1] >= excluded[0] + 1000
    assert excluded[3] <= excluded[1]
