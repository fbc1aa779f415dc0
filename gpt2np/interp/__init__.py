"""Interpretability tools built on the hooks of the forward pass.

trace, Trace                record the activations of a forward pass
HOOK_POINTS                 names and shapes of the activations
hook_points_nbytes          size of the activations in bytes
Intervention                a hook that edits activations; made by add, replace, scale, zero,
                            zero_head, mean_ablate and patch_from
direction, Direction        a steering vector between two kinds of texts
gradients, Target           gradients of a logit or log probability at hook points
saliency, Saliency          contributions of the prompt's tokens to a prediction
attribution_patching        estimates of all patches from one backward pass
activation_patching         exact effects of patches, with a forward pass per patch
chain                       join several interventions into one
logit_lens                  next-token logits from any residual
lens_table                  most likely next tokens at every residual and position
record_pass, describe_pass  a pass as the JSON object that the pages draw
attribution                 direct logit attribution: contributions of heads, MLPs and biases
attention_summary           statistics of each head's attention, such as the mean entropy
induction_scores            how strongly each head is an induction head
plot_attention              pictures of attention patterns, with matplotlib
"""

from gpt2np.interp.attribution import Attribution, attribution
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
    Intervention,
    add,
    chain,
    mean_ablate,
    patch_from,
    replace,
    scale,
    zero,
    zero_head,
)
from gpt2np.interp.lens import LensTable, lens_table, logit_lens
from gpt2np.interp.plots import plot_attention
from gpt2np.interp.steering import Direction, direction
from gpt2np.interp.summary import AttentionSummary, attention_summary, induction_scores
from gpt2np.interp.trace import Trace, trace
from gpt2np.model.hook_points import (
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
    "hook_points_nbytes",
    "induction_scores",
    "lens_table",
    "logit_lens",
    "mean_ablate",
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
