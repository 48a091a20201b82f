package main

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// A request that finds no free connection for this long is given up, as a client would do.
const patience = 5 * time.Second

// tally counts the outcomes of a flow's requests. A latency begins when its request was due, so
// it includes the wait for a free connection and the lateness of the load generator.
type tally struct {
	accepted, refused, late histogram
	offered, unsent, lost   atomic.Int64
	codes                   [2048]atomic.Int64
	failure                 atomic.Value
	// accepted requests that were due after this time
	settles time.Time
	settled histogram
}

func (t *tally) answered(due time.Time, code int, err error) {
	switch {
	case err != nil:
		t.lost.Add(1)
		t.failure.CompareAndSwap(nil, err.Error())
	case code == 0:
		t.accepted.add(time.Since(due))
		if due.After(t.settles) {
			t.settled.add(time.Since(due))
		}
	default:
		t.refused.add(time.Since(due))
		t.codes[code&2047].Add(1)
	}
}

func (t *tally) byCode() string {
	var said []string
	for code := range t.codes {
		if n := t.codes[code].Load(); n > 0 {
			said = append(said, fmt.Sprintf("%d: %d", code, n))
		}
	}
	if len(said) == 0 {
		return "-"
	}
	return strings.Join(said, ", ")
}

func dial(number int, address, token, tool, arguments string) []*connection {
	connections := make([]*connection, number)
	for i := range connections {
		connections[i] = newConnection(address, token, tool, arguments)
	}
	return connections
}

// closed lets each connection send again as soon as it is answered.
func closed(connections []*connection, length time.Duration) *tally {
	return closedOver(connections, len(connections), length)
}

// closedOver lets a number of callers send again as soon as they are answered, each time on the
// connection that has waited longest.
func closedOver(connections []*connection, callers int, length time.Duration) *tally {
	t := new(tally)
	end := time.Now().Add(length)
	free := make(chan *connection, len(connections))
	for _, c := range connections {
		free <- c
	}
	var group sync.WaitGroup
	for range callers {
		group.Go(func() {
			for now := time.Now(); now.Before(end); now = time.Now() {
				c := <-free
				t.offered.Add(1)
				code, err := c.ask()
				t.answered(now, code, err)
				free <- c
				if err != nil {
					time.Sleep(10 * time.Millisecond)
				}
			}
		})
	}
	group.Wait()
	return t
}

// open sends requests at a rate, regardless of earlier requests. They are due by the clock, at
// equal distances or, as for independent callers, exponential ones.
func open(connections []*connection, rate float64, length time.Duration, constant bool) *tally {
	t := new(tally)
	openInto(t, connections, rate, length, constant)
	return t
}

func openInto(t *tally, connections []*connection, rate float64, length time.Duration,
	constant bool) {
	due := make(chan time.Time, 1<<20)
	var group sync.WaitGroup
	for _, c := range connections {
		group.Go(func() {
			for when := range due {
				if late := time.Since(when); late < patience {
					t.late.add(late)
					code, err := c.ask()
					t.answered(when, code, err)
				} else {
					t.unsent.Add(1)
				}
			}
		})
	}
	start := time.Now()
	for at := time.Duration(0); at < length; {
		if early := time.Until(start.Add(at)); early > 0 {
			time.Sleep(early)
		}
		t.offered.Add(1)
		select {
		case due <- start.Add(at):
		default:
			t.unsent.Add(1)
		}
		if constant {
			at += time.Duration(1e9 / rate)
		} else {
			at += time.Duration(rand.ExpFloat64() * 1e9 / rate)
		}
	}
	close(due)
	group.Wait()
}
