"""Go's nsqd and nsqx give the same answers to generated input; ``make fuzz`` tries many more inputs."""

import pytest
from differential import compare

from daemons import Fleet, require_go

pytestmark = pytest.mark.interop


@pytest.mark.timeout(180)
def test_generated_input_gets_the_same_answers(fleet: Fleet) -> None:
    require_go()
    assert compare(fleet.nsqd("go"), fleet.nsqd("nsqx"), seed=1, count=600) == []
