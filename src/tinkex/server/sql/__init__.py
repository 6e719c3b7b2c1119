"""All SQL of the store: migrations, statements, and how rows become columns."""
