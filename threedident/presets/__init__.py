"""Presets: generators as plain data. The built-in ones are the TOML files in this folder."""

from __future__ import annotations

from threedident.presets.files import DEFAULT_PRESET as DEFAULT_PRESET
from threedident.presets.files import build_preset as build_preset
from threedident.presets.files import load_preset as load_preset
from threedident.presets.files import preset_names as preset_names
from threedident.presets.preset import BUILT_IN_SHAPES as BUILT_IN_SHAPES
from threedident.presets.preset import HUES as HUES
from threedident.presets.preset import MATERIALS as MATERIALS
from threedident.presets.preset import MOST_OBJECTS as MOST_OBJECTS
from threedident.presets.preset import OBJECT_FACTORS as OBJECT_FACTORS
from threedident.presets.preset import SATURATION as SATURATION
from threedident.presets.preset import MeshFile as MeshFile
from threedident.presets.preset import Preset as Preset
from threedident.presets.preset import parse_preset as parse_preset
