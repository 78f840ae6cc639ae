"""Topic logs: the durable store of topics. ``store`` is the entry point; nothing here knows nsqd, a clock or a loop."""
