"""A broker for the tests of programs that use nsqx: a real nsqd in the process of the test, with a clock to advance.

``nsqx.testing.fixtures`` has pytest fixtures.
"""

try:
    from nsqx.testing.local_broker import LocalBroker, LocalBrokerError
except ModuleNotFoundError as error:
    # nsqd needs packages that a client does not.
    raise ImportError(f"nsqx.testing runs nsqd, which needs {error.name}: pip install 'nsqx[server]'") from error

__all__ = ["LocalBroker", "LocalBrokerError"]
