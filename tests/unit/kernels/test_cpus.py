"""The number of CPU cores, from trees of files as Linux shows them in containers and without."""

import pytest

from gpt2np.kernels.threads import _count_cores


@pytest.fixture
def write(tmp_path):
    def write(path, text):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    return write


def test_two_logical_cpus_of_a_core_count_once(write, tmp_path):
    for cpu, siblings in enumerate(("0,2", "1,3", "0,2", "1,3")):
        write(f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", siblings + "\n")
    assert _count_cores(tmp_path, frozenset({0, 1, 2, 3})) == 2
    assert _count_cores(tmp_path, frozenset({0, 2})) == 1
    assert _count_cores(tmp_path, frozenset({0, 1, 8, 9})) == 4  # 8 and 9 are unknown


@pytest.mark.parametrize(
    ("limit", "affinity", "expected"),
    [
        *(("500 1000", 4, 1), ("1000 1000", 4, 1), ("150000 100000", 4, 2), ("2000 1000", 4, 2)),
        *(("8000 1000", 4, 4), ("8000 1000", 1, 1), ("max 100000", 4, 4), ("?", 4, 4)),
    ],
)
def test_quota_limits_the_cores_and_a_fraction_counts_as_one(
    write, tmp_path, limit, affinity, expected
):
    write("fs/cgroup/cpu.max", limit + "\n")
    assert _count_cores(tmp_path, frozenset(range(affinity))) == expected
