"""The part of the page that shows positive pairs: z~ around the sliders' z.

Exact partners are drawn and rendered; of a dataset, nearest matching and resampling stand beside
them, and how wide pairs come out in general. A grid's partners are images of the dataset, and those
of a causal model are its second views.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import anyio.to_thread
import numpy as np
import numpy.typing as npt

from threedident import plain_data
from threedident.causal.model import CausalModel
from threedident.causal.sampling import second_views
from threedident.datasets.formats.grouping import advise_pairs
from threedident.datasets.formats.source import Source
from threedident.distributions.philox_sampler import sample_partners
from threedident.errors import UsageError
from threedident.explore.conditionals import check_conditional, check_transition, transition_words
from threedident.explore.explorer import Explorer, Handler, point_of, slot_of
from threedident.explore.matching import Matching
from threedident.explore.scene_part import data_url
from threedident.explore.scenes import PresetScene, Scene, View

Float32 = npt.NDArray[np.float32]

MOST_PARTNERS = 12
_PARTNERS = 5
_LEAST_SIDE, _MOST_SIDE = 16, 160  # pixels of a partner's image


def _count_and_seed(data: Mapping[str, Any]) -> tuple[int, int]:
    count = plain_data.whole(data.get("count", _PARTNERS), "count", 1, MOST_PARTNERS)
    return count, plain_data.whole(data.get("seed", 0), "seed")


async def pairs(explorer: Explorer, data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Answer with exact partners of the sliders' values, and with the conditional in words."""
    scene, values = point_of(explorer, data)
    count, seed = _count_and_seed(data)
    asked = data.get("conditional")
    work: Callable[[], Mapping[str, Any]]
    if isinstance(scene, PresetScene):
        matching = matching_of(explorer)
        work = functools.partial(_exact, scene, asked, values, count, seed, matching)
    elif scene.kind == "model":
        work = functools.partial(_views, scene, asked, values, count, seed)
    else:
        work = functools.partial(_on_grid, explorer, scene, asked, values, count, seed)
    return await anyio.to_thread.run_sync(work)


def _exact(
    scene: PresetScene,
    asked: Any,
    values: Float32,
    count: int,
    seed: int,
    matching: Matching | str,
) -> dict[str, Any]:
    conditional = check_conditional(asked, scene)
    partners = sample_partners(values, count, conditional=conditional.over(), seed=seed)
    return {
        "kind": "conditional",
        "words": conditional.words(),
        "options": conditional.options(),
        "z": {"values": values.tolist(), "number": None},
        "partners": [{"values": row.tolist(), "number": None} for row in partners],
        "matching": not isinstance(matching, str),
        "no_matching": matching if isinstance(matching, str) else "",
    }


def _refusal(text: str) -> dict[str, Any]:
    """The answer about a scene that has no partners to show: a sentence says why."""
    return {"kind": "none", "refusal": text}


def _on_grid(
    explorer: Explorer, scene: Scene, asked: Any, values: Float32, count: int, seed: int
) -> dict[str, Any]:
    source = explorer.stored.source if explorer.stored else None
    if source is None:
        raise UsageError(f"{scene.title} has no images of which pairs could be made")
    grid = source.grid
    if grid is None and isinstance(source, Source):
        return _refusal(
            "These images are shown as they are stored. Choose a preset above, such as the one "
            "that they were rendered with: exact pairs are then rendered, and matched among them."
        )
    if grid is None:
        return _refusal(
            "Partners of a point are shown where a dataset has an image of each point of a grid, "
            f"and this one has not: {advise_pairs(source)}."
        )
    transition, options = check_transition(asked)
    transition.check(grid)
    named = dict(zip(scene.names, values.tolist(), strict=True))
    z = np.array([named.get(name, 0) for name in grid.names], np.float32)

    import_torch()
    import torch

    from threedident.distributions.torch_sampler import seeded

    around = torch.from_numpy(z).expand(count, -1)
    drawn = transition.sample(grid, around, generator=seeded(seed)).numpy()
    numbers = grid.index(np.concatenate([z[None], drawn])).tolist()
    columns = [grid.names.index(name) for name in scene.names if name in grid.names]

    def shown(point: Float32, number: int) -> dict[str, Any]:
        return {"values": point[columns].tolist(), "number": number}

    return {
        "kind": "grid",
        "words": transition_words(transition, grid),
        "options": options,
        "z": shown(z, numbers[0]),
        "partners": [shown(p, n) for p, n in zip(drawn, numbers[1:], strict=True)],
        "matching": False,
        "no_matching": "The dataset has an image of each point of its grid, so that its pairs are "
        "exact: nothing is matched.",
    }


