"""What a policy may call: search, over whatever serves passages, and tools of MCP servers."""
