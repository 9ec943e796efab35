"""A module for each op, named as its spec, with TESTS (harness/protocol.py). A new op adds its file here; nothing lists them."""
