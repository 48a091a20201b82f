"""The catalogue, served by version 1 of the official Python SDK.

    python server1.py           on stdio
    python server1.py --http    over HTTP on a free port, whose URL is the first line of stdout;
                                HTTP+SSE is there too, at /sse

CATALOGUE names the file of the catalogue.
"""

import asyncio
import contextlib
import json
import os
import re
import socket
import sys

import anyio
import mcp.types as types
import uvicorn
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.lowlevel.helper_types import ReadResourceContents
from mcp.server.sse import SseServerTransport
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import McpError
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Mount, Route

with open(os.environ["CATALOGUE"], encoding="utf-8") as file:
    CATALOGUE = json.load(file)
LEVELS = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]
COUNTER = "note://counter"


class State:
    counter = 0
    added = False
    levels: dict = {}
    uris: dict = {}
    live: dict = {}


class Catalogue(Server):
    # The HTTP transport has no other way to announce that lists change.
    def create_initialization_options(self, *_args, **_kwargs):
        return super().create_initialization_options(NotificationOptions(tools_changed=True))


SERVER = Catalogue(
    CATALOGUE["server"]["name"], version=CATALOGUE["server"]["version"],
    instructions=CATALOGUE["instructions"])


def here():
    session = SERVER.request_context.session
    State.live[id(session)] = session
    return session


# The SDK does not report the end of a session, but sending to it fails then.
async def tell(send, uri=None):
    for key, live in list(State.live.items()):
        if uri is None or uri in State.uris.get(key, ()):
            try:
                await send(live)
            except (anyio.ClosedResourceError, anyio.BrokenResourceError):
                del State.live[key]


def refusal(message, **data):
    return McpError(types.ErrorData(code=types.INVALID_PARAMS, message=message, data=data))


def say(text, **more):
    content = [types.TextContent(type="text", text=text)]
    return types.CallToolResult(content=content, **more)


def page(name, model, definitions, request):
    first = int(request.params.cursor) if request.params and request.params.cursor else 0
    last = first + CATALOGUE["pageSize"]
    more = str(last) if last < len(definitions) else None
    return model.model_validate({name: definitions[first:last], "nextCursor": more})


@SERVER.list_tools()
async def list_tools(request: types.ListToolsRequest) -> types.ListToolsResult:
    definitions = CATALOGUE["tools"] + ([CATALOGUE["added"]] if State.added else [])
    # The SDK requests the whole list from itself, to know the schemas.
    if request is None:
        return types.ListToolsResult.model_validate({"tools": definitions})
    return page("tools", types.ListToolsResult, definitions, request)


@SERVER.list_resources()
async def list_resources(request: types.ListResourcesRequest) -> types.ListResourcesResult:
    return page("resources", types.ListResourcesResult, CATALOGUE["resources"], request)


@SERVER.list_prompts()
async def list_prompts(request: types.ListPromptsRequest) -> types.ListPromptsResult:
    return page("prompts", types.ListPromptsResult, CATALOGUE["prompts"], request)


@SERVER.list_resource_templates()
async def list_resource_templates():
    return [types.ResourceTemplate.model_validate(each) for each in CATALOGUE["resourceTemplates"]]


