"""Compiles kernels of one arch to PTX, in a process of its own: the DSL reads its target when it is imported.

Run by kernels.py with a snapshot of the package first on the path: the DSL reads the source of every function again while it
compiles, and an edit in between would give a mixture. Jobs come on stdin as JSON; one JSON line answers each.
"""

import json
import os
import pathlib
import sys
import traceback

import cache  # beside this file, which is run as a script


def compile_one(job):
    from jax_fp4_indexer.aot.compile import instantiate, launch_facts

    kernel = instantiate(job)
    facts = launch_facts(kernel)
    facts.pop("expect")
    ptx = kernel.compile().artifacts.PTX
    ptx = ptx if isinstance(ptx, str) else ptx.decode()
    if ".entry" not in ptx:
        raise RuntimeError(f"{facts['name']}: the compiler kept no PTX, but {ptx[:80]!r}")
    return {**facts, "ptx": ptx}


def main():
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the compiler itself prints goes to stderr
    for job in json.load(sys.stdin):
        try:
            record = {**compile_one(job), "arch": job["arch"], "source": job["source"]}
            cache.replace(pathlib.Path(job["path"]), lambda to: to.write_text(json.dumps(record)))
            answer = {"source": job["source"]}
        except Exception:
            answer = {"source": job["source"], "problem": traceback.format_exc()}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
