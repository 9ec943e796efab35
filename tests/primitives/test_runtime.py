"""Finding, loading and registering the library, without a GPU and where it can be tried without the library."""

import types

import jax
import pytest

from jax_fp4_indexer.primitives import runtime
from jax_fp4_indexer.specs import OPS


@pytest.fixture
def fresh(monkeypatch):
    """The module as if nothing had been loaded in this process."""
    monkeypatch.setattr(runtime, "_state", {})
    runtime._unsupported.cache_clear()
    yield
    runtime._unsupported.cache_clear()


def test_find_looks_through_every_root(tmp_path):
    sources, built = tmp_path / "sources", tmp_path / "built"
    (built / "_lib").mkdir(parents=True)
    sources.mkdir()
    assert runtime.find("_lib/x.so", [sources, built]) is None
    (built / "_lib" / "x.so").touch()
    assert runtime.find("_lib/x.so", [sources, built]) == built / "_lib" / "x.so"


def test_missing_library_and_missing_cubins_name_the_remedy(fresh, tmp_path):
    with pytest.raises(ImportError, match="libjax_fp4_indexer_ffi.so is not in this installation; reinstall"):
        runtime.load([tmp_path])
    (tmp_path / "_lib").mkdir()
    (tmp_path / "_lib" / runtime.LIBRARY).write_bytes(b"no library")
    with pytest.raises(ImportError, match="manifest.json is not in this installation; build the cubins"):
        runtime.load([tmp_path])
    (tmp_path / "cubins").mkdir()
    (tmp_path / "cubins" / "manifest.json").write_text("{}")
    with pytest.raises(ImportError, match="does not load .*reinstall"):
        runtime.load([tmp_path])


def test_version_guard():
    runtime.check_version(3, 3)
    runtime.check_version(3, 4)
    with pytest.raises(ImportError, match=r"built for XLA FFI API 0\.4, but jaxlib \S+ serves 0\.3; upgrade jax") as e:
        runtime.check_version(4, 3)
    assert "\n" not in str(e.value)
    with pytest.raises(ImportError, match=r"API 1\.0"):
        runtime.check_version(1000, 9)
    assert 3 <= runtime.runtime_api_version() < 1000


def test_lowering_for_cuda_loads_nothing_without_a_cuda_backend(fresh, monkeypatch):
    monkeypatch.setattr(runtime, "load", lambda roots=None: pytest.fail("loaded"))
    runtime.register_if_cuda()


def test_lowering_for_cuda_with_a_cuda_backend_says_what_is_missing(fresh, monkeypatch):
    monkeypatch.setattr(jax, "devices", lambda platform=None: ["a device"])
    monkeypatch.setattr(runtime, "find", lambda name, roots=None: None)
    with pytest.raises(ImportError, match="is not in this installation"):
        runtime.register_if_cuda()


def test_registers_once_and_the_type_before_the_target(fresh, monkeypatch):
    calls = []
    monkeypatch.setattr(jax.ffi, "pycapsule", lambda f: f)
    monkeypatch.setattr(
        jax.ffi, "register_ffi_type", lambda name, d, platform: calls.append(("type", name, sorted(d), platform))
    )
    monkeypatch.setattr(
        jax.ffi, "register_ffi_target", lambda name, d, platform: calls.append(("target", name, sorted(d), platform))
    )
    names = ("state_type_id", "state_type_info")
    library = types.SimpleNamespace(
        **{f"jfi_{n}": (lambda n=n: n) for n in names}, jfi_instantiate=1, jfi_prepare=2, jfi_execute=3
    )
    runtime.register(library=library)
    runtime.register(library=library)
    targets = [("target", op.target, ["execute", "instantiate", "prepare"], "CUDA") for op in OPS.values()]
    assert calls == [("type", "jax_fp4_indexer.OpState", ["type_id", "type_info"], "CUDA"), *targets]


def test_a_second_copy_is_refused_before_jax_hears_of_it(fresh, monkeypatch):
    monkeypatch.setitem(jax.ffi.__dict__, "_jax_fp4_indexer_registered", {"CUDA": "/elsewhere/" + runtime.LIBRARY})
    monkeypatch.setattr(jax.ffi, "register_ffi_type", lambda *a, **k: pytest.fail("registered"))
    with pytest.raises(
        ImportError,
        match=r"/elsewhere/\S+ serves this process already, /here/\S+ would be a second copy; keep one installation",
    ) as e:
        runtime.register(library=types.SimpleNamespace(_name="/here/" + runtime.LIBRARY))
    assert "\n" not in str(e.value)


def test_no_gpu_is_nothing_to_report():
    assert runtime.unsupported_reason("block_scores") is None


@pytest.mark.parametrize("attribute, capability", [("9.0", (9, 0)), ("12.1", (12, 1)), ("gfx942", None), (None, None)])
def test_capability_of(attribute, capability):
    assert runtime.capability_of(types.SimpleNamespace(compute_capability=attribute)) == capability


def _on_gpu(monkeypatch, capability):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "local_devices", lambda: [types.SimpleNamespace(compute_capability=capability)])


def test_a_gpu_without_library_or_kernel_is_one_sentence(fresh, monkeypatch):
    _on_gpu(monkeypatch, "9.0")
    monkeypatch.setattr(runtime, "find", lambda name, roots=None: None)
    assert runtime.unsupported_reason("block_scores").endswith('or pass implementation="reference".')
    runtime._unsupported.cache_clear()

    def choose(capability, op):
        if capability != (9, 0):
            raise LookupError(
                'no kernel for compute capability 7.5; this build ships sm_90a; use implementation="reference"'
            )
        return "sm_90a", "native", ["k"]

    monkeypatch.setattr(runtime, "choose_variant", choose)
    assert runtime.unsupported_reason("block_scores") is None
    _on_gpu(monkeypatch, "7.5")
    assert (
        runtime.unsupported_reason("block_scores")
        == 'No kernel for compute capability 7.5; this build ships sm_90a; use implementation="reference".'
    )
    _on_gpu(monkeypatch, "gfx942")
    assert runtime.unsupported_reason("block_scores") is None


def test_export_disabled_checks_name_every_target():
    assert runtime.export_disabled_checks() == tuple(
        jax.export.DisabledSafetyCheck.custom_call(op.target) for op in OPS.values()
    )
