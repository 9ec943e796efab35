"""From the arguments of a public function to what the custom call takes: what is known while tracing, and normalised
operands.

A module an op (named as its spec is) checks that op's arguments. `must`, `fp4`, `ragged` and `varying` hold what
several ops share.
"""
