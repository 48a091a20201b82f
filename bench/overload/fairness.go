package main

import (
	"fmt"
	"strconv"
	"sync"
	"time"
)

// The connections of the flooding principal, and of each of the others.
const flooding, quiet = 500, 50

// fairness measures half of the quiet time before the flood and half after it, so that a changing
// speed of the machine affects both.
func fairness(to *target, length time.Duration) {
	fmt.Printf("%s\n", to.tool)
	to.find(length)
	callers := to.dial(to.callers, "")
	carried := to.capacity(callers, length/3).rate
	hangUp(callers)
	fmt.Printf("  capacity: %.0f/s; the others send half of it\n", carried)
	fmt.Printf("%24s %9s %9s %9s %9s %6s %6s  %s\n", "", "offered/s", "results/s", "p50 ms",
		"p99 ms", "unsent", "lost", "refused by code")
	line := func(name string, t *tally, length time.Duration) {
		fmt.Printf("%24s %9.0f %9.0f %9s %9s %6d %6d  %s\n", name,
			float64(t.offered.Load())/length.Seconds(), rate(t, length),
			ms(t.accepted.quantile(0.5)), ms(t.accepted.quantile(0.99)),
			t.unsent.Load(), t.lost.Load(), t.byCode())
		said(t)
	}
	var alone, beside, after tally
	others(to, &alone, carried/2, length/2)
	line("nine others, quiet", &alone, length/2)
	var group sync.WaitGroup
	var flood *tally
	group.Go(func() {
		connections := to.dial(flooding, "flood")
		flood = open(connections, carried*10, length, false)
		hangUp(connections)
	})
	beside.settles = time.Now().Add(time.Second)
	others(to, &beside, carried/2, length)
	group.Wait()
	line("nine others, meanwhile", &beside, length)
	line("the flood, 10x", flood, length)
	time.Sleep(length / 20)
	others(to, &after, carried/2, length/2)
	line("nine others, after it", &after, length/2)
	alone.accepted.addAll(&after.accepted)
	before, under := alone.accepted.quantile(0.99), beside.accepted.quantile(0.99)
	settled := beside.settled.quantile(0.99)
	times := func(p99 time.Duration) float64 { return float64(p99) / float64(before) }
	fmt.Printf("  p99 of the others: quiet %s ms, next to the flood %s ms, %.2f times that\n",
		ms(before), ms(under), times(under))
	fmt.Printf("  without the flood's first second: %s ms, %.2f times\n", ms(settled),
		times(settled))
}

// others sends as nine principals.
func others(to *target, t *tally, rate float64, length time.Duration) {
	// Each principal has its own clock: the next connection of a shared flow often belongs to the
	// same principal as the last.
	var group sync.WaitGroup
	for principal := range 9 {
		group.Go(func() {
			connections := to.dial(quiet, "quiet-"+strconv.Itoa(principal))
			openInto(t, connections, rate/9, length, false)
			hangUp(connections)
		})
	}
	group.Wait()
}
