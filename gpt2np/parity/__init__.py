"""Compare another GPT-2 engine with the exact pass, and name the mistake that makes it differ.

    golden = record(gpt2np.load("gpt2", exact=True))
    report = check(golden, {"logits": my_logits, "hidden_states": my_hidden_states}, lm)
    assert report.is_rounding, report

`check` computes every step in float64 from the candidate's own earlier arrays. So a difference
shows only at the step that causes it, not at later steps.
"""

from gpt2np.parity.candidate import read_candidate
from gpt2np.parity.check import PointReport, Report, TextReport, check, check_texts
from gpt2np.parity.golden import Golden, read_golden, record, write_golden
from gpt2np.parity.mistakes import MISTAKES, Mistake

__all__ = [
    "MISTAKES",
    "Golden",
    "Mistake",
    "PointReport",
    "Report",
    "TextReport",
    "check",
    "check_texts",
    "read_candidate",
    "read_golden",
    "record",
    "write_golden",
]
