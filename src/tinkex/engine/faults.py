"""What can go wrong inside the engine, each with the side at fault; turning one into an HTTP answer is not
done here.
"""

from __future__ import annotations

from typing import ClassVar


class EngineFault(Exception):
    """An operation failed; `category` says whose fault it was."""

    category: ClassVar[str] = "server"


class UserFault(EngineFault):
    """The request cannot be served as it is; sending it again gives the same answer."""

    category: ClassVar[str] = "user"


class ServerFault(EngineFault):
    """The engine could not do what it should have done."""

    category: ClassVar[str] = "server"
