"""What a kernel's warps execute, by role and by class of instruction, and where shared memory is used with bank conflicts. Counts, not times.

    PYTHONPATH=tests python -m simulated stats sm_90a.native.decode.nvfp4.public.n16 --cases sim_many_pages-

Roles are found, not declared: warps of a CTA that execute the same code are one, named by the Python functions that hold most of what it alone executes.
An instruction counts once for each fragment of a warp that executes it with at least one lane; a wait counts when it is passed. PTX instructions: ptxas makes others of them.
Shared memory: wavefronts of ld, st, ldmatrix and stmatrix against the fewest that the same lanes could do with (core/banks.c has the rules). Not there: atomics, mbarriers, and what
copies and matrix instructions read and write.
"""

import ast
import collections
import functools
import pathlib
import re

import numpy as np

import jax_fp4_indexer

from . import cache

ALIKE = 0.65  # share of the instructions that either executes which both do, from which on two warps have one role

# First that matches the whole opcode.
CLASSES = [
    (name, re.compile(pattern))
    for name, pattern in [
        ("branches", r"bra.*|ret|exit|trap|brkpt"),
        ("matrix", r"mma\..*|wgmma\.mma.*|tcgen05\.mma.*"),
        ("shared loads", r"ldmatrix.*|ldu?\.(?:[\w.]+\.)?shared.*"),
        ("shared stores", r"stmatrix.*|st\.(?!async)(?:[\w.]+\.)?shared.*"),
        ("global loads", r"ldu?\.(?:[\w.]+\.)?global.*"),
        ("global stores", r"st\.(?:[\w.]+\.)?global.*"),
        ("tensor memory", r"tcgen05\.(?:ld|st|wait).*"),
        ("copies", r"cp\..*|tcgen05\.(?:cp|shift).*|st\.async.*|prefetch.*"),
        (
            "moves",
            r"mov.*|ld\.param.*|cvta.*|mapa.*|createpolicy.*|griddepcontrol.*|nanosleep.*|activemask.*|setmaxnreg.*",
        ),
        ("other memory", r"ld.*|st.*|atom.*|red\..*"),
        ("order", r"mbarrier.*|bar.*|fence.*|membar.*|wgmma.*|tcgen05.*"),
        ("across lanes", r"shfl.*|vote.*|redux.*|elect.*"),
        ("conversions", r"cvt.*"),
        ("comparisons", r"setp.*|selp.*|(?:and|or|xor|not)\.pred"),
        ("logic", r"(?:and|or|xor|not|shl|shr|shf|prmt|lop3|bfe|bfi|bfind|popc|clz|brev).*"),
        ("f16", r".*\.(?:bf16|f16)(?:x2)?"),
        ("fp32", r".*\.f32(?:x2)?"),
        ("fp64", r".*\.f64"),
        ("integers", r".*\.[busx](?:8|16|32|64)"),
    ]
]


@functools.cache
def class_of(op):
    return next((name for name, pattern in CLASSES if pattern.fullmatch(op)), "other")


@functools.cache
def _functions(file):
    """[(first line, last line, name)] of a source that a kernel names, inner functions last."""
    folders = [pathlib.Path(jax_fp4_indexer.__file__).parent, cache.HERE.parent]
    path = next((p for folder in folders for p in folder.rglob(file) if p.is_file()), None)
    nodes = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.FunctionDef)] if path else []
    return sorted((n.lineno, -n.end_lineno, n.name) for n in nodes)


@functools.cache
def function_at(source):
    """ "sm90/decode.py:86" -> "decode.py reduce"; only the file where the line is in no function."""
    if not source:
        return "-"
    file, _, line = source.rpartition(":")
    found = [name for first, last, name in _functions(file) if first <= int(line) <= -last]
    return " ".join([file.rpartition("/")[2], *found[-1:]])


def roles(by_warp):
    """by_warp: [warps, instructions] executions. Returns lists of warps that execute the same code."""
    groups = []
    for warp, ran in enumerate(by_warp > 0):
        for group in groups:
            other = by_warp[group[0]] > 0
            if (ran & other).sum() >= ALIKE * (ran | other).sum():
                group.append(warp)
                break
        else:
            groups.append([warp])
    return groups


