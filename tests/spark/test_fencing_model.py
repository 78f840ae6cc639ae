"""No tested interleaving of owners loses or duplicates a row, with the real lease and segments on modelled storage."""

from __future__ import annotations

import random

import pytest
from fencing_model import Model

from nsqx.spark import lease


@pytest.fixture(autouse=True)
def keep_few_versions(monkeypatch):
    """Delete old versions early, so a sleeping owner may find the number of its next version free again."""
    monkeypatch.setattr(lease, "_KEPT_VERSIONS", 3)


def test_random_interleavings_of_owners_deliver_every_row_once():
    first = random.randrange(2**32)
    print("seeds from", first)
    takeovers = losses = 0
    for seed in range(first, first + 150):
        model = Model(seed)
        try:
            model.run()
        except BaseException:
            print("seed", seed)
            raise
        takeovers += model.takeover_count
        losses += model.loss_count
    assert takeovers > 100
    assert losses > 20
