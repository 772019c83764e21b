"""R2 between blocks of codes and of factors."""

import numpy as np
import pytest
import threadpoolctl
from helpers.synthetic_codes import rotation, uniform

from threedident.errors import UsageError
from threedident.evaluate.metrics import block_r2, linear_r2


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Many threads on small matrices are slow where processors are busy."""
    with threadpoolctl.threadpool_limits(1):
        yield


@pytest.mark.parametrize("kernel", [False, True])
def test_blocks_of_codes_and_factors(kernel):
    z = uniform(800, 5)
    codes = np.concatenate([z[:, :3] @ rotation(3), z[:, [3]]], 1)
    blocks = {"content": [0, 1, 2], "style": [3, 4]}
    found = block_r2(z, codes, blocks, {"content": [0, 1, 2], "style": [3]}, kernel)
    expected = np.array([[1, 0], [0, 0.5]])
    assert np.allclose(found.parts["r2"], expected, atol=0.03)
    assert found.value == pytest.approx(0.8, abs=0.02)
    assert found.parts["own"] == ["content", "style"]
    single = linear_r2(z, codes[:, :3]).per_factor
    if not kernel:
        assert found.per_factor[:3] == pytest.approx(single[:3])
    unnamed = block_r2(z, codes, blocks, {"a": [3], "b": [0, 1, 2]}, kernel)
    assert unnamed.parts["own"] == ["b", "a"]
    assert unnamed.choices["own"] == "the best block"


def test_blocks_that_do_not_fit():
    z = uniform(50, 3)
    for blocks, message in (
        ({}, "at least one block of factors"),
        ({"a": []}, "factor block 'a' must name"),
        ({"a": [3]}, "columns 0 to 2"),
    ):
        with pytest.raises(UsageError, match=message):
            block_r2(z, z, blocks, {"a": [0]})
