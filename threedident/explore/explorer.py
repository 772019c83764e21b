"""`Explorer`: all that one page shows, and the requests that its parts answer."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from threedident import defaults, plain_data
from threedident.causal import CausalModel
from threedident.datasets.formats.source import Source
from threedident.errors import UsageError
from threedident.explore.matching import Matching
from threedident.explore.model_scene import Models
from threedident.explore.renderers import Renderers
from threedident.explore.scenes import PresetScene, Scene
from threedident.explore.stored_images import StoredImages
from threedident.explore.stored_scene import StoredScene, why_stored
from threedident.plain_data import Misfit
from threedident.presets import BUILT_IN_SHAPES, Preset, load_preset, preset_names
from threedident.render.quality import DIRECT_MATERIALS

if TYPE_CHECKING:  # it loads scipy, which the page needs only for an encoder
    from threedident.explore.encoder import LiveEncoder

_SCENES = 16  # that are kept


@dataclasses.dataclass(frozen=True)
class Answer:
    """An answer that is no JSON.

    Attributes:
        content: its bytes.
        media_type: their type, such as image/png.
        name: the name of the file that a browser saves it as; empty: it is shown.
        headers: facts about it, as headers whose names begin with X-.
    """

    content: bytes
    media_type: str
    name: str = ""
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)


#: A function that answers a request of the page: plain data, or an `Answer`.
Handler = Callable[["Explorer", Mapping[str, Any]], Awaitable["Mapping[str, Any] | Answer"]]


class Explorer:
    """All that one page shows.

    Attributes:
        renderers: the processes that render.
        device: the kind of device that renders: auto, cpu or cuda.
        stored: the dataset that was given, open; None without.
        models: the causal models that the page offers.
        encoder: the encoder that was given; None without.
        start: the scene that the page opens with.
    """

    def __init__(
        self,
        renderers: Renderers,
        preset: Preset | None = None,
        *,
        stored: StoredImages | None = None,
        encoder: LiveEncoder | None = None,
        preset_options: Sequence[str] = (),
        model: CausalModel | None = None,
        model_source: str = "",
        device: str = "auto",
    ) -> None:
        """Put together what the page shows.

        Args:
            renderers: the processes that render.
            preset: the generator that the page opens with; None: the dataset's, or 3dident.
            stored: the dataset, open; None: none.
            encoder: the encoder that follows the sliders; None: none. Whoever made it closes it.
            preset_options: the options by which a command chooses the preset that was given; empty
                where none does.
            model: the causal model that the page opens with; None: the preset.
            model_source: the name or the file by which a command chooses that model; empty where
                none does.
            device: the kind of device that renders.

        Raises:
            UsageError: the preset or the model cannot be explored.
        """
        self.renderers = renderers
        self.device = device
        self.stored = stored
        self.encoder = encoder
        self._presets: dict[str, Preset] = {name: load_preset(name) for name in preset_names()}
        self._options: dict[str, tuple[str, ...]] = {
            name: ("--preset", name) for name in self._presets
        }
        self._scenes: collections.OrderedDict[str, Scene] = collections.OrderedDict()
        self._making = anyio.Lock()
        self._why_stored = "" if stored is None else why_stored(stored)
        shown = stored if not self._why_stored else None  # whose scene can be rendered
        self.models = Models(model, model_source, shown.model if shown else None)
        self._of_dataset = self._generator_of(shown)
        start = self.generator_of_dataset() or {"preset": defaults.PRESET}
        if preset is not None:
            start = {"preset": self._offer(preset, preset_options, "as given")}
        if model is not None:
            start = {"model": self.models.given}
        self.start = self.scene(start)

    def generator_of_dataset(self) -> dict[str, Any] | None:
        """The generator of the dataset's images; None without a dataset.

        It is its causal model or its preset, where that is recorded and can be rendered here, and
        otherwise the dataset itself: `{"dataset": true}`.
        """
        if self.stored is None:
            return None
        return dict(self._of_dataset or {"dataset": True})

    def _generator_of(self, stored: StoredImages | None) -> dict[str, Any] | None:
        """The generator that renders a dataset's images; None where there is none."""
        if stored is None or stored.preset is None:
            return None
        name = self.models.of_dataset
        generator = {"model": name}
        if not name:
            generator = {"preset": self._offer(stored.preset, (), "of the dataset")}
        try:
            self.scene(generator)
        except UsageError as error:
            self._why_stored = str(error)
            return None
        return generator

    def _offer(self, preset: Preset, options: Sequence[str], words: str) -> str:
        """Put a preset at the head of those that the page offers; return its name there."""
        name = preset.name
        if self._presets.get(name) == preset:
            return name
        if name in self._presets:  # changed by options, or a file of the same name
            name = f"{name} ({words})"
        self._presets = {name: preset, **self._presets}
        self._options[name] = tuple(options)
        return name

    def preset_options(self, name: str) -> tuple[str, ...]:
        """The options by which a command chooses a preset; empty where none does.

        Args:
            name: the preset's name on the page.
        """
        return self._options.get(name, ())

    def scene(self, generator: Any) -> Scene:
        """Find the scene that the page names.

        Args:
            generator: `{"preset": NAME}`, to which `shape` and `material` can be added; or
                `{"model": NAME}`, or `{"dataset": true}`.

        Raises:
            Misfit: it names none.
            UsageError: it cannot be explored.
        """
        data = plain_data.table(generator, "generator")
        key = json.dumps(data, sort_keys=True)
        known = self._scenes.get(key)
        if known is not None:
            with contextlib.suppress(KeyError):  # another thread may have let go of it
                self._scenes.move_to_end(key)
            return known
        scene = self._make(data)
        self._scenes[key] = scene
        if len(self._scenes) > _SCENES:
            self._scenes.popitem(last=False)
        return scene

    @functools.cached_property
    def matching(self) -> Matching | None:
        """What matches pairs among the dataset's latents; None without a dataset of 3DIdent."""
        source = self.stored.source if self.stored else None
        return Matching(source) if isinstance(source, Source) else None

    async def prepare(self, generator: Any) -> None:
        """Make a scene that the page names in a thread, so that `scene` has it at once.

        A shape's mesh takes up to a tenth of a second, in which nobody else would be answered.

        Raises:
            Misfit: it names none.
            UsageError: it cannot be explored.
        """
        key = json.dumps(plain_data.table(generator, "generator"), sort_keys=True)
        if key not in self._scenes:
            async with self._making:
                await anyio.to_thread.run_sync(self.scene, generator)

    def _make(self, data: Mapping[str, Any]) -> Scene:
        if "model" in data:
            return self.models.scene(data, self.renderers, self.device)
        if data.get("dataset") is True:
            plain_data.refuse_unknown(data, ("dataset",), "generator")
            if self.stored is None:
                raise UsageError("no dataset was given: name one, as in `3dident explore DATASET`")
            return StoredScene(self.stored, self._why_stored)
        plain_data.refuse_unknown(data, ("preset", "shape", "material"), "generator")
        name = plain_data.choice(data.get("preset"), "generator.preset", tuple(self._presets))
        preset = self._presets[name]
        # Never a path: a page opens no files.
        changes: dict[str, str] = {}
        for field, allowed in (("shape", tuple(BUILT_IN_SHAPES)), ("material", DIRECT_MATERIALS)):
            own = getattr(preset, field)
            if data.get(field) is not None and data[field] != own:
                changes[field] = plain_data.choice(data[field], f"generator.{field}", allowed)
        if changes:
            preset = preset.changed(shape=changes.get("shape"), material=changes.get("material"))
        return PresetScene(preset, {**data}, self.renderers, self.device)

    def describe(self) -> dict[str, Any]:
        """The state that the page opens with, as plain data."""
        return {
            "scene": self.start.describe(),
            "presets": [
                {
                    "name": name,
                    "description": preset.description,
                    "shape": preset.shape,
                    "material": preset.material,
                }
                for name, preset in self._presets.items()
            ],
            "shapes": list(BUILT_IN_SHAPES),
            "materials": list(DIRECT_MATERIALS),
            "dataset": self.stored.facts() if self.stored else None,
            "models": list(self.models.names),
            "generator_of_dataset": self.generator_of_dataset(),
            "encoder": None if self.encoder is None else self.encoder.describe(),
        }


def point_of(explorer: Explorer, data: Mapping[str, Any]) -> tuple[Scene, Any]:
    """The scene and the values (n,) that a request is about: its `generator` and `values`.

    Raises:
        Misfit: they do not fit.
        UsageError: the scene cannot be explored.
    """
    scene = explorer.scene(plain_data.needed(data, "generator"))
    return scene, scene.check(plain_data.needed(data, "values"))


def slot_of(data: Mapping[str, Any]) -> tuple[str, str] | None:
    """The place on the page that a request is for, by its `tab` and `slot`; None without.

    Raises:
        Misfit: they are no short names.
    """
    if data.get("slot") is None:
        return None
    names = [plain_data.text(data.get(field), field, 40) for field in ("tab", "slot")]
    if not all(name.replace("-", "").isalnum() for name in names):
        raise Misfit("tab and slot are letters, digits and hyphens")
    return names[0], names[1]
