"""The openai client's CPU milliseconds per call: python openai_client.py URL CALLS MODEL."""

import asyncio
import sys
import time

from openai import AsyncOpenAI

try:
    import httpx
except ModuleNotFoundError:
    # What the client stands on from version 3 on.
    import httpx2 as httpx

IN_FLIGHT = 256


async def main(url: str, calls: int, model: str) -> float:
    limits = httpx.Limits(max_connections=IN_FLIGHT, max_keepalive_connections=IN_FLIGHT)
    client = AsyncOpenAI(
        base_url=url, api_key="none", http_client=httpx.AsyncClient(limits=limits), timeout=60
    )
    gate = asyncio.Semaphore(IN_FLIGHT)
    prompt = "word " * 900

    async def one(number: int) -> None:
        async with gate:
            await client.chat.completions.create(
                model=model,
                messages=[{"role": "user", "content": f"{prompt} {number}"}],
                max_tokens=16_384,
                temperature=0.6,
                seed=0,
            )

    await one(-1)
    start = time.process_time()
    await asyncio.gather(*(one(number) for number in range(calls)))
    spent = time.process_time() - start
    await client.close()
    return 1000 * spent / calls


if __name__ == "__main__":
    print(asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3])))
