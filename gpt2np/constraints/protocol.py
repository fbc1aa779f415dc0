"""The protocol of constraints: what `generate` needs to know of a grammar."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from gpt2np.kernels.array import BoolArray


@runtime_checkable
class Constraint(Protocol):
    """The state of a constraint after a text; `LanguageModel.generate` takes the first state.

    A state is immutable, because sequences, draft tokens and threads share it. Any class with these
    three members is a constraint. If `allowed` takes long, a class may have a generator `prepare()`
    that does the work and yields often: meanwhile, other sequences of the batch go on.

    A method `within(max_tokens)` is optional, too. It returns the first state for a text of at most
    `max_tokens` tokens, or raises an error if there is no such text. The constraint then allows no
    token after which too few tokens are left.
    """

    @property
    def complete(self) -> bool:
        """Whether the text is complete, so that the generation ends."""

    def allowed(self) -> BoolArray:
        """Return a mask of the token ids that may come next. Returns (V,).

        An end-of-text id is allowed where the text may end.
        """

    def advance(self, token_id: int) -> Constraint:
        """Return the state after one more allowed token, which may be an end-of-text id."""
