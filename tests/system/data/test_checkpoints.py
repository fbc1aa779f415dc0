"""Growing files belong to one process at a time, and to nobody once it is killed."""

import subprocess
import sys

import pytest

from gpt2np.data.resume import Checkpoint, GrowingFiles
from gpt2np.errors import GPT2NPError

HOLDER = """
import sys, time
from pathlib import Path
from gpt2np.data.resume import GrowingFiles
with GrowingFiles(Path(sys.argv[1]), ("ids",)) as growing:
    growing.resume(["digest"])
    print("held", flush=True)
    time.sleep(60)
"""


def test_one_process_at_a_time(tmp_path):
    folder = tmp_path / "x.partial"
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, folder], stdout=subprocess.PIPE)
    assert holder.stdout.readline() == b"held\n"
    for _ in range(2):
        told = pytest.raises(GPT2NPError, match=r"another process is writing .*x\.partial")
        with told, GrowingFiles(folder, ("ids",)) as growing:
            growing.resume(["digest"])
        assert (folder / "ids").exists()  # though there is no checkpoint in it yet
    holder.kill()
    holder.communicate()
    with GrowingFiles(folder, ("ids",)) as growing:
        assert growing.resume(["digest"]).done == 0
        growing.append(b"abc")
        growing.save(Checkpoint(0, 1, 3, growing.lengths, (0,), "digest"))
    with GrowingFiles(folder, ("ids",)) as growing:
        assert growing.lengths == ()
        growing.resume(["digest", "digest"])
        assert growing.lengths == (3,)
        growing.remove()
    assert list(tmp_path.iterdir()) == []
