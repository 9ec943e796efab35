"""Code that no launch executes, whatever its arguments: what the share of executed instructions leaves out, each place with its reason."""
import itertools
import re

WALK = {"sm90/decode_runs.py", "common/sequences.py"}     # sources of a search for the sequence of a unit


def without_sequences(code):
    """Numbers of the instructions that a walk over units has for a call of no sequences.

    Of a search whose loop goes over the sequences the compiler makes two, the other one for no sequences at all: behind `@p bra target` with p = (sequences > 0), up to the target or to code of another purpose.
    A walk searches for a unit that there is, and a call of no sequences has none (Sequences.total_units)."""
    counts = {m[1] for i in code if (m := re.match(r"ld\.param\.b32 (%r\d+), \[\w+_param_12\]", i.text))}         # num_seqs: kernels/common/args.py
    positive = {m[1] for i in code if (m := re.match(r"setp\.gt\.s32 (%p\d+), (%r\d+), 0", i.text)) and m[2] in counts}
    found = set()
    for at, i in enumerate(code):
        if i.op == "bra" and i.guard and i.guard[0] in positive and not i.guard[1] and i.target > at:
            found.update(itertools.takewhile(lambda n: code[n].source.rpartition(":")[0] in WALK, range(at + 1, i.target)))
    return found
