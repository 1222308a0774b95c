"""Opening images: every kind of source, its labels, and what a person reads when something is wrong with it."""

from __future__ import annotations

import gzip
import io
import json
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from headway.data import load, open_images
from headway.errors import HeadwayError

FASHION = Path("/usr/share/datasets/fashion-mnist")
EMOJI = Path(__file__).parents[2] / "shared/data/noto-emoji-32.npz"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path_factory.mktemp("cache")))


def picture(seed: int, height: int = 6, width: int = 6, channels: int = 3) -> np.ndarray:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)
    return pixels[..., 0] if channels == 1 else pixels


def write(root: Path, *names: str, **shape: int) -> list[np.ndarray]:
    """A picture of its own for each name, as given to `open_images` later: (C, H, W)."""
    pictures = [picture(seed, **shape) for seed in range(len(names))]
    for name, pixels in zip(names, pictures, strict=True):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(root / name)
    return [pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1) for pixels in pictures]


def zipped(root: Path, name: str = "packed.zip") -> Path:
    path = root.parent / name
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(root.rglob("*")):
            if file.is_file():
                archive.write(file, file.relative_to(root))
    return path


def idx(values: np.ndarray) -> bytes:
    return (
        bytes([0, 0, 8, values.ndim])
        + struct.pack(f">{values.ndim}I", *values.shape)
        + values.astype(np.uint8).tobytes()
    )


def write_idx(root: Path, zip_it: bool = True, train: int = 12, test: int = 5) -> tuple[np.ndarray, np.ndarray]:
    root.mkdir(parents=True, exist_ok=True)
    parts = []
    for part, count in (("train", train), ("t10k", test)):
        images = np.random.default_rng(count).integers(0, 256, (count, 4, 5), dtype=np.uint8)
        for kind, values in (("images-idx3", images), ("labels-idx1", np.arange(count) % 10)):
            data = gzip.compress(idx(values)) if zip_it else idx(values)
            (root / f"{part}-{kind}-ubyte{'.gz' if zip_it else ''}").write_bytes(data)
        parts.append(images)
    return parts[0], parts[1]


