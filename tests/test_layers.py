"""Imports follow the layers of docs/architecture.md, and the package needs neither the kernel compiler nor a driver."""

import ast
import pathlib
import subprocess
import sys

import pytest

PACKAGE = pathlib.Path(__file__).parents[1] / "jax_fp4_indexer"
# What a layer may import of the package. `errors` may be imported by all.
ALLOWED = {
    "formats": set(),
    "configs": {"formats"},
    "specs": {"formats", "configs"},
    "calls": {"formats", "configs", "specs"},
    "reference": {"formats", "configs", "specs", "calls"},
    "primitives": {"formats", "configs", "specs", "calls", "reference"},
    "ops": {"formats", "configs", "specs", "calls", "reference", "primitives"},
    "kernels": {"formats", "configs", "specs"},
    "aot": {"formats", "configs", "specs", "kernels"},
}
WITHOUT_JAX = ("formats", "configs", "specs", "kernels", "aot")
WITHOUT_DSL = ("formats", "configs", "specs", "calls", "reference", "ops", "primitives")


def imports(path):
    """Absolute dotted names imported anywhere in a file."""
    package = ["jax_fp4_indexer", *path.relative_to(PACKAGE).parent.parts]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            lead = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*lead, *([node.module] if node.module else [])])
            yield from (f"{module}.{alias.name}" for alias in node.names)


FILES = [(layer, path) for layer in ALLOWED for path in sorted((PACKAGE / layer).rglob("*.py"))]


@pytest.mark.parametrize("layer, path", FILES, ids=[str(path.relative_to(PACKAGE)) for _, path in FILES])
def test_imports_point_down(layer, path):
    for name in imports(path):
        parts = name.split(".")
        if parts[0] == "jax_fp4_indexer" and len(parts) > 1 and (PACKAGE / parts[1]).is_dir():
            assert parts[1] == layer or parts[1] in ALLOWED[layer], f"{layer} imports {name}"
        assert not (parts[0] in ("jax", "jaxlib") and layer in WITHOUT_JAX), f"{layer} imports {name}"
        assert not (parts[0] in ("cutlass", "cuda", "torch") and layer in WITHOUT_DSL), f"{layer} imports {name}"


# Of kernels/: what a shared folder may import of the others. An op's folder may import all of them, and no other op's.
SHARED_KERNELS = {
    "device": set(),
    "operands": {"device"},
    "addressing": {"device"},
    "epilogues": {"device", "addressing"},
}


def test_shared_kernel_folders_import_downwards_and_no_op_imports_another():
    for path in sorted((PACKAGE / "kernels").rglob("*/*.py")):
        folder = path.parent.name
        for name in imports(path):
            parts = name.split(".")
            if parts[:2] == ["jax_fp4_indexer", "kernels"] and (PACKAGE / "kernels" / parts[2]).is_dir():
                assert parts[2] == folder or parts[2] in SHARED_KERNELS.get(folder, SHARED_KERNELS), (
                    f"{path.name} imports {name}"
                )


def test_every_layer_has_files_and_every_folder_is_a_layer():
    assert {layer for layer, _ in FILES} == set(ALLOWED)
    folders = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    assert folders - set(ALLOWED) <= {"bench", "cli", "cubins"}


def test_import_and_a_call_need_no_kernel_compiler_no_driver_and_no_cli_library():
    script = """
import ctypes, sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] in ('cutlass', 'cuda', 'torch', 'click', 'rich', 'matplotlib'):
            raise ImportError(name)
sys.meta_path.insert(0, Refuse())
opened = ctypes.CDLL.__init__
def cdll(self, name, *args, **kwargs):
    assert 'libcuda' not in str(name), name
    return opened(self, name, *args, **kwargs)
ctypes.CDLL.__init__ = cdll
import numpy as np, jax_fp4_indexer as jfi
cu, byte = np.array([0, 1], np.int32), lambda value, *shape: np.full(shape, value, np.uint8)
scores = jfi.fp4_indexer_block_scores(byte(0x22, 1, 1, 64), byte(0x22, 1, 1, 128, 64), byte(0x38, 1, 1, 8), byte(0x38, 1, 1, 128, 8), cu, cu, cu,
                                      max_seqlen_q=1, max_seqlen_k=1, kv_indices=np.zeros(1, np.int32))
assert float(scores[0, 0, 0]) == 128, scores
assert set(jfi.__all__) <= set(dir(jfi))
assert not [name for name in sys.modules if name.startswith('jax_fp4_indexer.kernels')]
"""
    subprocess.run([sys.executable, "-c", script], check=True, cwd=PACKAGE.parent, timeout=120)
