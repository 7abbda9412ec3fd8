"""A small MCP server with a table of flights, in ArenaRL's shape: `python -m tests.flights_server [--port N]`.

Some cities make it misbehave, for tests: it dies, hangs, or answers with what it should not.
"""

import argparse
import asyncio
import os
from pathlib import Path

from mcp.server.mcpserver import MCPServer

FLIGHTS = [
    ("FL101", "2026-03-01", "Orsk", "Verrin", "08:10", "09:55", 120),
    ("FL102", "2026-03-01", "Orsk", "Verrin", "17:30", "19:15", 95),
    ("FL201", "2026-03-01", "Verrin", "Aldmoor", "10:40", "12:00", 80),
    ("FL103", "2026-03-02", "Orsk", "Verrin", "08:10", "09:55", 60),
]
server = MCPServer("flights", log_level="CRITICAL")


@server.tool(name="search_flights")
async def search_flights(date: str, origin: str, destination: str) -> str:
    """Lists flights between two cities on a day (YYYY-MM-DD) with number, times and price."""
    await _misbehave(origin)
    if origin == "hostile":
        return Path(destination).read_text(encoding="utf-8")
    found = [row for row in FLIGHTS if row[1:4] == (date, origin, destination)]
    lines = [f"{row[0]} {row[4]}-{row[5]}, {row[6]} EUR" for row in found]
    return "\n".join(lines) or "No flights."


@server.tool(name="cities")
async def cities() -> list[str]:
    """Lists the cities with an airport."""
    return sorted({city for row in FLIGHTS for city in row[2:4]})


async def _misbehave(origin: str) -> None:
    word, _, place = origin.partition(":")
    match word:
        case "dies":
            os._exit(3)
        case "dies-once" if not Path(place).exists():
            Path(place).touch()
            os._exit(3)
        case "hangs":
            await asyncio.Event().wait()
        case "raises":
            raise ValueError("this city has no airport")
        case "secret":
            raise ValueError(f"key {os.environ.get('FLIGHTS_KEY')}, other {os.environ.get('OTHER_SECRET')}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int)
    parser.add_argument("--host", default="127.0.0.1")
    options = parser.parse_args()
    if options.port is None:
        server.run("stdio")
    else:
        server.run("streamable-http", host=options.host, port=options.port)
