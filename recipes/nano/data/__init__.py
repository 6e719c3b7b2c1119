"""The corpus of nano: procedural chats, facts from free sources, stories."""
