"""One process at a time uses an AppendLog, and a killed process releases it."""

import subprocess
import sys

import pytest

from gpt2np.data.append_log import AppendLog, ResumePoint, Task
from gpt2np.errors import GPT2NPError

TASK = Task({}, {}, lambda points: ["digest" for _ in points], "{}{}".format)
HOLDER = """
import sys, time
from pathlib import Path
from gpt2np.data.append_log import AppendLog, Task
with AppendLog(Path(sys.argv[1]), ("ids",)) as log:
    log.resume(Task({}, {}, lambda points: ["digest" for _ in points], "{}{}".format))
    print("held", flush=True)
    time.sleep(60)
"""


def test_one_process_at_a_time(tmp_path):
    folder = tmp_path / "x.partial"
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, folder], stdout=subprocess.PIPE)
    assert holder.stdout.readline() == b"held\n"
    for _ in range(2):
        told = pytest.raises(GPT2NPError, match=r"another process is writing .*x\.partial")
        with told, AppendLog(folder, ("ids",)) as log:
            log.resume(TASK)
        assert (folder / "ids").exists()  # even without a resume point
    holder.kill()
    holder.communicate()
    with AppendLog(folder, ("ids",)) as log:
        assert log.resume(TASK).done == 0
        log.append(b"abc")
        log.save(ResumePoint(0, 1, 3, log.lengths, (0,), "digest"))
    with AppendLog(folder, ("ids",)) as log:
        assert log.lengths == ()
        log.resume(TASK)
        assert log.lengths == (3,)
        log.remove()
    assert list(tmp_path.iterdir()) == []
