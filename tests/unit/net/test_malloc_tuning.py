"""Freed memory stays with the process, so that using it again causes no page faults."""

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource
import sys
from nsqx.net.malloc_tuning import keep_freed_memory

def page_faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(50):
        buffers = [bytearray(300_000) for _ in range(10)]
        del buffers
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

if sys.argv[1] == "tuned":
    assert keep_freed_memory()
page_faults()
print(page_faults())
"""


def page_faults(mode: str) -> int:
    command = [sys.executable, "-c", PROGRAM, mode]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return int(ended.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc, whose allocator is tuned")
def test_buffers_of_consumers_use_the_same_memory_again():
    assert page_faults("tuned") < page_faults("default") / 10
