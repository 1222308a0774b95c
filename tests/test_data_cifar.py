"""CIFAR archives: both versions of both sets give the same images, and a pickle that wants more is refused."""

from __future__ import annotations

import builtins
import io
import os
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest

from headway.data import load, open_images
from headway.errors import HeadwayError

RNG = np.random.default_rng(0)
TRAIN = RNG.integers(0, 256, (10, 3072), dtype=np.uint8)
TEST = RNG.integers(0, 256, (3, 3072), dtype=np.uint8)
LABELS = [0, 3, 2, 1, 3, 0, 1, 2, 2, 1]
NAMES = ["airplane", "automobile", "bird", "cat"]


def archive(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(f"cifar/{name}")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def pickled(content: object, protocol: int = 2) -> bytes:
    return pickle.dumps(content, protocol=protocol)


def by_python_2(pixels: np.ndarray, labels: list[int]) -> bytes:
    """The opcodes that Python 2 and its numpy wrote for {"data": array, "labels": list}: byte strings throughout."""

    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value

    def number(value: int) -> bytes:
        return b"J" + value.to_bytes(4, "little", signed=True)

    dtype = (
        b"cnumpy\ndtype\n("
        + text(b"u1")
        + b"K\x00K\x01tR(K\x03"
        + text(b"|")
        + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    )
    raw = pixels.tobytes()
    array = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85" + text(b"b") + b"tR"
    array += b"(K\x01" + number(pixels.shape[0]) + number(pixels.shape[1]) + b"\x86" + dtype + b"\x89"
    array += b"T" + len(raw).to_bytes(4, "little") + raw + b"tb"
    numbers = b"](" + b"".join(number(label) for label in labels) + b"e"
    return b"\x80\x02}(" + text(b"data") + array + text(b"labels") + numbers + b"u."


def cifar10(kind: str) -> dict[str, bytes]:
    parts = {f"data_batch_{i + 1}": (TRAIN[2 * i : 2 * i + 2], LABELS[2 * i : 2 * i + 2]) for i in range(5)}
    parts["test_batch"] = (TEST, [1, 0, 2])
    if kind == "binary":
        files = {
            f"{name}.bin": b"".join(bytes([y]) + x.tobytes() for x, y in zip(*part, strict=True))
            for name, part in parts.items()
        }
        return files | {"batches.meta.txt": ("\n".join(NAMES) + "\n\n").encode()}
    if kind == "python 2":
        return {name: by_python_2(*part) for name, part in parts.items()} | {
            "batches.meta": pickled({"label_names": NAMES})
        }
    protocol = int(kind[-1])
    files = {name: pickled({"data": x, "labels": y, "filenames": ["a"]}, protocol) for name, (x, y) in parts.items()}
    return files | {"batches.meta": pickled({"label_names": NAMES, "num_cases_per_batch": 2}, protocol)}


def cifar100(kind: str) -> dict[str, bytes]:
    parts = {"train": (TRAIN, LABELS), "test": (TEST, [1, 0, 2])}
    if kind == "binary":
        files = {
            f"{name}.bin": b"".join(bytes([9, y]) + x.tobytes() for x, y in zip(*part, strict=True))
            for name, part in parts.items()
        }
        return files | {"fine_label_names.txt": "\n".join(NAMES).encode(), "coarse_label_names.txt": b"x\n"}
    files = {
        name: pickled({"data": x, "fine_labels": y, "coarse_labels": [9] * len(y)}) for name, (x, y) in parts.items()
    }
    return files | {"meta": pickled({"fine_label_names": NAMES, "coarse_label_names": ["x"]})}


@pytest.mark.parametrize(
    "members",
    [
        pytest.param(cifar10("binary"), id="10-binary"),
        pytest.param(cifar10("python 2"), id="10-python-2"),
        pytest.param(cifar10("protocol 2"), id="10-protocol-2"),
        pytest.param(cifar10("protocol 4"), id="10-protocol-4"),
        pytest.param(cifar100("binary"), id="100-binary"),
        pytest.param(cifar100("python"), id="100-python"),
    ],
)
def test_every_version_gives_the_same_images(tmp_path: Path, members: dict[str, bytes]) -> None:
    path = archive(tmp_path / "cifar.tar.gz", members)
    train, test = load(path)
    np.testing.assert_array_equal(train.images, TRAIN.reshape(-1, 3, 32, 32))
    np.testing.assert_array_equal(test.images, TEST.reshape(-1, 3, 32, 32))
    assert train.labels.tolist() == LABELS
    assert test.labels.tolist() == [1, 0, 2]
    assert train.label_names == test.label_names == tuple(NAMES)
    assert len(open_images(path)) == 10


class Bomb:
    """A pickle of this calls a function when it is read."""

    def __init__(self, function: object, *args: object) -> None:
        self.call = (function, args)

    def __reduce__(self) -> tuple:
        return self.call


@pytest.mark.parametrize("where", ["data", "labels", "deep", "meta"])
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_malicious_pickle_is_refused_and_not_run(tmp_path: Path, where: str, protocol: int) -> None:
    mark = tmp_path / "boom"
    for bomb in (
        Bomb(os.system, f"touch {mark}"),
        Bomb(builtins.eval, f"open({str(mark)!r}, 'w')"),
        Bomb(Path.touch, mark),
    ):
        members = cifar10("protocol 2")
        content: dict[str, object] = {"data": TRAIN[:2], "labels": [0, 1]}
        if where == "meta":
            members["batches.meta"] = pickled({"label_names": bomb}, protocol)
        else:
            content["filenames" if where == "deep" else where] = [{"a": [bomb]}] if where == "deep" else bomb
            members["data_batch_3"] = pickled(content, protocol)
        with pytest.raises(HeadwayError, match="not read further"):
            open_images(archive(tmp_path / "evil.tar.gz", members))
    assert not mark.exists()


@pytest.mark.parametrize(
    "call",
    [
        b"cnumpy\nload\n(U\x06/a.npytR.",
        b"cnumpy.core.multiarray\nfromfile\n(U\x02/atR.",
        b"cnumpy\ndtype.__class__\n(tR.",
        b"\x80\x04\x8c\x05numpy\x8c\x08f2py.sys\x93.",
        b"c_codecs\nlookup\n(U\x03bz2tR.",
        b"c_codecs\nencode\n(U\x03abcU\x03hextR.",
        b"ccopyreg\n_reconstructor\n(tR.",
    ],
)
def test_names_near_the_known_ones_are_refused_too(tmp_path: Path, call: bytes) -> None:
    members = cifar10("protocol 2") | {"data_batch_1": call}
    with pytest.raises(HeadwayError, match="which no CIFAR file does"):
        open_images(archive(tmp_path / "evil.tar.gz", members))


@pytest.mark.parametrize(
    "content",
    [
        {"data": np.array([[None] * 3072]), "labels": [0]},
        {"data": TRAIN[:1].astype(np.float32), "labels": [0]},
        {"data": TRAIN[:1].view(np.int8), "labels": [0]},
        {"data": TRAIN[:1, :100], "labels": [0]},
        {"data": [1, 2, 3], "labels": [0]},
        {"data": TRAIN[:2], "labels": [0]},
        {"data": TRAIN[:1], "labels": [-1]},
        {"data": TRAIN[:1], "labels": ["cat"]},
        {"data": TRAIN[:1]},
        [1, 2],
    ],
)
def test_pickles_of_other_things_are_refused(tmp_path: Path, content: object) -> None:
    members = cifar10("protocol 2") | {"data_batch_1": pickled(content)}
    with pytest.raises(HeadwayError):
        open_images(archive(tmp_path / "odd.tar.gz", members))


def test_damaged_and_other_archives_are_said(tmp_path: Path) -> None:
    whole = archive(tmp_path / "cifar.tar.gz", cifar10("binary")).read_bytes()
    (tmp_path / "cut.tar.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(HeadwayError, match=r"cut\.tar\.gz is not a whole tar archive"):
        open_images(tmp_path / "cut.tar.gz")
    some = {name: data for name, data in cifar10("binary").items() if name != "data_batch_4.bin"}
    for members in ({"a.png": b""}, some):
        with pytest.raises(HeadwayError, match="not a CIFAR archive"):
            open_images(archive(tmp_path / "other.tar.gz", members))
    members = cifar10("binary") | {"data_batch_2.bin": b"123"}
    with pytest.raises(HeadwayError, match=r"data_batch_2\.bin.*3 bytes"):
        open_images(archive(tmp_path / "short.tar.gz", members))
    members = cifar10("protocol 2")
    members["data_batch_2"] = members["data_batch_2"][:500]
    with pytest.raises(HeadwayError, match=r"data_batch_2 .*damaged"):
        open_images(archive(tmp_path / "cut-pickle.tar.gz", members))
