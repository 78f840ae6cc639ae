"""Load generators for brokers, and what they find: `nsqx bench`."""
