pytest_plugins = ["nsqx.testing.fixtures"]
