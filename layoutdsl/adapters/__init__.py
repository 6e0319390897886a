"""layoutdsl inside other programs. An adapter knows the other program's names and moments, and nothing of layouts."""
