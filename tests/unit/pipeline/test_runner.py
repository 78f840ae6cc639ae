"""A run continues when it cannot write its status or other information to the state directory."""

from __future__ import annotations

import errno
import io
import os
import threading
from types import SimpleNamespace

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is missing: pip install 'nsqx[spark]'")

from nsqx.pipeline.display import LineDisplay  # noqa: E402
from nsqx.pipeline.figures import FAILED, RETRYING  # noqa: E402
from nsqx.pipeline.parser import read_pipeline  # noqa: E402
from nsqx.pipeline.query import MAX_FAILURES, SinkQuery  # noqa: E402
from nsqx.pipeline.runner import Runner, RunOptions  # noqa: E402
from nsqx.pipeline.sharing import Sharing  # noqa: E402
from nsqx.pipeline.state import STATUS, DriftNotes, PipelineState, hold_state  # noqa: E402
from nsqx.spark.storage import LocalStorage  # noqa: E402

FILE = """
[pipeline]
name = "test"

[source.messages]
topic = "orders"
format = "raw"

[sink.files]
from = "messages"
type = "json"
path = "out"
"""


@pytest.fixture
def full_disk(monkeypatch):
    """Make every write of a file fail, except the lock of a directory."""

    def write(self, name, fill):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)

    monkeypatch.setattr(LocalStorage, "write", write)


def run(directory):
    """Run a pipeline without queries; return the displayed text."""
    path = directory / "pipeline.toml"
    path.write_text(FILE)
    out = io.StringIO()
    pipeline = read_pipeline(str(path), nsqd=["127.0.0.1:4150"])
    with hold_state(pipeline.state, wait_s=0) as state:
        result = Runner(pipeline, state, (), Sharing(), RunOptions(once=True), LineDisplay(out)).run(threading.Event())
    assert result.exit_code == 0
    return out.getvalue()


def test_the_status_of_a_completed_run_is_ended(tmp_path):
    assert "cannot write the status" not in run(tmp_path)
    assert PipelineState(str(tmp_path / "test.state")).read(STATUS)["state"] == "ended"


def test_a_failure_to_write_the_status_is_reported_once(tmp_path, full_disk):
    shown = run(tmp_path)
    assert shown.count("test.state: cannot write the status: [Errno 28] No space left on device") == 1


def test_a_failure_to_note_an_unknown_field_does_not_fail_the_task(tmp_path, full_disk):
    DriftNotes(str(tmp_path), "messages")("colour")


def test_a_segment_directory_in_use_is_retried():
    """The process that holds the directory may be about to end."""
    query = SinkQuery(SimpleNamespace(sink=SimpleNamespace(name="files")), "checkpoint", once=True)
    for _ in range(MAX_FAILURES - 1):
        query._failed(Exception("nsq: segmentDir x is in use by process 1 on host"))
        assert query.figures.state == RETRYING
    query._failed(Exception("nsq: segmentDir x is in use by process 1 on host"))
    assert query.figures.state == FAILED
    assert query.figures.failures == MAX_FAILURES


def test_an_unbounded_run_tries_a_failed_sink_again_until_it_is_stopped():
    query = SinkQuery(SimpleNamespace(sink=SimpleNamespace(name="files")), "checkpoint", once=False)
    for _ in range(3 * MAX_FAILURES):
        query._failed(Exception("no database"))
        assert query.figures.state == RETRYING
    # Its rows are not written, so the run has failed.
    query.stop()
    assert query.figures.state == FAILED


def test_lost_data_is_not_tried_again():
    query = SinkQuery(SimpleNamespace(sink=SimpleNamespace(name="files")), "checkpoint", once=False)
    query._failed(Exception("nsqx.spark.slices.DataLost: rows 1 to 5 are missing"))
    assert query.figures.state == FAILED
