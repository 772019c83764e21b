"""The direct engine's kernels for an NVIDIA GPU, as far as a machine without one can tell."""

from __future__ import annotations

import sys

import pytest
import warp as wp

from threedident.render.direct import kernels

#: The oldest and the newest generation of GPUs that are written for: Turing and Hopper.
ARCHITECTURES = (75, 90)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "darwin", reason="Warp has no compiler for CUDA there")
def test_the_kernels_compile_for_gpus(tmp_path):
    module = wp.get_module(kernels.__name__)
    files = wp.compile_aot_module(module, arch=ARCHITECTURES, module_dir=tmp_path, use_ptx=True)
    assert len(files) == len(ARCHITECTURES)
    names = {kernel.key for kernel in module.kernels.values()}
    assert len(names) > 3
    for architecture, file in zip(ARCHITECTURES, sorted(files), strict=True):
        text = file.read_text("utf-8")
        assert f".target sm_{architecture}" in text
        for name in names:
            assert f".entry {name}_" in text
