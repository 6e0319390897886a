"""Real checkpoints: what a Hugging Face folder holds, and its tensors as a kernel reads them.

folder -> names, quantization -> binding -> planning -> run, load; each command is one module on top of these.
"""
