"""Matrix products with weights as a plan left them, by our own kernels: kernels/gemm."""
