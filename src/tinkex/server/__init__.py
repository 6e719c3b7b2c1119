"""The control plane: HTTP, admission, store, scheduling, engines; no torch."""
