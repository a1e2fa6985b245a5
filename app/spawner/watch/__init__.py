"""What a backend asks the kernel for in vain: for checks."""
