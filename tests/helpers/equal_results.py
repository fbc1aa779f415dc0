"""Results that are equal to the bit with small-matrix kernels, and up to rounding elsewhere."""

from dataclasses import fields, is_dataclass

import numpy as np

from gpt2np.kernels.blas import small_kernels


def assert_equal_results(result, expected):
    """Compare results of different batches: ids and texts exactly, numbers as far as promised.

    Without small-matrix kernels, the last bits of a row depend on the rest of its batch.
    """
    if isinstance(expected, np.ndarray | float):
        rounding = 0 if small_kernels() else 1
        assert np.shape(result) == np.shape(expected)
        np.testing.assert_allclose(result, expected, rtol=rounding * 1e-5, atol=rounding * 1e-4)
    elif is_dataclass(expected):
        for field in fields(expected):
            if field.compare:
                name = field.name
                assert_equal_results(getattr(result, name), getattr(expected, name))
    elif isinstance(expected, dict):
        assert result.keys() == expected.keys()
        for key, value in expected.items():
            assert_equal_results(result[key], value)
    elif isinstance(expected, list | tuple):
        assert len(result) == len(expected)
        for item, expected_item in zip(result, expected, strict=True):
            assert_equal_results(item, expected_item)
    else:
        assert result == expected
