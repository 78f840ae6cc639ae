"""Load generators for brokers and their measurements: `nsqx bench`."""
