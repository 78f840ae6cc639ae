"""Adapters that let frameworks use NSQ. Each module needs the packages of its extra."""
