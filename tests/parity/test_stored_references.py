"""The answers that tests/references stores for the unit tests are those of the peers."""

import numpy as np
from helpers.stored_references import ask_for_arrays, ask_for_ids, stored_arrays, stored_ids


def test_arrays():
    arrays, stored = ask_for_arrays(), stored_arrays()
    assert set(arrays) == set(stored)
    for name, array in arrays.items():
        np.testing.assert_allclose(array, stored[name], atol=1e-5, err_msg=name)


def test_ids():
    assert ask_for_ids() == stored_ids()
