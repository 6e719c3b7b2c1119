"""Fakes good enough to ship: what tests of code built on tinkex need."""
