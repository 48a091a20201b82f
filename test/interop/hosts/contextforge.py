"""Has ContextForge serve what a server serves, as its guide has it.

    contextforge.py GATEWAY_URL TRANSPORT URL

The server is called by the name of its transport. Says what went wrong and ends with 1, or ends
with 0 after the tool `echo` was among the gateway's. The token is in ERLMCP_TOKEN.
"""

import os
import sys

import httpx


def main():
    base, transport, url = sys.argv[1:]
    headers = {"authorization": f"Bearer {os.environ['ERLMCP_TOKEN']}"}
    with httpx.Client(base_url=base, headers=headers, timeout=60) as gateway:
        server = {"name": transport, "url": url, "transport": transport.upper()}
        answer = gateway.post("/v1/gateways", json=server)
        if answer.is_error:
            sys.exit(f"{answer.status_code}: {answer.text}")
        # Without a limit it is a page.
        tools = gateway.get("/v1/tools", params={"limit": 0}).raise_for_status().json()
        names = [tool["originalName"] for tool in tools if tool["gatewayId"] == answer.json()["id"]]
        if "echo" not in names:
            sys.exit(f"no echo among {names}")
        print(f"{len(names)} tools")


main()
