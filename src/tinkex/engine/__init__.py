"""The data plane: one base model, many LoRA adapters, trained and sampled; it knows nothing of HTTP."""
