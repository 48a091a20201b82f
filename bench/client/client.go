// The official Go SDK's client for bench/client.sh.
//
// 	client TARGET ERA CALLERS SECONDS
//
// client.sh explains the arguments and the output.
//	client TARGET ERA CALLERS SECONDS
//
// See client.sh for what they are and what is printed.
package main

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

func transport(target string, callers int) mcp.Transport {
	url, isHTTP2 := strings.CutPrefix(target, "h2+")
	if !strings.HasPrefix(url, "http") {
		return &mcp.CommandTransport{Command: exec.Command(target)}
	}
	// With the default of two, connections would be closed and opened all the time.
	connections := &http.Transport{MaxIdleConns: callers, MaxIdleConnsPerHost: callers}
	if isHTTP2 {
		connections.Protocols = new(http.Protocols)
		connections.Protocols.SetUnencryptedHTTP2(true)
	}
	return &mcp.StreamableClientTransport{
		Endpoint: url, HTTPClient: &http.Client{Transport: connections},
		DisableStandaloneSSE: true,
	}
}

// cpu returns the microseconds of CPU time of this process, user and system.
func cpu() int {
	stat, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		log.Fatal(err)
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	return (user + system) * 10_000
}

func call(session *mcp.ClientSession) {
	result, err := session.CallTool(context.Background(),
		&mcp.CallToolParams{Name: "echo", Arguments: map[string]any{"text": "hello"}})
	if err != nil {
		log.Fatal(err)
	}
	if text, ok := result.Content[0].(*mcp.TextContent); !ok || text.Text != "hello" {
		log.Fatal("another text")
	}
}

// run returns the microseconds of each call, sorted.
func run(session *mcp.ClientSession, callers int, length time.Duration) []float64 {
	var all []float64
	var lock sync.Mutex
	var group sync.WaitGroup
	end := time.Now().Add(length)
	for range callers {
		group.Go(func() {
			var took []float64
			for start := time.Now(); start.Before(end); {
				call(session)
				now := time.Now()
				took = append(took, float64(now.Sub(start).Nanoseconds())/1000)
				start = now
			}
			lock.Lock()
			all = append(all, took...)
			lock.Unlock()
		})
	}
	group.Wait()
	slices.Sort(all)
	return all
}

func main() {
	target, era := os.Args[1], os.Args[2]
	callers, _ := strconv.Atoi(os.Args[3])
	seconds, _ := strconv.ParseFloat(os.Args[4], 64)
	version := map[string]string{"stateless": "2026-07-28", "session": "2025-11-25"}[era]
	client := mcp.NewClient(&mcp.Implementation{Name: "bench", Version: "1.0.0"}, nil)
	session, err := client.Connect(context.Background(), transport(target, callers),
		&mcp.ClientSessionOptions{ProtocolVersion: version})
	if err != nil {
		log.Fatal(err)
	}
	if got := session.InitializeResult().ProtocolVersion; got != version {
		log.Fatal("agreed on ", got)
	}
	run(session, callers, 1500*time.Millisecond)
	start, before := time.Now(), cpu()
	took := run(session, callers, time.Duration(seconds*float64(time.Second)))
	spent, wall := cpu()-before, time.Since(start).Seconds()
	n := len(took)
	fmt.Printf("%d %.3f %d %.0f %.0f\n", n, wall, spent, took[n/2], took[n*99/100])
	session.Close()
}
