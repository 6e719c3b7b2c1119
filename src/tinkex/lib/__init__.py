"""Module paths of the official SDK that other packages import; everything here lives elsewhere."""

from . import public_interfaces as public_interfaces
