"""The examples as modules, the way `python examples/...` sees them."""

import sys
from pathlib import Path

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
sys.path.insert(0, str(EXAMPLES))
