// The load generator of bench/overload.sh and bench/slow.sh, which explain its output.
//
// 	load overload ADDRESS PID TOOL SECONDS    0.8 to 10 times the server's capacity
// 	load fairness ADDRESS PID TOOL SECONDS    nine quiet principals next to one that floods
// 	load slow ADDRESS PID SECONDS             good callers next to slow senders and slow readers
//
// PID is the server's process on this machine.
//	load overload ADDRESS PID TOOL SECONDS    from 0.8 to 10 times of what the server carries
//	load fairness ADDRESS PID TOOL SECONDS    nine quiet principals beside one that floods
//	load slow ADDRESS PID SECONDS             good callers beside slow senders and slow readers
//
// PID is the server's, on this machine.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"strconv"
	"sync"
	"time"
)

// The fewest and the most kept-alive connections of an open loop. As many requests may be at the
// server at once.
const callers, most = 1000, 10_000

var arguments = map[string]string{"echo": `{"text":"hello"}`, "burn": `{}`, "burn10": `{}`,
	"sleep": `{}`}

func main() {
	log.SetFlags(0)
	if len(os.Args) < 5 {
		log.Fatal("see load.go for the arguments")
	}
	address, pid := os.Args[2], os.Args[3]
	seconds, err := strconv.ParseFloat(os.Args[len(os.Args)-1], 64)
	if err != nil {
		log.Fatal(err)
	}
	length := time.Duration(seconds * float64(time.Second))
	switch os.Args[1] {
	case "overload":
		overload(newTarget(address, pid, os.Args[4]), length)
	case "fairness":
		fairness(newTarget(address, pid, os.Args[4]), length)
	case "slow":
		besideSlow(address, pid, length)
	}
}

func besideSlow(address, pid string, length time.Duration) {
	const number, asked = 1000, 200.0
	good := dial(50, address, "", "echo", arguments["echo"])
	measure := func(name string) *tally {
		measured := watch(pid)
		t := open(good, asked, length, false)
		fmt.Printf("%20s %9.0f %9.0f %9s %9s %6d %s  %s\n", name,
			float64(t.offered.Load())/length.Seconds(), rate(t, length),
			ms(t.accepted.quantile(0.5)), ms(t.accepted.quantile(0.99)),
			t.lost.Load()+t.unsent.Load(), measured(), t.byCode())
		said(t)
		return t
	}
	fmt.Printf("%20s %9s %9s %9s %9s %6s %14s %6s %6s  %s\n", "good callers", "offered/s",
		"answers/s", "p50 ms", "p99 ms", "lost", "memory MiB", "server", "load",
		"refused by code")
	_ = closed(good, length/10)
	quiet := measure("alone")
	ctx, stop := context.WithCancel(context.Background())
	var group sync.WaitGroup
	sending := senders(ctx, number, length/4, address, &group)
	reading := readers(ctx, number, length/4, address, &group)
	pause(ctx, length/4+time.Second)
	beside := measure("beside slow ones")
	stop()
	group.Wait()
	hangUp(good)
	for name, peers := range map[string]*slowPeers{"senders": sending, "readers": reading} {
		fmt.Printf("  slow %s: %d opened, %d cut by the server, %d not let in\n", name,
			peers.opened.Load(), peers.cut.Load(), peers.refused.Load())
	}
	fmt.Printf("  p99 of the good callers: %.2f times the quiet one\n",
		float64(beside.accepted.quantile(0.99))/float64(quiet.accepted.quantile(0.99)))
}

func hangUp(connections []*connection) {
	for _, c := range connections {
		c.close()
	}
}

func said(t *tally) {
	if why := t.failure.Load(); why != nil {
		fmt.Printf("       the first lost request: %v\n", why)
	}
}

func rate(t *tally, length time.Duration) float64 {
	return float64(t.accepted.count()) / length.Seconds()
}

func us(took time.Duration) string {
	return strconv.FormatFloat(float64(took)/1e3, 'f', 0, 64)
}

func ms(took time.Duration) string {
	return strconv.FormatFloat(float64(took)/1e6, 'f', 1, 64)
}

// used is what a load used of the machine: the server's memory, and the CPU time of both sides.
type used struct {
	before, most, after int
	wall, server, own   time.Duration
}

func (u used) String() string {
	return fmt.Sprintf("%14s %6.2f %6.2f", fmt.Sprintf("%d %d %d", u.before, u.most, u.after),
		u.server.Seconds()/u.wall.Seconds(), u.own.Seconds()/u.wall.Seconds())
}

// watch returns a function that reports the use until it is called.
func watch(pid string) func() used {
	u := used{before: memory(pid)}
	u.most = u.before
	start, server, own := time.Now(), cpu(pid), cpu("self")
	done, ended := make(chan bool), make(chan bool)
	go func() {
		defer close(ended)
		for {
			select {
			case <-done:
				return
			case <-time.After(250 * time.Millisecond):
				u.most = max(u.most, memory(pid))
			}
		}
	}()
	return func() used {
		close(done)
		<-ended
		u.wall, u.server, u.own = time.Since(start), cpu(pid)-server, cpu("self")-own
		u.after = memory(pid)
		u.most = max(u.most, u.after)
		return u
	}
}
