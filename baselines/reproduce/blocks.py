"""Blocks of factors: how well codes predict the content and the style of two views."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from threedident.baselines.reproduce.studies import ImageSet, Row
from threedident.baselines.training.run_folder import ENCODER, encoder_digest
from threedident.causal import CausalModel, load_model
from threedident.datasets.formats import open_rendered
from threedident.errors import DatasetError, UsageError
from threedident.latents import latents_digest
from threedident.storage.atomic_files import read_json, write_json

if TYPE_CHECKING:
    from threedident.evaluate.metrics._kinds import Kind

#: The file of a run that holds R2 by factor.
BLOCKS = "blocks.json"
FORMAT = "3dident-blocks"
METRICS = ("linear_r2", "kernel_r2")

_MOST_IMAGES = 4096  # of which kernel ridge regression fits half
_ANGLES = ("phi", "theta", "psi", "spotlight_position")
_HUES = ("object_hue", "spotlight_hue", "background_hue")
_ROUNDING = 1e-6  # of a range that is a full turn


@dataclasses.dataclass(frozen=True)
class Blocks:
    """R2 by factor, and the factors that are content.

    Attributes:
        factors: the names of the variables of the model.
        linear_r2: R2 of a linear regression, by factor; NaN for one that does not vary.
        kernel_r2: R2 of kernel ridge regression, by factor; NaN for one that does not vary.
        content: the names of those that are equal in both views; None without views.
    """

    factors: tuple[str, ...]
    linear_r2: tuple[float, ...]
    kernel_r2: tuple[float, ...]
    content: tuple[str, ...] | None

    def linear(self, factor: str) -> float:
        """Return the linear R2 of a factor, NaN where there is none.

        Args:
            factor: its name.
        """
        return dict(zip(self.factors, self.linear_r2, strict=True)).get(factor, math.nan)

    def kernel(self, factor: str) -> float:
        """Return the R2 of kernel ridge regression of a factor, NaN where there is none.

        Args:
            factor: its name.
        """
        return dict(zip(self.factors, self.kernel_r2, strict=True)).get(factor, math.nan)

    def scores(self) -> dict[str, float]:
        """Return the mean R2 of content and of style, by metric; without views there are none.

        Factors that do not vary in the test images do not count.
        """
        if self.content is None:
            return {}
        scores = {}
        for metric in METRICS:
            known = dict(zip(self.factors, getattr(self, metric), strict=True))
            known = {name: value for name, value in known.items() if math.isfinite(value)}
            for block in ("content", "style"):
                values = [
                    v for n, v in known.items() if (n in self.content) == (block == "content")
                ]
                if values:
                    scores[f"{metric}_{block}"] = float(np.mean(values))
        return scores


def mean_blocks(blocks: Sequence[Blocks]) -> Blocks | None:
    """Return the mean over seeds; None of none.

    Args:
        blocks: those of each seed, of the same factors.
    """
    if not blocks:
        return None
    linear, kernel = (
        tuple(np.mean([getattr(each, metric) for each in blocks], 0).tolist()) for metric in METRICS
    )
    return dataclasses.replace(blocks[0], linear_r2=linear, kernel_r2=kernel)


def content_of(images: ImageSet | None) -> tuple[str, ...] | None:
    """Return the variables that are equal in both views of images; None where there are no views.

    Args:
        images: the description of the images.
    """
    if images is None or not images.view:
        return None
    model = load_model(images.model)
    return tuple(name for name in model.names if model.role(name, images.view) == "content")


def kinds_of(model: CausalModel) -> tuple[Kind, ...]:
    """Return how each variable of a model is scored.

    A discrete variable is scored by the indicators of its classes. A circular one is, by sine and
    cosine, and so is an angle whose range in the scene is a full turn, and a hue with such a range
    where hues are wrapped.

    Args:
        model: the model.
    """
    from threedident.evaluate.metrics._kinds import Kind

    turning = (*_ANGLES, *_HUES) if model.preset.hue == "wrapped" else _ANGLES
    kinds = []
    for variable in model.variables:
        low, high = variable.range
        scene = variable.scene or model.preset.ranges.get(variable.renders, (0.0, 0.0))
        full = scene[1] - scene[0] >= 2 * math.pi - _ROUNDING
        if variable.kind == "discrete":
            kinds.append(Kind("discrete"))
        elif variable.kind == "circular" or (variable.renders in turning and full):
            kinds.append(Kind("circular", high - low))
        else:
            kinds.append(Kind())
    return tuple(kinds)


def score_blocks(folder: Path, test: Path) -> None:
    """Score the encoder of a run by factor into its `blocks.json`, unless that has been done.

    The first half of the test images is fitted on, the second is scored.

    Args:
        folder: the run folder.
        test: single images of a causal model.

    Raises:
        UsageError: the images are of no model, or come in groups.
        DatasetError: the encoder or the images cannot be read, or the file not be written.
    """
    with open_rendered(test) as source:
        digest, pixels = latents_digest(source.raw_latents), source.pixels_fingerprint
    encoder = encoder_digest(folder)
    if (folder / BLOCKS).exists():
        before = _read(folder / BLOCKS)
        same = before.get("test_latents") == digest and before.get("encoder") in (None, encoder)
        if same and before.get("test_pixels") in (None, pixels):
            return  # files of earlier versions name neither encoder nor pixels
    from threedident.datasets.dataset import ThreeDIdent
    from threedident.evaluate.metrics import linear_r2, nonlinear_r2
    from threedident.evaluate.reference_encoders import run_reference
    from threedident.evaluate.submissions.submission import identify

    class First(ThreeDIdent):
        """The first images of a test set."""

        def __len__(self) -> int:
            return min(super().__len__(), _MOST_IMAGES)

    images = First(test)
    if images.model is None or images.sampling is None or images.sampling.group != "single":
        raise UsageError(
            f"{test} must hold single images of a causal model, of which the first half is fitted "
            "on and the second scored: render it by --model, without --views"
        )
    kinds = kinds_of(images.model)
    codes = run_reference(identify(f"reference:encoder={folder / ENCODER}"), images).codes
    z = images.variables[: len(images)].numpy()
    scores = {
        "linear_r2": linear_r2(z, codes, folds="single", kinds=kinds),
        "kernel_r2": nonlinear_r2(z, codes, folds="single", kinds=kinds),
    }
    content: dict[str, Any] = {
        "format": FORMAT,
        "model": images.model.name,
        "test_latents": digest,
        "test_pixels": pixels,
        "encoder": encoder,
        "fitted": len(z) // 2,
        "scored": len(z) - len(z) // 2,
        "factors": list(images.variable_names),
        "kinds": [kind.name for kind in kinds],
    }
    for metric, result in scores.items():
        assert result.per_factor is not None
        values = result.per_factor.tolist()
        content[metric] = [value if math.isfinite(value) else None for value in values]
    write_json(folder / BLOCKS, content)


def read_blocks(folder: Path, row: Row) -> Blocks | None:
    """Read the R2 by factor of a run; None where it is not scored yet.

    Args:
        folder: the run folder.
        row: the row that it is a run of, whose training images say what content is.

    Raises:
        DatasetError: the file is damaged.
    """
    path = folder / BLOCKS
    if not path.exists():
        return None
    plain = _read(path)
    try:
        factors = tuple(plain["factors"])
        values = {
            metric: tuple(math.nan if v is None else float(v) for v in plain[metric])
            for metric in METRICS
        }
        if {len(factors)} != {len(each) for each in values.values()}:
            raise ValueError("there must be as many values as factors")
        if not all(isinstance(name, str) for name in factors):
            raise TypeError("factors must be names")
    except (KeyError, TypeError, ValueError) as error:
        raise DatasetError(
            f"{path} is damaged: {type(error).__name__}: {error}. Remove it to score the run again"
        ) from error
    return Blocks(factors, content=content_of(row.train_on), **values)


def _read(path: Path) -> Mapping[str, Any]:
    """Read the file of a run.

    Raises:
        DatasetError: it is damaged, or another file.
    """
    plain = read_json(path)
    if not isinstance(plain, dict) or plain.get("format") != FORMAT:
        raise DatasetError(f"{path} is damaged: it holds no R2 by factor. Remove it to score again")
    return plain
