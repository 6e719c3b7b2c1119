"""Protobuf messages and conversions, under the official SDK's module path."""
