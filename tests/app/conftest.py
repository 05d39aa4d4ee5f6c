"""Makes `command` importable beside the tests (they are imported by path, without a package)."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
