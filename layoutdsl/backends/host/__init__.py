"""The host backend: the kernels of repack/ on this machine's CPU, checked and counted. backend.py is its entry.

build compiles them with a C++ compiler; interface is what both sides share; launch runs them; counters counts.
"""
