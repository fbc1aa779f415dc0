"""The number of CPU cores, from trees of files as Linux shows them in containers and without."""

import math

import pytest

from gpt2np.kernels.cpus import _count_cores, cgroup_quota, physical_cores

V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = (
    "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"
    "32 31 0:29 {mounted} /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "33 31 0:30 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
)


@pytest.fixture
def write(tmp_path):
    def write(path, text):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    return write


class TestQuota:
    def test_none_without_proc(self, tmp_path):
        assert cgroup_quota(tmp_path) == math.inf

    @pytest.mark.parametrize(
        ("limits", "expected"),
        [
            ({"a/b": "50000 100000"}, 0.5),
            ({"a/b": "max 100000"}, math.inf),
            ({"a/b": "max 100000", "a": "150000 100000"}, 1.5),
            ({"a/b": "400000 100000", "a": "30000 10000"}, 3),
            ({"a/b": "200000 100000", "a": "400000 100000"}, 2),
            ({"": "100000 100000"}, 1),
            ({"a/b/c": "10000 100000"}, math.inf),
            ({"a/b": "nonsense"}, math.inf),
        ],
    )
    def test_version_2_takes_the_least_along_the_path(self, write, tmp_path, limits, expected):
        write("proc/self/cgroup", "0::/a/b\n")
        write("proc/self/mountinfo", V2)
        for path, limit in limits.items():
            write(f"sys/fs/cgroup/{path}/cpu.max", limit + "\n")
        assert cgroup_quota(tmp_path) == expected

    @pytest.mark.parametrize(
        ("mounted", "folder"),
        [("/", "docker/xyz/"), ("/docker/xyz", ""), ("/docker", "xyz/"), ("/elsewhere", "")],
    )
    def test_version_1_wherever_the_container_has_mounted_it(
        self, write, tmp_path, mounted, folder
    ):
        write("proc/self/cgroup", "4:cpu,cpuacct:/docker/xyz\n3:cpuset:/\n0::/\n")
        write("proc/self/mountinfo", V1.format(mounted=mounted))
        path = f"sys/fs/cgroup/cpu,cpuacct/{folder}cpu.cfs_"
        write(f"{path}quota_us", "250000\n")
        write(f"{path}period_us", "100000\n")
        assert cgroup_quota(tmp_path) == 2.5

    def test_a_mount_point_in_latin_1(self, tmp_path):
        folder = tmp_path / "proc" / "self"
        folder.mkdir(parents=True)
        (folder / "cgroup").write_text("0::/\n")
        (folder / "mountinfo").write_bytes(V2.replace("/sys/", "/B\xe4r/").encode("latin-1"))
        assert cgroup_quota(tmp_path) == math.inf

    def test_version_1_without_a_limit(self, write, tmp_path):
        write("proc/self/cgroup", "4:cpu,cpuacct:/\n")
        write("proc/self/mountinfo", V1.format(mounted="/"))
        write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n")
        write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n")
        assert cgroup_quota(tmp_path) == math.inf


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
    write("proc/self/cgroup", "0::/\n")
    write("proc/self/mountinfo", V2)
    write("sys/fs/cgroup/cpu.max", f"{int(quota * 1000)} 1000\n")
    assert _count_cores(tmp_path, frozenset(range(affinity))) == expected
