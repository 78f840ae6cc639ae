"""Made-up conversations get the same answers from Go's nsqd and from ours; ``make fuzz`` tries many more."""

import pytest
from differential import compare

from daemons import Fleet, require_go

pytestmark = pytest.mark.interop


@pytest.mark.timeout(180)
def test_made_up_conversations(fleet: Fleet) -> None:
    require_go()
    assert compare(fleet.nsqd("go"), fleet.nsqd("nsqx"), seed=1, count=600) == []
