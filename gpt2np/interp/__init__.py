"""Small programs on the forward pass's hook: traces, interventions, readings.

trace, Trace          one pass with its inner arrays kept
HOOK_POINTS, points_nbytes their names and shapes, and how much memory they take
Intervention          what changes arrays on the way: replace, scale, zero, zero_head, mean_ablate,
                      patch_from; several are put together by chain
logit_lens            any residual as a prediction; lens_table: those of all layers and tokens
attribution           what each head, MLP and bias adds to a logit
attention_summary     what each head does, in a few numbers; induction_scores: one more
differences           how far a pass is from another, compare_with_transformers: from transformers'
"""

from gpt2np.interp.attention_summary import (
    AttentionSummary,
    attention_summary,
    induction_scores,
)
from gpt2np.interp.attribution import Attribution, attribution
from gpt2np.interp.compare import Difference, compare_with_transformers, differences
from gpt2np.interp.intervene import (
    Intervention,
    chain,
    mean_ablate,
    patch_from,
    replace,
    scale,
    zero,
    zero_head,
)
from gpt2np.interp.lens import LensTable, lens_table, logit_lens
from gpt2np.interp.trace import Trace, trace
from gpt2np.model.hooks import HOOK_POINTS, HookPoint, point_names, point_shape, points_nbytes

__all__ = [
    "HOOK_POINTS",
    "AttentionSummary",
    "Attribution",
    "Difference",
    "HookPoint",
    "Intervention",
    "LensTable",
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
