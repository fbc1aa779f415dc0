"""Small programs on the forward pass's probe: traces, interventions, readings.

trace, Trace          one pass with its inner arrays kept
POINTS, points_nbytes their names and shapes, and how much memory they take
Intervention          what changes an array on the way: replace, scale, zero, zero_head,
                      mean_ablate, patch_from; several are put together by chain
logit_lens            any residual as a prediction; lens_table: of all layers and tokens
"""

from gpt2np.inspection.intervene import (
    Intervention,
    chain,
    mean_ablate,
    patch_from,
    replace,
    scale,
    zero,
    zero_head,
)
from gpt2np.inspection.lens import LensTable, lens_table, logit_lens
from gpt2np.inspection.points import POINTS, Point, point_names, point_shape, points_nbytes
from gpt2np.inspection.trace import Trace, trace

__all__ = [
    "POINTS",
    "Intervention",
    "LensTable",
    "Point",
    "Trace",
    "chain",
    "lens_table",
    "logit_lens",
    "mean_ablate",
    "patch_from",
    "point_names",
    "point_shape",
    "points_nbytes",
    "replace",
    "scale",
    "trace",
    "zero",
    "zero_head",
]
