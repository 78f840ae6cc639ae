"""Adapters for other brokers: how to start them, publish to them and consume from them."""
