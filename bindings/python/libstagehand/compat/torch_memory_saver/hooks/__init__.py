"""The ways in which PyTorch's allocations reach the library."""
