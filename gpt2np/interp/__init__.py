"""Interpretability tools built on the hooks of the forward pass.

`trace` records activations, and an `Intervention` edits them. `logit_lens`, `attribution`,
`saliency`, `attention_summary` and `induction_scores` read them; `direction` steers generation.
"""

from gpt2np.interp.analysis import (
    AttentionSummary,
    Attribution,
    LensTable,
    attention_summary,
    attribution,
    induction_scores,
    lens_table,
    logit_lens,
    nearest_tokens,
    plot_attention,
)
from gpt2np.interp.description import describe_pass, record_pass
from gpt2np.interp.gradients import (
    Saliency,
    Target,
    activation_patching,
    attribution_patching,
    gradients,
    saliency,
)
from gpt2np.interp.interventions import (
    Direction,
    Intervention,
    add,
    chain,
    direction,
    mean_ablate,
    patch_from,
    replace,
    scale,
    zero,
    zero_head,
)
from gpt2np.interp.trace import Trace, trace
from gpt2np.model.hook_points import (
    HOOK_POINTS,
    HookPoint,
    hook_point_names,
    hook_point_shape,
)

__all__ = [
    "HOOK_POINTS",
    "AttentionSummary",
    "Attribution",
    "Direction",
    "HookPoint",
    "Intervention",
    "LensTable",
    "Saliency",
    "Target",
    "Trace",
    "activation_patching",
    "add",
    "attention_summary",
    "attribution",
    "attribution_patching",
    "chain",
    "describe_pass",
    "direction",
    "gradients",
    "hook_point_names",
    "hook_point_shape",
    "induction_scores",
    "lens_table",
    "logit_lens",
    "mean_ablate",
    "nearest_tokens",
    "patch_from",
    "plot_attention",
    "record_pass",
    "replace",
    "saliency",
    "scale",
    "trace",
    "zero",
    "zero_head",
]
