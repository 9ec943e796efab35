"""The XLA FFI headers of the JAX that a Python interpreter has, as the repository @xla_ffi. Nothing is fetched."""

def _xla_ffi_impl(ctx):
    python = ctx.os.environ.get("JFI_PYTHON") or ctx.which("python3")
    if not python:
        fail("xla_ffi: no python3 on PATH; give the interpreter that has JAX: --repo_env=JFI_PYTHON=/path/to/python")
    done = ctx.execute([python, "-c", "import jax; print(jax.ffi.include_dir())"])
    if done.return_code != 0:
        fail("xla_ffi: {} has no JAX to take the FFI headers from; pip install jax, or --repo_env=JFI_PYTHON=/path/to/python\n{}".format(python, done.stderr))
    ctx.symlink(done.stdout.strip(), "include")
    ctx.file("BUILD", """
load("@rules_cc//cc:defs.bzl", "cc_library")

cc_library(
    name = "xla_ffi",
    hdrs = glob(["include/xla/ffi/api/**/*.h"]),
    includes = ["include"],
    visibility = ["//visibility:public"],
)
""")

xla_ffi_repository = repository_rule(
    implementation = _xla_ffi_impl,
    environ = ["JFI_PYTHON", "PATH"],
    local = True,
)
