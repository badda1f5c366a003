"""Variables in safetensors files, ours and those of PyTorch."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import assert_equal
from libraries import draw_params, make_layer
from peers import peer

from rnncells.interop import files, pytorch


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
def test_variables_survive_save_and_load_bit_identically(dtype, rng, tmp_path):
    peer("safetensors")
    layer, path = make_layer("LSTM", (2, True), param_dtype=dtype), tmp_path / "a.st"
    variables = draw_params(rng, layer) | {"counts": {"steps": jnp.int32(7)}}
    files.save(path, variables, {"config": "{}"})
    like = jax.eval_shape(lambda: variables)
    assert_equal(files.load(path), variables)
    assert_equal(files.load(path, like), variables)
    assert files.load_metadata(path) == {"config": "{}"}
    wrong = {"params": variables["params"], "steps": like["counts"]["steps"]}
    with pytest.raises(ValueError, match="missing: steps\n.*unknown: counts/steps"):
        files.load(path, wrong)
    with pytest.raises(ValueError, match="must not contain `/`, got .'a/b'"):
        files.save(path, {"a/b": np.ones(2)})
    with pytest.raises(TypeError, match="`metadata` must map names to text"):
        files.save(path, variables, {"steps": 7})
    with pytest.raises(TypeError, match="`variables` must be nested dict.*got tuple"):
        files.save(path, (variables,))
    path.write_bytes(b"not safetensors")
    for read in (files.load, files.load_metadata):
        with pytest.raises(ValueError, match="`path` must be a safetensors file, got"):
            read(path)
    files.save(path, {})
    assert files.load(path) == {} and files.load_metadata(path) == {}


def test_pytorch_file_is_loaded(rng, tmp_path):
    library = peer("safetensors.numpy")
    layer, path = make_layer("LSTM", (2, True)), tmp_path / "torch.safetensors"
    variables = draw_params(rng, layer)
    tensors = pytorch.to_state_dict(layer, variables, "encoder.")
    library.save_file({k: np.asarray(v, order="C") for k, v in tensors.items()}, path)
    loaded = pytorch.from_state_dict(layer, files.load_arrays(path), "encoder.")
    assert_equal(loaded, variables)


def test_missing_safetensors_names_its_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    monkeypatch.setitem(sys.modules, "safetensors.numpy", None)
    for call in (files.load, files.load_arrays, files.load_metadata):
        with pytest.raises(ImportError, match=r"pip install '\.\[interop\]'"):
            call(tmp_path / "a.safetensors")
    with pytest.raises(ImportError, match="needs safetensors"):
        files.save(tmp_path / "a.safetensors", {"w": np.ones(2)})
