package main

import (
	"fmt"
	"log"
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

// refusal is what remains of its time for each that was refused, in seconds, if a result took so
// long; 0 where none was.
func (s stretch) refusal(result time.Duration) float64 {
	if s.refused.count() == 0 {
		return 0
	}
	results := time.Duration(s.accepted.count()) * result
	return (s.server - results).Seconds() / float64(s.refused.count())
}

// find looks how many callers of a closed loop keep the server busy: the fewest that have, within
// three percent, as many results as any number of them, of those that are not refused. For who
// asks again at once when it is refused is overload and not capacity. It is about their number:
// what they had is not used, since the most of several short loops is more than what is there for
// long.
func (to *target) find(length time.Duration) {
	rates := make(map[int]float64)
	best := 0.0
	for number := 4; number <= callers; number *= 3 {
		connections := to.dial(number, "")
		_ = closed(connections, length/8)
		s := to.measured(func() *tally { return closed(connections, length/8) })
		hangUp(connections)
		fmt.Printf("  closed loop, %3d callers: %7.0f/s   CPU time %s us   p99 %s ms   refused %s\n",
			number, s.rate, us(s.each()), ms(s.accepted.quantile(0.99)), s.byCode())
		if number == 4 || 100*s.refused.count() <= s.accepted.count() {
			rates[number] = s.rate
			best = max(best, s.rate)
		}
	}
	to.callers = callers
	for number, rate := range rates {
		if rate >= 0.97*best {
			to.callers = min(to.callers, number)
		}
	}
}

// open opens the connections of all that follows. Of ten times what is carried each is asked less
// than once a second, as by a client that waits for as long as a refusal says, a second mostly.
// With fewer an open loop would not be one: who is answered late would be asked less.
func (to *target) open(token string, length time.Duration) []*connection {
	first := to.dial(to.callers, token)
	carried := to.capacity(first, length).rate
	hangUp(first)
	connections := to.dial(max(callers, min(most, int(15*carried))), token)
	for _, c := range connections {
		if err := c.open(); err != nil {
			log.Fatal(err)
		}
	}
	return connections
}

// capacity is what the server carries now, when what was before it is over: a closed loop of those
// callers, each of whom takes of the connections the one that was used least lately.
func (to *target) capacity(connections []*connection, length time.Duration) stretch {
	_ = closedOver(connections, to.callers, length/4)
	return to.measured(func() *tally { return closedOver(connections, to.callers, length) })
}
