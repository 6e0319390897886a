"""The kernels that multiply by quantized weights, as Python launches them."""
