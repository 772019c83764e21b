"""Scenes: what the sliders are, and the images of their values."""

from __future__ import annotations

import abc
import dataclasses
import json
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from threedident import defaults, plain_data
from threedident.errors import UsageError
from threedident.explore.controls import Control
from threedident.explore.renderers import WAITING, Renderers, Settings
from threedident.factors import FACTORS
from threedident.plain_data import Misfit
from threedident.presets import SATURATION, Preset
from threedident.render.quality import DIRECT_MATERIALS
from threedident.render.scene import SceneBuilder, hue_colors
from threedident.render.settings import EngineSettings

Float32 = npt.NDArray[np.float32]
UInt8 = npt.NDArray[np.uint8]

#: The sizes that the page may ask for. Larger images are for `3dident render`.
LEAST_SIDE, MOST_SIDE = 8, 512
QUALITIES = ("draft", "standard")


@dataclasses.dataclass(frozen=True)
class View:
    """How images are made.

    Attributes:
        resolution: the pixels along each side; of stored images, which have their own, unused.
        quality: draft or standard; of stored images unused.
    """

    resolution: int = defaults.RESOLUTION
    quality: str = defaults.QUALITY


class Scene(abc.ABC):
    """A scene: controls, and an image for all their values.

    Attributes:
        kind: preset, model or stored.
        generator: the page's name for it, as plain data; see `Explorer.scene`.
        title: its name for people.
        controls: the n controls.
    """

    kind: str
    generator: Mapping[str, Any]
    title: str
    controls: tuple[Control, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the controls."""
        return tuple(control.name for control in self.controls)

    def describe(self) -> dict[str, Any]:
        """The scene as plain data for the page."""
        return {
            "kind": self.kind,
            "generator": dict(self.generator),
            "title": self.title,
            "controls": [control.as_dict() for control in self.controls],
            "notes": self.notes(),
        }

    def notes(self) -> list[str]:
        """Sentences about the scene that the page shows."""
        return []

    def check(self, values: Any, where: str = "values") -> Float32:
        """Check the values of all controls, which the page has sent.

        Args:
            values: the values, in the order of the controls.
            where: the name of their field in errors.

        Returns:
            (n,) float32.

        Raises:
            Misfit: there are too many or too few, or one is out of range.
        """
        count = len(self.controls)
        numbers = plain_data.sequence(values, where, plain_data.number, least=count, most=count)
        for control, value in zip(self.controls, numbers, strict=True):
            if not control.low <= value <= control.high:
                raise Misfit(
                    f"{where}: {control.name} must lie in [{control.low:g}, {control.high:g}], "
                    f"found {value:g}"
                )
            if control.kind in ("discrete", "step") and value != round(value):
                raise Misfit(f"{where}: {control.name} must be a whole number, found {value:g}")
            if control.held and np.float32(value) != np.float32(control.start):
                raise Misfit(
                    f"{where}: {control.name} is held at {control.start:g}, found {value:g}"
                )
        return np.array(numbers, np.float32)

    @abc.abstractmethod
    async def images(
        self, values: Float32, view: View, *, slot: Hashable | None = None, priority: int = WAITING
    ) -> UInt8:
        """The images (B, H, W, C) of values (B, n).

        Args:
            values: the controls' values, checked.
            view: how they are made.
            slot: the place on the page that they are for; see `Renderers.images`.
            priority: as of `Renderers.images`.
        """


class RenderedScene(Scene):
    """A scene whose images the direct engine renders.

    Attributes:
        preset: the generator.
    """

    preset: Preset

    def __init__(self, renderers: Renderers, device: str) -> None:
        self._renderers = renderers
        self._device = device

    @abc.abstractmethod
    def rows(self, values: Float32) -> Float32:
        """The scene rows (B, W) of values (B, n), as `Preset.columns` names their columns."""

    def settings(self, view: View) -> Settings:
        """The engine's settings for a view."""
        key = json.dumps([dict(self.generator), view.resolution, view.quality], sort_keys=True)
        engine = EngineSettings(
            self.preset, view.resolution, view.quality, self._device, engine="direct"
        )
        return Settings(key, engine)

    async def images(
        self, values: Float32, view: View, *, slot: Hashable | None = None, priority: int = WAITING
    ) -> UInt8:
        """The images (B, H, W, 3) of values (B, n); see `Scene.images`."""
        rows = self.rows(values)
        return await self._renderers.images(self.settings(view), rows, slot=slot, priority=priority)

    async def linear(
        self, values: Float32, view: View, *, slot: Hashable | None = None, priority: int = WAITING
    ) -> Float32:
        """The same images in linear light, (B, H, W, 3) float32."""
        rows = self.rows(values)
        return await self._renderers.linear(self.settings(view), rows, slot=slot, priority=priority)


class PresetScene(RenderedScene):
    """A preset's scene: a slider for each of its ten factors, in raw units."""

    kind = "preset"

    def __init__(
        self, preset: Preset, generator: Mapping[str, Any], renderers: Renderers, device: str
    ) -> None:
        """Make the sliders of a preset.

        Args:
            preset: the generator.
            generator: the page's name for it.
            renderers: the processes that render.
            device: the kind of device: auto, cpu or cuda.

        Raises:
            UsageError: the direct engine does not render it, or ten factors do not say all of a
                scene.
        """
        super().__init__(renderers, device)
        preset.require_ten_columns("explore the causal model that draws them, with --model")
        self.preset = preset
        self.generator = generator
        self.title = preset.name
        for material in preset.drawn_materials:
            if material not in DIRECT_MATERIALS:
                raise UsageError(
                    f"{preset.name} is of {material}, which lets light through: the page renders "
                    f"with the direct engine, which has {' and '.join(DIRECT_MATERIALS)}. Give one "
                    "of these with --material"
                )
        self.settings(View())
        SceneBuilder(preset)  # and a mesh file that cannot be used
        self.controls = tuple(factor_control(preset, name) for name in FACTOR_BY_NAME)

    def rows(self, values: Float32) -> Float32:
        """The scene values (B, 10) of raw latents (B, 10)."""
        return self.preset.to_scene(values)

    def notes(self) -> list[str]:
        """The reasons why the generator is not injective."""
        return self.preset.ambiguities()


FACTOR_BY_NAME = {factor.name: factor for factor in FACTORS}


def factor_control(preset: Preset, name: str) -> Control:
    """The slider of one of a preset's factors, in raw units."""
    factor = FACTOR_BY_NAME[name]
    held = name in preset.fixed
    return Control(
        name,
        factor.label,
        start=preset.fixed.get(name, 0.0),
        group=factor.group,
        unit=factor.unit,
        scene=preset.ranges[name],
        held=held,
        flat=() if held else tuple(preset.flat_ranges(name)),
        colors=hue_colors(preset, name) if name in SATURATION else (),
        best_r2=preset.best_r2.get(name),
    )


def check_view(data: Mapping[str, Any]) -> View:
    """The view that the page asks for.

    Raises:
        Misfit: a field does not fit.
    """
    resolution = data.get("resolution", defaults.RESOLUTION)
    side = plain_data.whole(resolution, "resolution", LEAST_SIDE, MOST_SIDE)
    quality = plain_data.choice(data.get("quality", defaults.QUALITY), "quality", QUALITIES)
    return View(side, quality)


def look_of(preset: Preset) -> dict[str, Any]:
    """The fields of a preset that decide what a row of its factors looks like."""
    others = ("name", "description", "best_r2", "fixed")
    return {key: value for key, value in preset.as_dict().items() if key not in others}


def require_rendered(scene: Scene, purpose: str) -> RenderedScene:
    """Return a scene that is rendered.

    Raises:
        UsageError: its images are stored ones.
    """
    if not isinstance(scene, RenderedScene):
        raise UsageError(f"{purpose} needs a scene that can be rendered; {scene.title} is stored")
    return scene
