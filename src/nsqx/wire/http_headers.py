"""The HTTP headers that belong to NSQ.

Responses of nsqd, nsqlookupd and nsqadmin carry ``NSQ_HEADERS``. Requests to them accept ``NSQ_MEDIA_TYPE``: an old
nsqd wraps its JSON in an envelope without it.
"""

from __future__ import annotations

# Go writes the name of the header in its canonical form.
NSQ_HEADERS = (("X-Nsq-Content-Type", "nsq; version=1.0"),)
NSQ_MEDIA_TYPE = "application/vnd.nsq; version=1.0"
