"""Says that the official SDK's generated HTTP client does not exist here."""

raise ImportError(
    "tinkex has no _base_client: its requests do not go through AsyncAPIClient, and changing that would "
    "change nothing. Settings of ServiceClient and tinkex.Config take its place."
)
