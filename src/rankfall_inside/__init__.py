"""What travels into the training process. Standard library only, Python >= 3.8."""
