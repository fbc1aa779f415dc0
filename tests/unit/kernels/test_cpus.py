"""The number of CPU cores, from trees of files as Linux shows them in containers and without."""

import math

import pytest

from gpt2np.kernels.threads import _count_cores, cgroup_quota, physical_cores


@pytest.fixture
def write(tmp_path):
    def write(path, text):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    return write


class TestQuota:
    def test_none_without_control_groups(self, tmp_path):
        assert cgroup_quota(tmp_path) == math.inf

    @pytest.mark.parametrize(
        ("limit", "expected"),
        [("150000 100000", 1.5), ("30000 10000", 3), ("max 100000", math.inf), ("?", math.inf)],
    )
    def test_quota_of_version_2(self, write, tmp_path, limit, expected):
        write("sys/fs/cgroup/cpu.max", limit + "\n")
        assert cgroup_quota(tmp_path) == expected


def test_two_logical_cpus_of_a_core_count_once(write, tmp_path):
    for cpu, siblings in enumerate(("0,2", "1,3", "0,2", "1,3")):
        path = f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        write(path, siblings + "\n")
    assert physical_cores(tmp_path, {0, 1, 2, 3}) == 2
    assert physical_cores(tmp_path, {0, 2}) == 1
    assert physical_cores(tmp_path, {0, 1, 8, 9}) == 4  # 8 and 9 are unknown


@pytest.mark.parametrize(
    ("quota", "affinity", "expected"),
    [(0.5, 4, 1), (1, 4, 1), (1.5, 4, 2), (2, 4, 2), (8, 4, 4), (8, 1, 1)],
)
def test_a_fraction_of_a_core_counts_as_one(write, tmp_path, quota, affinity, expected):
    write("sys/fs/cgroup/cpu.max", f"{int(quota * 1000)} 1000\n")
    assert _count_cores(tmp_path, frozenset(range(affinity))) == expected
