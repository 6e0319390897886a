"""The GEMMs that read what plans write: our own kernels, launched on a GPU or checked on this machine's CPU."""
