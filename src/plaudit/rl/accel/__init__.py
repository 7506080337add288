"""Optional accelerators of the plain PyTorch code."""
