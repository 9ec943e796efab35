"""Compiles kernels of a wheel to PTX and a host object, in a process of its own for each arch: the DSL reads its target when it is imported.

    python worker.py FOLDER OUT ARCH < jobs.json      FOLDER: the unpacked wheel; OUT/<name>.ptx, OUT/<name>.o

An entry takes addresses and integers alone and makes the tensors that the kernel's own host function asks for, so that its C interface is known here.
"""

import importlib
import json
import os
import pathlib
import sys
import types

SHARED_BYTES = 232448  # of a CTA, at most


class _Anything:
    """What a kernel's file imports and its device code never uses: has every attribute, stands in annotations, and as a decorator leaves its function alone."""

    def __call__(self, *args, **kwargs):
        return args[0] if len(args) == 1 and callable(args[0]) and not kwargs else self

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __or__(self, other):
        return self

    __ror__ = __or__


class _Module(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything()


def stub(folder):
    """`flashinfer` without running its package files, and without PyTorch where it is not installed."""
    for name in (
        "flashinfer",
        "flashinfer.cute_dsl",
        "flashinfer.attn_scores",
        "flashinfer.attn_scores.kernels",
        "flashinfer.gemm",
        "flashinfer.gemm.kernels",
        "flashinfer.msa_ops",
        "flashinfer.msa_ops.cute_dsl",
    ):
        package = types.ModuleType(name)
        package.__path__ = [str(folder.joinpath(*name.split(".")))]
        sys.modules[name] = package
    for name in (
        "flashinfer.api_logging",
        "flashinfer.utils",
        "flashinfer.trace",
        "flashinfer.trace.templates",
        "flashinfer.trace.templates.norm",
        "flashinfer.cute_dsl.utils",
        "flashinfer.jit",
        "flashinfer.jit.cute_dsl_core",
    ):
        sys.modules[name] = _Module(name)
    torch = _Module("torch")
    torch.cuda = types.SimpleNamespace(
        current_device=lambda: 0,
        get_device_properties=lambda _: types.SimpleNamespace(shared_memory_per_block_optin=SHARED_BYTES),
    )
    sys.modules["torch"] = torch


def entries(arch):
    """{kind: function of a job -> (function to compile, arguments that fix its types)}."""
    import cuda.bindings.driver as cuda
    import cutlass
    import cutlass.cute as cute
    from cutlass import Float32, Int32, Int64

    def pointer(dtype, align=128):
        return cute.runtime.make_ptr(dtype, 0, cute.AddressSpace.gmem, assumed_align=align)

    def tensor(at, shape, stride):
        return cute.make_tensor(at, cute.make_layout(shape, stride=stride))

    def schedule(job):
        kernel = importlib.import_module("flashinfer.attn_scores.kernels.schedule_kernel").PagedMQALogitsScheduleKernel(
            job["bucket"], 256, job["ctas"]
        )
        ctas = job["ctas"]

        @cute.jit
        def entry(lens: cute.Pointer, meta: cute.Pointer, batch: Int32, stream: cuda.CUstream):
            kernel(tensor(lens, (batch,), (1,)), tensor(meta, (ctas + 1, 2), (2, 1)), batch, stream)

        return entry, [pointer(Int32, 4), pointer(Int32), Int32(1), cuda.CUstream(0)]

    def logits(job):
        fp4, dtype, page, rows, ctas = (
            job["kind"] == "fp4_logits",
            getattr(cutlass, job["epilogue"]),
            job["page"],
            64 * job["next_n"],
            job["ctas"],
        )
        out, width = getattr(cutlass, job["output"]), 64 if fp4 else 128
        name = "FP4MQALogitsKernel" if fp4 else "FP8MQALogitsKernel"
        module = importlib.import_module(f"flashinfer.attn_scores.kernels.{job['kind'][:3]}_paged_mqa_logits")
        kernel = getattr(module, name)(
            phys_block_kv=page, next_n=job["next_n"], num_sms=ctas, epi_dtype=dtype, output_dtype=out, arch=arch
        )
        block = page * (width + 4)

        @cute.jit
        def with_scales(
            kv: cute.Pointer,
            q: cute.Pointer,
            sf_q: cute.Pointer,
            weights: cute.Pointer,
            scores: cute.Pointer,
            table: cute.Pointer,
            lens: cute.Pointer,
            meta: cute.Pointer,
            pages: Int32,
            batch: Int32,
            columns: Int32,
            max_pages: Int32,
            stream: cuda.CUstream,
        ):
            kernel(
                tensor(kv, (pages, block), (Int64(block), 1)),
                tensor(q, (rows, width, batch), (width, 1, rows * width)),
                tensor(sf_q, (rows, batch), (1, rows)),
                tensor(weights, (rows, batch), (1, rows)),
                tensor(scores, (batch * job["next_n"], columns), (Int64(columns), 1)),
                tensor(table, (batch, max_pages), (Int64(max_pages), 1)),
                tensor(lens, (batch,), (1,)),
                tensor(meta, (ctas + 1, 2), (2, 1)),
                pages,
                batch,
                stream,
            )

        @cute.jit
        def without(
            kv: cute.Pointer,
            q: cute.Pointer,
            weights: cute.Pointer,
            scores: cute.Pointer,
            table: cute.Pointer,
            lens: cute.Pointer,
            meta: cute.Pointer,
            pages: Int32,
            batch: Int32,
            columns: Int32,
            max_pages: Int32,
            stream: cuda.CUstream,
        ):
            kernel(
                tensor(kv, (pages, block), (Int64(block), 1)),
                tensor(q, (rows, width, batch), (width, 1, rows * width)),
                tensor(weights, (rows, batch), (1, rows)),
                tensor(scores, (batch * job["next_n"], columns), (Int64(columns), 1)),
                tensor(table, (batch, max_pages), (Int64(max_pages), 1)),
                tensor(lens, (batch,), (1,)),
                tensor(meta, (ctas + 1, 2), (2, 1)),
                pages,
                batch,
                stream,
            )

        u8 = pointer(cutlass.Uint8)
        pointers = [
            u8,
            u8,
            *([pointer(Int32)] if fp4 else []),
            pointer(dtype),
            pointer(out),
            pointer(Int32, 4),
            pointer(Int32, 4),
            pointer(Int32),
        ]
        return with_scales if fp4 else without, [*pointers, *[Int32(1)] * 4, cuda.CUstream(0)]

    def quantiser(job):
        module, width, group = (
            importlib.import_module("flashinfer.cute_dsl.rmsnorm_fp4quant"),
            job["width"],
            job["group"],
        )
        dtype = getattr(cutlass, job["dtype"])
        kernel = module.RMSNormFP4QuantKernel(
            dtype, width, group, job["swizzled"], job["dtype"] == "Float16", sm_version=100
        )

        @cute.jit
        def entry(
            x: cute.Pointer,
            w: cute.Pointer,
            y: cute.Pointer,
            s: cute.Pointer,
            scale: cute.Pointer,
            rows: Int32,
            size: Int32,
            eps: Float32,
            stream: cuda.CUstream,
        ):
            where = (
                tensor(s, (size,), (1,))
                if cutlass.const_expr(job["swizzled"])
                else tensor(s, (rows, width // group), (width // group, 1))
            )
            kernel(
                tensor(x, (rows, width), (width, 1)),
                tensor(w, (width,), (1,)),
                tensor(y, (rows, width // 2), (width // 2, 1)),
                where,
                tensor(scale, (1,), (1,)),
                rows,
                eps,
                False,
                stream,
            )

        u8 = pointer(cutlass.Uint8)
        return entry, [
            pointer(dtype),
            pointer(dtype),
            u8,
            u8,
            pointer(Float32, 4),
            Int32(1),
            Int32(1),
            Float32(1e-6),
            cuda.CUstream(0),
        ]

    def gemm(job):
        module = importlib.import_module("flashinfer.gemm.kernels.dense_blockscaled_gemm_sm100")
        kernel = module.Sm100BlockScaledPersistentDenseGemmKernel(
            job["group"], tuple(job["tile"]), tuple(job["cluster"]), enable_pdl=False
        )
        codes, scales, out = (getattr(cutlass, job[n]) for n in ("codes", "scales", "output"))

        @cute.jit
        def entry(
            a: cute.Pointer,
            b: cute.Pointer,
            sfa: cute.Pointer,
            sfb: cute.Pointer,
            c: cute.Pointer,
            alpha: cute.Pointer,
            m: Int32,
            n: Int32,
            k: Int32,
            stream: cuda.CUstream,
        ):
            matrix = lambda at, rows, columns: tensor(at, (rows, columns, 1), (columns, 1, rows * columns))
            flat = lambda at: tensor(at, (m,), (1,))
            kernel(
                matrix(a, m, cute.assume(k, 64)),
                matrix(b, n, cute.assume(k, 64)),
                flat(sfa),
                flat(sfb),
                matrix(c, m, cute.assume(n, 16)),
                tensor(alpha, (1,), (1,)),
                job["ctas"],
                stream,
            )

        return entry, [
            pointer(codes),
            pointer(codes),
            pointer(scales),
            pointer(scales),
            pointer(out),
            pointer(Float32, 4),
            Int32(1),
            Int32(1),
            Int32(1),
            cuda.CUstream(0),
        ]

    def decode_scores(job):
        module, heads, kv_heads, tokens = (
            importlib.import_module("flashinfer.msa_ops.cute_dsl.proxy_score_decode_bf16_sm90"),
            job["heads"],
            job["kv_heads"],
            job["tokens"],
        )

        @cute.jit
        def entry(
            q: cute.Pointer,
            k: cute.Pointer,
            starts: cute.Pointer,
            table: cute.Pointer,
            lens: cute.Pointer,
            scores: cute.Pointer,
            batch: Int32,
            pages: Int32,
            tiles: Int32,
            stream: cuda.CUstream,
        ):
            total, page = batch * tokens, 128 * 128
            module._msa_host(
                tensor(q, (total, heads, 128), (heads * 128, 128, 1)),
                tensor(k, (pages, kv_heads, 128, 128), (kv_heads * page, page, 128, 1)),
                tensor(starts, (batch + 1,), (1,)),
                tensor(table, (batch, tiles), (tiles, 1)),
                tensor(lens, (batch,), (1,)),
                tensor(scores, (heads, tiles, total), (tiles * total, total, 1)),
                stream,
                kv_heads,
                kv_heads * page,
                page,
                heads // kv_heads,
                tokens,
                job["sweep"],
            )

        small = pointer(Int32, 4)
        return entry, [
            pointer(cutlass.BFloat16),
            pointer(cutlass.BFloat16),
            small,
            small,
            small,
            pointer(Float32),
            Int32(1),
            Int32(1),
            Int32(1),
            cuda.CUstream(0),
        ]

    def prefill_scores(job):
        module, heads = importlib.import_module("flashinfer.msa_ops.cute_dsl.proxy_score_prefill_sm90"), job["heads"]
        kernel = module.MsaProxyScore(
            nsub=1,
            nstage=4,
            page=128,
            head_dim=128,
            hq=heads,
            use_tma_q=job["tma_queries"],
            fold=job["fold"],
            use_fp32_acc=True,
        )

        @cute.jit
        def entry(
            q: cute.Pointer,
            k: cute.Pointer,
            starts: cute.Pointer,
            table: cute.Pointer,
            lens: cute.Pointer,
            prefix: cute.Pointer,
            scores: cute.Pointer,
            batch: Int32,
            total: Int32,
            pages: Int32,
            tiles: Int32,
            chunks: Int32,
            query_tiles: Int32,
            stream: cuda.CUstream,
        ):
            kernel(
                stream,
                tensor(q, (total, heads, 128), (heads * 128, 128, 1)),
                tensor(k, (pages, 1, 128, 128), (128 * 128, 128 * 128, 128, 1)),
                tensor(scores, (heads, tiles, total), (tiles * total, total, 1)),
                tensor(starts, (batch + 1,), (1,)),
                tensor(table, (batch, tiles), (tiles, 1)),
                tensor(lens, (batch,), (1,)),
                tensor(prefix, (batch,), (1,)),
                total,
                tiles,
                batch,
                chunks,
                query_tiles,
            )

        small, codes = pointer(Int32, 4), pointer(cutlass.Float8E4M3FN)
        return entry, [codes, codes, small, small, small, small, pointer(Float32), *[Int32(1)] * 6, cuda.CUstream(0)]

    return {
        "decode_scores": decode_scores,
        "prefill_scores": prefill_scores,
        "gemm": gemm,
        "schedule": schedule,
        "fp4_logits": logits,
        "fp8_logits": logits,
        "quantiser": quantiser,
    }


def main(folder, out, arch):
    os.environ.update(
        CUTE_DSL_ARCH=arch,
        CUTE_DSL_KEEP_PTX="1",
        CUTE_DSL_LINEINFO="1",
        CUTE_DSL_DUMP_DIR=str(out),
        CUTE_DSL_DISABLE_FILE_CACHING="1",
    )
    stub(folder)
    import cutlass.cute as cute

    make = entries(arch)
    for job in json.load(sys.stdin):
        function, arguments = make[job["kind"]](job)
        compiled = cute.compile(function, *arguments)
        ptx = compiled.artifacts.PTX
        ptx = ptx if isinstance(ptx, str) else ptx.decode()
        if ".entry" not in ptx:
            raise RuntimeError(f"{job['name']}: the compiler kept no PTX, but {ptx[:80]!r}")
        out.joinpath(job["name"] + ".o").write_bytes(compiled.dump_to_object("anchor"))
        out.joinpath(job["name"] + ".ptx").write_text(ptx)  # last: it says that both are there


if __name__ == "__main__":
    main(*(pathlib.Path(p).resolve() for p in sys.argv[1:3]), sys.argv[3])
