"""What all tests share: their own cache folder, one thread, real data where it is installed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory):
    """A cache of this session's own: tests neither see nor leave anything in the user's."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADWAY_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="session")
def emoji() -> Path:
    """32x32 RGB emoji with labels, from the folder beside the repository."""
    path = Path(__file__).parents[2] / "shared" / "data" / "noto-emoji-32.npz"
    if not path.is_file():
        pytest.skip("the emoji data set is not beside this checkout")
    return path
