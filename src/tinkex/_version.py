"""The version of this package, and of the official SDK whose surface it has."""

__title__ = "tinkex"
__version__ = "0.1.0"
SDK_VERSION = "0.36.0"
