"""Whatever is mounted beyond what a role needs turns the report red, by the place at which it is mounted."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from audit.probes.containers import read_mounts
from audit.probes.expected import read_expected
from shared.errors import SettingsError

if TYPE_CHECKING:
    from conftest import Made


@pytest.mark.parametrize("name", ["aggregator", "client-2", "gateway", "gateway-2"])
def test_a_part_with_what_it_needs_holds(part: Made, name: str) -> None:
    assert part(name).broken() == {}


@pytest.mark.parametrize("name", ["aggregator", "client-2", "gateway-2"])
@pytest.mark.parametrize("place", ["/spare", "/run/engine", "/state/of-another", "/dev/x", "/opt/code", "/public2"])
def test_one_mount_more_is_named(part: Made, name: str, place: str) -> None:
    broken = part(name)
    broken.mount(place)
    assert broken.broken()["mounts: places"] == f"also {place}"


def test_a_disk_beneath_the_kernel_s_folders_is_named(part: Made) -> None:
    broken = part("aggregator")
    broken.mount("/sys/fs/cgroup/x")
    broken.mount("/proc/x")
    assert broken.broken() == {"mounts: places": "also /proc/x, /sys/fs/cgroup/x"}


def test_many_are_counted(part: Made) -> None:
    broken = part("gateway")
    for number in range(9):
        broken.mount(f"/x{number}")
    assert broken.broken()["mounts: places"] == "also /x0, /x1, /x2, /x3, /x4 and 4 more"


def test_a_client_s_mounts_are_not_the_aggregator_s(part: Made) -> None:
    broken = part("aggregator")
    broken.mount("/shard")
    assert broken.broken() == {"mounts: places": "also /shard"}


def test_a_list_that_cannot_be_read_is_no_list_of_nothing(part: Made) -> None:
    broken = part("aggregator")
    broken.mounts.clear()
    assert broken.broken()["control: mounts: the list"] == "none could be read"


def test_places_with_spaces_are_read_as_they_are(tmp_path: Path) -> None:
    text = "100 1 0:40 / /a\\040b\\134c rw,relatime master:2 shared:3 - ext4 /dev/vda rw\nno line of a mount\n"
    (tmp_path / "mountinfo").write_text(text)
    assert [(one.place, one.system, one.writable) for one in read_mounts(tmp_path)] == [("/a b\\c", "ext4", True)]
    assert read_mounts(tmp_path / "nowhere") == ()


def test_how_a_part_is_deployed_must_be_known() -> None:
    with pytest.raises(SettingsError, match=r"gateway.toml: expected one of compose, got 'kubernetes'"):
        read_expected("gateway", "kubernetes", "gateway")


def test_what_a_gpu_brings_is_expected_where_one_is_and_only_of_a_client() -> None:
    bare, both = (read_expected("client", said, "client-1") for said in ("compose", "compose,gpu"))
    assert "/dev/nvidia*" in both.devices and not bare.devices and set(bare.read) < set(both.read)
    assert both.contents == bare.contents and both.own == bare.own
    with pytest.raises(SettingsError, match="got 'gpu'"):
        read_expected("aggregator", "compose,gpu", "aggregator")
