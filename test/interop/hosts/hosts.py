"""Lists and calls a server with one of the frameworks that agents are written in, as its own guide
has it.

    hosts.py FRAMEWORK URL
    hosts.py FRAMEWORK stdio PROGRAM [ARGUMENT...]

Says what went wrong and ends with 1, or ends with 0 after the tool `echo` was listed and answered.
"""

import asyncio
import os
import sys

SAID = "hello from a host"
# mcp-use would tell its makers.
os.environ["MCP_USE_ANONYMIZED_TELEMETRY"] = "false"


def here(words):
    """What a program is started with: the frameworks give it less than this."""
    return {"command": words[0], "args": words[1:], "env": dict(os.environ)}


async def langchain(url, words):
    from langchain_mcp_adapters.client import MultiServerMCPClient

    way = {"transport": "stdio", **here(words)} if words else \
        {"transport": "streamable_http", "url": url}
    tools = await MultiServerMCPClient({"server": way}).get_tools()
    return tools, await named(tools).ainvoke({"text": SAID})


async def pydantic_ai(url, words):
    from fastmcp.client.transports import StdioTransport
    from pydantic_ai.mcp import MCPToolset

    way = StdioTransport(words[0], words[1:], env=dict(os.environ)) if words else url
    async with MCPToolset(way) as server:
        return await server.list_tools(), await server.direct_call_tool("echo", {"text": SAID})


async def openai_agents(url, words):
    from agents.mcp import MCPServerStdio, MCPServerStreamableHttp

    server = MCPServerStdio(params=here(words), client_session_timeout_seconds=30) if words \
        else MCPServerStreamableHttp(params={"url": url})
    async with server:
        return await server.list_tools(), await server.call_tool("echo", {"text": SAID})


async def llama_index(url, words):
    from llama_index.tools.mcp import BasicMCPClient, McpToolSpec

    client = BasicMCPClient(words[0], args=words[1:], env=dict(os.environ)) if words \
        else BasicMCPClient(url)
    tools = await McpToolSpec(client=client).to_tool_list_async()
    echo = next(tool for tool in tools if tool.metadata.name == "echo")
    return tools, await echo.acall(text=SAID)


async def mcp_use(url, words):
    from mcp_use import MCPClient

    way = here(words) if words else {"url": url}
    client = MCPClient.from_dict({"mcpServers": {"server": way}})
    session = await client.create_session("server")
    try:
        return await session.list_tools(), await session.call_tool("echo", {"text": SAID})
    finally:
        await client.close_all_sessions()


def smolagents(url, words):
    from mcp import StdioServerParameters
    from smolagents import MCPClient

    way = StdioServerParameters(**here(words)) if words \
        else {"url": url, "transport": "streamable-http"}
    with MCPClient(way, structured_output=False) as tools:
        return tools, named(tools)(text=SAID)


def named(tools):
    return next(tool for tool in tools if tool.name == "echo")


def main():
    framework, where, *words = sys.argv[1:]
    visit = globals()[framework]
    tools, answer = visit(where, words) if framework == "smolagents" \
        else asyncio.run(visit(where, words))
    if SAID not in str(answer):
        sys.exit(f"echo answered {answer!r}")
    print(f"{len(tools)} tools; echo answered")


main()
