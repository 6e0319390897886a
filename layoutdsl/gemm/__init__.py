"""GEMMs on quantized weights: the kernels of `kernels/gemm`."""
