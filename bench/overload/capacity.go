package main

import (
	"fmt"
	"time"
)

// target is the server, and the tool of it that is called.
type target struct {
	address, pid, tool, arguments string
	// how many callers of a closed loop had the most results
	callers int
}

func newTarget(address, pid, tool string) *target {
	return &target{address: address, pid: pid, tool: tool, arguments: arguments[tool]}
}

func (to *target) dial(number int, token string) []*connection {
	return dial(number, to.address, token, to.tool, to.arguments)
}

// A stretch of one load, and what it took of the machine.
type stretch struct {
	*tally
	used
	// results a second
	rate float64
}

// each is the server's CPU time by its results, whatever else it did.
func (s stretch) each() time.Duration {
	return s.server / time.Duration(max(1, s.accepted.count()))
}

func (to *target) measured(load func() *tally) stretch {
	taken := watch(to.pid)
	t := load()
	used := taken()
	return stretch{t, used, float64(t.accepted.count()) / used.wall.Seconds()}
}

// find looks how many callers have the most results in a closed loop. It is about their number: what
// they had is not used, since the most of several short loops is more than what is there for long.
func (to *target) find(length time.Duration) {
	best := 0.0
	for number := 4; number <= callers; number *= 3 {
		connections := to.dial(number, "")
		_ = closed(connections, length/8)
		s := to.measured(func() *tally { return closed(connections, length/8) })
		hangUp(connections)
		fmt.Printf("  closed loop, %3d callers: %7.0f/s   CPU time %s us   p99 %s ms\n", number,
			s.rate, us(s.each()), ms(s.accepted.quantile(0.99)))
		if s.rate > best {
			best, to.callers = s.rate, number
		}
	}
}

// capacity is what the server carries now: a closed loop of that many callers, when what was before
// it is over.
func (to *target) capacity(length time.Duration) stretch {
	connections := to.dial(to.callers, "")
	defer hangUp(connections)
	_ = closed(connections, length/4)
	return to.measured(func() *tally { return closed(connections, length) })
}
