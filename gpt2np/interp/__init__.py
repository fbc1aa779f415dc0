"""Interpretability tools built on the hooks of the forward pass.

trace, Trace           record the activations of a forward pass
HOOK_POINTS            names and shapes of the activations; hook_points_nbytes: their size
Intervention           a hook that edits activations: replace, scale, zero, zero_head, mean_ablate,
                       patch_from; `chain` joins several
logit_lens             next-token logits from any residual; lens_table: at all layers, positions
attribution            direct logit attribution: what each head, MLP and bias adds to a logit
attention_summary      mean entropy, distance and more of each head; see also induction_scores
differences            differences between two passes; see also compare_with_transformers
"""

from gpt2np.interp.attribution import Attribution, attribution
from gpt2np.interp.compare import Difference, compare_with_transformers, differences
from gpt2np.interp.interventions import (
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
from gpt2np.interp.summary import AttentionSummary, attention_summary, induction_scores
from gpt2np.interp.trace import Trace, trace
from gpt2np.model.hooks import (
    HOOK_POINTS,
    HookPoint,
    hook_point_names,
    hook_point_shape,
    hook_points_nbytes,
)

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
    "hook_point_names",
    "hook_point_shape",
    "hook_points_nbytes",
    "induction_scores",
    "lens_table",
    "logit_lens",
    "mean_ablate",
    "patch_from",
    "replace",
    "scale",
    "trace",
    "zero",
    "zero_head",
]
