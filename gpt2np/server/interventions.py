"""Interventions of a request: which activations to change, and the hooks that change them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpt2np.checkpoint.config import GPT2Config
from gpt2np.errors import InvalidArgumentError
from gpt2np.interp import Intervention, add, scale
from gpt2np.model.hook_points import hook_point_shape, select_hook_points
from gpt2np.server.protocol import EditRequest, InterventionRequest


def hooks_of(edits: Sequence[EditRequest], config: GPT2Config) -> list[Intervention]:
    """Return the hooks for a request's interventions; edits that change nothing are left out.

    Raises:
        InvalidArgumentError: a hook point or a head does not exist, or a vector does not fit.
    """
    hooks = [_hook(edit, config) for edit in edits if not edit.changes_nothing]
    return [hook.for_layers(config.n_layer) for hook in hooks]  # once, not in each pass


def _hook(edit: EditRequest, config: GPT2Config) -> Intervention:
    positions = edit.positions if isinstance(edit, InterventionRequest) else None
    names = select_hook_points(edit.point, config.n_layer)
    if head := next((head for head in edit.heads or () if head >= config.n_head), None):
        raise InvalidArgumentError(
            f"{edit.point} has no head {head}; choose from 0 to {config.n_head - 1}"
        )
    if edit.vector is None:
        return scale(edit.point, edit.factor, positions=positions, heads=edit.heads)
    for name in names:
        if len(edit.vector) not in (1, size := hook_point_shape(name, config, 1)[-1]):
            raise InvalidArgumentError(
                f"the vector of {len(edit.vector):,} numbers does not fit {name}, which has "
                f"{size:,}"
            )
    vector = np.float32(edit.strength) * np.asarray(edit.vector, np.float32)
    return add(edit.point, vector, positions=positions, heads=edit.heads)
