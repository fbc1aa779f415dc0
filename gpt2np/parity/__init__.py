"""Compare another GPT-2 engine with the exact pass, and name the mistake that makes it differ.

    reference = record(gpt2np.load("gpt2", exact=True))
    report = check(reference, {"logits": my_logits, "hidden_states": my_hidden_states}, lm)
    assert report.is_rounding, report

`check` computes every step in float64 from the tested engine's own earlier arrays. So a difference
shows only at the step that causes it, not at later steps.
"""

from gpt2np.parity.check import PointReport, Report, check, check_texts
from gpt2np.parity.mistakes import MISTAKES, Mistake
from gpt2np.parity.reference import Reference, read_reference, record, write_reference
from gpt2np.parity.tested import read_tested

__all__ = [
    "MISTAKES",
    "Mistake",
    "PointReport",
    "Reference",
    "Report",
    "check",
    "check_texts",
    "read_reference",
    "read_tested",
    "record",
    "write_reference",
]
