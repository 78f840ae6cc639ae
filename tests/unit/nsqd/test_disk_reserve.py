"""Disk space that is reserved for the exit."""

import errno
import os

import pytest

from nsqx.nsqd.disk_reserve import DiskReserve


def test_a_reserve_has_no_name_and_can_be_released_twice(tmp_path):
    reserve = DiskReserve()
    reserve.take(str(tmp_path), 65536)
    assert os.listdir(tmp_path) == []
    reserve.release()
    reserve.release()


def test_reserving_more_than_the_file_system_has_fails(tmp_path):
    with pytest.raises(OSError) as caught:
        DiskReserve().take(str(tmp_path), 1 << 60)
    assert caught.value.errno in (errno.ENOSPC, errno.EFBIG)
    assert os.listdir(tmp_path) == []