@SERVER.call_tool()
async def call_tool(name, arguments):
    session = here()
    related = SERVER.request_context.request_id
    match name:
        case "add":
            result = {"sum": arguments["a"] + arguments["b"]}
            return say(json.dumps(result), structuredContent=result)
        case "added":
            return say("here")
        case "ask":
            answer = await session.elicit_form("Who is there?", {
                "type": "object", "properties": {"name": {"type": "string"}},
                "required": ["name"]}, related_request_id=related)
            return say(f"Hello, {answer.content['name']}" if answer.action == "accept"
                       else answer.action)
        case "ask_url":
            answer = await session.elicit_url(
                "Look there", "https://example.com/page", "page", related_request_id=related)
            return say(answer.action)
        case "change":
            State.added = not State.added
            await tell(lambda live: live.send_tool_list_changed())
            return say("added" if State.added else "removed")
        case "echo":
            return say(arguments["text"])
        case "fail":
            return say("It failed.", isError=True)
        case "logs":
            least = State.levels.get(id(session), "debug")
            for level in ["debug", "info", "error"]:
                if LEVELS.index(level) >= LEVELS.index(least):
                    await session.send_log_message(
                        level, f"at {level}", "catalogue", related_request_id=related)
            return say("logged")
        case "region":
            return say(arguments["region"])
        case "roots":
            return say(" ".join(str(root.uri) for root in (await session.list_roots()).roots))
        case "sample":
            content = types.TextContent(type="text", text="Say something")
            answer = await session.create_message(
                [types.SamplingMessage(role="user", content=content)], max_tokens=100,
                related_request_id=related)
            return say(answer.content.text)
        case "slow":
            meta = SERVER.request_context.meta
            for step in range(1, arguments["steps"] + 1):
                await asyncio.sleep(0.05)
                if meta and meta.progressToken is not None:
                    await session.send_progress_notification(
                        meta.progressToken, step, arguments["steps"],
                        related_request_id=str(related))
            return say(f"{arguments['steps']} steps")
        case "touch":
            State.counter += 1
            await tell(lambda live: live.send_resource_updated(COUNTER), COUNTER)
            return say(str(State.counter))
    raise refusal(f"no tool {name}")


@SERVER.read_resource()
async def read_resource(uri):
    uri = str(uri)

    def text(text):
        return [ReadResourceContents(content=text, mime_type="text/plain")]

    if item := re.fullmatch(r"note://item/([^/]+)", uri):
        return text(f"item {item[1]}")
    match uri:
        case "note://text":
            return text(CATALOGUE["text"])
        case "note://counter":
            return text(str(State.counter))
        case "note://blob":
            return [ReadResourceContents(
                content=bytes(range(256)), mime_type="application/octet-stream")]
    raise refusal(f"no resource {uri}", uri=uri)


@SERVER.subscribe_resource()
async def subscribe(uri):
    State.uris.setdefault(id(here()), set()).add(str(uri))


@SERVER.unsubscribe_resource()
async def unsubscribe(uri):
    State.uris.get(id(here()), set()).discard(str(uri))


@SERVER.set_logging_level()
async def set_level(level):
    State.levels[id(here())] = level


@SERVER.get_prompt()
async def get_prompt(name, arguments):
    if name != "greet":
        raise refusal(f"no prompt {name}")
    content = types.TextContent(type="text", text=f"Greet {arguments['name']}.")
    return types.GetPromptResult(messages=[types.PromptMessage(role="user", content=content)])


@SERVER.completion()
async def complete(_reference, argument, _context):
    values = [name for name in CATALOGUE["names"] if name.startswith(argument.value)]
    return types.Completion(values=values, total=len(values), hasMore=False)


async def stdio():
    async with stdio_server() as (reader, writer):
        await SERVER.run(reader, writer, SERVER.create_initialization_options())


class Endpoint:
    def __init__(self, manager):
        self.manager = manager

    async def __call__(self, scope, receive, send):
        await self.manager.handle_request(scope, receive, send)


def http():
    manager = StreamableHTTPSessionManager(SERVER)

    @contextlib.asynccontextmanager
    async def lifespan(_app):
        async with manager.run():
            yield

    older = SseServerTransport("/messages/")

    async def sse(request):
        async with older.connect_sse(request.scope, request.receive, request._send) as streams:
            await SERVER.run(*streams, SERVER.create_initialization_options())
        return Response()

    routes = [
        Route("/mcp", Endpoint(manager)),
        Route("/sse", sse),
        Mount("/messages/", app=older.handle_post_message),
    ]
    app = Starlette(routes=routes, lifespan=lifespan)
    listener = socket.create_server(("127.0.0.1", 0))
    print(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp", flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])


if "--http" in sys.argv:
    http()
else:
    asyncio.run(stdio())
