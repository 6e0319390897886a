"""The repack kernels that are generated from a plan, and their run on any launcher: what `cuda` and `host` share."""
