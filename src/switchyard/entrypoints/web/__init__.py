"""The dashboard: a page and its scripts, served by the gateway. It reads the API as any other client does."""
