"""The number of usable cores under the CPU quota of a container."""

import os

import pytest

from nsqx.nsqd.cpu_quota import usable_cpus


@pytest.mark.parametrize(("text", "cores"), [("50000 100000\n", 0.5), ("100000 100000\n", 1.0)])
def test_the_quota_of_a_container_limits_the_usable_cores(tmp_path, text, cores):
    limit = tmp_path / "cpu.max"
    limit.write_text(text)
    assert usable_cpus(str(limit)) == cores


@pytest.mark.parametrize("text", ["max 100000\n", "99900000 100000\n", "", "1 0\n", "?"])
def test_without_a_valid_quota_all_cores_are_usable(tmp_path, text):
    limit = tmp_path / "cpu.max"
    limit.write_text(text)
    assert usable_cpus(str(limit)) == len(os.sched_getaffinity(0))


def test_without_a_cgroup_all_cores_are_usable(tmp_path):
    assert usable_cpus(str(tmp_path / "none")) == len(os.sched_getaffinity(0))
