"""What every metric says of codes of known structure, beside theory; and how long it takes.

    python benchmarks/metrics.py [--n 4096] [--timed 25000] [--no-table] [--no-times]

Ten factors, uniform in [-1, 1]. The first table has the metrics on codes that hold them in
ways that theory can say something about, at N samples. The second has a factor that depends on two
others, and codes that hold it, or them. The third has the time of each metric, with its bootstrap
and without, at 25,000 samples and ten codes, as a multiple of fitting scikit-learn's
LinearRegression to the same arrays in the same run, on one thread.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import threadpoolctl
from scipy.optimize import linear_sum_assignment
from sklearn.linear_model import LinearRegression
from sklearn.metrics import mutual_info_score, r2_score

from threedident.evaluate import metrics
from threedident.evaluate.metrics import mig
from threedident.evaluate.metrics._bootstrap import bootstrap
from threedident.evaluate.metrics.registry import all_metrics
from threedident.evaluate.scoring import METRICS, Options, score

FACTORS = 10
NOISE = 0.5  # standard deviation, beside sqrt(1 / 3) of a factor
NAMES = [f"factor {i}" for i in range(FACTORS)]
#: Further numbers of a metric, with their labels.
PARTS = {
    "dci": {"completeness": "DCI completeness", "informativeness": "DCI informativeness"},
    "infomec": {"infoe": "InfoE", "infoc": "InfoC"},
}
LABELS = {name: label for parts in PARTS.values() for name, label in parts.items()}


def plain_metrics() -> tuple[str, ...]:
    """The metrics of factors that are numbers, of which nobody says what causes them."""
    return all_metrics(None, np.ones(FACTORS, bool), None)


def encoders(z: np.ndarray) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(4)
    noise = generator.standard_normal(z.shape)
    return {
        "perfect": z,
        "permuted": z[:, generator.permutation(FACTORS)] * generator.uniform(-3, -1, FACTORS),
        "rotated": z @ rotation(),
        "noisy": z + NOISE * noise,
        "over-complete": np.concatenate([z, noise], 1),
        "duplicated": np.concatenate([z, z], 1),
        "warped": z + 0.9 * np.sin(np.pi * z) / np.pi * np.sign(np.arange(FACTORS) - 4.5),
        "chance": noise,
    }


def rotation() -> np.ndarray:
    return np.linalg.qr(np.random.default_rng(2).standard_normal((FACTORS, FACTORS)))[0]


def expected(samples: int) -> dict[str, dict[str, str]]:
    """What theory says, by metric and codes, of many samples or of so many where that matters.

    What is missing has no closed form.
    """
    turned = rotation()
    squares = turned**2
    match = np.abs(turned)[linear_sum_assignment(np.abs(turned), maximize=True)].mean()
    uneven = 1 + (squares * np.log(squares)).sum() / FACTORS / np.log(FACTORS)
    top = np.sort(squares, 1)
    gap = (top[:, -1] - top[:, -2]).mean()
    r2 = (1 / 3) / (1 / 3 + NOISE**2)
    best = best_of_noisy()
    grid = np.linspace(-1, 1, 200_001)
    warps = [grid + sign * 0.9 * np.sin(np.pi * grid) / np.pi for sign in (-1, 1)]
    warped = [float(np.corrcoef(grid, warp)[0, 1]) for warp in warps]
    information = noisy_information()
    bias = 19**2 / (2 * samples) / np.log(20)
    one = {"perfect": "1", "permuted": "1", "over-complete": "1", "duplicated": "1"}
    linear = {
        **dict.fromkeys((*one, "rotated"), "1"),
        "noisy": f"{r2:.3f}",
        "warped": f"{np.mean(np.square(warped)):.3f}",
        "chance": f"{held_out_chance(samples // 2, FACTORS):.3f}",
    }
    full = {**linear, "noisy": f"{best:.3f}", "warped": "1", "chance": "0"}
    plain = {
        **one,
        "rotated": f"{match:.3f}",
        "noisy": f"{np.sqrt(r2):.3f}",
        "warped": f"{np.mean(warped):.3f}",
        "chance": f"{chance_match() / np.sqrt(samples):.3f}",
    }
    aligned = {**dict.fromkeys((*one, "rotated"), "1"), "noisy": plain["noisy"]}
    gapless = {**one, "duplicated": "0", "chance": "0"}
    half = 1 - np.log(2) / np.log(2 * FACTORS)
    return {
        "linear_r2": linear,
        "adjusted_r2": {**linear, "chance": "0"},
        "kernel_r2": full,
        "mlp_r2": full,
        "mcc": plain,
        "mcc_spearman": {**one, "warped": "1", "chance": plain["chance"]},
        "mcc_aligned": {**aligned, "warped": plain["warped"]},
        "mcc_noise_padded": plain,
        "block_r2": linear,
        "block_kernel_r2": full,
        "dci": {**one, "rotated": f"{uneven:.3f}", "noisy": "1", "warped": "1"},
        "completeness": {
            **one,
            "duplicated": f"{half:.3f} to 1",
            "rotated": f"{uneven:.3f}",
            "noisy": "1",
            "warped": "1",
        },
        "informativeness": full,
        "mig": {
            **dict.fromkeys(("perfect", "permuted", "over-complete"), f"{1 - bias:.3f}"),
            "duplicated": "0",
            "noisy": f"{information:.3f}",
            "chance": "0",
        },
        "sap": {
            **gapless,
            "rotated": f"{gap:.3f}",
            "noisy": f"{r2:.3f}",
            "warped": linear["warped"],
        },
        "modularity": {
            **dict.fromkeys(("perfect", "permuted", "duplicated", "noisy", "warped"), "1"),
            "over-complete": "mean of 1 and chance",
        },
        "explicitness": {**dict.fromkeys((*one, "rotated", "warped"), "1"), "chance": "0"},
        "infomec": dict.fromkeys(("perfect", "permuted", "duplicated", "warped"), "1"),
        "infoe": {**linear, "chance": "0"},
        "infoc": {
            **dict.fromkeys(("perfect", "permuted", "warped"), "1"),
            "duplicated": f"{(1 / 2 - 1 / (2 * FACTORS)) / (1 - 1 / (2 * FACTORS)):.3f}",
        },
    }


def held_out_chance(rows: int, codes: int) -> float:
    """The mean R2 of noise, fitted on so many rows and scored on as many others.

    To first order in 1 / rows: the coefficients of the codes cost codes / (rows - codes - 2), the
    intercept 1 / rows, and so does the mean of the scored rows, which R2 is held against.
    """
    return -(2 / rows + codes / (rows - codes - 2))


def chance_match() -> float:
    """The mean of the assigned absolute values of a matrix of standard normal numbers."""
    drawn = np.abs(np.random.default_rng(5).standard_normal((1000, FACTORS, FACTORS)))
    return float(np.mean([d[linear_sum_assignment(d, maximize=True)].mean() for d in drawn]))


def best_of_noisy() -> float:
    """R2 of the conditional mean of a uniform factor given itself plus Gaussian noise."""
    z = np.linspace(-1, 1, 2001)
    code = np.linspace(-4, 4, 4001)
    weight = np.exp(-((code[:, None] - z) ** 2) / (2 * NOISE**2))
    mean = weight @ z / weight.sum(1)
    density = weight.sum(1) / weight.sum()
    return float((density * mean**2).sum() / (z**2).mean())


def noisy_information() -> float:
    """I(z; z + noise) / H(z) of both in 20 bins, by simulation: four million samples."""
    generator = np.random.default_rng(3)
    z = generator.uniform(-1, 1, (200, 20_000))
    code = z + NOISE * generator.standard_normal(z.shape)
    # A code's range, and with it its bins, is that of a typical sample of 4,096.
    low, high = np.median([[row[:4096].min(), row[:4096].max()] for row in code], 0)
    bins = np.clip((code - low) / (high - low) * 20, 0, 19).astype(int)
    table = np.zeros((20, 20))
    np.add.at(table, (((z + 1) * 10).astype(int).clip(0, 19).ravel(), bins.ravel()), 1)
    share = table / table.sum()
    product = share.sum(1, keepdims=True) * share.sum(0, keepdims=True)
    there = share > 0
    return float((share[there] * np.log(share[there] / product[there])).sum() / np.log(20))


def table(samples: int) -> None:
    z = np.random.default_rng(0).uniform(-1, 1, (samples, FACTORS))
    codes = encoders(z)
    theory = expected(samples)
    options = Options(2, 0, {"all": range(FACTORS)}, {})
    found: dict[str, dict[str, float]] = {}
    for name in plain_metrics():
        metric = METRICS[name]
        for encoder, made in codes.items():
            blocks = {"all": range(made.shape[1])}
            measured = metric.measure(
                z, made, Options(options.folds, 0, options.factor_blocks, blocks)
            )
            found.setdefault(name, {})[encoder] = measured.value
            for part in PARTS.get(name, {}):
                found.setdefault(part, {})[encoder] = float(measured.parts[part])
    print(f"{samples} samples, {FACTORS} factors; in brackets what theory says\n")
    print("| metric | " + " | ".join(codes) + " |")
    print("| --- |" + " --- |" * len(codes))
    for name, row in found.items():
        cells = [
            f"{value:.3f}" + (f" ({theory[name][e]})" if e in theory.get(name, {}) else "")
            for e, value in row.items()
        ]
        label = METRICS[name].label if name in METRICS else LABELS[name]
        print(f"| {label} | " + " | ".join(cells) + " |")


def child_table(samples: int) -> None:
    """R2 of a factor that two others cause, plain and beyond its parents."""
    generator = np.random.default_rng(0)
    roots = generator.uniform(-1, 1, (samples, 2))
    noise = 0.3 * generator.standard_normal(samples)
    blur = 0.3 * generator.standard_normal(samples)
    causes = {
        "linear": 0.8 * roots[:, 0] - 0.6 * roots[:, 1],
        "curved": np.sin(3 * roots[:, 0]) * np.cos(2 * roots[:, 1]),
    }
    print(f"\nA factor with two parents, {samples} samples\n")
    print("| mechanism | codes | R2 | kernel R2 | R2 beyond parents | in theory |")
    print("| --- | --- | --- | --- | --- | --- |")
    for mechanism, cause in causes.items():
        z = np.concatenate([roots, (cause + noise)[:, None]], 1)
        codes = {
            "its parents": (roots, "0"),
            "curved functions of its parents": (np.tanh(2 * roots), "0"),
            "itself": (z[:, 2:], "1"),
            "itself, mixed with a parent": (z[:, 2:] + 2 * roots[:, :1], "1"),
            "all three, rotated": (z @ rotation()[:3, :3], "1"),
            "itself, with as much noise as it has": ((z[:, 2] + blur)[:, None], "0.5"),
            "noise": (generator.standard_normal((samples, 3)), "0"),
        }
        for label, (made, theory) in codes.items():
            found = [
                metrics.linear_r2(z, made),
                metrics.nonlinear_r2(z, made),
                metrics.r2_beyond_parents(z, made, [[], [], [0, 1]]),
            ]
            cells = " | ".join(f"{each.per_factor[2] + 0.0:.3f}" for each in found)
            print(f"| {mechanism} | {label} | {cells} | {theory} |")


def seconds(call: Callable[[], object], least: int = 1) -> float:
    """Of processor time, the least of some calls: others may use the machine."""
    taken = []
    for _ in range(least):
        start = time.process_time()
        call()
        taken.append(time.process_time() - start)
    return min(taken)


def times(samples: int) -> None:
    generator = np.random.default_rng(0)
    z = generator.uniform(-1, 1, (samples, FACTORS))
    codes = z @ rotation() + 0.1 * generator.standard_normal(z.shape)
    options = Options(2, 0, {"all": range(FACTORS)}, {"all": range(FACTORS)})
    base = seconds(lambda: LinearRegression().fit(codes, z), 15)
    print(f"\n{samples} x {FACTORS}; LinearRegression: {1e3 * base:.1f} ms\n")
    print("| metric | ms | times LinearRegression | s with 1,000 replicates and chance |")
    print("| --- | --- | --- | --- |")
    for name in plain_metrics():
        metric = METRICS[name]
        quick = metric.shuffles >= 20

        def measure(measured: Callable[..., object] = metric.measure) -> object:
            return measured(z, codes, options)

        def whole(name: str = name) -> object:
            return score(z, codes, factors=NAMES, metrics=[name])

        alone = seconds(measure, 15 if quick else 1)
        print(
            f"| {metric.label} | {1e3 * alone:.1f} | {alone / base:.1f} | {seconds(whole):.1f} |",
            flush=True,
        )


def sklearn_r2(z: np.ndarray, codes: np.ndarray) -> float:
    """Of two folds, each half by the fit on the other."""
    half = len(z) // 2
    found = []
    for fitted, scored in ((slice(half, None), slice(half)), (slice(half), slice(half, None))):
        model = LinearRegression().fit(codes[fitted], z[fitted])
        found.append(r2_score(z[scored], model.predict(codes[scored])))
    return float(np.mean(found))


def sklearn_bootstrap(z: np.ndarray, codes: np.ndarray, replicates: int) -> np.ndarray:
    """R2 of rows drawn again inside each half, fitted anew each time."""
    generator = np.random.default_rng(0)
    half = len(z) // 2
    found = []
    for _ in range(replicates):
        first = generator.integers(0, half, half)
        second = generator.integers(half, len(z), len(z) - half)
        drawn = np.concatenate([first, second])
        found.append(sklearn_r2(z[drawn], codes[drawn]))
    return np.array(found)


def scipy_mcc(z: np.ndarray, codes: np.ndarray) -> float:
    strength = np.abs(np.corrcoef(z.T, codes.T)[: z.shape[1], z.shape[1] :])
    return float(strength[linear_sum_assignment(strength, maximize=True)].mean())


def sklearn_mig(z: np.ndarray, codes: np.ndarray, bins: int = 20) -> float:
    def cut(values: np.ndarray) -> np.ndarray:
        edges = np.linspace(values.min(), values.max(), bins + 1)[1:-1]
        return np.digitize(values, edges)

    factors, columns = [[cut(v) for v in each.T] for each in (z, codes)]
    gaps = []
    for factor in factors:
        top = sorted(mutual_info_score(factor, column) for column in columns)
        gaps.append((top[-1] - top[-2]) / mutual_info_score(factor, factor))
    return float(np.mean(gaps))


def cases(short: bool) -> Iterator[Any]:
    """Scores of ten codes of ten factors, on one thread, against scikit-learn, numpy and scipy put
    together plainly; both must agree. A replicate draws the rows again and fits anew.
    """
    samples, replicates, rounds = (1000, 20, 2) if short else (25_000, 200, 5)
    generator = np.random.default_rng(0)
    z = generator.uniform(-1, 1, (samples, FACTORS))
    codes = z @ rotation() + 0.1 * generator.standard_normal(z.shape)

    def ours_bootstrap() -> np.ndarray:
        return bootstrap(metrics.linear_r2(z, codes), replicates, 0).value

    many = f"R2 with {replicates} bootstrap replicates"
    both: dict[str, tuple[str, Callable[[], Any], Callable[[], Any]]] = {
        "R2": (
            "scikit-learn",
            lambda: sklearn_r2(z, codes),
            lambda: metrics.linear_r2(z, codes).value,
        ),
        many: (
            "scikit-learn, a fit a replicate",
            lambda: sklearn_bootstrap(z, codes, replicates),
            ours_bootstrap,
        ),
        "MCC": (
            "numpy.corrcoef, scipy's assignment",
            lambda: scipy_mcc(z, codes),
            lambda: metrics.mcc(z, codes).value,
        ),
        "MIG": (
            "scikit-learn's mutual_info_score",
            lambda: sklearn_mig(z, codes),
            lambda: mig(z, codes).value,
        ),
    }
    with threadpoolctl.threadpool_limits(1):
        for name, (label, theirs, ours) in both.items():
            # Replicates are drawn by another generator: their spread agrees, not they.
            near = 0.02 if name == many else 1e-6
            if not np.isclose(np.mean(theirs()), np.mean(ours()), rtol=0, atol=near):
                raise AssertionError(f"{name}: {np.mean(theirs())} is not {np.mean(ours())}")

            def timed(
                call: Callable[[], Any], least: int = 5 if name in ("R2", "MCC") else 1
            ) -> float:
                return 1e3 * seconds(call, least)

            calls = {label: theirs, "ours": ours}
            contenders = {k: functools.partial(timed, v) for k, v in calls.items()}
            yield f"{name}, {samples:,} samples", "CPU-ms", rounds, contenders


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=4096)
    parser.add_argument("--timed", type=int, default=25_000)
    parser.add_argument("--no-table", action="store_true")
    parser.add_argument("--no-times", action="store_true")
    arguments = parser.parse_args()
    with threadpoolctl.threadpool_limits(1):
        if not arguments.no_table:
            table(arguments.n)
            child_table(arguments.n)
        if not arguments.no_times:
            times(arguments.timed)


if __name__ == "__main__":
    main()