def import_torch() -> None:
    """Import torch.

    Raises:
        MissingExtraError: it is not installed.
    """
    from threedident.distributions import torch_sampler  # noqa: F401


def _views(scene: Any, asked: Any, values: Float32, count: int, seed: int) -> dict[str, Any]:
    model: CausalModel = scene.model
    fields = plain_data.table({} if asked is None else asked, "conditional")
    plain_data.refuse_unknown(fields, ("view",), "conditional")
    if not model.views:
        return _refusal(
            f"The model {model.name} has no law of second views. Pairs of a causal model are "
            "second views, by a table [views.NAME] in its file, or counterfactuals: the same "
            "image with an intervention, by 3dident render --model NAME --counterfactual "
            "VARIABLE+=NUMBER."
        )
    names = tuple(model.views)
    view = plain_data.choice(fields.get("view", names[0]), "conditional.view", names)
    partners = second_views(model, view, values, count, seed=seed)
    roles = {name: model.role(name, view) for name in model.names}
    explained = {
        "content": "Equal in both views (content)",
        "style": "Drawn around its value in the first view (style)",
        "private": "Drawn anew, whatever its value in the first view (private)",
    }
    sentences = [
        f"{text}: {', '.join(n for n in model.names if roles[n] == role)}."
        for role, text in explained.items()
        if role in roles.values()
    ]
    return {
        "kind": "views",
        "words": [f"Second views by the model's law {view!r}.", *sentences],
        "options": f"--views {view}",
        "views": list(names),
        "view": view,
        "z": {"values": values.tolist(), "number": None},
        "partners": [{"values": row.tolist(), "number": None} for row in partners],
        "matching": False,
        "no_matching": "Pairs of a causal model are rendered as such "
        "(3dident render --model NAME --views): nothing is matched.",
    }


async def pair_images(explorer: Explorer, data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Answer with the images of several points of a scene, as data URLs."""
    scene = explorer.scene(plain_data.needed(data, "generator"))
    side = plain_data.whole(data.get("size", 104), "size", _LEAST_SIDE, _MOST_SIDE)
    rows = plain_data.sequence(
        plain_data.needed(data, "rows"), "rows", scene.check, most=1 + MOST_PARTNERS
    )
    images = await scene.images(np.stack(rows), View(side), slot=slot_of(data))

    def encode() -> list[str]:
        return [data_url(image) for image in images]

    return {"images": await anyio.to_thread.run_sync(encode)}


def matching_of(explorer: Explorer) -> Matching | str:
    """What matches among the latents of the page's dataset, or a sentence: the reason for none."""
    if explorer.stored is None:
        return (
            "With a dataset (3dident explore DATASET) this shows what nearest matching and "
            "resampling make of the same pairs."
        )
    if explorer.matching is None:
        return (
            "The dataset has other factors than these sliders, so that no pair of theirs is "
            "matched to its images."
        )
    return explorer.matching


def _require_matching(explorer: Explorer, scene: Scene) -> tuple[PresetScene, Matching]:
    if not isinstance(scene, PresetScene):
        raise UsageError(f"{scene.title} has no raw latents of 3DIdent that could be matched")
    matching = matching_of(explorer)
    if isinstance(matching, str):
        raise UsageError(matching)
    return scene, matching


async def pairs_matched(explorer: Explorer, data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Answer with what nearest matching and resampling make of the pairs that `pairs` gives."""
    scene, values = point_of(explorer, data)
    scene, matching = _require_matching(explorer, scene)
    count, seed = _count_and_seed(data)
    conditional = check_conditional(data.get("conditional"), scene)
    return await matching.around(scene, values, conditional, count, seed)


async def pairs_spread(explorer: Explorer, data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Answer with how wide pairs of a conditional come out, exact and matched."""
    scene = explorer.scene(plain_data.needed(data, "generator"))
    scene, matching = _require_matching(explorer, scene)
    conditional = check_conditional(data.get("conditional"), scene)
    return await matching.spread(scene, conditional)


HANDLERS: dict[str, Handler] = {
    "pairs": pairs,
    "pair-images": pair_images,
    "pairs-matched": pairs_matched,
    "pairs-spread": pairs_spread,
}
