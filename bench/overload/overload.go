package main

import (
	"fmt"
	"time"
)

// overload measures each load between two measurements of the server's capacity.
func overload(to *target, length time.Duration) {
	fmt.Printf("%s\n", to.tool)
	to.find(length)
	connections := to.open("", length/10)
	defer hangUp(connections)
	fmt.Printf("  capacity: closed loops of %d callers over %d connections\n", to.callers,
		len(connections))
	fmt.Printf("%9s %9s %9s %6s %8s %9s %9s %9s %6s %6s %7s %14s %6s %6s  %s\n", "", "offered/s",
		"results/s", "share", "CPU us", "p50 ms", "p99 ms", "ref. p99", "unsent", "lost", "late ms",
		"memory MiB", "server", "load", "refused by code")
	before := to.capacity(connections, length/3)
	capacityLine(before)
	var light time.Duration
	var result float64
	var refusals [2]float64
	for _, times := range []float64{0.8, 2, 5, 10} {
		s := to.measured(func() *tally {
			return open(connections, before.rate*times, length, false)
		})
		// Rates are of the time in which requests came: the last answers come after it.
		s.rate = rate(s.tally, length)
		after := to.capacity(connections, length/3)
		carried := (before.rate + after.rate) / 2
		offered := float64(s.offered.Load()) / length.Seconds()
		p99 := s.accepted.quantile(0.99)
		if times < 1 {
			light = p99
		}
		loadLine(fmt.Sprintf("%.1fx", times), offered, fmt.Sprintf("%.2f", s.rate/carried), s)
		capacityLine(after)
		said(s.tally)
		fmt.Printf("| `%s` | %.1f | %.0f | %.0f | %.0f | %.2f | %s | %.1f | %d | %d | %d, %d, %d |\n",
			to.tool, offered/carried, offered, carried, s.rate, s.rate/carried, ms(p99),
			float64(p99)/float64(light), s.refused.count(), s.lost.Load()+s.unsent.Load(),
			s.before, s.most, s.after)
		// The first load has the costliest results. The cost of refusals is that of the last load.
		result = (before.each() + after.each()).Seconds() / 2
		refusals = [2]float64{s.refusal(before.each()), s.refusal(after.each())}
		before = after
	}
	refusal := (refusals[0] + refusals[1]) / 2
	fmt.Printf("  CPU time of the server: a result %.0f us, a refusal %.0f us; by what a result cost"+
		" before and after: %.0f and %.0f us\n", result*1e6, refusal*1e6, refusals[0]*1e6,
		refusals[1]*1e6)
	part := refusal / result
	left := func(times float64) float64 { return max(0, (1-times*part)/(1-part)) }
	fmt.Printf("  what such refusals leave of the capacity: 2x %.2f, 5x %.2f, 10x %.2f\n",
		left(2), left(5), left(10))
}

func capacityLine(s stretch) {
	loadLine("capacity", float64(s.offered.Load())/s.wall.Seconds(), "", s)
}

func loadLine(name string, offered float64, share string, s stretch) {
	fmt.Printf("%9s %9.0f %9.0f %6s %8s %9s %9s %9s %6d %6d %7s %s  %s\n", name, offered, s.rate,
		share, us(s.each()), ms(s.accepted.quantile(0.5)), ms(s.accepted.quantile(0.99)),
		ms(s.refused.quantile(0.99)), s.unsent.Load(), s.lost.Load(), ms(s.late.quantile(0.99)),
		s.used, s.byCode())
}
