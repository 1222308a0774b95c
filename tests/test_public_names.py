"""The public names: all there, all documented, and torch stays out until one of them is used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import headway


@pytest.mark.parametrize("name", headway.__all__)
def test_each_name_is_there_and_says_what_it_is(name):
    assert getattr(headway, name).__doc__


def test_other_names_are_not():
    with pytest.raises(AttributeError, match="no attribute 'sampel'"):
        headway.sampel  # noqa: B018


def test_importing_the_package_is_light():
    code = "import sys, headway; sys.exit(1 if 'torch' in sys.modules else 0)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
