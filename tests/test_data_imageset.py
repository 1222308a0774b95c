"""The image set, its split, its cache and the feed of the training loop."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from headway.data import Feed, ImageSet, load, open_images, policy, split
from headway.errors import HeadwayError


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def random_set(n: int = 50, labels: np.ndarray | None = None, groups: np.ndarray | None = None) -> ImageSet:
    images = np.random.default_rng(0).integers(0, 256, (n, 3, 4, 5), dtype=np.uint8)
    return ImageSet(images, labels, None, "random", "0" * 64, groups)


def folder(root: Path, count: int = 20) -> Path:
    for i in range(count):
        path = root / f"class{i % 2}/{i:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.random.default_rng(i).integers(0, 256, (8, 6, 3), dtype=np.uint8)).save(path)
    return root


# Pixels


def test_pixels_are_in_minus_one_to_one_and_give_the_bytes_back() -> None:
    images = ImageSet(np.arange(256, dtype=np.uint8).reshape(1, 1, 16, 16), None, None, "ramp", "")
    pixels = images.pixels()
    assert pixels.dtype == torch.float32
    assert (pixels.min(), pixels.max()) == (-1, 1)
    assert torch.equal(pixels, -pixels.flip(2, 3))
    np.testing.assert_allclose(pixels.double().ravel(), np.arange(256) / 127.5 - 1, atol=6e-8)
    assert torch.equal(((pixels + 1) * 127.5).round().byte(), torch.from_numpy(images.images))


def test_pixels_of_indices() -> None:
    images = random_set()
    everything = images.pixels()
    for indices in ([3, 1, 1], np.array([3, 1, 1]), torch.tensor([3, 1, 1])):
        assert torch.equal(images.pixels(indices), everything[[3, 1, 1]])


def test_std_is_the_standard_deviation_whatever_holds_the_pixels(tmp_path: Path) -> None:
    images = open_images(folder(tmp_path / "set"))
    assert isinstance(images.images, np.memmap)
    assert images.std() == pytest.approx(float(np.std(images.images / 127.5 - 1)), rel=1e-12)
    reverse = ImageSet(np.ascontiguousarray(images.images[::-1]), None, None, "", "")
    assert reverse.std() == images.std()


def test_an_image_set_refuses_what_it_cannot_be() -> None:
    good = np.zeros((3, 1, 2, 2), np.uint8)
    for images, labels, names in (
        (good.astype(np.float32), None, None),
        (good[0], None, None),
        (good[:0], None, None),
        (good, np.zeros(2, np.int64), None),
        (good, np.array([0, 1, 2]), ("a", "b")),
        (good, np.array([0, 1, -1]), ("a", "b")),
        (good, np.array([0, 1, -1]), None),
    ):
        with pytest.raises(HeadwayError, match="mine"):
            ImageSet(images, labels, names, "mine", "")


# Split


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 4), min_size=12, max_size=200),
    st.floats(0.1, 0.9),
    st.integers(0, 5),
)
def test_split_is_a_stratified_partition(labels: list[int], heldout: float, seed: int) -> None:
    images = ImageSet(
        np.arange(len(labels) * 2, dtype=np.uint16).view(np.uint8).reshape(-1, 1, 2, 2),
        np.array(labels),
        None,
        "s",
        "f",
    )
    train, held = split(images, heldout, seed)
    parts = [{image.tobytes() for image in part.images} for part in (train, held)]
    assert not parts[0] & parts[1]
    assert parts[0] | parts[1] == {image.tobytes() for image in images.images}
    assert abs(len(held) - heldout * len(labels)) <= 0.51
    counts, total = np.bincount(held.labels, minlength=5), np.bincount(labels, minlength=5)
    assert np.abs(counts - heldout * total).max() <= 1.01
    assert train.classes == held.classes == images.classes
    again = split(images, heldout, seed)
    assert [part.fingerprint for part in again] == [train.fingerprint, held.fingerprint]
    for part in (train, held):
        assert [labels[int(image.view(np.uint16)[0, 0, 0]) // 2] for image in part.images] == part.labels.tolist()


def test_split_depends_on_the_seed_and_names_its_parts() -> None:
    images = random_set(200)
    train, held = split(images)
    assert (train.name, held.name, len(train), len(held)) == ("random train", "random held-out", 180, 20)
    assert len({images.fingerprint, train.fingerprint, held.fingerprint, split(images, seed=1)[1].fingerprint}) == 4


def test_many_small_classes_still_add_up() -> None:
    _, held = split(random_set(400, np.arange(400) // 4))
    assert len(held) == 40
    assert np.bincount(held.labels).max() == 1


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 30), max_size=100), st.booleans(), st.integers(0, 5))
def test_groups_are_never_divided(groups: list[int], labelled: bool, seed: int) -> None:
    groups = [*groups, *range(31)]
    labels = np.array(groups) % 3 if labelled else None
    train, held = split(random_set(len(groups), labels, np.array(groups)), 0.3, seed)
    assert not set(train.groups.tolist()) & set(held.groups.tolist())
    assert sorted([*train.groups.tolist(), *held.groups.tolist()]) == sorted(groups)
    assert abs(len(held) - 0.3 * len(groups)) <= np.bincount(groups).max() / 2 + 0.01


def test_large_groups_are_held_out_as_often_as_small_ones() -> None:
    groups = np.concatenate([np.arange(300), np.repeat(np.arange(300, 350), 6)])
    large = [(split(random_set(600, None, groups), 0.2, seed)[1].groups >= 300).mean() for seed in range(40)]
    assert np.mean(large) == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("heldout", [0, 1, -0.1, 1.5, 0.001])
def test_a_split_with_an_empty_side_is_refused(heldout: float) -> None:
    with pytest.raises(HeadwayError, match="Cannot hold out"):
        split(random_set(10), heldout)


def test_load_holds_out_by_the_seed() -> None:
    train, held = load("digits", heldout=0.2)
    assert (len(train), len(held)) == (1438, 359)
    assert load("digits", heldout=0.2, seed=1)[1].fingerprint != held.fingerprint


# Cache


def test_images_are_decoded_once_and_mapped(tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = folder(tmp_path / "set")
    first = open_images(source)
    monkeypatch.setattr(policy, "decode", lambda *_: pytest.fail("decoded again"))
    second = open_images(source)
    assert isinstance(second.images, np.memmap)
    assert not second.images.flags.writeable
    np.testing.assert_array_equal(first.images, second.images)
    assert first.fingerprint == second.fingerprint
    assert {file.suffix for file in own_cache.iterdir()} == {".npy", ".json"}


def test_the_cache_follows_the_source_and_the_choices(tmp_path: Path) -> None:
    source = folder(tmp_path / "set")
    first = open_images(source)
    assert open_images(source, size=4).size == (4, 4)
    assert open_images(source, channels=1).channels == 1
    Image.new("RGB", (6, 8), "red").save(source / "class0/000.png")
    changed = open_images(source)
    assert changed.images[0, :, 0, 0].tolist() == [255, 0, 0]
    assert changed.fingerprint != first.fingerprint
    (source / "class0/000.png").unlink()
    assert len(open_images(source)) == 19


def test_the_cache_argument_wins_over_the_environment(tmp_path: Path, own_cache: Path) -> None:
    train, _ = load(folder(tmp_path / "set"), cache=tmp_path / "mine")
    assert not own_cache.exists()
    assert Path(train.images.filename).parent == tmp_path / "mine"


@pytest.mark.parametrize("damage", ["cut", "longer", "empty", "garbage", "no index", "bad index"])
def test_a_damaged_cache_is_made_again(tmp_path: Path, own_cache: Path, damage: str) -> None:
    source = folder(tmp_path / "set")
    want = np.array(open_images(source).images)
    (array,), (index,) = own_cache.glob("*.npy"), own_cache.glob("*.json")
    data = array.read_bytes()
    damaged = {"cut": data[:-7], "longer": data + b"x", "empty": b"", "garbage": os.urandom(len(data))}
    if damage in damaged:
        array.write_bytes(damaged[damage])
    elif damage == "no index":
        index.unlink()
    else:
        index.write_text('{"content": 3')
    np.testing.assert_array_equal(open_images(source).images, want)
    assert array.read_bytes() == data


OPEN_AT_ONCE = """
import sys
from headway.data import load
print("ready", flush=True)
sys.stdin.readline()
print(load(sys.argv[1])[1].fingerprint)
"""


def test_processes_may_open_one_source_at_once(tmp_path: Path, own_cache: Path) -> None:
    source = folder(tmp_path / "set", 60)
    command = [sys.executable, "-c", OPEN_AT_ONCE, str(source)]
    # Not a pool of forks: this process has threads, and a fork may keep a lock that one of them held.
    started = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in started:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    fingerprints = [process.communicate(timeout=60)[0] for process in started]
    assert [process.returncode for process in started] == [0] * 4
    assert len(set(fingerprints)) == 1
    assert fingerprints[0].strip()
    assert not list(own_cache.glob("*.tmp"))


def test_a_failed_decoding_leaves_nothing_behind(tmp_path: Path, own_cache: Path) -> None:
    source = folder(tmp_path / "set")
    (source / "class1/099.png").write_bytes(b"broken")
    with pytest.raises(HeadwayError, match=r"099\.png"):
        open_images(source)
    assert not list(own_cache.iterdir())


def test_a_cache_that_cannot_be_written_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path / "file/cache"))
    with pytest.raises(HeadwayError, match="HEADWAY_CACHE"):
        open_images(folder(tmp_path / "set"))


def test_parts_of_a_map_are_maps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = folder(tmp_path / "set")
    whole = open_images(source)
    train, held = split(whole, 0.3, seed=2)
    memory = split(ImageSet(np.array(whole.images), whole.labels, None, "m", whole.fingerprint), 0.3, seed=2)
    for mapped, plain in zip((train, held), memory, strict=True):
        assert isinstance(mapped.images, np.memmap)
        np.testing.assert_array_equal(mapped.images, plain.images)
        assert mapped.fingerprint == plain.fingerprint
    monkeypatch.setattr("headway.data.cache.store", lambda *_: pytest.fail("written again"))
    assert split(whole, 0.3, seed=2)[0].fingerprint == train.fingerprint


# Feed


@pytest.mark.parametrize("labelled", [False, True])
def test_streamed_and_resident_batches_are_the_same_bits(tmp_path: Path, labelled: bool) -> None:
    source = folder(tmp_path / "set", 64)
    if not labelled:
        source = source / "class0"
    images = open_images(source)
    resident, streamed = Feed(images, torch.device("cpu")), Feed(images, torch.device("cpu"), resident_limit=0)
    generator = torch.Generator().manual_seed(0)
    batches = [torch.randint(len(images), (n,), generator=generator) for n in (16, 1, 7, 16, 9, 30, 2)]
    batches.append(batches[0])
    for i, indices in enumerate(batches):
        for ahead in batches[i : i + 3]:
            streamed.prefetch(ahead)
            resident.prefetch(ahead)
        pixels, labels = streamed.batch(indices)
        other_pixels, other_labels = resident.batch(indices)
        assert torch.equal(pixels, images.pixels(indices))
        assert torch.equal(pixels, other_pixels)
        if labelled:
            assert labels.dtype == torch.int64
            assert labels.tolist() == other_labels.tolist() == images.labels[indices.numpy()].tolist()
        else:
            assert labels is other_labels is None


def test_streaming_serves_what_was_not_prefetched_and_forgets_what_is_not_fetched() -> None:
    images = random_set()
    feed = Feed(images, "cpu", resident_limit=0)
    for i in range(50):
        feed.prefetch(torch.tensor([i]))
    assert torch.equal(feed.batch(torch.tensor([4, 2]))[0], images.pixels([4, 2]))
    images.images[:] = 255
    assert (feed.batch(torch.tensor([0]))[0] == 1).all()  # read anew, so the first of the fifty was not kept


def test_the_feed_is_resident_only_within_its_limit() -> None:
    images = random_set()
    assert Feed(images, "cpu", resident_limit=images.images.nbytes).resident
    assert not Feed(images, "cpu", resident_limit=images.images.nbytes - 1).resident


def test_an_index_out_of_range_is_an_error_in_both_ways() -> None:
    for limit in (0, 1 << 20):
        with pytest.raises(IndexError):
            Feed(random_set(), "cpu", resident_limit=limit).batch(torch.tensor([50]))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("limit", [0, 1 << 20])
def test_batches_on_a_gpu_are_the_same_bits(limit: int) -> None:
    images = random_set(labels=np.arange(50))
    feed = Feed(images, torch.device("cuda"), limit)
    indices = torch.randperm(50)[:20]
    feed.prefetch(indices)
    pixels, labels = feed.batch(indices)
    assert pixels.device.type == labels.device.type == "cuda"
    assert torch.equal(pixels.cpu(), images.pixels(indices))
    assert torch.equal(labels.cpu(), indices)
