"""The protobuf messages, under the official SDK's module path."""

from ..wire.tinker_public_pb2 import *  # noqa: F403
from ..wire.tinker_public_pb2 import DESCRIPTOR as DESCRIPTOR
