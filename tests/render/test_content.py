"""What a dataset shall hold: is its object in sight?"""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest
from helpers.renders import QUICK

from threedident.presets import load_preset, preset_names
from threedident.render.content import Content


def test_an_object_that_is_out_of_sight_is_warned_of(cli, tmp_path):
    ranges = "".join(f"{name} = [-100.0, 100.0]\n" for name in "xyz")
    (tmp_path / "far.toml").write_text(f'base = "3dident"\n[ranges]\n{ranges}')
    said = cli("render", *QUICK, "--preset", "far.toml", "--n", 1).stderr
    share = int(re.search("wholly outside the frame in about (\\d+)%", said)[1])
    assert 80 < share <= 100
    far = load_preset(tmp_path / "far.toml")
    # Given latents are looked at themselves: here the object is in the middle, or far off.
    middle = np.zeros((300, 10), np.float32)
    assert Content(far, given=middle).frame_warning() is None
    middle[:100, 1] = 1
    assert "in about 33% of the images" in str(Content(far, given=middle).frame_warning())
    # An object that fills the frame has all of its corners outside, and is in sight.
    box = dataclasses.replace(load_preset("3dident"), shape="cube", scale=30.0)
    assert Content(box, given=middle[100:]).frame_warning() is None


@pytest.mark.parametrize("name", preset_names())
def test_the_object_of_a_built_in_preset_is_in_sight(name):
    assert Content(load_preset(name)).frame_warning() is None
