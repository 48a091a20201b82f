package main

import (
	"fmt"
	"log"
	"time"
)

// target is a server and one of its tools.
type target struct {
	address, pid, tool, arguments string
	// the callers of a closed loop with the most results
	callers int
}

func newTarget(address, pid, tool string) *target {
	return &target{address: address, pid: pid, tool: tool, arguments: arguments[tool]}
}

func (to *target) dial(number int, token string) []*connection {
	return dial(number, to.address, token, to.tool, to.arguments)
}

// A stretch is a part of one load, and what it used of the machine.
type stretch struct {
	*tally
	used
	// results a second
	rate float64
}

// each is the server's CPU time divided by its results, including all other work.
func (s stretch) each() time.Duration {
	return s.server / time.Duration(max(1, s.accepted.count()))
}

func (to *target) measured(load func() *tally) stretch {
	taken := watch(to.pid)
	t := load()
	used := taken()
	return stretch{t, used, float64(t.accepted.count()) / used.wall.Seconds()}
}

// refusal is the rest of the CPU time for each refusal, in seconds, if a result took this long. It
// is 0 without refusals.
func (s stretch) refusal(result time.Duration) float64 {
	if s.refused.count() == 0 {
		return 0
	}
	results := time.Duration(s.accepted.count()) * result
	return (s.server - results).Seconds() / float64(s.refused.count())
}

// find returns how many callers of a closed loop keep the server busy: the fewest with the most
// results, within three percent. Refusals do not count: a caller that sends again at once after a
// refusal is overload, and not capacity. Only the number of callers is used. Their results are not,
// since the best of several short loops is more than the long-term capacity.
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

// open opens the connections for everything that follows. At ten times the capacity each connection
// sends less than once a second, as a client does that waits as long as a refusal says. With fewer
// connections the loop would not be open: late answers would delay requests.
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

// capacity measures the server's capacity after the load before has ended: a closed loop of these
// callers, each of which takes the connection that has waited longest.
func (to *target) capacity(connections []*connection, length time.Duration) stretch {
	_ = closedOver(connections, to.callers, length/4)
	return to.measured(func() *tally { return closedOver(connections, to.callers, length) })
}
