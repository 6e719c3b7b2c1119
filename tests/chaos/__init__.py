"""Real servers killed at any moment: what a user of theirs sees, and what is left on disk."""
