-- wrk: the 2026-07-28 `tools/call echo` request; its answer is checked by its status.
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.headers["Accept"] = "application/json, text/event-stream"
wrk.headers["MCP-Protocol-Version"] = "2026-07-28"
wrk.headers["Mcp-Method"] = "tools/call"
wrk.headers["Mcp-Name"] = "echo"
wrk.body = '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo",' ..
    '"arguments":{"text":"hello"},"_meta":{' ..
    '"io.modelcontextprotocol/protocolVersion":"2026-07-28",' ..
    '"io.modelcontextprotocol/clientInfo":{"name":"wrk","version":"4.1.0"},' ..
    '"io.modelcontextprotocol/clientCapabilities":{}}}}'
