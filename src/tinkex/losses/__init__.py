"""Losses computed on the client: any function of the model's logprobs that has a gradient."""

from .custom import numpy_loss

__all__ = ["numpy_loss"]
