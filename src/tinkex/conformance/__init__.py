"""Checks that can be run against any server: does it speak the protocol, and are its numbers right?"""
