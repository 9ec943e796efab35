"""The public ops: what they compute, what they accept, and which path a call takes."""
