"""How often the interval of a two-fold R2 holds the R2 of ever more samples.

`python benchmarks/intervals.py` prints a line for each number of samples N, codes m and
population's R2, over 10 uniform factors, linear mixing and Gaussian noise.
"""

from __future__ import annotations

import argparse
import itertools
import math

import numpy as np

from threedident.evaluate.metrics import linear_r2
from threedident.evaluate.metrics._bootstrap import bootstrap, interval
from threedident.evaluate.metrics._linear_fit import LOWEST

FACTORS = 10
CASES = [
    (500, 10),
    (500, 24),
    (500, 50),
    (1000, 10),
    (2500, 10),
    (4096, 10),
    (4096, 20),
    (4096, 50),
]
NOISES = (0.3, 1.5)
REPLICATES = 200


def simulate(samples: int, codes: int, noise: float, runs: int) -> tuple[float, float, float]:
    """The population's R2, by how much the score lies below it, and how often intervals hold it."""
    generator = np.random.default_rng([samples, codes])
    mixing = generator.standard_normal((FACTORS, codes))
    noise *= math.sqrt(codes / FACTORS)  # per code, so that the R2 is much the same
    cross = mixing / 3  # uniform factors in [-1, 1] have variance 1/3
    covariance = mixing.T @ mixing / 3 + noise**2 * np.eye(codes)
    explained = np.einsum("ij,ji->i", cross, np.linalg.solve(covariance, cross.T))
    population = float(3 * explained.mean())
    off, held = [], []
    for _ in range(runs):
        z = generator.uniform(-1, 1, (samples, FACTORS))
        found = linear_r2(z, z @ mixing + noise * generator.standard_normal((samples, codes)))
        ends = interval(bootstrap(found, REPLICATES, 0).value, found.value, LOWEST)
        off.append(population - found.value)
        held.append(ends[0] <= population <= ends[1])
    return population, float(np.mean(off)), float(np.mean(held))


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    runs = parser.parse_args().runs
    print("| N | m | N / m^2 | population's R2 | below it by | intervals that hold it |")
    print("| --- | --- | --- | --- | --- | --- |")
    for (samples, codes), noise in itertools.product(CASES, NOISES):
        population, off, held = simulate(samples, codes, noise, runs)
        ratio = samples / codes**2
        print(
            f"| {samples} | {codes} | {ratio:.3g} | {population:.3f} | {off:.4f} | {held:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
