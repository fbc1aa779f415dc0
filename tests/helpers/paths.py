"""The checkout, and the folder of test data."""

import os
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
DATA = Path(os.environ.get("GPT2NP_TEST_DATA", CHECKOUT.parent / "shared" / "data"))
