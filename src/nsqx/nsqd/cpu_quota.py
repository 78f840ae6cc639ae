"""How many CPU cores this process can use: its CPU affinity, limited by the quota of its container."""

from __future__ import annotations

import os

CGROUP_LIMIT = "/sys/fs/cgroup/cpu.max"


def usable_cpus(limit_path: str = CGROUP_LIMIT) -> float:
    """Return the number of usable cores, which can be a fraction in a container with a CPU quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        with open(limit_path, encoding="ascii") as stream:
            # The quota in microseconds of CPU time (or "max"), then the period in microseconds.
            quota, period = stream.read().split()
            return min(cores, int(quota) / int(period))
    except (OSError, ValueError, ZeroDivisionError):
        return cores
