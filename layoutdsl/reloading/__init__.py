"""New weights for tensors that kernels hold, streamed in by the names of the checkpoint, in any order.

live -> targets -> reload; folding and report say how far a round has come.
"""
