"""Small programs on the forward pass's probe: traces, interventions, readings.

trace, Trace          one pass with its inner arrays kept
POINTS, points_nbytes their names and shapes, and how much memory they take
Intervention          what changes arrays on the way: replace, scale, zero, zero_head, mean_ablate,
                      patch_from; several are put together by chain
logit_lens            any residual as a prediction; lens_table: those of all layers and tokens
attribution           what each head, MLP and bias adds to a logit
attention_summary     what each head does, in a few numbers; induction_scores: one more
differences           how far a pass is from another, compare_with_transformers: from transformers'
"""

from gpt2np.inspection.attention_summary import (
    AttentionSummary,
    attention_summary,
    induction_scores,
)
from gpt2np.inspection.attribution import Attribution, attribution
from gpt2np.inspection.compare import Difference, compare_with_transformers, differences
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
    "AttentionSummary",
    "Attribution",
    "Difference",
    "Intervention",
    "LensTable",
    "Point",
    "Trace",
    "attention_summary",
    "attribution",
    "chain",
    "compare_with_transformers",
    "differences",
    "induction_scores",
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
