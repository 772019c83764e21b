"""Latents, and matching and resampling by brute force, to compare with."""

from __future__ import annotations

import numpy as np

from threedident.datasets import (
    GeneralizedNormal,
    Laplace,
    Normal,
    PerFactor,
    Uniform,
    VonMisesFisher,
)


def uniform(count, n=10, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, (count, n)).astype(np.float32)


def sphere(count, n, seed=0):
    points = np.random.default_rng(seed).normal(size=(count, n))
    return (points / np.linalg.norm(points, axis=1, keepdims=True)).astype(np.float32)


def brute_force(latents, points, k=1):
    """Distances and numbers of the k nearest, in double precision."""
    distances, found = [], []
    for start in range(0, len(points), 100):
        d = np.sqrt(((points[start : start + 100, None].astype(float) - latents) ** 2).sum(2))
        order = np.argpartition(d, k - 1, 1)[:, :k]
        order = np.take_along_axis(order, np.take_along_axis(d, order, 1).argsort(1), 1)
        found.append(order)
        distances.append(np.take_along_axis(d, order, 1))
    return np.concatenate(distances), np.concatenate(found)


def log_density(conditional, mean, points):
    """Of points around one mean, up to a constant; in double precision."""
    d = points.astype(float) - mean.astype(float)
    match conditional:
        case Normal(sigma=s):
            return (-(d**2) / (2 * np.array(s) ** 2)).sum(1)
        case Laplace(lam=s):
            return (-np.abs(d) / np.array(s)).sum(1)
        case GeneralizedNormal(lam=s, beta=b):
            return (-((np.abs(d) / np.array(s)) ** b)).sum(1)
        case VonMisesFisher(kappa=k):
            return k * (points.astype(float) @ mean.astype(float))
        case PerFactor(parts=parts):
            return sum(log_density(p, mean[list(c)], points[:, list(c)]) for c, p in parts)
        case Uniform():
            return np.zeros(len(points))
    raise AssertionError(conditional)


def exact_weights(process, latents, anchor):
    weight = np.exp(log_density(process.conditional, latents[anchor], latents))
    weight[anchor] = 0
    weight[process.space.outside(latents)] = 0
    return weight
