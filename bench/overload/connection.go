package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

// A request without an answer by then is lost.
const lostAfter = 30 * time.Second

// connection is a kept-alive HTTP/1.1 connection with one request at a time. net/http would take
// much more CPU time, which the server on the same machine would miss.
type connection struct {
	address string
	request []byte
	socket  net.Conn
	reader  *bufio.Reader
	body    []byte
	opened  int
}

// newConnection opens a connection that sends one request again and again. Without a token it has
// no principal.
func newConnection(address, token, tool, arguments string) *connection {
	body := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"` + tool +
		`","arguments":` + arguments + `,"_meta":{` +
		`"io.modelcontextprotocol/protocolVersion":"2026-07-28",` +
		`"io.modelcontextprotocol/clientInfo":{"name":"load","version":"1.0.0"},` +
		`"io.modelcontextprotocol/clientCapabilities":{}}}}`
	return &connection{address: address,
		request: []byte(head(address, token, tool, len(body)) + body)}
}

func head(address, token, tool string, length int) string {
	authorization := ""
	if token != "" {
		authorization = "Authorization: Bearer " + token + "\r\n"
	}
	return "POST /mcp HTTP/1.1\r\nHost: " + address + "\r\n" + authorization +
		"Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n" +
		"MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\nMcp-Name: " + tool +
		"\r\nContent-Length: " + strconv.Itoa(length) + "\r\n\r\n"
}

func (c *connection) open() error {
	if c.socket != nil {
		return nil
	}
	socket, err := net.DialTimeout("tcp", c.address, lostAfter)
	if err != nil {
		return err
	}
	c.socket, c.reader = socket, bufio.NewReader(socket)
	c.opened++
	return nil
}

func (c *connection) close() {
	if c.socket != nil {
		_ = c.socket.Close()
		c.socket = nil
	}
}

// ask sends the request. It returns 0 for a result, else the code of the refusal, or the HTTP
// status without one. An error means that the outcome is unknown.
func (c *connection) ask() (int, error) {
	if err := c.open(); err != nil {
		return 0, err
	}
	_ = c.socket.SetDeadline(time.Now().Add(lostAfter))
	_, err := c.socket.Write(c.request)
	code := 0
	if err == nil {
		code, err = c.answer()
	}
	if err != nil {
		c.close()
	}
	return code, err
}

func (c *connection) answer() (int, error) {
	line, err := c.reader.ReadSlice('\n')
	if err != nil {
		return 0, err
	}
	if len(line) < 12 {
		return 0, fmt.Errorf("no status: %q", line)
	}
	status, err := strconv.Atoi(string(line[9:12]))
	if err != nil {
		return 0, err
	}
	length, closing := -1, false
	for {
		line, err = c.reader.ReadSlice('\n')
		if err != nil {
			return 0, err
		}
		if len(line) <= 2 {
			break
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		switch {
		case bytes.EqualFold(name, []byte("content-length")):
			length, err = strconv.Atoi(string(bytes.TrimSpace(value)))
			if err != nil {
				return 0, err
			}
		case bytes.EqualFold(name, []byte("connection")):
			closing = strings.EqualFold(string(bytes.TrimSpace(value)), "close")
		}
	}
	if length < 0 {
		return 0, errors.New("an answer without a length")
	}
	if cap(c.body) < length {
		c.body = make([]byte, length)
	}
	c.body = c.body[:length]
	if _, err = io.ReadFull(c.reader, c.body); err != nil {
		return 0, err
	}
	if closing {
		c.close()
	}
	return code(status, c.body), nil
}

func code(status int, body []byte) int {
	if status == 200 && bytes.Contains(body, []byte(`"result":`)) &&
		!bytes.Contains(body, []byte(`"isError":true`)) {
		return 0
	}
	if _, after, found := bytes.Cut(body, []byte(`"refusal":`)); found {
		number := 0
		for _, digit := range after {
			if digit < '0' || digit > '9' {
				break
			}
			number = 10*number + int(digit-'0')
		}
		return number
	}
	return status
}
