"""The seeds of the random tests.

A quick test uses the same seeds in each run, so that a run of all tests can be repeated. A slow test takes new ones.
NSQX_SEED repeats the run of one seed in both.
"""

import os
import random

IS_GIVEN = "NSQX_SEED" in os.environ
QUICK_SEED = int(os.environ.get("NSQX_SEED", 1000))
NEW_SEED = int(os.environ.get("NSQX_SEED", random.SystemRandom().randrange(1 << 40)))
