"""The tools of tools.json, served by the official Python SDK.

    python server.py                                       on stdio
    uvicorn server:app --loop uvloop --http httptools      over HTTP, at /mcp

TOOLS names the file of the tools. More than one worker of uvicorn serves no sessions.
"""

import asyncio
import json
import os

import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError

with open(os.environ["TOOLS"], encoding="utf-8") as file:
    TOOLS = types.ListToolsResult.model_validate({"tools": json.load(file)})


def say(text):
    return types.CallToolResult(content=[types.TextContent(text=text)])


async def list_tools(_ctx, _params):
    return TOOLS


async def call_tool(_ctx, params):
    match params.name, params.arguments:
        case "echo", {"text": str(text)}:
            return say(text)
        case "sleep", {"ms": int(ms)}:
            await asyncio.sleep(ms / 1000)
            return say("done")
    raise MCPError(types.INVALID_PARAMS, "no such tool, or not its arguments")


SERVER = Server("python", version="2.3.0", on_list_tools=list_tools, on_call_tool=call_tool)


async def stdio():
    async with stdio_server() as (reader, writer):
        await SERVER.run(reader, writer, SERVER.create_initialization_options())


if __name__ == "__main__":
    import uvloop

    uvloop.run(stdio())
else:
    app = SERVER.streamable_http_app(json_response=True)
