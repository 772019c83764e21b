"""Fitting a causal model to a release of Causal3DIdent, whose law is not published."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from threedident.causal import load_model
from threedident.causal.fit import Fit, fit_truncated_normals, model_file
from threedident.datasets.formats.family import FamilySource
from threedident.datasets.formats.source import Source
from threedident.errors import UsageError
from threedident.factors import FACTOR_NAMES

#: The models of Causal3DIdent's variables, by whose classes the base is chosen.
BASES = ("causal3dident-recalled", "causal3dident-recalled-primitives")
_EXACT = 1e-4  # m or rad, by which scene values may leave a straight line


def fit_release(source: Source, terms: Sequence[str] | None = None) -> tuple[Fit, str]:
    """Fit truncated normals to the latents of a dataset in Causal3DIdent's layout.

    Args:
        source: the dataset.
        terms: the expressions of the roots spotlight_position, spotlight_hue and background_hue
            that a mean may be made of beside a constant; None: the roots themselves.

    Returns:
        The law, and the text of a model file with it.

    Raises:
        UsageError: the dataset is in another layout, its classes are those of no model, or its
            latents cannot be fitted.
    """
    if not isinstance(source, FamilySource) or source.form != "causal3dident":
        raise UsageError(
            f"{source.root} is no folder in the layout of Causal3DIdent (raw_latents_0.npy, ...): "
            "its law is what is fitted"
        )
    classes = source.column("shape").values
    bases = [name for name in BASES if set(load_model(name)["shape"].values) == set(classes)]
    if not bases:
        raise UsageError(
            f"{source.root} has the classes {', '.join(classes)}, which no built-in model has"
        )
    order = load_model(bases[0])["shape"].values
    places = np.array([order.index(name) for name in classes])
    numbers = places[source.variables[:, source.names.index("shape")].astype(np.int64)]
    values = {name: source.raw_latents[:, k] for k, name in enumerate(FACTOR_NAMES)}
    fit = fit_truncated_normals(values, numbers, order, terms=terms)
    return fit, model_file(fit, bases[0], f"the folder {source.root.name}", scene_ranges(source))


def scene_ranges(source: Source) -> Mapping[str, tuple[float, float]]:
    """The scene values at raw -1 and +1 of each factor whose scene values are affine in them.

    Args:
        source: the dataset.
    """
    ranges = {}
    raw, scene = source.raw_latents.astype(np.float64), source.latents.astype(np.float64)
    for k, name in enumerate(FACTOR_NAMES):
        if np.ptp(raw[:, k]) < 1e-3:
            continue
        slope, middle = np.polyfit(raw[:, k], scene[:, k], 1)
        if np.abs(middle + slope * raw[:, k] - scene[:, k]).max() < _EXACT and slope > 0:
            # float32 latents give six digits.
            ranges[name] = (round(float(middle - slope), 5), round(float(middle + slope), 5))
    return ranges
