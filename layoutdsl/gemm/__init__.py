"""GEMMs on weights as plans store them: the kernels of `kernels/gemm`, on a GPU or checked on this machine's CPU."""
