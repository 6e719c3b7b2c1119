"""The errors, under the official SDK's module path."""

from .errors import *  # noqa: F403
from .errors import __all__ as __all__