def spans(warps):
    """[0, 1, 2, 5] -> "0-2, 5"."""
    out = []
    for w in warps:
        if out and w == out[-1][1] + 1:
            out[-1][1] = w
        else:
            out.append([w, w])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in out)


class Report:
    """Statistics of a kernel. program: decode.Program; statistics: launch.Statistics of its launches."""

    def __init__(self, program, statistics):
        self.code, self.at, self.banks = program.code, program.at, statistics.banks
        self.roles = roles(statistics.by_warp)
        self.hits = np.stack([statistics.by_warp[group].sum(0) for group in self.roles])  # [roles, instructions]

    def _sums(self, key):
        """{key(instruction): executions by role}."""
        sums = collections.defaultdict(lambda: np.zeros(len(self.roles), np.int64))
        for instruction, hits in zip(self.code, self.hits.T):
            if hits.any():
                sums[key(instruction)] += hits
        return sums

    def classes(self):
        """{class: executions by role}, in the order of CLASSES."""
        sums = self._sums(lambda i: class_of(i.op))
        return {name: sums[name] for name in [*(n for n, _ in CLASSES), "other"] if name in sums}

    def names(self, most=3):
        """For each role, the functions with most of what it executes: of those that it has nearly to itself, if there are any."""
        sums, names = self._sums(lambda i: function_at(i.source)), []
        for role in range(len(self.roles)):
            ranked = sorted(sums, key=lambda f: -sums[f][role])
            own = [f for f in ranked if sums[f][role] > 0.9 * sums[f].sum()]
            names.append(
                [
                    f"{f} {sums[f][role] / max(self.hits[role].sum(), 1):.0%}"
                    for f in (own or ranked)[:most]
                    if sums[f][role]
                ]
            )
        return names

    def conflicts(self, most=10):
        """[(accesses, wavefronts, fewest, place)] of accesses with wavefronts to spare, most of them first. What an unrolled line of Python became is together, under its first line of PTX."""
        together = collections.defaultdict(list)
        for pc in np.nonzero(self.banks[:, 1] > self.banks[:, 2])[0]:
            together[self.code[pc].op, self.code[pc].source or pc].append(pc)
        found = []
        for pcs in together.values():
            accesses, wavefronts, fewest = (int(x) for x in self.banks[pcs].sum(0))
            found.append(
                (
                    accesses,
                    wavefronts,
                    fewest,
                    self.at(pcs[0]) + (f" and {len(pcs) - 1} more like it" if len(pcs) > 1 else ""),
                )
            )
        return sorted(found, key=lambda f: f[2] - f[1])[:most]

    def __str__(self):
        classes, n = self.classes(), range(len(self.roles))
        heads = [f"warps {spans(group)}" if len(group) > 1 else f"warp {group[0]}" for group in self.roles]
        rows = [
            ("", *heads),
            ("all", *(f"{self.hits[r].sum():,}" for r in n)),
            *((name, *(f"{hits[r]:,}" for r in n)) for name, hits in classes.items()),
        ]
        widths = [max(len(row[i]) for row in rows) for i in range(len(heads) + 1)]
        lines = [
            "  " + "  ".join([row[0].ljust(widths[0]), *(x.rjust(w) for x, w in zip(row[1:], widths[1:]))])
            for row in rows
        ]
        lines[:0] = [f"  {head}: {', '.join(names)}" for head, names in zip(heads, self.names())]
        accesses, wavefronts, fewest = (int(x) for x in self.banks.sum(0))
        lines.append(
            f"  shared memory: {accesses:,} accesses, {wavefronts:,} wavefronts, {fewest:,} are the fewest"
            + (f" ({wavefronts / fewest:.2f})" if fewest else "")
        )
        lines += [
            f"    {w - f:+,}: {a:,} accesses, {w:,} wavefronts for {f:,}; {place}"
            for a, w, f, place in self.conflicts()
        ]
        return "\n".join(lines)
