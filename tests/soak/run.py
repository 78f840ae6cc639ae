"""Runs the soak test: ``python tests/soak/run.py``. See soak_run.py."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from soak_run import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
