// The server of bench/client.sh. It answers each request with prepared bytes and the request's id,
// so that the figures are those of the clients, and not of the server.
//
// 	server HTTP_PORT TCP_PORT    HTTP/1.1 and HTTP/2 in the clear at /mcp; lines over TCP
// 	server                       lines on stdin and stdout
//	server HTTP_PORT TCP_PORT    HTTP/1.1 and HTTP/2 in the clear at /mcp; lines over TCP
//	server                       lines on stdin and stdout
package main

import (
	"bufio"
	"encoding/json"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strconv"
)

const (
	about = `"capabilities":{"tools":{}},"serverInfo":{"name":"fixed","version":"1.0.0"}`
	meta  = `"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"fixed","version":"1.0.0"}}`
	kept  = `"resultType":"complete","ttlMs":3600000,"cacheScope":"public",` + meta
	tools = `"tools":[{"name":"echo","description":"Says it again","inputSchema":` +
		`{"type":"object","properties":{"text":{"type":"string"}},"required":["text"]}}]`
	content = `"content":[{"type":"text","text":"hello"}]`
)

var sessionResults = map[string]string{
	"initialize": `{"protocolVersion":"2025-11-25",` + about + `}`,
	"ping":       `{}`,
	"tools/list": `{` + tools + `}`,
	"tools/call": `{` + content + `}`,
}

var statelessResults = map[string]string{
	"server/discover": `{` + kept + `,"supportedVersions":["2026-07-28"],` + about + `}`,
	"tools/list":      `{` + kept + `,` + tools + `}`,
	"tools/call":      `{"resultType":"complete",` + meta + `,` + content + `}`,
}

type request struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params struct {
		Meta struct {
			Version string `json:"io.modelcontextprotocol/protocolVersion"`
		} `json:"_meta"`
	} `json:"params"`
}

// answer returns no bytes if no answer is due.
func answer(body []byte) ([]byte, request) {
	var r request
	if err := json.Unmarshal(body, &r); err != nil || r.ID == nil {
		return nil, r
	}
	results := sessionResults
	if r.Params.Meta.Version != "" {
		results = statelessResults
	}
	result, known := results[r.Method]
	out := append([]byte(`{"jsonrpc":"2.0","id":`), r.ID...)
	if !known {
		return append(out, `,"error":{"code":-32601,"message":"no such method"}}`...), r
	}
	out = append(out, `,"result":`...)
	out = append(out, result...)
	return append(out, '}'), r
}

func serve(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	bytes, asked := answer(body)
	if bytes == nil {
		w.WriteHeader(http.StatusAccepted)
		return
	}
	header := w.Header()
	if asked.Method == "initialize" {
		header.Set("Mcp-Session-Id", "one")
	}
	header.Set("Content-Type", "application/json")
	header.Set("Content-Length", strconv.Itoa(len(bytes)))
	_, _ = w.Write(bytes)
}

func lines(in io.Reader, out io.Writer) {
	reader, writer := bufio.NewReader(in), bufio.NewWriter(out)
	for {
		line, err := reader.ReadBytes('\n')
		if err != nil {
			return
		}
		if bytes, _ := answer(line); bytes != nil {
			_, _ = writer.Write(append(bytes, '\n'))
		}
		if reader.Buffered() == 0 {
			_ = writer.Flush()
		}
	}
}

func main() {
	if len(os.Args) == 1 {
		lines(os.Stdin, os.Stdout)
		return
	}
	listener, err := net.Listen("tcp", "127.0.0.1:"+os.Args[2])
	if err != nil {
		log.Fatal(err)
	}
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				log.Fatal(err)
			}
			go lines(connection, connection)
		}
	}()
	server := &http.Server{
		Addr:      "127.0.0.1:" + os.Args[1],
		Handler:   http.HandlerFunc(serve),
		Protocols: new(http.Protocols),
	}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetUnencryptedHTTP2(true)
	log.Fatal(server.ListenAndServe())
}
