"""Define the request and response types that the API and the client share."""
