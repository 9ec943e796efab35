"""`xla_ffi_repository` for MODULE.bazel (Bazel 6 and later)."""

load(":xla_ffi.bzl", "xla_ffi_repository")

def _xla_ffi_impl(_ctx):
    xla_ffi_repository(name = "xla_ffi")

xla_ffi = module_extension(implementation = _xla_ffi_impl)