def fails(source: object, *wanted: str, **options: object) -> str:
    """Opening it is refused in one line of plain words that holds all of these."""
    with pytest.raises(HeadwayError) as caught:
        open_images(source, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert message.endswith((".", "?"))
    for word in wanted:
        assert word in message, message
    return message


# Folders and zips


def test_a_folder_is_read_recursively_in_the_order_of_names(tmp_path: Path) -> None:
    names = ["a.png", "b/c/d.PNG", "b/x.TIFF", "z.Bmp"]
    pictures = write(tmp_path / "set", *names)
    (tmp_path / "set/notes.txt").write_text("not a picture")
    write(tmp_path / "set", ".hidden.png", "__MACOSX/a.png", height=9)
    images = open_images(tmp_path / "set")
    np.testing.assert_array_equal(images.images, np.stack(pictures))
    assert (images.name, images.labels, images.classes, images.channels, images.size) == ("set", None, 0, 3, (6, 6))


def test_sub_folders_are_labels_if_all_images_lie_in_them(tmp_path: Path) -> None:
    write(tmp_path / "set", "cat/deep/1.png", "cat/2.png", "dog/1.png")
    images = open_images(tmp_path / "set")
    assert images.labels.tolist() == [0, 0, 1]
    assert images.label_names == ("cat", "dog")
    assert open_images(tmp_path).label_names == ("cat", "dog")  # a folder round everything says nothing
    write(tmp_path / "set", "stray.png")
    assert open_images(tmp_path / "set").labels is None


def test_folders_that_are_numbers_are_numbered_in_their_order(tmp_path: Path) -> None:
    write(tmp_path, *[f"{label}/a.png" for label in range(12)])
    images = open_images(tmp_path)
    assert images.label_names == tuple(str(label) for label in range(12))


def test_links_are_followed_but_not_round_in_circles(tmp_path: Path) -> None:
    pictures = write(tmp_path / "elsewhere", "1.png", "2.png")
    (tmp_path / "set/sub").mkdir(parents=True)
    (tmp_path / "set/sub/link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "set/sub/back").symlink_to(tmp_path / "set")
    np.testing.assert_array_equal(open_images(tmp_path / "set").images, np.stack(pictures))


@pytest.mark.parametrize(
    ("labels", "want", "names"),
    [
        ({"a.png": 3, "sub/b.png": 0, "not there.png": 9}, [3, 0], ("0", "1", "2", "3")),
        ({"a.png": "zebra", "sub/b.png": "ant"}, [1, 0], ("ant", "zebra")),
        ({"labels": [["sub/b.png", 1], ["a.png", 0]]}, [0, 1], ("0", "1")),
    ],
)
def test_a_label_file_gives_labels(tmp_path: Path, labels: dict, want: list[int], names: tuple[str, ...]) -> None:
    write(tmp_path / "set", "a.png", "sub/b.png")
    (tmp_path / "labels.json").write_text(json.dumps(labels))
    for source in (tmp_path / "set", zipped(tmp_path / "set")):
        images = open_images(source, labels=tmp_path / "labels.json")
        assert images.labels.tolist() == want
        assert images.label_names == names


def test_dataset_json_inside_is_edms_format(tmp_path: Path) -> None:
    root = tmp_path / "set"
    write(root, "00000/img00000000.png", "00001/img00000001.png")
    (root / "dataset.json").write_text(
        json.dumps({"labels": [["00000/img00000000.png", 6], ["00001/img00000001.png", 2]]})
    )
    for source in (root, zipped(root)):
        assert open_images(source).labels.tolist() == [6, 2]
    (root / "dataset.json").write_text(json.dumps({"labels": None}))
    for source in (root, zipped(root)):
        assert open_images(source).labels is None  # although there are sub-folders


def test_a_zip_of_a_folder_is_the_same_images_and_has_the_same_fingerprint(tmp_path: Path) -> None:
    write(tmp_path / "set", "cat/1.jpg", "dog/1.jpg")
    folder, archive = open_images(tmp_path / "set"), open_images(zipped(tmp_path / "set"))
    np.testing.assert_array_equal(folder.images, archive.images)
    assert folder.fingerprint == archive.fingerprint
    assert open_images(tmp_path / "set", size=4).fingerprint != folder.fingerprint
    (tmp_path / "labels.json").write_text(json.dumps({"cat/1.jpg": "dog", "dog/1.jpg": "cat"}))
    assert open_images(tmp_path / "set", labels=tmp_path / "labels.json").fingerprint != folder.fingerprint


@pytest.mark.parametrize("size", [28, 31, 33])
@pytest.mark.parametrize("channels", [1, 3])
def test_odd_sizes_and_gray_pass_unchanged(tmp_path: Path, size: int, channels: int) -> None:
    pictures = write(tmp_path, "a.png", "b.png", height=size, width=size + 4, channels=channels)
    np.testing.assert_array_equal(open_images(tmp_path).images, np.stack(pictures))


def test_mixed_sizes_and_colours_are_refused_and_converted_on_request(tmp_path: Path) -> None:
    write(tmp_path / "sizes", "a.png", "b.png")
    write(tmp_path / "sizes", "c.png", width=8)
    fails(tmp_path / "sizes", "a.png is 6x6", "c.png is 8x6", "size=")
    assert open_images(tmp_path / "sizes", size=(3, 4)).images.shape == (3, 3, 3, 4)
    write(tmp_path / "kinds", "a.png", channels=1)
    write(tmp_path / "kinds", "b.png")
    fails(tmp_path / "kinds", "a.png is gray", "b.png is colour", "channels=1")
    for channels in (1, 3):
        assert open_images(tmp_path / "kinds", channels=channels).images.shape == (2, channels, 6, 6)


def break_files(root: Path, count: int) -> None:
    """Of `count` good pictures make every second one broken, in several ways."""
    for i in range(0, count, 2):
        path = root / f"{i:02}.jpg"
        data = path.read_bytes()
        path.write_bytes([data[: len(data) // 2], b"", b"<html>not found</html>"][i // 2 % 3])


@pytest.mark.parametrize("packed", [False, True])
def test_broken_files_are_all_listed_or_skipped_and_counted(tmp_path: Path, packed: bool) -> None:
    root = tmp_path / "set"
    pictures = write(root, *[f"{i:02}.jpg" for i in range(24)], height=64, width=64)
    (tmp_path / "labels.json").write_text(json.dumps({f"{i:02}.jpg": i for i in range(24)}))
    break_files(root, 24)
    source = zipped(root) if packed else root
    message = fails(source, "12 of 24 images", "04.jpg (not an image)", "18.jpg (", "and 2 more", "skip_broken")
    assert "20.jpg" not in message
    for _ in range(2):  # decoded, then from the cache
        with pytest.warns(UserWarning, match="12 of 24 images"):
            images = open_images(source, skip_broken=True, labels=tmp_path / "labels.json")
        assert images.labels.tolist() == list(range(1, 24, 2))
        close = np.abs(images.images.astype(int) - np.stack(pictures)[1::2]).mean(axis=(1, 2, 3))
        other = np.abs(images.images.astype(int) - np.stack(pictures)[::2]).mean(axis=(1, 2, 3))
        assert (close < other).all()  # the right pictures, as far as JPEG keeps noise


def test_a_dangling_link_is_a_broken_picture(tmp_path: Path) -> None:
    write(tmp_path, "a.png")
    (tmp_path / "b.png").symlink_to(tmp_path / "gone.png")
    fails(tmp_path, "1 of 2 images", "b.png")


def test_what_is_wrong_with_a_folder_or_zip_is_said(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    fails(tmp_path / "empty", "empty", "no images", ".png")
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts/a.txt").write_text("a")
    fails(tmp_path / "texts", "no images", "1 other files", "a.txt")
    fails(tmp_path / "texts/a.txt", "a.txt", "no image source", ".npz")
    write(tmp_path / "pictures", "a.png", "b.png")
    fails(tmp_path / "pictures/a.png", "single image", "folder")
    fails(tmp_path / "picturs", "Did you mean 'pictures'?")
    fails("digit", "Did you mean 'digits'?")
    fails("somewhere/else", "no 'somewhere/else'")
    fails(tmp_path / "pictures", "size is 0", size=0)
    fails(tmp_path / "pictures", "channels is 4", channels=4)
    (tmp_path / "broken.zip").write_bytes(zipped(tmp_path / "pictures").read_bytes()[:-30])
    fails(tmp_path / "broken.zip", "broken.zip", "not a whole zip")
    (tmp_path / "pictures/a.png").write_bytes(b"")
    (tmp_path / "pictures/b.png").write_bytes(b"")
    with pytest.raises(HeadwayError, match="nothing is left"):
        open_images(tmp_path / "pictures", skip_broken=True)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"a.png": 1}', ["1 of 2 images", "'b.png'"]),
        ('{"a.png": 1, "b.png": "one"}', ["'one'", "class numbers"]),
        ('{"a.png": 1, "b.png": -1}', ["-1"]),
        ('{"a.png": 1, "b.png": 1.5}', ["1.5"]),
        ('{"a.png": 1, "b.png": true}', ["True"]),
        ('{"a.png": 1, "b.png": 123456789}', ["123456789"]),
        ('{"labels": []}', ["0 of 2 images"]),
        ("[1, 2]", ["no label file"]),
        ('{"a.png": 1', ["no label file"]),
    ],
)
def test_what_is_wrong_with_a_label_file_is_said(tmp_path: Path, content: str, words: list[str]) -> None:
    write(tmp_path / "set", "a.png", "b.png")
    (tmp_path / "labels.json").write_text(content)
    fails(tmp_path / "set", "labels.json", *words, labels=tmp_path / "labels.json")
    (tmp_path / "set/dataset.json").write_text(content)
    fails(tmp_path / "set", "dataset.json", *words)
    fails(zipped(tmp_path / "set"), "dataset.json", *words)


def test_a_missing_or_needless_label_file_is_said(tmp_path: Path) -> None:
    write(tmp_path, "a.png")
    fails(tmp_path, "gone.json", labels=tmp_path / "gone.json")
    fails("digits", "label file", labels=tmp_path / "gone.json")


# Arrays


@pytest.mark.parametrize("key", ["images", "x", "arr_0"])
@pytest.mark.parametrize(
    "shape", [(5, 6, 7), (5, 6, 7, 1), (5, 1, 6, 7), (5, 6, 7, 3), (5, 3, 6, 7), (5, 3, 6), (5, 1, 3)]
)
def test_arrays_of_every_layout(tmp_path: Path, key: str, shape: tuple[int, ...]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    if len(shape) == 3:
        want = pixels[:, None]
    else:
        want = pixels.transpose(0, 3, 1, 2) if shape[3] in (1, 3) else pixels
    np.savez(tmp_path / "a.npz", **{key: pixels})
    np.save(tmp_path / "a.npy", pixels)
    for path in (tmp_path / "a.npz", tmp_path / "a.npy"):
        np.testing.assert_array_equal(open_images(path).images, want)


def test_npz_brings_labels_names_and_groups(tmp_path: Path) -> None:
    pixels = np.zeros((4, 2, 2), np.uint8)
    np.savez_compressed(
        tmp_path / "a.npz", images=pixels, labels=[2, 0, 2, 1], label_names=["a", "b", "c"], base=[7, 7, 3, 9]
    )
    images = open_images(tmp_path / "a.npz")
    assert images.labels.tolist() == [2, 0, 2, 1]
    assert images.label_names == ("a", "b", "c")
    assert images.groups.tolist() == [1, 1, 0, 2]
    np.savez(tmp_path / "b.npz", x=pixels, y=["no", "yes", "no", "no"])
    assert open_images(tmp_path / "b.npz").label_names == ("no", "yes")
    assert open_images(tmp_path / "b.npz").labels.tolist() == [0, 1, 0, 0]


def test_arrays_are_resized_and_converted_by_the_same_policy(tmp_path: Path) -> None:
    pixels = np.stack([picture(seed, 9, 12) for seed in range(4)])
    np.savez(tmp_path / "a.npz", images=pixels)
    for seed, pixel in enumerate(pixels):
        (tmp_path / "set").mkdir(exist_ok=True)
        Image.fromarray(pixel).save(tmp_path / f"set/{seed}.png")
    for options in ({"size": 6}, {"channels": 1}, {"size": (4, 3), "channels": 1}):
        array, folder = open_images(tmp_path / "a.npz", **options), open_images(tmp_path / "set", **options)
        np.testing.assert_array_equal(array.images, folder.images)


def test_large_arrays_are_streamed_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.data.sources._IN_MEMORY", 10)
    pixels = np.stack([picture(seed) for seed in range(4)])
    np.save(tmp_path / "a.npy", pixels)
    images = open_images(tmp_path / "a.npy").images
    assert isinstance(images, np.memmap)
    np.testing.assert_array_equal(images, pixels.transpose(0, 3, 1, 2))


def test_small_arrays_are_copied_and_nothing_is_written_beside_them(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(160, dtype=np.uint8).reshape(40, 2, 2))
    train, held = load(tmp_path / "a.npy")
    np.save(tmp_path / "a.npy", np.zeros((40, 2, 2), np.uint8))
    assert sorted([*train.images.ravel(), *held.images.ravel()]) == list(range(160))
    assert [file.name for file in tmp_path.iterdir()] == ["a.npy"]


def test_what_is_wrong_with_an_array_is_said(tmp_path: Path) -> None:
    good = np.zeros((4, 2, 2), np.uint8)
    cases = {
        "none": ({"pictures": good}, ["no images", "pictures"]),
        "float": ({"images": good / 255}, ["float64", "uint8"]),
        "shape": ({"images": np.zeros((4, 2, 2, 4), np.uint8)}, ["(4, 2, 2, 4)"]),
        "unclear": ({"images": np.zeros((4, 3, 2, 3), np.uint8)}, ["both", "reshape"]),
        "flat": ({"images": np.zeros((4, 4), np.uint8)}, ["(4, 4)"]),
        "zero": ({"images": np.zeros((0, 2, 2), np.uint8)}, ["no images", "(0, 2, 2)"]),
        "count": ({"images": good, "labels": [0, 1]}, ["4 images", "(2,)"]),
        "names": ({"images": good, "labels": [0, 1, 2, 3], "label_names": ["a"]}, ["3", "1 label names"]),
        "half": ({"images": good, "labels": [0, 1, 2, 0.5]}, ["0.0", "class numbers"]),
        "base": ({"images": good, "base": [0, 1]}, ["base", "4 images"]),
    }
    for name, (arrays, words) in cases.items():
        np.savez(tmp_path / f"{name}.npz", **arrays)
        fails(tmp_path / f"{name}.npz", f"{name}", *words)
    np.save(tmp_path / "float.npy", good / 255)
    fails(tmp_path / "float.npy", "float.npy", "uint8")


def test_damaged_and_pickled_arrays_are_refused(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple:
            return (Path.touch, (tmp_path / "boom",))

    objects = np.array([Bomb()], dtype=object)
    np.save(tmp_path / "evil.npy", objects, allow_pickle=True)
    np.savez(tmp_path / "evil.npz", images=objects)
    np.savez(tmp_path / "labels.npz", images=np.zeros((1, 2, 2), np.uint8), labels=objects)
    for name in ("evil.npy", "evil.npz", "labels.npz"):
        fails(tmp_path / name, name, "does not unpickle")
    assert not (tmp_path / "boom").exists()
    whole = io.BytesIO()
    np.savez(whole, images=np.zeros((4, 2, 2), np.uint8))
    for name, data in (
        ("cut.npz", whole.getvalue()[:-9]),
        ("text.npz", b"hello"),
        ("text.npy", b"hello"),
        ("empty.npy", b""),
    ):
        (tmp_path / name).write_bytes(data)
        fails(tmp_path / name, name)


@pytest.mark.parametrize("zip_it", [True, False])
def test_idx_folders_and_files(tmp_path: Path, zip_it: bool) -> None:
    train, test = write_idx(tmp_path / "mnist", zip_it)
    ending = ".gz" if zip_it else ""
    images = open_images(tmp_path / "mnist")
    np.testing.assert_array_equal(images.images[:, 0], train)
    assert images.labels.tolist() == [i % 10 for i in range(12)]
    one = open_images(tmp_path / f"mnist/t10k-images-idx3-ubyte{ending}")
    np.testing.assert_array_equal(one.images[:, 0], test)
    assert one.labels.tolist() == list(range(5))
    got, held = load(tmp_path / "mnist")
    np.testing.assert_array_equal(got.images[:, 0], train)
    np.testing.assert_array_equal(held.images[:, 0], test)
    assert held.classes == got.classes == 10  # although the test images show five of them
    assert held.name == "mnist test"


def test_what_is_wrong_with_idx_files_is_said(tmp_path: Path) -> None:
    write_idx(tmp_path, zip_it=False)
    images, labels = tmp_path / "train-images-idx3-ubyte", tmp_path / "train-labels-idx1-ubyte"
    labels.write_bytes(idx(np.arange(3)))
    fails(images, "12 images", "(3,)")
    labels.unlink()
    assert open_images(images).labels is None
    images.write_bytes(images.read_bytes()[:-5])
    fails(images, "damaged")
    images.write_bytes(b"\0\0\x0d\x03" + b"\0" * 12)
    fails(images, "not an IDX file")
    images.with_suffix(".gz").write_bytes(gzip.compress(idx(np.zeros((3, 2, 2))))[:-10])
    fails(images.with_suffix(".gz"), "Cannot read")
    (tmp_path / "valid-images-idx3-ubyte").write_bytes(idx(np.zeros((3, 2, 2))))
    fails(tmp_path, "valid-images-idx3-ubyte", "give the file itself")


# Built-in sets


def test_digits_are_scikit_learns() -> None:
    images, oracle = open_images("digits"), load_digits()
    np.testing.assert_array_equal(images.images[:, 0], np.rint(oracle.images * 255 / 16))
    np.testing.assert_array_equal(images.labels, oracle.target)
    assert (images.name, images.channels, images.size, images.classes) == ("digits", 1, (8, 8), 10)


def test_a_built_in_name_that_is_also_a_path_is_asked_about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "digits", "a.png")
    monkeypatch.chdir(tmp_path)
    fails("digits", "built-in", "'./digits'")
    for path in ("./digits", Path("digits"), tmp_path / "digits"):
        assert open_images(path).size == (6, 6)


def test_fashion_can_be_elsewhere_and_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_FASHION", str(tmp_path / "fm"))
    fails("fashion", str(tmp_path / "fm"), "apt-get install dataset-fashion-mnist", "HEADWAY_FASHION")
    write_idx(tmp_path / "fm")
    train, test = load("fashion")
    assert (train.name, test.name, len(train), len(test)) == ("fashion", "fashion test", 12, 5)
    assert train.label_names[9] == "Ankle boot"


@pytest.mark.skipif(not FASHION.is_dir(), reason="Debian's dataset-fashion-mnist is not installed")
def test_fashion_mnist_comes_with_its_test_split() -> None:
    train, test = load("fashion")
    assert train.images.shape == (60000, 1, 28, 28)
    assert test.images.shape == (10000, 1, 28, 28)
    assert np.bincount(train.labels).tolist() == [6000] * 10
    assert train.std() == pytest.approx(0.7060, abs=1e-4)  # 2 x 0.3530, the value known for pixels in [0, 1]


@pytest.mark.skipif(not EMOJI.is_file(), reason="the emoji set is not beside this repository")
def test_emoji_are_split_without_near_duplicates_on_both_sides() -> None:
    train, held = load(EMOJI)
    assert train.channels == 3
    assert train.classes == held.classes == 10
    assert not set(train.groups.tolist()) & set(held.groups.tolist())
    assert len(held) == pytest.approx(0.1 * (len(train) + len(held)), abs=6)
