"""The cuda backend: the kernels of repack/, compiled by NVRTC, launched on a GPU. backend.py is its entry.

toolkit finds driver, NVRTC and GPUs; compile makes cubins and keeps them on disk; launch runs them.
"""
