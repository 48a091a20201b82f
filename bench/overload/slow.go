package main

import (
	"context"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// slowPeers counts the slow clients. A client that the server cut off comes back.
type slowPeers struct {
	opened, cut, refused atomic.Int64
}

// senders send the head of a request and then its body at one byte a second.
func senders(ctx context.Context, number int, within time.Duration, address string,
	group *sync.WaitGroup) *slowPeers {
	start := head(address, "", "echo", 100_000) + "{"
	return slow(ctx, number, within, address, start, group, func(socket net.Conn) error {
		if _, err := socket.Write([]byte(" ")); err != nil {
			return err
		}
		_ = socket.SetReadDeadline(time.Now().Add(time.Millisecond))
		_, err := socket.Read(make([]byte, 1))
		if timeout, is := err.(net.Error); is && timeout.Timeout() {
			return nil
		}
		if err == nil {
			err = io.EOF
		}
		return err
	})
}

// readers request a large answer, and read it at one byte a second.
func readers(ctx context.Context, number int, within time.Duration, address string,
	group *sync.WaitGroup) *slowPeers {
	request := string(newConnection(address, "", "large", "{}").request)
	return slow(ctx, number, within, address, request, group, func(socket net.Conn) error {
		_ = socket.SetReadDeadline(time.Now().Add(time.Second))
		_, err := socket.Read(make([]byte, 1))
		if timeout, is := err.(net.Error); is && timeout.Timeout() {
			return nil
		}
		return err
	})
}

// The clients do not connect in one instant, but spread over some time.
func slow(ctx context.Context, number int, within time.Duration, address, first string,
	group *sync.WaitGroup, each func(net.Conn) error) *slowPeers {
	peers := new(slowPeers)
	for i := range number {
		group.Go(func() {
			pause(ctx, time.Duration(i)*within/time.Duration(number))
			for ctx.Err() == nil {
				peers.one(ctx, address, first, each)
				pause(ctx, time.Second)
			}
		})
	}
	return peers
}

func (peers *slowPeers) one(ctx context.Context, address, first string,
	each func(net.Conn) error) {
	dialer := net.Dialer{Timeout: lostAfter}
	socket, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		peers.refused.Add(1)
		return
	}
	defer socket.Close()
	// Bytes that the kernel has buffered for a reader count as read.
	_ = socket.(*net.TCPConn).SetReadBuffer(4096)
	peers.opened.Add(1)
	_, err = io.Copy(socket, strings.NewReader(first))
	for err == nil && ctx.Err() == nil {
		if err = each(socket); err == nil {
			pause(ctx, time.Second)
		}
	}
	if ctx.Err() == nil {
		peers.cut.Add(1)
	}
}

func pause(ctx context.Context, length time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(length):
	}
}
