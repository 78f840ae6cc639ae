"""The HTTP headers that are specific to NSQ.

Responses of nsqd, nsqlookupd and nsqadmin have ``NSQ_HEADERS``. Requests to them accept ``NSQ_MEDIA_TYPE``; without it,
an old nsqd wraps its JSON in an envelope.
"""

from __future__ import annotations

# The header name is in Go's canonical form.
NSQ_HEADERS = (("X-Nsq-Content-Type", "nsq; version=1.0"),)
NSQ_MEDIA_TYPE = "application/vnd.nsq; version=1.0"
