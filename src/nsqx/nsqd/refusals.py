"""The answer to an HTTP request that could not be written to disk, or that arrived at exit or during a drain."""

from __future__ import annotations

from nsqx.errors import BrokerDraining, DiskQueueError, HTTPError

REASON_HEADER = "X-Nsq-Reason"


def refused(error: Exception) -> HTTPError:
    """Return the answer to a request that failed.

    nsqd answers EXITING to all of them, even if the disk is full. So the reason is in a header.
    """
    if isinstance(error, BrokerDraining):
        return HTTPError(503, "EXITING", ((REASON_HEADER, error.reason),))
    if isinstance(error, DiskQueueError):
        reason = " ".join(str(error).encode("ascii", "replace").decode().split())
        return HTTPError(503, "EXITING", ((REASON_HEADER, reason),))
    return HTTPError(503, "EXITING")
