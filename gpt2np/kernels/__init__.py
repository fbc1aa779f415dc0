"""Fast matrix products and linear layers on NumPy arrays, and the threads that share them."""
