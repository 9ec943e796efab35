"""A small decoder with the sparse attention of MiniMax-M3, see README.md."""
