"""Brokers of other makes, each behind a thin adapter: how it is started, published to and consumed from."""
